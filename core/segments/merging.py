"""Rows and segments of one unit as one sequence of chunks, in the order of bucket, key and seq.

Each source gives its entries in order, some at a time. What lies up to the least of the last places that the
sources have come to is complete, and may be handed out. In memory are, beside one chunk, a batch of each
source: some thousand entries of a segment, and of the rows what is read at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from export_queue.core.queue import Entries, Position, Queue, Range, read_entries
from export_queue.core.segments.model import Segment
from export_queue.core.segments.reading import BATCH_ROWS, Row, SegmentReader, place_of
from export_queue.core.store import EntryKey, Reading
from export_queue.core.transactions import Snapshot


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a segment's entries that are in one chunk: all from the first to the last."""

    segment: Segment
    previous: EntryKey | None
    """The entry before it, where an earlier chunk of the same reader has it."""
    first: EntryKey
    last: EntryKey
    rows: Sequence[Row] = ()
    """All that it has, until they are noted as drained."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Entries, and where they come from."""

    entries: Entries
    rows: int
    """How many of them are rows of the store."""
    runs: tuple[Run, ...] = ()


_ROWS = -1
"""Stands for the rows among the sources."""
_ALL_ROWS = 1 << 17
"""Entries that all open segments together have in memory, unless they are very many."""
_LEAST_ROWS = 256


class UnitReader:
    """Chunks of the entries in one range of buckets that a snapshot sees.

    :param queue: the queue.
    :param snapshot: decides which rows are read; it has chosen the segments.
    :param within: the buckets.
    :param segments: those that wait there.
    :param after: where to begin: behind this place; None for the beginning of the buckets.
    :param until: where to end: at this place; None for the end of the buckets.
    :param rows: most entries of a chunk; some more where whole keys are asked for.
    :param size: about how many bytes of keys and values a chunk has at most.
    :param whole_keys: whether all entries of a key belong into one chunk.
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
    ) -> None:
        self._queue, self._snapshot, self._within = queue, snapshot, within
        self._limit, self._size, self._whole_keys = rows, size, whole_keys
        batch_rows = min(BATCH_ROWS, max(_LEAST_ROWS, _ALL_ROWS // max(len(segments), 1)))
        self._sources = [
            SegmentReader(one, first=within.first, end=within.end, after=after, batch_rows=batch_rows)
            for one in segments
        ]
        self._until = until
        self._handed_out: dict[int, EntryKey] = {}
        """By source, the place of the last entry that a chunk had."""
        self._stored: list[Row] = []
        self._stored_at = after
        self._stored_is_read = False
        self._pending: list[tuple[Row, int]] = []
        """In order, each with its source; complete up to the last one."""
        self._pending_bytes = 0

    def read(self, work: Reading) -> Chunk:
        """Return the next chunk; it is empty at the end, and known to be the last one where that is known.

        An error loses nothing: the next call goes on.

        :raises SegmentLost: a file is missing or damaged.
        """
        while not self._is_read and not self._is_enough():
            self._gather(work)
        return self._hand_out(self._cut())

    def end_drained(self, waiting: Sequence[Segment]) -> bool:
        """Read no more of the segments that are drained by now; tell whether there are any.

        :param waiting: those that are not.
        """
        left = {(one.transaction, one.number) for one in waiting}
        sources = [one for one in self._sources if not one.is_read]
        over = [one for one in sources if (one.segment.transaction, one.segment.number) not in left]
        for source in over:
            source.end()
        return bool(over)

    def close(self) -> None:
        """Close the files."""
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
        """Count the entries before those of the last key, of which more may come."""
        at = len(self._pending)
        while at and self._pending[at - 1][0][:2] == self._pending[-1][0][:2]:
            at -= 1
        return at

    def _gather(self, work: Reading) -> None:
        """Read a batch of each source that has none, and take what is complete."""
        if not self._stored and not self._stored_is_read:
            self._read_stored(work)
        for source in self._sources:
            source.fill()
        ends = [place_of(one.rows[-1]) for one in self._sources if one.rows and not one.is_read]
        if self._stored and not self._stored_is_read:
            ends.append(place_of(self._stored[-1]))
        until = min(ends, default=None)
        found = [(row, at) for at, one in enumerate(self._sources) for row in one.take(until)]
        kept = 0
        for row in self._stored:
            if until is not None and place_of(row) > until:
                break
            kept += 1
        # Behind the segments: of a key that one transaction added as a row as well, that is the later one.
        found += [(row, _ROWS) for row in self._stored[:kept]]
        self._stored = self._stored[kept:]
        found.sort(key=_place)
        if self._until is not None and found and Position(*_place(found[-1])) > self._until:
            found = [one for one in found if Position(*_place(one)) <= self._until]
            self._end()
        self._pending += found
        self._pending_bytes += bytes_of_all([row for row, _ in found])

    def _end(self) -> None:
        """Read no more: what follows lies behind the end."""
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
        """Count the pending entries that fit into a chunk: one at least, and never a part of what belongs together."""
        whole = self._whole_keys
        usable = self._last_key_begins() if whole and not self._is_read else len(self._pending)
        end = min(self._limit, usable)
        if self._pending_bytes > self._size:  # as a rule all fit; no need to look at each
            end = self._fitting(end)
        if whole and 0 < end < usable:
            at = end
            while at and self._pending[at - 1][0][:2] == self._pending[end][0][:2]:
                at -= 1
            end = at or end  # a key that is too large is a chunk of its own
        length = 2 if whole else 3
        while 0 < end < usable and self._pending[end][0][:length] == self._pending[end - 1][0][:length]:
            end += 1
        return end

    def _fitting(self, most: int) -> int:
        """Count the first pending entries whose keys and values fit; at least one."""
        total = 0
        for i, (row, _) in enumerate(self._pending[:most]):
            total += _bytes_of(row)
            if total > self._size and i:
                return i
        return most

    def _hand_out(self, end: int) -> Chunk:
        taken, self._pending = self._pending[:end], self._pending[end:]
        everything = [row for row, _ in taken]
        self._pending_bytes -= bytes_of_all(everything)
        by_source: dict[int, list[Row]] = {}
        for row, source in taken:
            by_source.setdefault(source, []).append(row)
        # In the order of the segments, so that two tasks that note runs of the same ones cannot deadlock.
        runs = tuple(self._run(source, by_source[source]) for source in sorted(by_source) if source != _ROWS)
        for source, rows in by_source.items():
            self._handed_out[source] = place_of(rows[-1])
        rows = everything if len(by_source) < 2 else _last_at_each_place(everything)
        entries = Entries(
            [row[0] for row in rows],
            [row[1] for row in rows],
            [row[2] for row in rows],
            [row[3] for row in rows],
            is_last=self._is_read and not self._pending,
        )
        return Chunk(entries, len(by_source.get(_ROWS, ())), runs)

    def _run(self, source: int, rows: Sequence[Row]) -> Run:
        return Run(
            self._sources[source].segment,
            self._handed_out.get(source),
            place_of(rows[0]),
            place_of(rows[-1]),
            rows,
        )


def _place(found: tuple[Row, int]) -> EntryKey:
    return found[0][:3]


def _last_at_each_place(rows: Sequence[Row]) -> list[Row]:
    """Of several entries at one place, which one transaction has added, leave the last one."""
    return [row for row, after in zip(rows, [*rows[1:], None], strict=True) if after is None or row[:3] != after[:3]]


def bytes_of_all(rows: Sequence[Row]) -> int:
    """Sum up the bytes of keys and values."""
    return sum(map(len, map(itemgetter(1), rows))) + sum(map(len, filter(None, map(itemgetter(3), rows))))


def _bytes_of(row: Row) -> int:
    return len(row[1]) + len(row[3] or b"")
