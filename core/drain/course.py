"""The way of one drain, step by step, whatever engine does the work.

1. Take a snapshot: the drain promises to bring every entry that is committed by now.
2. Show the sink a fence that is younger than all it has seen, and bind the queue to it.
3. Find the units that have work.
4. Take the snapshot to read by and claim what is free of them; where all is held, wait for the holders.
5. Have the engine drain the claimed units, and go on with 3 until nothing is left.
6. Show the sink a fence once more, so that a later loss of what this drain brought is noticed.
7. Look at what still waits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from export_queue.core.drain import tally
from export_queue.core.drain.admission import warn_of_closed
from export_queue.core.drain.claims import Claims, shown
from export_queue.core.drain.deadline import Deadline
from export_queue.core.drain.engine import Engine
from export_queue.core.drain.fenced import not_settled_error
from export_queue.core.drain.progress import Left, ProgressLog
from export_queue.core.drain.report import Counts, DrainReport, Problem, RangeReport, grouped, total
from export_queue.core.drain.request import DrainRequest
from export_queue.core.drain.sink_fence import SinkFence
from export_queue.core.drain.transient import DRAIN_RETRY, call_again
from export_queue.core.errors import DrainTimedOut, ExportQueueError, LeaseLost, SinkError, StoreUnavailable
from export_queue.core.locks import Lease, LeaseKeeper, begin_attempt, check_attempt, joined, release_all
from export_queue.core.queue import (
    DeadLetterFilter,
    Queue,
    Range,
    backlog,
    find_reader,
    join_ranges,
    list_dead_letters,
    losses,
    read_again,
    units_asked_for,
    waiting_ranges,
)
from export_queue.core.store import Database, Reading, Work, queries, removed_subscription
from export_queue.core.transactions import Snapshot, expire_if_due, settled_snapshot, take_snapshot

POLL_SECONDS = 0.5
"""How often a drain that waits for other holders looks again."""
_ANSWER_SECONDS = 60.0
_COUNT_SECONDS = 10.0
_REASON_CHARACTERS = 300


@dataclass(slots=True)
class Course:
    """One drain, and how far it has come; a follower goes its own way through the same steps."""

    database: Database
    store_id: str
    request: DrainRequest
    sleep: Callable[[float], None]
    clock: Callable[[], float]
    goes_on: bool = False
    """Whether another drain of the same attempt follows this one."""
    deadline: Deadline = field(default_factory=Deadline)
    queue_number: int | None = None
    """The queue's number, where an earlier drain of the attempt has found it."""
    queue: Queue | None = None
    wanted: list[Range] = field(default_factory=list)
    """Units that were asked for."""
    number: int = 0
    """The number of the report; 0 before it is drawn."""
    done: set[Range] = field(default_factory=set)
    """Units for which the promise is kept."""
    parts: list[Counts] = field(default_factory=list)
    """What was done: as the engine has reported it, or once all of it is counted by tallies, their sum."""
    is_tallied: bool = False
    promised: Snapshot | None = None
    waiting: Left | None = None
    """What waits in the units that were asked for; None where it was not counted."""
    first_rejection: str | None = None
    incomplete: tuple[str, ...] = ()
    """What the sink lacks because somebody accepted a loss."""
    claims: Claims = field(init=False)
    sink_fence: SinkFence = field(init=False)

    def __post_init__(self) -> None:
        self.claims = Claims(self.database, self.request)
        self.sink_fence = SinkFence(self.database, self.store_id, self.request)

    def bring_all(self, engine: Engine, progress: ProgressLog) -> None:
        """Keep the promise: the numbers are those of the steps in the head of this module."""
        promised = self.promised = take_snapshot(self.database)  # 1
        queue = self.begin(engine)  # 2
        waiting = self._with_work(queue, promised, self.wanted)  # 3
        skipped: set[Range] = set()
        while True:
            skipped |= set(self._bring(engine, progress, queue, promised, waiting))
            if engine.is_fenced or not (self._is_altered(queue) or (queue.older and waiting)):
                return
            # What waited in one layout may have been rewritten into units of a later one, where nothing waited before.
            queue, found = self._look_again(queue, promised)
            waiting = [unit for unit in found if unit not in skipped]
            self.done -= set(waiting)

    def _is_altered(self, queue: Queue) -> bool:
        """Tell whether all units were asked for, and the queue has others by now."""
        return self.request.ranges is None and self._current_layout() not in (None, queue.layout)

    def _look_again(self, queue: Queue, promised: Snapshot) -> tuple[Queue, list[Range]]:
        """Find the units that have work; if all were asked for, those of layouts that are new, too.

        :returns: the queue with all layouts that it was known to have, and the units.
        """
        units = self.wanted
        with self.database.read() as work:
            if self.request.ranges is None:
                found_again = read_again(work, queue)
                require_same(found_again, queue.number)
                queue = self.queue = found_again
                units = queue.open_units()
            found = waiting_ranges(work, queue, promised, units)
        self.wanted += [unit for unit in found if unit not in self.wanted]
        return queue, found

    def _bring(
        self, engine: Engine, progress: ProgressLog, queue: Queue, promised: Snapshot, waiting: list[Range]
    ) -> list[Range]:
        """Bring what waits in some units; returns those that are skipped, since others hold them."""
        skipped: list[Range] = []
        waits_since = self.clock()
        while waiting:
            self.deadline.check()
            ready = self._settled(queue, waiting) if engine.is_fenced else waiting
            is_late = self.clock() - waits_since >= self.request.lock_timeout
            revokes = is_late and self.request.if_locked == "wait"
            claimed_at, snapshot = self.clock(), take_snapshot(self.database)
            leases = self.claims.claim(queue, ready, promised, is_fenced=engine.is_fenced, revokes=revokes)  # 4
            if leases:
                progress.draining()
                self._drain(engine, queue, leases, snapshot, claimed_at)  # 5
                waiting = self._with_work(queue, promised, waiting) if engine.is_fenced else self._not_done(waiting)
                waits_since = self.clock()
                continue
            if self.request.if_locked == "skip":
                skipped += ready
                waiting, ready = [unit for unit in waiting if unit not in ready], []
                if not waiting:
                    break
            if is_late:
                if not ready:
                    raise not_settled_error(self.database, queue, promised, shown(waiting))
                raise self.claims.not_available(queue, ready)
            progress.waiting(partial(self.claims.awaited, queue, ready, promised))
            self.sleep(min(POLL_SECONDS, self.deadline.left()))
            check_attempt(self.database, self.request.owner)
            waiting = self._with_work(queue, promised, waiting)  # 3, since the holder may have done it all
        return skipped

    def begin(self, engine: Engine) -> Queue:
        """Find the queue, take over from older attempts, and have the sink admit this drain."""
        queue = self._find_queue()
        begin_attempt(self.database, queue, self.request.owner)
        self.sink_fence.admit_and_bind(engine, queue)
        return queue

    def bring_free(self, engine: Engine) -> bool:
        """Bring the entries that wait now and that nobody holds; tell whether there were any."""
        queue = self.queue
        assert queue is not None
        snapshot = take_snapshot(self.database)
        waiting = self._with_work(queue, snapshot, self.wanted)
        claimed_at = self.clock()
        ready = self._settled(queue, waiting) if engine.is_fenced else waiting
        leases = self.claims.claim(queue, ready, snapshot, is_fenced=engine.is_fenced)
        if leases:
            # A fenced sink knows claims of single units. For all others few entries of many units are one small chunk.
            self._drain(engine, queue, leases if engine.is_fenced else joined(leases), snapshot, claimed_at)
        return bool(leases)

    def has_moved(self) -> bool:
        """Tell whether entries may wait in a layout that was not open at the beginning: a new, or a reopened one."""
        queue = self.queue
        assert queue is not None
        known = {layout.number for layout in queue.layouts()}
        if self._current_layout() != queue.layout:
            return True
        with self.database.read() as work:
            older = queries.layouts.open_ones(work, queue.source_number, before=queue.layout)
        return not known.issuperset(number for number, *_ in older)

    def _current_layout(self) -> int | None:
        """Read the number of the queue's layout; None if the queue was removed."""
        assert self.queue is not None
        with self.database.read() as work:
            return queries.queues.layout_of(work, self.queue.number)

    @contextlib.contextmanager
    def shown_again(self, engine: Engine) -> Iterator[None]:
        """Show the sink a fence behind a block that brings entries; behind one that fails, if it has brought some.

        Where it has sent nothing, as after an error of the exporter, the queue is left as free as it was.
        """
        try:
            yield
        except SinkError:
            raise
        except Exception as error:
            if isinstance(error, LeaseLost):
                self.refuse_removed(error)
            if self._has_brought or not engine.has_sent:
                with contextlib.suppress(Exception):  # the trouble itself matters more
                    self._show_again(engine)
            raise
        self._show_again(engine)  # 6

    @property
    def _has_brought(self) -> bool:
        return any(part.acknowledged for part in self.parts)

    def _show_again(self, engine: Engine) -> None:
        if self.queue is not None:
            self.sink_fence.show_again(engine, self.queue, has_brought=self._has_brought)

    def refuse_removed(self, error: LeaseLost) -> None:
        """Say so where leases were lost since the subscription was removed: to start again would be no use.

        :raises UnknownQueue: it was.
        """
        with contextlib.suppress(StoreUnavailable), self.database.read() as work:
            if self.queue is not None and queries.queues.layout_of(work, self.queue.number) is None:
                raise removed_subscription(f"subscription {self.queue.id!r}") from error

    def _find_queue(self) -> Queue:
        with self.database.read() as work:
            queue = find_reader(work, self.request.queue_id)
            require_same(queue, self.queue_number)
            self.queue = queue
            self.wanted, closed = units_asked_for(work, queue, self.request.ranges)
        warn_of_closed(queue, closed)
        self.done |= set(closed)
        return queue

    def _with_work(self, queue: Queue, snapshot: Snapshot, units: Sequence[Range]) -> list[Range]:
        """Find the units that have work; for the others the promise is kept."""
        with self.database.read() as work:
            found = waiting_ranges(work, queue, snapshot, units)
        self.done |= set(units) - set(found)
        return found

    def _settled(self, queue: Queue, units: Sequence[Range]) -> list[Range]:
        """Find the units that have entries which no older entry can follow."""
        expire_if_due(self.database, seconds=_ANSWER_SECONDS)  # a transaction past its deadline would hold them back
        snapshot = settled_snapshot(self.database, queue.number)
        with self.database.read() as work:
            return waiting_ranges(work, queue, snapshot, units)

    def _not_done(self, units: Sequence[Range]) -> list[Range]:
        return [unit for unit in units if unit not in self.done]

    def _drain(
        self, engine: Engine, queue: Queue, leases: Sequence[Lease], snapshot: Snapshot, claimed_at: float
    ) -> None:
        """Drain claimed units.

        :param snapshot: taken before the claim, so that the claim names all segments that it sees: one snapshot
            decides which rows and which files are read. A fenced drain locks whole intervals and takes one afterwards.
        :raises ExportQueueError: a unit was not done; the others are.
        """
        self.is_tallied = engine.is_tallied
        keeper = LeaseKeeper(
            self.database,
            leases,
            lease_seconds=self.request.lease_seconds,
            claimed_at=claimed_at,
            clock=self.clock,
        )
        parts: list[RangeReport] = []
        try:
            with keeper:
                self.sink_fence.note(queue)
                if engine.is_fenced:
                    self.sink_fence.shut_out_former(engine, queue, leases)
                    engine.claim(queue, leases)  # before the snapshot, or an older drain could write entries above it
                    snapshot = settled_snapshot(self.database, queue.number)
                for number in sorted({lease.layout for lease in leases}):
                    in_layout = [lease for lease in leases if lease.layout == number]
                    for part in engine.work_off(queue.in_layout(number), in_layout, snapshot, keeper):
                        self.parts.append(part)
                        parts.append(part)
        except BaseException:
            with contextlib.suppress(Exception):  # the trouble itself matters more
                self._count_tallied()
            raise
        call_again(replace(DRAIN_RETRY, sleep=self.sleep, clock=self.clock), self._count_tallied)
        if not engine.is_fenced:  # a fenced drain may have left entries that are not settled yet
            whole = {lease.range for lease in leases if lease.is_whole}
            self.done |= {part.range for part in parts if part.problem is None and part.range in whole}
        for part in parts:
            if part.problem is not None:
                raise part.cause or part.problem.to_error()

    def _count_tallied(self) -> None:
        if self.is_tallied:
            with self.database.begin() as work:
                self.count_removed(work)

    def count_removed(self, work: Work) -> None:
        """Give back all leases, so that nothing more can be removed, and count exactly what was."""
        assert self.queue is not None
        release_all(work, self.queue, self.wanted, self.request.owner)
        # There are none after an end whose answer was lost: it has counted them, and taken them away.
        if self.is_tallied and (removed := tally.counted(work, self.request)).read:
            left = sum(part.left for part in self.parts)
            self.parts = [replace(removed, read=removed.read + left, left=left)]

    def count_left(self) -> Left | None:
        """Count the entries of the promise that are still queued; None before it is made."""
        if self.queue is None or self.promised is None:
            return None
        with self.database.read(seconds=_COUNT_SECONDS) as work:
            return count_waiting(work, self.queue, self.promised, self.wanted)

    def timed_out(self, awaited: str) -> DrainTimedOut:
        """Make the error that says how far a drain has come whose time is over.

        :param awaited: who had not answered by then; empty where the drain waited for nobody.
        """
        assert self.deadline.time_limit is not None
        brought, left = Counts(**total(self.parts)), None
        with contextlib.suppress(ExportQueueError):
            left = self.count_left()
        rest = "the rest" if left is None else f"about {grouped(left.entries)}"
        return DrainTimedOut(
            f"the drain of {self.request.queue_id} has brought {grouped(brought.acknowledged + brought.dead)} entries "
            f"in its {self.deadline.time_limit:g} seconds; {rest} left" + (f"; {awaited}" if awaited else "")
        )

    def look_back(self) -> None:
        """Count what still waits, find out how old the oldest of it is, and why the first dead letter is one."""
        self.waiting = None
        if self.queue is None:
            return
        snapshot = take_snapshot(self.database)
        with self.database.read() as work:
            self.waiting = count_waiting(work, self.queue, snapshot, self.wanted)
            if any(part.dead for part in self.parts):
                which = DeadLetterFilter(drain_id=self.request.drain_id)
                for letter in list_dead_letters(work, self.queue, which, limit=1):
                    self.first_rejection = f"{letter.error_class}: {letter.reason[:_REASON_CHARACTERS]}"
            self.incomplete = tuple(mark.line() for mark in losses(work, self.queue.id))

    def report(self, *, seconds: float, problem: Problem | None) -> DrainReport:
        """Put the report together."""
        report = DrainReport(
            queue=self.request.queue_id,
            sink=self.request.sink_name,
            drain_id=self.request.drain_id,
            ranges=join_ranges(self.done),
            skipped=join_ranges(set(self.wanted) - self.done),
            waiting=None if self.waiting is None else self.waiting.entries,
            oldest_left_seconds=0.0 if self.waiting is None else round(self.waiting.oldest_seconds, 3),
            seconds=round(seconds, 3),
            problem=problem,
            first_rejection=self.first_rejection,
            first_load=None if self.queue is None else self.queue.first_load,
            incomplete=self.incomplete,
            **total(self.parts),
        )
        report.check()
        return report


def count_waiting(work: Reading, queue: Queue, snapshot: Snapshot, units: Sequence[Range]) -> Left:
    """Count the entries that a snapshot sees in units of a queue."""
    found = backlog(work, queue, snapshot, units)
    oldest = min((unit.oldest_seq for unit in found), default=None)
    return Left(sum(unit.entries for unit in found), 0.0 if oldest is None else _age(work, oldest))


def require_same(queue: Queue, number: int | None) -> None:
    """Refuse a subscription that was made again under the name of one that was removed.

    :param number: the number of the queue that is drained; None if it is not known yet.
    :raises UnknownQueue: it is another one.
    """
    if number not in (None, queue.number):
        raise removed_subscription(f"subscription {queue.id!r}")


def _age(work: Reading, seq: int) -> float:
    """Tell how many seconds ago a transaction was given its id, by the store's clock."""
    return max(0.0, work.now() / 1e3 - seq / 1e9)
