"""The statements that a database needs before it can be a sink: those that exist, and those that are still missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import sqlalchemy as sa

from export_queue.core.sinks.sql.control_tables import missing_control_tables, unit_table
from export_queue.core.sinks.sql.dialects import Dialect
from export_queue.core.sinks.sql.fitting import misfits
from export_queue.core.sinks.sql.statements import Syntax
from export_queue.core.sinks.sql.tables import DELETED, RANK, Table

Missing = Mapping[str, list[str]]
"""The statements that create what does not exist, by its name."""


def create_table(connection: sa.Connection, dialect: Dialect, table: Table) -> list[str]:
    """Return the statements that create a table and, if it has tombstones, the view that hides them.

    Data columns accept NULL: a tombstone has no other value for them.
    """
    syntax = dialect.syntax(connection, table)
    columns = [f"{syntax.quoted(key.name)} {syntax.key_types[key.type]} NOT NULL" for key in table.key.columns]
    columns += [f"{syntax.quoted(one.name)} {syntax.type(one.type)}" for one in table.contents.columns]
    if table.ranked:
        columns += [f"{syntax.quoted(name)} {kind}" for name, kind in zip((RANK, DELETED), syntax.ranks, strict=True)]
    columns.append(f"PRIMARY KEY ({', '.join(map(syntax.quoted, table.keys))})")
    create = _create(syntax, syntax.name(table), columns)
    return [create, _view(table, syntax)] if table.ranked else [create]


def add_columns(connection: sa.Connection, dialect: Dialect, table: Table, missing: Sequence[str]) -> list[str]:
    """Return the statements that add missing columns to a table, and the view that shows them.

    The columns have no default and accept NULL, so no database rewrites or locks a large table for them.
    """
    syntax = dialect.syntax(connection, table)
    kinds = {column.name: column.type for column in table.contents.columns} | {RANK: "integer", DELETED: "boolean"}
    commands = [
        f"ALTER TABLE {syntax.name(table)} {syntax.add_column} {syntax.quoted(name)} {syntax.type(kinds[name])}"
        for name in missing
    ]
    return commands + _new_view(connection, syntax, table, missing) if table.ranked else commands


def missing_control(connection: sa.Connection, dialect: Dialect, schema: str | None, *, is_fenced: bool) -> Missing:
    """Return the statements that create the sink's own tables that do not exist."""
    tables = missing_control_tables(connection, schema)
    if is_fenced and not sa.inspect(connection).has_table(unit_table(schema).name, schema=schema):
        tables.insert(0, unit_table(schema))
    syntax = dialect.syntax(connection)
    kinds: Mapping[type, str] = {
        sa.Unicode: syntax.key_types["text"],
        sa.BigInteger: syntax.type("integer"),
        sa.Boolean: syntax.type("boolean"),
    }
    return {table.name: [_create(syntax, syntax.name(table), _own_columns(table, syntax, kinds))] for table in tables}


def _own_columns(table: sa.Table, syntax: Syntax, kinds: Mapping[type, str]) -> list[str]:
    ends = {True: " NOT NULL PRIMARY KEY", False: " NOT NULL"}
    return [
        f"{syntax.quoted(one.name)} {kinds[type(one.type)]}{'' if one.nullable else ends[one.primary_key]}"
        for one in table.c
    ]


def missing_table(connection: sa.Connection, dialect: Dialect, table: Table) -> Missing:
    """Return the statements that create a table if it does not exist."""
    exists = sa.inspect(connection).has_table(table.name, schema=table.schema)
    return {} if exists else {table.name: create_table(connection, dialect, table)}


def missing_view(connection: sa.Connection, dialect: Dialect, table: Table) -> Missing:
    """Return the statement that creates a table's view if it does not exist."""
    exists = sa.inspect(connection).has_table(table.live, schema=table.schema)
    return {} if exists else {table.live: [_view(table, dialect.syntax(connection, table))]}


def missing_ddl(
    connection: sa.Connection, dialect: Dialect, tables: Iterable[Table], *, schema: str | None, is_fenced: bool
) -> list[str]:
    """Return the statements that create missing tables, columns and views, and the own tables in a schema."""
    control = missing_control(connection, dialect, schema, is_fenced=is_fenced)
    found = [command for commands in control.values() for command in commands]
    for table in tables:
        if missing := missing_table(connection, dialect, table):
            found += missing[table.name]
        elif addable := misfits(connection, table).addable:
            found += add_columns(connection, dialect, table, addable)
        elif table.ranked:
            found += _complete_view(connection, dialect, table)
    return found


def _complete_view(connection: sa.Connection, dialect: Dialect, table: Table) -> list[str]:
    """Return the statements for a view that is missing, or shows fewer columns than its table has."""
    if missing := missing_view(connection, dialect, table):
        return missing[table.live]
    shown = {column["name"] for column in sa.inspect(connection).get_columns(table.live, schema=table.schema)}
    hidden = [column.name for column in table.contents.columns if column.name not in shown]
    return _new_view(connection, dialect.syntax(connection, table), table, hidden) if hidden else []


def _new_view(connection: sa.Connection, syntax: Syntax, table: Table, last: Sequence[str]) -> list[str]:
    """Return the statements that replace a view."""
    view = [_view(table, syntax, last)]
    if "REPLACE" in syntax.create_view or not sa.inspect(connection).has_table(table.live, schema=table.schema):
        return view
    return [f"DROP VIEW {syntax.name(table, table.live)}", *view]


def _view(table: Table, syntax: Syntax, last: Sequence[str] = ()) -> str:
    # new columns come last: a view of PostgreSQL that is replaced keeps its columns, in their order
    shown = ", ".join(map(syntax.quoted, sorted(table.columns[:-2], key=lambda name: name in last)))
    return (
        f"{syntax.create_view} {syntax.name(table, table.live)} AS\n"
        f"SELECT {shown} FROM {syntax.name(table)} WHERE {syntax.is_live}"
    )


def _create(syntax: Syntax, name: str, columns: Sequence[str]) -> str:
    body = ",\n    ".join(columns)
    return f"{syntax.create_table} {name} (\n    {body}\n){syntax.options}"
