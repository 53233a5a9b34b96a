"""The code that runs in Spark's Python workers. Each worker opens store and sink once for all tasks of a drain."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import orjson

from export_queue.core.drain import (
    Counts,
    Deadline,
    DrainRequest,
    Part,
    Problem,
    RangeReport,
    RoundOver,
    Tally,
    drain_ranges,
    load_exporter,
    opened_exporter,
)
from export_queue.core.errors import SinkUnavailable
from export_queue.core.locks import Lease, check_leases
from export_queue.core.queue import Queue
from export_queue.core.sinks import ContinuingSink, FencedSink, Sink, SinkSpec, call_sink
from export_queue.core.spark.carried_secrets import CarriedSecrets
from export_queue.core.store import Database, StoreSpec
from export_queue.core.transactions import Snapshot

if TYPE_CHECKING:
    from pyspark import Broadcast

_given_up: set[str] = set()
"""Ids of drains that found the sink unavailable in this process; a worker runs many tasks."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """The store and the sink of one drain, open in this process."""

    of: tuple[str, StoreSpec, SinkSpec]
    database: Database
    sink: Sink | FencedSink

    def close(self) -> None:
        for part in (self.sink, self.database):
            with contextlib.suppress(Exception):  # the work is done, or has failed for a better reason
                part.close()


_kept: list[_Opened] = []
"""At most one, closed at the end of the process. Connecting for each small unit would cost more than draining it."""


@dataclass(frozen=True, slots=True)
class TaskSetup:
    """What a task needs to drain its units. It holds no secrets, because Spark may write it to files.

    :param store: the store; the worker opens it.
    :param sink: the sink; the worker opens it.
    :param queue: the queue.
    :param snapshot: decides which entries are read.
    :param request: parameters of the drain.
    :param ends_ms: time of the store's clock at which the drain must end; None for no limit.
    :param round_seconds: time after which a follower's task ends between two chunks, so that others may claim the
        rest; None if it drains everything.
    """

    store: StoreSpec
    sink: SinkSpec
    queue: Queue
    snapshot: Snapshot
    request: DrainRequest
    ends_ms: int | None = None
    round_seconds: float | None = None

    def run(self, parts: Sequence[Part], *, attempt: int) -> list[RangeReport]:
        """Drain parts of units, one after the other, and return one report for each, whatever happens.

        :param attempt: the number of this attempt of the task, unique within the drain.
        """
        reports: list[RangeReport] = []
        request = self.request
        if request.drain_id in _given_up:
            # one call without waiting: otherwise every task in turn waits for the same sink
            request = replace(request, retry=replace(request.retry, attempts=1))
        try:
            opened = self._open()
            leases = list({part.lease: None for part in parts})
            deadline = Deadline() if self.ends_ms is None else self._look(opened.database, leases)

            def check() -> None:
                # before each batch: the driver, which renews the leases, may be gone
                self._look(opened.database, leases)

            request = replace(request, retry=deadline.bounded(request.retry))
            with opened_exporter(load_exporter(request.exporter), request.retry) as exporter:
                reports += drain_ranges(
                    opened.database,
                    self.queue,
                    parts,
                    self.snapshot,
                    opened.sink,
                    exporter,
                    request,
                    check=check,
                    on_chunk=self._on_chunk(),
                    tally=Tally(request, attempt),
                )
        except Exception as error:
            trouble = Problem.of(error)  # while opening, or while closing after all parts were drained
            reports += [RangeReport(range=part.lease.range, problem=trouble) for part in parts[len(reports) :]]
        if any(report.problem and report.problem.error_class != RoundOver.__name__ for report in reports):
            _close_kept()  # the next task begins with new connections
        if any(report.problem and report.problem.error_class == SinkUnavailable.__name__ for report in reports):
            _given_up.add(request.drain_id)
        return reports

    def _look(self, database: Database, leases: Sequence[Lease]) -> Deadline:
        """Check by the store's clock that the leases are held and that the drain may continue.

        :returns: the deadline, on the clock of this process.
        """
        now_ms = check_leases(database, leases)
        if self.ends_ms is None:
            return Deadline()
        deadline = Deadline(self.request.time_limit, time.monotonic() + (self.ends_ms - now_ms) / 1000)
        deadline.check()
        return deadline

    def _on_chunk(self) -> Callable[[Counts], None] | None:
        if self.round_seconds is None:
            return None
        end = time.monotonic() + self.round_seconds

        def end_round(counts: Counts) -> None:
            if time.monotonic() >= end:
                raise RoundOver

        return end_round

    def _open(self) -> _Opened:
        of = (self.request.drain_id, self.store, self.sink)
        if _kept and _kept[0].of == of:
            return _kept[0]
        _close_kept()
        database = self.store.open()
        try:
            sink = self.sink.open()
            if isinstance(sink, ContinuingSink):
                call_sink(sink, "continue_drain", self.queue.id)
            _kept.append(_Opened(of, database, sink))
        except BaseException:
            database.close()
            raise
        return _kept[0]


def _close_kept() -> None:
    while _kept:
        _kept.pop().close()


def drain_task(
    setup: Broadcast[TaskSetup], secrets: CarriedSecrets, number_of_attempt: Callable[[], int]
) -> Callable[[Iterable[Sequence[Part]]], Iterator[str]]:
    """Return the function of the Spark job, which drains the parts that it receives.

    Setup and parts hold no secrets: if they are large, Spark writes them to files.

    :param secrets: secrets that executors of another machine cannot look up.
    :param number_of_attempt: called in the worker; returns a number that is unique to the attempt of the task.
    :returns: a function that yields one report per part, as JSON.
    """

    def task(tasks: Iterable[Sequence[Part]]) -> Iterator[str]:
        secrets.unpack()
        for parts in tasks:
            for report in setup.value.run(parts, attempt=number_of_attempt()):
                yield orjson.dumps(report.to_dict()).decode()

    return task
