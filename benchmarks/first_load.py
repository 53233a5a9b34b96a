"""First loads from the state of a queue, which a new reader begins with: they share its files and copy nothing.

Compared are states of two sizes, and with the smaller one a function that yields the same records. The documents have a
hundred bytes. The store is SQLite; its files are local.

``EXPORT_QUEUE_BENCH_ENTRIES`` is the number of records of the larger state; five million by default.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from benchmarks.measuring import Figure, Watch, alternate, median_ratio, rate
from benchmarks.mirror import documents
from export_queue import Store

FLAT = 1.5
_NUMBERS = itertools.count()


def run(quick: bool) -> Iterator[Figure]:
    """Measure both sizes and the function."""
    larger = 20_000 if quick else int(os.environ.get("EXPORT_QUEUE_BENCH_ENTRIES", "5000000"))
    smaller, repeats = larger // 50, 1 if quick else 7
    with tempfile.TemporaryDirectory() as folder, Store.open(f"sqlite:///{Path(folder) / 'store.db'}") as store:
        store.create()
        data = documents(0, smaller, 0)
        for size in (smaller, larger):
            store.configure_queue(f"of{size}", state=True, subscriptions=["first"], key="bytes", value="bytes")
            store.mirror(f"of{size}", data if size == smaller else documents(0, size, 0), key=None)

        def load(size: int, watch: Watch, table: pa.Table | None = None) -> None:
            reader = f"of{size}/reader{next(_NUMBERS)}"
            store.subscribe(*reader.split("/"))
            with watch.running():
                if table is None:
                    loaded = store.first_load(reader, source="state")
                else:
                    loaded = store.first_load(reader, source=lambda: zip(*table.to_pydict().values(), strict=True))
            assert loaded.entries == size
            store.unsubscribe(*reader.split("/"), discard=True)

        small, large, function = f"a state of {smaller:,}", f"a state of {larger:,}", f"a function of {smaller:,}"
        taken = alternate(
            {
                small: lambda watch: load(smaller, watch),
                large: lambda watch: load(larger, watch),
                function: lambda watch: load(smaller, watch, data),
            },
            repeats=repeats,
        )
    for name, baseline, size, goal in ((large, small, larger, FLAT), (small, function, smaller, None)):
        seconds = sorted(taken[name])[repeats // 2]
        yield Figure(
            bench="first_load",
            case=name,
            ratio=median_ratio(taken[name], taken[baseline]),
            better="lower",
            baseline=baseline,
            repeats=repeats,
            goal=goal,
            note=f"{seconds * 1e3:.0f} ms"
            if size == larger
            else f"{seconds * 1e3:.0f} ms; the function {rate(taken, function, smaller, 'records')}",
        )
