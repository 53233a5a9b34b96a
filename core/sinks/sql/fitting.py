"""Whether a table that is there can hold the guarantees."""

from __future__ import annotations

from sqlalchemy import Connection, inspect, text
from sqlalchemy.types import CHAR, BigInteger, Boolean, Integer, String

from export_queue.core.sinks.sql.dialect import Dialect
from export_queue.core.sinks.sql.statements import quoted
from export_queue.core.sinks.sql.tables import DELETED, KEY, RANK, Table


def misfits(connection: Connection, table: Table, dialect: Dialect) -> list[str]:
    """Say what is wrong with a table; nothing if it can be a sink.

    :param connection: to its database.
    :param table: what is expected.
    :param dialect: of the database.
    """
    inspector = inspect(connection)
    columns = {column["name"]: column for column in inspector.get_columns(table.name)}
    missing = [name for name in table.columns if name not in columns]
    if missing:
        return [f"missing columns: {', '.join(missing)}"]
    problems: list[str] = []
    key, rank, deleted = columns[KEY]["type"], columns[RANK]["type"], columns[DELETED]["type"]
    if not isinstance(key, String) or isinstance(key, CHAR) or "CITEXT" in str(key).upper():
        problems.append(f"column {KEY} is {key}: expected text, which takes each id as it is")
    if not isinstance(rank, Integer if dialect.name == "sqlite" else BigInteger):
        problems.append(f"column {RANK} is {rank}: expected bigint; a double would blur ranks")
    if columns[RANK]["nullable"]:
        problems.append(f"column {RANK} may be NULL: a row with such a rank never changes again")
    if not isinstance(deleted, Boolean | Integer if dialect.name == "sqlite" else Boolean):
        problems.append(f"column {DELETED} is {deleted}: expected boolean")
    problems += [
        f"column {column.name} may not be NULL: a tombstone has nothing to put there"
        for column in table.contents.columns
        if not columns[column.name]["nullable"]
    ]
    demanding = [
        name
        for name, column in columns.items()
        if name not in table.columns and not column["nullable"] and column["default"] is None
    ]
    if demanding:
        problems.append(f"columns that want a value and get none: {', '.join(demanding)}")
    if inspector.get_pk_constraint(table.name)["constrained_columns"] != [KEY]:
        problems.append(f"the primary key is not {KEY} alone")
    unique = [constraint["name"] for constraint in inspector.get_unique_constraints(table.name)]
    unique += [index["name"] for index in inspector.get_indexes(table.name) if index["unique"]]
    if unique:
        named = ", ".join(str(name) for name in dict.fromkeys(unique))
        problems.append(f"other unique columns ({named}): two records may want one value for a moment")
    name = quoted(table.name) if dialect.name == "postgresql" else table.name
    collation = connection.execute(text(dialect.merging_collation), {"table": name, "key": KEY}).scalar()
    if collation is not None:
        problems.append(f"column {KEY} has the collation {collation}, which takes different ids for one")
    return problems
