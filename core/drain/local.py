"""Draining in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Unpack

from export_queue.core.callables import checked
from export_queue.core.drain.admission import StoreHandle, ask_sink
from export_queue.core.drain.binding import Binding, binding_with, filled_in
from export_queue.core.drain.deadline import Deadline
from export_queue.core.drain.engine import Engine, OnProgress, Progress
from export_queue.core.drain.exporters import Exporter, load_exporter, opened_exporter
from export_queue.core.drain.fenced import claim_units
from export_queue.core.drain.one_drain import run_drain
from export_queue.core.drain.parts import Part
from export_queue.core.drain.pipeline import drain_ranges
from export_queue.core.drain.report import Counts, DrainReport, RangeReport
from export_queue.core.drain.request import DrainOptions, DrainRequest
from export_queue.core.drain.transient import WatchedRetry
from export_queue.core.locks import Lease, LeaseKeeper
from export_queue.core.queue import Queue
from export_queue.core.sinks import FencedSink, Sink, SinkSpec, opened_sink
from export_queue.core.store import Database
from export_queue.core.transactions import Snapshot


def drain(
    store: StoreHandle,
    queue_id: str,
    sink: SinkSpec | Sink | FencedSink,
    *,
    sink_name: str | None = None,
    on_progress: OnProgress | None = None,
    **options: Unpack[DrainOptions],
) -> DrainReport:
    """Deliver the committed entries of a queue to a sink, in this process.

    When it returns, every entry of its ranges that was committed before the call is in the sink or is a dead letter,
    even if another drain delivered it. With ``if_locked="skip"`` this does not hold for :attr:`DrainReport.skipped`.

    :param store: an open store.
    :param queue_id: the queue.
    :param sink: a description of the sink, or an open one, which stays open.
    :param sink_name: name of the sink that the queue is bound to; by default the name in the description, or the
        class of an open sink.
    :param on_progress: called after each chunk.
    :param options: those of :class:`DrainRequest`.
    :returns: the report. It is also stored, even if the drain fails.
    :raises ConfigurationError: an unknown queue or option, ranges that are not whole units, another sink, and so on.
    :raises LockNotAvailable: others hold a range and do not finish in time.
    :raises LeaseLost: this drain's claim was lost; nothing was removed after that.
    :raises SinkError: the sink cannot be used.
    :raises DrainError: the exporter cannot be used, too many entries were rejected, or the time limit has passed.
    """
    name = sink_name or (sink.name if isinstance(sink, SinkSpec) else type(sink).__name__)
    return drain_as_requested(store, sink, DrainRequest.of(queue_id, name, options), on_progress=on_progress)


def drain_as_requested(
    store: StoreHandle,
    sink: SinkSpec | Sink | FencedSink,
    request: DrainRequest,
    *,
    on_progress: OnProgress | None = None,
) -> DrainReport:
    """Drain as a request says, in this process; see :func:`drain`."""
    deadline = Deadline.after(request.time_limit)
    request = replace(request, retry=WatchedRetry.of(deadline.bounded(request.retry), end=deadline.until))
    if on_progress is not None:
        on_progress = checked(on_progress, "on_progress")

    @contextlib.contextmanager
    def local_engine() -> Iterator[Engine]:
        bound_sink, bound_exporter = filled_in(store.database, request.queue_id, sink, request.exporter)
        exporter = load_exporter(bound_exporter)
        with opened_sink(bound_sink) as opened, opened_exporter(exporter, request.retry) as found:
            yield LocalEngine(store.database, opened, found, request, on_progress, deadline)

    return run_drain(store, request, local_engine(), deadline=deadline)


@dataclass(slots=True)
class LocalEngine:
    """Drains one range after the other in this process.

    :param database: the store.
    :param sink: open sink.
    :param exporter: open exporter.
    :param request: parameters of the drain.
    :param on_progress: called after each chunk.
    :param deadline: ends the drain before a batch.
    """

    database: Database
    sink: Sink | FencedSink
    exporter: Exporter
    request: DrainRequest
    on_progress: OnProgress | None = None
    deadline: Deadline = field(default_factory=Deadline)
    has_sent: bool = False
    """Whether a batch may have reached the sink."""
    _progress: Progress = field(default_factory=Progress)

    @property
    def is_fenced(self) -> bool:
        """Whether the sink has no ranks."""
        return self.sink.capabilities.fenced

    def binding(self) -> Binding:
        """Return the binding of sink and exporter."""
        return binding_with(self.sink, self.exporter.identity)

    @property
    def is_tallied(self) -> bool:
        """False: no reports are lost in one process."""
        return False

    def admit(self, *, queue_id: str, store_id: str, fence: int, shown: int = 0) -> None:
        """Let the sink admit the drain."""
        ask_sink(self.sink, self.request, queue_id=queue_id, store_id=store_id, fence=fence, shown=shown)

    def claim(self, queue: Queue, leases: Sequence[Lease]) -> None:
        """Claim units in the sink."""
        claim_units(self.sink, queue, leases, self.request.retry)

    def work_off(
        self, queue: Queue, leases: Sequence[Lease], snapshot: Snapshot, keeper: LeaseKeeper
    ) -> list[RangeReport]:
        """Drain the ranges in order; each is released soon after it is done."""

        def check() -> None:
            keeper.check()
            self.deadline.check()

        def note_sent() -> None:
            self.has_sent = True

        return drain_ranges(
            self.database,
            queue,
            [Part.whole(lease) for lease in leases],
            snapshot,
            self.sink,
            self.exporter,
            self.request,
            check=check,
            on_sent=note_sent,
            on_chunk=self._log_progress,
            on_done=keeper.give_back,
        )

    def _log_progress(self, counts: Counts) -> None:
        before = self._progress
        self._progress = Progress(
            before.read + counts.read, before.acknowledged + counts.acknowledged, before.dead + counts.dead
        )
        if self.on_progress is not None:
            self.on_progress(self._progress)
