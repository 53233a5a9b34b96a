"""Snapshots outside of transactions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from export_queue.core.store import Database, Snapshot, queries

_NAMED = 5
"""Maximum number of transactions that an error names."""


def take_snapshot(database: Database) -> Snapshot:
    """Take a snapshot of everything that has been committed; it costs one read."""
    with database.connect() as connection:
        return database.dialect.steps.take_snapshot(connection)


def unfinished_below(database: Database, bound: int, *, load: int, reads_cells: bool) -> tuple[Snapshot, list[int]]:
    """Take a snapshot, and list the ids below a bound whose transactions may still commit.

    An invalid id never commits. An id that has been registered for days is in no snapshot, but its lock still counts.

    :param load: the subscription that is being loaded. First loads of other subscriptions are left out, because they
        write no cells and add nothing to this subscription.
    :param reads_cells: whether more than this subscription is read. If not, transactions that may not add to its queue
        are left out too.
    """
    with database.read() as work:
        locked = queries.registrations.oldest_lock(work, bound - 1)
    snapshot = take_snapshot(database)
    with database.read() as work:
        ignored = queries.registrations.invalid_ids(work) | queries.registrations.loads_of_others(work, load)
        if not reads_cells:
            ignored |= queries.registrations.limited_to_others(work, load)
    unfinished = {i for i in snapshot.excluded if i < bound and i not in ignored}
    return snapshot, sorted(unfinished | ({locked} if locked is not None else set()))


def name_transactions(found: Iterable[queries.monitoring.Holder]) -> str:
    """Describe the oldest transactions in progress: id, kind, start and client of each."""
    oldest = sorted(found, key=lambda one: one.id)
    named = [
        f"{one.id} ({one.kind}, since {datetime.fromtimestamp(one.started_ms / 1e3, UTC):%Y-%m-%d %H:%M:%S} UTC"
        f"{f', of {one.client}' if one.client else ''})"
        for one in oldest[:_NAMED]
    ]
    more = f" and {len(oldest) - _NAMED} more" if len(oldest) > _NAMED else ""
    return f"{', '.join(named)}{more}"


def settled_snapshot(database: Database, queue: int | None = None) -> Snapshot:
    """Take a snapshot below every id in progress, so that no later commit can add to it.

    Invalid ids are ignored, because they never commit.

    :param queue: number of the only queue that is read in the snapshot. First loads of other queues are ignored too,
        and transactions that may only add to others, because they add nothing to this one.
    """
    snapshot = take_snapshot(database)
    low = lowest_unfinished(database, snapshot, queue)
    return Snapshot(low - 1, tuple(i for i in snapshot.excluded if i < low))


def lowest_unfinished(database: Database, snapshot: Snapshot, queue: int | None = None) -> int:
    """Find the smallest id that a snapshot does not see and that may commit, or has committed since.

    :param queue: number of the only queue that is read in the snapshot; see :func:`settled_snapshot`.
    """
    with database.read() as work:
        ignored = queries.registrations.invalid_ids(work)
        if queue is not None:
            ignored = ignored | queries.registrations.loads_of_others(work, queue)
            ignored |= queries.registrations.limited_to_others(work, queue)
    return min((i for i in snapshot.excluded if i not in ignored), default=snapshot.read_pointer + 1)
