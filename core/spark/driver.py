"""The driver of a drain job: it claims, has Spark's tasks drain, and stores the report."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence

from pyspark import SparkConf, SparkContext

from export_queue.core.client import Store
from export_queue.core.drain import DrainReport, DrainRequest, Engine, run_drain
from export_queue.core.errors import ExportQueueError
from export_queue.core.retry import is_transient
from export_queue.core.sinks import SinkSpec
from export_queue.core.spark.arguments import DrainArguments
from export_queue.core.spark.carried_secrets import carried_secrets
from export_queue.core.spark.engine import SparkEngine, check_driver, check_executors
from export_queue.core.spark.masters import refuse_remote_sqlite
from export_queue.core.spark.watchdog import STOPPED, DriverStopped, stop_with_parent

FAILED = 1
TRY_AGAIN = 75
"""Exit status where trying again may help; sysexits.h calls it a temporary failure."""

log = logging.getLogger("export_queue.drain")


def main(arguments: Sequence[str]) -> None:
    """Run the job and end the process.

    :param arguments: one text, of :meth:`DrainArguments.to_json`.
    """
    logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format="%(message)s")
    log.setLevel(logging.INFO)
    try:
        stop_with_parent()
        if len(arguments) != 1:
            sys.exit(f"expected one argument, found {len(arguments)}")
        report = drain_on_spark(DrainArguments.from_json(arguments[0]))
    except DriverStopped as stopped:
        log.error("drain stopped: %s", stopped)
        # At once: the ordinary end of Python waits for Java, which may be gone.
        os._exit(STOPPED)
    except ExportQueueError as error:
        log.error("drain failed: %s: %s", type(error).__name__, error)
        for note in getattr(error, "__notes__", ()):
            log.error("%s", note)
        sys.exit(TRY_AGAIN if is_transient(error) else FAILED)
    log.info("%s", report.line())


def drain_on_spark(arguments: DrainArguments) -> DrainReport:
    """Drain on the Spark that this program was submitted to.

    :param arguments: arguments of the driver; each call is another attempt of the same task.
    :returns: the report; it is stored under the id of the drain, also when the drain fails.
    """
    request = arguments.request.another_attempt()
    with contextlib.closing(Store(arguments.store.open())) as store:
        return run_drain(store, request, _spark_engine(arguments, request))


@contextlib.contextmanager
def _spark_engine(arguments: DrainArguments, request: DrainRequest) -> Iterator[Engine]:
    store, sink, modules = arguments.store, arguments.sink, _modules(arguments)
    check_driver(modules)
    context = SparkContext.getOrCreate(SparkConf().setAppName(f"export queue: drain {request.queue_id}"))
    refuse_remote_sqlite(context.master, store, sink)
    check_executors(context, modules)
    secrets = carried_secrets(context.master, store, sink)
    yield SparkEngine(context, store, sink, request, arguments.max_parallel, secrets)
    context.stop()  # after an error the end of the process does it


def _modules(arguments: DrainArguments) -> list[str]:
    """Name what tasks import: this library, drivers of store and sink, and the exporter."""
    modules = ["export_queue.core.spark.tasks"]
    if not arguments.store.is_sqlite:
        modules.append("psycopg")
    modules += _sink_modules(arguments.sink)
    if isinstance(arguments.request.exporter, str):
        modules.append(arguments.request.exporter.partition(":")[0])
    return modules


def _sink_modules(sink: SinkSpec) -> list[str]:
    if sink.leaves() != (sink,):
        return [module for part in sink.leaves() for module in _sink_modules(part)]
    if ":" in sink.kind:
        return [sink.kind.partition(":")[0]]
    if sink.kind == "sql" and str(sink.options.get("url", "")).startswith("postgresql"):
        return ["psycopg"]
    return [sink.kind] if sink.kind in ("elasticsearch", "redis") else []
