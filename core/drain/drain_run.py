"""The steps of one drain, whatever engine does the work.

1. Take a snapshot: the drain promises to deliver every entry that is committed now.
2. Send the sink a new fence, higher than all that it has seen, and bind the queue to the sink.
3. Find the units that have work.
4. Take the snapshot to read by, and claim what is free in these units. If others hold everything, wait for them.
5. Let the engine drain the claimed units, and continue with step 3 until nothing is left.
6. Send the sink a new fence, so that a later loss of what this drain delivered is noticed.
7. Count what is still pending.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from export_queue.core.drain import tally
from export_queue.core.drain.claims import Claim, Claims, Terms, rounds
from export_queue.core.drain.deadline import Deadline
from export_queue.core.drain.engine import Engine
from export_queue.core.drain.progress import Left, ProgressLog
from export_queue.core.drain.promise import Promise
from export_queue.core.drain.report import Counts, DrainReport, Problem, RangeReport, grouped, total
from export_queue.core.drain.request import DrainRequest
from export_queue.core.drain.sink_fence import SinkFence
from export_queue.core.drain.transient import DRAIN_RETRY, call_again
from export_queue.core.errors import DrainTimedOut, ExportQueueError, LeaseLost, SinkError, StoreUnavailable
from export_queue.core.locks import LeaseKeeper, begin_attempt, joined, release_all
from export_queue.core.queue import (
    DeadLetterFilter,
    Queue,
    Range,
    backlog,
    join_ranges,
    list_dead_letters,
    losses,
)
from export_queue.core.store import Database, Reading, Work, queries, removed_subscription
from export_queue.core.transactions import Snapshot, settled_snapshot, take_snapshot

_COUNT_SECONDS = 10.0
_REASON_CHARACTERS = 300


@dataclass(slots=True)
class DrainRun:
    """The state of one drain. A follower takes the same steps in its own order."""

    database: Database
    store_id: str
    request: DrainRequest
    sleep: Callable[[float], None]
    clock: Callable[[], float]
    continues: bool = False
    """Whether another drain of the same attempt follows."""
    deadline: Deadline = field(default_factory=Deadline)
    queue_number: int | None = None
    """The queue's number, if an earlier drain of the attempt found it."""
    promise: Promise | None = None
    """What must be delivered; None until the queue is found."""
    number: int = 0
    """The number of the report; 0 until it is drawn."""
    parts: list[Counts] = field(default_factory=list)
    """The results that the engine reported; replaced by the sum of the tallies once these are counted."""
    is_tallied: bool = False
    waiting: Left | None = None
    """Entries pending in the requested units; None if they were not counted."""
    first_rejection: str | None = None
    incomplete: tuple[str, ...] = ()
    """Accepted losses that make the sink incomplete."""
    sink_fence: SinkFence = field(init=False)

    def __post_init__(self) -> None:
        self.sink_fence = SinkFence(self.database, self.store_id, self.request)

    @property
    def queue(self) -> Queue | None:
        """The queue, once it is found."""
        return None if self.promise is None else self.promise.queue

    def deliver_all(self, engine: Engine, progress: ProgressLog) -> None:
        """Deliver what the drain promises. Numbers refer to the steps at the top of this module."""
        promise = self.begin(engine)  # 1, 2
        promise.find_left()  # 3
        claims = Claims(promise, engine.is_fenced, self.clock)
        terms: Terms[Claim] = Terms(
            database=self.database,
            owner=self.request.owner,
            left=lambda: promise.left,
            ready=claims.ready,
            claim=claims.claim,
            refusal=promise.refusal,
            on_wait=lambda units: progress.waiting(partial(promise.awaited, units)),
            after_wait=promise.find_left,
            if_locked=self.request.if_locked,
            lock_timeout=self.request.lock_timeout,
            deadline=self.deadline,
            sleep=self.sleep,
            clock=self.clock,
        )
        while True:
            has_work = bool(terms.units())
            for claim in rounds(terms):  # 4
                progress.draining()
                self._drain(engine, promise, claim)  # 5
                if claims.is_fenced:
                    promise.find_left()
            if claims.is_fenced or not (self._is_altered(promise.queue) or (promise.queue.older and has_work)):
                return
            # entries of one layout may have been rewritten into units of a later one that had no work before
            promise.find_moved()

    def _is_altered(self, queue: Queue) -> bool:
        """Return whether all units were requested and the queue has new ones."""
        return self.request.ranges is None and self._layout_of(queue) not in (None, queue.layout)

    def begin(self, engine: Engine) -> Promise:
        """Find the queue, take over from older attempts, and let the sink admit this drain."""
        promise = self.promise = Promise.begin(self.database, self.request, number=self.queue_number)
        begin_attempt(self.database, promise.queue, self.request.owner)
        self.sink_fence.admit_and_bind(engine, promise.queue)
        return promise

    def deliver_free(self, engine: Engine, claims: Claims) -> bool:
        """Deliver pending entries that nobody holds; return whether there were any."""
        promise = claims.promise
        promise.renew()
        claim = claims.claim(claims.ready(promise.left), snapshot=promise.snapshot)
        if claim is not None:
            # A fenced sink needs a claim per unit. For other sinks, a few entries of many units become one small chunk.
            leases = claim.leases if claims.is_fenced else joined(claim.leases)
            self._drain(engine, promise, claim._replace(leases=leases))
        return claim is not None

    def has_moved(self) -> bool:
        """Return whether entries may be pending in a layout that was opened after the drain began."""
        queue = self.queue
        assert queue is not None
        known = {layout.number for layout in queue.layouts()}
        if self._layout_of(queue) != queue.layout:
            return True
        with self.database.read() as work:
            older = queries.layouts.open_ones(work, queue.source_number, before=queue.layout)
        return not known.issuperset(number for number, *_ in older)

    def _layout_of(self, queue: Queue) -> int | None:
        """Return the number of the queue's layout now; None if the queue was removed."""
        with self.database.read() as work:
            return queries.queues.layout_of(work, queue.number)

    @contextlib.contextmanager
    def new_fence_after(self, engine: Engine) -> Iterator[None]:
        """After the block, send the sink a new fence. On failure, send it only if entries were delivered.

        If nothing was sent, for example after an error of the exporter, the queue stays unbound.
        """
        try:
            yield
        except SinkError:
            raise
        except Exception as error:
            if isinstance(error, LeaseLost):
                self.refuse_removed(error)
            if self._has_delivered or not engine.has_sent:
                with contextlib.suppress(Exception):  # the original error matters more
                    self._send_new_fence(engine)
            raise
        self._send_new_fence(engine)  # 6

    @property
    def _has_delivered(self) -> bool:
        return any(part.acknowledged for part in self.parts)

    def _send_new_fence(self, engine: Engine) -> None:
        if self.queue is not None:
            self.sink_fence.renew(engine, self.queue, has_delivered=self._has_delivered)

    def refuse_removed(self, error: LeaseLost) -> None:
        """Check whether leases were lost because the subscription was removed, so that a retry is useless.

        :raises UnknownQueue: it was removed.
        """
        with contextlib.suppress(StoreUnavailable), self.database.read() as work:
            if self.queue is not None and queries.queues.layout_of(work, self.queue.number) is None:
                raise removed_subscription(f"subscription {self.queue.id!r}") from error

    def _drain(self, engine: Engine, promise: Promise, claim: Claim) -> None:
        """Drain claimed units.

        :raises ExportQueueError: a unit was not drained; the others were.
        """
        queue, leases, snapshot, claimed_at = promise.queue, *claim
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
                    # before the snapshot: otherwise an older drain could write entries that are newer than it
                    engine.claim(queue, leases)
                    snapshot = settled_snapshot(self.database, queue.number)
                for number in sorted({lease.layout for lease in leases}):
                    in_layout = [lease for lease in leases if lease.layout == number]
                    for part in engine.work_off(queue.in_layout(number), in_layout, snapshot, keeper):
                        self.parts.append(part)
                        parts.append(part)
        except BaseException:
            with contextlib.suppress(Exception):  # the original error matters more
                self._count_tallied()
            raise
        call_again(replace(DRAIN_RETRY, sleep=self.sleep, clock=self.clock), self._count_tallied)
        if not engine.is_fenced:  # a fenced drain may have left entries that are not settled yet
            whole = {lease.range for lease in leases if lease.is_whole}
            finished = {part.range for part in parts if part.problem is None and part.range in whole}
            promise.left = [unit for unit in promise.left if unit not in finished]
        for part in parts:
            if part.problem is not None:
                raise part.cause or part.problem.to_error()

    def _count_tallied(self) -> None:
        if self.is_tallied:
            with self.database.begin() as work:
                self.count_removed(work)

    def count_removed(self, work: Work) -> None:
        """Release all leases, so that nothing more can be removed, and count exactly what was removed."""
        assert self.promise is not None
        release_all(work, self.promise.queue, self.promise.wanted, self.request.owner)
        # none are left if an earlier try took effect: it counted and deleted them
        if self.is_tallied and (removed := tally.counted(work, self.request)).read:
            left = sum(part.left for part in self.parts)
            self.parts = [replace(removed, read=removed.read + left, left=left)]

    def count_left(self) -> Left | None:
        """Count the promised entries that are still queued; None before the promise."""
        promise = self.promise
        if promise is None:
            return None
        with self.database.read(seconds=_COUNT_SECONDS) as work:
            return count_waiting(work, promise.queue, promise.snapshot, promise.wanted)

    def timed_out(self, awaited: str) -> DrainTimedOut:
        """Return the error for a drain whose time is over, with what it delivered.

        :param awaited: who has not answered; empty if the drain waited for nobody.
        """
        assert self.deadline.time_limit is not None
        done, left = Counts(**total(self.parts)), None
        with contextlib.suppress(ExportQueueError):
            left = self.count_left()
        rest = "the rest" if left is None else f"about {grouped(left.entries)}"
        return DrainTimedOut(
            f"the drain of {self.request.queue_id} delivered {grouped(done.acknowledged + done.dead)} entries "
            f"in its {self.deadline.time_limit:g} seconds; {rest} left" + (f"; {awaited}" if awaited else "")
        )

    def count_pending(self) -> None:
        """Count what is pending, and find its age and the reason of the first dead letter."""
        self.waiting = None
        if self.promise is None:
            return
        queue, snapshot = self.promise.queue, take_snapshot(self.database)
        with self.database.read() as work:
            self.waiting = count_waiting(work, queue, snapshot, self.promise.wanted)
            if any(part.dead for part in self.parts):
                which = DeadLetterFilter(drain_id=self.request.drain_id)
                for letter in list_dead_letters(work, queue, which, limit=1):
                    self.first_rejection = f"{letter.error_class}: {letter.reason[:_REASON_CHARACTERS]}"
            self.incomplete = tuple(mark.line() for mark in losses(work, queue.id))

    def report(self, *, seconds: float, problem: Problem | None) -> DrainReport:
        report = DrainReport(
            queue=self.request.queue_id,
            sink=self.request.sink_name,
            drain_id=self.request.drain_id,
            ranges=join_ranges([] if self.promise is None else self.promise.done),
            skipped=join_ranges([] if self.promise is None else self.promise.left),
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


def _age(work: Reading, seq: int) -> float:
    """Return the seconds since a transaction received its id, by the store's clock."""
    return max(0.0, work.now() / 1e3 - seq / 1e9)
