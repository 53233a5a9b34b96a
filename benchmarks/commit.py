"""What a transaction costs, against the outbox as people write it, and how that scales with clients.

Ours writes two cells under two conflict keys and adds one entry, in one transaction; six rows with the outcome and the
second cell, against the two of the outbox. Both do so as they are and with the business row read first, with 1, 8 and
32 client processes; on PostgreSQL as the machine flushes and with a flush of about 2 ms. Processor time is that of
clients and server together, for one transaction.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

from tests.support.servers import PostgresServer

from benchmarks.clients import Ran, Way, run_clients
from benchmarks.measuring import Figure, median_ratio, shuffled
from benchmarks.outbox import VALUE, Step, all_keys, create, key_of, outbox, status_of
from benchmarks.processor import ProcessorClock, no_server, of_server
from export_queue import Store, TransactionContext

CLIENTS = (1, 8, 32)
SLOW_FLUSH = {"commit_delay": "2000", "commit_siblings": "0"}
"""Every commit of the server waits 2 ms before it flushes."""
WRITE, READ = "write", "read, write"
BASELINE = {WRITE: "outbox", READ: "outbox with read"}
LONGEST_GOAL = 20.0
"""Of the longest wait of any of 8 clients, in medians."""
COLLAPSE_GOAL = 0.75
"""Of the rate of 32 clients, against that of 8."""


@dataclass(frozen=True, slots=True)
class Place:
    """A database under a store and the outbox beside it, and what is expected there."""

    name: str
    latency: dict[str, float]
    """Highest ratio of medians with one client."""
    rate: dict[str, float]
    """Lowest ratio of rates with 8 clients."""
    rate_of_32: float | None = None
    """Lowest ratio of rates with 32 clients that only write."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    repeats: int
    seconds: float
    """Of each repeat."""
    warm_up: int
    """Transactions of each client that do not count."""


SQLITE = Place("sqlite", latency={WRITE: 1.8, READ: 1.8}, rate={WRITE: 0.5, READ: 0.5})
POSTGRES = Place("postgresql", latency={WRITE: 1.0, READ: 1.15}, rate={WRITE: 0.8, READ: 0.7})
POSTGRES_SLOW = Place(
    "postgresql, flush 2 ms", latency={WRITE: 1.05, READ: 1.15}, rate={WRITE: 1.0, READ: 0.85}, rate_of_32=0.75
)


def run(quick: bool) -> list[Figure]:
    """Measure on both databases."""
    effort = Effort(repeats=1, seconds=0.1, warm_up=2) if quick else Effort(repeats=7, seconds=2.0, warm_up=20)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        figures += _measure(SQLITE, f"sqlite:///{Path(folder) / 'store.db'}", no_server, effort)
    for place, settings in ((POSTGRES, None), (POSTGRES_SLOW, SLOW_FLUSH)):
        with PostgresServer(settings) as server:
            figures += _measure(place, server.url(server.create_database()), of_server(server.pid), effort)
    return figures


def _measure(place: Place, url: str, server: ProcessorClock, effort: Effort) -> list[Figure]:
    create(url)
    prepare_store(url)
    ways: dict[str, Way] = {
        BASELINE[WRITE]: partial(outbox, url),
        BASELINE[READ]: partial(outbox, url, reads=True),
        WRITE: partial(transactions, url, write),
        READ: partial(transactions, url, read_and_write),
    }
    runs = {(way, clients): Run() for way, clients in product(ways, CLIENTS)}
    for way, clients in shuffled(runs, repeats=effort.repeats):
        ran = run_clients(ways[way], clients=clients, seconds=effort.seconds, warm_up=effort.warm_up, server=server)
        runs[way, clients].add(ran, effort.seconds)
    return [figure for way in (WRITE, READ) for figure in _figures(place, way, runs, effort.repeats)]


class Run:
    """What one way did with one number of clients, repeat by repeat."""

    def __init__(self) -> None:
        self.medians: list[float] = []
        self.rates: list[float] = []
        self.longest: list[float] = []
        self.processor: list[float] = []
        """Seconds of one transaction."""
        self.client: list[float] = []
        """Of these, the clients'."""

    def add(self, ran: Ran, seconds: float) -> None:
        """Note one repeat."""
        self.medians.append(statistics.median(ran.seconds))
        self.rates.append(len(ran.seconds) / seconds)
        self.longest.append(max(ran.seconds))
        self.processor.append(ran.processor)
        self.client.append(ran.client / len(ran.seconds))

    def shares(self) -> str:
        """Write for people what clients and server use."""
        client, both = statistics.median(self.client), statistics.median(self.processor)
        return f"{client * 1e6:.0f} + {max(0.0, both - client) * 1e6:.0f} µs"


def _figures(place: Place, way: str, runs: dict[tuple[str, int], Run], repeats: int) -> Iterator[Figure]:
    figure = partial(Figure, bench="commit", repeats=repeats)
    baseline = BASELINE[way]
    for clients in CLIENTS:
        ours, theirs = runs[way, clients], runs[baseline, clients]
        case = f"{place.name}, {way}, {clients} client{'s' * (clients > 1)}"
        if clients == 1:
            yield figure(
                case=f"{case}, median",
                ratio=median_ratio(ours.medians, theirs.medians),
                better="lower",
                goal=place.latency[way],
                baseline=baseline,
                note=f"{statistics.median(ours.medians) * 1e3:.2f} ms",
            )
        yield figure(
            case=f"{case}, rate",
            ratio=median_ratio(ours.rates, theirs.rates),
            better="higher",
            goal={8: place.rate[way], 32: place.rate_of_32 if way == WRITE else None}.get(clients),
            baseline=baseline,
            note=f"{statistics.median(ours.rates):,.0f}/s",
        )
        yield figure(
            case=f"{case}, processor time",
            ratio=median_ratio(ours.processor, theirs.processor),
            better="lower",
            baseline=baseline,
            note=f"client + server {ours.shares()}; {baseline} {theirs.shares()}",
        )
    eight, many = runs[way, 8], runs[way, 32]
    if place is SQLITE:
        outboxs = median_ratio(runs[baseline, 8].longest, runs[baseline, 8].medians)
        yield figure(
            case=f"{place.name}, {way}, 8 clients, longest",
            ratio=median_ratio(eight.longest, eight.medians),
            better="lower",
            goal=LONGEST_GOAL,
            baseline="own median",
            note=f"{baseline}: {outboxs:,.0f}",
        )
    yield figure(
        case=f"{place.name}, {way}, 32 clients, collapse",
        ratio=median_ratio(many.rates, eight.rates),
        better="higher",
        goal=COLLAPSE_GOAL,
        baseline="own rate with 8 clients",
        note=f"{baseline}: {median_ratio(runs[baseline, 32].rates, runs[baseline, 8].rates):.2f}",
    )


def prepare_store(url: str) -> None:
    """Create the store with one version of each cell, as the outbox's business table has each row."""
    with Store.open(url) as store:
        store.create()
        store.configure_queue("outbox")
        store.configure_table("business")
        with store.transaction() as tx:
            table = tx.table("business")
            for key in all_keys():
                table.set(key, "status", status_of(0))


def vacuum(store: Store) -> None:
    """Do now what a PostgreSQL server would do by itself within a minute, perhaps while it is measured."""
    if store.database.dialect.name == "postgresql":
        with store.database.connect() as connection:
            connection.exec_driver_sql("vacuum analyze")


@contextlib.contextmanager
def transactions(url: str, work: Callable[[TransactionContext, int], None]) -> Iterator[Step]:
    """Give a function that runs one transaction of ours."""
    with Store.open(url) as store:
        yield lambda number: store.run(lambda tx: work(tx, number))


def write(tx: TransactionContext, number: int) -> None:
    """Write two cells under two conflict keys and add an entry."""
    key = key_of(number)
    table = tx.table("business")
    table.set(key, "status", status_of(number))
    table.set(f"{key}/total", "status", b"1234")
    tx.queue("outbox").add(key, VALUE)


def read_and_write(tx: TransactionContext, number: int) -> None:
    """Read one of the cells first."""
    tx.table("business").get(key_of(number), "status")
    write(tx, number)
