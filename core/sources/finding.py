"""Sources by name, and opening a source for one queue."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from export_queue.core.callables import check_runs
from export_queue.core.errors import InvalidArgument, QueueBusy
from export_queue.core.queue import Queue, find_queue
from export_queue.core.references import import_object
from export_queue.core.sources.function import FunctionSource
from export_queue.core.sources.protocol import Content, Source
from export_queue.core.sources.state import StateSource
from export_queue.core.sources.table import TableSource
from export_queue.core.store import Database

STATE = "state"
"""The name of the state of the queue."""
TABLE = "table:"
"""What the name of a table of the store follows."""
AnySource = str | Source | Callable[[], Iterable[tuple[Any, Any]]]


def find_source(source: AnySource) -> Source:
    """Return the source that a name or a function means. This is the only place where names are read.

    :param source: ``"state"``, the queue's own state; ``"table:NAME"``, a table of the store with all its columns; a
        :class:`~export_queue.Source`; a function that yields pairs of key and value; or the import path
        ``module:name`` of one of these.
    :raises InvalidArgument: the name leads to nothing, or to something else than a source or a function.
    """
    found: object = source
    hint = "name a function that yields the keys and values that the sink should have, or a source: module:name"
    if source == STATE:
        return StateSource()
    if isinstance(source, str) and source.startswith(TABLE):
        return TableSource(source.removeprefix(TABLE))
    if isinstance(source, str):
        found = import_object(source, error=InvalidArgument, hint=hint)
    if isinstance(found, type):
        found = found()
    if callable(getattr(found, "open", None)):
        return cast(Source, found)
    if callable(found):
        return FunctionSource(check_runs(found, "source", may_yield=True))
    raise InvalidArgument(f"source: expected a source or a function, found {type(found).__name__}")


def name_of_source(source: object) -> str:
    """Return a source or a function as text, for reports."""
    if isinstance(source, str):
        return source
    return getattr(source, "__name__", type(source).__name__)


@contextlib.contextmanager
def opened_content(database: Database, queue_id: str, source: AnySource) -> Iterator[tuple[Queue, Content]]:
    """Open the content of a queue, and make sure that the queue's buckets were not altered until it was read.

    :param queue_id: the queue to which entries are added.
    :returns: the queue in its current layout, and the content.
    :raises QueueBusy: the buckets were altered meanwhile.
    """
    with database.read() as work:
        queue = find_queue(work, queue_id)
    with find_source(source).open(database, queue) as content:
        yield queue, content
    with database.read() as work:
        now = find_queue(work, queue_id)
    if now.layout != queue.layout:
        raise QueueBusy(f"the buckets of queue {queue_id!r} were altered while its content was read", hint="try again")
