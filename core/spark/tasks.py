"""The code that runs in Spark's Python workers: each task drains its units with connections of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import orjson

from export_queue.core.drain import (
    DrainRequest,
    Problem,
    RangeReport,
    drain_ranges,
    load_exporter,
    opened_exporter,
)
from export_queue.core.errors import SinkUnavailable
from export_queue.core.locks import Lease, check_leases
from export_queue.core.queue import Queue
from export_queue.core.sinks import SinkSpec, opened_sink
from export_queue.core.spark.carried_secrets import CarriedSecrets
from export_queue.core.store import StoreSpec
from export_queue.core.transactions import Snapshot

_given_up: set[str] = set()
"""Ids of drains that have given the sink up in this process: Spark lends its workers to many tasks."""


@dataclass(frozen=True, slots=True)
class TaskSetup:
    """All that a task needs to drain its units.

    :param store: the store; the task opens it.
    :param sink: the sink; the task opens it.
    :param queue: the queue.
    :param snapshot: decides which entries are read.
    :param request: parameters of the drain.
    :param secrets: secrets that executors of another machine cannot look up.
    """

    store: StoreSpec
    sink: SinkSpec
    queue: Queue
    snapshot: Snapshot
    request: DrainRequest
    secrets: CarriedSecrets = field(default_factory=CarriedSecrets)

    def run(self, leases: Sequence[Lease]) -> list[RangeReport]:
        """Drain some units, one after the other; whatever happens, there is one report for each."""
        self.secrets.unpack()
        reports: list[RangeReport] = []
        request = self.request
        if request.drain_id in _given_up:
            # one call, without waiting: else every task in turn waits as long for a sink that is down
            request = replace(request, retry=replace(request.retry, attempts=1))
        try:
            with (
                contextlib.closing(self.store.open()) as database,
                opened_sink(self.sink) as sink,
                opened_exporter(load_exporter(request.exporter), request.retry) as exporter,
            ):
                # The store is asked before each batch: the driver, which renews the leases, may be gone.
                check = partial(check_leases, database, leases)
                reports += drain_ranges(
                    database, self.queue, leases, self.snapshot, sink, exporter, request, check=check
                )
        except Exception as error:
            trouble = Problem.of(error)  # while opening, or while closing after all was done, which harms nothing
            reports += [RangeReport(range=lease.range, problem=trouble) for lease in leases[len(reports) :]]
        if any(report.problem and report.problem.error_class == SinkUnavailable.__name__ for report in reports):
            _given_up.add(request.drain_id)
        return reports


def drain_task(setup: TaskSetup, parts: Sequence[Sequence[Lease]]) -> Callable[[Iterator[int]], Iterator[str]]:
    """Make the function of the Spark job: each number says which part of the leases to work off.

    :returns: a function that gives one report a unit, as JSON.
    """

    def task(numbers: Iterator[int]) -> Iterator[str]:
        for number in numbers:
            for report in setup.run(parts[number]):
                yield orjson.dumps(report.to_dict()).decode()

    return task
