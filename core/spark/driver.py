"""The driver of a drain job: it claims, has Spark's tasks drain, and stores the report."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence

from export_queue.core.client import Store
from export_queue.core.drain import DrainReport, DrainRequest, Engine, run_drain
from export_queue.core.errors import ExportQueueError
from export_queue.core.retry import is_transient
from export_queue.core.sinks import SinkSpec
from export_queue.core.spark.arguments import DrainArguments
from export_queue.core.spark.carried_secrets import CarriedSecrets, carried_secrets, references
from export_queue.core.spark.engine import SparkEngine, ask_executors, check_driver
from export_queue.core.spark.masters import is_local, refuse_remote_sqlite
from export_queue.core.spark.start import start_deadline, start_spark
from export_queue.core.spark.watchdog import STOPPED, DriverStopped, stop_when_orphaned
from export_queue.core.store import Database

FAILED = 1
TRY_AGAIN = 75
"""Exit status where trying again may help; sysexits.h calls it a temporary failure."""

_FORKABLE = {"psycopg", "redis"}

log = logging.getLogger("export_queue.drain")


def main(arguments: Sequence[str]) -> None:
    """Run the job and end the process.

    :param arguments: one text, of :meth:`DrainArguments.to_json`.
    """
    logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format="%(message)s")
    log.setLevel(logging.INFO)
    try:
        if len(arguments) != 1:
            sys.exit(f"expected one argument, found {len(arguments)}")
        parsed = DrainArguments.from_json(arguments[0])
        stop_when_orphaned(parsed.submitter)
        report = drain_on_spark(parsed)
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
        return run_drain(store, request, _spark_engine(store.database, arguments, request))


@contextlib.contextmanager
def _spark_engine(database: Database, arguments: DrainArguments, request: DrainRequest) -> Iterator[Engine]:
    store, sink, modules = arguments.store, arguments.sink, _modules(arguments)
    check_driver(modules)
    wanted = references(store, sink)
    with start_deadline(arguments.start_timeout):
        context = start_spark(f"export queue: drain {request.queue_id}", preloaded=_preloaded(modules))
        refuse_remote_sqlite(context.master, store, sink)
        lacking = ask_executors(context, modules, wanted)
    if is_local(context.master):
        secrets = CarriedSecrets()  # executors have the driver's environment
    else:
        secrets = carried_secrets(dict(context.getConf().getAll()), wanted, lacking)
    yield SparkEngine(context, database, store, sink, request, arguments.max_parallel, secrets)
    context.stop()  # after an error the end of the process does it


def _preloaded(modules: Sequence[str]) -> list[str]:
    """Choose what workers may have from the process that they are forked from: users' modules may start threads."""
    return ["pyspark.worker", *(name for name in modules if name.startswith("export_queue.") or name in _FORKABLE)]


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
