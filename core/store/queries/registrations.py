"""SQL of transactions in progress and of invalid ids, whose transactions never commit."""

from __future__ import annotations

import json
from dataclasses import dataclass

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.portable import prefix_of
from export_queue.core.store.schema import active, invalid, queue, segment, staged_entry

_WINDOW = 30 * 24 * 3600 * 1000 * 1_000_000
"""Maximum age of an id that a lock registers: a user's SQL transaction may stay open for days. It is limited because
the lock of another application, read as an id, may be any number."""

_OLDEST_LOCK = "select min(v.id) from {s}xq_locked_id v where v.id <= %s and v.id > %s"


def started_ms(work: Reading, transaction: int) -> int | None:
    """Read when a long transaction began, in milliseconds; None if it has ended."""
    return work.connection.scalar(sa.select(active.c.started_ms).where(active.c.id == transaction))


def older_loads(work: Reading, transaction: int, subscription: int) -> list[int]:
    """List the first loads of a subscription that began before one of its first loads."""
    older = sa.select(active.c.id).where(active.c.load == subscription, active.c.id < transaction)
    return list(work.connection.scalars(older.order_by(active.c.id)))


def note_mirror(work: Work, transaction: int, mirrors: str) -> list[int]:
    """Record what a transaction mirrors, and list the older ones that mirror the same.

    :param mirrors: names the queue and the scope.
    """
    work.connection.execute(active.update().where(active.c.id == transaction).values(mirrors=mirrors))
    older = sa.select(active.c.id).where(active.c.mirrors == mirrors, active.c.id < transaction)
    return list(work.connection.scalars(older.order_by(active.c.id)))


def loads_of_others(work: Reading, subscription: int) -> set[int]:
    """List the first loads in progress of all other subscriptions. They write no cells."""
    return set(work.connection.scalars(sa.select(active.c.id).where(active.c.load != subscription)))


def limited_to_others(work: Reading, reader: int) -> set[int]:
    """List the ids in progress of transactions that may add to some queues, but not to the queue of a reader."""
    first = active.alias()
    statement = sa.select(active.c.id, first.c.queues).join(first, first.c.id == active.c.owner)
    rows = work.connection.execute(statement.where(first.c.queues.is_not(None))).all()
    if not rows:
        return set()
    found = work.connection.scalar(sa.select(queue.c.id).where(queue.c.number == reader))
    source = "" if found is None else found.partition("/")[0]
    return {number for number, queues in rows if source and source not in json.loads(queues)}


def oldest_lock(work: Reading, below: int) -> int | None:
    """Find the smallest id up to a bound whose lock is held, even if snapshots no longer list it.

    A bound transaction that was left open for hours has such an id and may still commit.
    """
    if work.connection.dialect.name != "postgresql":
        return None
    statement = _OLDEST_LOCK.format(s=prefix_of(work.connection))
    found = work.connection.exec_driver_sql(statement, (below, max(0, below - _WINDOW))).scalar()
    return None if found is None else int(found)


def invalid_ids(work: Reading) -> frozenset[int]:
    """Read all invalid ids."""
    return frozenset(work.connection.scalars(sa.select(invalid.c.id)))


def has_staged(work: Reading, transaction: int, queue: int) -> bool:
    """Return whether a transaction has staged entries for a queue, in rows or in files."""
    s, g = staged_entry.c, segment.c
    in_rows = sa.exists().where(s.id == transaction, s.queue_number == queue)
    in_files = sa.exists().where(g.transaction_id == transaction, g.queue_number == queue)
    return bool(work.connection.scalar(sa.select(sa.or_(in_rows, in_files))))


@dataclass(frozen=True, slots=True)
class KeptInvalid:
    """An id that stays invalid because a participant could not undo what it wrote under the id."""

    id: int
    since_ms: int
    left_to: str
    """The participants, separated by commas."""


def kept_invalid(work: Reading) -> list[KeptInvalid]:
    """Read the invalid ids that are kept for participants."""
    statement = sa.select(invalid.c.id, invalid.c.since_ms, invalid.c.left_to).where(invalid.c.left_to.is_not(None))
    return [KeptInvalid(*row) for row in work.connection.execute(statement.order_by(invalid.c.id))]


def forget_invalid(work: Work, transaction: int) -> bool:
    """Forget an id that was kept for participants; return False if there is none."""
    kept = sa.update(invalid).where(invalid.c.id == transaction, invalid.c.left_to.is_not(None))
    return work.connection.execute(kept.values(left_to=None)).rowcount > 0


def end_all(work: Work) -> int:
    """End all transactions with an active row and return their number; clean-up deletes what they staged."""
    staged = sa.select(active.c.id, sa.literal(work.now()), sa.null()).where(
        active.c.kind == "long", active.c.id.not_in(sa.select(invalid.c.id))
    )
    count = work.connection.execute(sa.select(sa.func.count()).where(active.c.id == active.c.owner)).scalar_one()
    work.connection.execute(invalid.insert().from_select(["id", "since_ms", "left_to"], staged))
    work.connection.execute(active.delete())
    return int(count)
