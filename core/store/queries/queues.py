"""SQL about the stored options of queues and tables, and the fences that the sinks of queues have kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.portable import insert_into
from export_queue.core.store.schema import is_state
from export_queue.core.store.schema import queue as q
from export_queue.core.store.schema import sink_fence as f
from export_queue.core.store.schema import table as t


def layout_of(work: Reading, number: int) -> int | None:
    """Read the number of a queue's current layout; None if the queue was removed."""
    return work.connection.scalar(sa.select(q.c.layout).where(q.c.number == number))


def queue_row(work: Reading, queue_id: str) -> Mapping[str, Any] | None:
    """Read the options of one queue."""
    return next(iter(work.rows(sa.select(q).where(q.c.id == queue_id))), None)


def queue_rows(work: Reading) -> list[Mapping[str, Any]]:
    """Read the options of all queues and subscriptions, by name; states are left out."""
    return work.rows(sa.select(q).where(sa.not_(is_state)).order_by(q.c.id))


def add_queue(work: Work, options: Mapping[str, Any]) -> bool:
    """Store a new queue under a new number; return False if another process has just stored it."""
    values = {**options, "number": work.draw(), "created_ms": work.now()}
    # RETURNING, because PostgreSQL's driver does not report the number of rows of such a statement.
    statement = insert_into(work, q).values(values).on_conflict_do_nothing().returning(q.c.number)
    return work.connection.execute(statement).first() is not None


def alter_queue(work: Work, number: int, **options: Any) -> None:
    """Change stored options of a queue."""
    work.connection.execute(q.update().where(q.c.number == number).values(**options))


def oldest_cut(work: Reading, number: int) -> int | None:
    """Read the id below which a state cannot be read; None if the state was removed."""
    return work.connection.scalar(sa.select(q.c.oldest_cut).where(q.c.number == number))


def raise_oldest_cut(work: Work, number: int, cut: int) -> None:
    """Record that a state cannot be read as of ids below one, because former values are about to be deleted."""
    work.connection.execute(q.update().where(q.c.number == number, q.c.oldest_cut < cut).values(oldest_cut=cut))


def bind_queue(work: Work, number: int, sink: str, *, rebind: bool) -> None:
    """Store the name of the sink of a queue; without ``rebind`` only if it has none."""
    statement = q.update().where(q.c.number == number).values(sink=sink, binding=None)
    work.connection.execute(statement if rebind else statement.where(q.c.sink.is_(None)))


def table_row(work: Reading, name: str) -> Mapping[str, Any] | None:
    """Read the options of one table."""
    return next(iter(work.rows(sa.select(t).where(t.c.name == name))), None)


def table_names(work: Reading, *, limit: int) -> list[str]:
    """Read the names of the first tables, in their order."""
    return list(work.connection.scalars(sa.select(t.c.name).order_by(t.c.name).limit(limit)))


def add_table(work: Work, name: str, **options: Any) -> bool:
    """Store a new table under a new number; return False if another process has just stored it."""
    values = {"name": name, "number": work.draw(), **options}
    return work.connection.execute(insert_into(work, t).values(values).on_conflict_do_nothing()).rowcount > 0


def shown_fence(work: Reading, queue_id: str, sink: str) -> int:
    """Read the highest fence of a queue that a sink is known to have kept; 0 if nothing was drained into it."""
    return work.connection.scalar(sa.select(f.c.fence).where(f.c.queue == queue_id, f.c.sink == sink)) or 0


def note_fence(work: Work, queue: int, sink: str, fence: int) -> None:
    """Record that a sink has kept a fence, unless a higher one is recorded.

    :param queue: the queue's number. Nothing is recorded for a removed subscription: another may have its id now.
    """
    # The queue's row is locked, so whoever removes it deletes this fence too.
    held = (
        sa.select(q.c.id, sa.literal(sink), sa.literal(fence, sa.BigInteger))
        .where(q.c.number == queue)
        .with_for_update(read=True, key_share=True)
    )
    statement = insert_into(work, f).from_select(["queue", "sink", "fence"], held)
    new = statement.excluded.fence
    work.connection.execute(
        statement.on_conflict_do_update(
            index_elements=[f.c.queue, f.c.sink], set_={"fence": new}, where=new > f.c.fence
        )
    )


def forget_fence(work: Work, queue_id: str, sink: str, fence: int) -> None:
    """Forget a fence, unless a higher one has been recorded since."""
    work.connection.execute(f.delete().where(f.c.queue == queue_id, f.c.sink == sink, f.c.fence == fence))
