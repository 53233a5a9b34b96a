"""What ``benchmarks.segment_reads`` measures, inside of Spark's environment: run it with ROWS and REPEATS.

The tasks are plain ones, as those of a drain are, one a core; their parts are whole units.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.measuring import Watch, alternate
from benchmarks.processor import of_descendants
from export_queue import Range, Store
from export_queue.core.drain import DrainRequest
from export_queue.core.segments import UnitReader, by_range, waiting_segments
from export_queue.core.transactions import take_snapshot

FILES = 4
VALUE = b"x" * 100


def main() -> None:
    rows, repeats = map(int, sys.argv[1:])
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    spark = SparkSession.builder.master("local[*]").config("spark.driver.memory", "1g").config(map=quiet).getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/store.db"
        files = _load(url, rows)
        context = spark.sparkContext

        def merged(watch: Watch) -> None:
            with Store.open(url) as store:
                units = store.queue("orders").units()
            with watch.running():
                found = context.parallelize(units, context.defaultParallelism).mapPartitions(reading(url)).sum()
            assert found == rows

        def plain(watch: Watch) -> None:
            with watch.running():
                frame = spark.read.parquet(*files).select("bucket", "key", "seq", "value")
                frame.write.format("noop").mode("overwrite").save()

        taken = alternate({"merged": merged, "spark": plain}, repeats=repeats, server=of_descendants)
    spark.stop()
    print(f"TAKEN {json.dumps(taken.to_json())}")


def _load(url: str, rows: int) -> list[str]:
    """Add entries to a queue in one transaction; returns the files in which they wait."""
    with Store.open(url) as store:
        store.create()
        store.configure_queue("orders", key="bytes", value="bytes")
        with store.transaction(long=True) as tx:
            for number in range(FILES):
                keys = [b"customer-%013d" % n for n in range(number, rows, FILES)]
                table = {"key": pa.array(keys, pa.binary()), "value": pa.array([VALUE] * len(keys), pa.binary())}
                tx.queue("orders").add_batch(pa.table(table))
        queue, snapshot = store.queue("orders"), take_snapshot(store.database)
        with store.database.read() as work:
            return sorted({one.file for one in waiting_segments(work, queue, snapshot, Range(0, queue.buckets))})


def reading(url: str):
    """Make the function of the Spark job, which counts the entries that it has read."""

    def task(units: Iterable[Range]) -> Iterator[int]:
        with Store.open(url) as store:
            queue, snapshot = store.queue("orders"), take_snapshot(store.database)
            size = DrainRequest(queue_id="orders", sink_name="bench")
            for unit in units:
                with store.database.read() as work:
                    found = by_range(waiting_segments(work, queue, snapshot, unit), unit)
                reader = UnitReader(queue, snapshot, unit, found, rows=size.chunk_rows, size=size.chunk_bytes)
                read, is_last = 0, False
                while not is_last:
                    with store.database.read() as work:
                        chunk = reader.read(work)
                    read, is_last = read + len(chunk.entries), chunk.entries.is_last or not chunk.entries
                reader.close()
                yield read

    return task


if __name__ == "__main__":
    main()
