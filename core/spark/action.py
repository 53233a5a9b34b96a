"""Running one action of Spark in another thread, so that the caller can cancel it and report progress."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark import InheritableThread, SparkContext

from export_queue.core.errors import SparkJobFailed
from export_queue.core.spark.start import cause_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark import Broadcast
    from pyspark.sql import DataFrame

_LOOK_SECONDS = 0.2
_CANCEL_SECONDS = 0.5
EVERY_SECONDS = 30.0
"""Seconds between two reports of a job's progress."""

Row = TypeVar("Row")

log = logging.getLogger("export_queue.spark")


def collect(
    context: SparkContext, action: Callable[[], list[Row]], *, group: str, title: str, check: Callable[[], None]
) -> list[Row]:
    """Run an action, and cancel its job if this thread is interrupted.

    A signal handler must not talk to Java over the connection that its own thread waits on.

    :param group: the job group, under which Spark knows the action.
    :param title: what the job does, for people.
    :param check: called repeatedly; raises an error to end the job.
    :raises SparkJobFailed: the action failed; the message names the cause.
    """
    rows: list[Row] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            context.setJobGroup(group, title, interruptOnCancel=True)
            rows.extend(action())
        except Exception as error:
            errors.append(error)

    # A daemon, since it hangs where Java does, and the driver must be able to leave.
    thread = InheritableThread(target=run, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            check()
            thread.join(_LOOK_SECONDS)
    except BaseException:
        _cancel(context, group)
        raise
    if errors:
        check()  # a lost lease is the real reason
        raise SparkJobFailed(cause_of(errors[0])) from errors[0]
    return rows


def collect_from_tasks(
    context: SparkContext,
    shares: Sequence[Any],
    setup: Any,
    task: Callable[[Broadcast[Any]], Callable[[Iterable[Any]], Iterator[Row]]],
    *,
    group: str,
    title: str,
    check: Callable[[], None],
) -> list[Row]:
    """Run one job with a task for each share; see :func:`collect`.

    Only shares and results pass through Java, never entries. A plain RDD needs neither Spark's SQL session, which takes
    seconds to start, nor pandas.

    :param setup: what all tasks need; it is sent once.
    :param task: makes the function of the tasks from the setup that was sent.
    """
    sent = context.broadcast(setup)
    try:
        job = context.parallelize(shares, len(shares)).mapPartitions(task(sent))
        return collect(context, job.collect, group=group, title=title, check=check)
    finally:
        with contextlib.suppress(Exception):  # Java may be gone
            sent.destroy()


def collect_outcomes(
    frame: DataFrame, task: Callable[[Iterable[RecordBatch]], Iterator[RecordBatch]], *, group: str, title: str
) -> list[str]:
    """Run a task over the rows of each partition of a frame; see :func:`collect`. Log the progress.

    :returns: the texts in the column ``outcome`` that the tasks yield.
    """
    context = frame.sparkSession.sparkContext
    found = frame.mapInArrow(task, "outcome string")
    progress = JobProgress(context, group, title)
    rows = collect(context, found.collect, group=group, title=title, check=progress.tell)
    return [row[0] for row in rows]


def _cancel(context: SparkContext, group: str) -> None:
    # Tasks continue for a moment after this; their results must not count.
    def cancel() -> None:
        with contextlib.suppress(Exception):
            context.cancelJobGroup(group)

    thread = threading.Thread(target=cancel, daemon=True)
    thread.start()
    thread.join(_CANCEL_SECONDS)


class JobProgress:
    """Logs every 30 seconds how many tasks of a job group have ended.

    :param context: the connection to Spark.
    :param group: the job group.
    :param title: how the lines begin.
    :param clock: returns seconds.
    """

    def __init__(
        self, context: SparkContext, group: str, title: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._context, self._group, self._title, self._clock = context, group, title, clock
        self._next = clock() + EVERY_SECONDS

    def tell(self) -> None:
        """Log a line if 30 seconds have passed since the last one."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + EVERY_SECONDS
        ended, running, failed, tasks = self._count()
        log.info("%s: %d of %d tasks ended, %d running, %d failed", self._title, ended, tasks, running, failed)

    def _count(self) -> tuple[int, int, int, int]:
        tracker = self._context.statusTracker()
        jobs = [job for number in tracker.getJobIdsForGroup(self._group) if (job := tracker.getJobInfo(number))]
        stages = [stage for job in jobs for number in job.stageIds if (stage := tracker.getStageInfo(number))]
        counted = [(s.numCompletedTasks, s.numActiveTasks, s.numFailedTasks, s.numTasks) for s in stages]
        ended, running, failed, tasks = (sum(column) for column in zip(*counted, strict=True)) if counted else (0,) * 4
        return ended, running, failed, tasks
