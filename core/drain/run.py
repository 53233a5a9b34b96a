"""One drain, from claim to report, whatever engine does the work."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from export_queue.core.drain.engine import Engine, LocalEngine, OnProgress
from export_queue.core.drain.exporters import Exporter, load_exporter
from export_queue.core.drain.leases import LeaseKeeper
from export_queue.core.drain.patience import Patience
from export_queue.core.drain.pipeline import OnError, Rules
from export_queue.core.drain.report import DrainReport, Problem, RangeReport, join_ranges, total
from export_queue.core.errors import ExportQueueError, InvalidArgument, LockNotAvailable
from export_queue.core.locks import Holder, Lease, Owner, claim, holders
from export_queue.core.queue import Queue, Range, backlog, bind_sink, find_queue, read_entries
from export_queue.core.sinks import Sink, SinkSpec, open_sink
from export_queue.core.store import Database
from export_queue.core.store.reports import save_report
from export_queue.core.transactions import Snapshot, observe

IfLocked = Literal["wait", "skip", "fail"]
Ranges = Sequence[Range | Sequence[int]]

LEASE_SECONDS = 30.0
POLL_SECONDS = 0.5
"""How often a drain that waits for other holders looks again."""


class StoreHandle(Protocol):
    """What a drain needs of the store that users hold."""

    @property
    def id(self) -> str:
        """Identity of the store."""

    @property
    def database(self) -> Database:
        """Its connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequest:
    """What a drain is asked to do; checked when it is made.

    :param queue_id: the queue.
    :param sink_name: what the queue is bound to.
    :param ranges: whole units; None means all.
    :param if_locked: what to do about ranges that others hold: wait for them, leave them out, or fail
        before anything is done.
    :param lock_timeout: seconds to wait for others.
    :param owner: who claims; a new attempt of the same task takes over from the older one.
    :param token: name of this drain, under which its report is stored; a new one for each attempt.
    :param lease_seconds: how long a dead drain keeps others out.
    """

    queue_id: str
    sink_name: str
    ranges: Ranges | None = None
    if_locked: IfLocked = "wait"
    lock_timeout: float = 600.0
    owner: Owner = field(default_factory=lambda: _somebody())
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    lease_seconds: float = LEASE_SECONDS

    def __post_init__(self) -> None:
        if self.if_locked not in ("wait", "skip", "fail"):
            raise InvalidArgument(f"if_locked is 'wait', 'skip' or 'fail', found {self.if_locked!r}")
        if self.lock_timeout < 0:
            raise InvalidArgument(f"lock_timeout is a number of seconds, found {self.lock_timeout!r}")
        if not self.token:
            raise InvalidArgument("a drain's token is not empty")


def drain(
    store: StoreHandle,
    queue_id: str,
    sink: SinkSpec | Sink,
    *,
    sink_name: str | None = None,
    exporter: str | object | None = None,
    ranges: Ranges | None = None,
    if_locked: IfLocked = "wait",
    lock_timeout: float = 600.0,
    on_error: OnError = "dead_letter",
    max_dead: int = 1000,
    owner: Owner | None = None,
    token: str | None = None,
    lease_seconds: float = LEASE_SECONDS,
    patience: Patience | None = None,
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
    :param token: name of this drain, under which its report is stored; a new one for each attempt.
    :param lease_seconds: how long a dead drain keeps others out.
    :param patience: how transient errors are met.
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
        owner=owner or _somebody(),
        token=token or uuid.uuid4().hex,
        lease_seconds=lease_seconds,
    )
    rules = Rules(
        drain=request.token, on_error=on_error, max_dead=max_dead, patience=patience or Patience()
    )

    @contextlib.contextmanager
    def local_engine() -> Iterator[Engine]:
        with _opened_sink(sink) as opened, _opened_exporter(load_exporter(exporter), rules.patience) as found:
            yield LocalEngine(store.database, opened, found, rules, on_progress)

    return run_drain(store.database, store.id, request, local_engine())
