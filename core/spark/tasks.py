"""What runs in Spark's Python workers: each task drains its units with connections of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import orjson

from export_queue.core.drain import (
    Problem,
    RangeReport,
    Rules,
    drain_ranges,
    load_exporter,
    opened_exporter,
)
from export_queue.core.errors import LeaseLost, SinkUnavailable
from export_queue.core.locks import Lease, holders
from export_queue.core.queue import Queue
from export_queue.core.sinks import ResolvedSink
from export_queue.core.store import Database
from export_queue.core.transactions import Snapshot

_given_up: set[str] = set()
"""Ids of drains that have given the sink up in this process: Spark lends its workers to many tasks."""


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """How a process reaches the store; it travels inside the closure of the tasks and is never shown."""

    url: str
    schema: str
    password: str | None = field(repr=False)

    def open(self) -> Database:
        """Prepare connections."""
        return Database.open(self.url, password=self.password, schema=self.schema)


@dataclass(frozen=True, slots=True)
class TaskSetup:
    """All that a task needs to drain its units."""

    store: StoreAccess
    queue: Queue
    snapshot: Snapshot
    sink: ResolvedSink
    exporter: str | None
    rules: Rules

    def run(self, leases: Sequence[Lease]) -> list[RangeReport]:
        """Drain some units, one after the other; whatever happens, there is one report for each."""
        reports: list[RangeReport] = []
        rules = self.rules
        if rules.drain in _given_up:
            # one call, without waiting: else every task in turn waits as long for a sink that is down
            rules = replace(rules, retry=replace(rules.retry, attempts=1))
        try:
            with (
                contextlib.closing(self.store.open()) as database,
                contextlib.closing(self.sink.open()) as sink,
                opened_exporter(load_exporter(self.exporter), rules.retry) as exporter,
            ):
                check = _lease_check(database, self.queue, leases)
                reports += drain_ranges(database, self.queue, leases, self.snapshot, sink, exporter, rules, check=check)
        except Exception as error:
            trouble = Problem.of(error)  # while opening, or while closing after all was done, which harms nothing
            reports += [RangeReport(range=lease.range, problem=trouble) for lease in leases[len(reports) :]]
        if any(report.problem and report.problem.error_class == SinkUnavailable.__name__ for report in reports):
            _given_up.add(rules.drain)
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


def _lease_check(database: Database, queue: Queue, leases: Sequence[Lease]) -> Callable[[], None]:
    """Ask the store before each batch: the driver, who renews, may be gone."""
    ranges = [lease.range for lease in leases]

    def check() -> None:
        with database.read() as work:
            held = {holder.fence for holder in holders(work, queue, ranges)}
        for lease in leases:
            if lease.fence not in held:
                raise LeaseLost(f"the lock on {lease.range} (fence {lease.fence}) has expired or was taken over")

    return check
