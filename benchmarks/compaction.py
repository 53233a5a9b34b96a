"""Thousands of small loads: a drain of them before and after a compaction, and the compaction against Spark's own way.

Every load is a transaction with a hundred entries and a file of its own. The same entries in one load are what a drain
is compared with at best. Spark reads the small files, spreads the entries by their buckets, sorts them and writes
Parquet, on all cores; the compaction does so in one process, and by the tasks of a Spark that has started. The store is
SQLite, the sink is in memory.

``EXPORT_QUEUE_BENCH_ENTRIES`` is the number of entries; a million by default, which are ten thousand loads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from benchmarks.load import measure_in_spark
from benchmarks.measuring import Figure, median_ratio, rate, speed

BASELINE = "Spark's read, repartition + sortWithinPartitions, write.parquet of the same files"
ONE_LOAD = "a drain of the same entries in one load"
FASTER, ALIKE, BESIDE_SPARK = 10.0, 0.9, 0.6
LOAD_ENTRIES = 100
"""Entries of one load."""
MORE = 3
"""So many times as often two drains are compared that take about equally long."""


def run(quick: bool) -> Iterator[Figure]:
    """Measure in Spark's environment, which is not this one."""
    rows, repeats = (2_000, 1) if quick else (int(os.environ.get("EXPORT_QUEUE_BENCH_ENTRIES", "1000000")), 3)
    loads = f"{rows // LOAD_ENTRIES:,} loads of {LOAD_ENTRIES} entries"
    taken = measure_in_spark("spark_compaction", rows, repeats)
    yield Figure(
        bench="compaction",
        case=f"drain of {loads} after a compaction",
        ratio=speed(taken, "after", "before"),
        better="higher",
        goal=FASTER,
        baseline="a drain of the same loads without it",
        repeats=repeats,
        note=f"{rate(taken, 'after', rows, 'entries')}; {rate(taken, 'before', rows, 'entries')} without",
    )
    yield Figure(
        bench="compaction",
        case=f"drain of {loads} after a compaction, beside one load",
        ratio=speed(taken, "merged", "one load"),
        better="higher",
        goal=ALIKE,
        baseline=ONE_LOAD,
        repeats=repeats * MORE,
        note=rate(taken, "one load", rows, "entries"),
    )
    for name, where in (("compaction", ""), ("tasks", " by tasks of Spark")):
        for what, ratio in (
            ("", speed(taken, name, "spark")),
            (", processor time", median_ratio(taken.processor["spark"], taken.processor[name])),
        ):
            yield Figure(
                bench="compaction",
                case=f"compaction{where} of {loads}{what}",
                ratio=ratio,
                better="higher",
                goal=None if what else BESIDE_SPARK,
                baseline=BASELINE,
                repeats=repeats,
                note="" if what else rate(taken, name, rows, "entries"),
            )
