"""Reading queued entries, and removing acknowledged ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TypeVar

from export_queue.core.queue.buckets import Range
from export_queue.core.queue.queue import Queue
from export_queue.core.store import Reading, Work, queries
from export_queue.core.transactions import Snapshot

Found = TypeVar("Found")

_LOOKS = 5
"""Most looks at layouts between which entries move; at each of them one more publication must have come between."""
ASSUMED_BYTES = 1 << 20
"""A value may be so large whatever its queue takes now: the option may have been lowered since the value was added."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """One entry's place in the order of its queue."""

    bucket: int
    key: bytes
    seq: int

    @property
    def _sql(self) -> tuple[int, bytes, int]:
        return self.bucket, self.key, self.seq


@dataclass(frozen=True, slots=True)
class Entries:
    """A chunk of entries as columns, ordered by bucket, key and seq."""

    buckets: Sequence[int]
    keys: Sequence[bytes]
    seqs: Sequence[int]
    values: Sequence[bytes | None]
    is_last: bool = False
    """Whether nothing follows in what was asked for."""

    def __len__(self) -> int:
        return len(self.seqs)

    def position(self, i: int) -> Position:
        """Return one entry's place."""
        return Position(self.buckets[i], self.keys[i], self.seqs[i])

    @property
    def size(self) -> int:
        """Bytes of keys and values."""
        return sum(map(len, self.keys)) + sum(map(len, filter(None, self.values)))


@dataclass(frozen=True, slots=True)
class Backlog:
    """The entries that wait in one unit."""

    range: Range
    entries: int
    bytes: int
    oldest_seq: int


def read_entries(
    work: Reading,
    queue: Queue,
    snapshot: Snapshot,
    within: Range,
    *,
    after: Position | None = None,
    rows: int,
    size: int,
    whole_keys: bool = False,
) -> Entries:
    """Read the next chunk of the entries that a snapshot sees, in order.

    :param within: buckets to read.
    :param after: end of the chunk before.
    :param rows: most entries.
    :param size: about how many bytes of keys and values; at least one entry is returned.
    :param whole_keys: whether all entries of a key belong into one chunk, however many they are.
    :returns: the chunk; empty at the end, and known to be the last one where fewer entries were found than asked for.
    """
    select = partial(work.database.dialect.steps.select_entries, work.connection, queue.number, queue.layout, snapshot)
    found, total, is_last = _pages(
        partial(select, first=within.first, end=within.end),
        after=None if after is None else after._sql,
        rows=rows,
        size=size,
        largest=max(queue.max_value_bytes, ASSUMED_BYTES),
    )
    end = len(found) if total <= size else _fitting(found, size)  # as a rule all fit; no need to look at each
    if whole_keys and found and (end < len(found) or not is_last):
        return _chunk(_whole_keys(select, found, end))
    return _chunk(found, is_last=is_last) if end == len(found) else _chunk(found[:end])


_Row = tuple[int, bytes, int, bytes | None]
_Key = tuple[int, bytes, int]

_GROWTH = 32
"""How many times as many rows as were read the next page may have: their average may say little of what follows."""


def _pages(
    select: Callable[..., list[_Row]], *, after: _Key | None, rows: int, size: int, largest: int
) -> tuple[list[_Row], int, bool]:
    """Read about as many rows as fit, page by page: memory is bounded by their size, which only reading tells.

    Thousands of small entries take three statements, which cost hardly more than one would.

    :param select: reads rows behind a position.
    :param largest: bytes of a value, about at most.
    :returns: the rows, their bytes, and whether nothing follows.
    """
    found: list[_Row] = []
    total, page = 0, max(1, min(rows, size // largest))
    while True:
        more = select(after=after, rows=page)
        found += more
        total += _bytes_of(more)
        is_last, left = len(more) < page, size - total
        if is_last or len(found) == rows or left * 8 <= size:  # what little is left is not worth a statement
            return found, total, is_last
        after = found[-1][:3]
        page = min(left * len(found) // max(total, 1) + 1, len(found) * _GROWTH, rows - len(found))


def _bytes_of(rows: Sequence[_Row]) -> int:
    return sum(map(len, map(itemgetter(1), rows))) + sum(map(len, filter(None, map(itemgetter(3), rows))))


def _chunk(rows: Sequence[_Row], *, is_last: bool = False) -> Entries:
    # not by zip(*rows), which makes an iterator of every row
    return Entries(
        [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows], [row[3] for row in rows], is_last
    )


def _fitting(rows: Sequence[_Row], size: int) -> int:
    """Count the first rows whose keys and values have at most so many bytes; at least one."""
    total = 0
    for i, (_, key, _, value) in enumerate(rows):
        total += len(key) + len(value or b"")
        if total > size and i:
            return i
    return len(rows)


def _whole_keys(select: Callable[..., list[_Row]], found: list[_Row], end: int) -> list[_Row]:
    """Cut a chunk where a key ends: before the last key, or behind it if there is no other.

    :param select: reads rows of the queue.
    :param found: rows that were read; more may follow.
    :param end: number of rows that the chunk may have.
    """
    if end < len(found) and found[end][:2] != found[end - 1][:2]:
        return found[:end]
    last = found[end - 1][:2]
    start = next(i for i, row in enumerate(found) if row[:2] == last)
    if start:
        return found[:start]
    taken = found[:end]
    while True:
        more = select(first=last[0], end=last[0] + 1, after=taken[-1][:3], rows=len(taken))
        taken += [row for row in more if row[:2] == last]
        if not more or more[-1][:2] != last:
            return taken


def remove_span(work: Work, queue: Queue, snapshot: Snapshot, first: Position, last: Position) -> int:
    """Remove exactly the entries that a snapshot sees between two positions, both included (I7).

    An older transaction may have committed into the span meanwhile: its entries are not visible in the
    snapshot and stay.
    """
    return queries.entries.delete_span(work, queue.number, queue.layout, snapshot, first._sql, last._sql)


def remove_entries(work: Work, queue: Queue, positions: Sequence[Position]) -> int:
    """Remove single entries."""
    return queries.entries.delete_entries(work, queue.number, queue.layout, [position._sql for position in positions])


def backlog(work: Reading, queue: Queue, snapshot: Snapshot, within: Sequence[Range] | None = None) -> list[Backlog]:
    """Count the entries that wait, unit by unit; units without entries are left out."""
    wanted = queue.by_layout(queue.open_units() if within is None else within)

    def look() -> list[Backlog]:
        return [one for of, units in wanted for one in _backlog_in_layout(work, of, snapshot, units)]

    return unmoved(work, queue, look)


def unmoved(work: Reading, queue: Queue, look: Callable[[], Found], *, several: bool = False) -> Found:
    """Look at a queue; look again if entries may have moved between layouts, or from rows into files, meanwhile.

    Entries move into later layouts only, which are looked at after older ones: no entry is missed, and none shall be
    seen twice.

    :param several: whether a look at one layout takes several statements.
    """
    found = None
    for _ in range(_LOOKS):
        before = queries.compactions.stamp(work, queue.number) if queue.older or several else None
        found = look()
        if before is None or queries.compactions.stamp(work, queue.number) == before:
            break
    assert found is not None
    return found


def _backlog_in_layout(work: Reading, queue: Queue, snapshot: Snapshot, wanted: Sequence[Range]) -> list[Backlog]:
    units = {unit.first // queue.buckets_per_range: unit for unit in wanted}
    counted = queries.segments.count_by_unit(
        work,
        queue.number,
        queue.layout,
        snapshot,
        first=wanted[0].first,
        end=wanted[-1].end,
        buckets_per_range=queue.buckets_per_range,
    )
    return [Backlog(units[unit], entries, size, seq) for unit, entries, size, seq in counted if unit in units]


def backlog_by_bucket(work: Reading, queue: Queue, snapshot: Snapshot, within: Range) -> list[Backlog]:
    """Count the entries that wait, bucket by bucket; buckets without entries are left out."""
    counted = queries.entries.count_by_unit(
        work, queue.number, queue.layout, snapshot, first=within.first, end=within.end, buckets_per_range=1
    )
    return [Backlog(Range(at, at + 1, queue.layout), entries, size, seq) for at, entries, size, seq in counted]


def every_nth_key(work: Reading, queue: Queue, snapshot: Snapshot, bucket: int, step: int) -> list[bytes]:
    """Find keys that cut the entries of a bucket into pieces of a number of entries."""
    return queries.entries.every_nth_key(work, queue.number, queue.layout, snapshot, bucket=bucket, step=step)


def waiting_ranges(
    work: Reading, queue: Queue, snapshot: Snapshot, within: Sequence[Range] | None = None
) -> list[Range]:
    """Find the units that have work, at the cost of one index probe each and one look at what waits in files."""
    found: set[Range] = set()
    for of, units in queue.by_layout(queue.open_units() if within is None else within):
        found |= {*waiting_in_rows(work, of, snapshot, units), *waiting_in_files(work, of, snapshot, units)}
    return sorted(found)


def waiting_in_files(
    work: Reading, queue: Queue, snapshot: Snapshot, units: Sequence[Range], *, since: Snapshot | None = None
) -> list[Range]:
    """Find the units of one layout in which segments wait.

    :param queue: the queue in that layout.
    :param since: an earlier snapshot; segments that it saw do not count.
    """
    waiting = queries.segments.intervals(work, queue.number, queue.layout, snapshot, since=since)
    return [unit for unit in units if any(first < unit.end and end > unit.first for first, end in waiting)]


def waiting_in_rows(work: Reading, queue: Queue, snapshot: Snapshot, units: Sequence[Range]) -> list[Range]:
    """Find the units in which rows wait, at the cost of one index probe each.

    :param units: in their order.
    """
    found: list[Range] = []
    at = 0
    while at < len(units):
        hit = queries.entries.first_bucket(
            work, queue.number, queue.layout, snapshot, first=units[at].first, end=units[-1].end
        )
        if hit is None:
            break
        while at < len(units) and units[at].end <= hit:
            at += 1
        if at < len(units) and units[at].first <= hit:
            found.append(units[at])
            at += 1
    return found
