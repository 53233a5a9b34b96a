"""Finding one key in files, whose verified parts a process keeps, so that the next key there costs no reading.

A part is a row group: up to a megabyte of keys and values, sorted by bucket, key and seq. Files never change, and the
checksum of a file's footer tells it from any other of its name. So what was kept of a file is right as long as the
catalogue names that file, whatever became of it since. A file that is read is verified like any other (I15).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from export_queue.core.segments.model import Segment
from export_queue.core.segments.verified_file import VerifiedFile
from export_queue.core.store import SEGMENT_COLUMNS, Database

if TYPE_CHECKING:
    import pyarrow as pa

_SEGMENT_BYTES = 1024
_GROUP_BYTES = 256
"""Approximate memory of a segment's row of the catalogue, and of what is known of a row group, besides its keys."""


def listed_segments(database: Database, listed: str | bytes | None) -> tuple[Segment, ...]:
    """Read a JSON list of rows of the catalogue; the segments with the highest sequences come first."""
    if listed is None:
        return ()
    known: tuple[Segment, ...] | None = database.kept.get(listed)
    if known is None:
        found = (Segment.from_row(dict(zip(SEGMENT_COLUMNS, row, strict=True))) for row in orjson.loads(listed))
        known = tuple(sorted(found, key=lambda one: one.highest_seq, reverse=True))
        database.kept.put(listed, known, len(listed) + len(known) * _SEGMENT_BYTES)
    return known


def entries_of_key(database: Database, segment: Segment, bucket: int, key: bytes) -> list[tuple[int, bytes | None]]:
    """Find the entries of a key in a segment that no drain takes from: sequence and value of each.

    :param bucket: the key's, in the layout of the segment.
    :raises SegmentLost: the file is missing or damaged, and the part with the key is not kept.
    :raises SegmentUnavailable: it cannot be read now.
    """
    kept, found = database.kept, []
    of_file = (segment.file, segment.checksum)
    of_slice = (*of_file, segment.row_group_first, segment.row_group_end, segment.entries)
    file: VerifiedFile | None = None
    try:
        groups: tuple[_Group, ...] | None = kept.get(of_slice)
        if groups is None:
            file = VerifiedFile(segment)
            file.check(segment)
            groups = tuple(_groups(file, segment))
            kept.put(of_slice, groups, len(groups) * _GROUP_BYTES)
        for group in groups:
            if not group.may_have(bucket, key):
                continue
            part: _Part | None = kept.get((*of_file, group.number))
            if part is None:
                file = file or VerifiedFile(segment)
                part = _Part.of(file.table(group.number))
                kept.put((*of_file, group.number), part, part.size)
            found += part.entries(bucket, key)
    finally:
        if file is not None:
            file.close()
    return found


@dataclass(frozen=True, slots=True)
class _Group:
    """What the footer says about a row group. None: it does not say that."""

    number: int
    buckets: tuple[int, int] | None
    """The first and last."""
    keys: tuple[bytes, bytes] | None
    """The lowest and highest."""

    def may_have(self, bucket: int, key: bytes) -> bool:
        if self.buckets is not None and not self.buckets[0] <= bucket <= self.buckets[1]:
            return False
        return self.keys is None or self.keys[0] <= key <= self.keys[1]


def _groups(file: VerifiedFile, segment: Segment) -> Iterator[_Group]:
    for number in range(segment.row_group_first, segment.row_group_end):
        group = file.metadata.row_group(number)
        buckets, keys = (group.column(column).statistics for column in (0, 1))
        yield _Group(
            number,
            (buckets.min, buckets.max) if buckets is not None and buckets.has_min_max else None,
            (bytes(keys.min), bytes(keys.max)) if keys is not None and keys.has_min_max else None,
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """A row group in memory."""

    buckets: memoryview
    keys: pa.Array
    seqs: pa.Array
    values: pa.Array
    size: int
    """In bytes."""

    @classmethod
    def of(cls, table: pa.Table) -> _Part:
        """Read the columns of :data:`COLUMNS`."""
        buckets, keys, seqs, values = columns = [column.combine_chunks() for column in table.columns]
        numbers = memoryview(buckets.buffers()[1]).cast("b").cast("i")  # a search of these costs no object of Arrow
        return cls(
            numbers[buckets.offset : buckets.offset + len(buckets)],
            keys,
            seqs,
            values,
            sum(column.get_total_buffer_size() for column in columns),
        )

    def entries(self, bucket: int, key: bytes) -> list[tuple[int, Any]]:
        first, end = bisect_left(self.buckets, bucket), bisect_right(self.buckets, bucket)
        at = first + bisect_left(range(first, end), key, key=lambda row: self.keys[row].as_py())
        found = []
        while at < end and self.keys[at].as_py() == key:
            found.append((self.seqs[at].as_py(), self.values[at].as_py()))
            at += 1
        return found
