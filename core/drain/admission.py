"""Showing a sink a fence of its store, before a drain claims anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from export_queue.core.drain.fenced import check_request
from export_queue.core.drain.request import DrainRequest
from export_queue.core.drain.transient import call_again
from export_queue.core.errors import SinkBelongsToAnother
from export_queue.core.queue import find_queue
from export_queue.core.sinks import FencedSink, Sink, SinkSpec, opened_sink
from export_queue.core.store import Database

_ADMISSIONS = 10


class StoreHandle(Protocol):
    """The parts of a user's store that a drain needs."""

    @property
    def id(self) -> str:
        """Identity of the store."""

    @property
    def database(self) -> Database:
        """Its connections."""


def admit(database: Database, ask: Callable[[int], None]) -> None:
    """Show a sink a fence that is younger than all that it has seen from this store.

    :param ask: asks the sink, with the fence.
    :raises SinkBelongsToAnother: the sink has seen younger fences, or another store.
    """
    for remaining in reversed(range(_ADMISSIONS)):
        with database.connect() as connection:
            fence = database.dialect.draw(connection)
        try:
            ask(fence)
            return
        except SinkBelongsToAnother:
            # Between our drawing and showing, another drain may have shown a younger fence.
            if not remaining:
                raise


def ask_sink(
    sink: Sink | FencedSink, request: DrainRequest, *, queue_id: str, store_id: str, fence: int, drained: bool
) -> None:
    """Ask an open sink whether a request may drain into it.

    :raises ConfigurationError: the request does not suit the sink's guard.
    :raises SinkError: the sink refuses.
    """
    check_request(sink, request)
    call_again(request.retry, lambda: sink.admit(queue_id=queue_id, store_id=store_id, fence=fence, drained=drained))


def readmit(store: StoreHandle, queue_id: str, sink: SinkSpec | Sink | FencedSink) -> None:
    """Go on with a sink that has lost its data, on purpose: it is taken for a new one.

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
