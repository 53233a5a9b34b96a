"""Parts of statements that the two databases write differently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from export_queue.core.store.database import Reading, Work
from export_queue.core.store.snapshot import Snapshot


def schema_of(connection: sa.Connection) -> str:
    """Return the name of the PostgreSQL schema that holds the store."""
    return str(connection.get_execution_options()["schema_translate_map"][None])


def prefix_of(connection: sa.Connection) -> str:
    """Return the prefix of table names in a statement: the quoted schema and a dot; nothing on SQLite."""
    if connection.dialect.name != "postgresql":
        return ""
    return connection.dialect.identifier_preparer.quote_schema(schema_of(connection)) + "."


def insert_into(work: Work, table: sa.Table) -> Any:
    """Begin an INSERT that may have ``on_conflict_do_nothing`` or ``on_conflict_do_update``."""
    return insert_for(work.connection.dialect.name, table)


def insert_for(dialect: str, table: sa.Table) -> Any:
    """Begin such an INSERT for a dialect, given by its name in SQLAlchemy."""
    return (postgresql if dialect == "postgresql" else sqlite).insert(table)


def not_among(work: Reading, column: sa.ColumnElement[Any], ids: Sequence[int]) -> sa.ColumnElement[bool]:
    """Build the condition that a column is none of these ids, which are sent as one parameter."""
    if not ids:
        return sa.true()
    if work.connection.dialect.name == "postgresql":
        return column != sa.func.all(_array(ids))
    return column.not_in(_listed(ids))


def among(work: Reading, column: sa.ColumnElement[Any], numbers: Sequence[int]) -> sa.ColumnElement[bool]:
    """Build the condition that a column is one of these numbers, which are sent as one parameter."""
    if work.connection.dialect.name == "postgresql":
        return column == sa.func.any(_array(numbers))
    return column.in_(_listed(numbers))


def _array(numbers: Sequence[int]) -> sa.BindParameter[list[int]]:
    return sa.literal(list(numbers), postgresql.ARRAY(sa.BigInteger))


def _listed(numbers: Sequence[int]) -> sa.Select[Any]:
    listed = sa.func.json_each(f"[{','.join(map(str, numbers))}]").table_valued("value")
    return sa.select(listed.c.value)


def visible_ids(work: Reading, column: sa.ColumnElement[Any], snapshot: Snapshot) -> sa.ColumnElement[bool]:
    """Build the condition that a snapshot sees the id in a column."""
    return sa.and_(column <= snapshot.read_pointer, not_among(work, column, snapshot.excluded))
