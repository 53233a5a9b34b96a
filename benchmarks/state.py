"""What a state costs: reading one key of it, and adding to a queue with one.

``get`` is compared with a driver's SELECT by primary key in the same kind of database, of a table with the same keys
and values. The state's rows are merged into one file, or they are still rows. The parts of the file that the process
has read before are in its memory, or nothing is. On SQLite the SELECT is one statement on an open connection, or it has
a transaction of its own there, or even a connection that is opened for it. On PostgreSQL it is prepared and has a
transaction of its own. A commit of one entry is compared with one to a queue without a state.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pyarrow as pa
from tests.support.servers import PostgresServer

from benchmarks.commit import vacuum
from benchmarks.measuring import Figure, Watch, alternate, median_ratio
from benchmarks.processor import ProcessorClock, no_server, of_server
from export_queue import Candidates, Store
from export_queue.core.segments import compact

_VALUE = b'{"name":"customer","city":"Oslo","total":1234567,"open":false,"note":"one hundred bytes of a document"}'
_CODECS = {"key": "bytes", "value": "bytes"}
_OWN_CONNECTION = "SELECT on its own connection"
GETS, COMMITS = 200, 200
GET_GOAL, COMMIT_GOAL = 3.0, 1.1
Get = Callable[[bytes], bytes]
"""Reads the value of a key."""


def run(quick: bool) -> Iterator[Figure]:
    rows, repeats = (2_000, 1) if quick else (100_000, 5)
    keys = [b"customer-%013d" % n for n in range(rows)]
    with tempfile.TemporaryDirectory() as folder, Store.open(f"sqlite:///{Path(folder) / 'store.db'}") as store:
        store.create()
        with _selects_of_sqlite(Path(folder) / "plain.db", keys) as selects:
            yield from gets("sqlite", store, selects, keys, repeats)
        yield from commits("sqlite", store, repeats, no_server)
    with contextlib.ExitStack() as stack:
        folder, server = stack.enter_context(tempfile.TemporaryDirectory()), stack.enter_context(PostgresServer())
        url = server.url(server.create_database())
        store = stack.enter_context(Store.open(url, segments=folder))
        store.create()
        with _selects_of_postgresql(url, keys) as selects:
            yield from gets("postgresql", store, selects, keys, repeats)
        yield from commits("postgresql", store, repeats, of_server(server.pid))


def fill(store: Store, queue: str, keys: list[bytes]) -> None:
    store.configure_queue(queue, state=True, **_CODECS)
    table = pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array([_VALUE] * len(keys), pa.binary())})
    for part in (table.slice(0, len(keys) // 2), table.slice(len(keys) // 2)):
        with store.transaction(long=True) as tx:
            tx.queue(queue).add_batch(part)


def gets(database: str, store: Store, selects: dict[str, Get], keys: list[bytes], repeats: int) -> Iterator[Figure]:
    """Compare ``get`` of merged files, and of rows, with SELECTs.

    :param selects: the baselines by name.
    """
    fill(store, "merged", keys)
    compact(store.database, "merged/@state", wanted=Candidates(least=2))
    store.configure_queue("rows", state=True, **_CODECS)
    for start in range(0, len(keys), 1000):
        with store.transaction() as tx:
            tx.queue("rows").add_many((key, _VALUE) for key in keys[start : start + 1000])
    if database == "postgresql":
        vacuum(store)
    merged, rows = (store.state(queue).get for queue in ("merged", "rows"))

    def unread(key: bytes) -> bytes:
        store.database.kept.clear()
        return bytes(merged(key))

    some = keys[:: max(1, len(keys) // GETS)]
    ours = {"merged": merged, "merged, nothing kept": unread, "rows": rows}

    def read(get: Get, watch: Watch) -> None:
        with watch.running():
            for key in some:
                assert get(key) == _VALUE

    contestants: dict[str, Callable[[Watch], None]] = {
        name: lambda watch, get=get: read(get, watch) for name, get in (ours | selects).items()
    }
    for key in some:  # as in a process that has read before
        merged(key)
    if repeats > 1:
        alternate(contestants, repeats=1)
    taken = alternate(contestants, repeats=repeats)
    for name, baseline in itertools.product(ours, selects):
        time, of_baseline = (min(taken[one]) / len(some) * 1e6 for one in (name, baseline))
        yield Figure(
            bench="state",
            case=f"{database}, get of a state of {len(keys):,} records, {name}",
            ratio=median_ratio(taken[name], taken[baseline]),
            better="lower",
            baseline=baseline,
            repeats=repeats,
            goal=GET_GOAL if name == "merged" and baseline != _OWN_CONNECTION else None,
            note=f"{time:,.0f} µs, baseline {of_baseline:,.0f} µs",
        )


@contextlib.contextmanager
def _selects_of_sqlite(path: Path, keys: list[bytes]) -> Iterator[dict[str, Get]]:
    statement = "select value from plain where key = ?"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as plain:
        plain.execute("pragma journal_mode = wal")
        plain.execute("create table plain (key blob primary key, value blob) without rowid")
        plain.execute("begin")
        plain.executemany("insert into plain values (?, ?)", ((key, _VALUE) for key in keys))
        plain.execute("commit")

        def alone(key: bytes) -> bytes:
            return bytes(plain.execute(statement, (key,)).fetchone()[0])

        def in_transaction(key: bytes) -> bytes:
            plain.execute("begin")
            found = alone(key)
            plain.execute("commit")
            return found

        def with_connection(key: bytes) -> bytes:
            with contextlib.closing(sqlite3.connect(path)) as connection, connection:
                return bytes(connection.execute(statement, (key,)).fetchone()[0])

        yield {
            "SELECT by primary key": alone,
            "SELECT in its own transaction": in_transaction,
            _OWN_CONNECTION: with_connection,
        }


@contextlib.contextmanager
def _selects_of_postgresql(url: str, keys: list[bytes]) -> Iterator[dict[str, Get]]:
    with psycopg.connect(url.replace("+psycopg", ""), prepare_threshold=0, autocommit=True) as connection:
        connection.execute("create table plain (key bytea primary key, value bytea)")
        cursor = connection.cursor(binary=True)
        with connection.transaction():
            cursor.executemany("insert into plain values (%b, %b)", [(key, _VALUE) for key in keys])
        connection.execute("vacuum analyze plain")

        def in_transaction(key: bytes) -> bytes:
            with connection.transaction():
                found = cursor.execute("select value from plain where key = %b", (key,)).fetchone()
            assert found is not None
            return bytes(found[0])

        yield {"SELECT in its own transaction": in_transaction}


def commits(database: str, store: Store, repeats: int, clock: ProcessorClock) -> Iterator[Figure]:
    """Compare commits of one entry each to two queues."""
    baseline = "a queue without a state"
    queues = {"state": "with_state", baseline: "without_state"}
    store.configure_queue("with_state", state=True)
    store.configure_queue("without_state")
    numbers = itertools.count()

    def commit(queue: str, watch: Watch) -> None:
        with watch.running():
            for _ in range(COMMITS):
                with store.transaction() as tx:
                    tx.queue(queue).add(f"{next(numbers)}", 1)

    contestants = {name: lambda watch, queue=queue: commit(queue, watch) for name, queue in queues.items()}
    taken = alternate(contestants, repeats=repeats, server=clock)
    for what, seconds in (("", taken), (", processor time", taken.processor)):
        yield Figure(
            bench="state",
            case=f"{database}, commit of an entry to a queue with a state{what}",
            ratio=median_ratio(seconds["state"], seconds[baseline]),
            better="lower",
            baseline=baseline,
            repeats=repeats,
            goal=None if what else COMMIT_GOAL,
        )
