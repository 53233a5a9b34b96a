"""The statements that a database still needs before it can be a sink."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, inspect

from export_queue.core.sinks.sql.control_tables import missing_control_tables
from export_queue.core.sinks.sql.dialects import Dialect
from export_queue.core.sinks.sql.fitting import misfits
from export_queue.core.sinks.sql.tables import Table
from export_queue.core.sinks.sql.unit_fences import UNIT_TABLE, create_units


def missing_ddl(
    connection: Connection, dialect: Dialect, tables: Iterable[Table], *, schema: str | None, is_fenced: bool
) -> list[str]:
    """Return the statements that create missing tables, columns and views.

    :param schema: where the sink's own tables are.
    :param is_fenced: whether the sink has the guard ``fence``.
    """
    there = inspect(connection)
    control = missing_control(connection, dialect, schema, is_fenced=is_fenced)
    found = [command for commands in control.values() for command in commands]
    for table in tables:
        if not there.has_table(table.name, schema=table.schema):
            found += dialect.create_table(connection, table)
        elif addable := misfits(connection, table).addable:
            found += dialect.add_columns(connection, table, addable)
        elif table.ranked:
            found += _missing_view(connection, dialect, table)
    return found


def missing_control(
    connection: Connection, dialect: Dialect, schema: str | None, *, is_fenced: bool
) -> dict[str, list[str]]:
    """Return the statements that create the sink's own tables that do not exist, by table."""
    found: dict[str, list[str]] = {}
    if is_fenced and not inspect(connection).has_table(UNIT_TABLE, schema=schema):
        found[UNIT_TABLE] = [create_units(connection, schema)]
    if missing := missing_control_tables(connection, schema):
        commands = dialect.create_control(connection, schema)
        found |= {name: [commands[name]] for name in missing}
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
