"""MySQL and MariaDB: guarded upserts of many rows in one statement, sent as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pymysql
from sqlalchemy import URL, Connection, Engine, create_engine, event, text

from export_queue.core.drivers import bare_url, mysql_arguments
from export_queue.core.errors import ExportQueueError, SinkConfigurationError
from export_queue.core.sinks.error_table import ErrorRow, ErrorTable, Fate
from export_queue.core.sinks.protocol import Capabilities
from export_queue.core.sinks.sql import statements
from export_queue.core.sinks.sql.dialects import mysql_statements
from export_queue.core.sinks.sql.dialects.protocol import (
    DDL_LOCK_SECONDS,
    URL_OPTION,
    Password,
    Poison,
    TryAgain,
    give_password,
    judged,
    require_shape,
)
from export_queue.core.sinks.sql.fitting import merging
from export_queue.core.sinks.sql.rows import Limits, Rows
from export_queue.core.sinks.sql.tables import Table
from export_queue.core.sinks.sql.values import as_literal

ERRORS = ErrorTable(
    "MySQL",
    [
        ErrorRow("1020, 1213, 1412", Fate.AGAIN, "deadlock, or a record or a table that changed since it was read"),
        ErrorRow("no answer", Fate.LATER, "the server is not there, or the connection broke"),
        ErrorRow(
            "1047, 1053, 1129, 1158, 1159, 1160, 1161, 1927, 3169, 4031",
            Fate.LATER,
            "the server stops, has ended an idle session, or packets were lost",
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
            "a person (read_only, super_read_only, innodb_read_only); entries wait in the queue",
        ),
        ErrorRow("3100, 3101", Fate.LATER, "a member of the group did not agree; try again"),
        ErrorRow(
            "1048, 1264, 1265, 1292, 1366, 1367, 1406, 1411, 1690", Fate.REJECTED, "data that the column does not take"
        ),
        ErrorRow("1062, 1216, 1452, 3819, 4025", Fate.REJECTED, "a constraint of the table"),
        ErrorRow(
            "1526, 1643, 1644, 1748", Fate.REJECTED, "no partition takes the row, or a trigger refuses it (SIGNAL)"
        ),
        ErrorRow("3140, 3141, 3156, 4038", Fate.REJECTED, "no JSON"),
        ErrorRow("1118, 1153", Fate.REJECTED, "a row that is too large"),
        ErrorRow("*", Fate.REFUSED, "password, rights, a missing table: the server's own words say what"),
    ],
)
_FULL, _NOT_CREATED = 1114, 1005
_NO_ROOM = re.compile(r"errno: (28|135)\b")
"""Why a table was not created: no space on the device, no room among the tables."""
_GRACE_SECONDS = 5.0
"""Seconds that an answer may be late: the server gives up first, and its error says on which lock or statement."""
_STATEMENT_BYTES = 1 << 20
_SLACK = 1 << 10
"""Bytes that a statement has beside its rows and its names."""


class MySqlDialect:
    """A database of a MySQL or MariaDB server.

    :param url: its password does not count.
    :param password: the password, or a function that finds it.
    :param timeout: seconds to wait for a lock and for an answer.
    """

    name = "mysql"
    capabilities = Capabilities(batch_rows=10_000, batch_bytes=8 << 20, binary_ids=False)
    limits = Limits(id_bytes=4 * mysql_statements.KEY_CHARACTERS, convert=as_literal, encoded=True)
    locks_reads = True
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
            "client_flag": 0,  # rows that are only found are not counted
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
            pool_recycle=self._timeout / 2,  # before the server ends a session for its idleness
            connect_args={**settings, **self._arguments},
        )

        give_password(engine, self._password, encoding="utf-8")  # PyMySQL's own choice is latin1

        # insert: before SQLAlchemy learns how names are quoted, and after an init_command of the user's
        @event.listens_for(engine, "connect", insert=True)
        def set_up(connection: Any, record: Any) -> None:
            with connection.cursor() as cursor:
                cursor.execute(mysql_statements.SET_UP)
                cursor.execute(mysql_statements.SERVER)
                record.info["packet"], record.info["flush"] = map(int, cursor.fetchone())

        return engine

    def folds_names(self, connection: Connection) -> bool:
        return bool(connection.exec_driver_sql(mysql_statements.FOLDS).scalar())

    def begin(self, connection: Connection) -> None:
        """Be strict, wait for locks no longer than wanted, and keep none for ever if this process stands still.

        :raises SinkConfigurationError: the server acknowledges commits before they are on its disk.
        """
        if (flush := connection.info["flush"]) != 1:  # a setting of the whole server, which no session can change
            raise SinkConfigurationError(
                f"{self.server} acknowledges commits before they are on its disk: expected"
                f" innodb_flush_log_at_trx_commit 1, found {flush}",
                hint="set innodb_flush_log_at_trx_commit = 1 in the server's configuration: entries leave the queue as"
                " soon as the sink has acknowledged them",
            )
        seconds = max(1, int(self._timeout))
        connection.execute(text(mysql_statements.SET_LIMITS), {"lock": seconds, "idle": seconds})

    def limit_ddl(self, connection: Connection) -> None:
        connection.execute(text(mysql_statements.LIMIT_LOCKS), {"lock": DDL_LOCK_SECONDS})

    def create_control(self, connection: Connection, schema: str | None) -> Mapping[str, str]:
        return statements.create_control(schema, _syntax(connection))

    def create_table(self, connection: Connection, table: Table) -> list[str]:
        return statements.create_table(table, _syntax(connection, table))

    def add_columns(self, connection: Connection, table: Table, missing: Sequence[str]) -> list[str]:
        return statements.add_columns(table, _syntax(connection, table), missing)

    def shape(self, connection: Connection, table: Table) -> Sequence[Any]:
        # all unique keys, too: any of them may decide which row is updated
        found = connection.execute(text(mysql_statements.SHAPE), {"schema": table.schema, "table": table.name})
        return sorted(map(str, found))

    def problems(self, connection: Connection, table: Table) -> list[str]:
        where = {"schema": table.schema, "table": table.name}
        session = connection.execute(text(mysql_statements.SESSION)).one()
        problems: list[str] = []
        if "STRICT_ALL_TABLES" not in session.mode or "NO_BACKSLASH_ESCAPES" in session.mode:
            problems.append(f"the session's sql_mode is {session.mode}, though it was set to be strict")
        if (session.charset, session.connection_charset) != ("utf8mb4", "utf8mb4"):
            problems.append(f"the session's character set is {session.charset}: expected utf8mb4")
        isolation = connection.get_isolation_level()
        if isolation != "READ COMMITTED":
            problems.append(f"the session's isolation level is {isolation}, though it was set to READ COMMITTED")
        engine = connection.execute(text(mysql_statements.TABLE_ENGINE), where).scalar()
        if str(engine).lower() != "innodb":
            problems.append(f"its engine is {engine}: expected InnoDB, which has transactions")
        written = {*table.keys, *(column.name for column in table.contents.columns)}
        collations = {row.name: row for row in connection.execute(text(mysql_statements.COLLATIONS), where)}
        problems += [
            f"column {name} has the character set {found.charset}, which does not hold all text: expected utf8mb4"
            for name, found in collations.items()
            if name in written and not found.charset.startswith("utf8mb4") and not _is_uuid(table, name)
        ]
        # only bytewise collations without padding: with others 'a', 'A' and 'a ' are one id
        exact = ("_nopad_bin", "_0900_bin")
        problems += merging(
            table, {name: row.collation for name, row in collations.items() if not row.collation.endswith(exact)}
        )
        cut = [row.name for row in connection.execute(text(mysql_statements.CUT_KEYS), where)]
        if cut:
            problems.append(f"the primary key takes only the beginning of {', '.join(cut)}")
        return problems

    def upsert(self, connection: Connection, table: Table, rows: Rows) -> int:
        # in the order of the rows, in which their locks are taken
        driver: Any = connection.connection.driver_connection
        syntax = _syntax(connection)
        head = mysql_statements.insert_into(table, syntax).encode()
        tail = mysql_statements.where_newer(table, syntax).encode()
        longest = connection.info["packet"] - len(head) - len(tail) - _SLACK
        written = 0
        for part in _parts(rows.columns(table), longest):
            changed = driver.query(head + b",\n".join(part) + tail)
            written += _written(changed, driver._result.message, len(part))
        require_shape(self, connection, table)
        # a row that is what it was before does not count, and none is kept out without an error
        return written if table.ranked else len(rows)

    def held(self, connection: Connection, table: Table, rows: Rows) -> int:
        keys = map(_spelled, zip(*rows.keys, strict=True))
        rank = dict(zip(keys, rows.ranks, strict=True)) if table.ranked else {}
        found = self._read(connection, table, rows)
        return sum(known is not None and known >= rank.get(_spelled(key), 0) for *key, known in found)

    def delete(self, connection: Connection, table: Table, rows: Rows) -> int:
        driver: Any = connection.connection.driver_connection
        head = mysql_statements.delete_from(table, _syntax(connection)).encode()
        gone = 0
        for part in _parts(rows.keys, connection.info["packet"] - len(head) - _SLACK):
            gone += driver.query(head + b",\n".join(part) + b")")
        require_shape(self, connection, table)
        return len(list(self._read(connection, table, rows))) if gone < len(rows) else 0

    def _read(self, connection: Connection, table: Table, rows: Rows) -> Iterator[Sequence[Any]]:
        """Read the rows of keys: their keys, and their ranks, or 0 where a table has none."""
        head = mysql_statements.select_keys(table, _syntax(connection))
        for part in _parts(rows.keys, connection.info["packet"] - len(head) - _SLACK):
            yield from connection.exec_driver_sql((head + b",\n".join(part).decode() + ")").replace("%", "%%"))

    def explain(self, error: Exception) -> ExportQueueError | Poison | TryAgain:
        # numbers of the client itself, and none, mean a lost connection
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        words = f"{code}: {error.args[1]}" if len(error.args) > 1 else str(error)
        if code == _NOT_CREATED and _NO_ROOM.search(words):
            code = _FULL
        lost = isinstance(error, pymysql.OperationalError | pymysql.InterfaceError) and (
            code == 0 or 2000 <= code < 3000
        )
        return judged(ERRORS.find("no answer" if lost else str(code)), words, self.server)


def _syntax(connection: Connection, table: Table | None = None) -> statements.Syntax:
    return mysql_statements.syntax(table, is_mariadb=bool(getattr(connection.dialect, "is_mariadb", False)))


def _is_uuid(table: Table, name: str) -> bool:
    return any(key.name == name and key.type in ("uuid", "date") for key in table.key.columns)


def _parts(columns: Sequence[Sequence[Any]], longest: int) -> Iterator[list[bytes]]:
    """Write rows as SQL, in parts that are statements of a good size, and none that the server refuses."""
    form = b"(" + b",".join([b"%s"] * len(columns)) + b")"
    rows = [form % row for row in zip(*map(_literals, columns), strict=True)]
    sizes = list(map(len, rows))
    if max(sizes) > longest:
        raise Poison(f"the row takes {max(sizes)} bytes, more than max_allowed_packet of the server leaves: {longest}")
    limit, start, size = min(longest, _STATEMENT_BYTES), 0, 0
    for i, one in enumerate(sizes):
        if i > start and size + one > limit:
            yield rows[start:i]
            start, size = i, 0
        size += one + 2
    yield rows[start:]


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
    """Escape texts of UTF-8 without NUL, in one go: most have nothing to escape."""
    together = b"\0".join(texts)
    if b"\\" not in together and b"'" not in together:
        return texts
    return together.replace(b"\\", b"\\\\").replace(b"'", b"\\'").split(b"\0")


def _spelled(key: Sequence[Any]) -> tuple[str, ...]:
    """Write the values of a key in the one way that they have as text, whatever types the driver gives them."""
    return tuple(value.decode() if isinstance(value, bytes) else str(value) for value in key)


def _written(changed: int, message: bytes | None, rows: int) -> int:
    """Count the rows that a statement wrote: an inserted row is one change, an updated row two."""
    if rows == 1:
        return min(changed, 1)
    # "Records: 3  Duplicates: 1  Warnings: 0", in the server's language; duplicates are the updated rows
    numbers = re.findall(rb"\d+", message or b"")
    if len(numbers) < 3:
        raise SinkConfigurationError("the server, or a proxy before it, does not say how many rows a statement updated")
    return changed - int(numbers[1])
