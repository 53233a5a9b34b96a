"""Control records: which store feeds a sink, the last fence of that store, and the floor of sweeps (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from export_queue.core.errors import InvalidArgument, SinkBelongsToAnother, SinkLostData
from export_queue.core.sinks.operations import MAX_SEQ


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """What a sink stores about one queue that drains into it."""

    store_id: str
    fence: int
    """The highest fence of a drain, from the store's id source."""


@dataclass(frozen=True, slots=True)
class FloorRecord:
    """What a sink stores about all its queues together, because ranks do not belong to a queue."""

    stores: frozenset[str] = frozenset()
    """All stores that were ever admitted; at most one if the sink was swept."""
    floor: int = 0
    """Sequences at or below it are stale, whatever the record's own rank. 0: never swept."""


def check_owner(
    found: ControlRecord | None, *, queue_id: str, store_id: str, fence: int, sink: str, shown: int = 0
) -> ControlRecord:
    """Decide whether a store may feed a sink, and return the record that the sink must keep.

    :param found: the queue's present record; None at the first drain.
    :param fence: a number from the store's id source.
    :param sink: the sink's name, for the message.
    :param shown: the highest fence that the sink is known to have kept; 0 if there was none.
    :raises SinkBelongsToAnother: another store, or a later state of this one, has fed the sink.
    :raises SinkLostData: the queue's record is missing, or older than the sink once had.
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
    return ControlRecord(store_id, fence)


def check_loss(lost_at: int, since: int | None, *, what: str, queue_id: str, sink: str) -> None:
    """Check that a queue did not lose records in a table or index that was lost and readmitted for another queue.

    :param lost_at: the fence of that readmission; 0 if nothing was lost.
    :param since: the fence of the queue's own first drain or last readmission; None if this is the first drain.
    :param what: the table or index.
    :raises SinkLostData: it may have lost records, and was not readmitted since.
    """
    if since is not None and lost_at > since:
        raise SinkLostData(
            f"{what} of {sink} was lost, and was readmitted for another queue: records of queue {queue_id!r} that it"
            " held are gone, too"
        )


def register_store(found: FloorRecord, *, store_id: str, sink: str) -> FloorRecord:
    """Decide whether one more store may feed a sink, and return the record that the sink must keep.

    Called after :func:`check_owner`. The sink keeps this record before the queue's own record, so that it knows all
    stores that feed it.

    :raises SinkBelongsToAnother: another store has swept the sink, so that all operations of this one could be stale.
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
    """Decide whether a store may sweep a sink, and return the record that the sink must keep. The floor never falls.

    :param floor: a sequence below everything that the store may still send.
    :raises SinkBelongsToAnother: other stores feed the sink too.
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
    """Return the highest rank that a floor makes stale; -1 for a sink that was never swept."""
    return 2 * floor + 1 if floor else -1
