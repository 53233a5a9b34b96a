"""Memory is bounded by bytes, also where each value is as large as a queue takes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from export_queue import ApplyResult, Candidates, DrainError, MemorySink, Operations, Store, drain
from export_queue.core.segments import merging, writing

MEBIBYTE = 1 << 20
BATCHES = 100 * MEBIBYTE
"""A few batches of a drain, at 16 MiB, and what allocators keep."""

CHILD = """
import os
import sys
from pathlib import Path

import pyarrow as pa

from export_queue.core.client import Store
from export_queue.core.drain import drain
from export_queue.core.errors import DrainError
from export_queue.core.segments import Candidates
from export_queue.core.sinks import MemorySink


class Forgetful(MemorySink):
    def apply(self, operations):
        result = super().apply(operations)
        self._contents.documents.clear()
        return result


def resident(field):
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field)]
    return int(line.split()[1]) << 10


def drained(queue, **options):
    return drain(store, queue, Forgetful(), sink_name="sink", **options).acknowledged


def compacted(queue, **options):
    return sum(unit.read for unit in store.compact(queue, wanted=Candidates(**options)).units)


def moved(queue):
    return store.compact(queue, wanted=Candidates(most_bytes=16 << 20), older_layouts=True).read


with Store.open(f"sqlite:///{sys.argv[1]}") as store:
    warm = f"warm-{os.getpid()}"
    store.configure_queue(warm, buckets=1, value="str")
    with store.transaction(long=True) as tx:
        tx.queue(warm).add_batch(pa.table({"key": ["a"], "value": ["x"]}))
    assert drained(warm) == 1
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    done = eval(sys.argv[2])
    print(done, resident("VmHWM") - before)
"""


def value() -> bytes:
    return os.urandom(1 << 10) * (1 << 10)


def table(values: int) -> pa.Table:
    return pa.table({"key": [f"{n:05}" for n in range(values)], "value": [value() for _ in range(values)]})


@pytest.fixture
def store_url(sqlite_url: str) -> str:
    """The kind of store makes no difference to the memory of files."""
    return sqlite_url


@pytest.fixture
def filled(sqlite_url: str) -> Iterator[Store]:
    """A store with 200 values in one file, and 150 in a file each."""
    with Store.open(sqlite_url) as store:
        store.create()
        for queue in ("large", "many"):
            store.configure_queue(queue, buckets=1, value="bytes")
        with store.transaction(long=True) as tx:
            tx.queue("large").add_batch(table(200))
        for n in range(150):
            with store.transaction(long=True) as tx:
                tx.queue("many").add_batch(pa.table({"key": [f"{n:05}"], "value": [value()]}))
        yield store


def grown(store: Store, call: str, *, done: int) -> int:
    """Run a call in a process of its own; returns by how many bytes that process grew at most."""
    command = [sys.executable, "-P", "-c", CHILD, str(store.database.engine.url.database), call]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stderr
    found, bytes_grown = map(int, ended.stdout.split())
    assert found == done
    return bytes_grown


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux to tell the peak of a part")
@pytest.mark.full("a process of its own for each of five kinds of work, over 300 MiB of values")
def test_work_on_large_values_takes_the_memory_of_some_batches(filled: Store) -> None:
    found = {
        "peek": grown(filled, "len(store.peek('large', limit=1000, values=True))", done=16),
        "peek into many files": grown(filled, "len(store.peek('many', limit=1000, values=True))", done=16),
        "compaction": grown(filled, "compacted('many', least=2, most_bytes=16 << 20)", done=15),
        "drain": grown(filled, "drained('large')", done=200),
        "drain of many files": grown(filled, "drained('many')", done=150),
    }
    filled.configure_queue("older", buckets=1, value="bytes")
    with filled.transaction(long=True) as tx:
        tx.queue("older").add_batch(table(200))
    filled.alter_queue("older", buckets=2, guard="seq")
    found["move"] = grown(filled, "moved('older')", done=200)
    print({name: f"{size / MEBIBYTE:.0f} MiB" for name, size in found.items()})
    assert max(found.values()) < BATCHES, found


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux to tell the peak of a part")
@pytest.mark.full("a compaction and a drain of 60 MiB")
def test_a_fall_back_keeps_no_values_in_memory(filled: Store) -> None:
    (file,) = filled.compact("many", wanted=Candidates(least=2, most_bytes=60 * MEBIBYTE)).files
    with pytest.raises(DrainError):
        drain(filled, "many", Stopping(), sink_name="sink", chunk_bytes=4 * MEBIBYTE, on_error="fail")
    Path(file).unlink()
    size = grown(filled, f"store.dead_letters.fall_back('many', {file!r}).inputs", done=59)
    print(f"{size / MEBIBYTE:.0f} MiB")
    assert size < 25 * MEBIBYTE


class Stopping(MemorySink):
    """Refuses all after ten batches."""

    batches = 0

    def apply(self, operations: Operations) -> ApplyResult:
        self.batches += 1
        if self.batches > 10:
            raise ValueError
        return super().apply(operations)


@pytest.mark.parametrize("held", [0, 1, 100, 300])
def test_files_that_are_set_aside_are_read_again_in_order(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    """A drain that may hold next to nothing of twenty files and of rows delivers each record's last value."""
    monkeypatch.setattr(merging, "_HELD_BYTES", held)
    monkeypatch.setattr(writing, "GROUP_ROWS", 3)
    chance, expected = random.Random(held), dict[str, bytes]()
    store.database.segments = str(tmp_path / "segments")
    store.configure_queue("orders", buckets=2, buckets_per_range=2, value="bytes")
    for n in range(24):
        added = {f"{k:02}": b"%d" % n * chance.randrange(1, 30) for k in chance.sample(range(40), 9)}
        with store.transaction(long=n % 6 != 5) as tx:
            tx.queue("orders").add_batch(pa.table({"key": list(added), "value": list(added.values())}))
        expected |= added
    sink = MemorySink()
    report = drain(store, "orders", sink, sink_name="sink", chunk_rows=7)
    assert (report.read, report.acknowledged) == (24 * 9, 24 * 9)
    assert {key[1].decode(): value for key, value in sink.records().items()} == expected
    assert not store.backlog("orders")
