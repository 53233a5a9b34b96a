"""Tasks of a drain that read segments in order, against Spark's own read of the same files in no order.

Four files hold the entries of each unit. Tasks merge them, as a drain does, and drop what they have read; Spark's own
reader drops it too (``noop``). The start of the session counts for neither.

``EXPORT_QUEUE_BENCH_ENTRIES`` is the number of entries; a million by default.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from benchmarks.load import measure_in_spark
from benchmarks.measuring import Figure, median_ratio, rate

BASELINE = "Spark's own read of the same files, unordered"
GOAL = 1.3


def run(quick: bool) -> Iterator[Figure]:
    """Measure in Spark's environment, which is not this one."""
    rows, repeats = (20_000, 1) if quick else (int(os.environ.get("EXPORT_QUEUE_BENCH_ENTRIES", "1000000")), 5)
    taken = measure_in_spark("spark_segment_reads", rows, repeats)
    for what, seconds in (("", taken), (", processor time", taken.processor)):
        yield Figure(
            bench="segment_reads",
            case=f"{rows:,} entries of segments, merged in order{what}",
            ratio=median_ratio(seconds["merged"], seconds["spark"]),
            better="lower",
            goal=None if what else GOAL,
            baseline=BASELINE,
            repeats=repeats,
            note="" if what else rate(taken, "merged", rows, "entries"),
        )
