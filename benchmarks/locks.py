"""What a lock costs, against one ``UPDATE`` in a transaction of its own, and how that holds with thousands of locks.

A lock is taken and given back, which are two transactions. The baseline changes one row of a small table by a prepared
statement of the driver. Round trips are the answers for which the client waits; PostgreSQL's library counts them.
"""

from __future__ import annotations

import contextlib
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg
from tests.support.servers import PostgresServer

from benchmarks.measuring import Figure, Watch, alternate, median_ratio
from export_queue import Owner, Store
from export_queue.core.locks import DRAIN_PRIORITY, ROWS, Area, Lease, Lock, acquire, claim, release
from export_queue.core.locks.rules import Board, Request, collide
from export_queue.core.queue import Queue

BASELINE = "one UPDATE and its COMMIT"
UNITS = 5_000
UNIT = 3
BUCKETS = UNIT * (UNITS + 1)
DISJOINT = 1_000
TRIPS_GOAL, TRIPS_OF_MANY_GOAL = 2, 5
TAIL_GOAL = 20.0
BESIDE_GOAL = 1.5
SEARCH_GOAL = 0.1

Step = Callable[[], object]


def run(quick: bool) -> list[Figure]:
    """Measure on both databases."""
    repeats, rounds = (1, 5) if quick else (9, 200)
    figures = [_search(UNITS // 50 if quick else UNITS, repeats)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        with Store.open(f"sqlite:///{path}") as store, _update_in_file(path) as update:
            figures += _Bench(store, "sqlite", repeats, rounds, quick=quick).figures(update)
    with PostgresServer() as server:
        url = server.url(server.create_database())
        with Store.open(url) as store, _update_on_server(url) as update:
            bench = _Bench(store, "postgresql", repeats, rounds, quick=quick)
            figures += [*bench.figures(update), *bench.round_trips()]
    return figures


def _search(count: int, repeats: int) -> Figure:
    """Decide in memory, as each request does: the arranged locks against a look at all of them."""
    locks = [
        Lock(
            area=Area(first, first + UNIT, frozenset({ROWS, f"{first}.1"})),
            mode="exclusive",
            priority=DRAIN_PRIORITY,
            task="holder",
            attempt="1",
            id=(1, first),
            lease_ms=1,
        )
        for first in range(0, count * UNIT, UNIT)
    ]
    wanted = [Request(areas=(lock.area,), priority=DRAIN_PRIORITY, task="asks", attempt="1") for lock in locks[:100]]
    board = Board(locks, now=0)

    def arranged(watch: Watch) -> None:
        with watch.running():
            for request in wanted:
                board.decide(request)

    def one_by_one(watch: Watch) -> None:
        with watch.running():
            for request in wanted:
                assert any(collide(request.areas[0], "exclusive", lock.area, lock.mode) for lock in reversed(locks))

    taken = alternate({"arranged": arranged, "one by one": one_by_one}, repeats=repeats)
    return Figure(
        bench="locks",
        case=f"who is in the way, of {count:,} locks in memory",
        ratio=median_ratio(taken.processor["arranged"], taken.processor["one by one"]),
        better="lower",
        baseline="a look at each lock",
        repeats=repeats,
        goal=SEARCH_GOAL,
        note=f"{statistics.median(taken['arranged']) / len(wanted) * 1e6:.0f} µs",
    )


class _Bench:
    """One store with a queue of many units.

    :param repeats: how often each contestant runs.
    :param rounds: how many locks each of them takes then.
    """

    def __init__(self, store: Store, name: str, repeats: int, rounds: int, *, quick: bool) -> None:
        store.create()
        self.store, self.name, self.repeats, self.rounds = store, name, repeats, rounds
        self.units = UNITS // 50 if quick else UNITS
        self.disjoint = DISJOINT // 50 if quick else DISJOINT
        self.queue = self._queue("few")

    def figures(self, update: Step) -> list[Figure]:
        """Compare times."""
        few, many = self.queue, self._queue("many")
        owner = Owner.unique()
        middle_unit = self.units // 2
        areas = [
            Area(unit.first, unit.end) for at, unit in enumerate(many.units()[: self.units + 1]) if at != middle_unit
        ]
        held = acquire(self.store.database, many, areas, owner=owner, lease_seconds=3600)
        taken = alternate(
            {
                BASELINE: partial(self._repeat, update),
                "one": partial(self._repeat, partial(self._take_one, few)),
                "beside": partial(self._repeat, partial(self._take_one, many)),
                "units": partial(self._units, few),
            },
            repeats=self.repeats,
        )
        release(self.store.database, held)
        one, beside, units = (statistics.median(taken[name]) for name in ("one", "beside", "units"))
        tail, middle = self._tail()
        return [
            self._figure(
                "a lock taken and given back",
                median_ratio(taken["one"], taken[BASELINE]),
                BASELINE,
                note=f"{one / self.rounds * 1e6:.0f} µs",
            ),
            self._figure(
                f"the same beside {self.units:,} locks on other units",
                median_ratio(taken["beside"], taken["one"]),
                "beside none",
                goal=BESIDE_GOAL,
                note=f"{beside / self.rounds * 1e6:.0f} µs",
            ),
            self._figure(
                f"{self.units:,} units claimed and given back at once, each of them",
                median_ratio(taken["units"], taken["one"]) * self.rounds / self.units,
                "a lock taken and given back",
                note=f"{units:.2f} s in all",
            ),
            self._figure(
                f"{self.disjoint:,} locks on disjoint segments held at once: 99th percentile of taking one",
                tail / middle,
                "their median",
                goal=TAIL_GOAL,
                note=f"median {middle * 1e6:.0f} µs",
                repeats=1,
            ),
        ]

    def round_trips(self) -> list[Figure]:
        """Count for what the client waits."""
        areas = [Area(unit.first, unit.end) for unit in self.queue.units()[: self.units]]
        database, owner = self.store.database, Owner.unique()
        leases: list[Lease] = []
        counts = {}
        with self._counted(counts, "one"):
            self._take_one(self.queue)
        with self._counted(counts, "all"):
            leases = acquire(database, self.queue, areas, owner=owner, lease_seconds=60)
        release(database, leases)
        with self._counted(counts, "claim"):
            leases = claim(
                database,
                self.queue,
                self.queue.units()[: self.units],
                owner=Owner.unique(),
                lease_seconds=60,
                leaves_out=True,
            )
        release(database, leases)
        each = "one round trip"
        return [
            self._figure("a lock taken and given back: round trips", counts["one"], each, goal=TRIPS_GOAL, repeats=1),
            self._figure(
                f"{self.units:,} intervals taken at once, all or none: round trips",
                counts["all"],
                each,
                goal=TRIPS_OF_MANY_GOAL,
                repeats=1,
            ),
            self._figure(
                f"those of {self.units:,} units that are free claimed at once, as drains do: round trips",
                counts["claim"],
                each,
                goal=TRIPS_OF_MANY_GOAL,
                repeats=1,
            ),
        ]

    @contextlib.contextmanager
    def _counted(self, counts: dict[str, int], name: str) -> Iterator[None]:
        with self.store.database.connect() as connection:  # the same is lent again
            session = connection.connection.driver_connection
            assert isinstance(session, psycopg.Connection)
        with tempfile.TemporaryFile("w+b") as trace:
            session.pgconn.trace(trace.fileno())
            try:
                yield
            finally:
                session.pgconn.untrace()
            trace.seek(0)
            counts[name] = trace.read().count(b"ReadyForQuery")

    def _queue(self, name: str) -> Queue:
        return self.store.configure_queue(name, buckets=BUCKETS, buckets_per_range=UNIT)

    def _repeat(self, step: Step, watch: Watch) -> None:
        with watch.running():
            for _ in range(self.rounds):
                step()

    def _take_one(self, queue: Queue) -> None:
        first = self.units // 2 * UNIT
        area = Area(first, first + UNIT, frozenset({"2.1", "2.2"}))
        leases = acquire(self.store.database, queue, [area], owner=Owner.unique(), lease_seconds=60)
        release(self.store.database, leases)

    def _units(self, queue: Queue, watch: Watch) -> None:
        units = queue.units()[: self.units]
        with watch.running():
            leases = claim(self.store.database, queue, units, owner=Owner.unique(), lease_seconds=60)
            release(self.store.database, leases)
        assert len(leases) == len(units)

    def _tail(self) -> tuple[float, float]:
        """Take locks on disjoint segments of one unit, each by an owner of its own, until all are held."""
        queue, seconds = self._queue("disjoint"), []
        leases: list[Lease] = []
        for number in range(self.disjoint):
            area = Area(0, UNIT, frozenset({f"1.{number}"}))
            started = time.perf_counter()
            leases += acquire(self.store.database, queue, [area], owner=Owner.unique(), lease_seconds=3600)
            seconds.append(time.perf_counter() - started)
        release(self.store.database, leases)
        return statistics.quantiles(seconds, n=100)[98], statistics.median(seconds)

    def _figure(
        self,
        case: str,
        ratio: float,
        baseline: str,
        *,
        goal: float | None = None,
        note: str = "",
        repeats: int | None = None,
    ) -> Figure:
        return Figure(
            bench="locks",
            case=f"{self.name}, {case}",
            ratio=ratio,
            better="lower",
            baseline=baseline,
            repeats=self.repeats if repeats is None else repeats,
            goal=goal,
            note=note,
        )


_CREATE = "create table counter (id integer primary key, n integer)"
_INSERT = "insert into counter values (1, 0)"
_UPDATE = "update counter set n = n + 1 where id = 1"


@contextlib.contextmanager
def _update_in_file(path: Path) -> Iterator[Step]:
    with contextlib.closing(sqlite3.connect(path.with_name("plain.db"), isolation_level=None)) as plain:
        plain.execute("pragma journal_mode = wal")
        plain.execute("pragma synchronous = full")
        plain.execute(_CREATE)
        plain.execute(_INSERT)
        yield partial(plain.execute, _UPDATE)


@contextlib.contextmanager
def _update_on_server(url: str) -> Iterator[Step]:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as plain:
        plain.execute(_CREATE)
        plain.execute(_INSERT)
        yield partial(plain.execute, _UPDATE, prepare=True)
