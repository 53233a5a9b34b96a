"""The driver of a drain job: it claims, has Spark's tasks drain, and stores the report."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

from export_queue.core.client import Store
from export_queue.core.drain import Deadline, DrainReport, DrainRequest, filled_in, run_drain
from export_queue.core.errors import SparkJobFailed
from export_queue.core.sinks import SinkSpec
from export_queue.core.spark.arguments import DrainArguments
from export_queue.core.spark.connecting import connect
from export_queue.core.spark.engine import SparkEngine, check_driver
from export_queue.core.spark.follow import LATE_SECONDS, ROUND_SECONDS, follow_with
from export_queue.core.spark.program import run_program
from export_queue.core.spark.terminal import shown_bar
from export_queue.core.spark.watchdog import note_stops, stop_when_orphaned
from export_queue.core.store import Database, StoreSpec

_LAST_SECONDS = 5.0
"""For the reports and leases of a follower whose jobs have ended."""

log = logging.getLogger("export_queue.drain")


def main(arguments: Sequence[str]) -> None:
    """Run the job and end the process.

    :param arguments: one text, of :meth:`DrainArguments.to_json`.
    """
    run_program("drain", arguments, _run, log=log)


def _run(text: str) -> None:
    parsed = DrainArguments.from_json(text)
    stop_when_orphaned(parsed.submitter)
    report = follow_on_spark(parsed) if parsed.follow else drain_on_spark(parsed)
    log.info("%s", report.line())


def drain_on_spark(arguments: DrainArguments) -> DrainReport:
    """Drain on the Spark that this program was submitted to.

    :param arguments: arguments of the driver; each call is another attempt of the same task.
    :returns: the report; it is stored under the id of the drain, also when the drain fails.
    """
    request = arguments.request.another_attempt()
    deadline = Deadline.after(request.time_limit)
    with contextlib.closing(Store(arguments.store.open())) as store:
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
        # not before: a start that waits for executors is ended at once
        stop = note_stops(late_seconds=ROUND_SECONDS + LATE_SECONDS + _LAST_SECONDS)
        return follow_with(store, engine, engine.request, stop=stop)


@contextlib.contextmanager
def _spark_engine(
    database: Database, arguments: DrainArguments, request: DrainRequest, deadline: Deadline
) -> Iterator[SparkEngine]:
    filled, exporter = filled_in(database, request.queue_id, arguments.sink, request.exporter)
    store, sink, request = arguments.store, cast(SinkSpec, filled), replace(request, exporter=exporter)
    modules = _modules(store, sink, exporter)
    check_driver(modules)
    ends_ms = _on_the_clock_of(database, deadline)
    try:
        context, secrets = connect(
            f"export queue: drain {request.queue_id}",
            store=store,
            sink=sink,
            modules=modules,
            seconds=min(arguments.start_timeout, deadline.left()),
        )
    except SparkJobFailed:
        deadline.check()
        raise
    yield SparkEngine(context, database, store, sink, request, arguments.max_parallel, secrets, deadline, ends_ms)
    context.stop()  # after an error the end of the process does it


def _on_the_clock_of(database: Database, deadline: Deadline) -> int | None:
    """Tell at which moment of the store's clock, in milliseconds, the time of a drain is over; None for none."""
    deadline.check()
    if deadline.time_limit is None:
        return None
    with database.read() as work:
        return work.now() + int(deadline.left() * 1000)


def _modules(store: StoreSpec, sink: SinkSpec, exporter: object | None) -> list[str]:
    """Name what tasks import: this library, drivers of store and sink, and the exporter."""
    modules = ["export_queue.core.spark.tasks"]
    if not store.is_sqlite:
        modules.append("psycopg")
    modules += _sink_modules(sink)
    if isinstance(exporter, str):
        modules.append(exporter.partition(":")[0])
    return modules


def _sink_modules(sink: SinkSpec) -> list[str]:
    if sink.leaves() != (sink,):
        return [module for part in sink.leaves() for module in _sink_modules(part)]
    if ":" in sink.kind:
        return [sink.kind.partition(":")[0]]
    if sink.kind == "sql" and str(sink.options.get("url", "")).startswith("postgresql"):
        return ["psycopg"]
    return [sink.kind] if sink.kind in ("elasticsearch", "redis") else []
