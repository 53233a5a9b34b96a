"""The native bucket column gives the same numbers as Python (I8)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.support.golden import GOLDEN_HASHES

from export_queue import bucket
from export_queue.core.spark.archive import package_archive
from export_queue.core.spark.job import QUICK_CONF as CONF

COUNTS = (1, 2, 7, 1009, 1_000_000)
PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from export_queue.core.spark import bucket_column
keys, counts = json.loads(sys.argv[1])
spark = SparkSession.builder.getOrCreate()
rows = [(bytes.fromhex(key),) for key in keys]
frame = spark.createDataFrame(rows, "key binary").coalesce(1)
columns = [bucket_column("key", n).alias(f"b{n}") for n in counts]
binary = [list(row) for row in frame.select(*columns).collect()]
texts = [row for row in rows if row[0].decode(errors="ignore").encode() == row[0]]
frame = spark.createDataFrame([(row[0].decode(),) for row in texts], "key string").coalesce(1)
text = [list(row) for row in frame.select(*columns).collect()]
types = {name: kind for name, kind in frame.select(*columns).dtypes}
print("RESULT " + json.dumps([binary, text, types]))
"""


def test_the_bucket_column_equals_python_for_bytes_and_text(
    spark_home: Path, spark_environment: dict[str, str], tmp_path: Path
) -> None:
    keys = [key for key, _ in GOLDEN_HASHES]
    program = tmp_path / "buckets.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [
            *(spark_home / "bin" / "spark-submit", "--master", "local[1]"),
            *("--py-files", package_archive()),
            *(word for item in CONF.items() for word in ("--conf", "=".join(item))),
            *(program, json.dumps([[key.hex() for key in keys], COUNTS])),
        ],
        env=spark_environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    binary, text, types = json.loads(line.removeprefix("RESULT "))
    assert binary == [[bucket(key, n) for n in COUNTS] for key in keys]
    texts = [key for key in keys if key.decode(errors="ignore").encode() == key]
    assert text == [[bucket(key, n) for n in COUNTS] for key in texts]
    assert set(types.values()) == {"int"}
