"""One drain, from claim to report, whatever engine does the work.

1. Take a snapshot: the drain promises to bring every entry that is committed by now.
2. Show the sink a fence that is younger than all it has seen, and bind the queue to it.
3. Find the units that have work.
4. Claim what is free of them; where all is held, wait for the holders.
5. Have the engine drain the claimed units, and go on with 3 until nothing is left.
6. Show the sink a fence once more, so that a later loss of what this drain brought is noticed.
7. Look at what still waits, and store the report, also when the drain fails.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial

from export_queue.core.drain import tally
from export_queue.core.drain.admission import StoreHandle, admit, note_fence, warn_of_namesake
from export_queue.core.drain.deadline import Deadline
from export_queue.core.drain.engine import Engine
from export_queue.core.drain.fenced import (
    in_progress,
    not_settled_error,
    refuse_dead_letters,
    refuse_older_layouts,
)
from export_queue.core.drain.progress import Left, OnLeft, ProgressLog
from export_queue.core.drain.report import Counts, DrainReport, Problem, RangeReport, grouped, total
from export_queue.core.drain.request import DrainRequest
from export_queue.core.drain.transient import DRAIN_RETRY, call_again
from export_queue.core.errors import (
    DrainTimedOut,
    ExportQueueError,
    LeaseLost,
    LockNotAvailable,
    SinkError,
    SinkLostData,
    StoreUnavailable,
)
from export_queue.core.locks import (
    Lease,
    LeaseKeeper,
    begin_attempt,
    check_attempt,
    claim,
    claimable,
    end_attempt,
    holders,
    joined,
    not_available,
    release,
    release_all,
)
from export_queue.core.queue import (
    DeadLetterFilter,
    Queue,
    Range,
    backlog,
    bind_sink,
    close_layouts,
    find_reader,
    join_ranges,
    list_dead_letters,
    read_again,
    waiting_ranges,
)
from export_queue.core.store import Database, Reading, Work, queries
from export_queue.core.transactions import Snapshot, expire_if_due, settled_snapshot, take_snapshot

TIDY_AFTER = 20_000
"""Removed entries from which it pays to have the database tidy up."""
POLL_SECONDS = 0.5
"""How often a drain that waits for other holders looks again."""
_ANSWER_SECONDS = 60.0
_COUNT_SECONDS = 10.0
_NAMED = 5
_REASON_CHARACTERS = 300

log = logging.getLogger("export_queue.drain")


def run_drain(
    store: StoreHandle,
    request: DrainRequest,
    engine: AbstractContextManager[Engine],
    *,
    deadline: Deadline | None = None,
    on_left: OnLeft | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> DrainReport:
    """Drain, and keep the report in the store, also when the drain fails.

    :param store: an open store.
    :param request: parameters of the drain.
    :param engine: does the work; it is opened and closed here, so that trouble with it is reported too.
    :param deadline: when the drain ends at the latest, where that is known already; by default its time limit counts
        from now on.
    :param on_left: called now and then with what is left, as it was counted for the log.
    :param sleep: waits for a number of seconds.
    :param clock: tells seconds; only differences count.
    :returns: the report.
    """
    deadline = deadline or Deadline.after(request.time_limit, clock=clock)
    course = Course(store.database, store.id, request, sleep, clock, deadline=deadline)
    title = f"{request.queue_id} → {request.sink_name}"

    def bring_all() -> None:
        with (
            ProgressLog(title, course.count_left, on_left=on_left, clock=clock) as progress,
            engine as opened,
            course.shown_again(opened),
        ):
            course.bring_all(opened, progress)

    return concluded(course, bring_all)


def concluded(course: Course, work: Callable[[], None]) -> DrainReport:
    """Do the work of a drain, and keep its report in the store, also when the work fails.

    :param course: what the work notes its results in.
    :param work: takes the steps up to the sixth.
    :returns: the report.
    """
    started_at = course.clock()
    try:
        report = _worked_off(course, work, started_at)
    except BaseException as error:
        # An interruption may follow a failure, as the signal to a driver follows the death of its Java process, and
        # meet the drain while it gives its leases back.
        try:
            _give_up(course, error, started_at)
        except BaseException:
            _give_up(course, error, started_at)
            raise
        raise
    _warn(report)
    _tidy(course.database, report)
    _close_layouts(course)
    return report


def _worked_off(course: Course, work: Callable[[], None], started_at: float) -> DrainReport:
    try:
        work()
    except DrainTimedOut as error:
        raise course.timed_out() from error
    finally:
        with contextlib.suppress(ExportQueueError):
            course.look_back()  # 7
    seconds = course.clock() - started_at
    retry = replace(DRAIN_RETRY, sleep=course.sleep, clock=course.clock)
    return call_again(retry, lambda: _end(course, seconds=seconds, problem=None))


def _give_up(course: Course, error: BaseException, started_at: float) -> None:
    """Store the report of a drain that failed, and give back whatever it may still hold."""
    seconds, problem = course.clock() - started_at, Problem.of(error)
    try:
        report = _end(course, seconds=seconds, problem=problem)
    except Exception:  # the error itself matters more
        report = course.report(seconds=seconds, problem=problem)
    _warn(report)
    error.add_note(report.line())


def _warn(report: DrainReport) -> None:
    for warning in report.warnings():
        log.warning("%s", warning)


def _tidy(database: Database, report: DrainReport) -> None:
    removed = report.acknowledged + report.dead
    if not removed:
        return
    try:
        with database.connect() as connection:
            is_untidy = database.dialect.is_untidy(connection, removed=removed, after=TIDY_AFTER)
        if is_untidy:
            database.tidy_beside()
    except Exception as error:  # the drain itself is done
        log.debug("it was not found out whether the space of removed entries should be reclaimed: %s", error)


def _close_layouts(course: Course) -> None:
    """Close older layouts that have drained out; where this one cannot, the next drain does."""
    if course.queue is not None:
        with contextlib.suppress(ExportQueueError):
            close_layouts(course.database, course.queue)


def _end(course: Course, *, seconds: float, problem: Problem | None) -> DrainReport:
    """Give everything back, and store the report of what was done until then."""
    database, request = course.database, course.request
    has_ended = not course.goes_on
    report = course.report(seconds=seconds, problem=problem)
    if not has_ended and not report.read and not course.is_tallied:
        return report  # what holds nothing and has brought nothing leaves nothing
    if not course.number:  # before the SQL transaction: nobody else draws it if that one is rolled back
        with database.connect() as connection:
            course.number = database.dialect.draw(connection)
    with database.begin() as work:
        if has_ended:
            end_attempt(work, request.owner)  # before the leases: as tasks do, and others that take over
        if course.queue is not None:
            course.count_removed(work)
            report = course.report(seconds=seconds, problem=problem)
        if not has_ended and not report.read:
            return report
        # Once: an end whose answer was lost, or which was interrupted, has perhaps stored it.
        queries.reports.save_report(
            work, report.to_dict(), number=course.number, drain_id=report.drain_id, queue_id=report.queue
        )
        if course.is_tallied:
            tally.forget(work, request)
    return report


def _age(work: Reading, seq: int) -> float:
    """Tell how many seconds ago a transaction was given its id, by the store's clock."""
    return max(0.0, work.now() / 1e3 - seq / 1e9)


def _shown(units: Sequence[Range]) -> str:
    return " ".join(str(part) for part in join_ranges(units))


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
    queue: Queue | None = None
    wanted: list[Range] = field(default_factory=list)
    """Units that were asked for."""
    number: int = 0
    """The number of the report; 0 before it is drawn."""
    done: set[Range] = field(default_factory=set)
    """Units for which the promise is kept."""
    shared: set[Range] = field(default_factory=set)
    """Units that were drained but for what others hold of them."""
    parts: list[Counts] = field(default_factory=list)
    """What was done: as the engine has reported it, or once all of it is counted by tallies, their sum."""
    is_tallied: bool = False
    promised: Snapshot | None = None
    oldest_left_seconds: float = 0.0
    fence: int = 0
    """The last one that the sink has kept."""
    shown: int = 0
    """The one that the sink was known to have kept before this drain."""
    is_fence_noted: bool = False
    first_rejection: str | None = None

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
                queue = self.queue = read_again(work, queue)
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
            claimed_at = self.clock()
            if leases := self._claim(engine, queue, ready, promised, revokes=revokes):  # 4
                progress.draining()
                self._drain(engine, queue, leases, claimed_at)  # 5
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
                    raise not_settled_error(self.database, queue, promised, _shown(waiting))
                raise self._not_available(queue, ready)
            progress.waiting(partial(self._awaited, queue, ready, promised))
            self.sleep(min(POLL_SECONDS, self.deadline.left()))
            check_attempt(self.database, self.request.owner)
            waiting = self._with_work(queue, promised, waiting)  # 3, since the holder may have done it all
        return skipped

    def begin(self, engine: Engine) -> Queue:
        """Find the queue, take over from older attempts, and have the sink admit this drain."""
        queue = self._find_queue()
        begin_attempt(self.database, queue, self.request.owner)
        self._admit_and_bind(engine, queue)
        return queue

    def bring_free(self, engine: Engine) -> bool:
        """Bring the entries that wait now and that nobody holds; tell whether there were any."""
        queue = self.queue
        assert queue is not None
        snapshot = take_snapshot(self.database)
        waiting = self._with_work(queue, snapshot, self.wanted)
        claimed_at = self.clock()
        leases = self._claim(engine, queue, self._settled(queue, waiting) if engine.is_fenced else waiting, snapshot)
        if leases:
            # A fenced sink knows claims of single units. For all others few entries of many units are one small chunk.
            self._drain(engine, queue, leases if engine.is_fenced else joined(leases), claimed_at)
        return bool(leases)

    def has_moved(self) -> bool:
        """Tell whether the queue has another layout than at the beginning."""
        assert self.queue is not None
        return self._current_layout() != self.queue.layout

    def _current_layout(self) -> int | None:
        """Read the number of the queue's layout; None if the queue was removed."""
        assert self.queue is not None
        with self.database.read() as work:
            return queries.queues.layout_of(work, self.queue.number)

    @contextlib.contextmanager
    def shown_again(self, engine: Engine) -> Iterator[None]:
        """Show the sink a fence behind a block that brings entries; behind one that fails, if it has brought some."""
        try:
            yield
        except SinkError:
            raise
        except Exception as error:
            if isinstance(error, LeaseLost):
                self.refuse_removed(error)
            if any(part.acknowledged for part in self.parts):
                with contextlib.suppress(Exception):  # the trouble itself matters more
                    self.show_again(engine)
            raise
        self.show_again(engine)  # 6

    def refuse_removed(self, error: LeaseLost) -> None:
        """Say so where leases were lost since the subscription was removed: to start again would be no use.

        :raises UnknownQueue: it was.
        """
        with contextlib.suppress(StoreUnavailable), self.database.read() as work:
            if self.queue is not None and not queries.queues.is_there(work, self.queue.number):
                raise queries.queues.removed_subscription(f"subscription {self.queue.id!r}") from error

    def _find_queue(self) -> Queue:
        with self.database.read() as work:
            queue = self.queue = find_reader(work, self.request.queue_id)
        self.wanted = queue.split(self.request.ranges)
        return queue

    def _admit_and_bind(self, engine: Engine, queue: Queue) -> None:
        # A new queue is bound once its sink has answered; the drain of a bound queue touches no other sink.
        if queue.sink is not None:
            self._bind(queue)
        self._show(engine, queue)
        if queue.sink is None:
            self._bind(queue)
        warn_of_namesake(self.database, queue, self.request.sink_name)
        if engine.is_fenced:
            refuse_older_layouts(self.database, queue)
            refuse_dead_letters(self.database, queue)

    def _show(self, engine: Engine, queue: Queue) -> None:
        """Show the sink a new fence; one that has not kept the highest that is known has lost data."""
        with self.database.read() as work:
            shown = self.shown = queries.sinks.shown_fence(work, queue.id, self.request.sink_name)
        self.fence = admit(
            self.database,
            lambda fence: engine.admit(queue_id=queue.id, store_id=self.store_id, fence=fence, shown=shown),
        )

    def _note_fence(self, queue: Queue) -> None:
        # before the first batch: a drain that is killed amid its batches has left nothing else
        if not self.is_fence_noted:
            note_fence(self.database, queue, self.request.sink_name, self.fence)
            self.is_fence_noted = True

    def show_again(self, engine: Engine) -> None:
        """Show the sink a fence after the last batch: a state without it lacks some of what was acknowledged.

        The drain has kept its promise by now; a sink that does not answer at this moment changes nothing of that.

        :raises SinkLostData: the sink has lost data while it was drained into.
        """
        if self.queue is None:
            return
        if not any(part.acknowledged for part in self.parts):
            if self.is_fence_noted and not self.shown:
                # the first drain has left nothing that could be lost: the sink may be another one the next time
                with self.database.begin() as work:
                    queries.sinks.forget_fence(work, self.queue.id, self.request.sink_name, self.fence)
            return
        try:
            self._show(engine, self.queue)
        except SinkLostData:
            raise
        except ExportQueueError as error:
            log.warning("the sink took no fence after the last batch: %s", error)
            return
        note_fence(self.database, self.queue, self.request.sink_name, self.fence)

    def _bind(self, queue: Queue) -> None:
        with self.database.begin() as work:
            bind_sink(work, queue, self.request.sink_name)

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

    def _claim(
        self, engine: Engine, queue: Queue, units: Sequence[Range], snapshot: Snapshot, *, revokes: bool = False
    ) -> list[Lease]:
        """Claim the units that are free now, or what is free of them.

        A sink with ranks takes entries in any order, so that what a compaction holds of a unit may come later.

        :param snapshot: decides which entries count.
        :param revokes: whether locks of lower priority are revoked that are in the way.
        """
        request = self.request
        units = units if revokes else self._with_some_free(queue, units, snapshot)
        if not units:
            return []
        leases: list[Lease] = []
        for of, in_layout in queue.by_layout(units):
            leases += claim(
                self.database,
                of,
                in_layout,
                owner=request.owner,
                lease_seconds=request.lease_seconds,
                leaves_out=not engine.is_fenced,
                revokes=revokes,
            )
        whole = {lease.range for lease in leases if lease.is_whole}
        if request.if_locked == "fail" and len(whole) < len(units):
            release(self.database, leases)
            raise self._not_available(queue, [unit for unit in units if unit not in whole])
        self.shared = (self.shared - whole) | {lease.range for lease in leases if not lease.is_whole}
        return leases

    def _with_some_free(self, queue: Queue, units: Sequence[Range], snapshot: Snapshot) -> Sequence[Range]:
        """Leave out the units of which nothing is left but what others hold."""
        known = self.shared.intersection(units)
        if not known:
            return units
        with self.database.read() as work:
            again = claimable(work, queue, sorted(known), snapshot, owner=self.request.owner)
        return [unit for unit in units if unit not in known or unit in again]

    def _drain(self, engine: Engine, queue: Queue, leases: Sequence[Lease], claimed_at: float) -> None:
        """Drain claimed units by a snapshot that is taken under the claim.

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
                self._note_fence(queue)
                if engine.is_fenced:
                    engine.claim(queue, leases)  # before the snapshot, or an older drain could write entries above it
                    snapshot = settled_snapshot(self.database, queue.number)
                else:
                    snapshot = take_snapshot(self.database)
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

    def _not_available(self, queue: Queue, units: Sequence[Range]) -> LockNotAvailable:
        with self.database.read() as work:
            return not_available(work, queue, units)

    def _held(self, queue: Queue, units: Sequence[Range]) -> list[str]:
        with self.database.read() as work:
            return [f"{holder.range} by {holder.owner.task}" for holder in holders(work, queue, units)]

    def _awaited(self, queue: Queue, units: Sequence[Range], promised: Snapshot) -> str:
        """Name the holders of the units that are ready; where none is, the transactions that hold entries back."""
        if not units:
            return f"older transactions: {in_progress(self.database, promised)}"
        held = self._held(queue, units)
        more = f" and {len(held) - _NAMED} more" if len(held) > _NAMED else ""
        return (", ".join(held[:_NAMED]) or _shown(units)) + more

    def count_left(self) -> Left | None:
        """Count the entries of the promise that are still queued; None before it is made."""
        if self.queue is None or self.promised is None:
            return None
        with self.database.read(seconds=_COUNT_SECONDS) as work:
            units = backlog(work, self.queue, self.promised, self.wanted)
            oldest = min((unit.oldest_seq for unit in units), default=None)
            return Left(sum(unit.entries for unit in units), 0.0 if oldest is None else _age(work, oldest))

    def timed_out(self) -> DrainTimedOut:
        """Make the error that says how far a drain has come whose time is over."""
        assert self.deadline.time_limit is not None
        brought, left = Counts(**total(self.parts)), None
        with contextlib.suppress(ExportQueueError):
            left = self.count_left()
        rest = "the rest" if left is None else f"about {grouped(left.entries)}"
        return DrainTimedOut(
            f"the drain of {self.request.queue_id} has brought {grouped(brought.acknowledged + brought.dead)} entries "
            f"in its {self.deadline.time_limit:g} seconds; {rest} left"
        )

    def look_back(self) -> None:
        """Find out how old the oldest entry is that still waits, and why the first dead letter is one."""
        if self.queue is None:
            return
        snapshot = take_snapshot(self.database)
        with self.database.read() as work:
            oldest = min((unit.oldest_seq for unit in backlog(work, self.queue, snapshot, self.wanted)), default=None)
            if oldest is not None:
                self.oldest_left_seconds = _age(work, oldest)
            if any(part.dead for part in self.parts):
                which = DeadLetterFilter(drain_id=self.request.drain_id)
                for letter in list_dead_letters(work, self.queue, which, limit=1):
                    self.first_rejection = f"{letter.error_class}: {letter.reason[:_REASON_CHARACTERS]}"

    def report(self, *, seconds: float, problem: Problem | None) -> DrainReport:
        """Put the report together."""
        report = DrainReport(
            queue=self.request.queue_id,
            sink=self.request.sink_name,
            drain_id=self.request.drain_id,
            ranges=join_ranges(self.done),
            skipped=join_ranges(set(self.wanted) - self.done),
            oldest_left_seconds=round(self.oldest_left_seconds, 3),
            seconds=round(seconds, 3),
            problem=problem,
            first_rejection=self.first_rejection,
            first_load=None if self.queue is None else self.queue.first_load,
            **total(self.parts),
        )
        report.check()
        return report
