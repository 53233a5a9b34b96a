"""What a state costs: reading one key of it, and adding to a queue with one.

``get`` is compared with the driver's own SELECT by primary key in the same SQLite, of a table with the same keys and
values; the state's rows are merged into one file for each unit, or still rows. A commit of one entry is compared with
one to a queue without a state, on SQLite and PostgreSQL.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from tests.support.servers import PostgresServer

from benchmarks.measuring import Figure, Watch, alternate, median_ratio
from benchmarks.processor import ProcessorClock, no_server, of_server
from export_queue import Candidates, Store
from export_queue.core.segments import compact

_VALUE = b'{"name":"customer","city":"Oslo","total":1234567,"open":false,"note":"one hundred bytes of a document"}'
_CODECS = {"key": "bytes", "value": "bytes"}
GETS, COMMITS = 200, 200
GET_GOAL, COMMIT_GOAL = 3.0, 1.1


def run(quick: bool) -> Iterator[Figure]:
    rows, repeats = (2_000, 1) if quick else (100_000, 5)
    keys = [b"customer-%013d" % n for n in range(rows)]
    with tempfile.TemporaryDirectory() as folder, Store.open(f"sqlite:///{Path(folder) / 'store.db'}") as store:
        store.create()
        yield from gets(store, Path(folder), keys, repeats)
        yield from commits("sqlite", store, repeats, no_server)
    with PostgresServer() as server, Store.open(server.url(server.create_database())) as store:
        store.create()
        yield from commits("postgresql", store, repeats, of_server(server.pid))


def fill(store: Store, queue: str, keys: list[bytes]) -> None:
    store.configure_queue(queue, state=True, **_CODECS)
    table = pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array([_VALUE] * len(keys), pa.binary())})
    for part in (table.slice(0, len(keys) // 2), table.slice(len(keys) // 2)):
        with store.transaction(long=True) as tx:
            tx.queue(queue).add_batch(part)


def gets(store: Store, folder: Path, keys: list[bytes], repeats: int) -> Iterator[Figure]:
    """Compare ``get`` of merged files, and of rows, with a SELECT."""
    fill(store, "merged", keys)
    compact(store.database, "merged/@state", wanted=Candidates(least=2))
    store.configure_queue("rows", state=True, **_CODECS)
    for start in range(0, len(keys), 1000):
        with store.transaction() as tx:
            tx.queue("rows").add_many((key, _VALUE) for key in keys[start : start + 1000])
    some = keys[:: max(1, len(keys) // GETS)]
    with contextlib.closing(sqlite3.connect(folder / "plain.db", isolation_level=None)) as plain:
        plain.execute("create table plain (key blob primary key, value blob) without rowid")
        plain.execute("begin")
        plain.executemany("insert into plain values (?, ?)", ((key, _VALUE) for key in keys))
        plain.execute("commit")

        def select(watch: Watch) -> None:
            with watch.running():
                for key in some:
                    plain.execute("select value from plain where key = ?", (key,)).fetchone()

        def get(queue: str, watch: Watch) -> None:
            state = store.state(queue)
            with watch.running():
                for key in some:
                    assert state.get(key) == _VALUE

        baseline = "SELECT by primary key, by the driver"
        contestants = {baseline: select} | {
            name: lambda watch, name=name: get(name, watch) for name in ("merged", "rows")
        }
        taken = alternate(contestants, repeats=repeats)
    for name in ("merged", "rows"):
        yield Figure(
            bench="state",
            case=f"get of a state of {len(keys):,} records, {name}",
            ratio=median_ratio(taken[name], taken[baseline]),
            better="lower",
            baseline=baseline,
            repeats=repeats,
            goal=GET_GOAL if name == "merged" else None,
            note=f"{min(taken[name]) / len(some) * 1e6:,.0f} µs",
        )


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
