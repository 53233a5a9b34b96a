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
from export_queue.core.sinks.protocol import Capabilities
from export_queue.core.sinks.sql import statements
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
from export_queue.core.sinks.sql.values import as_text

_MERGING_ENCODINGS = ("EUC_JP",)
"""Of the server's encodings, those in which two characters become one; what the others lack they refuse."""
_GRACE_SECONDS = 5.0
"""Seconds after a statement's time limit at which the server counts as hanging."""
_FIRST_MERGE = 150000
"""The first server that knows MERGE."""
_NEXT_WAY = (psycopg.errors.UniqueViolation, psycopg.errors.FeatureNotSupported)
"""Errors after which the next statement may do it; servers that only speak the protocol may know no MERGE."""
_KINDS: Mapping[type, Any] = {int: BigintArray, bool: BooleanArray}
"""Arrays of what is no text; no column of theirs has a null."""

ERRORS = ErrorTable(
    "PostgreSQL",
    [
        ErrorRow("40001", Fate.AGAIN, "serialization failure"),
        ErrorRow("40P01", Fate.AGAIN, "deadlock with another writer of the table"),
        ErrorRow("40*", Fate.LATER, "the transaction was rolled back; try again"),
        ErrorRow("no answer", Fate.LATER, "the server is not there or admits nobody, or the connection broke"),
        ErrorRow("08*", Fate.LATER, "the connection broke"),
        ErrorRow(
            "25006",
            Fate.LATER,
            "the server is a standby (connect to the primary), or the database or user was set read-only "
            "(default_transaction_read_only); entries wait in the queue",
        ),
        ErrorRow("25P03, 25P04", Fate.LATER, "this process stood still for longer than the sink's timeout"),
        ErrorRow("53100", Fate.LATER, "the server's disk is full: make room; entries wait in the queue"),
        ErrorRow("53*", Fate.LATER, "the server lacks memory or connections"),
        ErrorRow("55P03", Fate.LATER, "another session holds a lock on the table for longer than the sink's timeout"),
        ErrorRow("57*", Fate.LATER, "the server stops, or the statement took longer than the sink's timeout"),
        ErrorRow("58*", Fate.LATER, "an error of the server's system; see its log"),
        ErrorRow("XX*", Fate.LATER, "an internal error of the server; see its log"),
        ErrorRow("22*", Fate.REJECTED, "data that the column's type does not take"),
        ErrorRow("23*", Fate.REJECTED, "a constraint of the table"),
        ErrorRow("54*", Fate.REJECTED, "more than the server can hold in a row or an index"),
        ErrorRow("P0*", Fate.REJECTED, "a trigger of the table refuses the row"),
        ErrorRow("not data", Fate.REJECTED, "what the driver cannot send"),
        ErrorRow("*", Fate.REFUSED, "rights, a missing table or column: the server's own words say what"),
    ],
)


@dataclass(frozen=True, slots=True)
class Shape:
    """A table as it was looked at."""

    columns: tuple[tuple[Any, ...], ...]
    types: Mapping[str, str]
    """Of each column, to which its text is cast."""
    is_plain: bool
    """Whether nothing but constraints stands between a statement and the table's rows."""


class PostgresDialect:
    """A database of a PostgreSQL server.

    :param url: its password does not count.
    :param password: the password, or a function that finds it.
    :param timeout: seconds that a statement may take, and that an answer may be late.
    """

    name = "postgresql"
    capabilities = Capabilities(batch_rows=10_000, batch_bytes=8 << 20, binary_ids=False)
    limits = Limits(id_bytes=2600, convert=as_text, encoded=True)  # a row of a B-tree has 2704 bytes at most
    locks_reads = True
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
            "application_name": "export_queue",
            "connect_timeout": 10,
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
            "tcp_user_timeout": int(self._timeout * 1000),
            "prepare_threshold": None,  # poolers hand sessions around
        }
        engine = create_engine(
            self._url,
            isolation_level="READ COMMITTED",
            hide_parameters=True,
            pool_size=2,
            max_overflow=2,
            # Arrays of texts go out in UTF-8 as they are, whatever encoding the role asks for. Text that the
            # database cannot hold is its own error, about one row.
            connect_args={**settings, **self._arguments, "client_encoding": "UTF8"},
        )

        give_password(engine, self._password)

        @event.listens_for(engine, "do_connect")
        def connect(_dialect: Any, _record: Any, arguments: Any, parameters: dict[str, Any]) -> BoundedConnection:
            raw = BoundedConnection.open(*arguments, **parameters)
            raw.answer_seconds = self._timeout + _GRACE_SECONDS
            return raw

        return engine

    def folds_names(self, connection: Connection) -> bool:
        return False

    def begin(self, connection: Connection) -> None:
        # a session that hangs must not hold its locks forever
        limit = f"{int(self._timeout * 1000)}ms"
        connection.execute(text(statements.SET_LIMITS), {"lock": limit, "statement": limit, "idle": limit})

    def limit_ddl(self, connection: Connection) -> None:
        connection.execute(text(statements.LIMIT_LOCKS), {"lock": f"{DDL_LOCK_SECONDS}s"})

    def create_control(self, connection: Connection, schema: str | None) -> Mapping[str, str]:
        return statements.create_control(schema, statements.POSTGRESQL)

    def create_table(self, connection: Connection, table: Table) -> list[str]:
        return statements.create_table(table, statements.POSTGRESQL)

    def add_columns(self, connection: Connection, table: Table, missing: Sequence[str]) -> list[str]:
        return statements.add_columns(table, statements.POSTGRESQL, missing)

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
                    f"{part.name} is UNLOGGED or temporary: a crash of the server empties it, after entries have left"
                    " the queue; ALTER TABLE … SET LOGGED"
                )
            if part.is_deferrable:
                problems.append(f"the primary key of {part.name} is DEFERRABLE: no upsert can use it")
            if part.exclusions:
                problems.append(
                    f"exclusion constraints ({part.exclusions}): two records may exclude each other for a moment"
                )
            if part.encoding in _MERGING_ENCODINGS:
                problems.append(
                    f"the database has the encoding {part.encoding}, which takes different characters for one:"
                    " expected UTF8"
                )
        return problems

    def upsert(self, connection: Connection, table: Table, rows: Rows) -> int:
        """Give the rows in their order, which is the order in which their locks are taken.

        MERGE costs less than ``ON CONFLICT``, which inserts before it looks. Two statements may both find a key
        missing: the one whose insert comes second is repeated in the other way.
        """
        types = table.shape.types
        ways = [statements.upsert_arrays(table, types)]
        if _merges(connection, table):
            ways.insert(0, statements.merge_arrays(table, types))
        return self._write(connection, table, _arrays(rows.columns(table)), *ways)

    def held(self, connection: Connection, table: Table, rows: Rows) -> int:
        """Compare the table with the rows, unless its shape says enough.

        What a MERGE does not write into a plain table is not newer: nothing else keeps a row out without an error. Rows
        are counted all the same after a statement for other tables, whose triggers, policies and partitions may.
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
        """Run the first statement that can do it, and return how many rows it wrote."""
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
                        require_shape(self, connection, table)  # a type that was changed is no fault of a row
                        raise
        require_shape(self, connection, table)
        return written

    def explain(self, error: Exception) -> ExportQueueError | Poison | TryAgain:
        # without a SQLSTATE the connection failed
        code = getattr(error, "sqlstate", None)
        primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
        # the detail is left out: it repeats the row
        words = f"{code}: {primary or error}" if code else str(error).strip()
        return judged(ERRORS.find(code or _without_code(error)), words, self.server)


def _driver(connection: Connection) -> psycopg.Connection[Any]:
    found = connection.connection.driver_connection
    assert isinstance(found, psycopg.Connection)
    return found


def _merges(connection: Connection, table: Table) -> bool:
    """Tell whether MERGE does what ``ON CONFLICT`` does, and counts as exactly.

    A row that a trigger keeps out counts as written in some releases, rules are refused, and rows of inherited tables
    would be found.
    """
    return bool(table.shape.is_plain) and _driver(connection).info.server_version >= _FIRST_MERGE


def _arrays(columns: Sequence[Sequence[Any]]) -> list[Any]:
    return [_KINDS.get(type(column[0]), TextArray).of(column) for column in columns]


def _without_code(error: Exception) -> str:
    if isinstance(error, psycopg.DataError):  # of the driver itself
        return "not data"
    lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return "no answer" if lost else ""
