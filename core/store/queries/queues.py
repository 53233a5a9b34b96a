"""SQL about queues and tables: their stored options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from export_queue.core.store.database import Reading, Work, prefix_of
from export_queue.core.store.schema import queue as q
from export_queue.core.store.schema import table as t


def queue_row(work: Reading, queue_id: str) -> Mapping[str, Any] | None:
    """Read the options of one queue."""
    row = work.connection.execute(sa.select(q).where(q.c.id == queue_id)).mappings().first()
    return dict(row) if row else None


def queue_rows(work: Reading) -> list[Mapping[str, Any]]:
    """Read the options of all queues, by name."""
    return [dict(row) for row in work.connection.execute(sa.select(q).order_by(q.c.id)).mappings()]


def add_queue(work: Work, options: Mapping[str, Any]) -> bool:
    """Store a new queue under the next number; False if another process has just stored it."""
    number = sa.select(sa.func.coalesce(sa.func.max(q.c.number), 0) + 1).scalar_subquery()
    return _insert(work, q, {**options, "number": number, "created_ms": work.now()}, q.c.id)


def bind_queue(work: Work, number: int, sink: str, *, rebind: bool) -> None:
    """Note the name of the sink that a queue drains into; without ``rebind`` only if it has none."""
    statement = q.update().where(q.c.number == number).values(sink=sink)
    work.connection.execute(statement if rebind else statement.where(q.c.sink.is_(None)))


def table_row(work: Reading, name: str) -> Mapping[str, Any] | None:
    """Read the options of one table."""
    row = work.connection.execute(sa.select(t).where(t.c.name == name)).mappings().first()
    return dict(row) if row else None


def add_table(work: Work, name: str, conflict: str, ttl_ms: int | None) -> bool:
    """Store a new table under the next number; False if another process has just stored it."""
    number = sa.select(sa.func.coalesce(sa.func.max(t.c.number), 0) + 1).scalar_subquery()
    return _insert(work, t, {"name": name, "number": number, "conflict": conflict, "ttl_ms": ttl_ms}, t.c.name)


def _insert(work: Work, table: sa.Table, values: Mapping[str, Any], key: sa.Column[Any]) -> bool:
    connection = work.connection
    if connection.dialect.name == "postgresql":
        # Numbers are handed out one by one; the lock ends with the SQL transaction.
        name = connection.dialect.identifier_preparer.format_table(table)
        connection.exec_driver_sql(f"lock table {prefix_of(connection)}{name} in share row exclusive mode")
    if connection.execute(sa.select(key).where(key == values[key.name])).first() is not None:
        return False
    connection.execute(table.insert().values(values))
    return True
