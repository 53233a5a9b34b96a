"""The statements of the SQL sink that SQLAlchemy does not write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from export_queue.core.sinks.sql.tables import DELETED, RANK, Table

CONTROL_TABLE = "xq_control"
_BATCH = "pg_temp.xq_batch"

SET_LIMITS = """\
SELECT set_config('lock_timeout', :lock, true),
       set_config('statement_timeout', :statement, true),
       set_config('idle_in_transaction_session_timeout', :idle, true),
       set_config('TimeZone', 'UTC', true),
       set_config('synchronous_commit', CASE s.setting WHEN 'off' THEN 'on' ELSE s.setting END, true)
  FROM (SELECT current_setting('synchronous_commit') AS setting) s"""
"""PostgreSQL, for one transaction: settings of a session would be lost, or kept, behind a pooler. A time without a zone
is one of UTC. A database or a role may have switched off that a commit waits for the disk: what is acknowledged has to
be there."""

MERGING_COLLATION_POSTGRESQL = """\
SELECT a.attname, c.collname
  FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation
 WHERE a.attrelid = to_regclass(:table) AND NOT c.collisdeterministic"""
"""Columns, and their collations where these take different texts for equal."""

MERGING_COLLATION_SQLITE = """\
SELECT x.name, x.coll
  FROM pragma_index_list(:table) l, pragma_index_xinfo(l.name) x
 WHERE l.origin = 'pk' AND upper(x.coll) <> 'BINARY'"""
"""The same in SQLite: NOCASE and RTRIM."""


SHAPE_POSTGRESQL = """\
SELECT attname, atttypid, atttypmod, attcollation FROM pg_attribute
 WHERE attrelid = to_regclass(:table) AND attnum > 0 ORDER BY attnum"""
"""What decides what a table's columns take, and which keys are equal."""

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


def create_control(schema: str | None, syntax: Syntax) -> str:
    """Return the statement that creates the control records, one a queue."""
    prefix = f"{syntax.quoted(schema)}." if schema else ""
    return (
        f"CREATE TABLE IF NOT EXISTS {prefix}{CONTROL_TABLE} (\n    queue_id {syntax.key_types['text']} NOT NULL"
        f" PRIMARY KEY,\n    store_id {syntax.types['text']} NOT NULL,\n    fence bigint NOT NULL,"
        f"\n    floor bigint NOT NULL DEFAULT 0\n){syntax.options}"
    )


def lock_control(schema: str | None) -> str:
    """Return the statement that waits, in PostgreSQL, for all transactions that have read the control table."""
    prefix = f"{POSTGRESQL.quoted(schema)}." if schema else ""
    return f"LOCK TABLE {prefix}{CONTROL_TABLE} IN EXCLUSIVE MODE"


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


def create_batch(table: Table) -> str:
    """Return the statement that creates a batch's temporary table.

    It lives for one transaction: a session that remembered it would remember the types of a table that was changed
    since, and behind a pooler a session serves many sinks.
    """
    return (
        f"CREATE TEMP TABLE {_BATCH} ON COMMIT DROP AS\n"
        f"SELECT {_names(table)} FROM {POSTGRESQL.name(table)} WITH NO DATA"
    )


def copy_batch(table: Table) -> str:
    """Return the COPY that fills it."""
    return f"COPY {_BATCH} ({_names(table)}) FROM STDIN"


def upsert_batch(table: Table) -> str:
    """Return the guarded upsert from it; the batch was copied in the order of its keys, and is read so."""
    return (
        f"INSERT INTO {POSTGRESQL.name(table)} AS t ({_names(table)})\n"
        f"SELECT {_names(table)} FROM {_BATCH}\n{_on_conflict(table)}"
    )


def count_batch(table: Table) -> str:
    """Return the statement that counts the rows of the batch that the table holds as they are or newer."""
    name, same = POSTGRESQL.name(table), _same_keys(table, "b")
    newer = f' WHERE t."{RANK}" >= b."{RANK}"' if table.ranked else ""
    return f"SELECT count(*) FROM {_BATCH} AS b JOIN {name} AS t ON {same}{newer}"


def find_value(table: Table) -> str:
    """Return SQLite's look at one row, by its key and where it has one its rank: it is as new already."""
    keys = [f"{SQLITE.quoted(key)} = ?" for key in table.keys]
    at_least = [f"{SQLITE.quoted(RANK)} >= ?"] if table.ranked else []
    return f"SELECT 1 FROM {SQLITE.name(table)} WHERE {' AND '.join(keys + at_least)}"


def delete_values(table: Table) -> str:
    """Return SQLite's delete of one row by its key, for ``executemany``."""
    return f"DELETE FROM {SQLITE.name(table)} WHERE {' AND '.join(f'{SQLITE.quoted(key)} = ?' for key in table.keys)}"


def delete_keys(table: Table) -> tuple[str, str, str, str]:
    """Return four statements: create a temporary table of keys for one transaction, fill it, delete by it, and count
    the rows that are left.
    """
    quoted = [POSTGRESQL.quoted(key) for key in table.keys]
    names, name, gone = ", ".join(quoted), POSTGRESQL.name(table), "pg_temp.xq_gone"
    same = _same_keys(table, "g")
    return (
        f"CREATE TEMP TABLE {gone} ON COMMIT DROP AS\nSELECT {names} FROM {name} WITH NO DATA",
        f"COPY {gone} ({names}) FROM STDIN",
        f"DELETE FROM {name} AS t USING {gone} AS g WHERE {same}",
        f"SELECT count(*) FROM {name} AS t JOIN {gone} AS g ON {same}",
    )


def _same_keys(table: Table, other: str) -> str:
    return " AND ".join(f"t.{key} = {other}.{key}" for key in map(POSTGRESQL.quoted, table.keys))


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
