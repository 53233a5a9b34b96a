"""PostgreSQL: columns as arrays, and one guarded MERGE of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from sqlalchemy import URL, Connection, Engine, create_engine, event, text

from export_queue.core.drivers import bare_url, check_postgresql_files, postgresql_arguments
from export_queue.core.errors import ExportQueueError, SinkConfigurationError
from export_queue.core.postgresql_arrays import BigintArray, BooleanArray, TextArray
from export_queue.core.postgresql_connection import BoundedConnection
from export_queue.core.sinks.error_table import ErrorRow, ErrorTable, Fate
from export_queue.core.sinks.sql import statements
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
from export_queue.core.sinks.sql.tables import Table
from export_queue.core.sinks.sql.values import as_text

_MERGING_ENCODINGS = ("EUC_JP",)
"""Server encodings that store two characters as one. The other encodings refuse what they lack."""
_GRACE_SECONDS = 5.0
"""Seconds after a statement's time limit at which the server counts as hanging."""
_FIRST_MERGE = 150000
"""The first server version with MERGE."""
_NEXT_WAY = (psycopg.errors.UniqueViolation, psycopg.errors.FeatureNotSupported)
"""Errors after which the next statement may succeed; servers that only share the protocol may lack MERGE."""
_KINDS: Mapping[type, Any] = {int: BigintArray, bool: BooleanArray}
"""Arrays of values that are not text; their columns contain no null."""

ERRORS = ErrorTable(
    "PostgreSQL",
    [
        ErrorRow("40001", Fate.AGAIN, "serialization failure"),
        ErrorRow("40P01", Fate.AGAIN, "deadlock with another writer of the table"),
        ErrorRow("40*", Fate.LATER, "the transaction was rolled back; try again"),
        ErrorRow(
            "no answer", Fate.LATER, "the server does not answer or accepts no connections, or the connection broke"
        ),
        ErrorRow("08*", Fate.LATER, "the connection broke"),
        ErrorRow(
            "25006",
            Fate.LATER,
            "the server is a standby (connect to the primary), or the database or user was set read-only "
            "(default_transaction_read_only); entries wait in the queue",
        ),
        ErrorRow("25P03, 25P04", Fate.LATER, "this process was stopped for longer than the sink's timeout"),
        ErrorRow("53100", Fate.LATER, "the server's disk is full: make room; entries wait in the queue"),
        ErrorRow("53*", Fate.LATER, "the server lacks memory or connections"),
        ErrorRow("55P03", Fate.LATER, "another session holds a lock on the table for longer than the sink's timeout"),
        ErrorRow("57*", Fate.LATER, "the server is stopping, or the statement took longer than the sink's timeout"),
        ErrorRow("58*", Fate.LATER, "a system error of the server; see its log"),
        ErrorRow("XX*", Fate.LATER, "an internal error of the server; see its log"),
        ErrorRow("22*", Fate.REJECTED, "data that the column's type does not take"),
        ErrorRow("23*", Fate.REJECTED, "a constraint of the table"),
        ErrorRow("54*", Fate.REJECTED, "more than the server can hold in a row or an index"),
        ErrorRow("P0*", Fate.REJECTED, "a trigger of the table refuses the row"),
        ErrorRow("not data", Fate.REJECTED, "data that the driver cannot send"),
        ErrorRow("*", Fate.REFUSED, "rights, a missing table or column: the server's message says which"),
    ],
)


@dataclass(frozen=True, slots=True)
class Shape:
    """A table as it was examined."""

    columns: tuple[tuple[Any, ...], ...]
    types: Mapping[str, str]
    """The type to which each column's text is cast."""
    is_plain: bool
    """Whether a statement on the table's rows meets nothing but constraints."""


class PostgresDialect(Dialect):
    """A database of a PostgreSQL server; the time-out limits each statement and idle transactions."""

    name = "postgresql"
    limits = Limits(id_bytes=2600, convert=as_text, encoded=True)  # a B-tree row holds at most 2704 bytes
    driver_error: type[Exception] = psycopg.Error

    def __init__(self, url: URL, *, password: Password, timeout: float) -> None:
        self._arguments = postgresql_arguments(url, where=URL_OPTION, error=SinkConfigurationError)
        check_postgresql_files(self._arguments, where=URL_OPTION, error=SinkConfigurationError)
        place = self._arguments.get("host") or self._arguments.get("service") or "the local socket"
        self.server = (
            f"PostgreSQL at {place}:{self._arguments.get('port', 5432)}, database {self._arguments.get('dbname')}"
        )
        self._url = bare_url(url, "postgresql+psycopg")
        self._password = password
        self._timeout = timeout

    def engine(self) -> Engine:
        settings = {
            "fallback_application_name": "export_queue",
            "connect_timeout": 10,
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
            "tcp_user_timeout": int(self._timeout * 1000),
            "prepare_threshold": None,  # poolers share sessions between clients
        }
        engine = create_engine(
            self._url,
            isolation_level="READ COMMITTED",
            hide_parameters=True,
            pool_size=2,
            max_overflow=2,
            # Arrays of texts are sent in UTF-8, whatever encoding the role asks for. The database itself reports text
            # that it cannot hold, for one row.
            connect_args={**settings, **self._arguments, "client_encoding": "UTF8"},
        )
        give_password(engine, self._password)

        @event.listens_for(engine, "do_connect")
        def connect(_dialect: Any, _record: Any, arguments: Any, parameters: dict[str, Any]) -> BoundedConnection:
            raw = BoundedConnection.open(*arguments, **parameters)
            raw.answer_seconds = self._timeout + _GRACE_SECONDS
            return raw

        return engine

    def begin(self, connection: Connection) -> None:
        # a session that hangs must not hold its locks forever
        limit = f"{int(self._timeout * 1000)}ms"
        connection.execute(text(statements.SET_LIMITS), {"lock": limit, "statement": limit, "idle": limit})

    def limit_ddl(self, connection: Connection) -> None:
        connection.execute(text(statements.LIMIT_LOCKS), {"lock": f"{DDL_LOCK_SECONDS}s"})

    def syntax(self, connection: Connection, table: Table | None = None) -> statements.Syntax:
        return statements.POSTGRESQL

    def shape(self, connection: Connection, table: Table) -> Shape:
        name = statements.POSTGRESQL.name(table)
        rows = connection.execute(text(statements.SHAPE_POSTGRESQL), {"table": name}).all()
        return Shape(
            tuple(map(tuple, rows)), {row.attname: row.cast_to for row in rows}, all(row.is_plain for row in rows)
        )

    def problems(self, connection: Connection, table: Table) -> list[str]:
        name = {"table": statements.POSTGRESQL.name(table)}
        found = connection.execute(text(statements.MERGING_COLLATION_POSTGRESQL), name)
        problems = merging(table, {row.attname: row.collname for row in found})
        for part in connection.execute(text(statements.ODD_TABLES_POSTGRESQL), name):
            if part.is_lost_in_crash:
                problems.append(
                    f"{part.name} is UNLOGGED or temporary: a server crash empties it, after entries have left"
                    " the queue; ALTER TABLE … SET LOGGED"
                )
            if part.is_deferrable:
                problems.append(f"the primary key of {part.name} is DEFERRABLE: upserts cannot use it")
            if part.exclusions:
                problems.append(
                    f"exclusion constraints ({part.exclusions}): two records may exclude each other for a moment"
                )
            if part.encoding in _MERGING_ENCODINGS:
                problems.append(
                    f"the database has the encoding {part.encoding}, which treats different characters as one:"
                    " expected UTF8"
                )
        return problems

    def upsert(self, connection: Connection, table: Table, rows: Rows) -> int:
        """Pass the rows in order of their keys, which is the order in which their locks are taken.

        ``ON CONFLICT`` inserts before it searches. With it alone, client and server take more processor time for a
        record of 100 bytes than with MERGE: 15 % for an insert, 9 % for an update and 54 % for a repetition. Two
        statements may both find a key missing: the one that inserts second is repeated with ``ON CONFLICT``.
        """
        types = table.shape.types
        ways = [statements.upsert_arrays(table, types)]
        if _merges(connection, table):
            ways.insert(0, statements.merge_arrays(table, types))
        return self._write(connection, table, _arrays(rows.columns(table)), *ways)

    def held(self, connection: Connection, table: Table, rows: Rows) -> int:
        """Compare the table with the rows, unless its shape makes that unnecessary.

        A row that MERGE does not write into a plain table is not newer: nothing else keeps it out without an error. In
        other tables, triggers, policies and partitions may keep rows out, so the rows are counted.
        """
        if _merges(connection, table):
            return len(rows)
        columns = (*rows.keys, rows.ranks) if table.ranked else rows.keys
        with _driver(connection).cursor() as cursor:
            cursor.execute(statements.count_arrays(table, table.shape.types).encode(), _arrays(columns))
            ((count,),) = cursor.fetchall()
        return int(count)

    def delete(self, connection: Connection, table: Table, rows: Rows) -> int:
        delete = statements.delete_arrays(table, table.shape.types)
        gone = self._write(connection, table, _arrays(rows.keys), delete)
        return 0 if gone == len(rows) or table.shape.is_plain else self.held(connection, table, rows)

    def _write(self, connection: Connection, table: Table, arrays: Sequence[Any], *ways: str) -> int:
        """Run the statements until one succeeds, and return how many rows it wrote."""
        driver, written = _driver(connection), 0
        with driver.cursor() as cursor:
            cursor.execute((statements.BY_ARRAY if _merges(connection, table) else b"") + statements.SAVE)
            for way in ways:
                try:
                    written = cursor.execute(way.encode(), arrays).rowcount
                    break
                except psycopg.Error as error:
                    if driver.closed:
                        raise
                    cursor.execute(statements.BACK)
                    if way == ways[-1] or not isinstance(error, _NEXT_WAY):
                        self.require_shape(connection, table)  # an altered type is not the fault of a row
                        raise
        self.require_shape(connection, table)
        return written

    def explain(self, error: Exception) -> ExportQueueError | Poison | TryAgain:
        code = getattr(error, "sqlstate", None)
        primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
        # the detail is left out, since it repeats the row
        words = f"{code}: {primary or error}" if code else str(error).strip()
        return judged(ERRORS.find(code or _without_code(error)), words, self.server)


def _driver(connection: Connection) -> psycopg.Connection[Any]:
    found = connection.connection.driver_connection
    assert isinstance(found, psycopg.Connection)
    return found


def _merges(connection: Connection, table: Table) -> bool:
    """Return whether MERGE does what ``ON CONFLICT`` does, and counts as exactly.

    In some releases MERGE counts a row that a trigger keeps out as written. It refuses rules, and would find rows of
    inherited tables.
    """
    return bool(table.shape.is_plain) and _driver(connection).info.server_version >= _FIRST_MERGE


def _arrays(columns: Sequence[Sequence[Any]]) -> list[Any]:
    return [_KINDS.get(type(column[0]), TextArray).of(column) for column in columns]


def _without_code(error: Exception) -> str:
    if isinstance(error, psycopg.DataError):  # raised by the driver itself
        return "not data"
    return "no answer" if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) else ""
