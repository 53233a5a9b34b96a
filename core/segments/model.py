"""Segments and files as plain values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from export_queue.core.queue import Queue, Range
from export_queue.core.store import EntryKey


@dataclass(frozen=True, slots=True)
class Slice:
    """The part of a file that lies in one unit of its queue."""

    first: int
    """First bucket of the unit."""
    end: int
    """End of the unit. It may lie after the last bucket of the queue."""
    row_group_first: int
    row_group_end: int
    entries: int
    bytes: int
    """Of keys and values."""
    largest_value: int
    """Bytes of the largest value."""
    lowest_seq: int
    highest_seq: int

    def __add__(self, other: Slice) -> Slice:
        """Join the row groups that follow."""
        return replace(
            self,
            row_group_end=other.row_group_end,
            entries=self.entries + other.entries,
            bytes=self.bytes + other.bytes,
            largest_value=max(self.largest_value, other.largest_value),
            lowest_seq=min(self.lowest_seq, other.lowest_seq),
            highest_seq=max(self.highest_seq, other.highest_seq),
        )


@dataclass(frozen=True, slots=True)
class FileReport:
    """A file as its writer reports it: a small value that travels between processes."""

    file: str
    """URL or absolute path."""
    bytes: int
    footer_bytes: int
    """Size of the footer at the end of the file."""
    checksum: str
    """Of the footer, which has the checksums of everything else."""
    slices: tuple[Slice, ...]

    @property
    def entries(self) -> int:
        return sum(part.entries for part in self.slices)

    def columns(
        self, part: Slice, queue: Queue, *, lowest_seq: int | None = None, highest_seq: int = 0, add_order: int = 0
    ) -> dict[str, Any]:
        """Return the columns of the segment that one slice is, without its own transaction and number.

        :param queue: the queue in the layout of the file.
        :param lowest_seq: a lower sequence that the segment stands for.
        :param highest_seq: a higher one.
        :param add_order: position among everything that one transaction adds; 0 for what was committed before.
        """
        return {
            "queue_number": queue.number,
            "layout": queue.layout,
            "first_bucket": part.first,
            "end_bucket": min(part.end, queue.buckets),
            "file": self.file,
            "file_bytes": self.bytes,
            "footer_bytes": self.footer_bytes,
            "checksum": self.checksum,
            "row_group_first": part.row_group_first,
            "row_group_end": part.row_group_end,
            "entries": part.entries,
            "bytes": part.bytes,
            "lowest_seq": part.lowest_seq if lowest_seq is None else min(lowest_seq, part.lowest_seq),
            "highest_seq": max(highest_seq, part.highest_seq),
            "add_order": add_order,
            "largest_value": part.largest_value,
            "written_by": None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The slice of one file that lies in one unit of its queue, as the catalogue has it."""

    transaction: int
    """The long transaction that wrote it."""
    number: int
    """Its number within the transaction."""
    queue_number: int
    """The queue that it was added to."""
    layout: int
    first: int
    end: int
    file: str
    file_bytes: int
    footer_bytes: int
    checksum: str
    """Of the footer."""
    row_group_first: int
    row_group_end: int
    entries: int
    bytes: int
    lowest_seq: int
    highest_seq: int
    add_order: int = 0
    """Of two entries of a key in one transaction, the one with the higher order counts."""
    largest_value: int = 0
    written_by: int | None = None
    """The transaction that wrote its file, if it is another one."""
    done: tuple[tuple[EntryKey, EntryKey], ...] = ()
    """The parts that its reader has drained: first and last entry of each, ascending."""

    @property
    def range(self) -> Range:
        return Range(self.first, self.end, self.layout)

    @property
    def key(self) -> tuple[int, int]:
        """Transaction and number."""
        return self.transaction, self.number

    @classmethod
    def from_row(cls, row: Mapping[str, Any], done: tuple[tuple[EntryKey, EntryKey], ...] = ()) -> Segment:
        """Read a row of the catalogue."""
        columns = dict(row)
        return cls(
            transaction=columns.pop("transaction_id"),
            first=columns.pop("first_bucket"),
            end=columns.pop("end_bucket"),
            done=done,
            **columns,
        )


def by_file(segments: Iterable[Segment]) -> list[list[Segment]]:
    """Group segments by their file; those of one file by their units."""
    found: defaultdict[str, list[Segment]] = defaultdict(list)
    for segment in sorted(segments, key=lambda one: one.first):
        found[segment.file].append(segment)
    return list(found.values())
