"""The SQL of the SQL sink as MySQL and MariaDB write it."""

from __future__ import annotations

from export_queue.core.sinks.sql.statements import Syntax
from export_queue.core.sinks.sql.tables import DELETED, RANK, Table

SQL_MODE = "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
"""Values that do not fit are errors, not cut or replaced; a backslash in a literal escapes."""

SET_UP = (
    f"SET SESSION sql_mode = '{SQL_MODE}', SESSION time_zone = '+00:00', SESSION sql_quote_show_create = 1, "
    "SESSION completion_type = 'NO_CHAIN', SESSION sql_big_selects = 1, SESSION sql_safe_updates = 0"
)
"""At each connection, before SQLAlchemy learns from the session how names are quoted, and at each transaction: settings
of a session may be lost behind a proxy."""

SET_LIMITS = (
    f"{SET_UP}, SESSION innodb_lock_wait_timeout = :lock, SESSION lock_wait_timeout = :lock, "
    "SESSION wait_timeout = :idle"
)
"""At each transaction."""

LIMIT_LOCKS = "SET SESSION lock_wait_timeout = :lock"

SESSION = (
    "SELECT @@sql_mode AS mode, @@character_set_client AS charset, @@character_set_connection AS connection_charset"
)

FOLDS = "SELECT @@lower_case_table_names"

SERVER = "SELECT @@max_allowed_packet, @@innodb_flush_log_at_trx_commit"

TABLE_ENGINE = """\
SELECT engine FROM information_schema.tables
 WHERE table_schema = COALESCE(:schema, database()) AND table_name = :table"""

COLLATIONS = """\
SELECT column_name AS name, character_set_name AS charset, collation_name AS collation
  FROM information_schema.columns
 WHERE table_schema = COALESCE(:schema, database()) AND table_name = :table AND collation_name IS NOT NULL"""

CUT_KEYS = """\
SELECT column_name AS name FROM information_schema.statistics
 WHERE table_schema = COALESCE(:schema, database()) AND table_name = :table
   AND index_name = 'PRIMARY' AND sub_part IS NOT NULL"""
"""Columns of which the primary key takes the first characters only."""

SHAPE = """\
SELECT 'column', column_name, column_type, collation_name FROM information_schema.columns
 WHERE table_schema = COALESCE(:schema, database()) AND table_name = :table
 UNION ALL
SELECT index_name, column_name, seq_in_index, sub_part FROM information_schema.statistics
 WHERE table_schema = COALESCE(:schema, database()) AND table_name = :table AND non_unique = 0"""
"""What decides which row an upsert finds, and what its columns take."""

KEY_CHARACTERS = 768
"""As many of four bytes as an index of InnoDB takes."""
_OTHER_KEYS = 10
"""Characters that a column of the key takes where it is no text."""


def syntax(table: Table | None = None, *, is_mariadb: bool) -> Syntax:
    """Return how a server writes things; the collations without padding have other names in each of them.

    :param table: whose columns of text in the key share what its index takes.
    """
    texts = sum(key.type == "text" for key in table.key.columns) if table else 1
    others = len(table.key.columns) - texts if table else 0
    characters = (KEY_CHARACTERS - _OTHER_KEYS * others) // max(1, texts)
    collation = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
    text = f"varchar({characters}) CHARACTER SET utf8mb4 COLLATE {collation}"
    return Syntax(
        "`",
        {
            "text": "longtext",
            "integer": "bigint",
            "real": "double",
            "numeric": "decimal(65, 30)",
            "boolean": "boolean",
            "json": "json",
            "timestamp": "datetime(6)",
        },
        {"text": text, "integer": "bigint", "uuid": "char(36) CHARACTER SET ascii COLLATE ascii_bin", "date": "date"},
        # other formats of rows have no room for such keys in an index
        options=" ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4",
    )


def insert_into(table: Table, syntax: Syntax) -> str:
    """Return the beginning of the guarded upsert; rows in parentheses follow, then :func:`where_newer`."""
    return f"INSERT INTO {syntax.name(table)} ({', '.join(map(syntax.quoted, table.columns))}) VALUES\n"


def delete_from(table: Table, syntax: Syntax) -> str:
    """Return the beginning of a delete; keys in parentheses follow, and one more that closes the list."""
    return f"DELETE FROM {syntax.name(table)} WHERE ({', '.join(map(syntax.quoted, table.keys))}) IN (\n"


def select_keys(table: Table, syntax: Syntax) -> str:
    """Return the beginning of a read of keys and ranks; keys in parentheses follow, and one more that closes the list.

    A row that was there before the sink has a rank below all others.
    """
    keys = ", ".join(map(syntax.quoted, table.keys))
    rank = f"COALESCE({syntax.quoted(RANK)}, -1)" if table.ranked else "0"
    return f"SELECT {keys}, {rank} FROM {syntax.name(table)} WHERE ({keys}) IN (\n"


def where_newer(table: Table, syntax: Syntax) -> str:
    """Return the end of the guarded upsert; a table without ranks takes every row.

    Assignments are made one after the other, and each sees those before it: the rank, by which the others
    decide, comes last.
    """
    if not table.ranked:
        plain = [syntax.quoted(column.name) for column in table.contents.columns]
        return "\nON DUPLICATE KEY UPDATE\n" + ",\n".join(f"{name} = VALUES({name})" for name in plain)
    rank = syntax.quoted(RANK)
    newer = f"COALESCE({rank}, -1) < VALUES({rank})"
    guarded = [*(column.name for column in table.contents.columns), DELETED]
    changes = [f"{name} = IF({newer}, VALUES({name}), {name})" for name in map(syntax.quoted, guarded)]
    changes.append(f"{rank} = GREATEST(COALESCE({rank}, -1), VALUES({rank}))")
    return "\nON DUPLICATE KEY UPDATE\n" + ",\n".join(changes)
