"""All SQL of the SQL sink."""

from __future__ import annotations

import zlib

from export_queue.core.sinks.sql.tables import DELETED, KEY, RANK, Table

CONTROL_TABLE = "xq_control"

CREATE_CONTROL = f"""\
CREATE TABLE IF NOT EXISTS {CONTROL_TABLE} (
    queue_id text PRIMARY KEY,
    store_id text NOT NULL,
    fence bigint NOT NULL,
    floor bigint NOT NULL DEFAULT 0
)"""
"""The control records, one a queue; a bigint of SQLite has 64 bits, too."""

# Two drains may be the first ones: whoever comes second finds a row, and locks it before it decides.
INSERT_CONTROL = f"""\
INSERT INTO {CONTROL_TABLE} (queue_id, store_id, fence, floor)
VALUES (:queue_id, :store_id, :fence, :floor)
ON CONFLICT (queue_id) DO NOTHING"""

SELECT_CONTROL = f"SELECT store_id, fence, floor FROM {CONTROL_TABLE} WHERE queue_id = :queue_id"

UPDATE_CONTROL = f"UPDATE {CONTROL_TABLE} SET fence = :fence WHERE queue_id = :queue_id"

FOR_UPDATE = " FOR UPDATE"
"""PostgreSQL; in SQLite the transaction that writes has locked the whole file."""

SET_LIMITS = """\
SELECT set_config('lock_timeout', :lock, true),
       set_config('statement_timeout', :statement, true),
       set_config('idle_in_transaction_session_timeout', :idle, true)"""
"""PostgreSQL, for one transaction: settings of a session would be lost, or kept, behind a pooler."""

MERGING_COLLATION_POSTGRESQL = """\
SELECT c.collname
  FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation
 WHERE a.attrelid = to_regclass(:table) AND a.attname = :key AND NOT c.collisdeterministic"""
"""The key's collation where it takes different ids for equal."""

MERGING_COLLATION_SQLITE = """\
SELECT x.coll
  FROM pragma_index_list(:table) l, pragma_index_xinfo(l.name) x
 WHERE l.origin = 'pk' AND x.name = :key AND upper(x.coll) <> 'BINARY'"""
"""The same in SQLite: NOCASE and RTRIM."""

_POSTGRESQL_TYPES = {
    "text": "text",
    "integer": "bigint",
    "real": "double precision",
    "numeric": "numeric",
    "boolean": "boolean",
    "json": "jsonb",
    "timestamp": "timestamptz",
}
_SQLITE_TYPES = {
    "text": "text",
    "integer": "integer",
    "real": "real",
    "numeric": "numeric",
    "boolean": "boolean",
    "json": "text",
    "timestamp": "text",
}


def create_table(table: Table, dialect: str) -> list[str]:
    """Return the statements that create a table, and the view on it that hides tombstones.

    Data columns take NULL, since a tombstone has nothing else to put there. A rank is never NULL:
    nothing is greater than NULL, so that such a row could not change any more.

    :param dialect: ``postgresql`` or ``sqlite``.
    """
    types = _POSTGRESQL_TYPES if dialect == "postgresql" else _SQLITE_TYPES
    # bytewise: no language may take two ids for one, and sorted batches lock rows in one order
    collation = ' COLLATE "C"' if dialect == "postgresql" else ""
    columns = [f"{quoted(KEY)} text{collation} NOT NULL PRIMARY KEY"]
    columns += [f"{quoted(column.name)} {types[column.type]}" for column in table.contents.columns]
    columns += [f"{quoted(RANK)} bigint NOT NULL DEFAULT -1", f"{quoted(DELETED)} boolean NOT NULL DEFAULT false"]
    body = ",\n    ".join(columns)
    shown = ", ".join(quoted(name) for name in (KEY, *(column.name for column in table.contents.columns)))
    create_view = "CREATE OR REPLACE VIEW" if dialect == "postgresql" else "CREATE VIEW IF NOT EXISTS"
    view = f"SELECT {shown} FROM {quoted(table.name)} WHERE NOT {quoted(DELETED)}"
    return [
        f"CREATE TABLE IF NOT EXISTS {quoted(table.name)} (\n    {body}\n)",
        f"{create_view} {quoted(table.live)} AS\n{view}",
    ]


def upsert_values(table: Table) -> str:
    """Return SQLite's guarded upsert, for ``executemany``."""
    places = ", ".join("?" * len(table.columns))
    return f"INSERT INTO {quoted(table.name)} AS t ({_names(table)})\nVALUES ({places})\n{_on_conflict(table)}"


def create_batch(table: Table) -> str:
    """Return what makes a batch's temporary table; behind a pooler any session may be one without it."""
    return (
        f"CREATE TEMP TABLE IF NOT EXISTS {_batch(table)} ON COMMIT DELETE ROWS AS\n"
        f"SELECT {_names(table)} FROM {quoted(table.name)} WITH NO DATA"
    )


def copy_batch(table: Table) -> str:
    """Return the COPY that fills it."""
    return f"COPY {_batch(table)} ({_names(table)}) FROM STDIN"


def upsert_batch(table: Table) -> str:
    """Return the guarded upsert from it; the batch was copied in the order of its keys, and is read so."""
    return (
        f"INSERT INTO {quoted(table.name)} AS t ({_names(table)})\n"
        f"SELECT {_names(table)} FROM {_batch(table)}\n{_on_conflict(table)}"
    )


def quoted(name: str) -> str:
    """Quote an identifier."""
    return '"' + name.replace('"', '""') + '"'


def _names(table: Table) -> str:
    return ", ".join(quoted(name) for name in table.columns)


def _on_conflict(table: Table) -> str:
    changes = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in table.columns[1:])
    return f"ON CONFLICT ({quoted(KEY)}) DO UPDATE SET {changes}\nWHERE t.{quoted(RANK)} < excluded.{quoted(RANK)}"


def _batch(table: Table) -> str:
    # a name per shape: a session may serve several sinks
    shape = "\0".join((table.name, *table.columns, *(column.type for column in table.contents.columns)))
    return f"pg_temp.xq_batch_{zlib.crc32(shape.encode()):08x}"
