"""SQL about the readers of queues: subscriptions, and queues that have none."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.queries import segments
from export_queue.core.store.schema import (
    dead_letter,
    entry,
    hidden_segment,
    lock,
    lock_request,
    removed_queue,
    segment_done,
    segment_reader,
    sink_fence,
)
from export_queue.core.store.schema import queue as q

_OF_A_QUEUE = (entry, segment_done, segment_reader, hidden_segment, dead_letter, lock, lock_request)
"""Tables with rows by the number of a queue."""


def try_to_shut_out_commits(work: Work, queue: int) -> bool:
    """Block commits that add to a queue for the rest of the SQL transaction; False if such commits are in progress."""
    locks = work.database.dialect.locks
    return locks is None or locks.try_readers(work.connection, queue)


def hold_as_commits_do(work: Work, queue: int) -> None:
    """Keep the readers and the layout of a queue unchanged until the SQL transaction ends."""
    if (locks := work.database.dialect.locks) is not None:
        locks.hold_readers(work.connection, queue)


def brief_waits(work: Work, queue: str) -> contextlib.AbstractContextManager[None]:
    """Limit the wait for each lock to a moment, from the start of a block to the end of the SQL transaction.

    :param queue: the id of the queue whose readers are changed.
    :raises QueueBusy: a wait in the block took longer.
    """
    locks = work.database.dialect.locks
    return contextlib.nullcontext() if locks is None else locks.brief_waits(work.connection, queue)


def reader_rows(work: Reading, parent: int) -> list[Mapping[str, Any]]:
    """Read the options of a queue's subscriptions, and of its state, by name."""
    return work.rows(sa.select(q).where(q.c.parent == parent).order_by(q.c.id))


def has_rows(work: Work, number: int, *, locked_at: int | None = None) -> bool:
    """Return whether a queue has dead letters or entries, including those of transactions in progress.

    :param locked_at: if given, locks that are held at this time count too.
    """
    found = [sa.exists().where(table.c.queue_number == number) for table in (entry, segment_reader, dead_letter)]
    found.append(segments.staged(number))
    if locked_at is not None:
        found.append(sa.exists().where(*_held(number, locked_at)))
    return bool(work.connection.scalar(sa.select(sa.or_(*found))))


def count_rows(work: Reading, number: int, *, locked_at: int) -> tuple[int, int, int]:
    """Count a queue's entries, including those of transactions in progress, its dead letters and its locks."""
    counted = (
        sa.select(sa.func.count()).select_from(table).where(*condition).scalar_subquery()
        for table, condition in (
            (entry, [entry.c.queue_number == number]),
            (dead_letter, [dead_letter.c.queue_number == number]),
            (lock, _held(number, locked_at)),
        )
    )
    entries, dead, locks = work.connection.execute(sa.select(*counted)).one()
    return entries + segments.count_left(work, number) + segments.count_staged(work, number), dead, locks


def _held(number: int, at_ms: int) -> list[sa.ColumnElement[bool]]:
    return [lock.c.queue_number == number, lock.c.lease_ms > at_ms, lock.c.revoked.is_(False)]


def hold(work: Work, number: int) -> None:
    """Lock the row of a queue or subscription: its options do not change, and nobody requests its locks."""
    work.connection.execute(sa.select(q.c.number).where(q.c.number == number).with_for_update(key_share=True))


def remove(work: Work, number: int, queue_id: str) -> None:
    """Remove a subscription and its locks, which their holders notice at once; clean-up deletes its other rows."""
    for table in (lock, lock_request):
        work.connection.execute(table.delete().where(table.c.queue_number == number))
    work.connection.execute(q.delete().where(q.c.number == number))
    work.connection.execute(sink_fence.delete().where(sink_fence.c.queue == queue_id))
    work.connection.execute(removed_queue.insert().values(number=number))


def delete_removed(work: Work, *, limit: int) -> int:
    """Delete up to ``limit`` rows of removed subscriptions and return their number."""
    deleted = 0
    for number in list(work.connection.scalars(sa.select(removed_queue.c.number).order_by(removed_queue.c.number))):
        for table in _OF_A_QUEUE:
            key = sa.tuple_(*table.primary_key.columns)
            doomed = sa.select(*table.primary_key.columns).where(table.c.queue_number == number).limit(limit - deleted)
            deleted += work.connection.execute(table.delete().where(key.in_(doomed))).rowcount
            if deleted >= limit:
                return deleted
        work.connection.execute(removed_queue.delete().where(removed_queue.c.number == number))
    return deleted


def waive_first_load(work: Work, number: int) -> bool:
    """Record that a subscription needs no first load; return whether one was missing."""
    statement = q.update().where(q.c.number == number, q.c.first_load == "missing").values(first_load="waived")
    return work.connection.execute(statement).rowcount > 0
