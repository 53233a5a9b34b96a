"""Running one drain and storing its report, also if the drain fails."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

from export_queue.core.drain import tally
from export_queue.core.drain.admission import StoreHandle
from export_queue.core.drain.deadline import Deadline
from export_queue.core.drain.drain_run import DrainRun
from export_queue.core.drain.engine import Engine
from export_queue.core.drain.progress import OnLeft, ProgressLog
from export_queue.core.drain.report import DrainReport, Problem
from export_queue.core.drain.request import DrainRequest
from export_queue.core.drain.transient import DRAIN_RETRY, WatchedRetry, call_again
from export_queue.core.errors import DrainTimedOut, ExportQueueError
from export_queue.core.locks import end_attempt
from export_queue.core.maintenance import maintain_if_due
from export_queue.core.queue import close_layouts
from export_queue.core.store import Database, queries

TIDY_AFTER = 20_000
"""Number of removed entries from which vacuuming is worth its cost."""

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
    """Drain, and store the report, also if the drain fails.

    :param store: an open store.
    :param request: parameters of the drain.
    :param engine: does the work. It is opened and closed here, so that its errors are reported too.
    :param deadline: when the drain must end; by default its time limit starts now.
    :param on_left: called with each count of pending entries.
    :param sleep: waits for a number of seconds.
    :param clock: returns seconds; only differences count.
    :returns: the report.
    """
    deadline = deadline or Deadline.after(request.time_limit, clock=clock)
    run = DrainRun(store.database, store.id, request, sleep, clock, deadline=deadline)
    title = f"{request.queue_id} → {request.sink_name}"
    calls = request.retry.calls if isinstance(request.retry, WatchedRetry) else None

    def deliver_all() -> None:
        with (
            ProgressLog(title, run.count_left, calls=calls, on_left=on_left, clock=clock) as progress,
            engine as opened,
            run.new_fence_after(opened),
        ):
            run.deliver_all(opened, progress)

    return concluded(run, deliver_all)


def concluded(run: DrainRun, work: Callable[[], None]) -> DrainReport:
    """Do the work of a drain, and store its report, also if the work fails.

    :param run: holds the results of the work.
    :param work: takes the steps of :mod:`~export_queue.core.drain.drain_run` except the last.
    :returns: the report.
    """
    started_at = run.clock()
    try:
        report = _worked_off(run, work, started_at)
    except BaseException as error:
        # A second interruption may come while leases are released: a driver gets a signal when its Java process dies.
        try:
            _give_up(run, error, started_at)
        except BaseException:
            _give_up(run, error, started_at)
            raise
        raise
    _warn(report)
    _tidy(run.database, report)
    _close_layouts(run)
    maintain_if_due(run.database, clock=run.clock)
    return report


def _worked_off(run: DrainRun, work: Callable[[], None], started_at: float) -> DrainReport:
    try:
        work()
    except DrainTimedOut as error:
        raise run.timed_out(error.awaited) from error
    finally:
        with contextlib.suppress(ExportQueueError):
            run.count_pending()
    seconds = run.clock() - started_at
    retry = replace(DRAIN_RETRY, sleep=run.sleep, clock=run.clock)
    return call_again(retry, lambda: _end(run, seconds=seconds, problem=None))


def _give_up(run: DrainRun, error: BaseException, started_at: float) -> None:
    """Store the report of a failed drain, and release what it may still hold."""
    seconds, problem = run.clock() - started_at, Problem.of(error)
    try:
        report = _end(run, seconds=seconds, problem=problem)
    except Exception:  # the original error matters more
        report = run.report(seconds=seconds, problem=problem)
    _warn(report)
    error.add_note(report.line())


def _warn(report: DrainReport) -> None:
    for warning in report.warnings():
        log.warning("%s", warning)


def _tidy(database: Database, report: DrainReport) -> None:
    removed = report.acknowledged + report.dead
    server, tidying = database.dialect.server, database.tidying
    if not removed or server is None or tidying is None:
        return
    try:
        with database.connect() as connection:
            is_untidy = server.is_untidy(connection, removed=removed, after=TIDY_AFTER)
        if is_untidy:
            tidying.begin()
    except Exception as error:  # the drain is complete
        log.debug("cannot find out whether the space of removed entries should be reclaimed: %s", error)


def _close_layouts(run: DrainRun) -> None:
    """Close older layouts that are empty. If this fails, the next drain does it."""
    if run.queue is not None:
        with contextlib.suppress(ExportQueueError):
            close_layouts(run.database, run.queue)


def _end(run: DrainRun, *, seconds: float, problem: Problem | None) -> DrainReport:
    """Release everything, and store the report."""
    database, request = run.database, run.request
    has_ended = not run.continues
    report = run.report(seconds=seconds, problem=problem)
    if not has_ended and not report.read and not run.is_tallied:
        return report  # nothing was held or delivered
    if not run.number:  # outside of the SQL transaction: no other drain gets this number if it is rolled back
        with database.connect() as connection:
            run.number = database.dialect.steps.draw(connection)
    with database.begin() as work:
        if has_ended:
            end_attempt(work, request.owner)  # before the leases, in the same order as tasks and take-overs
        if run.queue is not None:
            run.count_removed(work)
            report = run.report(seconds=seconds, problem=problem)
        if not has_ended and not report.read:
            return report
        # an interrupted try, or one whose answer was lost, may have stored it already
        queries.reports.save_report(
            work, report.to_dict(), number=run.number, drain_id=report.drain_id, queue_id=report.queue
        )
        if run.is_tallied:
            tally.forget(work, request)
    return report
