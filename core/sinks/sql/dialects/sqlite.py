"""SQLite: one writer at a time, and a guarded ``executemany``."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, text

from export_queue.core.errors import ExportQueueError, SinkConfigurationError
from export_queue.core.sinks.error_table import ErrorRow, ErrorTable, Fate
from export_queue.core.sinks.sql import statements
from export_queue.core.sinks.sql.dialects.protocol import Dialect, Poison, TryAgain, judged
from export_queue.core.sinks.sql.fitting import merging
from export_queue.core.sinks.sql.rows import Limits, Rows
from export_queue.core.sinks.sql.tables import Table
from export_queue.core.sinks.sql.values import as_native

ERRORS = ErrorTable(
    "SQLite",
    [
        ErrorRow("SQLITE_BUSY*", Fate.LATER, "another writer holds the file for longer than the sink's timeout"),
        ErrorRow("SQLITE_LOCKED*", Fate.LATER, "the table is locked; try again"),
        ErrorRow("SQLITE_IOERR*", Fate.LATER, "a disk error"),
        ErrorRow("SQLITE_CANTOPEN*", Fate.LATER, "the file cannot be opened: check the folder and the rights"),
        ErrorRow("SQLITE_PROTOCOL", Fate.LATER, "a race for the file's locks; try again"),
        ErrorRow("SQLITE_NOMEM", Fate.LATER, "this process lacks memory"),
        ErrorRow("SQLITE_FULL", Fate.LATER, "the disk is full: make room; entries wait in the queue"),
        ErrorRow(
            "SQLITE_READONLY_RECOVERY, SQLITE_READONLY_CANTLOCK, SQLITE_READONLY_CANTINIT, SQLITE_READONLY_ROLLBACK",
            Fate.LATER,
            "another process must first open or restore the file; try again",
        ),
        ErrorRow("SQLITE_READONLY*", Fate.REFUSED, "the file or its folder may not be written by this user"),
        ErrorRow("SQLITE_CONSTRAINT*", Fate.REJECTED, "a constraint of the table"),
        ErrorRow("SQLITE_MISMATCH", Fate.REJECTED, "data that the column does not take"),
        ErrorRow("SQLITE_TOOBIG", Fate.REJECTED, "longer than SQLite can hold"),
        ErrorRow("SQLITE_RANGE", Fate.REJECTED, "data that the column does not take"),
        ErrorRow("*", Fate.REFUSED, "a missing table, a file that is no database: SQLite's message says which"),
    ],
)


class SqliteDialect(Dialect):
    """A database file; the time-out limits the wait for another writer."""

    name = "sqlite"
    limits = Limits(id_bytes=1 << 20, convert=as_native)
    driver_error: type[Exception] = sqlite3.Error

    def __init__(self, url: URL, *, timeout: float) -> None:
        if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
            raise SinkConfigurationError(
                "an SQLite sink is a file, sqlite:///path: other processes do not see a database in memory"
            )
        path = Path(url.database).absolute()
        if not path.parent.is_dir():
            raise SinkConfigurationError(f"SQLite file {path}: the folder {path.parent} does not exist")
        self.server = f"SQLite file {path}"
        self._url = url
        self._timeout = timeout

    def engine(self) -> Engine:
        engine = create_engine(self._url, connect_args={"timeout": self._timeout}, hide_parameters=True)

        @event.listens_for(engine, "connect")
        def configure(connection: sqlite3.Connection, _: Any) -> None:
            connection.isolation_level = None  # the driver begins no transaction itself
            # FULL does not sync the folder after the journal is deleted: after a power cut the journal could come back,
            # and with it the state before the last commit
            connection.execute("PRAGMA synchronous = EXTRA")

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            # take the write lock at once: a request for it after a read may be refused permanently
            connection.exec_driver_sql("BEGIN IMMEDIATE")

        return engine

    def folds_names(self, connection: Connection) -> bool:
        return True

    def syntax(self, connection: Connection, table: Table | None = None) -> statements.Syntax:
        return statements.SQLITE

    def shape(self, connection: Connection, table: Table) -> Any:
        return connection.execute(text(statements.SHAPE_SQLITE), {"table": table.name}).scalar()

    def problems(self, connection: Connection, table: Table) -> list[str]:
        if table.schema:
            return ["a table of SQLite has no schema"]
        found = connection.execute(text(statements.MERGING_COLLATION_SQLITE), {"table": table.name})
        return merging(table, {row.name: row.coll for row in found})

    def upsert(self, connection: Connection, table: Table, rows: Rows) -> int:
        driver = _driver(connection)
        columns = rows.columns(table)
        if table.ranked:
            # for each bool the driver would search for an adapter
            columns = (*columns[:-1], list(map(int, rows.deleted)))
        written = driver.executemany(statements.upsert_values(table), zip(*columns, strict=True)).rowcount
        self.require_shape(connection, table)
        return written

    def held(self, connection: Connection, table: Table, rows: Rows) -> int:
        driver = _driver(connection)
        find, ranks = statements.find_value(table), (rows.ranks,) if table.ranked else ()
        wanted = zip(*rows.keys, *ranks, strict=True)
        return sum(driver.execute(find, one).fetchone() is not None for one in wanted)

    def delete(self, connection: Connection, table: Table, rows: Rows) -> int:
        driver = _driver(connection)
        gone = driver.executemany(statements.delete_values(table), zip(*rows.keys, strict=True)).rowcount
        self.require_shape(connection, table)
        return 0 if gone == len(rows) else self.held(connection, table, rows)

    def explain(self, error: Exception) -> ExportQueueError | Poison | TryAgain:
        code = getattr(error, "sqlite_errorname", "")
        return judged(ERRORS.find(code), f"{code}: {error}" if code else str(error), self.server)


def _driver(connection: Connection) -> sqlite3.Connection:
    found = connection.connection.driver_connection
    assert isinstance(found, sqlite3.Connection)
    return found
