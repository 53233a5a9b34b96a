"""Pointers of a SQL database: views of one table, which are replaced."""

from __future__ import annotations

import re
from collections.abc import Mapping

import sqlalchemy as sa

from export_queue.core.errors import SinkConfigurationError
from export_queue.core.sinks.sql.dialects import Dialect
from export_queue.core.sinks.sql.statements import GRANTS_POSTGRESQL
from export_queue.core.sinks.sql.tables import Table, refuse_pointer, split_schema

_FROM = re.compile(r"\bFROM\s+\(?(.+?)\)?\s*(?:\bWHERE\b.*)?;?\s*\Z", re.IGNORECASE | re.DOTALL)
_LAST_NAME = re.compile(r'"((?:[^"]|"")+)"\Z|`((?:[^`]|``)+)`\Z|\[([^\]]+)\]\Z|([\w$]+)\Z')


def pointed_at(connection: sa.Connection, pointer: str) -> str | None:
    """Return the table of the view that is a pointer, with its schema unless it is the default one.

    :raises SinkConfigurationError: the name is not that of a view of one table.
    """
    schema, name = _named(pointer)
    found = sa.inspect(connection)
    if not found.has_table(name, schema=schema):
        return None
    if name in found.get_view_names(schema=schema):
        body = _FROM.search(str(found.get_view_definition(name, schema=schema)))
        last = _LAST_NAME.search(body[1].strip()) if body else None
        if last:
            return next(one for one in last.groups() if one).replace('""', '"').replace("``", "`")
    raise SinkConfigurationError(
        f"{pointer!r} cannot be a pointer: expected a view of one table, found something else",
        hint="give the pointer another name",
    )


def point(connection: sa.Connection, dialect: Dialect, pointers: Mapping[str, Table]) -> None:
    """Replace the views that are pointers; all in one transaction, if the database can."""
    for pointer, table in pointers.items():
        schema, name = _named(pointer)
        syntax = dialect.syntax(connection, table)
        view = f"{syntax.quoted(schema)}.{syntax.quoted(name)}" if schema else syntax.quoted(name)
        shown = ", ".join(map(syntax.quoted, table.columns[:-2] if table.ranked else table.columns))
        where = f" WHERE {syntax.is_live}" if table.ranked else ""
        body = f"AS\nSELECT {shown} FROM {syntax.name(table)}{where}"
        exists = sa.inspect(connection).has_table(name, schema=schema)
        if dialect.name in ("mysql", "mariadb"):
            _execute(connection, f"CREATE OR REPLACE VIEW {view} {body}")
            continue
        # A view of PostgreSQL that is replaced keeps its columns: another table may have others.
        grants = _grants(connection, view) if dialect.name == "postgresql" and exists else []
        if exists:
            _execute(connection, f"DROP VIEW {view}")
        _execute(connection, f"CREATE VIEW {view} {body}")
        for grant in grants:
            _execute(connection, grant)


def _named(pointer: str) -> tuple[str | None, str]:
    schema, name = split_schema(pointer.replace("$", "$$"))
    name = name.replace("$$", "$")
    if reason := refuse_pointer(name):
        raise SinkConfigurationError(reason, hint="give the pointer another name")
    return schema, name


def _grants(connection: sa.Connection, view: str) -> list[str]:
    """Return the statements that give a view of PostgreSQL its rights again."""
    return list(connection.execute(sa.text(GRANTS_POSTGRESQL), {"view": view}).scalars())


def _execute(connection: sa.Connection, command: str) -> None:
    connection.exec_driver_sql(command.replace("%", "%%"))
