"""Whether a queue stays as quick as a new one after much has gone through it.

Entries go through one queue of PostgreSQL, cycle by cycle: a share is added and drained, as an hourly task would. The
later drains are compared with the first ones of the same sizes, and with them a look at the empty queue, which sensors
take over and over, with the look at a queue that has never had an entry. What the library does by itself, such as the
vacuum behind a drain, runs as it does for users.

``EXPORT_QUEUE_BENCH_ENTRIES`` is the number of entries that go through; a million by default.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator

from tests.support.servers import PostgresServer

from benchmarks.drain import add
from benchmarks.measuring import Figure, Watch, alternate, median_ratio, processor_note
from benchmarks.processor import of_server
from export_queue import MemorySink, Store, drain
from export_queue.core.queue import waiting_ranges
from export_queue.core.transactions import take_snapshot

CYCLES = 20
FIRST = 3
"""Cycles at the beginning, and at the end, that are compared."""
DRAIN_GOAL, POLL_GOAL = 1.15, 3.0
POLLS = 50


def run(quick: bool) -> Iterator[Figure]:
    through = 6_000 if quick else int(os.environ.get("EXPORT_QUEUE_BENCH_ENTRIES", "1000000"))
    cycles = FIRST * 2 if quick else CYCLES
    with PostgresServer() as postgres:
        clock = of_server(postgres.pid)
        with Store.open(postgres.url(postgres.create_database())) as store:
            store.create()
            for queue_id in ("old", "new"):
                store.configure_queue(queue_id, value="bytes")
            sink = MemorySink()
            watches = [_cycle(store, sink, through // cycles, Watch(clock)) for _ in range(cycles + 1)][1:]
            for what, of in (("", "seconds"), (", processor time", "processor")):
                first, last = ([getattr(watch, of) for watch in some] for some in (watches[:FIRST], watches[-FIRST:]))
                yield Figure(
                    bench="longevity",
                    case=f"a drain after {through:,} entries{what}",
                    ratio=statistics.median(last) / statistics.median(first),
                    better="lower",
                    goal=None if what else DRAIN_GOAL,
                    baseline="the first drains of the same queue, of as many entries each",
                    repeats=FIRST,
                    note=f"{through // cycles:,} entries each",
                )
            looks = {queue_id: lambda watch, q=queue_id: _look(store, q, watch) for queue_id in ("old", "new")}
            taken = alternate(looks, repeats=1 if quick else 7, server=clock)
            yield Figure(
                bench="longevity",
                case=f"a look at the empty queue after {through:,} entries",
                ratio=median_ratio(taken["old"], taken["new"]),
                better="lower",
                goal=POLL_GOAL,
                baseline="a look at a queue that never had an entry",
                repeats=len(taken["old"]),
                note=processor_note(taken, "old", "new"),
            )


def _cycle(store: Store, sink: MemorySink, entries: int, watch: Watch) -> Watch:
    add(store, "old", entries)
    store.database.wait_until_tidy()
    with watch.running():
        report = drain(store, "old", sink, sink_name="bench")
    assert report.acknowledged == entries
    return watch


def _look(store: Store, queue_id: str, watch: Watch) -> None:
    queue = store.queue(queue_id)
    with watch.running():
        for _ in range(POLLS):
            snapshot = take_snapshot(store.database)
            with store.database.read() as work:
                assert waiting_ranges(work, queue, snapshot) == []
