"""The control record: which store feeds a sink, and how far that store had come (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from export_queue.core.errors import InvalidArgument, SinkBelongsToAnother, SinkLostData
from export_queue.core.sinks.operations import MAX_SEQ


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """What a sink remembers about one queue that drains into it."""

    store_id: str
    fence: int
    """The highest number of the store's id source that a drain has shown."""
    floor: int = 0
    """Sequences at or below it are stale, whatever the record's own rank; it is raised before tombstones go."""


def admission(
    found: ControlRecord | None, *, queue_id: str, store_id: str, fence: int, sink: str, drained: bool = False
) -> ControlRecord:
    """Decide whether a store may feed a sink, and what the sink is to remember of it.

    :param found: what the sink remembers about the queue; None at the first drain.
    :param queue_id: the queue that is drained.
    :param store_id: identity of the store that asks.
    :param fence: a number from that store's id source.
    :param sink: the sink's name, for the message.
    :param drained: whether that store has drained this queue into this sink before.
    :returns: the record to keep; ``found`` itself where nothing changes.
    :raises SinkBelongsToAnother: the sink was fed by another store, or by a later state of this one.
    :raises SinkLostData: the store has drained into the sink, which remembers nothing of it.
    """
    if not store_id:
        raise InvalidArgument("a store's id is not empty")
    if not 0 <= fence <= MAX_SEQ:
        raise InvalidArgument(f"a fence is between 0 and {MAX_SEQ}, found {fence}")
    if found is None and drained:
        raise SinkLostData(
            f"sink {sink} has forgotten queue {queue_id!r}: expected the control record of store {store_id}, which has"
            " drained into it before, found none"
        )
    if found is None:
        return ControlRecord(store_id, fence)
    if found.store_id != store_id:
        raise SinkBelongsToAnother(
            f"queue {queue_id!r} of sink {sink} was last fed by another store:"
            f" expected store {store_id}, found store {found.store_id}"
        )
    if found.fence > fence:
        raise SinkBelongsToAnother(
            f"queue {queue_id!r} of sink {sink} was fed by store {store_id} in a later state:"
            f" this drain's fence is {fence}, the sink has seen {found.fence}"
        )
    if found.fence == fence:
        return found
    return ControlRecord(store_id, fence, found.floor)
