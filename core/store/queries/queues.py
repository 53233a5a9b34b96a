"""SQL about queues and tables: their stored options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.queries.inserts import insert_into
from export_queue.core.store.schema import queue as q
from export_queue.core.store.schema import table as t


def is_there(work: Reading, number: int) -> bool:
    """Tell whether a queue has not been removed."""
    return work.connection.execute(sa.select(q.c.number).where(q.c.number == number)).first() is not None


def layout_of(work: Reading, number: int) -> int | None:
    """Read the number of a queue's current layout; None if the queue was removed."""
    return work.connection.scalar(sa.select(q.c.layout).where(q.c.number == number))


def queue_row(work: Reading, queue_id: str) -> Mapping[str, Any] | None:
    """Read the options of one queue."""
    row = work.connection.execute(sa.select(q).where(q.c.id == queue_id)).mappings().first()
    return dict(row) if row else None


def queue_rows(work: Reading) -> list[Mapping[str, Any]]:
    """Read the options of all queues, by name."""
    return [dict(row) for row in work.connection.execute(sa.select(q).order_by(q.c.id)).mappings()]


def add_queue(work: Work, options: Mapping[str, Any]) -> bool:
    """Store a new queue under a number of its own; False if another process has just stored it."""
    values = {**options, "number": work.database.dialect.steps.draw(work.connection), "created_ms": work.now()}
    # Asked for by RETURNING: a server's driver does not tell the number of rows of such a statement.
    statement = insert_into(work, q).values(values).on_conflict_do_nothing().returning(q.c.number)
    return work.connection.execute(statement).first() is not None


def alter_queue(work: Work, number: int, options: Mapping[str, Any]) -> None:
    """Change stored options of a queue."""
    work.connection.execute(q.update().where(q.c.number == number).values(**options))


def bind_queue(work: Work, number: int, sink: str, *, rebind: bool) -> None:
    """Note the name of the sink that a queue drains into; without ``rebind`` only if it has none."""
    statement = q.update().where(q.c.number == number).values(sink=sink, binding=None)
    work.connection.execute(statement if rebind else statement.where(q.c.sink.is_(None)))


def store_binding(work: Work, number: int, binding: str | None) -> None:
    """Keep the options that decide which record is written; None forgets them."""
    work.connection.execute(q.update().where(q.c.number == number).values(binding=binding))


def table_row(work: Reading, name: str) -> Mapping[str, Any] | None:
    """Read the options of one table."""
    row = work.connection.execute(sa.select(t).where(t.c.name == name)).mappings().first()
    return dict(row) if row else None


def add_table(work: Work, name: str, **options: Any) -> bool:
    """Store a new table under a number of its own; False if another process has just stored it.

    :param options: its other columns, by name.
    """
    values = {"name": name, "number": work.database.dialect.steps.draw(work.connection), **options}
    return work.connection.execute(insert_into(work, t).values(values).on_conflict_do_nothing()).rowcount > 0
