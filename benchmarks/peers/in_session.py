"""The process of a Spark session that takes orders: ``python -m benchmarks.peers.in_session JARS``.

An order is a line of JSON on its standard input, and so is the answer on its standard output. Passwords come in its
environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.peers import connectors, loops
from benchmarks.peers.failing import dying_midway
from benchmarks.peers.session import ANSWER
from benchmarks.processor import of_programs_below

CORES = 2
ATTEMPTS = 4
"""Of a task, as on a cluster; a local Spark has one attempt otherwise."""
DELIVERIES: dict[str, Callable[..., None]] = {
    "spark-redis": connectors.spark_redis,
    "elasticsearch-spark": connectors.elasticsearch_spark,
    "jdbc": connectors.jdbc,
    "redis-py": loops.redis_py,
    "streaming_bulk": loops.streaming_bulk,
    "executemany": loops.executemany,
}
KEY = "concat('customer-', lpad(id, 9, '0'))"
VALUE = (
    "concat('{\"name\":\"customer ', lpad(id, 9, '0'), '\",\"version\":', %d, "
    "',\"note\":\"', substr(sha2(cast(id as string), 256), 1, 48), '\"}')"
)
"""A hundred bytes of JSON, of which half do not compress."""


def main() -> None:
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    builder = SparkSession.builder.master(f"local[{CORES},{ATTEMPTS}]").config("spark.driver.memory", "1g")
    builder = builder.config("spark.jars", sys.argv[1]).config("spark.sql.shuffle.partitions", str(CORES))
    for name, value in quiet.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    orders = Orders(spark)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = getattr(orders, order.pop("do"))(**order)
        except Exception as error:
            answer = {"error": cause_of(error)}
        print(f"{ANSWER}{json.dumps(answer)}", flush=True)
    spark.stop()


class Orders:
    """What a session does when it is asked; each method takes and gives JSON values."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def write(
        self,
        how: str,
        to: dict[str, Any],
        *,
        files: Sequence[str] = (),
        rows: int = 0,
        version: int = 1,
        deletes: bool = False,
        dies: bool = False,
    ) -> dict[str, Any]:
        """Write records in a peer's way.

        :param how: one of ``DELIVERIES``.
        :param to: options of the way: where the target is, and what is asked of it.
        :param files: Parquet files of a queue with the records; else they are made here.
        :param rows: how many are made.
        :param version: of all records.
        :param deletes: whether the records are to go: their values are null.
        :param dies: whether the process of each task is killed in the midst of the first attempt.
        """
        if files:
            frame = self.spark.read.parquet(*files)
            frame = frame.selectExpr("cast(key as string) as key", "cast(value as string) as value")
        else:
            frame = records(self.spark, rows, version, deletes=deletes)
            if dies:
                frame = frame.withColumn("value", dying_midway(rows // CORES * 3 // 4)("value"))
        return self.measured(lambda: DELIVERIES[how](frame, to, version=version, deletes=deletes))

    def load(self, **arguments: Any) -> dict[str, Any]:
        """Add records to a queue; see :func:`benchmarks.peers.ours.load`."""
        from benchmarks.peers import ours  # of another Spark this library knows nothing

        rows, version, deletes = (arguments.pop(name) for name in ("rows", "version", "deletes"))
        return ours.load(records(self.spark, rows, version, deletes=deletes), **arguments)

    def drain(self, **arguments: Any) -> dict[str, Any]:
        """Drain a queue; see :class:`benchmarks.peers.ours.Drain`."""
        from benchmarks.peers import ours

        drain = ours.Drain(self.spark, **arguments)
        return self.measured(drain.run) | drain.told()

    def sink(self, sink: dict[str, Any], files: list[str]) -> dict[str, Any]:
        """Call a sink for the batches of the files, without a drain."""
        from benchmarks.peers import ours

        frame = self.spark.read.parquet(*files).select("key", "value", "seq")
        delivery = ours.by_batches(sink)
        return self.measured(lambda: delivery(frame))

    def late(self, rows: int, version: int, **arguments: Any) -> dict[str, Any]:
        """Deliver records as a task of an older drain would; see :func:`benchmarks.peers.ours.late`."""
        from benchmarks.peers import ours

        return ours.late(records(self.spark, rows, version, deletes=False), **arguments)

    def measured(self, work: Callable[[], None]) -> dict[str, Any]:
        """Do some work, and tell its seconds and the processor time of all processes of the session."""
        started, used = time.perf_counter(), self.used()
        work()
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "used": {name: now - used[name] for name, now in self.used().items()}}

    @staticmethod
    def used() -> dict[str, float]:
        """Processor seconds so far, of driver, Java and Python workers."""
        java, workers = of_programs_below(os.getpid(), apart="java")
        return {"driver": time.process_time(), "Java": java, "workers": workers}


def records(spark: SparkSession, rows: int, version: int, *, deletes: bool) -> DataFrame:
    """Make records with keys of 18 bytes and values of a hundred."""
    value = "cast(null as string)" if deletes else VALUE % version
    return spark.range(0, rows, 1, CORES).selectExpr(f"{KEY} as key", f"{value} as value")


def cause_of(error: Exception) -> str:
    """Find the line of an error that tells its cause: the last of Java's, or the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    raised = [line for line in lines if not line.startswith("at ")] or [""]
    return f"{type(error).__name__}: {(causes[-1:] or raised[:1])[0]}"[:600]


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])
    main()
