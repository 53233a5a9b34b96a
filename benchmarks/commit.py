"""What a transaction with one entry costs, against the outbox as people write it.

The baseline on the same database: ``BEGIN``, a row into a business table, a row into an outbox table, ``COMMIT``,
with prepared statements; once as it is, and once with the business row read first. Ours writes one cell under one
conflict key and adds one entry, likewise.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from benchmarks.measuring import Figure
from export_queue.core.client import Store
from export_queue.core.testing.servers import PostgresServer

fork = multiprocessing.get_context("fork")
Step = Callable[[int], None]
"""One transaction; given a number to make its keys from."""
ROWS = 10_000
LATENCY_GOALS = {
    ("postgresql", "write", 1): 1.1,
    ("postgresql", "read, write", 1): 1.25,
    ("sqlite", "write", 1): 1.5,
    ("sqlite", "read, write", 1): 1.5,
}
RATE_GOALS = {
    ("postgresql", "write", 8): 0.9,
    ("postgresql", "read, write", 8): 0.6,
    ("sqlite", "write", 8): 0.5,
    ("sqlite", "read, write", 8): 0.5,
}
VALUE = {"status": "paid", "total": 1234, "note": "x" * 60}


def run(quick: bool) -> list[Figure]:
    """Measure on both databases, with 1 and 8 client processes."""
    repeats, seconds = (2, 0.3) if quick else (7, 2.0)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'store.db'}"
        figures += _compare("sqlite", url, repeats, seconds)
    with PostgresServer() as server:
        figures += _compare("postgresql", server.url(server.create_database()), repeats, seconds)
    return figures


def _compare(database: str, url: str, repeats: int, seconds: float) -> list[Figure]:
    with Store.open(url) as store:
        store.create()
        store.configure_queue("outbox")
        store.configure_table("business")
    ways = {
        "outbox": _outbox,
        "outbox with read": partial(_outbox, reads=True),
        "write": _write,
        "read, write": _read_and_write,
    }
    with _outbox(url) as step:
        step(0)
    figures = []
    for clients in (1, 8):
        rates: dict[str, list[float]] = {way: [] for way in ways}
        latencies: dict[str, list[float]] = {way: [] for way in ways}
        for repeat in range(repeats):
            for way in list(ways) if repeat % 2 else list(reversed(ways)):
                taken = _clients(ways[way], url, clients, seconds)
                rates[way].append(len(taken) / seconds)
                latencies[way].append(statistics.median(taken))
        for way, baseline in (("write", "outbox"), ("read, write", "outbox with read")):
            case = f"{database}, {way}, {clients} client{'s' * (clients > 1)}"
            figures += [
                Figure(
                    bench="commit",
                    case=f"{case}, median",
                    ratio=_ratio(latencies[way], latencies[baseline]),
                    better="lower",
                    goal=LATENCY_GOALS.get((database, way, clients)),
                    baseline=baseline,
                    repeats=repeats,
                    note=f"{statistics.median(latencies[way]) * 1e3:.2f} ms",
                ),
                Figure(
                    bench="commit",
                    case=f"{case}, rate",
                    ratio=_ratio(rates[way], rates[baseline]),
                    better="higher",
                    goal=RATE_GOALS.get((database, way, clients)),
                    baseline=baseline,
                    repeats=repeats,
                    note=f"{statistics.median(rates[way]):,.0f}/s",
                ),
            ]
    return figures


def _ratio(ours: list[float], baseline: list[float]) -> float:
    return statistics.median(own / other for own, other in zip(ours, baseline, strict=True))


def _clients(
    way: Callable[[str], contextlib.AbstractContextManager[Step]], url: str, clients: int, seconds: float
) -> list[float]:
    """Let processes run one way at once; returns the seconds of every transaction."""
    ready = fork.Barrier(clients + 1)
    receiver, sender = fork.Pipe(duplex=False)
    turn = fork.Lock()

    def work(seed: int) -> None:
        with way(url) as step:
            number = seed * 1_000_003
            for _ in range(20):
                number += 1
                step(number)
            ready.wait(60)
            taken = []
            end = time.perf_counter() + seconds
            while (begun := time.perf_counter()) < end:
                number += 1
                step(number)
                taken.append(time.perf_counter() - begun)
        with turn:
            sender.send(taken)

    processes = [fork.Process(target=work, args=(seed,)) for seed in range(clients)]
    for process in processes:
        process.start()
    ready.wait(60)
    taken = [second for _ in processes for second in receiver.recv()]
    for process in processes:
        process.join(60)
    return taken


@contextlib.contextmanager
def _write(url: str) -> Iterator[Step]:
    with Store.open(url) as store:

        def step(number: int) -> None:
            key = f"order-{number * 7919 % ROWS}"
            with store.transaction() as tx:
                tx.table("business").set(key, "status", b"paid" * 20)
                tx.queue("outbox").add(key, VALUE)

        yield step


@contextlib.contextmanager
def _read_and_write(url: str) -> Iterator[Step]:
    with Store.open(url) as store:

        def work(tx: Any, key: str) -> None:
            table = tx.table("business")
            table.get(key, "status")
            table.set(key, "status", b"paid" * 20)
            tx.queue("outbox").add(key, VALUE)

        def step(number: int) -> None:
            key = f"order-{number * 7919 % ROWS}"
            store.run(lambda tx: work(tx, key))

        yield step


@contextlib.contextmanager
def _outbox(url: str, *, reads: bool = False) -> Iterator[Step]:
    with (_sqlite_outbox if url.startswith("sqlite") else _postgres_outbox)(url, reads) as step:
        yield step


_TABLES = (
    "create table if not exists business (id text primary key, status {bytes})",
    "create table if not exists outbox (id {serial}, key text, value text)",
)
_UPSERT = "insert into business values ({p}, {p}) on conflict (id) do update set status = excluded.status"
_APPEND = "insert into outbox (key, value) values ({p}, {p})"


@contextlib.contextmanager
def _sqlite_outbox(url: str, reads: bool) -> Iterator[Step]:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=60, isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    for table in _TABLES:
        connection.execute(table.format(bytes="blob", serial="integer primary key"))
    upsert, append = _UPSERT.format(p="?"), _APPEND.format(p="?")

    def step(number: int) -> None:
        key = f"order-{number * 7919 % ROWS}"
        connection.execute("begin immediate")
        if reads:
            connection.execute("select status from business where id = ?", (key,)).fetchone()
        connection.execute(upsert, (key, b"paid" * 20))
        connection.execute(append, (key, orjson.dumps(VALUE).decode()))
        connection.execute("commit")

    yield step
    connection.close()


@contextlib.contextmanager
def _postgres_outbox(url: str, reads: bool) -> Iterator[Step]:
    import psycopg

    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True, prepare_threshold=0) as connection:
        with contextlib.suppress(psycopg.errors.UniqueViolation):  # two that create it at once
            for table in _TABLES:
                connection.execute(table.format(bytes="bytea", serial="bigserial primary key"))
        upsert, append = _UPSERT.format(p="%s"), _APPEND.format(p="%s")
        cursor = connection.cursor()

        def step(number: int) -> None:
            key = f"order-{number * 7919 % ROWS}"
            cursor.execute("begin")
            if reads:
                cursor.execute("select status from business where id = %s for update", (key,)).fetchone()
            cursor.execute(upsert, (key, b"paid" * 20))
            cursor.execute(append, (key, orjson.dumps(VALUE).decode()))
            cursor.execute("commit")

        yield step
