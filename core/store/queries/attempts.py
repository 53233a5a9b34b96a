"""SQL about attempts of tasks: those that have begun, and those that may work no more."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.queries.inserts import insert_into
from export_queue.core.store.schema import attempt as t


def of_task(work: Reading, task: str, *, lock: bool) -> list[Mapping[str, Any]]:
    """Read the attempts of a task that are known; locked rows are locked in the order of their names."""
    statement = (
        sa.select(t.c.attempt, t.c.submission, t.c.queue_number, t.c.revoked)
        .where(t.c.task == task)
        .order_by(t.c.attempt)
    )
    rows = work.connection.execute(statement.with_for_update() if lock else statement)
    return [dict(row) for row in rows.mappings()]


def add(work: Work, queue: int, task: str, attempt: str, *, submission: str | None) -> None:
    """Note that an attempt has begun; one that is known stays as it is."""
    row = {"task": task, "attempt": attempt, "submission": submission, "queue_number": queue}
    statement = insert_into(work, t).values(**row, revoked=False, at_ms=work.now())
    work.connection.execute(statement.on_conflict_do_nothing())


def revoke(work: Work, task: str, attempts: Collection[str]) -> None:
    """Note that attempts may work no more, also those that have not begun."""
    now = work.now()
    statement = insert_into(work, t).on_conflict_do_update(
        index_elements=[t.c.task, t.c.attempt], set_={"revoked": True, "at_ms": now}
    )
    rows = [{"task": task, "attempt": name, "revoked": True, "at_ms": now} for name in sorted(attempts)]
    if rows:
        work.connection.execute(statement, rows)


def forget(work: Work, task: str, attempts: Collection[str]) -> None:
    """Delete attempts that have ended; a revoked one stays known."""
    work.connection.execute(
        t.delete().where(t.c.task == task, t.c.attempt.in_(sorted(attempts)), t.c.revoked.is_(False))
    )


def delete_old(work: Work, *, before_ms: int, limit: int) -> int:
    """Delete attempts that began, or were revoked, before a time."""
    old = sa.select(t.c.task, t.c.attempt).where(t.c.at_ms < before_ms).order_by(t.c.at_ms).limit(limit)
    return work.connection.execute(t.delete().where(sa.tuple_(t.c.task, t.c.attempt).in_(old))).rowcount
