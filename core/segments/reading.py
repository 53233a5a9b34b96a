"""Reading the entries of one segment in their order, a few thousand at a time."""

from __future__ import annotations

import contextlib
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from export_queue.core.queue import Position, Range
from export_queue.core.segments.model import Segment
from export_queue.core.segments.verified_file import COLUMNS, VerifiedFile
from export_queue.core.segments.windows import rows_before
from export_queue.core.store import EntryKey

if TYPE_CHECKING:
    import pyarrow as pa

Row = tuple[int, bytes, int, bytes | None]
BATCH_ROWS = 4096
_ALL_SLICES_AT_ONCE_BYTES = 1 << 20


key_of: Callable[[Row], EntryKey] = itemgetter(slice(3))
"""Return an entry's position in the order of its queue."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of a segment."""

    last_bucket: int
    last_key: bytes | None
    """None if the entries are of several buckets."""
    entries: int
    bytes: int
    """Approximate size of keys and values."""


def row_groups(segments: Sequence[Segment]) -> list[list[RowGroup]]:
    """Read the row groups of each segment from the files' statistics. Each file is opened once.

    :raises SegmentLost: a file is missing.
    :raises SegmentUnavailable: a file cannot be read now.
    """
    heads: dict[str, Any] = {}
    for segment in segments:
        if segment.file not in heads:
            with contextlib.closing(VerifiedFile(segment)) as file:
                heads[segment.file] = file.metadata
    return [_groups_of(segment, heads[segment.file]) for segment in segments]


def _groups_of(segment: Segment, head: Any) -> list[RowGroup]:
    found = []
    for i in range(segment.row_group_first, min(segment.row_group_end, head.num_row_groups)):
        group = head.row_group(i)
        bucket, key = (group.column(column).statistics for column in (0, 1))
        if bucket is not None and bucket.has_min_max and key is not None and key.has_min_max:
            size = segment.bytes * group.num_rows // max(segment.entries, 1)
            last_key = bytes(key.max) if bucket.min == bucket.max else None
            found.append(RowGroup(bucket.max, last_key, group.num_rows, size))
    return found


class SegmentReader:
    """Reads the entries of a segment that its reader has not drained, in order. The file is open only meanwhile.

    :param first: first bucket to read.
    :param end: end of these buckets.
    :param after: the position after which to begin.
    :param batch_rows: maximum number of entries to read at once.
    """

    def __init__(
        self,
        segment: Segment,
        *,
        first: int,
        end: int,
        after: Position | None = None,
        batch_rows: int = BATCH_ROWS,
    ) -> None:
        self.segment = segment
        self.rows: list[Row] = []
        """Entries that were read but not taken."""
        self.is_read = False
        """Whether nothing follows after these."""
        self.ahead: EntryKey | None = None
        """Position of the next entry, after :meth:`set_aside`."""
        self._first, self._end = first, end
        self._batch_rows = batch_rows
        self._after: EntryKey | None = None if after is None else (after.bucket, after.key, after.seq)
        self._taken = self._after
        """The entry that was taken last: after it the file is opened again."""
        self._batches: Iterator[tuple[list[Row], bool]] | None = None
        self._file: VerifiedFile | None = None

    def fill(self) -> None:
        """Read until there are entries, or the end is reached. After an error the next call opens the file again.

        :raises SegmentLost: the file is missing or damaged.
        :raises SegmentUnavailable: it cannot be read now.
        """
        self.ahead = None
        while not self.rows and not self.is_read:
            try:
                self._batches = self._batches or self._open()
                found, is_last = next(self._batches, ([], True))
            except BaseException:
                self.close()
                raise
            if found:
                self.rows = found
                self._after = key_of(found[-1])
            if is_last:  # closed at once, so that thousands of small files are not open together
                self.is_read = True
                self.close()

    def take(self, until: EntryKey | None, before: EntryKey | None = None) -> list[Row]:
        """Take the entries that were read, up to one position and before another one, if given."""
        end = count_until(self.rows, until, before)
        taken, self.rows = self.rows[:end], self.rows[end:]
        if taken:
            self._taken = key_of(taken[-1])
        return taken

    @property
    def bytes(self) -> float:
        """Approximate size of the entries that were read but not taken."""
        return mean_bytes(self.segment) * len(self.rows)

    def set_aside(self) -> None:
        """Drop the entries that were not taken. They are read again when they are needed."""
        self.ahead = key_of(self.rows[0])
        self.rows, self.is_read, self._after = [], False, self._taken
        self.close()

    def end(self) -> None:
        """Skip the rest."""
        self.rows, self.is_read, self.ahead = [], True, None
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._batches = self._file = None

    def _open(self) -> Iterator[tuple[list[Row], bool]]:
        self._file = VerifiedFile(self.segment)
        self._file.check(self.segment)
        return self._read(self._file)

    def _read(self, file: VerifiedFile) -> Iterator[tuple[list[Row], bool]]:
        """Yield batches, and whether each is the last one."""
        segment = self.segment
        groups = [
            i
            for i in range(segment.row_group_first, segment.row_group_end)
            if self._may_have_more(file.metadata.row_group(i))
        ]
        for i in groups:
            table = file.table(i)
            for start in range(0, table.num_rows, self._batch_rows):
                batch = table.slice(start, self._batch_rows)
                columns = (batch.column(name).to_pylist() for name in COLUMNS)
                is_last = i == groups[-1] and start + batch.num_rows == table.num_rows
                yield self._wanted(list(zip(*columns, strict=True))), is_last

    def _may_have_more(self, group: Any) -> bool:
        """Return whether a row group may have entries to read, by its statistics."""
        found = group.column(0).statistics
        if found is None or not found.has_min_max:
            return True
        after = self._first if self._after is None else max(self._first, self._after[0])
        return bool(found.max >= after and found.min < self._end)

    def _wanted(self, rows: list[Row]) -> list[Row]:
        """Leave out what was read before, what is drained, and other buckets."""
        start = bisect_left(rows, self._first, key=_bucket_of)
        if self._after is not None:
            start = max(start, bisect_right(rows, self._after, key=key_of))
        return without(rows[start : bisect_left(rows, self._end, key=_bucket_of)], self.segment.done)


def mean_bytes(segment: Segment) -> float:
    """Return the mean size of an entry's key and value."""
    return segment.bytes / max(segment.entries, 1)


def count_until(rows: Sequence[Row], until: EntryKey | None, before: EntryKey | None) -> int:
    """Count the entries up to one position and before another one; None is no bound."""
    end = len(rows) if until is None else bisect_right(rows, until, key=key_of)
    return end if before is None else min(end, bisect_left(rows, before, key=key_of))


def read_slices(segments: Sequence[Segment]) -> list[pa.Table]:
    """Read what is not drained of some segments in one file, which is opened once.

    :returns: columns ``bucket``, ``key``, ``seq`` and ``value`` of each.
    :raises SegmentLost: the file is missing or damaged.
    :raises SegmentUnavailable: it cannot be read now.
    """
    import pyarrow as pa

    found = []
    with contextlib.closing(VerifiedFile(segments[0], at_once=_ALL_SLICES_AT_ONCE_BYTES)) as file:
        for segment in segments:
            file.check(segment)
            groups = range(segment.row_group_first, segment.row_group_end)
            found.append(left_of(segment, pa.concat_tables([file.table(i) for i in groups])))
    return found


def row_group_tables(
    segments: Sequence[Segment], columns: Sequence[str], *, first: int = 0, end: int = sys.maxsize
) -> Iterator[tuple[Segment, pa.Table]]:
    """Read some segments in one file, one row group at a time, including what is drained.

    :param first: first bucket of an interval; row groups outside it are left out.
    :param end: its end.
    :raises SegmentLost: the file is missing or damaged.
    :raises SegmentUnavailable: it cannot be read now.
    """
    with contextlib.closing(VerifiedFile(segments[0])) as file:
        for segment in segments:
            file.check(segment)
            for i in range(segment.row_group_first, segment.row_group_end):
                found = file.metadata.row_group(i).column(0).statistics
                if found is None or not found.has_min_max or (found.max >= first and found.min < end):
                    yield segment, file.table(i, columns)


def batches_after(segment: Segment, within: Range, after: tuple[int, bytes] | None) -> Generator[pa.RecordBatch]:
    """Read a segment that no drain takes from, one row group at a time, in the order of bucket, key and seq.

    :param within: the buckets to read.
    :param after: bucket and key after which to begin; None for the first bucket.
    :returns: columns ``bucket``, ``key``, ``seq`` and ``value``.
    :raises SegmentLost: the file is missing or damaged.
    :raises SegmentUnavailable: it cannot be read now.
    """
    start = (within.first, b"") if after is None else (after[0], after[1] + b"\0")  # the next key that there may be
    for _, table in row_group_tables([segment], COLUMNS, first=start[0], end=within.end):
        for batch in table.to_batches():
            first, end = rows_before(batch, start), rows_before(batch, (within.end, b""))
            yield batch.slice(first, end - first)


def left_of(segment: Segment, table: pa.Table) -> pa.Table:
    """Leave out the entries of a segment that are drained."""
    import pyarrow as pa

    if not segment.done:
        return table
    keys = zip(*(table[name].to_pylist() for name in COLUMNS[:3]), strict=True)
    numbered = [(*key, number) for number, key in enumerate(keys)]
    left = [number for *_, number in without(numbered, segment.done)]
    return table.take(pa.array(left, pa.int64()))  # the type of an empty list is unknown without it


def without(rows: Sequence[Any], parts: Iterable[tuple[EntryKey, EntryKey]]) -> list[Any]:
    """Leave out the entries in some parts of a segment.

    :param rows: entries in their order; each begins with its position.
    :param parts: first and last entry of each part.
    """
    left = list(rows)
    for first, last in parts:
        if left and first <= key_of(left[-1]) and last >= key_of(left[0]):
            begin, end = bisect_left(left, first, key=key_of), bisect_right(left, last, key=key_of)
            left = left[:begin] + left[end:]
    return left


def _bucket_of(row: Row) -> int:
    return row[0]
