"""Verify as its callers ask for it: a comparison, and if wanted a repair and another comparison."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Unpack

from export_queue.core.callables import checked
from export_queue.core.drain import (
    DRAIN_RETRY,
    Exporter,
    StoreHandle,
    binding_with,
    check_binding,
    filled_in,
    load_exporter,
    opened_exporter,
)
from export_queue.core.errors import SinkBindingError, SinkConfigurationError
from export_queue.core.queue import Queue, find_queue, find_reader
from export_queue.core.sinks import FencedSink, ScannableSink, Sink, SinkSpec, opened_sink
from export_queue.core.verify.finished import keep
from export_queue.core.verify.repair import check_repairable, repair
from export_queue.core.verify.report import VerifyReport
from export_queue.core.verify.request import VerifyOptions, VerifyRequest
from export_queue.core.verify.verification import Compare, Comparison, OnProgress


def verify(
    store: StoreHandle,
    queue_id: str,
    sink: SinkSpec | Sink | FencedSink,
    *,
    sink_name: str | None = None,
    on_progress: OnProgress | None = None,
    **options: Unpack[VerifyOptions],
) -> VerifyReport:
    """Compare the records of a sink with the content of a queue. Producers and drains may continue.

    No record is written, unless ``repair`` says so. A difference that has a reason is not counted as one: an entry that
    is pending, a dead letter, an entry that is younger than the cut of the comparison. The store keeps the report.

    :param store: an open store.
    :param queue_id: the queue, or the subscription that drains into the sink.
    :param sink: a description of the sink, or an open one, which stays open.
    :param sink_name: name of the sink that the queue is bound to; by default the name in the description, or the
        class of an open sink.
    :param on_progress: called after each page.
    :param options: ``source``, ``exporter``, ``collections``, ``rounds``; ``repair``, with ``max_deletes``,
        ``lock_timeout`` and ``lease_seconds``; see :class:`VerifyRequest`.
    :returns: the report.
    :raises ConfigurationError: an unknown queue or option, another sink or exporter, a sink that cannot be read back.
    :raises SinkError: the sink cannot be used.
    :raises ExporterError: the exporter cannot be used.
    """
    name = sink_name or (sink.name if isinstance(sink, SinkSpec) else type(sink).__name__)
    return verify_as_requested(store, sink, VerifyRequest.of(queue_id, name, options), on_progress=on_progress)


def verify_as_requested(
    store: StoreHandle,
    sink: SinkSpec | Sink | FencedSink,
    request: VerifyRequest,
    *,
    on_progress: OnProgress | None = None,
    compare: Compare = Comparison.read_sides,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> VerifyReport:
    """Compare as a request says; see :func:`verify`.

    :param compare: reads both sides; by default this process reads them.
    """
    report = _compared(store, sink, request, on_progress, compare, sleep, clock)
    keep(store.database, report)
    return report


def _compared(
    store: StoreHandle,
    sink: SinkSpec | Sink | FencedSink,
    request: VerifyRequest,
    on_progress: OnProgress | None,
    compare: Compare,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
) -> VerifyReport:
    if on_progress is not None:
        on_progress = checked(on_progress, "on_progress")
    started_at = clock()
    database = store.database
    with database.read() as work:
        reader = find_reader(work, request.queue_id)
        queue = find_queue(work, reader.source)
    bound_sink, bound_exporter = filled_in(database, request.queue_id, sink, request.exporter)
    exporter = load_exporter(bound_exporter)
    with (
        opened_sink(bound_sink) as opened,
        opened_exporter(exporter, DRAIN_RETRY) as found,
    ):
        _check(reader, opened, found, request)

        def compared() -> Comparison:
            return Comparison(database, reader, queue, opened, found, request, on_progress, sleep)

        with contextlib.closing(compared()) as comparison:
            report = comparison.run(compare, lambda: clock() - started_at)
            if not request.repair or not comparison.spool.repairable():
                return report
            done = repair(comparison, store.id, clock=clock)
        with contextlib.closing(compared()) as comparison:
            report = comparison.run(compare, lambda: clock() - started_at)
        return replace(report, repaired=done.records, undeleted=done.undeleted)


def _check(reader: Queue, sink: Sink | FencedSink, exporter: Exporter, request: VerifyRequest) -> None:
    """Refuse a sink or an exporter that the drains of a reader do not use, or a sink that cannot be read back."""
    check_bound(reader, request.sink_name)
    check_binding(reader, binding_with(sink, exporter.identity))
    if not isinstance(sink, ScannableSink):
        raise SinkConfigurationError(
            f"sink {request.sink_name!r}, a {type(sink).__name__}, cannot be compared: it has no method scan",
            hint="add the methods of export_queue.ScannableSink to it; docs/sinks/your-own.md describes them",
        )
    if request.repair:
        check_repairable(sink, request.sink_name)


def check_bound(reader: Queue, sink_name: str) -> None:
    """Check that a reader drains into a sink of this name, if it drains already.

    :raises SinkBindingError: it drains into another one.
    """
    if reader.sink is not None and reader.sink != sink_name:
        raise SinkBindingError(
            f"queue {reader.id!r} drains into sink {reader.sink!r}, found a comparison with {sink_name!r}",
            hint="name the queue or subscription that drains into this sink, or give the sink's name (sink_name=)",
        )
