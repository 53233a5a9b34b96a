"""Whether a commit costs the same after much has gone through the store: ten million cells and entries, or a hundred
thousand.

A young store and an old one stand side by side and take the same transactions in turn. What has gone through them
before went by real commits, of many cells and entries each: every pass writes one more version of the same cells and
adds an entry for each, and then the queue is drained. Only what as many small commits would have left besides, an
outcome for every three rows, is put there by one statement. Either clean-up runs, between the passes and beside
what is measured; or a long transaction is open from the beginning, so that no version may go.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import sqlalchemy as sa
from tests.support.servers import PostgresServer

from benchmarks.clients import repeating, run_clients
from benchmarks.commit import READ, WRITE, prepare_store, read_and_write, transactions, vacuum, write
from benchmarks.measuring import Figure, median_ratio, shuffled
from benchmarks.outbox import ROWS, VALUE, all_keys, status_of
from benchmarks.processor import ProcessorClock, no_server, of_server
from export_queue import MemorySink, Store, drain
from export_queue.core.maintenance import Patience, maintain

FLAT = 1.2
CLEANED, HELD = "clean-up running", "a long transaction open"
CELLS_A_COMMIT = 500
ROWS_AN_OUTCOME = 3
"""Cells and entries of one transaction of the bench ``commit``, which leaves one outcome."""
OUTCOMES = {
    "postgresql": """
        insert into export_queue.xq_outcome (request, status, id, decided_ms)
        select gen_random_uuid(), 'committed', n, :now from generate_series(1, :count) n""",
    "sqlite": """
        insert into xq_outcome (request, status, id, decided_ms)
        with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < :count)
        select lower(hex(randomblob(16))), 'committed', n, :now from numbers""",
}


def run(quick: bool) -> Iterator[Figure]:
    """Measure on both databases."""
    sizes, repeats, seconds = ((1_000, 30_000), 1, 0.1) if quick else ((100_000, 10_000_000), 15, 0.3)
    with tempfile.TemporaryDirectory() as folder, PostgresServer() as server:
        for database in ("sqlite", "postgresql"):
            clock = no_server if database == "sqlite" else of_server(server.pid)
            for condition in (CLEANED, HELD):
                with contextlib.ExitStack() as stack:
                    young, old = (
                        f"sqlite:///{Path(folder) / f'{condition}-{rows}.db'}"
                        if database == "sqlite"
                        else server.url(server.create_database())
                        for rows in sizes
                    )
                    for url, rows in zip((young, old), sizes, strict=True):
                        stack.enter_context(gone_through(url, rows, condition))
                    yield from _compare(database, condition, young, old, sizes, repeats, seconds, clock)


def clean_up(url: str) -> None:
    """Delete what nobody reads any more."""
    with Store.open(url) as store:
        while maintain(store.database, patience=Patience(seconds=1.0, between_calls=0)).more:
            pass


@contextlib.contextmanager
def gone_through(url: str, rows: int, condition: str) -> Iterator[None]:
    """Let a number of cells and entries go through a new store."""
    prepare_store(url)
    sink = MemorySink()
    with Store.open(url) as store, contextlib.ExitStack() as stack:
        if condition == HELD:
            long = stack.enter_context(store.transaction(long=True))
            long.table("held").set("a", "status", b"open")
            long.flush()
        for first in range(0, rows // 2, ROWS):
            _pass(store, sink, min(ROWS, rows // 2 - first))
            if condition == CLEANED:
                clean_up(url)
        with store.database.begin() as work:
            statement = sa.text(OUTCOMES[store.database.dialect.name])
            work.connection.execute(statement, {"count": rows // ROWS_AN_OUTCOME, "now": work.now()})
        vacuum(store)
        yield


def _pass(store: Store, sink: MemorySink, cells: int) -> None:
    keys = all_keys()[:cells]
    for start in range(0, cells, CELLS_A_COMMIT):
        with store.transaction() as tx:
            table, queue = tx.table("business"), tx.queue("outbox")
            for key in keys[start : start + CELLS_A_COMMIT]:
                table.set(key, "status", status_of(start))
                queue.add(key, VALUE)
    drain(store, "outbox", sink, sink_name="memory")


def _compare(
    database: str,
    condition: str,
    young: str,
    old: str,
    sizes: tuple[int, int],
    repeats: int,
    seconds: float,
    clock: ProcessorClock,
) -> Iterator[Figure]:
    for name, work in {WRITE: write, READ: read_and_write}.items():
        medians: dict[str, list[float]] = {young: [], old: []}
        processor: dict[str, list[float]] = {young: [], old: []}
        for url in shuffled((young, old), repeats=repeats):
            beside = repeating(partial(clean_up, url), pause=0.1) if condition == CLEANED else contextlib.nullcontext()
            with beside:
                ran = run_clients(partial(transactions, url, work), clients=1, seconds=seconds, server=clock)
            medians[url].append(statistics.median(ran.seconds))
            processor[url].append(ran.processor)
        yield Figure(
            bench="growth",
            case=f"{database}, {condition}, {name}: {sizes[1]:,} rows gone through",
            ratio=median_ratio(medians[old], medians[young]),
            better="lower",
            goal=FLAT,
            baseline=f"{sizes[0]:,} rows gone through",
            repeats=repeats,
            # With that of clean-up, where it runs in the server.
            note=f"{median_ratio(processor[old], processor[young]):.2f} × processor time",
        )
