"""Drains on Spark: what uneven work, many units and one core more make of them, and what a submission costs.

Each drain is one ``spark-submit`` with PostgreSQL and Redis. Its start, which a drain of few entries shows, is taken
off where the work itself is compared.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import sqlalchemy as sa
from tests.support.servers import PostgresServer, RedisServer

from benchmarks.measuring import Figure, Taken, Watch, alternate, median_ratio
from benchmarks.processor import SessionWatch, of_server
from export_queue import SinkSpec, Store, StoreSpec, bucket, drain_job

HOME = Path(os.environ.get("EXPORT_QUEUE_SPARK_HOME", Path(__file__).parents[1] / ".venv-spark"))
DOCUMENT = b"x" * 100
FEW = 100
START_GOAL = 0.45
MANY = 100_000
"""Entries that take longer to drain than starts differ."""
BUCKETS = 960
HOT = 7
"""The bucket that holds nine tenths of what is uneven."""
PLAIN = """\
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
spark.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id long").collect()
spark.stop()
"""
CONTEXT = """\
from pyspark import SparkContext
context = SparkContext.getOrCreate()
context.parallelize(range(2), 2).map(lambda number: number).collect()
context.stop()
"""


def run(quick: bool) -> list[Figure]:
    records, repeats = (1_000, 1) if quick else (400_000, 3)
    with PostgresServer() as postgres, RedisServer() as redis, tempfile.TemporaryDirectory() as folder:
        url = postgres.url(postgres.create_database())
        with Store.open(url) as store:
            store.create()
            bench = Bench(store, url, redis, Path(folder), records)
            return [*bench.work(repeats, postgres), *bench.start(repeats)]


class Bench:
    """One store and one Redis; queues of several shapes, each filled before it is drained."""

    def __init__(self, store: Store, url: str, redis: RedisServer, folder: Path, records: int) -> None:
        self.store, self.folder, self.records = store, folder, records
        self.peaks: defaultdict[str, list[int]] = defaultdict(list)
        """Bytes of memory that a task had at most, by queue."""
        parsed = sa.make_url(url)
        self.secrets = {"BENCH_STORE": parsed.password or "", "BENCH_REDIS": redis.password}
        address = parsed._replace(password=None).render_as_string()
        self.address = StoreSpec(url=address, secret="env:BENCH_STORE")
        self.sink = SinkSpec(
            "redis",
            {"host": redis.host, "port": redis.port, "key": "r:$id"},
            {"password": "env:BENCH_REDIS"},
            name="bench",
        )
        for queue_id, units in {"even": 10, "uneven": 10, "few": 10, "many": 64}.items():
            store.configure_queue(queue_id, buckets=BUCKETS, buckets_per_range=BUCKETS // units, value="bytes")
        hot = (key for key in self.keys() if bucket(key.encode(), BUCKETS) == HOT)
        nine_tenths = records * 9 // 10
        self.uneven = [*islice(hot, nine_tenths), *islice(self.keys(), records - nine_tenths)]

    @staticmethod
    def keys() -> Iterator[str]:
        return (f"customer-{number:012d}" for number in range(1 << 40))

    def work(self, repeats: int, postgres: PostgresServer) -> Iterator[Figure]:
        """Compare drains with each other."""
        clock = of_server(postgres.pid)
        contestants = {
            "even": self.drain("even", self.records),
            "many": self.drain("many", self.records),
            "few": self.drain("few", FEW),
        }
        if self.records >= MANY:  # of a small drain the start is all that can be measured
            contestants |= {
                "uneven": self.drain("uneven", self.records),
                "one core": self.drain("even", self.records, master="local[1]"),
                "few, one core": self.drain("few", FEW, master="local[1]"),
            }
        taken = alternate(contestants, repeats=repeats, warm_up=False, server=clock)
        yield Figure(
            bench="spark",
            case="64 units, processor time",
            ratio=median_ratio(taken.processor["many"], taken.processor["even"]),
            better="lower",
            goal=1.3,
            baseline="10 units with as many entries; both with their start",
            repeats=repeats,
        )
        yield Figure(
            bench="spark",
            case=f"peak memory of a task, {self.records:,} entries",
            ratio=statistics.median(self.peaks["even"]) / statistics.median(self.peaks["few"]),
            better="lower",
            goal=1.3,
            baseline=f"a task of a drain of {FEW} entries",
            repeats=repeats,
            note=f"{statistics.median(self.peaks['even']) / 2**20:,.0f} MiB",
        )
        alone = {name: beyond(taken, name, "few, one core" if name == "one core" else "few") for name in contestants}
        if self.records < MANY or min(min(alone[name]) for name in ("even", "uneven", "one core")) <= 0:
            return
        rate = self.records / (sum(alone["even"]) / repeats) / 1000
        yield Figure(
            bench="spark",
            case="nine tenths of the entries in one bucket",
            ratio=median_ratio(alone["uneven"], alone["even"]),
            better="lower",
            goal=1.3,
            baseline="as many entries, evenly spread; without the start",
            repeats=repeats,
            note=f"even: {rate:,.0f} k entries/s",
        )
        yield Figure(
            bench="spark",
            case="two cores",
            ratio=median_ratio(alone["one core"], alone["even"]),
            better="higher",
            goal=1.6,
            baseline="one core, on which store and sink have the other one; without the start",
            repeats=repeats,
        )

    def start(self, repeats: int) -> Iterator[Figure]:
        """Compare the processor time of a submission."""
        programs = {
            "spark-submit of a program with one task of Arrow batches a core, with Spark's defaults": (
                PLAIN,
                START_GOAL,
            ),
            "spark-submit of a program with one plain task a core and no SQL session, with Spark's defaults": (
                CONTEXT,
                None,
            ),
        }

        def plain(number: int, text: str) -> Callable[[Watch], None]:
            program = self.folder / f"plain{number}.py"
            program.write_text(text)
            return lambda watch: self.submit(watch, "local[2]", [str(program)])

        others = {name: plain(number, text) for number, (name, (text, _)) in enumerate(programs.items())}
        taken = alternate({"drain": self.drain("few", FEW), **others}, repeats=repeats, warm_up=False)
        for name, (_, goal) in programs.items():
            yield Figure(
                bench="spark",
                case="a submission that drains few entries, processor time",
                ratio=median_ratio(taken.processor["drain"], taken.processor[name]),
                better="lower",
                goal=goal,
                baseline=name,
                repeats=repeats,
            )

    def drain(self, queue_id: str, entries: int, master: str = "local[2]") -> Callable[[Watch], None]:
        """Give a contestant that fills a queue and has Spark drain it."""

        def measured(watch: Watch) -> None:
            keys = self.uneven if queue_id == "uneven" else list(islice(self.keys(), entries))
            for start in range(0, entries, 20_000):
                with self.store.transaction() as tx:
                    tx.queue(queue_id).add_many((key, DOCUMENT) for key in keys[start : start + 20_000])
            self.store.database.wait_until_tidy()
            job = drain_job(queue_id=queue_id, sink=self.sink, store=self.address)
            conf = [f"--conf={name}={value}" for name, value in job.conf.items()]
            assert job.py_files is not None
            peak = self.submit(watch, master, ["--py-files", job.py_files, *conf, job.application, *job.arguments])
            self.peaks[queue_id].append(peak)
            (report,) = self.store.reports(drain_id=job.drain_id)
            assert report["acknowledged"] == entries

        return measured

    def submit(self, watch: Watch, master: str, arguments: list[str]) -> int:
        """Run a submission, all of whose processes count; returns the peak memory of a Python worker."""
        python = str(HOME / "bin" / "python")
        kept = {name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "PYTHONPATH")}
        environment = kept | {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
        command = [str(HOME / "bin" / "spark-submit"), "--master", master, *arguments]
        with tempfile.TemporaryFile() as output, watch.running():
            process = subprocess.Popen(
                command, env=environment | self.secrets, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
            with SessionWatch(process.pid) as session:
                status = process.wait()
            output.seek(0)
            assert status == 0, output.read().decode()
        watch.client += session.seconds
        return session.peak_of("daemon")


def beyond(taken: Taken, name: str, start: str) -> list[float]:
    """Take the time of a drain of few entries off."""
    return [seconds - fixed for seconds, fixed in zip(taken[name], taken[start], strict=True)]
