"""Sending a sink a fence of its store before a drain claims anything, and readmitting a sink that lost data."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from export_queue.core.drain.binding import binding_with, check_binding, filled_in
from export_queue.core.drain.exporters import COPY
from export_queue.core.drain.fenced import check_request
from export_queue.core.drain.request import DrainRequest
from export_queue.core.drain.transient import call_again
from export_queue.core.errors import ExportQueueError, SinkBelongsToAnother, SinkLostData
from export_queue.core.queue import (
    Mark,
    Queue,
    Range,
    declare_complete,
    find_reader,
    join_ranges,
    losses,
    mark_incomplete,
    user_at_host,
)
from export_queue.core.sinks import FencedSink, Sink, SinkSpec, call_sink, opened_sink
from export_queue.core.store import Database, queries

log = logging.getLogger("export_queue.drain")

_ADMISSIONS = 10
_REPORTS = 100
"""Number of reports of removed subscriptions of a name that are searched."""


class StoreHandle(Protocol):
    """The part of a user's store that a drain needs."""

    @property
    def id(self) -> str:
        """Id of the store."""

    @property
    def database(self) -> Database:
        """Connections to it."""


def admit(database: Database, ask: Callable[[int], None]) -> int:
    """Send a sink a fence that is higher than all that it has seen from this store.

    :param ask: sends a fence to the sink.
    :returns: the fence, which the sink keeps from now on.
    :raises SinkBelongsToAnother: the sink has seen higher fences, or another store.
    """
    remaining = _ADMISSIONS
    while True:
        with database.connect() as connection:
            fence = database.dialect.steps.draw(connection)
        try:
            ask(fence)
        except SinkBelongsToAnother:
            # Between our drawing and showing, another drain may have shown a younger fence.
            remaining -= 1
            if not remaining:
                raise
        else:
            return fence


def ask_sink(
    sink: Sink | FencedSink, request: DrainRequest, *, queue_id: str, store_id: str, fence: int, shown: int
) -> None:
    """Ask an open sink whether a request may drain into it.

    :raises ConfigurationError: the request does not suit the sink's guard.
    :raises SinkError: the sink refuses.
    """
    check_request(sink, request)
    named = {"queue_id": queue_id, "store_id": store_id, "fence": fence, "shown": shown}
    call_again(request.retry, lambda: call_sink(sink, "admit", **named), whom="the sink")


def note_fence(database: Database, queue: Queue, sink_name: str, fence: int) -> None:
    """Note in the store that a sink accepted a fence. A sink with a lower one has lost data since."""
    with database.begin() as work:
        queries.queues.note_fence(work, queue.number, sink_name, fence)


def warn_of_closed(queue: Queue, closed: Sequence[Range]) -> None:
    """Warn that requested units belong to a closed layout: somebody may have written them down.

    :param closed: units of layouts that the queue had before it was altered.
    """
    if closed:
        log.warning(
            "%s: nothing is pending in %s any more: the queue was altered, and entries are added to layout %d; "
            "list the ranges again, or omit them",
            queue.id,
            " ".join(str(part) for part in join_ranges(closed)),
            queue.layout,
        )


def warn_of_namesake(database: Database, queue: Queue, sink_name: str) -> None:
    """Warn, until the subscription has drained entries, that a sink may have records of a removed namesake."""
    if queue.parent is None:  # only subscriptions can be removed
        return
    with database.read() as work:
        known = queries.reports.sinks_of_namesakes(work, queue.id, queue.number, limit=_REPORTS)
    if sink_name in known:
        log.warning(
            "%s: a subscription of this name, since removed, drained into %s: records that were deleted meanwhile "
            "stay there permanently, unless the sink or its collections were emptied",
            queue.id,
            sink_name,
        )


def readmit(
    store: StoreHandle,
    queue_id: str,
    sink: SinkSpec | Sink | FencedSink,
    *,
    complete: bool = False,
    who: str | None = None,
) -> list[Mark]:
    """Accept a sink that has lost data, and continue to drain into it.

    Drains refuse such a sink (:class:`SinkLostData`) because it lacks entries that were drained before. After this call
    they deliver new entries and report that the sink is incomplete, until a first load of the subscription has
    delivered everything again, or somebody declares the sink complete. If the sink is back in an older state, a first
    load does not make it complete, because it deletes nothing: empty such a sink first.

    :param store: an open store.
    :param queue_id: the queue that drains into it.
    :param sink: a description of the sink, or an open one, which stays open.
    :param complete: declare that the sink lacks nothing, for example because all records were added to the queue again.
        The declaration is recorded.
    :param who: name for the record; by default user and host of this process.
    :returns: what the sink lacks now.
    :raises UnknownQueue: the store has no such queue.
    :raises SinkBindingError: the queue drains into another sink, or with other options.
    :raises HasSubscriptions: the queue has subscriptions, each with its own sink.
    :raises SinkError: the sink cannot be used, or another store feeds it.
    """
    who = who or user_at_host()
    with store.database.read() as work:
        queue = find_reader(work, queue_id)
        delivered = queries.queues.shown_fence(work, queue_id, queue.sink) if queue.sink is not None else 0
    sink, _ = filled_in(store.database, queue_id, sink, COPY)
    with opened_sink(sink) as opened:
        if queue.binding is not None:
            check_binding(queue, binding_with(opened, json.loads(queue.binding)["exporter"]))
        is_older = bool(delivered) and _is_older(store, opened, queue_id, shown=delivered)
        # the mark comes first: if this process ends in between, the loss must be on record
        with _marked(store.database, queue, who, is_older=is_older) if delivered else contextlib.nullcontext():
            fence = admit(
                store.database,
                lambda fence: call_sink(
                    opened, "admit", queue_id=queue_id, store_id=store.id, fence=fence, readmit=True
                ),
            )
    if queue.sink is not None:
        note_fence(store.database, queue, queue.sink, fence)
    if complete:
        declare_complete(store.database, queue_id, who=who)
    with store.database.read() as work:
        return losses(work, queue_id)


def _is_older(store: StoreHandle, sink: Sink | FencedSink, queue_id: str, *, shown: int) -> bool:
    """Return whether a sink is back in an older state, and may hold records that were deleted since."""
    named = {"queue_id": queue_id, "store_id": store.id, "shown": shown}
    try:
        admit(store.database, lambda fence: call_sink(sink, "admit", fence=fence, **named))
    except SinkLostData as error:
        return error.is_older
    return False


@contextlib.contextmanager
def _marked(database: Database, queue: Queue, who: str, *, is_older: bool) -> Iterator[None]:
    """Mark a reader's sink as incomplete, unless the block fails."""
    with database.begin() as work:
        number = database.dialect.steps.draw(work.connection)
        details = {"sink": queue.sink, "older": is_older}
        mark_incomplete(work, queue, "readmit", who=who, details=details, number=number)
    try:
        yield
    except ExportQueueError:
        with database.begin() as work:
            queries.acts.forget(work, number)
            queries.queues.alter_queue(work, queue.number, first_load=queue.first_load)
        raise
