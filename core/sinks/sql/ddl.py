"""The statements that a database still needs before it can be a sink."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, inspect

from export_queue.core.sinks.sql.claims import UNIT_TABLE, create_units
from export_queue.core.sinks.sql.dialects import Dialect
from export_queue.core.sinks.sql.fitting import misfits
from export_queue.core.sinks.sql.statements import CONTROL_TABLE
from export_queue.core.sinks.sql.tables import Table


def missing_ddl(
    connection: Connection, dialect: Dialect, tables: Iterable[Table], *, schema: str | None, is_fenced: bool
) -> list[str]:
    """Return the statements that create what is missing: tables, columns, views; none where nothing is.

    :param schema: where the sink's own tables are.
    :param is_fenced: whether the sink has the guard ``fence``.
    """
    there = inspect(connection)
    found: list[str] = []
    if not there.has_table(CONTROL_TABLE, schema=schema):
        found.append(dialect.create_control(connection, schema))
    if is_fenced and not there.has_table(UNIT_TABLE, schema=schema):
        found.append(create_units(connection, schema))
    for table in tables:
        if not there.has_table(table.name, schema=table.schema):
            found += dialect.create_table(connection, table)
        elif addable := misfits(connection, table).addable:
            found += dialect.add_columns(connection, table, addable)
        elif table.ranked:
            found += _missing_view(connection, dialect, table)
    return found


def _missing_view(connection: Connection, dialect: Dialect, table: Table) -> list[str]:
    """Return the statements for a view that is missing, or shows fewer columns than its table has."""
    there = inspect(connection)
    if not there.has_table(table.live, schema=table.schema):
        return dialect.create_table(connection, table)[-1:]
    shown = {column["name"] for column in there.get_columns(table.live, schema=table.schema)}
    hidden = [column.name for column in table.contents.columns if column.name not in shown]
    # as where the table lacks the columns, but for the statements that add them, which come first
    return dialect.add_columns(connection, table, hidden)[len(hidden) :] if hidden else []
