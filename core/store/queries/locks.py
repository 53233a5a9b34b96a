"""SQL about locks of queues, requests for them, and attempts of tasks.

A transaction that locks several rows of locks does so in the order of fence and first bucket, and then draws no id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.portable import among, insert_into
from export_queue.core.store.refusals import removed_subscription
from export_queue.core.store.schema import attempt as t
from export_queue.core.store.schema import lock as lk
from export_queue.core.store.schema import lock_request as rq
from export_queue.core.store.schema import queue as q

LockId = tuple[int, int]
"""Fence and first bucket: the key of a lock. All locks of one claim have one fence."""

_in_order = (lk.c.fence, lk.c.first_bucket)


def serialise_requests(work: Work, queue: int, *, queue_id: str | None = None) -> None:
    """Let one request for locks of a queue decide at a time. Commits only take a weaker lock on this row.

    :param queue_id: the queue's id, for the error.
    :raises UnknownQueue: it is a subscription that was removed.
    """
    row = sa.select(q.c.number).where(q.c.number == queue)
    if work.connection.execute(row.with_for_update(key_share=True)).first() is None:
        raise removed_subscription(f"subscription {queue if queue_id is None else repr(queue_id)}")


def overlapping(work: Reading, queue: int, layout: int, *, first: int, end: int, lock: bool) -> list[Mapping[str, Any]]:
    """Read the locks that overlap a bucket interval, including worthless ones.

    :param lock: whether to lock their rows.
    """
    statement = (
        sa.select(lk)
        .where(lk.c.queue_number == queue, lk.c.layout == layout, lk.c.first_bucket < end, lk.c.end_bucket > first)
        .order_by(*_in_order)
    )
    return work.rows(statement.with_for_update() if lock else statement)


def insert(work: Work, rows: Sequence[Mapping[str, Any]]) -> None:
    """Grant locks."""
    work.connection.execute(lk.insert(), list(rows))


def select_held(work: Work, ids: Iterable[LockId], *, now: int, shared: bool) -> set[LockId]:
    """Lock the rows of locks and return those that are neither expired nor revoked."""
    statement = (
        sa.select(*_in_order)
        .where(_at(work, ids), lk.c.lease_ms > now, lk.c.revoked.is_(False))
        .order_by(*_in_order)
        .with_for_update(read=shared)
    )
    return {(int(fence), int(first)) for fence, first in work.connection.execute(statement)}


def extend(work: Work, ids: Iterable[LockId], *, lease_ms: int) -> None:
    """Set the end of leases whose rows are locked."""
    work.connection.execute(lk.update().where(_at(work, ids)).values(lease_ms=lease_ms))


def delete(work: Work, ids: Collection[LockId]) -> None:
    """Remove locks."""
    if ids:
        _delete(work, _at(work, ids))


def delete_of_attempt(work: Work, task: str, attempt: str, *, queue: int, layout: int, firsts: Sequence[int]) -> None:
    """Remove the locks of an attempt on units of a queue, which are given by their first buckets."""
    of_units = sa.and_(lk.c.queue_number == queue, lk.c.layout == layout, among(work, lk.c.first_bucket, firsts))
    _delete(work, sa.and_(lk.c.task == task, lk.c.attempt == attempt, of_units))


def _delete(work: Work, chosen: sa.ColumnElement[bool]) -> None:
    _lock_rows(work, chosen)
    work.connection.execute(lk.delete().where(chosen))


def hold_all(work: Work, queue: int) -> None:
    """Lock the rows of all locks of a queue, which stops their holders."""
    _lock_rows(work, lk.c.queue_number == queue)


def _lock_rows(work: Work, chosen: sa.ColumnElement[bool]) -> None:
    work.connection.execute(sa.select(*_in_order).where(chosen).order_by(*_in_order).with_for_update())


def holders(work: Reading, task: str) -> set[str]:
    """Read which attempts of a task have locks, of any queue."""
    return set(work.connection.scalars(sa.select(lk.c.attempt).where(lk.c.task == task).distinct()))


def holders_and_waiting(work: Reading, task: str, *, queue: int) -> tuple[set[str], bool]:
    """Read which attempts of a task have or request locks of a queue, and whether anybody requests any."""
    # A sum has no index. With one, SQLite would read all locks of the queue, of which a task has few.
    holding = sa.select(lk.c.attempt, sa.literal(0)).where(lk.c.task == task, lk.c.queue_number + 0 == queue)
    waiting = sa.select(sa.case((rq.c.task == task, rq.c.attempt)), sa.literal(1)).where(rq.c.queue_number == queue)
    found = list(work.connection.execute(sa.union(holding, waiting)))
    return {attempt for attempt, _ in found if attempt is not None}, any(waits for _, waits in found)


def holds_any(work: Reading, task: str, attempt: str, *, now: int) -> bool:
    """Return whether an attempt holds a lock, of any queue."""
    held = (lk.c.task == task, lk.c.attempt == attempt, lk.c.lease_ms > now, lk.c.revoked.is_(False))
    return bool(work.connection.scalar(sa.select(sa.exists().where(*held))))


def revoke(work: Work, task: str, attempts: Collection[str]) -> int:
    """Revoke attempts, their locks and their requests, including attempts that have not begun.

    :returns: how many locks were revoked.
    """
    names, now = sorted(attempts), work.now()
    if names:
        statement = insert_into(work, t).on_conflict_do_update(
            index_elements=[t.c.task, t.c.attempt], set_={"revoked": True, "at_ms": now}
        )
        rows = [{"task": task, "attempt": name, "revoked": True, "at_ms": now} for name in names]
        work.connection.execute(statement, rows)
    chosen = sa.and_(lk.c.task == task, lk.c.attempt.in_(names), lk.c.revoked.is_(False))
    _lock_rows(work, chosen)
    # After the rows of locks, as in requests that delete those whose owners are gone.
    work.connection.execute(rq.delete().where(rq.c.task == task, rq.c.attempt.in_(names)))
    return work.connection.execute(lk.update().where(chosen).values(revoked=True)).rowcount


def revoke_at(work: Work, ids: Collection[LockId]) -> None:
    """Mark locks as revoked whose rows are locked."""
    if ids:
        work.connection.execute(lk.update().where(_at(work, ids)).values(revoked=True))


def of_queue(work: Reading, queue: int, *, now: int | None = None) -> list[Mapping[str, Any]]:
    """Read the locks of a queue: those that are held at a time, or all."""
    statement = sa.select(lk).where(lk.c.queue_number == queue)
    if now is not None:
        statement = statement.where(lk.c.lease_ms > now, lk.c.revoked.is_(False))
    return work.rows(statement.order_by(lk.c.layout, lk.c.first_bucket, lk.c.fence))


def holding_tasks(work: Reading, queue: int, *, now: int, limit: int) -> list[tuple[str, int, int]]:
    """Read the tasks that hold most locks of a queue: the task, the number of all tasks, and that of all locks."""
    number = sa.func.count()
    statement = (
        sa.select(lk.c.task, number.over(), sa.func.sum(number).over())
        .where(lk.c.queue_number == queue, lk.c.lease_ms > now, lk.c.revoked.is_(False))
        .group_by(lk.c.task)
        .order_by(number.desc(), lk.c.task)
        .limit(limit)
    )
    return [(task, int(tasks), int(locks)) for task, tasks, locks in work.connection.execute(statement)]


def requests(work: Reading, queue: int, layout: int | None = None) -> list[Mapping[str, Any]]:
    """Read the requests for locks of a queue, oldest first, including expired ones."""
    statement = sa.select(rq).where(rq.c.queue_number == queue).order_by(rq.c.number)
    return work.rows(statement if layout is None else statement.where(rq.c.layout == layout))


def insert_request(work: Work, row: Mapping[str, Any]) -> None:
    """Add a request."""
    work.connection.execute(rq.insert().values(**row))


def refresh_request(work: Work, number: int, *, until_ms: int) -> bool:
    """Extend a request; return whether it still exists."""
    return bool(work.connection.execute(rq.update().where(rq.c.number == number).values(until_ms=until_ms)).rowcount)


def delete_requests(work: Work, numbers: Collection[int]) -> None:
    """Delete requests."""
    if numbers:
        work.connection.execute(rq.delete().where(rq.c.number.in_(sorted(numbers))))


def _at(work: Reading, ids: Iterable[LockId]) -> sa.ColumnElement[bool]:
    # One parameter for all buckets of a claim: neither database accepts many thousands of parameters.
    by_fence: defaultdict[int, list[int]] = defaultdict(list)
    for fence, first in ids:
        by_fence[fence].append(first)
    parts = [sa.and_(lk.c.fence == fence, among(work, lk.c.first_bucket, firsts)) for fence, firsts in by_fence.items()]
    return sa.or_(sa.false(), *parts)


def known_attempts(work: Reading, task: str, *, lock: bool) -> list[Mapping[str, Any]]:
    """Read the recorded attempts of a task in the order of their names, and optionally lock their rows."""
    columns = (t.c.attempt, t.c.submission, t.c.queue_number, t.c.revoked)
    statement = sa.select(*columns).where(t.c.task == task).order_by(t.c.attempt)
    return work.rows(statement.with_for_update() if lock else statement)


def add_attempt(work: Work, queue: int, task: str, attempt: str, *, submission: str | None) -> None:
    """Record that an attempt has begun, unless it is recorded."""
    row = {"task": task, "attempt": attempt, "submission": submission, "queue_number": queue}
    statement = insert_into(work, t).values(**row, revoked=False, at_ms=work.now())
    work.connection.execute(statement.on_conflict_do_nothing())


def touch_attempt(work: Work, task: str, attempt: str) -> None:
    """Set the time of an attempt that is recorded and not revoked to now; it always increases."""
    chosen, now = (t.c.task == task, t.c.attempt == attempt, t.c.revoked.is_(False)), work.now()
    later = sa.case((t.c.at_ms < now, now), else_=t.c.at_ms + 1)
    work.connection.execute(t.update().where(*chosen).values(at_ms=later))


def attempt_at(work: Reading, task: str, attempt: str) -> int | None:
    """Read the time of an attempt; None if it is not recorded."""
    return work.connection.scalar(sa.select(t.c.at_ms).where(t.c.task == task, t.c.attempt == attempt))


def forget_attempts(work: Work, task: str, attempts: Collection[str]) -> None:
    """Delete attempts that have ended, but no revoked ones."""
    work.connection.execute(
        t.delete().where(t.c.task == task, t.c.attempt.in_(sorted(attempts)), t.c.revoked.is_(False))
    )


def delete_old_attempts(work: Work, *, before_ms: int, limit: int) -> int:
    """Delete attempts that began, or were revoked, before a time."""
    old = sa.select(t.c.task, t.c.attempt).where(t.c.at_ms < before_ms).order_by(t.c.at_ms).limit(limit)
    return work.connection.execute(t.delete().where(sa.tuple_(t.c.task, t.c.attempt).in_(old))).rowcount
