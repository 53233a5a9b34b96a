"""Segments: entries of long transactions that wait in files instead of rows; values without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from export_queue.core.queue import Queue, Range
from export_queue.core.store import EntryKey


@dataclass(frozen=True, slots=True)
class Slice:
    """The part of a file that lies in one unit of its queue."""

    first: int
    """First bucket of the unit."""
    end: int
    """End of the unit; buckets that the queue does not have are empty."""
    row_group_first: int
    row_group_end: int
    entries: int
    bytes: int
    """Of keys and values."""
    largest_value: int = 0
    """Bytes of the largest value."""


@dataclass(frozen=True, slots=True)
class FileReport:
    """A file that was written, as its writer reports it; a small value that travels between processes."""

    file: str
    """Its URL, or its absolute path."""
    bytes: int
    footer_bytes: int
    """Size of the footer, which is the end of the file."""
    checksum: str
    """Of the footer, which has the checksums of all else."""
    slices: tuple[Slice, ...]

    @property
    def entries(self) -> int:
        """Entries in the file."""
        return sum(part.entries for part in self.slices)

    def columns(self, part: Slice, queue: Queue, *, seqs: tuple[int, int], add_order: int = 0) -> dict[str, Any]:
        """Make the columns of the segment that one slice is, without its own transaction and number.

        :param queue: the queue, in the layout of the file.
        :param seqs: the lowest and the highest sequence.
        :param add_order: its place among all that one transaction adds; 0 for what was committed before.
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
            "lowest_seq": seqs[0],
            "highest_seq": seqs[1],
            "add_order": add_order,
            "largest_value": part.largest_value,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The slice of one file that lies in one unit of its queue, as the store knows it."""

    transaction: int
    """The long transaction that wrote it."""
    number: int
    """Its number among those of the transaction."""
    queue_number: int
    """Of the queue that was added to."""
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
    done: tuple[tuple[EntryKey, EntryKey], ...] = ()
    """The parts that its reader has drained: first and last entry of each, ascending."""

    @property
    def range(self) -> Range:
        """The buckets in which its entries are."""
        return Range(self.first, self.end, self.layout)

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
