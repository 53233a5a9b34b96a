"""A bulk load of a DataFrame against Spark's own sorted write of the same rows.

Both read the same Parquet file, spread the rows by their keys, sort them and write Parquet. The load's files are
on the disk when it commits; Spark's are not flushed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.measuring import Figure, Taken, rate, speed

ROOT = Path(__file__).parents[1]
BASELINE = "repartition + sortWithinPartitions + write.parquet"
GOAL = 0.9


def run(quick: bool) -> list[Figure]:
    """Measure in Spark's environment, which is not this one."""
    rows, repeats = (20_000, 1) if quick else (500_000, 5)
    taken = _measure(rows, repeats)
    return [
        Figure(
            bench="load",
            case=f"{case}, {rows:,} rows of 122 bytes" if case == "load" else f"{case}, {rows:,} rows of three fields",
            ratio=speed(taken, case, BASELINE),
            better="higher",
            baseline=BASELINE,
            repeats=repeats,
            goal=GOAL if case == "load" else None,
            note=rate(taken, case, rows, "entries"),
        )
        for case in ("load", "load of JSON")
    ]


def _measure(rows: int, repeats: int) -> Taken:
    home = Path(os.environ.get("EXPORT_QUEUE_SPARK_HOME", ROOT / ".venv-spark"))
    python = str(home / "bin" / "python")
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    variables = {"PYTHONPATH": path, "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [python, "-m", "benchmarks.spark_load", str(rows), str(repeats)],
        env=os.environ | variables,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("TAKEN ")]
    if done.returncode or not lines:
        sys.exit(f"the benchmark failed in {python}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    taken = Taken()
    taken.update(json.loads(lines[0].removeprefix("TAKEN ")))
    return taken
