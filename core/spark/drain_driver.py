"""The driver of a drain: it claims units, lets Spark's tasks drain, and stores the report."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from export_queue.core.client import Store
from export_queue.core.drain import Deadline, DrainReport, DrainRequest, filled_in, run_drain
from export_queue.core.errors import SparkJobFailed
from export_queue.core.sinks import SinkSpec
from export_queue.core.spark.connecting import connect, modules_of
from export_queue.core.spark.drain_job import DrainArguments
from export_queue.core.spark.engine import SparkEngine
from export_queue.core.spark.follow import LATE_SECONDS, ROUND_SECONDS, follow_with
from export_queue.core.spark.life import life_shown
from export_queue.core.spark.terminal import shown_bar
from export_queue.core.spark.watchdog import note_stops
from export_queue.core.store import Database

_LAST_SECONDS = 5.0
"""Seconds that a follower has to store its report and release its leases after its last job."""


def run(arguments: DrainArguments) -> list[str]:
    """Drain or follow; see :attr:`JobArguments.driver`."""
    report = follow_on_spark(arguments) if arguments.follow else drain_on_spark(arguments)
    return [report.line()]


def drain_on_spark(arguments: DrainArguments) -> DrainReport:
    """Drain on the Spark that this program was submitted to.

    :param arguments: arguments of the driver; each call is another attempt of the same task.
    :returns: the report. It is stored under the id of the drain, also if the drain fails.
    """
    request = arguments.request.another_attempt()
    deadline = Deadline.after(request.time_limit)
    with (
        contextlib.closing(Store(arguments.store.open())) as store,
        life_shown(store.database, request.owner) if arguments.detached else contextlib.nullcontext(),
    ):
        engine = _spark_engine(store.database, arguments, request, deadline)
        with shown_bar(f"{request.queue_id} → {request.sink_name}") as on_left:
            return run_drain(store, request, engine, deadline=deadline, on_left=on_left)


def follow_on_spark(arguments: DrainArguments) -> DrainReport:
    """Follow on the Spark that this program was submitted to, until SIGTERM comes or the time is over.

    :param arguments: arguments of the driver; each call is another attempt of the same task.
    :returns: the sum of all reports.
    """
    request = arguments.request.another_attempt()
    with (
        contextlib.closing(Store(arguments.store.open())) as store,
        _spark_engine(store.database, arguments, request, Deadline()) as engine,
    ):
        # not earlier: SIGTERM must end a start that waits for executors
        stop = note_stops(late_seconds=ROUND_SECONDS + LATE_SECONDS + _LAST_SECONDS)
        return follow_with(store, engine, engine.request, stop=stop)


@contextlib.contextmanager
def _spark_engine(
    database: Database, arguments: DrainArguments, request: DrainRequest, deadline: Deadline
) -> Iterator[SparkEngine]:
    filled, exporter = filled_in(database, request.queue_id, arguments.sink, request.exporter)
    store, sink, request = arguments.store, cast(SinkSpec, filled), replace(request, exporter=exporter)
    ends_ms = _on_the_clock_of(database, deadline)
    try:
        context, secrets = connect(
            f"export queue: drain {request.queue_id}",
            store=store,
            sink=sink,
            modules=["export_queue.core.spark.tasks", *modules_of(sink, exporter)],
            seconds=min(arguments.start_timeout, deadline.left()),
        )
    except SparkJobFailed:
        deadline.check()
        raise
    yield SparkEngine(context, database, store, sink, request, arguments.max_parallel, secrets, deadline, ends_ms)
    context.stop()  # after an error, the end of the process stops it


def _on_the_clock_of(database: Database, deadline: Deadline) -> int | None:
    """Return when the drain must end, in milliseconds of the store's clock; None for no limit."""
    deadline.check()
    if deadline.time_limit is None:
        return None
    with database.read() as work:
        return work.now() + int(deadline.left() * 1000)
