"""A bulk load of a DataFrame against Spark's own sorted write of the same rows.

Both read the same Parquet file, spread the rows by their keys, sort them and write Parquet. The load's files are
on the disk when it commits; Spark's are not flushed. The start of the session counts for neither.

``EXPORT_QUEUE_BENCH_ENTRIES`` is the largest number of rows; a million by default. Whether an entry costs the same in a
load that is ten times as large is told by a load of a tenth of the rows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measuring import Figure, Taken, median_ratio, rate, speed

ROOT = Path(__file__).parents[1]
BASELINE = "repartition + sortWithinPartitions + write.parquet"
GOAL = 0.9
FLAT = 1.1


def run(quick: bool) -> Iterator[Figure]:
    """Measure in Spark's environment, which is not this one."""
    rows, repeats = (20_000, 1) if quick else (int(os.environ.get("EXPORT_QUEUE_BENCH_ENTRIES", "1000000")), 5)
    taken = measure_in_spark("spark_load", rows, repeats)
    for case in ("load", "load of JSON"):
        of = "122 bytes" if case == "load" else "three fields"
        for what, ratio in (
            ("", speed(taken, case, BASELINE)),
            (", processor time", median_ratio(taken.processor[BASELINE], taken.processor[case])),
        ):
            yield Figure(
                bench="load",
                case=f"{case}, {rows:,} rows of {of}{what}",
                ratio=ratio,
                better="higher",
                baseline=BASELINE,
                repeats=repeats,
                goal=GOAL if case == "load" and not what else None,
                note="" if what else rate(taken, case, rows, "entries"),
            )
    for what, seconds in (("", taken), (", processor time", taken.processor)):
        yield Figure(
            bench="load",
            case=f"an entry of {rows:,}{what}",
            ratio=median_ratio(seconds["load"], seconds["load of a tenth"]) * (rows // 10) / rows,
            better="lower",
            baseline=f"an entry of {rows // 10:,}, in a load of its own",
            repeats=repeats,
            goal=None if what else FLAT,
        )


def measure_in_spark(module: str, rows: int, repeats: int) -> Taken:
    """Run a module of the benchmarks by Spark's Python, and take what it has printed."""
    home = Path(os.environ.get("EXPORT_QUEUE_SPARK_HOME", ROOT / ".venv-spark"))
    python = str(home / "bin" / "python")
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    variables = {"PYTHONPATH": path, "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [python, "-m", f"benchmarks.{module}", str(rows), str(repeats)],
        env=os.environ | variables,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("TAKEN ")]
    if done.returncode or not lines:
        sys.exit(f"the benchmark failed in {python}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return Taken.from_json(json.loads(lines[0].removeprefix("TAKEN ")))
