"""The engine of a drain on Spark: one job, whose tasks are the claimed units."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import orjson
from pyspark import InheritableThread, SparkContext

from export_queue.core.drain import DrainRequest, LeaseKeeper, RangeReport, ask_sink, claim_units
from export_queue.core.errors import ConfigurationError, SparkJobFailed
from export_queue.core.locks import Lease
from export_queue.core.queue import Queue
from export_queue.core.sinks import SinkSpec, opened_sink
from export_queue.core.spark.carried_secrets import CarriedSecrets
from export_queue.core.spark.masters import shares_environment
from export_queue.core.spark.tasks import TaskSetup, drain_task
from export_queue.core.store import StoreSpec
from export_queue.core.transactions import Snapshot

JOB_GROUP = "export-queue-drain"
_PROBES = 16
_LOOK_SECONDS = 0.2
_CANCEL_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """Drains units as tasks of one Spark job.

    :param context: the connection to Spark.
    :param store: the store, which each task opens.
    :param sink: the sink, which each task opens.
    :param request: parameters of the drain; its exporter is an import path.
    :param max_parallel: the most units that are drained at once.
    :param secrets: secrets that executors of another machine cannot look up.
    """

    context: SparkContext
    store: StoreSpec
    sink: SinkSpec
    request: DrainRequest
    max_parallel: int | None
    secrets: CarriedSecrets

    @property
    def is_fenced(self) -> bool:
        """Ask the sink; nothing is connected for that."""
        with opened_sink(self.sink) as sink:
            return sink.capabilities.fenced

    def claim(self, queue: Queue, leases: Sequence[Lease]) -> None:
        """Ask the sink, from the driver: the leases that go to the tasks are their claims."""
        with opened_sink(self.sink) as sink:
            claim_units(sink, queue, leases, self.request.retry)

    def admit(self, *, queue_id: str, store_id: str, fence: int, shown: int = 0) -> None:
        """Ask the sink, from the driver."""
        with opened_sink(self.sink) as sink:
            ask_sink(sink, self.request, queue_id=queue_id, store_id=store_id, fence=fence, shown=shown)

    def work_off(
        self, queue: Queue, leases: Sequence[Lease], snapshot: Snapshot, keeper: LeaseKeeper
    ) -> Iterator[RangeReport]:
        """Run one job and hand on what its tasks reported."""
        count = min(len(leases), self.max_parallel or len(leases))
        parts = [leases[i::count] for i in range(count)]
        setup = TaskSetup(self.store, self.sink, queue, snapshot, self.request, self.secrets)
        # Numbers go in, reports come out; entries never pass through Java. A plain RDD suffices, and needs neither
        # Spark's SQL session, which takes seconds to start, nor pandas.
        job = self.context.parallelize(range(count), count).mapPartitions(drain_task(setup, parts))
        for text in _collect(self.context, job.collect, keeper.check):
            yield RangeReport.from_dict(orjson.loads(text))


def _collect(context: SparkContext, action: Callable[[], list[str]], check: Callable[[], None]) -> list[str]:
    """Run an action in a thread of its own, so that this one stays free to stop it.

    A signal handler must not talk to Java over the connection that its own thread waits on.
    """
    rows: list[str] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            context.setJobGroup(JOB_GROUP, "drain", interruptOnCancel=True)
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
        _cancel(context)
        raise
    if errors:
        check()  # a lost lease is the reason, if there is one
        raise SparkJobFailed(_first_lines(errors[0])) from errors[0]
    return rows


def _cancel(context: SparkContext) -> None:
    # Tasks work on for a moment after this; the lost lease keeps them from removing anything.
    def cancel() -> None:
        with contextlib.suppress(Exception):
            context.cancelJobGroup(JOB_GROUP)

    thread = threading.Thread(target=cancel, daemon=True)
    thread.start()
    thread.join(_CANCEL_SECONDS)


def _first_lines(error: Exception, count: int = 8) -> str:
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\tat ")]
    return "\n".join(lines[:count]) or repr(error)


def check_driver(modules: Sequence[str]) -> None:
    """Make sure that this process can import what a drain needs.

    :param modules: names of modules.
    :raises ConfigurationError: a module is missing; the error names it.
    """
    missing = _missing(modules)
    if missing:
        raise ConfigurationError(f"the Spark driver cannot import {', '.join(missing)}", hint=_hint(missing))


def check_executors(context: SparkContext, modules: Sequence[str]) -> None:
    """Make sure that executors can import what a drain needs.

    :param modules: names of modules.
    :raises ConfigurationError: a module is missing; the error names it.
    """
    if shares_environment(context.master):
        return

    # Shipped by value, without a name of this library in it: executors may lack the library itself.
    def probe(numbers: Iterator[int]) -> Iterator[list[str]]:
        import importlib

        absent = []
        for name in modules:
            try:
                importlib.import_module(name)
            except ImportError as error:
                absent.append(f"{name} ({error})")
        yield absent

    count = min(_PROBES, max(1, context.defaultParallelism))
    try:
        answers = context.parallelize(range(count), count).mapPartitions(probe).collect()
    except Exception as error:
        raise SparkJobFailed(f"executors could not be asked what they have: {_first_lines(error)}") from error
    absent = sorted({name for answer in answers for name in answer})
    if absent:
        raise ConfigurationError(f"Spark's executors cannot import {', '.join(absent)}", hint=_hint(absent))


def _missing(modules: Sequence[str]) -> list[str]:
    missing = []
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            missing.append(f"{name} ({error})")
    return missing


def _hint(missing: Sequence[str]) -> str:
    if any(name.startswith("export_queue") for name in missing):
        return "submit the job with py_files=job.py_files"
    return "install them where Spark's Python lives, or ship them with --py-files"
