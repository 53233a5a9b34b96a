"""The queues and subscriptions of a store: finding, listing, adding and binding them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from export_queue.core.arguments import check_text
from export_queue.core.errors import HasSubscriptions, InvalidArgument, SinkBindingError, UnknownQueue
from export_queue.core.queue.buckets import FIRST_LAYOUT, Layout
from export_queue.core.queue.queue import STATE, Queue
from export_queue.core.references import check_sink_name
from export_queue.core.store import Reading, Work, queries, removed_subscription

_DERIVED = ("parent", "parent_number", "older")
"""Fields of a queue that are not stored in columns of the same name."""
COLUMNS = {"key": "key_codec", "value": "value_codec"}
"""Columns of the options that have another name."""


def queue_of_row(work: Reading, row: Any) -> Queue:
    stored = {f.name: row[COLUMNS.get(f.name, f.name)] for f in fields(Queue) if f.name not in _DERIVED}
    queue = Queue(**stored, parent=parent_of(row["id"]), parent_number=row["parent"])
    if queue.layout == FIRST_LAYOUT:
        return queue
    older = queries.layouts.open_ones(work, queue.source_number, before=queue.layout)
    return replace(queue, older=tuple(Layout(*found) for found in older))


def parent_of(queue_id: str) -> str | None:
    """Return the id of a subscription's queue; None for the id of a queue."""
    parent, slash, _ = queue_id.partition("/")
    return parent if slash else None


def find_queue(work: Reading, queue_id: str) -> Queue:
    """Read the options of a queue, or of a subscription: ``airports/search``.

    :raises UnknownQueue: the queue does not exist; the error lists the existing ones.
    """
    check_text(queue_id, what="queue id")
    row = queries.queues.queue_row(work, queue_id)
    if row is None:
        known = [q.id for q in list_queues(work)]
        parent, _, name = queue_id.partition("/")
        if name and parent in known:
            raise unknown_subscription(parent, name, [q for q in known if parent_of(q) == parent])
        raise UnknownQueue(f"the store has no queue {queue_id!r}; it has: {', '.join(known) or 'none'}")
    return queue_of_row(work, row)


def unknown_subscription(queue_id: str, name: str, known: Iterable[str]) -> UnknownQueue:
    """Make the error for a subscription that a queue does not have.

    :param known: names of its subscriptions.
    """
    return UnknownQueue(
        f"queue {queue_id!r} has no subscription {name!r}; it has: {', '.join(known) or 'none'}",
        hint=f"to add one: export-queue subscribe {queue_id} NAME, or store.subscribe({queue_id!r}, name)",
    )


def queue_added_to(work: Reading, reader: Queue) -> Queue:
    """Return the queue whose adds bring entries to a reader: of a subscription its queue, otherwise the reader."""
    return reader if reader.parent is None else find_queue(work, reader.parent)


def find_reader(work: Reading, queue_id: str, *, states: bool = False) -> Queue:
    """Read the options of a subscription, or of a queue without subscriptions: one that has its own entries.

    :param states: whether it may be the state of a queue, which is never drained.
    :raises UnknownQueue: the queue does not exist.
    :raises HasSubscriptions: the queue has subscriptions, which hold its entries; the error lists them.
    """
    queue = find_queue(work, queue_id)
    if not states:
        refuse_state(queue)
    if queue.fans_out:
        names = ", ".join(reader.id for reader in readers_of(work, queue))
        raise HasSubscriptions(
            f"queue {queue_id!r} has no entries of its own: each of its subscriptions has them: {names}",
            hint=f"name one of them instead of {queue_id!r}",
        )
    return queue


def refuse_state(queue: Queue) -> None:
    """Refuse the state of a queue where a reader is expected that is drained."""
    if queue.is_state:
        raise InvalidArgument(
            f"{queue.id!r} is the state of queue {queue.parent!r}, which is read and never drained",
            hint=f"read it: store.state({queue.parent!r}), or export-queue state {queue.parent}",
        )


def find_state(work: Reading, queue_id: str) -> Queue:
    """Read the reader that is the state of a queue.

    :raises UnknownQueue: the queue does not exist.
    :raises InvalidArgument: it is a subscription, or it has no state.
    """
    queue = find_queue(work, queue_id)
    if queue.is_state:
        return queue
    if queue.parent is not None:
        raise InvalidArgument(
            f"state of {queue_id!r}: expected the id of a queue, found that of a subscription",
            hint=f"the state is that of its queue: {queue.parent}",
        )
    if queue.history_ms is None:
        raise InvalidArgument(
            f"queue {queue_id!r} has no state: it does not remember what it was given",
            hint=f"store.alter_queue({queue_id!r}, state=True), or export-queue alter {queue_id} --state; then make a "
            "first load of the state",
        )
    return find_queue(work, f"{queue_id}/{STATE}")


def readers_of(work: Reading, queue: Queue) -> list[Queue]:
    """Read the subscriptions of a queue, by name."""
    return [reader for reader in children_of(work, queue) if not reader.is_state]


def children_of(work: Reading, queue: Queue) -> list[Queue]:
    """Read the subscriptions of a queue, and its state."""
    return [queue_of_row(work, row) for row in queries.readers.reader_rows(work, queue.number)]


def list_queues(work: Reading) -> list[Queue]:
    """Read all queues and subscriptions, by name."""
    return [queue_of_row(work, row) for row in queries.queues.queue_rows(work)]


def bind_sink(work: Work, queue: Queue, sink: str, *, rebind: bool = False) -> None:
    """Bind a queue to the name of its sink.

    :param rebind: change the name even if the queue has another one.
    :raises SinkBindingError: the queue drains into another sink.
    :raises UnknownQueue: the subscription was removed, even if a new one has its name.
    :raises InvalidArgument: the name is not valid.
    """
    if queue.sink == sink and not rebind:
        return
    check_sink_name(sink)
    queries.queues.bind_queue(work, queue.number, sink, rebind=rebind)
    found = find_queue(work, queue.id)
    if found.number != queue.number:
        raise removed_subscription(f"subscription {queue.id!r}")
    if found.sink != sink:
        raise SinkBindingError(f"queue {queue.id!r} drains into sink {found.sink!r}, found a drain into {sink!r}")


def add_reader(work: Work, parent: Queue, name: str, *, first_load: str | None, **own: Any) -> None:
    """Store a subscription or a state. It has the options of its queue and its own sink.

    :param own: options in which it differs from its queue.
    """
    names = ("layout", "buckets", "buckets_per_range", "key", "value", "max_value_bytes", "exclusive", "coalesce")
    options = {COLUMNS.get(option, option): getattr(parent, option) for option in names}
    added = {"id": f"{parent.id}/{name}", "parent": parent.number, "sink": None, "first_load": first_load}
    queries.queues.add_queue(work, added | options | own)
