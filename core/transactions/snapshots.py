"""Snapshots that belong to no transaction."""

from __future__ import annotations

from export_queue.core.store import Database, Snapshot, queries


def take_snapshot(database: Database) -> Snapshot:
    """Take a snapshot of everything committed before the call, at the cost of a read."""
    with database.connect() as connection:
        return database.dialect.take_snapshot(connection)


def unfinished_below(database: Database, bound: int) -> tuple[Snapshot, list[int]]:
    """Take a snapshot, and list the ids below a bound whose transactions may still commit.

    An invalid id never commits. The lock of an id that is registered for days counts, though no snapshot lists it.
    """
    with database.read() as work:
        locked = queries.floors.oldest_lock(work, bound - 1)
    snapshot = take_snapshot(database)
    with database.read() as work:
        invalid = queries.invalid.invalid_ids(work)
    unfinished = {i for i in snapshot.excluded if i < bound and i not in invalid}
    return snapshot, sorted(unfinished | ({locked} if locked is not None else set()))


def settled_snapshot(database: Database) -> Snapshot:
    """Take a snapshot below every id in progress: no commit to come can add to it.

    An invalid id never commits, so it holds nothing back.
    """
    snapshot = take_snapshot(database)
    with database.read() as work:
        invalid = queries.invalid.invalid_ids(work)
    low = min((i for i in snapshot.excluded if i not in invalid), default=snapshot.read_pointer + 1)
    return Snapshot(low - 1, tuple(i for i in snapshot.excluded if i < low))
