"""What a commit costs that adds to a queue with three subscriptions, against one to a queue with one.

One transaction adds an entry and nothing else, and another one is that of the benchmark ``commit``: two cells and an
entry. Beside them, a queue without subscriptions shows what the first one costs.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

from tests.support.servers import PostgresServer

from benchmarks.clients import Way, run_clients
from benchmarks.commit import Effort, vacuum
from benchmarks.measuring import Figure, median_ratio, shuffled
from benchmarks.outbox import VALUE, Step, key_of, status_of
from benchmarks.processor import ProcessorClock, no_server, of_server
from export_queue import Store, TransactionContext

GOAL = 1.25
QUEUES = {"none": [], "one": ["search"], "three": ["search", "cache", "reports"]}
"""Queues by their number of subscriptions."""
BASELINE = "one subscription"


def run(quick: bool) -> list[Figure]:
    """Measure on both databases."""
    effort = Effort(repeats=1, seconds=0.1, warm_up=2) if quick else Effort(repeats=9, seconds=1.5, warm_up=50)
    with tempfile.TemporaryDirectory() as folder:
        figures = _measure("sqlite", f"sqlite:///{Path(folder) / 'store.db'}", no_server, effort)
    with PostgresServer() as server:
        url = server.url(server.create_database())
        return figures + _measure("postgresql", url, of_server(server.pid), effort)


def _measure(place: str, url: str, server: ProcessorClock, effort: Effort) -> list[Figure]:
    with Store.open(url) as store:
        store.create()
        for queue, names in QUEUES.items():
            store.configure_queue(queue, subscriptions=names)
        vacuum(store)
    works = {"an entry": add, "two cells and an entry": write}
    runs: dict[tuple[str, str], list[tuple[float, float]]] = {
        (work, queue): [] for work, queue in product(works, QUEUES)
    }
    for work, queue in shuffled(runs, repeats=effort.repeats):
        way: Way = partial(transactions, url, works[work], queue)
        ran = run_clients(way, clients=1, seconds=effort.seconds, warm_up=effort.warm_up, server=server)
        runs[work, queue].append((statistics.median(ran.seconds), ran.processor))
    return [figure for work in works for figure in _figures(place, work, runs, effort.repeats)]


def _figures(
    place: str, work: str, runs: dict[tuple[str, str], list[tuple[float, float]]], repeats: int
) -> Iterator[Figure]:
    figure = partial(Figure, bench="subscriptions", better="lower", baseline=BASELINE, repeats=repeats)
    one = runs[work, "one"]
    for queue, name, goal in (("three", "three subscriptions", GOAL), ("none", "no subscriptions", None)):
        ours = runs[work, queue]
        for what, place_of, bound in (("median", 0, goal), ("processor time", 1, None)):
            values = [ran[place_of] for ran in ours]
            yield figure(
                case=f"{place}, {work}, {name}, {what}",
                ratio=median_ratio(values, [ran[place_of] for ran in one]),
                goal=bound,
                note=f"{statistics.median(values) * 1e3:.2f} ms",
            )


@contextlib.contextmanager
def transactions(url: str, work: object, queue: str) -> Iterator[Step]:
    """Give a function that runs one transaction."""
    assert callable(work)
    with Store.open(url) as store:
        yield lambda number: store.run(lambda tx: work(tx, queue, number))


def add(tx: TransactionContext, queue: str, number: int) -> None:
    """Add an entry."""
    tx.queue(queue).add(key_of(number), VALUE)


def write(tx: TransactionContext, queue: str, number: int) -> None:
    """Write two cells under two conflict keys, and add an entry."""
    key = key_of(number)
    tx.table("business").set(key, "status", status_of(number))
    tx.table("business").set(f"{key}/total", "status", b"1234")
    add(tx, queue, number)
