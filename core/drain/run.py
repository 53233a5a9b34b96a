"""One drain, from claim to report, whatever engine does the work."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Literal

from export_queue.core.drain.engine import Engine
from export_queue.core.drain.fencing import not_settled, refuse_dead_letters
from export_queue.core.drain.leases import LeaseKeeper
from export_queue.core.drain.report import DrainReport, Problem, RangeReport, join_ranges, total
from export_queue.core.drain.transient import DRAIN_RETRY, call_again
from export_queue.core.errors import ExportQueueError, InvalidArgument, LockNotAvailable, SinkBelongsToAnother
from export_queue.core.locks import Lease, Owner, claim, holders, release
from export_queue.core.queue import Queue, Range, backlog, bind_sink, find_queue, waiting_ranges
from export_queue.core.store import Database, queries
from export_queue.core.transactions import Snapshot, expire_if_due, settled_snapshot, take_snapshot

IfLocked = Literal["wait", "skip", "fail"]
Ranges = Sequence[Range | Sequence[int]]

LEASE_SECONDS = 30.0
TIDY_AFTER = 20_000
"""Removed entries from which it pays to have the database tidy up."""
POLL_SECONDS = 0.5
"""How often a drain that waits for other holders looks again."""
_ADMISSIONS = 10
_ANSWER_SECONDS = 60.0


def anybody() -> Owner:
    """Make an owner that no other drain shares."""
    once = uuid.uuid4().hex
    return Owner(f"{socket.gethostname()}/{os.getpid()}/{once}", once)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequest:
    """What a drain is asked to do; checked when it is made.

    :param queue_id: the queue.
    :param sink_name: what the queue is bound to.
    :param ranges: whole units; None means all.
    :param if_locked: what to do about ranges that others hold: wait for them, leave them out, or fail
        before anything is done.
    :param lock_timeout: seconds to wait for others.
    :param owner: who claims; a new attempt of the same task takes over from the older one.
    :param drain_id: name of this drain, under which its report is stored; a new one for each attempt.
    :param lease_seconds: how long a dead drain keeps others out.
    """

    queue_id: str
    sink_name: str
    ranges: Ranges | None = None
    if_locked: IfLocked = "wait"
    lock_timeout: float = 600.0
    owner: Owner = field(default_factory=anybody)
    drain_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    lease_seconds: float = LEASE_SECONDS

    def __post_init__(self) -> None:
        if self.if_locked not in ("wait", "skip", "fail"):
            raise InvalidArgument(f"if_locked is 'wait', 'skip' or 'fail', found {self.if_locked!r}")
        if self.lock_timeout < 0:
            raise InvalidArgument(f"lock_timeout is a number of seconds, found {self.lock_timeout!r}")
        if not self.drain_id:
            raise InvalidArgument("a drain's id is not empty")


def run_drain(
    database: Database,
    store_id: str,
    request: DrainRequest,
    engine: AbstractContextManager[Engine],
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> DrainReport:
    """Drain, and keep the report in the store, also when the drain fails.

    :param database: the store.
    :param store_id: its identity, for the sink's control record.
    :param request: what is asked for.
    :param engine: does the work; it is opened and closed here, so that trouble with it is reported too.
    :returns: the report.
    """
    run = _Run(database, store_id, request, sleep, clock)
    started = clock()
    trouble: BaseException | None = None
    try:
        with engine as opened:
            run.work(opened)
    except BaseException as error:
        trouble = error
    with contextlib.suppress(ExportQueueError):
        run.look_at_rest()
    report = run.report(seconds=clock() - started, problem=Problem.of(trouble) if trouble else None)
    report.check()
    if trouble is None:
        call_again(replace(DRAIN_RETRY, sleep=sleep, clock=clock), lambda: _save(database, report))
        _tidy(database, report)
        return report
    with contextlib.suppress(Exception):  # the trouble itself matters more
        _save(database, report)
    trouble.add_note(report.line())
    raise trouble


def admit(database: Database, ask: Callable[[int], None]) -> None:
    """Show a sink a number that is younger than all that it has seen from this store.

    :param ask: asks the sink, with the number.
    :raises SinkBelongsToAnother: the sink has seen younger ones, or another store.
    """
    for remaining in reversed(range(_ADMISSIONS)):
        with database.connect() as connection:
            fence = database.dialect.draw(connection)
        try:
            ask(fence)
            return
        except SinkBelongsToAnother:
            # Another drain may have shown a younger number between our drawing and showing ours.
            if not remaining:
                raise


def _tidy(database: Database, report: DrainReport) -> None:
    if report.acknowledged + report.dead > TIDY_AFTER:
        with contextlib.suppress(Exception), database.connect() as connection:  # the drain is done, come what may
            database.dialect.tidy_entries(connection)


def _save(database: Database, report: DrainReport) -> None:
    with database.begin() as work:
        queries.reports.save_report(work, report.to_dict(), drain_id=report.drain_id, queue_id=report.queue)


def _shown(units: Sequence[Range]) -> str:
    return " ".join(str(part) for part in join_ranges(units))


@dataclass(slots=True)
class _Run:
    database: Database
    store_id: str
    request: DrainRequest
    sleep: Callable[[float], None]
    clock: Callable[[], float]
    queue: Queue | None = None
    wanted: list[Range] = field(default_factory=list)
    done: set[Range] = field(default_factory=set)
    parts: list[RangeReport] = field(default_factory=list)
    oldest_left_seconds: float = 0.0

    def work(self, engine: Engine) -> None:
        """Claim what is free and drain it, again and again, until nothing that the call must bring is left."""
        started = take_snapshot(self.database)  # what the promise of drain() speaks of
        with self.database.read() as work:
            queue = self.queue = find_queue(work, self.request.queue_id)
        self.wanted = queue.split(self.request.ranges)
        self._bind_and_admit(engine, queue)
        if engine.is_fenced:
            refuse_dead_letters(self.database, queue)
        waiting = self._with_work(queue, started, self.wanted)
        waits_since = self.clock()
        while waiting:
            claimed_at = self.clock()
            ready = self._settled(queue, waiting) if engine.is_fenced else waiting
            leases = self._claim(queue, ready) if ready else []
            if leases:
                self._drain(engine, queue, leases, claimed_at)
                waiting = self._with_work(queue, started, waiting) if engine.is_fenced else self._not_done(waiting)
                waits_since = self.clock()
                continue
            if self.request.if_locked == "skip":
                waiting, ready = [unit for unit in waiting if unit not in ready], []
                if not waiting:
                    return
            if self.clock() - waits_since >= self.request.lock_timeout:
                if not ready:
                    raise not_settled(self.database, queue, started, _shown(waiting))
                raise self._not_available(queue, ready)
            self.sleep(POLL_SECONDS)
            waiting = self._with_work(queue, started, waiting)  # the holder may have done it all

    def _bind_and_admit(self, engine: Engine, queue: Queue) -> None:
        # An unbound queue is bound once the sink has been seen to work, a bound one does not touch another sink.
        if queue.sink is not None:
            self._bind(queue)
        with self.database.read() as work:
            drained = queue.sink is not None and queries.reports.has_drained(work, queue.id, self.request.sink_name)
        admit(
            self.database,
            lambda fence: engine.admit(queue_id=queue.id, store_id=self.store_id, fence=fence, drained=drained),
        )
        if queue.sink is None:
            self._bind(queue)

    def _bind(self, queue: Queue) -> None:
        with self.database.begin() as work:
            bind_sink(work, queue, self.request.sink_name)

    def _with_work(self, queue: Queue, snapshot: Snapshot, units: Sequence[Range]) -> list[Range]:
        with self.database.read() as work:
            found = waiting_ranges(work, queue, snapshot, units)
        self.done |= set(units) - set(found)
        return found

    def _settled(self, queue: Queue, units: Sequence[Range]) -> list[Range]:
        """Say which units have entries that no older one can follow."""
        expire_if_due(self.database, seconds=_ANSWER_SECONDS)  # one past its deadline would hold them back
        snapshot = settled_snapshot(self.database)
        with self.database.read() as work:
            return waiting_ranges(work, queue, snapshot, units)

    def _not_done(self, units: Sequence[Range]) -> list[Range]:
        return [unit for unit in units if unit not in self.done]

    def _claim(self, queue: Queue, units: Sequence[Range]) -> list[Lease]:
        request = self.request
        leases = claim(self.database, queue, units, owner=request.owner, lease_seconds=request.lease_seconds)
        if request.if_locked == "fail" and len(leases) < len(units):
            release(self.database, leases)
            claimed = {lease.range for lease in leases}
            raise self._not_available(queue, [unit for unit in units if unit not in claimed])
        return leases

    def _drain(self, engine: Engine, queue: Queue, leases: Sequence[Lease], claimed_at: float) -> None:
        keeper = LeaseKeeper(
            self.database,
            leases,
            lease_seconds=self.request.lease_seconds,
            claimed_at=claimed_at,
            clock=self.clock,
        )
        failed: list[RangeReport] = []
        with keeper:
            if engine.is_fenced:
                engine.claim(queue, leases)  # before the snapshot, or an older drain could write what is above it
                snapshot = settled_snapshot(self.database)
            else:
                snapshot = take_snapshot(self.database)
            for part in engine.work_off(queue, leases, snapshot, keeper):
                self.parts.append(part)
                if part.problem is not None:
                    failed.append(part)
                elif not engine.is_fenced:  # else there may be more that is not settled yet
                    self.done.add(part.range)
        for part in failed:
            assert part.problem is not None
            raise part.cause or part.problem.to_error()

    def _not_available(self, queue: Queue, units: Sequence[Range]) -> LockNotAvailable:
        with self.database.read() as work:
            held = [f"{holder.range} by {holder.owner.task}" for holder in holders(work, queue, units)]
        return LockNotAvailable(f"others work on {queue.id} {_shown(units)}; held: {', '.join(held) or 'free by now'}")

    def look_at_rest(self) -> None:
        """Find out how old the oldest entry is that still waits."""
        if self.queue is None:
            return
        snapshot = take_snapshot(self.database)
        with self.database.read() as work:
            oldest = min((unit.oldest_seq for unit in backlog(work, self.queue, snapshot, self.wanted)), default=None)
            if oldest is not None:
                self.oldest_left_seconds = max(0.0, work.now() / 1e3 - oldest / 1e9)

    def report(self, *, seconds: float, problem: Problem | None) -> DrainReport:
        """Put the report together."""
        return DrainReport(
            queue=self.request.queue_id,
            sink=self.request.sink_name,
            drain_id=self.request.drain_id,
            ranges=join_ranges(self.done),
            skipped=join_ranges(set(self.wanted) - self.done),
            oldest_left_seconds=round(self.oldest_left_seconds, 3),
            seconds=round(seconds, 3),
            problem=problem,
            **total(self.parts),
        )
