"""Interrupted drains: what they report is what has left the queue (I13)."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from itertools import count
from typing import Any

import pytest

from export_queue.core.client import Store
from export_queue.core.drain import DrainReport, Entry, drain, pipeline
from export_queue.core.sinks import ApplyResult, MemorySink, Operations, Put


@pytest.fixture
def orders(store: Store) -> Store:
    store.configure_queue("orders", buckets=20, buckets_per_range=5)
    with store.transaction() as tx:
        tx.queue("orders").add_many((f"k{i}", i) for i in range(60))
    return store


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("place", ["sink", "exporter", "progress"])
def test_the_report_of_an_interrupted_drain_counts_what_has_left_the_queue(
    orders: Store, kind: type[BaseException], place: str
) -> None:
    sink, calls = MemorySink(), Counter[str]()

    def interrupt(here: str) -> None:
        calls[here] += 1
        if here == place and calls[here] == (25 if place == "exporter" else 4):
            raise kind

    class Interrupted(MemorySink):
        def apply(self, operations: Operations) -> ApplyResult:
            interrupt("sink")
            return sink.apply(operations)

    def exporter(entry: Entry) -> list[Put]:
        interrupt("exporter")
        return [Put("orders", entry.key, entry.value)]

    options: dict[str, Any] = {"sink_name": "s", "chunk_rows": 4, "drain_id": "cut", "exporter": exporter}
    with pytest.raises(kind):
        drain(orders, "orders", Interrupted(), on_progress=lambda _: interrupt("progress"), **options)
    assert_reported(orders, "cut")


def test_an_interruption_while_a_chunk_leaves_the_queue_is_counted_right(
    orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The removal takes effect all the same."""
    remove_span, calls = pipeline.remove_span, count(1)

    def remove(*arguments: Any) -> int:
        if next(calls) == 2:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return remove_span(*arguments)

    monkeypatch.setattr(pipeline, "remove_span", remove)
    with pytest.raises(KeyboardInterrupt):
        drain(orders, "orders", MemorySink(), chunk_rows=4, drain_id="cut")
    assert assert_reported(orders, "cut").acknowledged > 0


def assert_reported(store: Store, drain_id: str) -> DrainReport:
    (report,) = map(DrainReport.from_dict, store.reports(drain_id=drain_id))
    report.check()
    assert report.problem is not None
    assert report.acknowledged + report.dead == 60 - sum(unit.entries for unit in store.backlog("orders"))
    return report
