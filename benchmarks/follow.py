"""A follower behind steady commits: how soon an entry is in the sink, and what the commits beside it cost.

Writers commit at a fixed rate, one entry each. Latency is the time from the end of the commit, in the writer, to the
end of the sink's batch, in the follower's process. It is a goal by itself: a ratio to the goal is shown.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

import orjson
from tests.support.servers import PostgresServer, RedisServer

from benchmarks.clients import PATIENCE, fork
from benchmarks.measuring import Figure, median_ratio
from export_queue import ApplyResult, Operations, RedisSink, Store, drain, follow

WRITERS = 2
RATE = 500
"""Transactions a second, of all writers."""
GOALS = {"p50": 0.060, "p99": 0.250}
COMMIT_GOAL = 1.05
BASELINE = "the same commits, nobody follows"

_runs = itertools.count()


def run(quick: bool) -> Iterator[Figure]:
    repeats, seconds = (1, 2.0) if quick else (5, 8.0)
    with PostgresServer() as postgres, RedisServer() as server:
        url = postgres.url(postgres.create_database())
        with Store.open(url) as store:
            store.create()
            store.configure_queue("orders")
        bench = Bench(url, server, seconds)
        alone, beside = list[float](), list[float]()
        latencies = list[float]()
        for turn in range(repeats):
            for followed in (False, True) if turn % 2 else (True, False):
                taken, found = bench.round(followed=followed)
                (beside if followed else alone).append(statistics.median(taken))
                latencies += found
    latencies.sort()
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        found = latencies[int(share * (len(latencies) - 1))]
        yield Figure(
            bench="follow",
            case=f"{RATE} transactions a second: {name} from commit to sink",
            ratio=found / GOALS[name],
            better="lower",
            baseline=f"{GOALS[name] * 1e3:.0f} ms",
            repeats=repeats,
            goal=1.0,
            note=f"{found * 1e3:.0f} ms; {len(latencies)} entries",
        )
    yield Figure(
        bench="follow",
        case=f"{RATE} transactions a second: a commit",
        ratio=median_ratio(beside, alone),
        better="lower",
        baseline=BASELINE,
        repeats=repeats,
        goal=COMMIT_GOAL,
        note=f"{statistics.median(beside) * 1e3:.2f} ms, alone {statistics.median(alone) * 1e3:.2f} ms",
    )


class Bench:
    """One store and one sink.

    :param seconds: how long the writers of a round commit.
    """

    def __init__(self, url: str, server: RedisServer, seconds: float) -> None:
        self.url, self.server, self.seconds = url, server, seconds

    def round(self, *, followed: bool) -> tuple[list[float], list[float]]:
        """Commit at the rate; returns the seconds of each commit, and of each entry until it was in the sink."""
        number = next(_runs)
        with self.follower() if followed else contextlib.nullcontext() as applied:
            pipes = []
            for writer in range(WRITERS):
                receiver, sender = fork.Pipe(duplex=False)
                fork.Process(target=self.write, args=(f"{number}-{writer}", sender), daemon=True).start()
                pipes.append(receiver)
            written: list[list[tuple[str, float, float]]] = [answer(pipe, self.seconds) for pipe in pipes]
        commits = [commit for part in written for commit in part]
        if applied is None:
            with Store.open(self.url) as store, contextlib.closing(self.sink()) as sink:
                drain(store, "orders", sink, sink_name="bench")
            return [end - begun for _, begun, end in commits], []
        assert len(applied) >= len(commits), "the follower has not brought everything"
        skipped = len(commits) // 10  # the first ones meet processes that begin
        return (
            [end - begun for _, begun, end in commits],
            [applied[key] - end for key, _, end in sorted(commits, key=lambda one: one[1])[skipped:]],
        )

    def sink(self) -> RedisSink:
        return RedisSink(host=self.server.host, port=self.server.port, password=self.server.password)

    def write(self, name: str, sender: Connection) -> None:
        pause, taken = WRITERS / RATE, []
        with Store.open(self.url) as store:
            begun = time.monotonic()
            for i in range(int(self.seconds / pause)):
                time.sleep(max(0.0, begun + i * pause - time.monotonic()))
                key = f"{name}-{i}"
                start = time.monotonic()
                with store.transaction() as tx:
                    tx.queue("orders").add(key, {"status": "paid", "total": i, "note": "x" * 60})
                taken.append((key, start, time.monotonic()))
        sender.send(taken)

    @contextmanager
    def follower(self) -> Iterator[dict[str, float]]:
        """Follow in a process of its own; the times by key are there behind the block."""
        applied: dict[str, float] = {}
        receiver, sender = fork.Pipe(duplex=False)
        stop = fork.Event()
        process = fork.Process(target=self.follow, args=(stop, sender), daemon=True)
        process.start()
        answer(receiver, 0)
        yield applied
        stop.set()
        applied |= answer(receiver, 0)
        process.join(PATIENCE)

    def follow(self, stop: Event, sender: Connection) -> None:
        applied: dict[str, float] = {}
        with contextlib.closing(self.sink()) as sink, Store.open(self.url) as store:

            def is_done() -> bool:
                return stop.is_set() and not store.backlog("orders")

            sender.send(None)
            follow(store, "orders", Recording(sink, applied), sink_name="bench", stop=is_done)
        sender.send(applied)


class Recording:
    """Notes when each record was in the sink."""

    def __init__(self, sink: RedisSink, applied: dict[str, float]) -> None:
        self._sink, self._applied = sink, applied
        self.capabilities = sink.capabilities
        self.admit, self.sweep, self.close = sink.admit, sink.sweep, sink.close

    def apply(self, operations: Operations) -> ApplyResult:
        result = self._sink.apply(operations)
        now = time.monotonic()
        self._applied |= dict.fromkeys(map(str_of, operations.ids), now)
        return result


def str_of(key: str | bytes) -> str:
    return key if isinstance(key, str) else orjson.loads(key) if key[:1] == b'"' else key.decode()


def answer(receiver: Connection, seconds: float) -> object:
    if not receiver.poll(seconds + PATIENCE):
        raise RuntimeError("a process of the benchmark has not answered")
    return receiver.recv()
