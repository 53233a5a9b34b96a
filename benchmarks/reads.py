"""What reading in a transaction costs, against the same reads of a plain table by the driver itself.

The plain table holds the same rows and columns under the same primary key, without versions, and is read with prepared
statements, in SQL transactions as each driver opens them by itself: psycopg one for all reads, sqlite3 none. Ours are
the second and later reads of a transaction: the first one starts it. PostgreSQL knows its tables, as it does once
autovacuum has seen them. Besides, the same with ten versions of every cell,
as many as clean-up may leave where a long transaction is open.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import psycopg
from tests.support.servers import PostgresServer

from benchmarks.commit import vacuum
from benchmarks.measuring import Figure, Watch, alternate, processor_note, speed
from benchmarks.processor import ProcessorClock, no_server, of_server
from export_queue import Store, TransactionContext

COLUMN = b"status"
VALUE = b"paid" * 20
GOALS = {
    "sqlite": {"get": 1.4, "get_many": 0.4, "scan": 0.5, "scan, 10 versions": 0.2},
    "postgresql": {"get": 1.1, "get_many": 0.6, "scan": 0.5, "scan, 10 versions": 0.2},
}
BLOCK = 500
"""Cells that one ``get_many`` and one statement of its baseline read."""

Row = tuple[bytes, bytes, bytes]


class Plain(ABC):
    """The same rows in a table as anybody would write it."""

    @abstractmethod
    def one(self, key: bytes) -> bytes:
        """Read one row by its primary key."""

    @abstractmethod
    def many(self, keys: list[bytes]) -> list[Row]:
        """Read many rows by their primary keys, in one statement."""

    @abstractmethod
    def scan(self) -> list[Row]:
        """Read all rows in order."""


def run(quick: bool) -> list[Figure]:
    """Measure on both databases."""
    rows, repeats = (1_000, 2) if quick else (20_000, 9)
    figures: list[Figure] = []
    keys = [b"order-%08d" % number for number in range(rows)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        with _on_sqlite(path, keys) as plain:
            figures += _measure("sqlite", f"sqlite:///{path}", plain, keys, repeats, no_server)
    with PostgresServer() as server:
        url = server.url(server.create_database())
        with _on_postgres(url, keys) as plain:
            figures += _measure("postgresql", url, plain, keys, repeats, of_server(server.pid))
    return figures


def _measure(
    database: str, url: str, plain: Plain, keys: list[bytes], repeats: int, clock: ProcessorClock
) -> list[Figure]:
    figures = []
    with Store.open(url) as store:
        store.create()
        tables = {1: "business1", 10: "business10"}
        for versions, table in tables.items():
            for _ in range(versions):
                _write(store, table, keys)
        vacuum(store)
        for versions, table in tables.items():
            with store.transaction() as tx:
                tx.table(table).get(keys[0], COLUMN)
                figures += _compare(database, tx, table, versions, plain, keys, repeats, clock)
    return figures


def _write(store: Store, table: str, keys: list[bytes]) -> None:
    with store.transaction() as tx:
        cells = tx.table(table)
        for key in keys:
            cells.set(key, COLUMN, VALUE)


def _compare(
    database: str,
    tx: TransactionContext,
    name: str,
    versions: int,
    plain: Plain,
    keys: list[bytes],
    repeats: int,
    clock: ProcessorClock,
) -> list[Figure]:
    table = tx.table(name)
    some = keys[:: max(1, len(keys) // 2_000)]  # spread over the whole table
    blocks = [keys[start : start + BLOCK] for start in range(0, len(keys), BLOCK)]

    def get(watch: Watch) -> None:
        with watch.running():
            for key in some:
                table.get(key, COLUMN)

    def select(watch: Watch) -> None:
        with watch.running():
            for key in some:
                plain.one(key)

    def get_many(watch: Watch) -> None:
        with watch.running():
            found = [table.get_many([(key, COLUMN) for key in block]) for block in blocks]
        assert sum(map(len, found)) == len(keys)

    def select_many(watch: Watch) -> None:
        with watch.running():
            found = [plain.many(block) for block in blocks]
        assert sum(map(len, found)) == len(keys)

    def scan(watch: Watch) -> None:
        with watch.running():
            found = list(table.scan())
        assert len(found) == len(keys)

    def select_all(watch: Watch) -> None:
        with watch.running():
            found = plain.scan()
        assert len(found) == len(keys)

    seconds = alternate(
        {"get": get, "plain get": select, "get_many": get_many, "plain get_many": select_many}
        | {"scan": scan, "plain scan": select_all},
        repeats=repeats,
        server=clock,
    )
    baselines = {
        "get": "SELECT by primary key",
        "get_many": f"one SELECT of {BLOCK} primary keys",
        "scan": "SELECT of the same rows",
    }
    figures = []
    for what, baseline in baselines.items():
        faster = speed(seconds, what, f"plain {what}")
        times = what == "get"  # compared as times, the others as speeds
        case = what if versions == 1 else f"{what}, {versions} versions"
        figures.append(
            Figure(
                bench="reads",
                case=f"{database}, {case}",
                ratio=1 / faster if times else faster,
                better="lower" if times else "higher",
                goal=GOALS[database].get(case),
                baseline=baseline,
                repeats=repeats,
                note=processor_note(seconds, what, f"plain {what}"),
            )
        )
    return figures


class _Sqlite(Plain):
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute

    def one(self, key: bytes) -> bytes:
        statement = "select value from plain where row_key = ? and column_key = ?"
        found: bytes = self._execute(statement, (key, COLUMN)).fetchone()[0]
        return found

    def many(self, keys: list[bytes]) -> list[Row]:
        marks = ",".join("?" * len(keys))
        statement = f"select row_key, column_key, value from plain where column_key = ? and row_key in ({marks})"
        return self._execute(statement, (COLUMN, *keys)).fetchall()

    def scan(self) -> list[Row]:
        return self._execute("select row_key, column_key, value from plain order by row_key, column_key").fetchall()


@contextlib.contextmanager
def _on_sqlite(path: Path, keys: list[bytes]) -> Iterator[Plain]:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute(
            "create table plain (row_key blob, column_key blob, value blob, primary key (row_key, column_key)) "
            "without rowid"
        )
        connection.execute("begin")
        connection.executemany("insert into plain values (?, ?, ?)", [(key, COLUMN, VALUE) for key in keys])
        connection.execute("commit")
        yield _Sqlite(connection)


class _Postgres(Plain):
    def __init__(self, cursor: psycopg.Cursor[tuple[bytes, ...]]) -> None:
        self._cursor = cursor

    def one(self, key: bytes) -> bytes:
        statement = "select value from plain where row_key = %b and column_key = %b"
        found = self._cursor.execute(statement, (key, COLUMN)).fetchone()
        assert found is not None
        return found[0]

    def many(self, keys: list[bytes]) -> list[Row]:
        statement = "select row_key, column_key, value from plain where row_key = any(%b) and column_key = %b"
        return self._cursor.execute(statement, (keys, COLUMN)).fetchall()  # type: ignore[return-value]

    def scan(self) -> list[Row]:
        statement = "select row_key, column_key, value from plain order by row_key, column_key"
        return self._cursor.execute(statement).fetchall()  # type: ignore[return-value]


@contextlib.contextmanager
def _on_postgres(url: str, keys: list[bytes]) -> Iterator[Plain]:
    with psycopg.connect(url.replace("+psycopg", ""), prepare_threshold=0) as connection:
        connection.execute(
            "create table plain (row_key bytea, column_key bytea, value bytea, primary key (row_key, column_key))"
        )
        cursor = connection.cursor(binary=True)
        cursor.executemany("insert into plain values (%b, %b, %b)", [(key, COLUMN, VALUE) for key in keys])
        connection.commit()
        yield _Postgres(cursor)
