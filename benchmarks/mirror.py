"""Mirror loads against an append load of the same data as files, which compares nothing and keeps nothing apart.

Two sets of data: ready documents of a hundred bytes, which are stored as they are; and four columns, of which a mirror
makes JSON documents. The append load takes the documents, and the columns as a column of structs. Both are Arrow tables
in memory. The store is SQLite; its files are local.

Memory is that of a process which mirrors batches that it makes one by one, so that only the mirror holds data.

``EXPORT_QUEUE_BENCH_ENTRIES`` is the largest number of records; a million by default.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa

from benchmarks.clients import PATIENCE
from benchmarks.measuring import Figure, Watch, alternate, median_ratio, rate
from export_queue import Store

BASELINE = "an append load of the same data as files"
GOALS = {"unchanged": 1.2, "1 % changed": 1.5, "first mirror": None}
FLAT = 1.2
_DOCUMENT = b'{"name":"customer","city":"Oslo","total":%07d,"open":false,"note":"one hundred bytes of a document"}'
_BATCH = 50_000
_NUMBERS = itertools.count()
_FRESH = multiprocessing.get_context("spawn")
"""Processes that hold nothing of this one's memory."""

Data = Callable[[int, int, int], pa.Table]
"""Makes records from one number to another, in a version."""


def documents(first: int, end: int, version: int) -> pa.Table:
    """Make ready documents, of which every hundredth depends on the version."""
    numbers = range(first, end)
    values = [_DOCUMENT % (n + version * (n % 100 == 0)) for n in numbers]
    return pa.table({"key": pa.array([b"customer-%013d" % n for n in numbers]), "value": pa.array(values)})


def columns(first: int, end: int, version: int) -> pa.Table:
    """Make columns that become documents."""
    numbers = range(first, end)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "name": pa.array([f"customer {n}" for n in numbers]),
            "total": pa.array([n + version * (n % 100 == 0) for n in numbers], pa.int64()),
            "open": pa.array([n % 2 == 0 for n in numbers]),
        }
    )


def run(quick: bool) -> Iterator[Figure]:
    """Measure both sets of data, in two sizes."""
    largest = 20_000 if quick else int(os.environ.get("EXPORT_QUEUE_BENCH_ENTRIES", "1000000"))
    repeats = 1 if quick else 3
    for size in (largest // 10, largest):
        for name, data in (("documents", documents), ("columns", columns)):
            with tempfile.TemporaryDirectory() as folder:
                yield from Bench(folder, name, data, size).compare(repeats)
    peaks = {size: peak_memory(size) for size in (largest // 10, largest)}
    for name, kib in zip(("first mirror", "unchanged"), zip(*peaks.values(), strict=True), strict=True):
        yield Figure(
            bench="mirror",
            case=f"{largest:,} documents, {name}, peak memory",
            ratio=kib[1] / kib[0],
            better="lower",
            baseline=f"that of {largest // 10:,}",
            repeats=1,
            goal=FLAT,
            note=f"{kib[1] >> 10} MiB",
        )


class Bench:
    """One store and one set of data."""

    def __init__(self, folder: str, name: str, data: Data, size: int) -> None:
        self.name, self.size = name, size
        self.store = Store.open(f"sqlite:///{Path(folder) / 'store.db'}")
        self.store.create()
        self.codecs = {"key": "bytes", "value": "bytes"} if data is documents else {"key": "str", "value": "json"}
        self.options = {"key": None} if data is documents else {"key": "id"}
        self.versions = [data(0, size, version) for version in range(2)]
        self.entries = self.versions[0] if data is documents else _as_entries(self.versions[0])
        self.store.configure_queue("unchanged", state=True, **self.codecs)
        self.store.configure_queue("changed", state=True, **self.codecs)
        for queue in ("unchanged", "changed"):
            self.store.mirror(queue, self.versions[0], **self.options)
        self.last = 0

    def compare(self, repeats: int) -> Iterator[Figure]:
        contestants = {BASELINE: self.load, "unchanged": self.unchanged}
        contestants |= {"1 % changed": self.changed, "first mirror": self.first}
        taken = alternate(contestants, repeats=repeats)
        self.store.close()
        for name, goal in GOALS.items():
            for what, seconds in ((", processor time", taken.processor), ("", taken)):
                yield Figure(
                    bench="mirror",
                    case=f"{self.size:,} {self.name}, {name}{what}",
                    ratio=median_ratio(seconds[name], seconds[BASELINE]),
                    better="lower",
                    baseline=BASELINE,
                    repeats=repeats,
                    goal=goal if what else None,
                    note="" if what else rate(taken, name, self.size, "records"),
                )

    def load(self, watch: Watch) -> None:
        queue = self.store.configure_queue(f"load{next(_NUMBERS)}", **self.codecs).id
        with watch.running(), self.store.transaction(long=True) as tx:
            tx.queue(queue).add_batch(self.entries)

    def unchanged(self, watch: Watch) -> None:
        with watch.running():
            report = self.store.mirror("unchanged", self.versions[0], **self.options)
        assert (report.unchanged, report.added) == (self.size, 0)

    def changed(self, watch: Watch) -> None:
        self.last = 1 - self.last
        with watch.running():
            report = self.store.mirror("changed", self.versions[self.last], **self.options)
        assert (report.changed, report.added) == (self.size // 100, self.size // 100)

    def first(self, watch: Watch) -> None:
        queue = self.store.configure_queue(f"first{next(_NUMBERS)}", state=True, **self.codecs).id
        with watch.running():
            report = self.store.mirror(queue, self.versions[0], **self.options)
        assert report.new == self.size


def _as_entries(table: pa.Table) -> pa.Table:
    """Give an append load of columns: keys as text, and structs, of which it makes the same documents."""
    structs = table.to_struct_array().combine_chunks()
    return pa.table({"key": table["id"].cast(pa.string()), "value": structs})


def peak_memory(size: int) -> tuple[int, int]:
    """Return the peak memory of processes that mirror documents for the first and for the second time, in KiB."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'store.db'}"
        with Store.open(url) as store:
            store.create()
            store.configure_queue("customers", key="bytes", value="bytes", state=True)
        return _mirrored_apart(url, size), _mirrored_apart(url, size)


def _mirrored_apart(url: str, size: int) -> int:
    receiver, sender = _FRESH.Pipe(duplex=False)
    process = _FRESH.Process(target=_mirror_batches, args=(url, size, sender), daemon=True)
    process.start()
    if not receiver.poll(PATIENCE + size / 1000):
        raise RuntimeError("a mirror of the benchmark has not ended")
    peak: int = receiver.recv()
    process.join(PATIENCE)
    return peak


def _mirror_batches(url: str, size: int, sender: Connection) -> None:
    with Store.open(url) as store:
        starts = range(0, size, _BATCH)
        tables = (documents(first, min(first + _BATCH, size), 0) for first in starts)
        store.mirror("customers", itertools.chain.from_iterable(table.to_batches() for table in tables))
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    sender.send(int(found[1]))
