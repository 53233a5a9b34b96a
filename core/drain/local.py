"""A drain in this process."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Protocol

from export_queue.core.drain.chunk import OnError, Rules
from export_queue.core.drain.engine import Engine, LocalEngine, OnProgress
from export_queue.core.drain.exporters import Exporter, load_exporter
from export_queue.core.drain.report import DrainReport
from export_queue.core.drain.run import LEASE_SECONDS, DrainRequest, IfLocked, Ranges, admit, anybody, run_drain
from export_queue.core.drain.transient import DRAIN_RETRY, call_again
from export_queue.core.locks import Owner
from export_queue.core.queue import find_queue
from export_queue.core.retry import Retry
from export_queue.core.sinks import FencedSink, Sink, SinkSpec
from export_queue.core.store import Database


class StoreHandle(Protocol):
    """What a drain needs of the store that users hold."""

    @property
    def id(self) -> str:
        """Identity of the store."""

    @property
    def database(self) -> Database:
        """Its connections."""


def drain(
    store: StoreHandle,
    queue_id: str,
    sink: SinkSpec | Sink | FencedSink,
    *,
    sink_name: str | None = None,
    exporter: str | object | None = None,
    ranges: Ranges | None = None,
    if_locked: IfLocked = "wait",
    lock_timeout: float = 600.0,
    on_error: OnError = "dead_letter",
    max_dead: int = 1000,
    owner: Owner | None = None,
    drain_id: str | None = None,
    lease_seconds: float = LEASE_SECONDS,
    retry: Retry | None = None,
    on_progress: OnProgress | None = None,
) -> DrainReport:
    """Bring what is committed in a queue into a sink, in this process.

    When it returns, every entry of its ranges that was committed before the call is in the sink or is a
    dead letter, also where another drain did the work (with ``if_locked="skip"``: but for
    :attr:`DrainReport.skipped`).

    :param store: an open store.
    :param queue_id: the queue.
    :param sink: a description of the sink, or an open one, which stays open.
    :param sink_name: what the queue is bound to; by default the name in the description, or the class
        of an open sink.
    :param exporter: ``"module:name"``, a function of one :class:`Entry`, or an object with ``export``,
        ``open`` and ``close``; None copies key and value.
    :param ranges: ranges of whole units as ``[first, end)``; None means all.
    :param if_locked: what to do about ranges that others hold: ``"wait"`` for them, ``"skip"`` them, or
        ``"fail"`` before anything is done.
    :param lock_timeout: seconds to wait for others.
    :param on_error: ``"dead_letter"`` sets rejected entries aside, ``"fail"`` stops at the first.
    :param max_dead: the most entries that may be set aside; one more stops the drain.
    :param owner: who claims; a new attempt of the same task takes over from the older one.
    :param drain_id: name of this drain, under which its report is stored; a new one for each attempt.
    :param lease_seconds: how long a dead drain keeps others out.
    :param retry: how transient errors are met.
    :param on_progress: called after each chunk.
    :returns: the report; it is stored too, also when the drain fails.
    :raises ConfigurationError: unknown queue, ranges that are no whole units, another sink, and the like.
    :raises LockNotAvailable: others hold a range and do not finish in time.
    :raises LeaseLost: this drain's claim was lost; nothing was removed after that.
    :raises SinkError: the sink cannot be used.
    :raises DrainError: the exporter cannot be used, or too many entries were rejected.
    """
    name = sink_name or (sink.name if isinstance(sink, SinkSpec) else type(sink).__name__)
    request = DrainRequest(
        queue_id=queue_id,
        sink_name=name,
        ranges=ranges,
        if_locked=if_locked,
        lock_timeout=lock_timeout,
        owner=owner or anybody(),
        drain_id=drain_id or uuid.uuid4().hex,
        lease_seconds=lease_seconds,
    )
    rules = Rules(drain=request.drain_id, on_error=on_error, max_dead=max_dead, retry=retry or DRAIN_RETRY)

    @contextlib.contextmanager
    def local_engine() -> Iterator[Engine]:
        with opened_sink(sink) as opened, opened_exporter(load_exporter(exporter), rules.retry) as found:
            yield LocalEngine(store.database, opened, found, rules, on_progress)

    return run_drain(store.database, store.id, request, local_engine())


def readmit(store: StoreHandle, queue_id: str, sink: SinkSpec | Sink | FencedSink) -> None:
    """Go on with a sink that has lost its data, on purpose: it is taken for one that is new.

    Drains refuse such a sink (:class:`SinkLostData`), since it lacks all that was drained before. Empty it, add all its
    records to the queue anew, then call this.

    :param store: an open store.
    :param queue_id: the queue that drains into it.
    :param sink: a description of the sink, or an open one, which stays open.
    :raises UnknownQueue: the store has no such queue.
    :raises SinkError: the sink cannot be used, or another store feeds it.
    """
    with store.database.read() as work:
        find_queue(work, queue_id)
    with opened_sink(sink) as opened:
        admit(store.database, lambda fence: opened.admit(queue_id=queue_id, store_id=store.id, fence=fence))


@contextlib.contextmanager
def opened_sink(sink: SinkSpec | Sink | FencedSink) -> Iterator[Sink | FencedSink]:
    """Open a described sink and close it at the end; an open one stays open."""
    if not isinstance(sink, SinkSpec):
        yield sink
        return
    opened = sink.open()
    try:
        yield opened
    finally:
        opened.close()


@contextlib.contextmanager
def opened_exporter(exporter: Exporter, retry: Retry) -> Iterator[Exporter]:
    """Open an exporter and close it at the end, whatever happens."""
    call_again(retry, exporter.open)
    try:
        yield exporter
    finally:
        exporter.close()
