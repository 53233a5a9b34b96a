"""Whether a table that is there can hold the guarantees."""

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
    """What is wrong with a table's columns and keys; no problems if it can be a sink."""

    problems: list[str]
    addable: Sequence[str] = ()
    """The columns that it lacks, where they may be added: all but those of the key."""


def misfits(connection: Connection, table: Table) -> Misfits:
    """Compare a table with what is expected.

    :param connection: to its database.
    :param table: the table as the sink expects it.
    """
    inspector = inspect(connection)
    columns = {column["name"]: column for column in inspector.get_columns(table.name, schema=table.schema)}
    missing = [name for name in table.columns if name not in columns]
    if missing:
        by_folded = {name.lower(): name for name in columns}
        others = [f"{name} is there as {by_folded[name.lower()]}" for name in missing if name.lower() in by_folded]
        if others:
            return Misfits([f"columns in another case: {', '.join(others)}; write them as the table does"])
        found = [f"missing columns: {', '.join(missing)}"]
        if missing == [RANK, DELETED]:
            found.append("a table that was filled with guard='fence' has none of them: open it with that guard")
        return Misfits(found, addable=() if set(missing) & set(table.keys) else missing)
    ranks = [name for name in (RANK, DELETED) if name in columns and not table.ranked]
    if ranks:
        return Misfits(
            [f"column {', '.join(ranks)}: of a table with guard='seq', whose deleted rows the guard fence would show"]
        )
    database = connection.dialect.name
    problems = [
        f"column {key.name} is {columns[key.name]['type']}: expected {key.type}, which takes each id as it is"
        for key in table.key.columns
        if not _takes(key, columns[key.name]["type"], database)
    ]
    if table.ranked:
        problems += _bad_marks(table, columns, database)
    problems += [
        f"column {name} is {kind}: the sink writes it, so that it has to be an ordinary column"
        for name in table.columns
        if (kind := _made_by_database(columns[name]))
    ]
    demanding = [name for name, column in columns.items() if name not in table.columns and _demands(column)]
    if demanding:
        problems.append(f"columns that want a value and get none: {', '.join(demanding)}")
    primary = inspector.get_pk_constraint(table.name, schema=table.schema)["constrained_columns"]
    if set(primary) != set(table.keys):
        problems.append(f"the primary key is not {' and '.join(table.keys)} alone")
    unique = [one["name"] for one in inspector.get_unique_constraints(table.name, schema=table.schema)]
    unique += [index["name"] for index in inspector.get_indexes(table.name, schema=table.schema) if index["unique"]]
    if unique:
        named = ", ".join(str(name) for name in dict.fromkeys(unique))
        problems.append(f"other unique columns ({named}): two records may want one value for a moment")
    return Misfits(problems)


def _bad_marks(table: Table, columns: Mapping[str, Any], database: str) -> list[str]:
    """Say what is wrong with rank and tombstone mark, and with what a tombstone leaves empty."""
    problems = []
    rank, deleted = columns[RANK]["type"], columns[DELETED]["type"]
    if not isinstance(rank, Integer if database == "sqlite" else BigInteger) or getattr(rank, "unsigned", False):
        problems.append(f"column {RANK} is {rank}: expected bigint; a double would blur ranks")
    if not isinstance(deleted, Boolean if database == "postgresql" else Boolean | Integer):
        problems.append(f"column {DELETED} is {deleted}: expected boolean")
    problems += [
        f"column {column.name} may not be NULL: a tombstone has nothing to put there"
        for column in table.contents.columns
        if not columns[column.name]["nullable"]
    ]
    return problems


def measured(connection: Connection, table: Table) -> Table:
    """Learn what the columns of a table that is there keep of numbers and times.

    :param connection: to its database.
    :param table: the table, which fits.
    """
    found = {one["name"]: one["type"] for one in inspect(connection).get_columns(table.name, schema=table.schema)}
    database = "mariadb" if getattr(connection.dialect, "is_mariadb", False) else connection.dialect.name
    columns = tuple(_measured(column, found[column.name], database) for column in table.contents.columns)
    return replace(table, contents=replace(table.contents, columns=columns))


def _measured(column: Column, found: Any, database: str) -> Column:
    if database == "sqlite":
        column = replace(column, takes=_taken(column, found))
        # whatever the declared type, values stay as they are, but for numbers in columns of numbers
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
    """Tell what a column of SQLite is for: what the description says, unless the table's own type says otherwise."""
    if column.type == "integer" and isinstance(found, Integer):
        return "integers"
    if column.type in ("integer", "real", "numeric") and isinstance(found, Integer | Numeric | Float):
        return "numbers"
    return "booleans" if column.type == "boolean" and isinstance(found, Boolean) else ""


def merging(table: Table, collations: Mapping[str, str]) -> list[str]:
    """Say which columns of the key take different texts for one.

    :param collations: the collations that do so, by column.
    """
    return [
        f"column {key.name} has the collation {collations[key.name]}, which takes different ids for one"
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
        return True  # its bytes are those of the text
    return isinstance(found, String) and not isinstance(found, CHAR) and "CITEXT" not in str(found).upper()


def _made_by_database(column: Any) -> str:
    """Say how a database makes the values of a column that takes none; empty where it takes them."""
    if column.get("computed"):
        return "generated from other columns"
    return "GENERATED ALWAYS AS IDENTITY" if (column.get("identity") or {}).get("always") else ""


def _demands(column: Any) -> bool:
    given = column["default"] is not None or column.get("computed") or column.get("identity")
    return not (column["nullable"] or given or column.get("autoincrement") is True)
