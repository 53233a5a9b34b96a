"""A follower on Spark: one application, which runs a job whenever there are new entries.

The driver polls the queue, claims units and distributes them over tasks, as a drain does. Few entries become one task.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from pyspark import SparkContext

from export_queue.core.client import Store
from export_queue.core.drain import (
    LEAST_WEIGHT,
    DrainReport,
    DrainRequest,
    EngineOf,
    Follower,
    RangeReport,
    RoundOver,
    by_range,
    share_out,
)
from export_queue.core.errors import ExportQueueError, SparkJobFailed
from export_queue.core.locks import Lease, LeaseKeeper
from export_queue.core.queue import Queue
from export_queue.core.spark.engine import SparkEngine
from export_queue.core.spark.start import cause_of
from export_queue.core.spark.tasks import TaskSetup
from export_queue.core.transactions import Snapshot

ROUND_SECONDS = 5.0
"""Time for which tasks start new chunks. Longer than in one process, because a job costs more than a poll."""
PACE_SECONDS = 0.2
"""Least time between the starts of two jobs, for the same reason."""
LATE_SECONDS = 15.0
"""Time for which a job may outlast its round after the follower is told to stop: it may wait for executors."""


def follow_with(store: Store, engine: SparkEngine, request: DrainRequest, *, stop: Callable[[], bool]) -> DrainReport:
    """Follow a queue by the tasks of a running application.

    :param store: the store, open in the driver.
    :param engine: the application, and what its tasks need.
    :param request: parameters of the follower's drains.
    :param stop: returns whether to end.
    :returns: the sum of all reports.
    :raises SparkJobFailed: Spark has ended the application.
    """
    application = Application(engine.context)
    follower = Follower(store, request, lambda: application.has_gone or stop(), pace=PACE_SECONDS)
    plain: dict[str, Any] = {one.name: getattr(engine, one.name) for one in fields(SparkEngine)}

    @contextlib.contextmanager
    def open_engines() -> Iterator[EngineOf]:
        yield lambda link: FollowEngine(**plain | {"request": link}, application=application, is_over=follower.is_over)

    report = follower.run(open_engines)
    if application.has_gone and not stop():
        raise SparkJobFailed(
            f"Spark has ended the application of the follower: {application.reason}",
            hint="start it again; acknowledged entries stay removed, the others are still queued",
        )
    return report


@dataclass(slots=True)
class Application:
    """The Spark application of a follower. If Spark ends it, this process cannot continue.

    :param context: the connection to Spark.
    """

    context: SparkContext
    has_gone: bool = False
    reason: str = ""

    def look(self, error: SparkJobFailed) -> None:
        """Check, after a failed job, whether Spark has ended the application."""
        try:
            self.has_gone = bool(self.context._jsc.sc().isStopped())
        except Exception:  # Java does not answer
            self.has_gone = True
        self.reason = error.message


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowEngine(SparkEngine):
    """Delivers pending entries by one job, which ends between two chunks when its round is over.

    :param application: the application of the follower.
    :param is_over: returns whether the follower is to end.
    """

    application: Application
    is_over: Callable[[], bool]
    clock: Callable[[], float] = field(default=time.monotonic)

    def work_off(
        self, queue: Queue, leases: Sequence[Lease], snapshot: Snapshot, keeper: LeaseKeeper
    ) -> Iterator[RangeReport]:
        """Run one job, and yield the reports of its tasks: problems first, then units left unfinished."""
        tasks = self.max_parallel or self.context.defaultParallelism
        parts = share_out(self.database, queue, leases, snapshot, tasks=tasks, least=LEAST_WEIGHT)
        setup = TaskSetup(self.store, self.sink, queue, snapshot, self.request, round_seconds=ROUND_SECONDS)
        end = self.clock() + ROUND_SECONDS + LATE_SECONDS

        def check() -> None:
            keeper.check()
            if self.clock() >= end and self.is_over():
                raise RoundOver

        try:
            found = self.run_job(setup, parts, check=check)
        except (ExportQueueError, RoundOver) as error:
            if isinstance(error, SparkJobFailed):
                self.application.look(error)
            raise
        except Exception as error:  # PySpark's, before the job exists
            failed = SparkJobFailed(cause_of(error))
            self.application.look(failed)
            raise failed from error
        # both among the parts of a unit and among units, a problem comes before an unfinished round
        units = by_range(sorted(found, key=_is_left))
        yield from (replace(one, cause=RoundOver()) if _is_left(one) else one for one in sorted(units, key=_is_left))


def _is_left(report: RangeReport) -> bool:
    return report.problem is not None and report.problem.error_class == RoundOver.__name__
