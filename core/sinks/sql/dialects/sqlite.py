"""SQLite: one writer at a time, and a guarded ``executemany``."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, text

from export_queue.core.errors import ExportQueueError, SinkConfigurationError
from export_queue.core.sinks.error_table import ErrorRow, ErrorTable, Fate
from export_queue.core.sinks.protocol import Capabilities
from export_queue.core.sinks.sql import statements
from export_queue.core.sinks.sql.dialects.protocol import Poison, TryAgain, judged, require_shape
from export_queue.core.sinks.sql.fitting import merging
from export_queue.core.sinks.sql.rows import Limits, Rows
from export_queue.core.sinks.sql.tables import Table
from export_queue.core.sinks.sql.values import as_native

ERRORS = ErrorTable(
    "SQLite",
    [
        ErrorRow("SQLITE_BUSY*", Fate.LATER, "another writer keeps the file for longer than the sink's timeout"),
        ErrorRow("SQLITE_LOCKED*", Fate.LATER, "the table is locked; try again"),
        ErrorRow("SQLITE_IOERR*", Fate.LATER, "the disk does not answer as it should"),
        ErrorRow("SQLITE_CANTOPEN*", Fate.LATER, "the file cannot be opened: see folder and rights"),
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
        ErrorRow("*", Fate.REFUSED, "a missing table, a file that is no database: SQLite's own words say what"),
    ],
)


class SqliteDialect:
    """A database file.

    :param url: ``sqlite:///path``.
    :param timeout: seconds to wait for another writer.
    """

    name = "sqlite"
    capabilities = Capabilities(batch_rows=10_000, batch_bytes=8 << 20, binary_ids=False)
    limits = Limits(id_bytes=1 << 20, convert=as_native)
    locks_reads = True  # each transaction is the only one that writes
    driver_error: type[Exception] = sqlite3.Error

    def __init__(self, url: URL, *, timeout: float) -> None:
        if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
            raise SinkConfigurationError(
                "an SQLite sink is a file, sqlite:///path: other processes do not see a database in memory"
            )
        path = Path(url.database).absolute()
        if not path.parent.is_dir():
            raise SinkConfigurationError(f"SQLite file {path}: there is no folder {path.parent}")
        self.server = f"SQLite file {path}"
        self._url = url
        self._timeout = timeout

    def engine(self) -> Engine:
        engine = create_engine(self._url, connect_args={"timeout": self._timeout}, hide_parameters=True)

        @event.listens_for(engine, "connect")
        def configure(connection: sqlite3.Connection, _: Any) -> None:
            connection.isolation_level = None  # the driver begins nothing by itself
            # FULL does not sync the folder after the journal is deleted: a power cut would bring the journal back, and
            # with it the state before the last commit
            connection.execute("PRAGMA synchronous = EXTRA")

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            # the write lock at once: one that is asked for after a read may be refused for good
            connection.exec_driver_sql("BEGIN IMMEDIATE")

        return engine

    def folds_names(self, connection: Connection) -> bool:
        return True

    def begin(self, connection: Connection) -> None:
        """Nothing: the transaction has begun as one that writes."""

    def limit_ddl(self, connection: Connection) -> None:
        """Nothing: the transaction has the file by now."""

    def create_control(self, connection: Connection, schema: str | None) -> Mapping[str, str]:
        return statements.create_control(schema, statements.SQLITE)

    def create_table(self, connection: Connection, table: Table) -> list[str]:
        return statements.create_table(table, statements.SQLITE)

    def add_columns(self, connection: Connection, table: Table, missing: Sequence[str]) -> list[str]:
        has_view = inspect(connection).has_table(table.live)
        return statements.add_columns(table, statements.SQLITE, missing, has_view=has_view)

    def shape(self, connection: Connection, table: Table) -> Any:
        return connection.execute(text(statements.SHAPE_SQLITE), {"table": table.name}).scalar()

    def problems(self, connection: Connection, table: Table) -> list[str]:
        if table.schema:
            return ["a table of SQLite has no schema"]
        found = connection.execute(text(statements.MERGING_COLLATION_SQLITE), {"table": table.name})
        return merging(table, {row.name: row.coll for row in found})

    def upsert(self, connection: Connection, table: Table, rows: Rows) -> int:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        columns = rows.columns(table)
        if table.ranked:
            # the driver looks for an adapter of every bool
            columns = (*columns[:-1], list(map(int, rows.deleted)))
        written = driver.executemany(statements.upsert_values(table), zip(*columns, strict=True)).rowcount
        require_shape(self, connection, table)
        return written

    def held(self, connection: Connection, table: Table, rows: Rows) -> int:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        find, ranks = statements.find_value(table), (rows.ranks,) if table.ranked else ()
        wanted = zip(*rows.keys, *ranks, strict=True)
        return sum(driver.execute(find, one).fetchone() is not None for one in wanted)

    def delete(self, connection: Connection, table: Table, rows: Rows) -> int:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        gone = driver.executemany(statements.delete_values(table), zip(*rows.keys, strict=True)).rowcount
        require_shape(self, connection, table)
        return 0 if gone == len(rows) else self.held(connection, table, rows)

    def explain(self, error: Exception) -> ExportQueueError | Poison | TryAgain:
        code = getattr(error, "sqlite_errorname", "")
        return judged(ERRORS.find(code), f"{code}: {error}" if code else str(error), self.server)
