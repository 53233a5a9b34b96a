"""Interrupted drains: what they report is what has left the queue (I13)."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from itertools import count
from typing import Any

import pytest
from tests.support.waiting import PATIENCE

from export_queue import (
    ApplyResult,
    DrainReport,
    Entry,
    MemorySink,
    Operations,
    Owner,
    Put,
    SinkError,
    Store,
    StoreUnavailable,
    drain,
)
from export_queue.core.drain import claims, drain_run, one_drain, pipeline
from export_queue.core.locks import Lease, check_leases, claim, holders, keeping


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


def test_an_interruption_while_the_last_removals_are_awaited_is_counted_right(
    orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_span, has_failed, calls = pipeline.remove_span, threading.Event(), count(1)

    class Failing(MemorySink):
        def apply(self, operations: Operations) -> ApplyResult:
            if next(calls) == 2:
                has_failed.set()
                raise SinkError("no")
            return super().apply(operations)

    def remove(*arguments: Any) -> int:
        has_failed.wait(PATIENCE)
        for _ in range(20):  # the main thread is waiting by one of these
            time.sleep(0.02)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.2)
        return remove_span(*arguments)

    monkeypatch.setattr(pipeline, "remove_span", remove)
    with pytest.raises((KeyboardInterrupt, SinkError)):
        drain(orders, "orders", Failing(), chunk_rows=4, drain_id="cut")
    assert assert_reported(orders, "cut").acknowledged == 4


@pytest.mark.parametrize("is_failing", [False, True], ids=["drained", "failed"])
@pytest.mark.parametrize(
    ("room", "step"),
    [(claims, "claim"), (keeping, "release"), (drain_run, "backlog"), (one_drain, "end_attempt")],
    ids=["claim", "release", "look back", "end"],
)
def test_a_drain_that_is_interrupted_while_it_ends_gives_its_leases_back(
    orders: Store, monkeypatch: pytest.MonkeyPatch, room: Any, step: str, is_failing: bool
) -> None:
    """A driver gets its signal after its Spark job has failed, since Java died: at any point of the end."""
    calls_seen: list[str] = []

    class Failing(MemorySink):
        def apply(self, operations: Operations) -> ApplyResult:
            if is_failing and not calls_seen:
                raise SinkError("no")
            return super().apply(operations)

    act, sink = getattr(room, step), Failing()

    def interrupted(*arguments: Any, **options: Any) -> Any:
        result = act(*arguments, **options) if step == "claim" else None
        calls_seen.append(step)
        if len(calls_seen) == 1:
            raise KeyboardInterrupt
        return act(*arguments, **options) if result is None else result

    monkeypatch.setattr(room, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        drain(orders, "orders", sink, sink_name="s", drain_id="cut", lease_seconds=600)
    assert calls_seen
    assert_reported(orders, "cut")
    report = drain(orders, "orders", sink, sink_name="s", if_locked="fail", lock_timeout=0)
    assert report.left == 0


def test_a_drain_that_is_interrupted_after_its_report_was_stored_has_one(
    orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any, **options: Any) -> None:
        act(*arguments, **options)
        raise KeyboardInterrupt

    act = one_drain._end
    monkeypatch.setattr(one_drain, "_end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        drain(orders, "orders", MemorySink(), sink_name="s", drain_id="cut")
    (report,) = map(DrainReport.from_dict, orders.reports(drain_id="cut"))
    assert (report.problem, report.acknowledged, report.left) == (None, 60, 0)


def test_a_store_that_is_away_as_leases_are_given_back_keeps_none(
    orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*arguments: Any) -> None:
        raise StoreUnavailable("away")

    sink = MemorySink()
    monkeypatch.setattr(keeping, "release", away)
    drain(orders, "orders", sink, sink_name="s", lease_seconds=600)
    monkeypatch.undo()
    drain(orders, "orders", sink, sink_name="s", if_locked="fail", lock_timeout=0)
    queue = orders.queue("orders")
    with orders.database.read() as work:
        assert holders(work, queue, queue.units()) == []


def test_a_drain_that_fails_gives_back_nothing_of_another_one_of_its_owner(orders: Store) -> None:
    """One task drains two queues, or two parts of one."""
    owner = Owner("task", "attempt")
    orders.configure_queue("others", buckets=20, buckets_per_range=5)
    others, queue = orders.queue("others"), orders.queue("orders")
    mine, held = queue.units()[0], list[Lease]()

    class Failing(MemorySink):
        def apply(self, operations: Operations) -> ApplyResult:
            held.extend(claim(orders.database, others, others.units()[:1], owner=owner, lease_seconds=600))
            held.extend(claim(orders.database, queue, queue.units()[1:2], owner=owner, lease_seconds=600))
            raise SinkError("no")

    with pytest.raises(SinkError):
        drain(orders, "orders", Failing(), sink_name="s", ranges=[mine], owner=owner)
    assert len(held) == 2
    check_leases(orders.database, held)


def assert_reported(store: Store, drain_id: str) -> DrainReport:
    (report,) = map(DrainReport.from_dict, store.reports(drain_id=drain_id))
    report.check()
    assert report.problem is not None
    assert report.acknowledged + report.dead == 60 - sum(unit.entries for unit in store.backlog("orders"))
    return report
