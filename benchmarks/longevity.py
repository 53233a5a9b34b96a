"""Whether a queue stays as quick as a new one after much has gone through it.

Entries go through one queue of PostgreSQL, cycle by cycle: a share is added and drained, as an hourly task would. Then
drains of such shares are compared with those of a new store on the same server, in turns, and so is a look at the empty
queue, which sensors take over and over. What the library does by itself, such as the vacuum behind a drain, runs as it
does for users.

``EXPORT_QUEUE_BENCH_ENTRIES`` is the number of entries that go through; a million by default.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from functools import partial

from tests.support.servers import PostgresServer

from benchmarks.drain import add
from benchmarks.measuring import Figure, Watch, alternate, median_ratio, processor_note
from benchmarks.processor import of_server
from export_queue import MemorySink, Store, drain
from export_queue.core.queue import waiting_ranges
from export_queue.core.transactions import take_snapshot

CYCLES = 20
DRAIN_GOAL, POLL_GOAL = 1.15, 3.0
POLLS = 50


def run(quick: bool) -> Iterator[Figure]:
    through = 6_000 if quick else int(os.environ.get("EXPORT_QUEUE_BENCH_ENTRIES", "1000000"))
    repeats = 1 if quick else 7
    with PostgresServer() as postgres:
        clock = of_server(postgres.pid)
        with contextlib.ExitStack() as stack:
            old, young = (
                stack.enter_context(Store.open(postgres.url(postgres.create_database()))) for _ in ("old", "young")
            )
            for store in (old, young):
                store.create()
                store.configure_queue("orders", value="bytes")
            sinks = {id(old): MemorySink(), id(young): MemorySink()}
            for _ in range(CYCLES):
                _cycle(old, sinks[id(old)], through // CYCLES, Watch())
            what = {"drain": partial(_drain, sinks, through // CYCLES), "look": _look}
            taken = {}
            for name, work in what.items():
                contestants = {"old": partial(work, old), "young": partial(work, young)}
                taken[name] = alternate(contestants, repeats=repeats, server=clock)
    for name, case, goal, baseline in (
        ("drain", f"a drain after {through:,} entries", DRAIN_GOAL, "the same drain of a new store"),
        ("look", f"a look at the empty queue after {through:,} entries", POLL_GOAL, "a look at that of a new store"),
    ):
        yield Figure(
            bench="longevity",
            case=case,
            ratio=median_ratio(taken[name]["old"], taken[name]["young"]),
            better="lower",
            goal=goal,
            baseline=baseline,
            repeats=repeats,
            note=processor_note(taken[name], "old", "young"),
        )


def _drain(sinks: Mapping[int, MemorySink], entries: int, store: Store, watch: Watch) -> None:
    _cycle(store, sinks[id(store)], entries, watch)


def _cycle(store: Store, sink: MemorySink, entries: int, watch: Watch) -> None:
    """Add entries and drain them."""
    add(store, "orders", entries)
    store.database.wait_until_tidy()
    with watch.running():
        report = drain(store, "orders", sink, sink_name="bench")
    assert report.acknowledged == entries


def _look(store: Store, watch: Watch) -> None:
    queue = store.queue("orders")
    with watch.running():
        for _ in range(POLLS):
            snapshot = take_snapshot(store.database)
            with store.database.read() as work:
                assert waiting_ranges(work, queue, snapshot) == []
