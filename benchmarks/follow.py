"""A follower behind steady commits: how soon an entry is in the sink, and what the commits beside it cost.

Writers commit at a fixed rate, one entry each. Latency is the time from the end of the commit, in the writer, to the
end of the sink's batch, in the process that brings it. It is a goal by itself: a ratio to the goal is shown. The start
of Spark's application does not count.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path

import sqlalchemy as sa
from tests.support.servers import PostgresServer, RedisServer

from benchmarks.clients import PATIENCE, fork
from benchmarks.measuring import Figure, median_ratio
from benchmarks.recording import RecordingSink, recorded
from benchmarks.spark import HOME
from export_queue import SinkSpec, Store, StoreSpec, drain, drain_job, follow

WRITERS = 2
RATE = 500
"""Transactions a second, of all writers."""
GOALS = {"p50": 0.060, "p99": 0.250}
SPARK_GOALS = {"p50": 1.0, "p99": None}
COMMIT_GOAL = 1.05
BASELINE = "the same commits, nobody follows"

_runs = itertools.count()

Follower = Callable[[], AbstractContextManager[None]]


def run(quick: bool) -> Iterator[Figure]:
    repeats, seconds = (1, 2.0) if quick else (5, 8.0)
    with PostgresServer() as postgres, RedisServer() as server, tempfile.TemporaryDirectory() as folder:
        url = postgres.url(postgres.create_database())
        with Store.open(url) as store:
            store.create()
            store.configure_queue("orders")
        bench = Bench(url, server, Path(folder), seconds)
        alone, beside = list[float](), list[float]()
        latencies = list[float]()
        for turn in range(repeats):
            for follower in (None, bench.one_process) if turn % 2 else (bench.one_process, None):
                taken, found = bench.round(follower)
                (beside if follower else alone).append(statistics.median(taken))
                latencies += found
        yield from latency_figures("in one process", latencies, GOALS, repeats)
        yield Figure(
            bench="follow",
            case=f"{RATE} transactions a second: a commit beside one process",
            ratio=median_ratio(beside, alone),
            better="lower",
            baseline=BASELINE,
            repeats=repeats,
            goal=COMMIT_GOAL,
            note=f"{statistics.median(beside) * 1e3:.2f} ms, alone {statistics.median(alone) * 1e3:.2f} ms",
        )
        _, latencies = bench.round(bench.application)
        yield from latency_figures("on Spark", latencies, SPARK_GOALS, repeats=1)


def latency_figures(
    where: str, latencies: list[float], goals: dict[str, float] | dict[str, float | None], repeats: int
) -> Iterator[Figure]:
    latencies.sort()
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        found, goal = latencies[int(share * (len(latencies) - 1))], goals[name]
        yield Figure(
            bench="follow",
            case=f"{RATE} transactions a second: {name} from commit to sink, {where}",
            ratio=found / (goal or 1.0),
            better="lower",
            baseline=f"{(goal or 1.0) * 1e3:.0f} ms",
            repeats=repeats,
            goal=None if goal is None else 1.0,
            note=f"{found * 1e3:.0f} ms; {len(latencies)} entries",
        )


class Bench:
    """One store and one sink.

    :param folder: where sinks note when each record was there, and what the application says.
    :param seconds: how long the writers of a round commit.
    """

    def __init__(self, url: str, server: RedisServer, folder: Path, seconds: float) -> None:
        self.url, self.server, self.seconds = url, server, seconds
        self.folder, self.log = folder / "times", folder / "log"
        self.folder.mkdir()

    def round(self, follower: Follower | None) -> tuple[list[float], list[float]]:
        """Commit at the rate; returns the seconds of each commit, and of each entry until it was in the sink."""
        number = next(_runs)
        with follower() if follower else contextlib.nullcontext():
            pipes = []
            for writer in range(WRITERS):
                receiver, sender = fork.Pipe(duplex=False)
                fork.Process(target=self.write, args=(f"{number}-{writer}", sender), daemon=True).start()
                pipes.append(receiver)
            written: list[list[tuple[str, float, float]]] = [answer(pipe, self.seconds) for pipe in pipes]
        commits = sorted((commit for part in written for commit in part), key=lambda one: one[1])
        taken = [end - begun for _, begun, end in commits]
        if follower is None:
            with Store.open(self.url) as store, contextlib.closing(self.sink()) as sink:
                drain(store, "orders", sink, sink_name="bench")
            return taken, []
        applied = recorded(self.folder)
        skipped = len(commits) // 10  # the first ones meet processes that begin
        return taken, [applied[key] - end for key, _, end in commits[skipped:]]

    def sink(self) -> RecordingSink:
        return RecordingSink(str(self.folder), self.server.host, self.server.port, self.server.password)

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
    def one_process(self) -> Iterator[None]:
        """Follow in a process of its own, until all is brought that was committed in the block."""
        receiver, sender = fork.Pipe(duplex=False)
        stop = fork.Event()
        process = fork.Process(target=self.follow, args=(stop, sender), daemon=True)
        process.start()
        answer(receiver, 0)
        yield
        stop.set()
        answer(receiver, 0)
        process.join(PATIENCE)

    def follow(self, stop: Event, sender: Connection) -> None:
        with contextlib.closing(self.sink()) as sink, Store.open(self.url) as store:

            def is_done() -> bool:
                return stop.is_set() and not store.backlog("orders")

            sender.send(None)
            follow(store, "orders", sink, sink_name="bench", stop=is_done)
        sender.send(None)

    @contextmanager
    def application(self) -> Iterator[None]:
        """Follow on Spark, from the first entry that an application has brought, until all is brought."""
        parsed = sa.make_url(self.url)
        address = StoreSpec(url=parsed._replace(password=None).render_as_string(), secret="env:BENCH_STORE")
        options = {"folder": str(self.folder), "host": self.server.host, "port": self.server.port}
        secrets = {"BENCH_STORE": parsed.password or "", "BENCH_REDIS": self.server.password}
        sink = SinkSpec("benchmarks.recording:RecordingSink", options, {"password": "env:BENCH_REDIS"}, name="bench")
        job = drain_job(queue_id="orders", sink=sink, store=address, follow=True)
        assert job.py_files is not None
        words = ["--master", "local[2]", "--py-files", job.py_files]
        words += [f"--conf={name}={value}" for name, value in job.conf.items()]
        python = str(HOME / "bin" / "python")
        kept = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
        modules = {"PYTHONPATH": str(Path(__file__).parents[1]), "SPARK_LOCAL_IP": "127.0.0.1"}
        pythons = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
        command = [str(HOME / "bin" / "spark-submit"), *words, job.application, *job.arguments]
        with self.log.open("wb") as output, Store.open(self.url) as store:
            process = subprocess.Popen(
                command, env=kept | secrets | modules | pythons, stdout=output, stderr=output, start_new_session=True
            )
            try:
                with store.transaction() as tx:
                    tx.queue("orders").add("first", 0)
                self.await_empty(store, process)
                yield
                self.await_empty(store, process)
            finally:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(PATIENCE)

    def await_empty(self, store: Store, process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + PATIENCE
        while store.backlog("orders"):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the application does not follow:\n{self.log.read_text(errors='replace')}")
            time.sleep(0.1)


def answer(receiver: Connection, seconds: float) -> object:
    if not receiver.poll(seconds + PATIENCE):
        raise RuntimeError("a process of the benchmark has not answered")
    return receiver.recv()
