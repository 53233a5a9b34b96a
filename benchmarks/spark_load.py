"""What ``benchmarks.load`` measures, inside of Spark's environment: ``python -m benchmarks.spark_load ROWS REPEATS``.

The input is a Parquet file, so that each contestant reads, spreads, sorts and writes the same rows.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.measuring import Watch, alternate
from benchmarks.processor import of_descendants
from export_queue import Store, bucket_column, write_transactional

BASELINE = "repartition + sortWithinPartitions + write.parquet"
LARGE = "2g"
"""Memory of Java: what a small machine has to give."""


def main() -> None:
    rows, repeats = map(int, sys.argv[1:])
    builder = SparkSession.builder.master("local[*]").config("spark.driver.memory", LARGE)
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    spark = builder.config(map=quiet).getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        _write_input(spark, Path(folder) / "input", rows)
        _write_input(spark, Path(folder) / "tenth", rows // 10)
        bench = Bench(spark, Path(folder))
        contestants = {
            "load": bench.load,
            BASELINE: bench.plain,
            "load of JSON": bench.load_json,
            "load of a tenth": bench.load_tenth,
        }
        taken = alternate(contestants, repeats=repeats, server=of_descendants)
    spark.stop()
    print(f"TAKEN {json.dumps(taken.to_json())}")


def _write_input(spark: SparkSession, path: Path, rows: int) -> None:
    """Write keys of 22 bytes and values of 100, in no order, once as text and once as a structure."""
    columns = (
        "concat('customer-', lpad(id, 13, '0')) as key",
        "concat(sha2(cast(id as string), 256), lpad(id, 36, '0')) as value",
        "named_struct('id', id, 'name', sha2(cast(id as string), 256), 'total', id / 7D) as document",
    )
    spark.range(rows).selectExpr(*columns).orderBy("value").write.parquet(str(path))


class Bench:
    """The contestants; each reads the input and leaves nothing behind."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder

    def frame(self, value: str, name: str = "input") -> DataFrame:
        """The input, with one of its values."""
        return self.spark.read.parquet(str(self.folder / name)).selectExpr("key", f"{value} as value")

    def load(self, watch: Watch) -> None:
        """Add the rows to a queue of texts."""
        self._load(watch, self.frame("value"), value="str")

    def load_tenth(self, watch: Watch) -> None:
        """Add a tenth as many rows."""
        self._load(watch, self.frame("value", "tenth"), value="str")

    def load_json(self, watch: Watch) -> None:
        """Add structures to a queue of JSON."""
        self._load(watch, self.frame("document"), value="json")

    def _load(self, watch: Watch, frame: DataFrame, **options: Any) -> None:
        place = self.folder / "store"
        place.mkdir()
        with Store.open(f"sqlite:///{place}/store.db") as store:
            store.create()
            store.configure_queue("orders", **options)
            with watch.running():
                write_transactional(frame, store, "orders")
        shutil.rmtree(place)

    def plain(self, watch: Watch) -> None:
        """Write the same rows in the same order with what Spark has of its own."""
        place = self.folder / "plain"
        frame = self.frame("value").select(bucket_column("key", 1009).alias("bucket"), "key", "value")
        with watch.running():
            tasks = self.spark.sparkContext.defaultParallelism
            ordered = frame.repartition(tasks, "key").sortWithinPartitions("bucket", "key")
            ordered.write.option("compression", "zstd").parquet(str(place))
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
