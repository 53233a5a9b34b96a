"""What a bulk load has left in a store, read from the files that the store's rows name; and loads that die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

from export_queue import Range, Store
from export_queue.core.segments import Segment, waiting_segments
from export_queue.core.transactions import take_snapshot


def segments(store: Store, queue_id: str = "orders") -> list[Segment]:
    queue = store.queue(queue_id)
    snapshot = take_snapshot(store.database)
    with store.database.read() as work:
        return [
            segment
            for layout in queue.layouts()
            for segment in waiting_segments(
                work, queue.in_layout(layout.number), snapshot, Range(0, layout.buckets, layout.number)
            )
        ]


def visible(store: Store, queue_id: str = "orders") -> list[tuple[int, bytes, int, bytes | None]]:
    """Every entry that a drain would find in files: bucket, key, seq, value, in that order."""
    rows: list[tuple[int, bytes, int, bytes | None]] = []
    for one in segments(store, queue_id):
        file = pq.ParquetFile(one.file)
        table = file.read_row_groups(list(range(one.row_group_first, one.row_group_end)))
        found = list(zip(*(table[name].to_pylist() for name in ("bucket", "key", "seq", "value")), strict=True))
        assert found == sorted(found, key=lambda row: row[:3])
        assert len(found) == one.entries
        assert all(one.first <= row[0] < one.end for row in found)
        rows += found
    return sorted(rows, key=lambda row: row[:3])


def values(store: Store, queue_id: str = "orders") -> dict[bytes, bytes | None]:
    """The values by key; each key is there once."""
    rows = visible(store, queue_id)
    found = {key: value for _, key, _, value in rows}
    assert len(found) == len(rows)
    return found


def files(folder: Path) -> set[str]:
    """All files with entries, whether anything refers to them or not."""
    return {str(path) for path in folder.rglob("*.parquet")}


def die_at(program: str, *arguments: str, environment: dict[str, str], folder: Path) -> None:
    """Run a program with Spark, which kills itself."""
    path = folder / "driver.py"
    path.write_text(program)
    done = subprocess.run(
        [sys.executable, str(path), *arguments],
        env={**environment, "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
