"""What ``benchmarks.compaction`` measures, inside of Spark's environment: run it with ROWS and REPEATS.

Each contestant works on a copy of the store's file; the files of bulk entries are never changed, and all share them.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.compaction import LOAD_ENTRIES, MORE
from benchmarks.measuring import Watch, alternate
from benchmarks.processor import of_descendants
from export_queue import Candidates, MemorySink, Range, Store, StoreSpec, drain
from export_queue.core.segments import Merger, compact, waiting_segments
from export_queue.core.spark import merge_by_tasks
from export_queue.core.transactions import take_snapshot

VALUE = b"x" * 100


def main() -> None:
    rows, repeats = map(int, sys.argv[1:])
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    spark = SparkSession.builder.master("local[*]").config("spark.driver.memory", "1g").config(map=quiet).getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), rows)

        def plain(watch: Watch) -> None:
            with watch.running():
                frame = spark.read.parquet(*bench.files).repartition("bucket")
                frame.sortWithinPartitions("bucket", "key", "seq").write.mode("overwrite").parquet(f"{folder}/sorted")

        def by_tasks(watch: Watch) -> None:
            bench.compact(watch, merge_by_tasks(spark.sparkContext, bench.spec("run")))

        contestants = {"compaction": bench.compact, "tasks": by_tasks, "spark": plain}
        taken = alternate(contestants, repeats=repeats, server=of_descendants)
        long = alternate({name: bench.draining(name) for name in ("before", "after")}, repeats=repeats, warm_up=False)
        alike = {"merged": bench.draining("after"), "one load": bench.draining("one load")}
        short = alternate(alike, repeats=repeats * MORE)
    spark.stop()
    for measured in (long, short):
        for name, watches in measured.watches.items():
            taken.add(name, watches)
    print(f"TAKEN {json.dumps(taken.to_json())}")


class Bench:
    """Stores with the same entries: of many loads, of these when they are merged, and of one load.

    :param folder: where all files are.
    :param rows: the number of entries.
    """

    def __init__(self, folder: Path, rows: int) -> None:
        self._folder, self._rows = folder, rows
        numbers = list(range(rows))
        random.Random(0).shuffle(numbers)
        self.files = self._fill("before", [numbers[at : at + LOAD_ENTRIES] for at in range(0, rows, LOAD_ENTRIES)])
        self._fill("one load", [numbers])
        self._copy("before", "after")
        with self._open("after") as store:
            report = store.compact("orders", wanted=Candidates(least=2))
            assert report.read == report.written == rows, report.line()

    def compact(self, watch: Watch, merger: Merger | None = None) -> None:
        self._copy("before", "run")
        with self._open("run") as store, watch.running():
            report = compact(store.database, "orders", wanted=Candidates(least=2), merger=merger)
        assert report.written == self._rows

    def draining(self, name: str):
        """Make the contestant that drains one of the stores."""

        def contestant(watch: Watch) -> None:
            self._copy(name, "run")
            with self._open("run") as store, watch.running():
                report = drain(store, "orders", MemorySink(), sink_name="memory")
            assert report.acknowledged == self._rows

        return contestant

    def _fill(self, name: str, loads: list[list[int]]) -> list[str]:
        """Add entries to a queue, load by load; returns the files in which they wait."""
        with self._open(name) as store:
            store.create()
            store.configure_queue("orders", key="bytes", value="bytes")
            for numbers in loads:
                keys = [b"customer-%013d" % number for number in numbers]
                table = {"key": pa.array(keys, pa.binary()), "value": pa.array([VALUE] * len(keys), pa.binary())}
                with store.transaction(long=True) as tx:
                    tx.queue("orders").add_batch(pa.table(table))
            queue, snapshot = store.queue("orders"), take_snapshot(store.database)
            with store.database.read() as work:
                return sorted({one.file for one in waiting_segments(work, queue, snapshot, Range(0, queue.buckets))})

    def spec(self, name: str) -> StoreSpec:
        """Describe one of the stores."""
        return StoreSpec(url=f"sqlite:///{self._folder}/{name}.db", segments=f"{self._folder}/{name}.segments")

    def _open(self, name: str) -> Store:
        return Store.open(self.spec(name))

    def _copy(self, name: str, to: str) -> None:
        for old in self._folder.glob(f"{to}.db*"):
            old.unlink()
        shutil.rmtree(self._folder / f"{to}.segments", ignore_errors=True)
        with self._open(name) as store:
            store.backup(self._folder / f"{to}.db")


if __name__ == "__main__":
    main()
