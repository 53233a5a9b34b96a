"""A drain takes as much memory as its chunks do, however much waits in the queue."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from export_queue import Store

VALUE = "x" * 1000
SMALL = 2_000
MEGABYTE = 1 << 20

CHILD = """
import sys
from pathlib import Path

from export_queue.core.client import Store
from export_queue.core.drain import drain
from export_queue.core.sinks import SqlSink


def resident(field):
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field)]
    return int(line.split()[1]) << 10


with Store.open(f"sqlite:///{sys.argv[1]}") as store:
    sink = SqlSink(f"sqlite:///{sys.argv[2]}")
    drain(store, "warm", sink, sink_name="copies", chunk_rows=500)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    report = drain(store, "orders", sink, sink_name="copies", chunk_rows=500)
    print(report.acknowledged, resident("VmHWM") - before)
    sink.close()
"""


def growth(folder: Path, entries: int) -> int:
    """Drain a queue of some size in a process of its own; returns by how many bytes that process grew at most."""
    folder.mkdir()
    with Store.open(f"sqlite:///{folder}/store.db") as store:
        store.create()
        for queue, size in (("warm", 2_000), ("orders", entries)):
            store.configure_queue(queue, buckets=4, buckets_per_range=4)
            for start in range(0, size, 2_000):
                with store.transaction() as tx:
                    tx.queue(queue).add_many((f"{n:06d}", VALUE) for n in range(start, start + 2_000))
    command = [sys.executable, "-P", "-c", CHILD, f"{folder}/store.db", f"{folder}/sink.db"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    acknowledged, grown = map(int, done.stdout.split())
    assert acknowledged == entries
    return grown


@pytest.mark.full("two processes drain thousands of entries")
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux to tell the peak of a part")
def test_a_drain_of_eight_times_as_much_takes_no_more_memory(tmp_path):
    small, large = growth(tmp_path / "small", SMALL), growth(tmp_path / "large", 8 * SMALL)
    # kept in memory, what is drained would be 14 megabytes more
    assert large < small + 5 * MEGABYTE, f"{small / MEGABYTE:.1f} and {large / MEGABYTE:.1f} megabytes"
    print(f"{small / MEGABYTE:.1f} and {large / MEGABYTE:.1f} megabytes")
