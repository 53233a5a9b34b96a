"""Reading one's own writes: each client commits, waits until the commit is exported, and reads the copy.

A follower delivers from PostgreSQL to Redis. Latency is the time from the end of the commit to the end of the wait, and
is compared with its goal. What a client reads must be its last write: an older one is stale.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

import redis
from tests.support.servers import PostgresServer, RedisServer

from benchmarks.clients import PATIENCE, fork
from benchmarks.follow import GOALS
from benchmarks.measuring import Figure
from export_queue import RedisSink, Store, follow

KEYS = 10
"""Records of each client, which it writes in turn."""
FEW, MANY = 2, 32
"""Clients: so few that each waits for its own commit only, and so many that a follower delivers many at once."""


def run(quick: bool) -> Iterator[Figure]:
    with PostgresServer() as postgres, RedisServer() as server:
        url = postgres.url(postgres.create_database())
        with Store.open(url) as store:
            store.create()
            store.configure_queue("orders")
        for clients, checks in ((FEW, 100 if quick else 2_000), (MANY, 320 if quick else 100_000)):
            bench = Bench(url, server, clients, checks // clients)
            with bench.follower():
                found = bench.check()
            if clients == FEW:
                yield from latencies([seconds for seconds, _ in found])
            yield stale_reads(clients, [is_stale for _, is_stale in found])


def latencies(found: list[float]) -> Iterator[Figure]:
    """Compare the waits of few clients with their goals."""
    found.sort()
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        seconds, goal = found[int(share * (len(found) - 1))], GOALS[name]
        yield Figure(
            bench="wait",
            case=f"{FEW} clients: {name} from commit to the end of the wait",
            ratio=seconds / goal,
            better="lower",
            baseline=f"{goal * 1e3:.0f} ms",
            repeats=1,
            goal=1.0,
            note=f"{seconds * 1e3:.0f} ms",
        )


def stale_reads(clients: int, found: list[bool]) -> Figure:
    """Count reads that are stale."""
    return Figure(
        bench="wait",
        case=f"{clients} clients: share of reads that are not stale",
        ratio=1 - sum(found) / len(found),
        better="higher",
        baseline="all reads",
        repeats=1,
        goal=1.0,
        note=f"{sum(found)} stale of {len(found):,}",
    )


class Bench:
    """One store, and one sink.

    :param checks: how often each client writes and reads.
    """

    def __init__(self, url: str, server: RedisServer, clients: int, checks: int) -> None:
        self.url, self.server, self.clients, self.checks = url, server, clients, checks

    def check(self) -> list[tuple[float, bool]]:
        """Let all clients write and read; returns for each check the seconds of the wait, and whether it was stale."""
        pipes = []
        for client in range(self.clients):
            receiver, sender = fork.Pipe(duplex=False)
            fork.Process(target=self.write_and_read, args=(f"client{client}", sender), daemon=True).start()
            pipes.append(receiver)
        found: list[tuple[float, bool]] = []
        for pipe in pipes:
            if not pipe.poll(self.checks + PATIENCE):
                raise RuntimeError("a client of the benchmark has not answered")
            found += pipe.recv()
        return found

    def write_and_read(self, name: str, sender: Connection) -> None:
        found = []
        copy = redis.Redis(self.server.host, self.server.port, password=self.server.password)
        with Store.open(self.url) as store, contextlib.closing(copy):
            for i in range(self.checks):
                key = f"{name}-{i % KEYS}"
                with store.transaction() as tx:
                    tx.queue("orders").add(key, i)
                begun = time.monotonic()
                store.wait_exported(tx.token, "orders", timeout=PATIENCE)
                seconds = time.monotonic() - begun
                found.append((seconds, int(copy.get(f"orders:{key}") or -1) < i))
        sender.send(found)

    @contextlib.contextmanager
    def follower(self) -> Iterator[None]:
        """Follow in a process of its own during a block."""
        stop = fork.Event()
        process = fork.Process(target=self.follow, args=(stop,), daemon=True)
        process.start()
        yield
        stop.set()
        process.join(PATIENCE)

    def follow(self, stop: Event) -> None:
        sink = RedisSink(host=self.server.host, port=self.server.port, password=self.server.password)
        with contextlib.closing(sink), Store.open(self.url) as store:
            follow(store, "orders", sink, sink_name="bench", stop=stop.is_set)
