"""SQL about locks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.schema import lock as lk
from export_queue.core.store.schema import queue as q


def serialise_requests(work: Work, queue: int) -> None:
    """Let one request for locks of a queue decide at a time; commits do not touch this row."""
    work.connection.execute(sa.select(q.c.number).where(q.c.number == queue).with_for_update())


def overlapping(work: Work, queue: int, layout: int, *, first: int, end: int) -> list[Mapping[str, Any]]:
    """Read and lock the rows that meet a bucket interval."""
    statement = (
        sa.select(lk)
        .where(lk.c.queue_number == queue, lk.c.layout == layout, lk.c.first_bucket < end, lk.c.end_bucket > first)
        .order_by(lk.c.fence)
        .with_for_update()
    )
    return [dict(row) for row in work.connection.execute(statement).mappings()]


def insert(work: Work, row: Mapping[str, Any]) -> None:
    """Grant a lock."""
    work.connection.execute(lk.insert().values(**row))


def select_held(work: Work, fences: Sequence[int], *, now: int, shared: bool) -> set[int]:
    """Lock rows by fence; returns those that are neither expired nor revoked."""
    statement = (
        sa.select(lk.c.fence)
        .where(lk.c.fence.in_(list(fences)), lk.c.lease_ms > now, lk.c.revoked.is_(False))
        .order_by(lk.c.fence)
        .with_for_update(read=shared)
    )
    return {int(fence) for fence in work.connection.execute(statement).scalars()}


def extend(work: Work, fences: Sequence[int], *, lease_ms: int) -> None:
    """Move the end of leases."""
    work.connection.execute(lk.update().where(lk.c.fence.in_(list(fences))).values(lease_ms=lease_ms))


def delete(work: Work, fences: Sequence[int]) -> None:
    """Remove locks."""
    work.connection.execute(lk.delete().where(lk.c.fence.in_(list(fences))))


def revoke_task(work: Work, task: str) -> int:
    """Mark all locks of a task as revoked; the holder learns of it at its next step."""
    return work.connection.execute(lk.update().where(lk.c.task == task).values(revoked=True)).rowcount


def of_queue(work: Reading, queue: int, *, now: int) -> list[Mapping[str, Any]]:
    """Read the live locks of a queue."""
    statement = (
        sa.select(lk)
        .where(lk.c.queue_number == queue, lk.c.lease_ms > now, lk.c.revoked.is_(False))
        .order_by(lk.c.first_bucket)
    )
    return [dict(row) for row in work.connection.execute(statement).mappings()]
