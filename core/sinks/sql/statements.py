"""The statements of the SQL sink that SQLAlchemy does not write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from export_queue.core.sinks.sql.tables import DELETED, RANK, Table

QUEUE_TABLE, FLOOR_TABLE, RECORDS_TABLE = "xq_control", "xq_floor", "xq_target"
CONTROL_TABLES = (RECORDS_TABLE, FLOOR_TABLE, QUEUE_TABLE)
"""In the order in which they are created: where there is the last one, all have been there."""

SET_LIMITS = """\
SELECT set_config('lock_timeout', :lock, true),
       set_config('statement_timeout', :statement, true),
       set_config('idle_in_transaction_session_timeout', :idle, true),
       set_config('TimeZone', 'UTC', true),
       set_config('quote_all_identifiers', 'off', true),
       set_config('synchronous_commit', CASE s.setting WHEN 'off' THEN 'on' ELSE s.setting END, true)
  FROM (SELECT current_setting('synchronous_commit') AS setting) s"""
"""PostgreSQL, for one transaction: settings of a session would be lost, or kept, behind a pooler. A time without a zone
is one of UTC. The catalogue names types without quotes. A database or a role may have switched off that a commit waits
for the disk: what is acknowledged has to be there."""

LIMIT_LOCKS = "SELECT set_config('lock_timeout', :lock, true)"
"""PostgreSQL, for one transaction."""

MERGING_COLLATION_POSTGRESQL = """\
SELECT a.attname, c.collname
  FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation
 WHERE a.attrelid = to_regclass(:table) AND NOT c.collisdeterministic"""
"""Columns, and their collations where these take different texts for equal."""

ODD_TABLES_POSTGRESQL = """\
SELECT c.relname AS name, c.relpersistence <> 'p' AS is_lost_in_crash, pg_encoding_to_char(d.encoding) AS encoding,
       EXISTS (
           SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND NOT i.indimmediate) AS is_deferrable,
       (SELECT string_agg(conname, ', ') FROM pg_constraint WHERE conrelid = c.oid AND contype = 'x') AS exclusions
  FROM pg_class c, pg_database d
 WHERE d.datname = current_database()
   AND (c.oid = to_regclass(:table) OR c.oid IN (SELECT p.relid FROM pg_partition_tree(to_regclass(:table)) p))"""
"""What makes a table, or one of its partitions, no place for records."""

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
"""What decides what a table's columns take, which keys are equal, and whether anything but constraints that are checked
at once stands between a statement and its rows: rules, policies, other tables, triggers. A trigger behind a row keeps
nothing out, but would run under the settings of ``BY_ARRAY``. A text is cast to a column's type without its length: as
an explicit cast, ``varchar(3)`` would cut where the column refuses; so would a domain."""

SHAPE_SQLITE = "SELECT sql FROM sqlite_master WHERE type = 'table' AND lower(name) = lower(:table)"
"""The same in SQLite."""


@dataclass(frozen=True, slots=True)
class Syntax:
    """How a database writes the statements that all of them have."""

    quote: str
    types: Mapping[str, str]
    """Types of data columns."""
    key_types: Mapping[str, str]
    create_view: str = "CREATE OR REPLACE VIEW"
    options: str = ""
    """The end of CREATE TABLE, after the columns."""

    def quoted(self, name: str) -> str:
        """Quote an identifier."""
        return self.quote + name.replace(self.quote, self.quote * 2) + self.quote

    def name(self, table: Table, name: str | None = None) -> str:
        """Quote a table's name, or that of another one beside it, with its schema."""
        quoted = self.quoted(name or table.name)
        return f"{self.quoted(table.schema)}.{quoted}" if table.schema else quoted


POSTGRESQL = Syntax(
    '"',
    {
        "text": "text",
        "integer": "bigint",
        "real": "double precision",
        "numeric": "numeric",
        "boolean": "boolean",
        "json": "jsonb",
        "timestamp": "timestamptz",
    },
    # bytewise: no language may take two ids for one, and sorted batches lock rows in one order
    {"text": 'text COLLATE "C"', "integer": "bigint", "uuid": "uuid", "date": "date"},
    # each page keeps room for the next versions of its rows: an update that finds it there leaves the index alone
    options=" WITH (fillfactor = 70)",
)
SQLITE = Syntax(
    '"',
    {
        "text": "text",
        "integer": "integer",
        "real": "real",
        "numeric": "numeric",
        "boolean": "boolean",
        "json": "text",
        "timestamp": "text",
    },
    {"text": "text", "integer": "bigint", "uuid": "text", "date": "text"},
    create_view="CREATE VIEW IF NOT EXISTS",
)


def create_control(schema: str | None, syntax: Syntax) -> dict[str, str]:
    """Return the statements that create the control tables, by table."""
    key, text = syntax.key_types["text"], syntax.types["text"]
    columns = {
        RECORDS_TABLE: [
            f"table_name {key} NOT NULL PRIMARY KEY",
            "mark bigint",
            "holds_rows boolean NOT NULL",
            "lost_fence bigint NOT NULL",
        ],
        FLOOR_TABLE: [
            "id integer NOT NULL PRIMARY KEY",
            "floor bigint NOT NULL",
            f"store_id {text}",
            "changes bigint NOT NULL",
        ],
        QUEUE_TABLE: [
            f"queue_id {key} NOT NULL PRIMARY KEY",
            f"store_id {text} NOT NULL",
            "fence bigint NOT NULL",
            "since_fence bigint NOT NULL",
        ],
    }
    prefix = f"{syntax.quoted(schema)}." if schema else ""
    return {
        name: f"CREATE TABLE IF NOT EXISTS {prefix}{name} (\n    {body}\n){syntax.options}"
        for name in CONTROL_TABLES
        for body in [",\n    ".join(columns[name])]
    }


def lock_floor(schema: str | None) -> str:
    """Return the statement that waits, in PostgreSQL, for all transactions that have read the floor."""
    prefix = f"{POSTGRESQL.quoted(schema)}." if schema else ""
    return f"LOCK TABLE {prefix}{FLOOR_TABLE} IN EXCLUSIVE MODE"


def create_table(table: Table, syntax: Syntax) -> list[str]:
    """Return the statements that create a table, and where it has tombstones the view on it that hides them.

    Data columns take NULL, since a tombstone has nothing else to put there.
    """
    columns = [f"{syntax.quoted(key.name)} {syntax.key_types[key.type]} NOT NULL" for key in table.key.columns]
    columns += [f"{syntax.quoted(column.name)} {syntax.types[column.type]}" for column in table.contents.columns]
    if table.ranked:
        columns += [
            f"{syntax.quoted(RANK)} bigint NOT NULL DEFAULT -1",
            f"{syntax.quoted(DELETED)} boolean NOT NULL DEFAULT false",
        ]
    columns.append(f"PRIMARY KEY ({', '.join(map(syntax.quoted, table.keys))})")
    body = ",\n    ".join(columns)
    create = f"CREATE TABLE IF NOT EXISTS {syntax.name(table)} (\n    {body}\n){syntax.options}"
    return [create, _view(table, syntax)] if table.ranked else [create]


def add_columns(table: Table, syntax: Syntax, missing: Sequence[str], *, has_view: bool = False) -> list[str]:
    """Return the statements that give a table the columns that it lacks, and the view that shows them.

    The columns have no default and take NULL: no database rewrites or locks a large table for that.

    :param missing: the columns.
    :param has_view: whether there is a view that must be dropped, where none can be replaced.
    """
    kinds = {column.name: syntax.types[column.type] for column in table.contents.columns}
    kinds |= {RANK: "bigint", DELETED: "boolean"}
    commands = [f"ALTER TABLE {syntax.name(table)} ADD COLUMN {syntax.quoted(name)} {kinds[name]}" for name in missing]
    if not table.ranked:
        return commands
    if has_view:
        commands.append(f"DROP VIEW {syntax.name(table, table.live)}")
    # the new columns last: a view of PostgreSQL that is replaced keeps those that it has, in their order
    return [*commands, _view(table, syntax, last=missing)]


def upsert_values(table: Table) -> str:
    """Return SQLite's guarded upsert, for ``executemany``."""
    places = ", ".join("?" * len(table.columns))
    return f"INSERT INTO {SQLITE.name(table)} AS t ({_names(table)})\nVALUES ({places})\n{_on_conflict(table)}"


BY_ARRAY = b"""\
SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL enable_memoize = off;
SET LOCAL enable_seqscan = off; SET LOCAL enable_material = off; SET LOCAL jit = off;
"""
"""PostgreSQL, for one transaction, which writes to one table without triggers of the user's: a nested loop reads arrays
from first to last and looks each key up. So rows are locked in the order of their keys."""
SAVE, BACK = b"SAVEPOINT xq", b"ROLLBACK TO SAVEPOINT xq"


def merge_arrays(table: Table, types: Mapping[str, str]) -> str:
    """Return the guarded upsert of columns given as arrays; a unique violation says that somebody inserted first.

    :param types: to which the text of a column is cast.
    """
    given = _given(table, types)
    changes = ", ".join(f"{POSTGRESQL.quoted(name)} = {given[name]}" for name in table.columns[len(table.keys) :])
    newer = f' AND COALESCE(t."{RANK}", -1) < s."{RANK}"' if table.ranked else ""
    return (
        f"MERGE INTO {POSTGRESQL.name(table)} AS t USING {_arrays(table)} ON {_at(table, types)}\n"
        f"WHEN MATCHED{newer} THEN UPDATE SET {changes}\n"
        f"WHEN NOT MATCHED THEN INSERT ({_names(table)}) VALUES ({', '.join(given.values())})"
    )


def upsert_arrays(table: Table, types: Mapping[str, str]) -> str:
    """Return the same for whoever inserted first, for tables and for servers that know no MERGE."""
    return (
        f"INSERT INTO {POSTGRESQL.name(table)} AS t ({_names(table)})\n"
        f"SELECT {', '.join(_given(table, types).values())} FROM {_arrays(table)}\n{_on_conflict(table)}"
    )


def count_arrays(table: Table, types: Mapping[str, str]) -> str:
    """Return the statement that counts the rows that the table holds; of those with ranks, as they are or newer.

    Its arrays are those of the keys, and of the ranks where there are any.
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
    """Return SQLite's look at one row, by its key and where it has one its rank: it is as new already."""
    keys = [f"{SQLITE.quoted(key)} = ?" for key in table.keys]
    at_least = [f"{SQLITE.quoted(RANK)} >= ?"] if table.ranked else []
    return f"SELECT 1 FROM {SQLITE.name(table)} WHERE {' AND '.join(keys + at_least)}"


def delete_values(table: Table) -> str:
    """Return SQLite's delete of one row by its key, for ``executemany``."""
    return f"DELETE FROM {SQLITE.name(table)} WHERE {' AND '.join(f'{SQLITE.quoted(key)} = ?' for key in table.keys)}"


def _arrays(table: Table, columns: Sequence[str] = ()) -> str:
    """Return the relation ``s`` that arrays are, one a column."""
    columns = columns or table.columns
    kinds = {RANK: "bigint", DELETED: "boolean"}
    kinds |= {key.name: "bigint" for key in table.key.columns if key.type == "integer"}
    arrays = ", ".join(f"%b::{kinds.get(name, 'text')}[]" for name in columns)
    return f"unnest({arrays}) AS s ({', '.join(map(POSTGRESQL.quoted, columns))})"


def _given(table: Table, types: Mapping[str, str]) -> dict[str, str]:
    """Return the value of each column, from its array."""
    casts = {name: f"::{kind}" for name, kind in types.items() if kind != "text" and name not in (RANK, DELETED)}
    return {
        name: f"s.{POSTGRESQL.quoted(name)}{casts.get(name, '')}".replace("%", "%%")  # as the driver wants it
        for name in table.columns
    }


def _at(table: Table, types: Mapping[str, str]) -> str:
    given = _given(table, types)
    return " AND ".join(f"t.{POSTGRESQL.quoted(key)} = {given[key]}" for key in table.keys)


def _view(table: Table, syntax: Syntax, last: Sequence[str] = ()) -> str:
    shown = ", ".join(map(syntax.quoted, sorted(table.columns[:-2], key=lambda name: name in last)))
    return (
        f"{syntax.create_view} {syntax.name(table, table.live)} AS\n"
        f"SELECT {shown} FROM {syntax.name(table)} WHERE {syntax.quoted(DELETED)} IS NOT TRUE"
    )


def _names(table: Table) -> str:
    return ", ".join(map(POSTGRESQL.quoted, table.columns))


def _on_conflict(table: Table) -> str:
    keys = ", ".join(map(POSTGRESQL.quoted, table.keys))
    changes = ", ".join(f'"{name}" = excluded."{name}"' for name in table.columns[len(table.keys) :])
    upsert = f"ON CONFLICT ({keys}) DO UPDATE SET {changes}"
    if not table.ranked:
        return upsert
    # a rank that is NULL is that of a row that was there before the sink; nothing is greater than NULL
    return f'{upsert}\nWHERE COALESCE(t."{RANK}", -1) < excluded."{RANK}"'
