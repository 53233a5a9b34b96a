"""Drains whose time is limited: they end in order, with a report that is true, and the rest waits (I7, I13)."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from export_queue import (
    ApplyResult,
    DrainReport,
    DrainTimedOut,
    MemorySink,
    Operations,
    Owner,
    SinkUnavailable,
    Store,
    drain,
)
from export_queue.core.drain import DRAIN_RETRY, Deadline, DrainRequest, LocalEngine, load_exporter, run_drain
from export_queue.core.locks import claim, holders, release


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class SlowSink(MemorySink):
    """Each batch takes a while by the clock; from one on it is away."""

    def __init__(self, clock: Clock, seconds: float, *, batches: int = 1000) -> None:
        super().__init__()
        self._clock, self.seconds, self.batches = clock, seconds, batches

    def apply(self, operations: Operations) -> ApplyResult:
        self.batches -= 1
        if self.batches < 0:
            raise SinkUnavailable("away")
        self._clock.now += self.seconds
        return super().apply(operations)


@pytest.fixture
def orders(store: Store) -> Store:
    store.configure_queue("orders", buckets=1)
    with store.transaction() as tx:
        tx.queue("orders").add_many((f"k{i:02}", i) for i in range(50))
    return store


def limited(store: Store, sink: Any, clock: Clock, **options: Any) -> DrainReport:
    request = DrainRequest(queue_id="orders", sink_name="s", drain_id="limited", chunk_rows=10, **options)
    deadline = Deadline.after(request.time_limit, clock=clock)
    request = replace(request, retry=deadline.bounded(replace(DRAIN_RETRY, sleep=clock.sleep)))
    engine = LocalEngine(store.database, sink, load_exporter(None), request, deadline=deadline)
    return run_drain(store, request, nullcontext(engine), deadline=deadline, sleep=clock.sleep)


def check_rest(store: Store, sink: SlowSink, *, acknowledged: int) -> None:
    """The report is true, the leases are free, and another drain brings what is left."""
    (stored,) = store.reports(drain_id="limited")
    report = DrainReport.from_dict(stored)
    report.check()
    assert report.acknowledged == acknowledged
    assert report.problem is not None
    assert (report.problem.error_class, report.problem.transient) == ("DrainTimedOut", True)
    with store.database.read() as work:
        queue = store.queue("orders")
        assert holders(work, queue, queue.units()) == []
    sink.seconds, sink.batches = 0, 1000
    assert drain(store, "orders", sink, sink_name="s", if_locked="fail").acknowledged == 50 - acknowledged
    assert len(sink.records()) == 50


def test_a_drain_whose_time_is_over_keeps_what_was_acknowledged_and_says_how_much_is_left(orders: Store) -> None:
    clock = Clock()
    sink = SlowSink(clock, 20)
    with pytest.raises(DrainTimedOut, match=r"delivered 30 entries in its 60 seconds; about 20 left"):
        limited(orders, sink, clock, time_limit=60)
    check_rest(orders, sink, acknowledged=30)


def test_a_drain_that_is_done_in_time_notices_nothing(orders: Store) -> None:
    clock = Clock()
    assert limited(orders, SlowSink(clock, 10), clock, time_limit=60).acknowledged == 50


def test_waiting_for_other_drains_ends_by_the_deadline(orders: Store) -> None:
    clock, queue = Clock(), orders.queue("orders")
    leases = claim(orders.database, queue, queue.units(), owner=Owner("somebody", "1"), lease_seconds=600)
    with pytest.raises(DrainTimedOut, match="delivered 0 entries"):
        limited(orders, MemorySink(), clock, time_limit=5, lock_timeout=600)
    assert clock.now == 5
    release(orders.database, leases)
    assert drain(orders, "orders", MemorySink(), sink_name="s").acknowledged == 50


def test_waiting_for_a_sink_that_is_away_ends_by_the_deadline(orders: Store) -> None:
    clock = Clock()
    sink = SlowSink(clock, 1, batches=2)
    with pytest.raises(DrainTimedOut):
        limited(orders, sink, clock, time_limit=5)
    assert clock.now == 5
    check_rest(orders, sink, acknowledged=20)


def test_a_limit_counts_from_the_call(orders: Store) -> None:
    """The public way, by the machine's own clock: no time at all is enough for the end of nothing."""
    with pytest.raises(DrainTimedOut):
        drain(orders, "orders", MemorySink(), sink_name="s", time_limit=1e-9)
