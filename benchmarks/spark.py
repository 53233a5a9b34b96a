"""Drains on Spark: what uneven work, many units and one core more make of them, and what a submission costs.

Each drain is one ``spark-submit`` with PostgreSQL and Redis. Its start, which a drain of few entries shows, is taken
off where the work itself is compared.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import sqlalchemy as sa
from tests.support.servers import PostgresServer, RedisServer

from benchmarks.measuring import Figure, Taken, Watch, alternate, median_ratio
from benchmarks.processor import SessionWatch, of_server
from export_queue import SinkSpec, Store, StoreSpec
from export_queue.core.queue import bucket
from export_queue.core.spark import drain_job

HOME = Path(os.environ.get("EXPORT_QUEUE_SPARK_HOME", Path(__file__).parents[1] / ".venv-spark"))
DOCUMENT = b"x" * 100
FEW = 100
MANY = 100_000
"""Entries that take longer to drain than starts differ."""
BUCKETS = 960
HOT = 7
"""The bucket that holds nine tenths of what is uneven."""
PLAIN = """\
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
        parsed = sa.make_url(url)
        self.secrets = {"BENCH_STORE": parsed.password or "", "BENCH_REDIS": redis.password}
        address = parsed._replace(password=None).render_as_string()
        self.address = StoreSpec(url=address, secret="env:BENCH_STORE")
        self.sink = SinkSpec(
            "redis",
            {"host": redis.host, "port": redis.port, "key": "r:{id}"},
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
            "uneven": self.drain("uneven", self.records),
            "many": self.drain("many", self.records),
            "one core": self.drain("even", self.records, master="local[1]"),
            "few": self.drain("few", FEW),
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
        alone = {name: beyond(taken, name, "few, one core" if name == "one core" else "few") for name in contestants}
        if self.records < MANY or min(min(alone[name]) for name in ("even", "uneven", "one core")) <= 0:
            return  # of a small drain the start is all that can be measured
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
        program = self.folder / "plain.py"
        program.write_text(PLAIN)

        def plain(watch: Watch) -> None:
            self.submit(watch, "local[2]", [str(program)])

        taken = alternate({"drain": self.drain("few", FEW), "plain": plain}, repeats=repeats, warm_up=False)
        yield Figure(
            bench="spark",
            case="a submission that drains few entries, processor time",
            ratio=median_ratio(taken.processor["drain"], taken.processor["plain"]),
            better="lower",
            goal=0.45,
            baseline="spark-submit of a program with one small job, with Spark's defaults",
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
            self.submit(watch, master, ["--py-files", job.py_files, *conf, job.application, *job.arguments])
            (report,) = self.store.reports(drain_id=job.drain_id)
            assert report["acknowledged"] == entries

        return measured

    def submit(self, watch: Watch, master: str, arguments: list[str]) -> None:
        """Run a submission; all of its processes count."""
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


def beyond(taken: Taken, name: str, start: str) -> list[float]:
    """Take the time of a drain of few entries off."""
    return [seconds - fixed for seconds, fixed in zip(taken[name], taken[start], strict=True)]
