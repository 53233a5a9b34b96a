"""The engine of a drain on Spark: one job, whose tasks get about equal amounts of work."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import orjson
from pyspark import SparkContext, TaskContext

from export_queue.core.drain import (
    COPY,
    Binding,
    Deadline,
    DrainRequest,
    Part,
    RangeReport,
    ask_sink,
    binding_with,
    by_range,
    claim_units,
    share_out,
)
from export_queue.core.errors import ConfigurationError, SparkJobFailed
from export_queue.core.locks import Lease, LeaseKeeper
from export_queue.core.queue import Queue
from export_queue.core.sinks import SinkSpec, opened_sink
from export_queue.core.spark.action import collect, collect_from_tasks
from export_queue.core.spark.carried_secrets import CarriedSecrets
from export_queue.core.spark.masters import shares_process
from export_queue.core.spark.tasks import TaskSetup, drain_task
from export_queue.core.store import Database, StoreSpec
from export_queue.core.transactions import Snapshot

JOB_GROUP = "export-queue-drain"
_PROBES = 16
_TASKS_PER_CORE = 3
"""More than one, so that cores with light tasks take work from those with heavy ones."""
STOP_SECONDS = 10.0
"""How long tasks may take to end once the drain's time is over; then their job is cancelled."""

log = logging.getLogger("export_queue.drain")


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """Drains units by the tasks of one Spark job.

    :param context: the connection to Spark.
    :param database: the store, open in the driver.
    :param store: the store, which each task opens.
    :param sink: the sink, which each task opens.
    :param request: parameters of the drain; its exporter is an import path.
    :param max_parallel: the most tasks that drain at once.
    :param secrets: secrets that executors on other machines cannot look up.
    :param deadline: when the drain must end.
    :param ends_ms: the same by the store's clock, for tasks; None for no limit.
    """

    context: SparkContext
    database: Database
    store: StoreSpec
    sink: SinkSpec
    request: DrainRequest
    max_parallel: int | None
    secrets: CarriedSecrets
    deadline: Deadline = field(default_factory=Deadline)
    ends_ms: int | None = None

    @property
    def is_fenced(self) -> bool:
        """Ask the sink, without connecting."""
        with opened_sink(self.sink) as sink:
            return sink.capabilities.fenced

    def binding(self) -> Binding:
        with opened_sink(self.sink) as sink:
            return binding_with(sink, str(self.request.exporter or COPY))

    @property
    def has_sent(self) -> bool:
        """Assumed: executors do not report it."""
        return True

    @property
    def is_tallied(self) -> bool:
        """True: reports are lost with executors and with failed jobs."""
        return True

    @property
    def _bounded(self) -> DrainRequest:
        """The request for this process. The tasks' request is sent to them, without a clock."""
        return replace(self.request, retry=self.deadline.bounded(self.request.retry))

    def claim(self, queue: Queue, leases: Sequence[Lease]) -> None:
        """Claim the units at the sink, from the driver: the leases that tasks receive are their claims."""
        with opened_sink(self.sink) as sink:
            claim_units(sink, queue, leases, self._bounded.retry)

    def admit(self, *, queue_id: str, store_id: str, fence: int, shown: int = 0) -> None:
        """Ask the sink, from the driver."""
        with opened_sink(self.sink) as sink:
            ask_sink(sink, self._bounded, queue_id=queue_id, store_id=store_id, fence=fence, shown=shown)

    def work_off(
        self, queue: Queue, leases: Sequence[Lease], snapshot: Snapshot, keeper: LeaseKeeper
    ) -> Iterator[RangeReport]:
        """Run one job, and yield the reports of its tasks."""
        tasks = self.max_parallel or self.context.defaultParallelism * _TASKS_PER_CORE
        parts = share_out(self.database, queue, leases, snapshot, tasks=tasks)
        setup = TaskSetup(self.store, self.sink, queue, snapshot, self.request, ends_ms=self.ends_ms)
        is_told = False

        def check() -> None:
            nonlocal is_told
            keeper.check()
            if self.deadline.left():
                return
            if not is_told:
                is_told = True
                log.info("%s: the time is over; each task ends after its current batch", queue.id)
            # A task that waits for an executor or a sink cannot end.
            if self.deadline.clock() >= self.deadline.until + STOP_SECONDS:
                self.deadline.check()

        yield from by_range(self.run_job(setup, parts, check=check))

    def run_job(
        self, setup: TaskSetup, parts: Sequence[Sequence[Part]], *, check: Callable[[], None]
    ) -> list[RangeReport]:
        """Run one job.

        :param setup: what all tasks need.
        :param parts: the parts of each task.
        :param check: called repeatedly; raises an error to end the job.
        :returns: the report of each part.
        :raises SparkJobFailed: the job failed.
        """
        found = collect_from_tasks(
            self.context,
            parts,
            setup,
            lambda sent: drain_task(sent, self.secrets, _number_of_attempt),
            group=JOB_GROUP,
            title="drain",
            check=check,
        )
        return [RangeReport.from_dict(orjson.loads(text)) for text in found]


def _number_of_attempt() -> int:
    """Return the number of the task attempt in this worker, unique within the application."""
    context = TaskContext.get()
    assert context is not None
    return int(context.taskAttemptId())


def check_driver(modules: Sequence[str]) -> None:
    """Make sure that this process can import some modules.

    :param modules: names of modules.
    :raises ConfigurationError: a module cannot be imported; the error names module and cause.
    """
    for python, absent, _ in _probe(modules, [])(iter(())):
        _refuse_absent(f"the Spark driver's Python, {python}", absent)


def ask_executors(context: SparkContext, modules: Sequence[str], references: Sequence[str]) -> list[str]:
    """Make sure that executors can import some modules, and find out which secrets they cannot look up.

    :param modules: names of modules.
    :param references: references to secrets.
    :returns: references that an executor cannot follow.
    :raises ConfigurationError: their Python or a module is missing, or has the wrong version.
    :raises SparkJobFailed: executors do not answer.
    """
    if shares_process(context.master):
        return []

    count = min(_PROBES, max(1, context.defaultParallelism))
    probes = context.parallelize(range(count), count).mapPartitions(_probe(modules, references))
    try:
        answers = collect(context, probes.collect, group=JOB_GROUP, title="drain", check=lambda: None)
    except SparkJobFailed as error:
        _explain_python(error, context.pythonExec)
        raise SparkJobFailed(f"the check of the executors failed: {error.message}") from error.__cause__
    for python, absent, _ in answers:
        _refuse_absent(f"the executors' Python, {python}", absent)
    return sorted({reference for _, _, lacking in answers for reference in lacking})


Answer = tuple[str, list[tuple[str, str]], list[str]]
"""A process's Python, the modules that it cannot import with the reasons, and the references that it cannot follow."""


def _probe(modules: Sequence[str], references: Sequence[str]) -> Callable[[Iterator[int]], Iterator[Answer]]:
    # Sent by value, without a name of this library: executors may lack the library.
    def probe(numbers: Iterator[int]) -> Iterator[Answer]:
        import importlib
        import sys

        absent, lacking = [], []
        for name in modules:
            try:
                importlib.import_module(name)
            except Exception as error:
                absent.append((name, f"{type(error).__name__}: {error}"))
        if not absent:
            resolve = importlib.import_module("export_queue.core.references").resolve_secret
            for reference in references:
                try:
                    resolve(reference)
                except Exception:
                    lacking.append(reference)
        yield f"{sys.executable} ({sys.version.split()[0]})", absent, lacking

    return probe


_OTHER_VERSION = re.compile(r"\[PYTHON_VERSION_MISMATCH\].*?version: (\S+) than that in driver: (\S+?),?\s")
_NO_PROGRAM = re.compile(r"Cannot run program \"([^\"]*)\"")


def _explain_python(error: SparkJobFailed, program: str) -> None:
    """Explain a failure that comes from the executors' Python.

    :param program: their Python, as the driver names it.
    :raises ConfigurationError: their Python is missing, or of another version.
    """
    text = f"{error.__cause__} "
    hint = "name a Python of the driver's version that exists on every executor: spark_python=, or PYSPARK_PYTHON"
    if found := _OTHER_VERSION.search(text):
        theirs, ours = found.groups()
        raise ConfigurationError(
            f"the executors' Python, {program}, has version {theirs}, expected the driver's, {ours}", hint=hint
        ) from None
    if found := _NO_PROGRAM.search(text):
        raise ConfigurationError(f"executors have no program {found.group(1)}, their Python", hint=hint) from None


def _refuse_absent(python: str, absent: Sequence[tuple[str, str]]) -> None:
    if not absent:
        return
    lacks_library = any("named 'export_queue" in reason for _, reason in absent)
    raise ConfigurationError(
        f"{python}, cannot import {', '.join(f'{name} ({reason})' for name, reason in absent)}",
        hint="submit the job with py_files=job.py_files"
        if lacks_library
        else "install what is missing for this Python, or ship it with --py-files",
    )
