"""MySQL and MariaDB: guarded upserts of many rows in one statement, sent as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pymysql
from sqlalchemy import URL, Connection, Engine, create_engine, event, text

from export_queue.core.drivers import bare_url, mysql_arguments
from export_queue.core.errors import ExportQueueError, SinkConfigurationError
from export_queue.core.sinks.error_table import ErrorRow, ErrorTable, Fate
from export_queue.core.sinks.operations import cut_by_size
from export_queue.core.sinks.sql.dialects.protocol import (
    DDL_LOCK_SECONDS,
    URL_OPTION,
    Dialect,
    Password,
    Poison,
    TryAgain,
    give_password,
    judged,
)
from export_queue.core.sinks.sql.fitting import merging
from export_queue.core.sinks.sql.rows import Limits, Rows
from export_queue.core.sinks.sql.statements import Syntax, quoted
from export_queue.core.sinks.sql.tables import DELETED, RANK, Table
from export_queue.core.sinks.sql.values import as_literal

ERRORS = ErrorTable(
    "MySQL",
    [
        ErrorRow("1020, 1213, 1412", Fate.AGAIN, "deadlock, or a record or a table that changed since it was read"),
        ErrorRow("no answer", Fate.LATER, "the server does not answer, or the connection broke"),
        ErrorRow(
            "1047, 1053, 1129, 1158, 1159, 1160, 1161, 1927, 3169, 4031",
            Fate.LATER,
            "the server is stopping, has ended an idle session, or packets were lost",
        ),
        ErrorRow(
            "3, 20, 1021, 1026, 1030, 1114, 1180",
            Fate.LATER,
            "a disk or a table is full, or the disk fails: make room, see the server's log; entries wait in the queue",
        ),
        ErrorRow(
            "5, 1037, 1038, 1040, 1041, 1135, 1203, 1206, 1226, 1637",
            Fate.LATER,
            "the server lacks memory or connections",
        ),
        ErrorRow(
            "1205, 1223, 1317, 1969, 3024, 3572",
            Fate.LATER,
            "a lock or a statement took longer than the sink's timeout",
        ),
        ErrorRow(
            "1036, 1290, 1792, 1836, 3989",
            Fate.LATER,
            "the server, its storage engine or the schema is read-only: a replica (connect to the primary), or set by "
            "an administrator (read_only, super_read_only, innodb_read_only); entries wait in the queue",
        ),
        ErrorRow("3100, 3101", Fate.LATER, "a member of the group did not agree; try again"),
        ErrorRow(
            "1048, 1264, 1265, 1292, 1366, 1367, 1406, 1411, 1690", Fate.REJECTED, "data that the column does not take"
        ),
        ErrorRow("1062, 1216, 1452, 3819, 4025", Fate.REJECTED, "a constraint of the table"),
        ErrorRow(
            "1526, 1643, 1644, 1748", Fate.REJECTED, "no partition takes the row, or a trigger refuses it (SIGNAL)"
        ),
        ErrorRow("3140, 3141, 3156, 4038", Fate.REJECTED, "not JSON"),
        ErrorRow("1118, 1153", Fate.REJECTED, "a row that is too large"),
        ErrorRow("*", Fate.REFUSED, "password, rights, a missing table: the server's message says which"),
    ],
)
SQL_MODE = "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
"""Values that do not fit cause errors instead of being cut or replaced; a backslash escapes in a literal."""

SET_UP = (
    f"SET SESSION sql_mode = '{SQL_MODE}', SESSION time_zone = '+00:00', SESSION sql_quote_show_create = 1, "
    "SESSION completion_type = 'NO_CHAIN', SESSION sql_big_selects = 1, SESSION sql_safe_updates = 0"
)
"""Run at each connection, before SQLAlchemy asks the session how names are quoted, and at each transaction: a proxy may
lose settings of a session."""

SET_LIMITS = (
    f"{SET_UP}, SESSION innodb_lock_wait_timeout = :lock, SESSION lock_wait_timeout = :lock, "
    "SESSION wait_timeout = :idle"
)
"""Run at each transaction."""

SESSION = (
    "SELECT @@sql_mode AS mode, @@character_set_client AS charset, @@character_set_connection AS connection_charset"
)
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
"""Columns of which the primary key contains only the first characters."""

SHAPE = """\
SELECT 'column', column_name, column_type, collation_name FROM information_schema.columns
 WHERE table_schema = COALESCE(:schema, database()) AND table_name = :table
 UNION ALL
SELECT index_name, column_name, seq_in_index, sub_part FROM information_schema.statistics
 WHERE table_schema = COALESCE(:schema, database()) AND table_name = :table AND non_unique = 0"""
"""What decides which row an upsert finds, and which values its columns take."""

KEY_CHARACTERS = 768
"""Characters of four bytes that an index of InnoDB can hold."""
_OTHER_KEYS = 10
"""Characters that a key column takes if it is not text."""

_quoted = partial(quoted, quote="`")
_SYNTAX = Syntax(
    _quoted,
    {
        "text": "longtext",
        "integer": "bigint",
        "real": "double",
        "numeric": "decimal(65, 30)",
        "timestamp": "datetime(6)",
    },
    {"integer": "bigint", "uuid": "char(36) CHARACTER SET ascii COLLATE ascii_bin", "date": "date"},
    # other row formats have no room for such keys in an index
    options=" ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4",
)

_FULL, _NOT_CREATED = 1114, 1005
_NO_ROOM = re.compile(r"errno: (28|135)\b")
"""Reasons why a table was not created: the device, or the set of tables, is full."""
_GRACE_SECONDS = 5.0
"""Seconds that an answer may be late: the server stops waiting first, and its error names the lock or statement."""
_STATEMENT_BYTES = 1 << 20
_SLACK = 1 << 10
"""Bytes of a statement besides its rows and names."""


class MySqlDialect(Dialect):
    """A database of a MySQL or MariaDB server; the time-out limits the wait for a lock and for an answer."""

    name = "mysql"
    limits = Limits(id_bytes=4 * KEY_CHARACTERS, convert=as_literal, encoded=True)
    driver_error: type[Exception] = pymysql.Error

    def __init__(self, url: URL, *, password: Password, timeout: float) -> None:
        if not url.database:
            raise SinkConfigurationError("url: names no database; expected mysql://user@host/database")
        self._arguments = mysql_arguments(url, where=URL_OPTION, error=SinkConfigurationError)
        place = self._arguments.get("unix_socket") or f"{url.host or 'localhost'}:{url.port or 3306}"
        self.server = f"MySQL at {place}, database {url.database}"
        self._url = bare_url(url, "mysql+pymysql")
        self._password = password
        self._timeout = timeout

    def engine(self) -> Engine:
        settings = {
            "charset": "utf8mb4",
            "client_flag": 0,  # count changed rows, not rows found
            "connect_timeout": 10,
            "read_timeout": self._timeout + _GRACE_SECONDS,
            "write_timeout": self._timeout + _GRACE_SECONDS,
        }
        engine = create_engine(
            self._url,
            isolation_level="READ COMMITTED",
            hide_parameters=True,
            pool_size=2,
            max_overflow=2,
            pool_recycle=self._timeout / 2,  # before the server ends an idle session
            connect_args={**settings, **self._arguments},
        )
        give_password(engine, self._password, encoding="utf-8")  # PyMySQL would use latin1

        # insert=True: before SQLAlchemy asks how names are quoted, and after a user's init_command
        @event.listens_for(engine, "connect", insert=True)
        def set_up(connection: Any, record: Any) -> None:
            with connection.cursor() as cursor:
                cursor.execute(SET_UP)
                cursor.execute(SERVER)
                record.info["packet"], record.info["flush"] = map(int, cursor.fetchone())

        return engine

    def folds_names(self, connection: Connection) -> bool:
        return bool(connection.exec_driver_sql("SELECT @@lower_case_table_names").scalar())

    def begin(self, connection: Connection) -> None:
        """Set strict mode and limit all waits, so that a stopped process does not keep its locks."""
        if (flush := connection.info["flush"]) != 1:  # a session cannot change this setting
            raise SinkConfigurationError(
                f"{self.server} acknowledges commits before they are on its disk: expected"
                f" innodb_flush_log_at_trx_commit 1, found {flush}",
                hint="set innodb_flush_log_at_trx_commit = 1 in the server's configuration: entries leave the queue as"
                " soon as the sink has acknowledged them",
            )
        seconds = max(1, int(self._timeout))
        connection.execute(text(SET_LIMITS), {"lock": seconds, "idle": seconds})

    def limit_ddl(self, connection: Connection) -> None:
        connection.execute(text("SET SESSION lock_wait_timeout = :lock"), {"lock": DDL_LOCK_SECONDS})

    def syntax(self, connection: Connection, table: Table | None = None) -> Syntax:
        # all text columns of the key share what its index can hold
        texts = sum(key.type == "text" for key in table.key.columns) if table else 1
        others = len(table.key.columns) - texts if table else 0
        characters = (KEY_CHARACTERS - _OTHER_KEYS * others) // max(1, texts)
        is_mariadb = getattr(connection.dialect, "is_mariadb", False)
        unpadded = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
        key = f"varchar({characters}) CHARACTER SET utf8mb4 COLLATE {unpadded}"
        return replace(_SYNTAX, key_types={**_SYNTAX.key_types, "text": key})

    def shape(self, connection: Connection, table: Table) -> Sequence[Any]:
        # including all unique keys: any of them may decide which row is updated
        found = connection.execute(text(SHAPE), {"schema": table.schema, "table": table.name})
        return sorted(map(str, found))

    def problems(self, connection: Connection, table: Table) -> list[str]:
        where = {"schema": table.schema, "table": table.name}
        session = connection.execute(text(SESSION)).one()
        problems: list[str] = []
        if "STRICT_ALL_TABLES" not in session.mode or "NO_BACKSLASH_ESCAPES" in session.mode:
            problems.append(f"the session's sql_mode is {session.mode}, though it was set to be strict")
        if (session.charset, session.connection_charset) != ("utf8mb4", "utf8mb4"):
            problems.append(f"the session's character set is {session.charset}: expected utf8mb4")
        isolation = connection.get_isolation_level()
        if isolation != "READ COMMITTED":
            problems.append(f"the session's isolation level is {isolation}, though it was set to READ COMMITTED")
        engine = connection.execute(text(TABLE_ENGINE), where).scalar()
        if str(engine).lower() != "innodb":
            problems.append(f"its engine is {engine}: expected InnoDB, which has transactions")
        written = {*table.keys, *(column.name for column in table.contents.columns)}
        collations = {row.name: row for row in connection.execute(text(COLLATIONS), where)}
        problems += [
            f"column {name} has the character set {found.charset}, which does not hold all text: expected utf8mb4"
            for name, found in collations.items()
            if name in written and not found.charset.startswith("utf8mb4") and not _is_uuid(table, name)
        ]
        # only bytewise collations without padding: others treat 'a', 'A' and 'a ' as one id
        exact = ("_nopad_bin", "_0900_bin")
        problems += merging(
            table, {name: row.collation for name, row in collations.items() if not row.collation.endswith(exact)}
        )
        cut = [row.name for row in connection.execute(text(CUT_KEYS), where)]
        if cut:
            problems.append(f"the primary key contains only the beginning of {', '.join(cut)}")
        return problems

    def upsert(self, connection: Connection, table: Table, rows: Rows) -> int:
        # locks are taken in the order of the rows
        driver: Any = connection.connection.driver_connection
        head, tail = (
            f"INSERT INTO {_SYNTAX.name(table)} ({_names(table.columns)}) VALUES\n".encode(),
            _where_newer(table).encode(),
        )
        longest = connection.info["packet"] - len(head) - len(tail) - _SLACK
        written = 0
        for part in _parts(rows.columns(table), longest):
            changed = driver.query(head + b",\n".join(part) + tail)
            written += _written(changed, driver._result.message, len(part))
        self.require_shape(connection, table)
        # an unchanged row is not counted, and no row is kept out without an error
        return written if table.ranked else len(rows)

    def held(self, connection: Connection, table: Table, rows: Rows) -> int:
        keys = map(_spelled, zip(*rows.keys, strict=True))
        rank = dict(zip(keys, rows.ranks, strict=True)) if table.ranked else {}
        found = self._read(connection, table, rows)
        return sum(known is not None and known >= rank.get(_spelled(key), 0) for *key, known in found)

    def delete(self, connection: Connection, table: Table, rows: Rows) -> int:
        driver: Any = connection.connection.driver_connection
        head = f"DELETE FROM {_SYNTAX.name(table)} WHERE ({_names(table.keys)}) IN (\n".encode()
        gone = 0
        for part in _parts(rows.keys, connection.info["packet"] - len(head) - _SLACK):
            gone += driver.query(head + b",\n".join(part) + b")")
        self.require_shape(connection, table)
        return len(list(self._read(connection, table, rows))) if gone < len(rows) else 0

    def _read(self, connection: Connection, table: Table, rows: Rows) -> Iterator[Sequence[Any]]:
        """Read keys and ranks of existing rows; the rank is 0 in a table without ranks."""
        # the rank is NULL in a row that is older than the sink, and counts as lower than all others
        keys, rank = _names(table.keys), f"COALESCE({_quoted(RANK)}, -1)" if table.ranked else "0"
        head = f"SELECT {keys}, {rank} FROM {_SYNTAX.name(table)} WHERE ({keys}) IN (\n"
        for part in _parts(rows.keys, connection.info["packet"] - len(head) - _SLACK):
            yield from connection.exec_driver_sql((head + b",\n".join(part).decode() + ")").replace("%", "%%"))

    def explain(self, error: Exception) -> ExportQueueError | Poison | TryAgain:
        # the client's own error numbers, and a missing number, mean a lost connection
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        words = f"{code}: {error.args[1]}" if len(error.args) > 1 else str(error)
        if code == _NOT_CREATED and _NO_ROOM.search(words):
            code = _FULL
        lost = isinstance(error, pymysql.OperationalError | pymysql.InterfaceError) and (
            code == 0 or 2000 <= code < 3000
        )
        return judged(ERRORS.find("no answer" if lost else str(code)), words, self.server)


def _names(columns: Sequence[str]) -> str:
    return ", ".join(map(_quoted, columns))


def _where_newer(table: Table) -> str:
    """Return the end of the guarded upsert; a table without ranks takes every row.

    Assignments run in order, and each sees those before it. The rank, which decides all of them, comes last.
    """
    if not table.ranked:
        plain = [_quoted(column.name) for column in table.contents.columns]
        return "\nON DUPLICATE KEY UPDATE\n" + ",\n".join(f"{name} = VALUES({name})" for name in plain)
    rank = _quoted(RANK)
    newer = f"COALESCE({rank}, -1) {table.below} VALUES({rank})"
    guarded = [*(column.name for column in table.contents.columns), DELETED]
    changes = [f"{name} = IF({newer}, VALUES({name}), {name})" for name in map(_quoted, guarded)]
    changes.append(f"{rank} = GREATEST(COALESCE({rank}, -1), VALUES({rank}))")
    return "\nON DUPLICATE KEY UPDATE\n" + ",\n".join(changes)


def _is_uuid(table: Table, name: str) -> bool:
    return any(key.name == name and key.type in ("uuid", "date") for key in table.key.columns)


def _parts(columns: Sequence[Sequence[Any]], longest: int) -> Iterator[list[bytes]]:
    """Write rows as SQL, in parts that make statements of a good size, below the server's limit."""
    form = b"(" + b",".join([b"%s"] * len(columns)) + b")"
    rows = [form % row for row in zip(*map(_literals, columns), strict=True)]
    sizes = list(map(len, rows))
    if max(sizes) > longest:
        raise Poison(f"the row takes {max(sizes)} bytes, more than max_allowed_packet of the server leaves: {longest}")
    # two bytes separate a row from the next one
    for part in cut_by_size([one + 2 for one in sizes], rows=len(rows), size=min(longest, _STATEMENT_BYTES) + 2):
        yield rows[part.start : part.stop]


def _literals(column: Sequence[Any]) -> Sequence[bytes]:
    """Write the values of a column as SQL."""
    kinds = set(map(type, column))
    if kinds == {bytes}:
        return [b"'%s'" % text for text in _escaped(column)]
    if kinds == {bytes, type(None)}:
        texts = _escaped([value or b"" for value in column])
        return [b"NULL" if value is None else b"'%s'" % text for value, text in zip(column, texts, strict=True)]
    if kinds <= {int, bool}:
        return [b"%d" % number for number in column]
    return [_literal(value) for value in column]


def _literal(value: Any) -> bytes:
    if value is None:
        return b"NULL"
    if isinstance(value, bytes):
        return b"'%s'" % _escaped([value])[0]
    return b"%d" % value if isinstance(value, int) else repr(value).encode()


def _escaped(texts: Sequence[bytes]) -> Sequence[bytes]:
    """Escape UTF-8 texts without NUL all at once: most need no escaping."""
    together = b"\0".join(texts)
    if b"\\" not in together and b"'" not in together:
        return texts
    return together.replace(b"\\", b"\\\\").replace(b"'", b"\\'").split(b"\0")


def _spelled(key: Sequence[Any]) -> tuple[str, ...]:
    """Return the values of a key as text, whatever types the driver returns."""
    return tuple(value.decode() if isinstance(value, bytes) else str(value) for value in key)


def _written(changed: int, message: bytes | None, rows: int) -> int:
    """Count the rows that a statement wrote: an inserted row is one change, an updated row two."""
    if rows == 1:
        return min(changed, 1)
    # "Records: 3  Duplicates: 1  Warnings: 0", in the server's language; duplicates are the updated rows
    numbers = re.findall(rb"\d+", message or b"")
    if len(numbers) < 3:
        raise SinkConfigurationError(
            "the server, or a proxy before it, does not report how many rows a statement updated"
        )
    return changed - int(numbers[1])
