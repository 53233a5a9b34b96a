"""What the pages show of a store. Each function reads a bounded number of rows, however large the queues are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from export_queue.core.client import Store
from export_queue.core.drain import FinishedDrain, finished_drains
from export_queue.core.locks import Held, LockView, explained, held
from export_queue.core.queue import (
    AuditRecord,
    DeadLetter,
    DeadLetterFilter,
    Mark,
    Pending,
    Queue,
    count_acts,
    count_dead_letters,
    dead_letter_audit,
    find_queue,
    find_reader,
    join_ranges,
    list_dead_letters,
    list_queues,
    marks,
    pending,
)
from export_queue.core.store import Reading
from export_queue.core.verify import FinishedComparison, Rebuild, finished_comparisons

READERS = 50
"""Readers on a page."""
COUNTED = 10_000
"""Maximum number of entries of a reader that are counted, and of its dead letters."""
LETTERS = 50
"""Dead letters on a page."""
SEARCHED = 2_000
"""Maximum number of dead letters that one page searches for an error or a drain, which have no index."""
DRAINS = 100
"""Drains in a chart."""
EXPLAINED = 500
"""Maximum number of locks of which each can be explained."""
LISTED = 20
"""Rows of each other list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A queue, or one of its subscriptions, in the overview."""

    queue: Queue
    pending: Pending | None
    """None for a queue whose subscriptions have the entries."""
    oldest_seconds: float | None
    dead: int
    """Number of dead letters; of more than are counted, one more than that."""
    locks: Held
    last: FinishedDrain | None
    rate: float | None
    """Entries per second of the last drain that delivered some."""
    compared: FinishedComparison | None
    """The last comparison with the sink."""
    marks: Sequence[Mark]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The readers of a store, by name."""

    readers: Sequence[Reader]
    next: str | None
    """Id of the last reader, if others follow."""
    rebuilds: Sequence[Rebuild]
    marks: Sequence[Mark]
    """Marks of the whole store."""


def overview(store: Store, *, after: str | None = None) -> Overview:
    """Read the figures of a page of readers.

    :param after: id of the last reader of the previous page.
    """
    _ = store.identity  # refuses a database without a store
    with store.database.read() as work:
        found = [queue for queue in list_queues(work) if after is None or queue.id > after]
        readers = [_reader(work, queue) for queue in found[:READERS]]
        of_store = marks(work, "")
    rebuilds = [one for one in store.rebuilds.list() if one.phase not in ("finished", "cancelled")]
    following = found[READERS - 1].id if len(found) > READERS else None
    return Overview(readers=readers, next=following, rebuilds=rebuilds[:LISTED], marks=of_store[-LISTED:])


def _reader(work: Reading, queue: Queue) -> Reader:
    if queue.fans_out:
        return Reader(
            queue=queue,
            pending=None,
            oldest_seconds=None,
            dead=0,
            locks=Held(0, 0, ()),
            last=None,
            rate=None,
            compared=None,
            marks=marks(work, queue.id),
        )
    entries = pending(work, queue, most=COUNTED)
    last = finished_drains(work, queue.id, limit=1)
    busy = last if last and last[0].report.acknowledged else finished_drains(work, queue.id, idle=False, limit=1)
    oldest = entries.oldest_seq
    return Reader(
        queue=queue,
        pending=entries,
        oldest_seconds=None if oldest is None else max(0, work.now() - oldest // 1_000_000) / 1000,
        dead=count_dead_letters(work, queue, most=COUNTED + 1),
        locks=held(work, queue),
        last=next(iter(last), None),
        rate=_rate(busy),
        compared=next(iter(finished_comparisons(work, queue.id, limit=1)), None),
        marks=marks(work, queue.id),
    )


def _rate(drains: Sequence[FinishedDrain]) -> float | None:
    found = [one.report for one in drains if one.report.acknowledged and one.report.seconds > 0]
    return found[0].acknowledged / found[0].seconds if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The backlog over time, as a line: what each drain found when it began, and what it left."""

    line: str
    """Points of a polyline in a rectangle of 1000 by 100."""
    most: int
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """One reader."""

    reader: Reader
    drains: Sequence[FinishedDrain]
    comparisons: Sequence[FinishedComparison]
    locks: Sequence[LockView] | None
    """None if there are too many to explain each."""
    more_locks: int
    acts: Sequence[AuditRecord]
    rebuild: Rebuild | None
    chart: Chart | None


def details(store: Store, reader_id: str) -> Details:
    """Read the figures of one reader.

    :raises UnknownQueue: the store has no such queue or subscription.
    """
    _ = store.identity
    with store.database.read() as work:
        queue = find_queue(work, reader_id)
        drains = finished_drains(work, queue.id, limit=DRAINS)
        comparisons = finished_comparisons(work, queue.id, limit=LISTED)
        reader, acts = _reader(work, queue), dead_letter_audit(work, queue, limit=LISTED)
        locks = explained(work, queue) if reader.locks.locks <= EXPLAINED else None
    named = [one for one in store.rebuilds.list() if queue.id in (one.reader, one.new_reader)]
    return Details(
        reader=reader,
        drains=drains[:LISTED],
        comparisons=comparisons,
        locks=None if locks is None else locks[:LISTED],
        more_locks=max(0, len(locks or ()) - LISTED),
        acts=acts,
        rebuild=next(iter(named), None),
        chart=chart(queue, drains),
    )


def chart(queue: Queue, drains: Iterable[FinishedDrain]) -> Chart | None:
    """Draw the backlog over time (pure); None if fewer than two drains have counted it, or it was always empty.

    :param drains: only those of the whole queue are drawn, because others count the entries of their ranges.
    """
    points: list[tuple[int, int]] = []
    for drain in drains:
        report, end = drain.report, drain.finished_ms
        if report.waiting is not None and _is_whole(queue, drain):
            found = report.acknowledged + report.dead + report.waiting
            points += [(end - round(report.seconds * 1000), found), (end, report.waiting)]
    most = max((entries for _, entries in points), default=0)
    if len(points) < 4 or not most:
        return None
    points.sort()
    first, last = points[0][0], points[-1][0]
    span = max(1, last - first)
    line = " ".join(f"{1000 * (at - first) / span:.1f},{100 - 100 * entries / most:.1f}" for at, entries in points)
    return Chart(line=line, most=most, first_ms=first, last_ms=last)


def _is_whole(queue: Queue, drain: FinishedDrain) -> bool:
    ranges = join_ranges([*drain.report.ranges, *drain.report.skipped])
    return sum(part.end - part.first for part in ranges if part.layout == queue.layout) == queue.buckets


@dataclass(frozen=True, slots=True, kw_only=True)
class Letters:
    """A page of dead letters, oldest entries first."""

    reader: Queue
    letters: Sequence[DeadLetter]
    searched: int
    """Number of letters that were read for this page."""
    next: tuple[int, bytes] | None
    """The last letter that was read, if others follow."""


def letters(store: Store, reader_id: str, which: DeadLetterFilter, *, after: tuple[int, bytes] | None) -> Letters:
    """Read a page of dead letters.

    A key has an index. Letters of an error or a drain are searched in a bounded part of all letters.

    :raises UnknownQueue: the store has no such queue or subscription.
    :raises HasSubscriptions: the queue's subscriptions have the letters.
    """
    _ = store.identity
    searches = which.error_class is not None or which.drain_id is not None
    limit = SEARCHED if searches else LETTERS
    with store.database.read() as work:
        queue = find_reader(work, reader_id)
        indexed = DeadLetterFilter(key=which.key, seq=which.seq)
        found = list_dead_letters(work, queue, indexed, after=after, limit=limit)
    shown = [letter for letter in found if _is_meant(letter, which)][:LETTERS]
    last = shown[-1] if len(shown) == LETTERS else found[-1] if found else None
    ends = last is None or (last is found[-1] and len(found) < limit)
    return Letters(reader=queue, letters=shown, searched=len(found), next=None if ends or last is None else last.id)


def _is_meant(letter: DeadLetter, which: DeadLetterFilter) -> bool:
    return which.error_class in (None, letter.error_class) and which.drain_id in (None, letter.drain_id)


def letter(store: Store, reader_id: str, which: DeadLetterFilter) -> DeadLetter | None:
    """Read one dead letter with its value.

    :param which: its key and sequence.
    """
    return next(iter(store.dead_letters.list(reader_id, which, limit=1, values=True)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a user sees who decides on a retry or drop."""

    letters: int | None
    """Number of letters, up to a maximum; None if the count would have to read all letters."""
    seen: int
    """Id of the newest act on the reader's letters."""
    until_ms: int
    """The store's time."""


def decision(store: Store, reader_id: str, which: DeadLetterFilter, *, most: int) -> Decision:
    """Read what a user decides on.

    :param most: maximum number of letters that are counted.
    """
    searches = which.error_class is not None or which.drain_id is not None
    with store.database.read() as work:
        queue = find_reader(work, reader_id)
        seen, until_ms = count_acts(work, queue), work.now()
        which = replace(which, until_ms=until_ms)
        letters = None if searches else count_dead_letters(work, queue, which, most=most)
    return Decision(letters=letters, seen=seen, until_ms=until_ms)
