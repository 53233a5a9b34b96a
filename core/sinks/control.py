"""The control records: which store feeds a sink, how far that store had come, how far the sink was swept (pure)."""

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


@dataclass(frozen=True, slots=True)
class FloorRecord:
    """What a sink remembers of all its queues together, since ranks are found by the record alone."""

    stores: frozenset[str] = frozenset()
    """All stores that were ever admitted; one at most where the sink was swept."""
    floor: int = 0
    """Sequences at or below it are stale, whatever the record's own rank; it is raised before tombstones go.
    0: never swept."""


def check_owner(
    found: ControlRecord | None, *, queue_id: str, store_id: str, fence: int, sink: str, shown: int = 0
) -> ControlRecord:
    """Decide whether a store may feed a sink, and what the sink is to remember of it.

    :param found: what the sink remembers about the queue; None at the first drain.
    :param queue_id: the queue that is drained.
    :param store_id: identity of the store that asks.
    :param fence: a number from that store's id source.
    :param sink: the sink's name, for the message.
    :param shown: the highest fence that the sink is known to have kept; 0 where there was none.
    :returns: the record to keep; ``found`` itself where nothing changes.
    :raises SinkBelongsToAnother: the sink was fed by another store, or by a later state of this one.
    :raises SinkLostData: the sink remembers nothing of the queue though it did, or an older state of it.
    """
    if not store_id:
        raise InvalidArgument("a store's id is not empty")
    if not 0 <= fence <= MAX_SEQ:
        raise InvalidArgument(f"a fence is between 0 and {MAX_SEQ}, found {fence}")
    if found is None and shown:
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
    if found.fence < shown:
        raise SinkLostData.older(
            f"sink {sink} is in an older state than it was, as after a restore: queue {queue_id!r} was drained into it"
            f" with fence {shown}, found {found.fence}"
        )
    if found.fence == fence:
        return found
    return ControlRecord(store_id, fence)


def check_loss(lost_at: int, since: int | None, *, what: str, queue_id: str, sink: str) -> None:
    """Decide whether a queue may write to something that was lost, and readmitted for another queue.

    :param lost_at: the fence of that readmission; 0 where nothing was lost.
    :param since: the fence at which the queue itself began, or was readmitted last; None where it begins now.
    :param what: the table or index.
    :raises SinkLostData: the queue may have lost records there, and nobody has said that they came again.
    """
    if since is not None and lost_at > since:
        raise SinkLostData(
            f"{what} of {sink} was lost, and was readmitted for another queue: records of queue {queue_id!r} that it"
            " held are gone, too"
        )


def register_store(found: FloorRecord, *, store_id: str, sink: str) -> FloorRecord:
    """Decide whether a store may be among those that feed a sink.

    Called once :func:`check_owner` has agreed. The result is kept before the queue's own record, so that all stores
    that feed the sink are known.

    :param found: what the sink remembers of all its queues.
    :param store_id: identity of the store that asks.
    :param sink: the sink's name, for the message.
    :returns: the record to keep; ``found`` itself where nothing changes.
    :raises SinkBelongsToAnother: another store has swept the sink: all operations of this one might be stale.
    """
    others = found.stores - {store_id}
    if found.floor and others:
        raise SinkBelongsToAnother(
            f"sink {sink} was swept by another store: expected store {store_id}, found store {min(others)}; "
            f"whatever has a sequence up to {found.floor} is stale there",
            hint="feed this store into another sink, or empty this one together with its control records",
        )
    return found if store_id in found.stores else FloorRecord(found.stores | {store_id}, found.floor)


def raise_floor(found: FloorRecord, *, store_id: str, floor: int, sink: str) -> FloorRecord:
    """Decide whether a store may sweep a sink, and how far the floor is from then on; it never falls.

    :param found: what the sink remembers of all its queues.
    :param store_id: identity of the store that sweeps.
    :param floor: below everything that the store may still send.
    :param sink: the sink's name, for the message.
    :returns: the record to keep; ``found`` itself where nothing changes.
    :raises SinkBelongsToAnother: another store feeds the sink, too: its sequences are not this one's to judge.
    """
    if not 0 <= floor <= MAX_SEQ:
        raise InvalidArgument(f"a floor is between 0 and {MAX_SEQ}, found {floor}")
    if others := found.stores - {store_id}:
        raise SinkBelongsToAnother(
            f"sink {sink} is fed by other stores, too: expected store {store_id} alone, "
            f"found {', '.join(sorted(others))}",
            hint="only a sink of one store can be swept: later operations of another store would be stale",
        )
    if store_id in found.stores and floor <= found.floor:
        return found
    return FloorRecord(frozenset({store_id}), max(floor, found.floor))


def stale_rank(floor: int) -> int:
    """Return the highest rank that a floor makes stale; below every rank where a sink was never swept."""
    return 2 * floor + 1 if floor else -1
