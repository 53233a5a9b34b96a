"""One drain as a whole: its way, and the report that is stored at its end, also of one that fails."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

from export_queue.core.drain import tally
from export_queue.core.drain.admission import StoreHandle
from export_queue.core.drain.course import Course
from export_queue.core.drain.deadline import Deadline
from export_queue.core.drain.engine import Engine
from export_queue.core.drain.progress import OnLeft, ProgressLog
from export_queue.core.drain.report import DrainReport, Problem
from export_queue.core.drain.request import DrainRequest
from export_queue.core.drain.transient import DRAIN_RETRY, WatchedRetry, call_again
from export_queue.core.errors import DrainTimedOut, ExportQueueError
from export_queue.core.locks import end_attempt
from export_queue.core.queue import close_layouts
from export_queue.core.store import Database, queries

TIDY_AFTER = 20_000
"""Removed entries from which it pays to have the database tidy up."""

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
    calls = request.retry.calls if isinstance(request.retry, WatchedRetry) else None

    def bring_all() -> None:
        with (
            ProgressLog(title, course.count_left, calls=calls, on_left=on_left, clock=clock) as progress,
            engine as opened,
            course.shown_again(opened),
        ):
            course.bring_all(opened, progress)

    return concluded(course, bring_all)


def concluded(course: Course, work: Callable[[], None]) -> DrainReport:
    """Do the work of a drain, and keep its report in the store, also when the work fails.

    :param course: what the work notes its results in.
    :param work: takes the steps of :mod:`course` but for the last one.
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
        raise course.timed_out(error.awaited) from error
    finally:
        with contextlib.suppress(ExportQueueError):
            course.look_back()
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
    server, tidying = database.dialect.server, database.tidying
    if not removed or server is None or tidying is None:
        return
    try:
        with database.connect() as connection:
            is_untidy = server.is_untidy(connection, removed=removed, after=TIDY_AFTER)
        if is_untidy:
            tidying.begin()
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
            course.number = database.dialect.steps.draw(connection)
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
