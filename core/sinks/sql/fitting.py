"""Whether an existing table can be a sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sqlalchemy import Connection, inspect
from sqlalchemy.types import (
    CHAR,
    JSON,
    BigInteger,
    Boolean,
    Date,
    DateTime,
    Float,
    Integer,
    Numeric,
    String,
    Uuid,
    _Binary,
)

from export_queue.core.sinks.sql.tables import DELETED, RANK, Column, Table


@dataclass(frozen=True, slots=True)
class Misfits:
    """What is wrong with a table's columns and keys."""

    problems: list[str]
    addable: Sequence[str] = ()
    """The missing columns, if they can be added: all but those of the key."""


def misfits(connection: Connection, table: Table) -> Misfits:
    """Compare a table with its description."""
    inspector = inspect(connection)
    columns = {column["name"]: column for column in inspector.get_columns(table.name, schema=table.schema)}
    missing = [name for name in table.columns if name not in columns]
    if missing:
        by_folded = {name.lower(): name for name in columns}
        others = [f"{name} exists as {by_folded[name.lower()]}" for name in missing if name.lower() in by_folded]
        if others:
            return Misfits([f"columns in another case: {', '.join(others)}; write them as the table does"])
        found = [f"missing columns: {', '.join(missing)}"]
        if missing == [RANK, DELETED]:
            found.append("a table that was filled with guard='fence' lacks them: open it with that guard")
        return Misfits(found, addable=() if set(missing) & set(table.keys) else missing)
    ranks = [name for name in (RANK, DELETED) if name in columns and not table.ranked]
    if ranks:
        named = f"column {', '.join(ranks)}"
        return Misfits([f"{named}: a table with guard='seq'; the guard fence would show its deleted rows"])
    database = connection.dialect.name
    problems = [
        f"column {key.name} is {columns[key.name]['type']}: expected {key.type}, which keeps each id as it is"
        for key in table.key.columns
        if not _takes(key, columns[key.name]["type"], database)
    ]
    if table.ranked:
        problems += _bad_marks(table, columns, database)
    problems += [
        f"column {name} is {kind}: the sink writes it, so it must be an ordinary column"
        for name in table.columns
        if (kind := _made_by_database(columns[name]))
    ]
    demanding = [name for name, column in columns.items() if name not in table.columns and _demands(column)]
    if demanding:
        problems.append(f"columns that need a value but get none: {', '.join(demanding)}")
    primary = inspector.get_pk_constraint(table.name, schema=table.schema)["constrained_columns"]
    if set(primary) != set(table.keys):
        problems.append(f"the primary key is not {' and '.join(table.keys)} alone")
    unique = [one["name"] for one in inspector.get_unique_constraints(table.name, schema=table.schema)]
    unique += [index["name"] for index in inspector.get_indexes(table.name, schema=table.schema) if index["unique"]]
    if unique:
        named = ", ".join(str(name) for name in dict.fromkeys(unique))
        problems.append(f"other unique columns ({named}): two records may have one value for a moment")
    return Misfits(problems)


def _bad_marks(table: Table, columns: Mapping[str, Any], database: str) -> list[str]:
    """Return what is wrong with rank and tombstone mark, and with columns that are empty in a tombstone."""
    problems = []
    rank, deleted = columns[RANK]["type"], columns[DELETED]["type"]
    if not isinstance(rank, Integer if database == "sqlite" else BigInteger) or getattr(rank, "unsigned", False):
        problems.append(f"column {RANK} is {rank}: expected bigint; a double would round ranks")
    if not isinstance(deleted, Boolean if database == "postgresql" else Boolean | Integer):
        problems.append(f"column {DELETED} is {deleted}: expected boolean")
    problems += [
        f"column {column.name} may not be NULL: a tombstone has no value for it"
        for column in table.contents.columns
        if not columns[column.name]["nullable"]
    ]
    return problems


def measured(connection: Connection, table: Table) -> Table:
    """Describe how precisely the columns of an existing table keep numbers and times."""
    found = {one["name"]: one["type"] for one in inspect(connection).get_columns(table.name, schema=table.schema)}
    database = "mariadb" if getattr(connection.dialect, "is_mariadb", False) else connection.dialect.name
    columns = tuple(_measured(column, found[column.name], database) for column in table.contents.columns)
    return replace(table, contents=replace(table.contents, columns=columns))


def _measured(column: Column, found: Any, database: str) -> Column:
    if database == "sqlite":
        column = replace(column, takes=_taken(column, found))
        # whatever its type, a column keeps values as they are, except for numbers in columns of numbers
        if isinstance(found, String):
            return replace(column, type="text") if column.type in ("integer", "real", "numeric") else column
        return column if isinstance(found, Float | _Binary) else replace(column, doubles="numbers")
    if isinstance(found, DateTime):
        return replace(column, type="timestamp", zoneless=not found.timezone)
    if isinstance(found, Integer):
        return replace(column, places=0)
    if isinstance(found, Numeric) and not isinstance(found, Float):
        return replace(column, places=found.scale)
    return replace(column, doubles="json") if isinstance(found, JSON) and database == "mysql" else column


def _taken(column: Column, found: Any) -> Literal["", "integers", "numbers", "booleans"]:
    """Return which values a SQLite column is meant for: those of its description, unless the table's type differs."""
    if column.type == "integer" and isinstance(found, Integer):
        return "integers"
    if column.type in ("integer", "real", "numeric") and isinstance(found, Integer | Numeric | Float):
        return "numbers"
    return "booleans" if column.type == "boolean" and isinstance(found, Boolean) else ""


def merging(table: Table, collations: Mapping[str, str]) -> list[str]:
    """Return the problems of key columns, given the collations of columns that treat different texts as equal."""
    return [
        f"column {key.name} has the collation {collations[key.name]}, which treats different ids as equal"
        for key in table.key.columns
        if key.type == "text" and key.name in collations
    ]


def _takes(key: Column, found: Any, database: str) -> bool:
    if key.type == "integer":
        return isinstance(found, Integer)
    if key.type == "date":
        return isinstance(found, Date) or (database == "sqlite" and isinstance(found, String))
    if key.type == "uuid":
        return isinstance(found, Uuid | String)
    if database in ("mysql", "mariadb") and isinstance(found, _Binary):
        return True  # it holds the bytes of the text
    return isinstance(found, String) and not isinstance(found, CHAR) and "CITEXT" not in str(found).upper()


def _made_by_database(column: Any) -> str:
    """Return how the database generates a column's values; empty for an ordinary column."""
    if column.get("computed"):
        return "generated from other columns"
    return "GENERATED ALWAYS AS IDENTITY" if (column.get("identity") or {}).get("always") else ""


def _demands(column: Any) -> bool:
    given = column["default"] is not None or column.get("computed") or column.get("identity")
    return not (column["nullable"] or given or column.get("autoincrement") is True)
