"""Reading queued entries, counting and listing them, noticing new ones, and removing acknowledged ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TypeVar

from export_queue.core.errors import InvalidArgument
from export_queue.core.queue.buckets import Range, bucket
from export_queue.core.queue.queue import Queue
from export_queue.core.store import Reading, Work, queries
from export_queue.core.transactions import Snapshot

Found = TypeVar("Found")

_READS = 5
"""Maximum number of reads of layouts between which entries move. Each repetition needs another publication."""
ASSUMED_BYTES = 1 << 20
"""Assumed size of the largest value, at least: the queue's limit may have been lowered since a value was added."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """An entry's position in the order of its queue."""

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
    """Whether no entry follows in the requested range."""

    def __len__(self) -> int:
        return len(self.seqs)

    def position(self, i: int) -> Position:
        """Return an entry's position."""
        return Position(self.buckets[i], self.keys[i], self.seqs[i])

    @property
    def size(self) -> int:
        """Bytes of keys and values."""
        return sum(map(len, self.keys)) + sum(map(len, filter(None, self.values)))


@dataclass(frozen=True, slots=True)
class Backlog:
    """The pending entries of one unit."""

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

    :param after: end of the previous chunk.
    :param rows: maximum number of entries.
    :param size: approximate limit for the bytes of keys and values; at least one entry is returned.
    :param whole_keys: whether a chunk always contains all entries of a key, however many they are.
    :returns: the chunk; empty at the end, and marked as the last one if fewer entries were found than requested.
    """
    select = partial(work.database.dialect.steps.select_entries, work.connection, queue.number, queue.layout, snapshot)
    found, total, is_last = _pages(
        partial(select, first=within.first, end=within.end),
        after=None if after is None else after._sql,
        rows=rows,
        size=size,
        largest=max(queue.max_value_bytes, ASSUMED_BYTES),
    )
    end = len(found) if total <= size else _fitting(found, size)  # usually all fit, without a check of each
    if whole_keys and found and (end < len(found) or not is_last):
        return _chunk(_whole_keys(select, found, end))
    return _chunk(found, is_last=is_last) if end == len(found) else _chunk(found[:end])


_Row = tuple[int, bytes, int, bytes | None]
_Key = tuple[int, bytes, int]

_GROWTH = 32
"""Limit for the growth of a page: the average size of the rows read so far may say little about the next ones."""


def _pages(
    select: Callable[..., list[_Row]], *, after: _Key | None, rows: int, size: int, largest: int
) -> tuple[list[_Row], int, bool]:
    """Read about as many rows as fit, page by page, because their sizes are known only after reading.

    Thousands of small entries take three statements, which cost hardly more than one.

    :param select: reads rows after a position.
    :param largest: approximate limit for the bytes of a value.
    :returns: the rows, their bytes, and whether nothing follows.
    """
    found: list[_Row] = []
    total, page = 0, max(1, min(rows, size // largest))
    while True:
        more = select(after=after, rows=page)
        found += more
        total += _bytes_of(more)
        is_last, left = len(more) < page, size - total
        if is_last or len(found) == rows or left * 8 <= size:  # the rest is not worth another statement
            return found, total, is_last
        after = found[-1][:3]
        page = min(left * len(found) // max(total, 1) + 1, len(found) * _GROWTH, rows - len(found))


def _bytes_of(rows: Sequence[_Row]) -> int:
    return sum(map(len, map(itemgetter(1), rows))) + sum(map(len, filter(None, map(itemgetter(3), rows))))


def _chunk(rows: Sequence[_Row], *, is_last: bool = False) -> Entries:
    # zip(*rows) would make an iterator for every row
    return Entries(
        [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows], [row[3] for row in rows], is_last
    )


def _fitting(rows: Sequence[_Row], size: int) -> int:
    """Count the first rows whose keys and values fit into a number of bytes; at least one."""
    total = 0
    for i, (_, key, _, value) in enumerate(rows):
        total += len(key) + len(value or b"")
        if total > size and i:
            return i
    return len(rows)


def _whole_keys(select: Callable[..., list[_Row]], found: list[_Row], end: int) -> list[_Row]:
    """Cut a chunk where a key ends: before the last key, or after it if the chunk has no other key.

    :param found: rows that were read; more may follow.
    :param end: maximum number of rows in the chunk.
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

    An older transaction may have committed entries between them meanwhile; the snapshot does not see them, so they
    stay.
    """
    return queries.entries.delete_span(work, queue.number, queue.layout, snapshot, first._sql, last._sql)


def remove_entries(work: Work, queue: Queue, positions: Sequence[Position]) -> int:
    return queries.entries.delete_entries(work, queue.number, queue.layout, [position._sql for position in positions])


def backlog(work: Reading, queue: Queue, snapshot: Snapshot, within: Sequence[Range] | None = None) -> list[Backlog]:
    """Count the pending entries of each unit; units without entries are left out."""
    wanted = queue.by_layout(queue.open_units() if within is None else within)

    def look() -> list[Backlog]:
        return [one for of, units in wanted for one in _backlog_in_layout(work, of, snapshot, units)]

    return unmoved(work, queue, look)


@dataclass(frozen=True, slots=True)
class Pending:
    """The pending entries of a queue, counted up to a number."""

    entries: int
    oldest_seq: int | None
    """Lowest sequence of the entries that were counted; None if there are none."""
    is_more: bool
    """Whether others were not counted, of which some may be older."""


def pending(work: Reading, queue: Queue, *, most: int) -> Pending:
    """Count the pending entries of a queue. The cost does not depend on the number of those above ``most``."""
    entries, oldest, is_more = queries.entries.count_up_to(work, queue.number, most)
    in_files, lowest = queries.segments.count_by_queue(work, queue.number).get(queue.number, (0, None))
    seqs = [seq for seq in (oldest, lowest) if seq is not None]
    return Pending(entries + in_files, min(seqs, default=None), is_more)


def unmoved(work: Reading, queue: Queue, look: Callable[[], Found], *, several: bool = False) -> Found:
    """Read a queue, and read it again if entries may have moved between layouts, or from rows into files, meanwhile.

    Entries move only to later layouts, which are read after older ones. So none is missed, and the repetition keeps
    one from being seen twice.

    :param several: whether reading one layout takes several statements.
    """
    found = None
    for _ in range(_READS):
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
    """Count the pending entries of each bucket; buckets without entries are left out."""
    counted = queries.entries.count_by_unit(
        work, queue.number, queue.layout, snapshot, first=within.first, end=within.end, buckets_per_range=1
    )
    return [Backlog(Range(at, at + 1, queue.layout), entries, size, seq) for at, entries, size, seq in counted]


def every_nth_key(work: Reading, queue: Queue, snapshot: Snapshot, at: int, step: int) -> list[bytes]:
    """Find keys that divide the entries of a bucket into parts of ``step`` entries."""
    return queries.entries.every_nth_key(work, queue.number, queue.layout, snapshot, bucket=at, step=step)


def waiting_ranges(
    work: Reading, queue: Queue, snapshot: Snapshot, within: Sequence[Range] | None = None
) -> list[Range]:
    """Find the units that have work, with one index probe for each and one query for segments."""
    found: set[Range] = set()
    for of, units in queue.by_layout(queue.open_units() if within is None else within):
        found |= {*waiting_in_rows(work, of, snapshot, units), *waiting_in_files(work, of, snapshot, units)}
    return sorted(found)


def waiting_in_files(
    work: Reading, queue: Queue, snapshot: Snapshot, units: Sequence[Range], *, since: Snapshot | None = None
) -> list[Range]:
    """Find the units of one layout with pending segments.

    :param queue: the queue in that layout.
    :param since: an earlier snapshot; segments that it saw do not count.
    """
    waiting = queries.segments.intervals(work, queue.number, queue.layout, snapshot, since=since)
    return [unit for unit in units if any(first < unit.end and end > unit.first for first, end in waiting)]


def waiting_in_rows(work: Reading, queue: Queue, snapshot: Snapshot, units: Sequence[Range]) -> list[Range]:
    """Find the units with pending rows, with one index probe for each.

    :param units: in order.
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


@dataclass(frozen=True, slots=True)
class Sighting:
    """What :func:`look` found."""

    waiting: tuple[Range, ...]
    """Units that have work."""
    has_news: bool
    """Whether there are pending entries that the earlier sighting did not see; without one, whether there are any."""
    snapshot: Snapshot
    retries: tuple[int, int]
    """Number and last id of the retries of dead letters, whose entries return with their original sequences."""


def look(
    work: Reading,
    queue: Queue,
    snapshot: Snapshot,
    within: Sequence[Range] | None = None,
    *,
    since: Sighting | None = None,
) -> Sighting:
    """Check which units have work, with one index probe for each; entries are not counted.

    With an earlier sighting, units that have work are searched for an entry that it did not see. If there is none, this
    reads all entries of these units.

    :param snapshot: taken just before.
    :param within: units to check; None means all.
    :param since: an earlier sighting of the same units.
    """
    retries = queries.acts.count_retries(work, queue.id)
    waiting = waiting_ranges(work, queue, snapshot, within)
    has_news = bool(waiting)
    if waiting and since is not None and retries == since.retries:
        has_news = any(_has_news(work, of, snapshot, units, since.snapshot) for of, units in queue.by_layout(waiting))
    return Sighting(tuple(waiting), has_news, snapshot, retries)


def _has_news(work: Reading, queue: Queue, snapshot: Snapshot, units: Sequence[Range], since: Snapshot) -> bool:
    in_rows = (
        queries.entries.first_bucket(
            work, queue.number, queue.layout, snapshot, first=unit.first, end=unit.end, since=since
        )
        for unit in units
    )
    return any(at is not None for at in in_rows) or bool(waiting_in_files(work, queue, snapshot, units, since=since))


MOST_PEEKED = 1000
VALUES_BYTES = 16 << 20
"""Maximum total size of the values that one call of :func:`peek` reads; a single value may be larger."""


@dataclass(frozen=True, slots=True)
class QueuedEntry:
    """One pending entry."""

    position: Position
    value_bytes: int | None
    """Size of the encoded value; None if the entry deletes the record."""
    value: bytes | None = None
    """The encoded value, if it was requested."""


def peek(
    work: Reading,
    queue: Queue,
    snapshot: Snapshot,
    *,
    key: bytes | None = None,
    limit: int = 10,
    values: bool = False,
) -> list[QueuedEntry]:
    """Read the first entries of one layout that a snapshot sees, in the order of a drain: by bucket, key and seq.

    :param key: only entries of this encoded key.
    :param values: whether to read values, too; then large values reduce the number of entries.
    """
    if type(limit) is not int or not 1 <= limit <= MOST_PEEKED:
        raise InvalidArgument(f"limit: expected a whole number from 1 to {MOST_PEEKED}, found {limit!r}")
    at = None if key is None else (bucket(key, queue.buckets), key)
    select = partial(queries.entries.select_waiting, work, queue.number, queue.layout, snapshot, at=at)
    rows = select(rows=limit, values=False)
    if values and rows:  # the sizes are known now, so memory is bounded
        total, fitting = 0, 0
        for *_, size, _ in rows:
            total += size or 0
            if total > VALUES_BYTES and fitting:
                break
            fitting += 1
        rows = select(rows=fitting, values=True)
    return [QueuedEntry(Position(at, found, seq), size, value) for at, found, seq, size, value in rows]


def hidden_seqs(work: Reading, queue: Queue, snapshot: Snapshot, key: bytes, *, limit: int) -> list[int]:
    """Read the sequences of a key's entries that are stored but not committed in a snapshot.

    Long transactions staged them that are in progress, or that ended without a commit and await clean-up.

    :param queue: the queue to which they were added. If it has subscriptions, its entries are in bucket 0 of layout 0
        until the commit gives each subscription its own.
    """
    found: list[int] = []
    for layout, buckets in [(0, 1)] if queue.fans_out else [(one.number, one.buckets) for one in queue.layouts()]:
        at = bucket(key, buckets), key
        found += queries.entries.hidden_seqs(work, queue.number, layout, snapshot, at=at, rows=limit)
    return sorted(found)[:limit]
