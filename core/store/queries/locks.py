"""SQL about locks; whoever locks several rows, locks them in the order of fence and bucket, and then draws no id."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.queries.id_lists import among
from export_queue.core.store.queries.queues import removed_subscription
from export_queue.core.store.schema import lock as lk
from export_queue.core.store.schema import queue as q

Place = tuple[int, int]
"""Fence and first bucket: the key of a lock. All locks of one claim have one fence."""

_in_order = (lk.c.fence, lk.c.first_bucket)


def serialise_requests(work: Work, queue: int, *, queue_id: str | None = None) -> int:
    """Let one request for locks of a queue decide at a time; commits hold this row, if at all, by a weaker lock.

    :param queue_id: the queue's id, for the error.
    :returns: the buckets of one unit.
    :raises UnknownQueue: it is a subscription that was removed.
    """
    units = sa.select(q.c.buckets_per_range).where(q.c.number == queue).with_for_update(key_share=True)
    found = work.connection.execute(units).scalar()
    if found is None:
        raise removed_subscription(f"subscription {queue if queue_id is None else repr(queue_id)}")
    return int(found)


def overlapping(work: Work, queue: int, layout: int, *, first: int, end: int) -> list[Mapping[str, Any]]:
    """Read and lock the rows that meet a bucket interval."""
    statement = (
        sa.select(lk)
        .where(lk.c.queue_number == queue, lk.c.layout == layout, lk.c.first_bucket < end, lk.c.end_bucket > first)
        .order_by(*_in_order)
        .with_for_update()
    )
    return [dict(row) for row in work.connection.execute(statement).mappings()]


def insert(work: Work, rows: Sequence[Mapping[str, Any]]) -> None:
    """Grant locks."""
    work.connection.execute(lk.insert(), list(rows))


def select_held(work: Work, places: Iterable[Place], *, now: int, shared: bool) -> set[Place]:
    """Lock rows; returns those that are neither expired nor revoked."""
    statement = (
        sa.select(*_in_order)
        .where(_at(work, places), lk.c.lease_ms > now, lk.c.revoked.is_(False))
        .order_by(*_in_order)
        .with_for_update(read=shared)
    )
    return {(int(fence), int(first)) for fence, first in work.connection.execute(statement)}


def extend(work: Work, places: Iterable[Place], *, lease_ms: int) -> None:
    """Move the end of leases whose rows are locked."""
    work.connection.execute(lk.update().where(_at(work, places)).values(lease_ms=lease_ms))


def delete(work: Work, places: Collection[Place]) -> None:
    """Remove locks."""
    if places:
        _delete(work, _at(work, places))


def delete_of_attempt(work: Work, task: str, attempt: str, *, queue: int, layout: int, firsts: Sequence[int]) -> None:
    """Remove the locks of an attempt on units of a queue, which are given by their first buckets."""
    of_units = sa.and_(lk.c.queue_number == queue, lk.c.layout == layout, among(work, lk.c.first_bucket, firsts))
    _delete(work, sa.and_(lk.c.task == task, lk.c.attempt == attempt, of_units))


def _delete(work: Work, chosen: sa.ColumnElement[bool]) -> None:
    work.connection.execute(sa.select(*_in_order).where(chosen).order_by(*_in_order).with_for_update())
    work.connection.execute(lk.delete().where(chosen))


def attempts_of(work: Reading, task: str, *, queue: int | None = None) -> set[str]:
    """Read which attempts of a task have locks, of one queue or of any."""
    statement = sa.select(lk.c.attempt).where(lk.c.task == task).distinct()
    return set(work.connection.scalars(statement if queue is None else statement.where(lk.c.queue_number == queue)))


def revoke(work: Work, task: str, attempts: Collection[str]) -> int:
    """Mark all locks of attempts as revoked; returns how many were not."""
    chosen = sa.and_(lk.c.task == task, lk.c.attempt.in_(sorted(attempts)), lk.c.revoked.is_(False))
    work.connection.execute(sa.select(*_in_order).where(chosen).order_by(*_in_order).with_for_update())
    return work.connection.execute(lk.update().where(chosen).values(revoked=True)).rowcount


def of_queue(work: Reading, queue: int, *, now: int) -> list[Mapping[str, Any]]:
    """Read the live locks of a queue."""
    statement = (
        sa.select(lk)
        .where(lk.c.queue_number == queue, lk.c.lease_ms > now, lk.c.revoked.is_(False))
        .order_by(lk.c.first_bucket)
    )
    return [dict(row) for row in work.connection.execute(statement).mappings()]


def _at(work: Reading, places: Iterable[Place]) -> sa.ColumnElement[bool]:
    # One parameter for all buckets of a claim: neither database takes one for each of many thousands.
    by_fence: defaultdict[int, list[int]] = defaultdict(list)
    for fence, first in places:
        by_fence[fence].append(first)
    parts = [sa.and_(lk.c.fence == fence, among(work, lk.c.first_bucket, firsts)) for fence, firsts in by_fence.items()]
    return sa.or_(sa.false(), *parts)
