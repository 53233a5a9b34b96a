"""SQL about locks; whoever locks several rows, locks them in the order of fence and bucket, and then draws no id."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.queries.id_lists import among
from export_queue.core.store.refusals import removed_subscription
from export_queue.core.store.schema import lock as lk
from export_queue.core.store.schema import lock_request as rq
from export_queue.core.store.schema import queue as q

Place = tuple[int, int]
"""Fence and first bucket: the key of a lock. All locks of one claim have one fence."""

_in_order = (lk.c.fence, lk.c.first_bucket)


def serialise_requests(work: Work, queue: int, *, queue_id: str | None = None) -> None:
    """Let one request for locks of a queue decide at a time; commits hold this row, if at all, by a weaker lock.

    :param queue_id: the queue's id, for the error.
    :raises UnknownQueue: it is a subscription that was removed.
    """
    row = sa.select(q.c.number).where(q.c.number == queue)
    if work.connection.execute(row.with_for_update(key_share=True)).first() is None:
        raise removed_subscription(f"subscription {queue if queue_id is None else repr(queue_id)}")


def overlapping(work: Reading, queue: int, layout: int, *, first: int, end: int, lock: bool) -> list[Mapping[str, Any]]:
    """Read the locks that have buckets of an interval, worthless ones too.

    :param lock: whether their rows are locked, so that they stay as they are.
    """
    statement = (
        sa.select(lk)
        .where(lk.c.queue_number == queue, lk.c.layout == layout, lk.c.first_bucket < end, lk.c.end_bucket > first)
        .order_by(*_in_order)
    )
    rows = work.connection.execute(statement.with_for_update() if lock else statement)
    return [dict(row) for row in rows.mappings()]


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


def attempts_of(work: Reading, task: str) -> set[str]:
    """Read which attempts of a task have locks, of any queue."""
    return set(work.connection.scalars(sa.select(lk.c.attempt).where(lk.c.task == task).distinct()))


def attempts_and_waiting(work: Reading, task: str, *, queue: int) -> tuple[set[str], bool]:
    """Read which attempts of a task have locks of a queue or wait for some, and whether anybody waits for any."""
    # By a sum, for which there is no index: SQLite would read all locks of the queue, of which a task has few.
    holding = sa.select(lk.c.attempt, sa.literal(0)).where(lk.c.task == task, lk.c.queue_number + 0 == queue)
    waiting = sa.select(sa.case((rq.c.task == task, rq.c.attempt)), sa.literal(1)).where(rq.c.queue_number == queue)
    found = list(work.connection.execute(sa.union(holding, waiting)))
    return {attempt for attempt, _ in found if attempt is not None}, any(waits for _, waits in found)


def holds_any(work: Reading, task: str, attempt: str, *, now: int) -> bool:
    """Tell whether an attempt holds a lock, of any queue."""
    held = (lk.c.task == task, lk.c.attempt == attempt, lk.c.lease_ms > now, lk.c.revoked.is_(False))
    return bool(work.connection.scalar(sa.select(sa.exists().where(*held))))


def revoke(work: Work, task: str, attempts: Collection[str]) -> int:
    """Mark all locks of attempts as revoked, and forget their requests; returns how many were not."""
    chosen = sa.and_(lk.c.task == task, lk.c.attempt.in_(sorted(attempts)), lk.c.revoked.is_(False))
    work.connection.execute(sa.select(*_in_order).where(chosen).order_by(*_in_order).with_for_update())
    # Behind the locks' rows, as requests do that forget those whose waiters are gone.
    wait = sa.and_(rq.c.task == task, rq.c.attempt.in_(sorted(attempts)))
    work.connection.execute(rq.delete().where(wait))
    return work.connection.execute(lk.update().where(chosen).values(revoked=True)).rowcount


def revoke_at(work: Work, places: Collection[Place]) -> None:
    """Mark locks as revoked whose rows are locked."""
    if places:
        work.connection.execute(lk.update().where(_at(work, places)).values(revoked=True))


def of_queue(work: Reading, queue: int, *, now: int) -> list[Mapping[str, Any]]:
    """Read the live locks of a queue."""
    statement = (
        sa.select(lk)
        .where(lk.c.queue_number == queue, lk.c.lease_ms > now, lk.c.revoked.is_(False))
        .order_by(lk.c.first_bucket, lk.c.fence)
    )
    return [dict(row) for row in work.connection.execute(statement).mappings()]


def on_record(work: Reading, queue: int) -> list[Mapping[str, Any]]:
    """Read all locks of a queue, expired and revoked ones too."""
    statement = sa.select(lk).where(lk.c.queue_number == queue).order_by(lk.c.layout, lk.c.first_bucket, lk.c.fence)
    return [dict(row) for row in work.connection.execute(statement).mappings()]


def requests(work: Reading, queue: int, layout: int | None = None) -> list[Mapping[str, Any]]:
    """Read the requests that wait for locks of a queue, the oldest first, also those that count no more."""
    statement = sa.select(rq).where(rq.c.queue_number == queue).order_by(rq.c.number)
    rows = work.connection.execute(statement if layout is None else statement.where(rq.c.layout == layout))
    return [dict(row) for row in rows.mappings()]


def insert_request(work: Work, row: Mapping[str, Any]) -> None:
    """Let a request wait."""
    work.connection.execute(rq.insert().values(**row))


def refresh_request(work: Work, number: int, *, until_ms: int) -> bool:
    """Let a request wait on; tells whether it is still there."""
    return bool(work.connection.execute(rq.update().where(rq.c.number == number).values(until_ms=until_ms)).rowcount)


def delete_requests(work: Work, numbers: Collection[int]) -> None:
    """Forget requests."""
    if numbers:
        work.connection.execute(rq.delete().where(rq.c.number.in_(sorted(numbers))))


def _at(work: Reading, places: Iterable[Place]) -> sa.ColumnElement[bool]:
    # One parameter for all buckets of a claim: neither database takes one for each of many thousands.
    by_fence: defaultdict[int, list[int]] = defaultdict(list)
    for fence, first in places:
        by_fence[fence].append(first)
    parts = [sa.and_(lk.c.fence == fence, among(work, lk.c.first_bucket, firsts)) for fence, firsts in by_fence.items()]
    return sa.or_(sa.false(), *parts)
