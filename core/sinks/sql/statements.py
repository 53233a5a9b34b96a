"""Statements for PostgreSQL and SQLite that SQLAlchemy cannot express, and the syntax in which databases differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from export_queue.core.sinks.sql.tables import DELETED, RANK, Table

SET_LIMITS = """\
SELECT set_config('lock_timeout', :lock, true),
       set_config('statement_timeout', :statement, true),
       set_config('idle_in_transaction_session_timeout', :idle, true),
       set_config('TimeZone', 'UTC', true),
       set_config('quote_all_identifiers', 'off', true),
       set_config('synchronous_commit', CASE s.setting WHEN 'off' THEN 'on' ELSE s.setting END, true)
  FROM (SELECT current_setting('synchronous_commit') AS setting) s"""
"""PostgreSQL, for one transaction: behind a pooler, settings of a session would be lost, or kept for another client.
Times without a zone are in UTC. The catalogue names types without quotes. A database or role may be set to commit
before data is on disk; acknowledged data has to be on disk."""

LIMIT_LOCKS = "SELECT set_config('lock_timeout', :lock, true)"
"""PostgreSQL, for one transaction."""

MERGING_COLLATION_POSTGRESQL = """\
SELECT a.attname, c.collname
  FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation
 WHERE a.attrelid = to_regclass(:table) AND NOT c.collisdeterministic"""
"""Columns whose collation treats different texts as equal, with that collation."""

ODD_TABLES_POSTGRESQL = """\
SELECT c.relname AS name, c.relpersistence <> 'p' AS is_lost_in_crash, pg_encoding_to_char(d.encoding) AS encoding,
       EXISTS (
           SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND NOT i.indimmediate) AS is_deferrable,
       (SELECT string_agg(conname, ', ') FROM pg_constraint WHERE conrelid = c.oid AND contype = 'x') AS exclusions
  FROM pg_class c, pg_database d
 WHERE d.datname = current_database()
   AND (c.oid = to_regclass(:table) OR c.oid IN (SELECT p.relid FROM pg_partition_tree(to_regclass(:table)) p))"""
"""Properties that make a table, or one of its partitions, unfit for records."""

MERGING_COLLATION_SQLITE = """\
SELECT x.name, x.coll
  FROM pragma_index_list(:table) l, pragma_index_xinfo(l.name) x
 WHERE l.origin = 'pk' AND upper(x.coll) <> 'BINARY'"""
"""The same in SQLite: NOCASE and RTRIM."""

SHAPE_POSTGRESQL = """\
SELECT a.attname, a.atttypid, a.atttypmod, a.attcollation,
       CASE t.typtype WHEN 'd' THEN (
           WITH RECURSIVE inner_type AS (
               SELECT t.typbasetype AS oid
               UNION ALL
               SELECT d.typbasetype FROM inner_type i JOIN pg_type d ON d.oid = i.oid WHERE d.typtype = 'd')
           SELECT format_type(i.oid, -1) FROM inner_type i JOIN pg_type d ON d.oid = i.oid WHERE d.typtype <> 'd')
       ELSE format_type(a.atttypid, -1) END AS cast_to,
       c.relkind = 'r' AND NOT (c.relhasrules OR c.relhassubclass OR c.relrowsecurity) AND NOT EXISTS (
           SELECT FROM pg_trigger g WHERE g.tgrelid = c.oid AND NOT g.tgisinternal) AND NOT EXISTS (
           SELECT FROM pg_index i WHERE i.indrelid = c.oid AND NOT i.indimmediate) AS is_plain
  FROM pg_class c
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
  LEFT JOIN pg_type t ON t.oid = a.atttypid
 WHERE c.oid = to_regclass(:table)
 ORDER BY a.attnum"""
"""What decides which values a table's columns take, which keys are equal, and whether a statement meets more than
immediate constraints: rules, policies, other tables, triggers. An AFTER trigger keeps no row out, but would run under
the settings of ``BY_ARRAY``. Text is cast to a column's type without its length: an explicit cast to ``varchar(3)`` or
a domain would cut the text, whereas the column refuses it."""

GRANTS_POSTGRESQL = """\
SELECT format('GRANT %s ON %s TO %s%s', a.privilege_type, CAST(:view AS text),
              CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END,
              CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
  FROM pg_class c, aclexplode(c.relacl) a
 WHERE c.oid = to_regclass(CAST(:view AS text)) AND a.grantee <> c.relowner"""
"""Statements that repeat the rights on a view."""

SHAPE_SQLITE = "SELECT sql FROM sqlite_master WHERE type = 'table' AND lower(name) = lower(:table)"
"""The same in SQLite."""


@dataclass(frozen=True, slots=True)
class Syntax:
    """How a database writes the statements that all of them have."""

    quoted: Callable[[str], str]
    """Quotes an identifier."""
    types: Mapping[str, str]
    """Types of data columns that have another name in this database."""
    key_types: Mapping[str, str]
    ranks: Sequence[str] = ("bigint NOT NULL DEFAULT -1", "boolean NOT NULL DEFAULT false")
    """Types of rank and tombstone mark in a new table."""
    create_table: str = "CREATE TABLE IF NOT EXISTS"
    create_view: str = "CREATE OR REPLACE VIEW"
    add_column: str = "ADD COLUMN"
    is_live: str = f"{DELETED} IS NOT TRUE"
    """The condition that a row is no tombstone."""
    options: str = ""
    """The end of CREATE TABLE, after the columns."""

    def name(self, table: Table | sa.Table, name: str | None = None) -> str:
        """Quote a table's name, or that of another table in its schema."""
        quoted = self.quoted(name or table.name)
        return f"{self.quoted(table.schema)}.{quoted}" if table.schema else quoted

    def type(self, kind: str) -> str:
        """Return the type of a data column."""
        return self.types.get(kind, kind)


def quoted(name: str, quote: str = '"') -> str:
    """Quote an identifier."""
    return quote + name.replace(quote, quote * 2) + quote


POSTGRESQL = Syntax(
    quoted,
    {"integer": "bigint", "real": "double precision", "json": "jsonb", "timestamp": "timestamptz"},
    # bytewise: no language may treat two ids as equal, and sorted batches lock rows in one order
    {"text": 'text COLLATE "C"', "integer": "bigint", "uuid": "uuid", "date": "date"},
    # each page keeps room for the next versions of its rows: an update that fits there leaves the index alone
    options=" WITH (fillfactor = 70)",
)
SQLITE = Syntax(
    quoted,
    {"json": "text", "timestamp": "text"},
    {"text": "text", "integer": "bigint", "uuid": "text", "date": "text"},
    create_view="CREATE VIEW IF NOT EXISTS",
)


def upsert_values(table: Table) -> str:
    """Return SQLite's guarded upsert, for ``executemany``."""
    marks = ", ".join("?" * len(table.columns))
    return f"INSERT INTO {SQLITE.name(table)} AS t ({_names(table.columns)})\nVALUES ({marks})\n{_on_conflict(table)}"


BY_ARRAY = b"""\
SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL enable_memoize = off;
SET LOCAL enable_seqscan = off; SET LOCAL enable_material = off; SET LOCAL jit = off;
"""
"""PostgreSQL, for one transaction that writes to one table without user triggers: a nested loop reads the arrays from
first to last and looks up each key, so rows are locked in the order of their keys."""
SAVE, BACK = b"SAVEPOINT xq", b"ROLLBACK TO SAVEPOINT xq"


def merge_arrays(table: Table, types: Mapping[str, str]) -> str:
    """Return the guarded upsert of arrays. A unique violation means that another writer inserted first."""
    given = _given(table, types)
    changes = ", ".join(f"{quoted(name)} = {given[name]}" for name in table.columns[len(table.keys) :])
    newer = f' AND COALESCE(t."{RANK}", -1) {table.below} s."{RANK}"' if table.ranked else ""
    return (
        f"MERGE INTO {POSTGRESQL.name(table)} AS t USING {_arrays(table)} ON {_at(table, types)}\n"
        f"WHEN MATCHED{newer} THEN UPDATE SET {changes}\n"
        f"WHEN NOT MATCHED THEN INSERT ({_names(table.columns)}) VALUES ({', '.join(given.values())})"
    )


def upsert_arrays(table: Table, types: Mapping[str, str]) -> str:
    """Return an upsert that also handles concurrent inserts, and tables and servers that MERGE does not suit."""
    return (
        f"INSERT INTO {POSTGRESQL.name(table)} AS t ({_names(table.columns)})\n"
        f"SELECT {', '.join(_given(table, types).values())} FROM {_arrays(table)}\n{_on_conflict(table)}"
    )


def count_arrays(table: Table, types: Mapping[str, str]) -> str:
    """Return the statement that counts the rows that the table holds; with ranks, only rows of at least the given rank.

    Its arrays are the keys and, if the table is ranked, the ranks.
    """
    columns = (*table.keys, RANK) if table.ranked else table.keys
    newer = f' AND t."{RANK}" >= s."{RANK}"' if table.ranked else ""
    both = f"{POSTGRESQL.name(table)} AS t, {_arrays(table, columns)}"
    return f"SELECT count(*) FROM {both} WHERE {_at(table, types)}{newer}"


def delete_arrays(table: Table, types: Mapping[str, str]) -> str:
    """Return the delete by keys given as arrays."""
    name, keys = POSTGRESQL.name(table), _arrays(table, table.keys)
    return f"DELETE FROM {name} AS t USING {keys} WHERE {_at(table, types)}"


def find_value(table: Table) -> str:
    """Return SQLite's search for one row by key; in a ranked table, of at least the given rank."""
    at_least = f' AND "{RANK}" >= ?' if table.ranked else ""
    return f"SELECT 1 FROM {SQLITE.name(table)} WHERE {_by_key(table)}{at_least}"


def delete_values(table: Table) -> str:
    """Return SQLite's delete of one row by its key, for ``executemany``."""
    return f"DELETE FROM {SQLITE.name(table)} WHERE {_by_key(table)}"


def _by_key(table: Table) -> str:
    return " AND ".join(f"{quoted(key)} = ?" for key in table.keys)


def _arrays(table: Table, columns: Sequence[str] = ()) -> str:
    """Return the relation ``s`` made of arrays, one per column."""
    columns = columns or table.columns
    kinds = {RANK: "bigint", DELETED: "boolean"}
    kinds |= {key.name: "bigint" for key in table.key.columns if key.type == "integer"}
    arrays = ", ".join(f"%b::{kinds.get(name, 'text')}[]" for name in columns)
    return f"unnest({arrays}) AS s ({_names(columns)})"


def _given(table: Table, types: Mapping[str, str]) -> dict[str, str]:
    """Return the value of each column, from its array."""
    casts = {name: f"::{kind}" for name, kind in types.items() if kind != "text" and name not in (RANK, DELETED)}
    return {
        name: f"s.{quoted(name)}{casts.get(name, '')}".replace("%", "%%")  # % is escaped for the driver
        for name in table.columns
    }


def _at(table: Table, types: Mapping[str, str]) -> str:
    given = _given(table, types)
    return " AND ".join(f"t.{quoted(key)} = {given[key]}" for key in table.keys)


def _names(columns: Sequence[str]) -> str:
    return ", ".join(map(quoted, columns))


def _on_conflict(table: Table) -> str:
    changes = ", ".join(f'"{name}" = excluded."{name}"' for name in table.columns[len(table.keys) :])
    upsert = f"ON CONFLICT ({_names(table.keys)}) DO UPDATE SET {changes}"
    if not table.ranked:
        return upsert
    # the rank is NULL in a row that is older than the sink; nothing is greater than NULL
    return f'{upsert}\nWHERE COALESCE(t."{RANK}", -1) {table.below} excluded."{RANK}"'
