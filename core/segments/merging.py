"""Rows and segments of one unit as one sequence of chunks, in the order of bucket, key and seq.

Each source yields its entries in order, a batch at a time. Let P be the lowest of the last positions that the sources
have reached: the entries up to P are complete, and may be handed out. Memory holds a chunk and a batch of each source:
a few thousand entries of a segment, and one read of the rows. If these batches are too large, the sources whose next
entries come last are set aside, and read again when they are needed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from operator import eq, itemgetter

from export_queue.core.queue import Entries, Position, Queue, Range, read_entries
from export_queue.core.segments.model import Segment
from export_queue.core.segments.reading import BATCH_ROWS, Row, SegmentReader, count_until, key_of, mean_bytes
from export_queue.core.store import EntryKey, Reading
from export_queue.core.transactions import Snapshot


@dataclass(frozen=True, slots=True)
class Run:
    """The entries of one segment in one chunk, from the first to the last."""

    segment: Segment
    previous: EntryKey | None
    """The entry before the first, if an earlier chunk of the same reader had it."""
    first: EntryKey
    last: EntryKey
    rows: Sequence[Row] = ()
    """Its entries, until they are recorded as drained."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Entries and their sources."""

    entries: Entries
    rows: int
    """How many of them are rows of the store."""
    runs: tuple[Run, ...] = ()


_ROWS = -1
"""The rows' number among the sources."""
_ALL_ROWS = 1 << 17
"""Entries that all open segments together hold in memory, unless there are very many segments."""
_LEAST_ROWS = 256
_HELD_BYTES = 32 << 20
"""Approximate maximum of keys and values that all open segments together hold in memory."""


class UnitReader:
    """Reads the entries in one range of buckets that a snapshot sees, in chunks.

    :param snapshot: decides which rows are read.
    :param within: the buckets.
    :param segments: the pending segments that the snapshot sees there.
    :param after: the position after which to begin; None for the beginning of the buckets.
    :param until: the last position; None for the end of the buckets.
    :param rows: maximum number of entries of a chunk; with whole keys there may be some more.
    :param size: approximate maximum of a chunk's keys and values in bytes.
    :param whole_keys: whether all entries of a key must be in one chunk.
    :param has_rows: whether to read rows next to the segments.
    """

    def __init__(
        self,
        queue: Queue,
        snapshot: Snapshot,
        within: Range,
        segments: Sequence[Segment],
        *,
        after: Position | None = None,
        until: Position | None = None,
        rows: int,
        size: int,
        whole_keys: bool = False,
        has_rows: bool = True,
    ) -> None:
        self._queue, self._snapshot, self._within = queue, snapshot, within
        self._limit, self._size, self._whole_keys = rows, size, whole_keys
        most = min(BATCH_ROWS, max(_LEAST_ROWS, _ALL_ROWS // max(len(segments), 1)))
        self._sources = []
        for one in segments:
            fitting = int(_HELD_BYTES / 2 / len(segments) / max(mean_bytes(one), 1))
            batch_rows = max(1, min(most, fitting))
            self._sources.append(
                SegmentReader(one, first=within.first, end=within.end, after=after, batch_rows=batch_rows)
            )
        self._until: EntryKey | None = None if until is None else (until.bucket, until.key, until.seq)
        self._handed_out: dict[int, EntryKey] = {}
        """By source: the position of the last entry in a chunk."""
        self._stored: list[Row] = []
        self._stored_at = after
        self._stored_is_read = not has_rows
        self._pending: list[Row] = []
        """In order, and complete up to the last one."""
        self._pending_of: dict[int, list[Row]] = {}
        """The same by source, in the order of the sources."""
        self._pending_bytes = 0

    def read(self, work: Reading) -> Chunk:
        """Return the next chunk, which is empty at the end. An error loses nothing: the next call continues.

        :raises SegmentLost: a file is missing or damaged.
        """
        while not self._is_read and not self._is_enough():
            self._gather(work)
        return self._hand_out(self._cut())

    def end_drained(self, waiting: Sequence[Segment]) -> bool:
        """Skip the segments that are drained by now; return whether there are any.

        :param waiting: the segments that are still pending.
        """
        left = {one.key for one in waiting}
        sources = [one for one in self._sources if not one.is_read]
        over = [one for one in sources if one.segment.key not in left]
        for source in over:
            source.end()
        return bool(over)

    def close(self) -> None:
        for source in self._sources:
            source.close()

    @property
    def _is_read(self) -> bool:
        return self._stored_is_read and not self._stored and all(one.is_read and not one.rows for one in self._sources)

    def _is_enough(self) -> bool:
        if self._pending_bytes < self._size and len(self._pending) < self._limit:
            return False
        return not self._whole_keys or self._last_key_begins() > 0

    def _last_key_begins(self) -> int:
        """Count the entries before those of the last key, which may have more."""
        at = len(self._pending)
        while at and self._pending[at - 1][:2] == self._pending[-1][:2]:
            at -= 1
        return at

    def _gather(self, work: Reading) -> None:
        """Read a batch of each source that has none, and take the complete entries."""
        if not self._stored and not self._stored_is_read:
            self._read_stored(work)
        before = self._fill()
        ends = [key_of(one.rows[-1]) for one in self._sources if one.rows and not one.is_read]
        if self._stored and not self._stored_is_read:
            ends.append(key_of(self._stored[-1]))
        until = min(ends, default=None)
        found = {at: one.take(until, before) for at, one in enumerate(self._sources)}
        kept = count_until(self._stored, until, before)
        found[_ROWS] = self._stored[:kept]
        self._stored = self._stored[kept:]
        end = self._until
        if end is not None and any(rows and key_of(rows[-1]) > end for rows in found.values()):
            found = {at: rows[: bisect_right(rows, end, key=key_of)] for at, rows in found.items()}
            self._end()
        found = {at: rows for at, rows in found.items() if rows}
        for at, rows in found.items():
            self._pending_of.setdefault(at, []).extend(rows)
        added = [row for rows in found.values() for row in rows]
        if len(found) > 1:
            added.sort(key=key_of)
        self._pending += added
        self._pending_bytes += bytes_of_all(added)

    def _fill(self) -> EntryKey | None:
        """Read a batch of each source that has none, within bounded memory.

        :returns: the position of the first entry that did not fit into memory, if any; it is not the next one.
        """
        held = sum(one.bytes for one in self._sources)
        for source in self._sources:
            if source.ahead is None and not source.rows and not source.is_read:
                source.fill()
                held += source.bytes
                if held > _HELD_BYTES:
                    held = self._set_aside()
        aside = sorted((one for one in self._sources if one.ahead is not None), key=_ahead_of, reverse=True)
        first = min((key_of(one.rows[0]) for one in self._sources if one.rows), default=None)
        while aside and (held < _HELD_BYTES / 2 or first is None or _ahead_of(aside[-1]) <= first):
            source = aside.pop()
            first = _ahead_of(source) if first is None else min(first, _ahead_of(source))
            source.fill()
            held += source.bytes
        return _ahead_of(aside[-1]) if aside else None

    def _set_aside(self) -> float:
        """Set aside the sources whose next entries come last, until the others use half of the memory."""
        filled = sorted((one for one in self._sources if one.rows), key=lambda one: key_of(one.rows[0]))
        held = sum(one.bytes for one in filled)
        while len(filled) > 1 and held > _HELD_BYTES / 2:
            held -= filled[-1].bytes
            filled.pop().set_aside()
        return held

    def _end(self) -> None:
        """Skip the rest, which lies after the end."""
        self._stored, self._stored_is_read = [], True
        for source in self._sources:
            source.end()

    def _read_stored(self, work: Reading) -> None:
        found = read_entries(
            work,
            self._queue,
            self._snapshot,
            self._within,
            after=self._stored_at,
            rows=self._limit,
            size=self._size,
        )
        if found:
            self._stored = list(zip(found.buckets, found.keys, found.seqs, found.values, strict=True))
            self._stored_at = found.position(len(found) - 1)
        self._stored_is_read = found.is_last or not found

    def _cut(self) -> int:
        """Count the pending entries that fit into a chunk: at least one, and never a part of what belongs together."""
        whole = self._whole_keys
        usable = self._last_key_begins() if whole and not self._is_read else len(self._pending)
        end = min(self._limit, usable)
        if self._pending_bytes > self._size:  # normally all fit
            end = self._fitting(end)
        if whole and 0 < end < usable:
            at = end
            while at and self._pending[at - 1][:2] == self._pending[end][:2]:
                at -= 1
            end = at or end  # a key that is too large becomes its own chunk
        length = 2 if whole else 3
        while 0 < end < usable and self._pending[end][:length] == self._pending[end - 1][:length]:
            end += 1
        return end

    def _fitting(self, most: int) -> int:
        """Count the first pending entries that fit, at least one."""
        total = 0
        for i, row in enumerate(self._pending[:most]):
            total += _bytes_of(row)
            if total > self._size and i:
                return i
        return most

    def _hand_out(self, end: int) -> Chunk:
        everything, self._pending = self._pending[:end], self._pending[end:]
        self._pending_bytes = bytes_of_all(self._pending)
        by_source = self._take_up_to(key_of(everything[-1])) if everything else {}
        # In the order of the segments, so that two tasks that record runs of the same segments cannot deadlock.
        runs = tuple(self._run(source, by_source[source]) for source in sorted(by_source) if source != _ROWS)
        for source, rows in by_source.items():
            self._handed_out[source] = key_of(rows[-1])
        rows = everything if len(by_source) < 2 else _last_of_each_key(everything)
        entries = Entries(
            [row[0] for row in rows],
            [row[1] for row in rows],
            [row[2] for row in rows],
            [row[3] for row in rows],
            is_last=self._is_read and not self._pending,
        )
        return Chunk(entries, len(by_source.get(_ROWS, ())), runs)

    def _take_up_to(self, last: EntryKey) -> dict[int, list[Row]]:
        """Take the entries up to a position, by source; sources without such entries are left out."""
        taken = {}
        for source, rows in list(self._pending_of.items()):
            end = bisect_right(rows, last, key=key_of)
            if end:
                taken[source] = rows[:end]
            if end < len(rows):
                self._pending_of[source] = rows[end:]
            else:
                del self._pending_of[source]
        return taken

    def _run(self, source: int, rows: Sequence[Row]) -> Run:
        return Run(
            self._sources[source].segment,
            self._handed_out.get(source),
            key_of(rows[0]),
            key_of(rows[-1]),
            rows,
        )


def _ahead_of(source: SegmentReader) -> EntryKey:
    assert source.ahead is not None
    return source.ahead


def _last_of_each_key(rows: list[Row]) -> list[Row]:
    """Keep one entry at each position: a retried dead letter may also be in files that have fallen back."""
    keys = list(map(itemgetter(1), rows))
    if not any(map(eq, keys, islice(keys, 1, None))):  # the normal case, which is fast
        return rows
    last = [row for row, after in pairwise(rows) if row[1] != after[1] or row[:3] != after[:3]]
    return [*last, *rows[-1:]]


def bytes_of_all(rows: Sequence[Row]) -> int:
    """Return the size of keys and values."""
    return sum(map(len, map(itemgetter(1), rows))) + sum(map(len, filter(None, map(itemgetter(3), rows))))


def _bytes_of(row: Row) -> int:
    return len(row[1]) + len(row[3] or b"")
