"""Buckets of a queue that are altered while it is in use: its layouts, and how the older ones drain out."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from tests.support import bulk
from tests.support.contexts import begin, opened_by
from tests.support.fenced_memory import FencedMemory
from tests.support.waiting import PATIENCE, wait_until

from export_queue import (
    ConfigurationError,
    InvalidArgument,
    LayoutClosed,
    LeaseLost,
    LockNotAvailable,
    MemorySink,
    OptionsDiffer,
    Owner,
    QueueBusy,
    Range,
    Retry,
    Store,
    bucket,
    drain,
    follow,
)
from export_queue.core.drain import retry_dead_letters
from export_queue.core.locks import claim, release
from export_queue.core.maintenance import maintain
from export_queue.core.queue import ALL_DEAD_LETTERS, Layout, alter_queue, queue_of
from export_queue.core.segments import stage_segments
from export_queue.core.store import queries, schema
from export_queue.core.transactions import expire

fork = multiprocessing.get_context("fork")
ONCE = Retry(attempts=1)
KEYS = [f"key-{n}" for n in range(40)]
OTHER = {"buckets": 7, "buckets_per_range": 3, "guard": "seq"}
"""Options of an alteration by which hardly any key stays in its bucket."""


@pytest.fixture
def orders(store: Store, tmp_path: Path) -> Store:
    """A store with a queue of 16 buckets in four units, whose files are in a folder of the test's."""
    store.database.segments = str(tmp_path / "segments")
    store.configure_queue("orders", buckets=16, buckets_per_range=4, value="bytes")
    return store


def add(store: Store, keys: Iterable[str], value: bytes = b"1", queue_id: str = "orders") -> None:
    with store.transaction() as tx:
        for key in keys:
            tx.queue(queue_id).add(key, value)


def rows(store: Store, queue_id: str = "orders") -> list[tuple[int, int, str, int]]:
    """All row entries, staged ones too: layout, bucket, key and sequence."""
    e = schema.entry.c
    with store.database.read() as work:
        found = work.connection.execute(
            sa.select(e.layout, e.bucket, e.key, e.seq).where(e.queue_number == store.queue(queue_id).number)
        )
        return sorted((layout, at, bytes(key).decode(), seq) for layout, at, key, seq in found)


def places(store: Store, queue_id: str = "orders") -> dict[str, list[int]]:
    """The layouts in which each key has entries; its bucket is that of the layout."""
    known = {1: 16, 2: 7, 3: 5}
    found: dict[str, list[int]] = {}
    for layout, at, key, _ in rows(store, queue_id):
        assert layout == 0 or at == bucket(key.encode(), known[layout])
        found.setdefault(key, []).append(layout)
    return found


def drained(store: Store, sink: MemorySink, queue_id: str = "orders", **options: Any) -> Any:
    return drain(store, queue_id, sink, sink_name=f"sink of {queue_id.replace('/', ' ')}", **options)


def values(sink: MemorySink) -> dict[str, Any]:
    return {key.decode(): value for (_, key), value in sink.records().items()}


# Drains


def test_an_older_layout_drains_out_while_entries_come_into_the_new_one(orders: Store) -> None:
    add(orders, KEYS)
    altered = orders.alter_queue("orders", **OTHER)
    assert (altered.layout, altered.buckets, altered.buckets_per_range) == (2, 7, 3)
    assert altered.older == (Layout(1, 16, 4),)
    add(orders, KEYS[20:], b"2")
    assert places(orders) == {key: [1] if n < 20 else [1, 2] for n, key in enumerate(KEYS)}
    assert [unit.range.layout for unit in orders.backlog("orders")] == [1] * 4 + [2] * 3
    assert sum(unit.entries for unit in orders.backlog("orders")) == 60
    assert orders.waiting_ranges("orders") == altered.open_units() == [*altered.older[0].units(), *altered.units()]
    assert [one.position.seq for one in orders.peek("orders", key=KEYS[-1])] == sorted(
        seq for *_, key, seq in rows(orders) if key == KEYS[-1]
    )
    assert len(orders.peek("orders", limit=50)) == 50
    sink = MemorySink()
    report = drained(orders, sink)
    assert (report.read, report.acknowledged, report.ranges) == (60, 60, (Range(0, 16), Range(0, 7, 2)))
    assert values(sink) == {key: b"1" if n < 20 else b"2" for n, key in enumerate(KEYS)}
    assert orders.queue("orders").older == (), "the drain has closed it"
    story = orders.why("orders", KEYS[-1])
    assert story.unit.layout == 2
    assert story.possible_delivery is not None


def test_a_drain_of_a_layout_that_is_closed_finds_nothing_and_says_so(
    orders: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """As a mapped task does that is retried, or comes late: another one has drained its range."""
    add(orders, KEYS)
    announced = [unit.to_json() for unit in orders.waiting_ranges("orders")]
    orders.alter_queue("orders", **OTHER)
    sink = MemorySink()
    assert drained(orders, sink).read == 40
    add(orders, KEYS, b"2")
    with caplog.at_level(logging.WARNING, "export_queue.drain"):
        report = drained(orders, sink, ranges=announced[:2])
    assert (report.read, report.ranges, report.skipped, report.problem) == (0, (Range(0, 8),), (), None)
    (line,) = caplog.messages
    assert line.startswith("orders: nothing is pending in [0, 8) any more: the queue was altered")
    assert orders.backlog("orders", announced) == []
    assert drained(orders, sink, ranges=[*announced, [0, 7, 2]]).read == 40
    for use in (orders.waiting_ranges, lambda *given: follow(orders, given[0], sink, ranges=given[1], stop=bool)):
        with pytest.raises(InvalidArgument, match=r"\[0, 16\).*, in which nothing waits any more") as caught:
            use("orders", announced)
        assert "[0, 3, 2]" in caught.value.hint
    assert orders.waiting_ranges("orders", [*announced, [0, 7, 2]]) == []
    for wrong, problem in ([0, 4, 3], "one of layout 3, which the queue never had"), ([0, 3], "whole units of 4"):
        with pytest.raises(InvalidArgument, match=problem):
            drained(orders, sink, ranges=[wrong])


def test_a_drain_of_a_layout_that_a_dead_letter_has_opened_again_brings_it(orders: Store) -> None:
    add(orders, ["dead"])
    announced = [unit.to_json() for unit in orders.waiting_ranges("orders")]
    sink = MemorySink()
    assert drained(orders, sink, exporter=lambda entry: 1 / 0).dead == 1
    orders.alter_queue("orders", **OTHER)
    assert orders.queue("orders").older == ()
    assert drained(orders, sink, ranges=announced).read == 0
    assert orders.dead_letters.retry("orders") == 1
    assert drained(orders, sink, ranges=announced).read == 1
    assert values(sink) == {"dead": b"1"}


def test_a_follower_looks_into_a_layout_that_is_opened_again(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[follow.__module__], "LINK_SECONDS", 10 * PATIENCE)
    add(orders, ["dead"])
    sink, stop = MemorySink(), threading.Event()
    assert drained(orders, sink, exporter=lambda entry: 1 / 0).dead == 1
    orders.alter_queue("orders", **OTHER)
    assert orders.queue("orders").older == ()
    worker = threading.Thread(
        target=lambda: follow(orders, "orders", sink, sink_name="sink of orders", stop=stop.is_set)
    )
    worker.start()
    try:
        add(orders, ["lives"], b"2")
        wait_until(lambda: set(values(sink)) == {"lives"}, "the follower did not come")
        assert orders.dead_letters.retry("orders") == 1
        wait_until(lambda: set(values(sink)) == {"lives", "dead"}, "the follower stayed in the current layout")
    finally:
        stop.set()
        worker.join(PATIENCE)
    assert not worker.is_alive()


@pytest.mark.parametrize("look", ["backlog", "waiting_ranges", "peek"])
def test_a_look_finds_what_its_snapshot_sees_though_the_queue_is_altered_meanwhile(
    orders: Store, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    module = sys.modules[Store.__module__]
    take = module.take_snapshot  # type: ignore[attr-defined]

    def late(*arguments: Any) -> Any:
        orders.alter_queue("orders", **OTHER)
        add(orders, ["new"])
        return take(*arguments)

    add(orders, ["old"])
    with monkeypatch.context() as patch:
        patch.setattr(module, "take_snapshot", late)
        assert len(getattr(orders, look)("orders")) == 2
    assert len(getattr(orders, look)("orders")) == 2


def test_a_drain_that_began_before_brings_what_it_has_promised(orders: Store) -> None:
    add(orders, KEYS)

    class Altering(MemorySink):
        def admit(self, **options: Any) -> None:
            super().admit(**options)
            if orders.queue("orders").layout == 1:
                orders.alter_queue("orders", **OTHER)
                add(orders, KEYS[20:], b"2")

    sink = Altering()
    report = drained(orders, sink)
    assert (report.read, report.ranges) == (40, (Range(0, 16),))
    assert set(values(sink).values()) == {b"1"}
    assert drained(orders, sink).read == 20


def test_locks_of_two_layouts_do_not_meet(orders: Store) -> None:
    add(orders, KEYS)
    old = orders.queue("orders")
    held = claim(orders.database, old, old.units()[:1], owner=Owner("worker", "1"), lease_seconds=600)
    orders.alter_queue("orders", **OTHER)
    add(orders, KEYS, b"2")
    sink = MemorySink()
    report = drained(orders, sink, if_locked="skip")
    assert report.skipped == (Range(0, 4),)
    with pytest.raises(LockNotAvailable, match=r"\[0, 4\) by worker"):
        drained(orders, sink, if_locked="fail")
    assert orders.queue("orders").older
    release(orders.database, held)
    drained(orders, sink)
    assert set(values(sink).values()) == {b"2"}
    assert orders.queue("orders").older == ()


def test_a_follower_goes_on_in_the_new_layout(orders: Store) -> None:
    add(orders, KEYS)
    sink, stop = MemorySink(), threading.Event()
    worker = threading.Thread(target=lambda: follow(orders, "orders", sink, sink_name="s", stop=stop.is_set))
    worker.start()
    try:
        wait_until(lambda: len(sink.records()) == 40, "the follower did not come")
        orders.alter_queue("orders", **OTHER)
        add(orders, KEYS, b"2")
        wait_until(lambda: set(values(sink).values()) == {b"2"}, "the follower stayed in the old layout", seconds=20)
    finally:
        stop.set()
        worker.join(PATIENCE)
    assert not worker.is_alive()


# Transactions that began before


def test_a_long_transaction_adds_all_its_entries_to_the_layout_in_which_it_began(orders: Store) -> None:
    long = begin(orders, kind="long")
    long.queue("orders").add("a", b"1")
    long.queue("orders").add("b", b"1")
    long.flush()
    orders.alter_queue("orders", **OTHER)
    long.queue("orders").add("a", b"2", replace=True)
    long.queue("orders").add("c", b"2")
    long.flush()
    long.queue("orders").add("b", b"3", replace=True)
    long.queue("orders").add("d", b"3")
    orders.alter_queue("orders", buckets=5, guard="seq")
    opened_by(long).commit()
    assert places(orders) == {key: [1] for key in "abcd"}, "no key lies in two layouts under one sequence"
    add(orders, ["a"], b"4")
    assert places(orders)["a"] == [1, 3]
    sink = MemorySink()
    drained(orders, sink)
    assert values(sink) == {"a": b"4", "b": b"3", "c": b"2", "d": b"3"}
    assert orders.queue("orders").older == ()


def test_a_layout_stays_open_for_those_who_began_in_it(orders: Store) -> None:
    waiting = begin(orders, kind="long")
    assert waiting.id
    orders.alter_queue("orders", **OTHER)
    between = begin(orders, kind="long")
    assert between.id > waiting.id
    orders.alter_queue("orders", buckets=5, guard="seq")
    sink = MemorySink()
    drained(orders, sink)
    assert [layout.number for layout in orders.queue("orders").older] == [1, 2]
    for long, value in ((between, b"2"), (waiting, b"1")):
        long.queue("orders").add("a", value)
        opened_by(long).commit()
    assert places(orders) == {"a": [1, 2]}
    drained(orders, sink)
    assert values(sink) == {"a": b"2"}
    assert orders.queue("orders").older == ()


def test_rows_of_a_dead_transaction_keep_their_layout_open_until_clean_up(orders: Store) -> None:
    long = begin(orders, kind="long", timeout=0.05)
    long.queue("orders").add("a", b"1")
    long.flush()
    orders.alter_queue("orders", **OTHER)

    def is_swept() -> bool:
        expire(orders.database)
        with orders.database.read() as work:
            return not work.connection.execute(schema.active.select()).all()

    wait_until(is_swept, "the transaction was not swept")
    drained(orders, MemorySink())
    assert orders.queue("orders").older
    maintain(orders.database)
    drained(orders, MemorySink())
    assert (rows(orders), orders.queue("orders").older) == ([], ())


def test_the_readers_of_a_queue_are_laid_out_with_it(store: Store) -> None:
    store.configure_queue("orders", buckets=16, buckets_per_range=4, value="bytes", subscriptions=["search", "cache"])
    add(store, ["a"])
    long = begin(store, kind="long")
    long.queue("orders").add("b", b"1")
    long.flush()
    store.alter_queue("orders", **OTHER)
    store.subscribe("orders", "late")
    assert [reader.layout for reader in store.subscriptions("orders")] == [2, 2, 2]
    long.queue("orders").add("b", b"2", replace=True)
    long.queue("orders").add("c", b"2")
    opened_by(long).commit()
    add(store, ["a"], b"2")
    assert places(store, "orders/search") == {"a": [1, 2], "b": [1], "c": [1]}
    assert places(store, "orders/late") == {"a": [2], "b": [1], "c": [1]}
    with store.first_load("orders/late") as load:
        load.add("z", b"0")
    assert places(store, "orders/late")["z"] == [2]
    sinks = {name: MemorySink() for name in ("search", "cache", "late")}
    for name, sink in sinks.items():
        assert [layout.number for layout in store.queue("orders/cache").older] == [1], f"before {name}"
        drained(store, sink, f"orders/{name}")
        assert values(sink) == {"a": b"2", "b": b"2", "c": b"2"} | ({"z": b"0"} if name == "late" else {})
    assert store.queue("orders/search").older == (), "closed once all of them had drained it"


def test_a_bound_transaction_is_waited_for_and_its_user_never(
    orders: Store, bound: Callable[[Store], Any], open_store: Callable[[], Store]
) -> None:
    with open_store() as mine, bound(mine) as connection:
        with mine.transaction(connection=connection) as tx:
            tx.queue("orders").add("a", b"1")
        with pytest.raises(QueueBusy):
            alter_queue(orders.database, "orders", buckets=7, guard="seq", retry=ONCE)
        connection.commit()
    orders.alter_queue("orders", buckets=7, guard="seq")
    assert places(orders) == {"a": [1]}


@pytest.fixture
def bound(store_kind: str, store_url: str) -> Callable[[Store], Any]:
    """Opens a SQL transaction of the user's on the store's database."""
    if store_kind == "sqlite":
        pytest.skip("a SQL transaction that has written keeps out all others")

    def connect(store: Store) -> Any:
        import psycopg

        return psycopg.connect(store_url.replace("+psycopg", ""))

    return connect


# Files


def table(**entries: bytes) -> pa.Table:
    return pa.table({"key": list(entries), "value": list(entries.values())})


def segments(store: Store) -> set[tuple[int, int, int]]:
    g = schema.segment.c
    with store.database.read() as work:
        return {tuple(row) for row in work.connection.execute(sa.select(g.layout, g.first_bucket, g.end_bucket))}


def test_files_of_a_transaction_lie_in_the_layout_in_which_it_began(orders: Store) -> None:
    with orders.transaction(long=True) as tx:
        tx.queue("orders").add_batch(table(a=b"1", b=b"1"))
        orders.alter_queue("orders", **OTHER)
        tx.queue("orders").add_batch(table(a=b"2"))
        tx.queue("orders").add("b", b"2")
        orders.alter_queue("orders", buckets=5, guard="seq")
        tx.queue("orders").add_batch(table(c=b"3"))
    assert {layout for layout, *_ in segments(orders)} == {1}
    sink = MemorySink()
    assert drained(orders, sink).read == 3
    assert values(sink) == {"a": b"2", "b": b"2", "c": b"3"}
    assert orders.queue("orders").older == ()


def test_a_process_that_knows_the_queue_of_a_minute_ago_loads_into_the_new_layout(
    orders: Store, open_store: Callable[[], Store]
) -> None:
    with open_store() as other:
        with orders.transaction() as tx:  # reads the options
            tx.queue("orders")
        other.alter_queue("orders", **OTHER)
        with orders.transaction(long=True) as tx:
            tx.queue("orders").add_batch(table(**dict.fromkeys(KEYS, b"1")))
        assert segments(orders) == {(2, 0, 3), (2, 3, 6), (2, 6, 7)}
        assert sum(unit.entries for unit in other.backlog("orders")) == 40
        sink = MemorySink()
        assert drained(other, sink).read == 40


def test_files_of_a_layout_that_was_closed_under_their_writer_are_refused(orders: Store) -> None:
    long = begin(orders, kind="long")
    reports = bulk.write(orders, long.id, {"a": b"1"})
    old = orders.queue("orders")
    orders.alter_queue("orders", buckets=7, guard="fence")
    assert orders.queue("orders").older == (), "closed at once: its claims say nothing of the new units"
    with pytest.raises(LayoutClosed, match="'orders'") as caught:
        stage_segments(orders.database, long.id, old, reports)
    assert caught.value.transient
    with orders.database.read() as work:
        assert queue_of(work, "orders", long.id).layout == 2
    bulk.add(long, orders, {"a": b"1"})
    opened_by(long).commit()
    sink = MemorySink()
    assert drained(orders, sink).read == 1


def test_a_commit_of_files_that_an_older_client_has_staged_for_a_closed_layout_is_refused(orders: Store) -> None:
    long = begin(orders, kind="long")
    bulk.add(long, orders, {"a": b"1"})
    g = schema.segment
    with orders.database.begin() as work:
        work.connection.execute(g.update().values(layout=3))
    orders.alter_queue("orders", **OTHER)
    with pytest.raises(Exception, match="layout of the queue that is closed|layout that was closed"):
        opened_by(long).commit()
    opened_by(long).abort()
    assert orders.backlog("orders") == []


# Dead letters


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_dead_letter_comes_back_where_it_was(orders: Store, *, is_closed: bool) -> None:
    add(orders, KEYS[:3])
    assert drained(orders, MemorySink(), exporter=lambda entry: [entry]).dead == 3
    add(orders, KEYS[:2], b"2")
    orders.alter_queue("orders", **OTHER)
    add(orders, KEYS[:1], b"3")
    sink = MemorySink()
    if is_closed:
        drained(orders, sink)
        assert orders.queue("orders").older == (), "dead letters do not keep it open"
    assert orders.dead_letters.retry("orders") == 3
    assert [layout.number for layout in orders.queue("orders").older] == [1]
    drained(orders, sink)
    assert values(sink) == {KEYS[0]: b"3", KEYS[1]: b"2", KEYS[2]: b"1"}
    assert orders.queue("orders").older == ()


def test_letters_of_a_layout_that_is_younger_than_the_look_at_the_queue_are_retried(orders: Store) -> None:
    before = orders.queue("orders")
    orders.alter_queue("orders", **OTHER)
    add(orders, KEYS[:3])
    assert drained(orders, MemorySink(), exporter=lambda entry: [entry]).dead == 3
    moved = retry_dead_letters(orders.database, before, ALL_DEAD_LETTERS, who="anna", limit=10, lock_timeout=0.0)
    assert moved == len(rows(orders)) == 3


# The guard fence


def test_for_sinks_without_ranks_a_queue_is_altered_only_while_it_is_empty(orders: Store) -> None:
    def refused(match: str) -> None:
        with pytest.raises(InvalidArgument, match=match) as caught:
            orders.alter_queue("orders", buckets=7)
        assert "--guard seq" in caught.value.hint

    add(orders, KEYS[:3])
    refused("expected an empty queue, found 3 entries and 0 dead letters")
    drained(orders, MemorySink(), exporter=lambda entry: [entry])
    refused("found 0 entries and 3 dead letters")
    orders.dead_letters.drop("orders")
    staging = begin(orders, kind="long")
    bulk.add(staging, orders, {"a": b"1"})
    refused("found 1 entries and 0 dead letters")
    opened_by(staging).abort()
    queue = orders.queue("orders")
    held = claim(orders.database, queue, queue.units()[1:2], owner=Owner("worker", "1"), lease_seconds=600)
    with pytest.raises(LockNotAvailable, match=r"\[4, 8\) by worker"):
        orders.alter_queue("orders", buckets=7)
    release(orders.database, held)
    long = begin(orders, kind="long")
    assert long.id
    assert orders.alter_queue("orders", buckets=7).older == ()
    long.queue("orders").add("a", b"1")
    opened_by(long).commit()
    assert places(orders) == {"a": [2]}, "nobody adds to a closed layout"


def test_a_sink_without_ranks_takes_nothing_while_an_older_layout_drains_out(orders: Store) -> None:
    add(orders, KEYS)
    orders.alter_queue("orders", **OTHER)
    sink = FencedMemory()
    with pytest.raises(ConfigurationError, match="layout 1 is not empty"):
        drain(orders, "orders", sink, sink_name="s", on_error="fail")


def test_a_sink_without_ranks_is_drained_into_once_older_layouts_are_empty(orders: Store) -> None:
    long = begin(orders, kind="long")
    assert long.id
    orders.alter_queue("orders", **OTHER)
    add(orders, KEYS)
    with pytest.raises(ConfigurationError, match="layout 1 is not empty"):
        drain(orders, "orders", FencedMemory(), sink_name="s", on_error="fail")
    opened_by(long).abort()
    assert drain(orders, "orders", FencedMemory(), sink_name="s", on_error="fail").read == 40


@pytest.mark.parametrize("is_younger_first", [False, True])
def test_a_batch_that_was_held_up_since_the_former_layout_does_not_pass(
    orders: Store, *, is_younger_first: bool
) -> None:
    """Of two copies of a task one may stand still in its batch, while the other one brings all and the drain ends."""
    held_up: list[tuple[Any, Any]] = []

    class HeldUp(FencedMemory):
        def _apply(self, claim: Any, operations: Any) -> Any:
            held_up.append((claim, operations))
            return super()._apply(claim, operations)

    def drain_fenced() -> None:
        drain(orders, "orders", sink, sink_name="s", on_error="fail", if_locked="skip")

    def claims_first(claims: Any) -> None:
        if is_younger_first and orders.queue("orders").layout == 2 and not younger:
            younger.append(add(orders, KEYS[1:2], b"younger"))
            drain_fenced()

    younger: list[None] = []
    sink = HeldUp(on_claim=claims_first)
    add(orders, KEYS[:1], b"old")
    drain_fenced()
    orders.alter_queue("orders", buckets=7, buckets_per_range=1, guard="fence")
    add(orders, KEYS[:1], b"new")
    drain_fenced()
    assert sink.records()[KEYS[0]] == b"new"
    with pytest.raises(LeaseLost):
        sink._apply(*held_up[0])
    assert sink.records()[KEYS[0]] == b"new"


# Options


def test_a_queue_is_configured_again_with_the_buckets_that_it_had(
    orders: Store, caplog: pytest.LogCaptureFixture
) -> None:
    orders.alter_queue("orders", **OTHER)
    with caplog.at_level(logging.WARNING):
        found = orders.configure_queue("orders", buckets=16, buckets_per_range=4, value="bytes")
    assert (found.buckets, found.buckets_per_range) == (7, 3)
    assert "had 16 buckets, 4 in a unit, and was altered since; it keeps 7 buckets, 3 in a unit" in caplog.text
    caplog.clear()
    orders.configure_queue("orders", buckets=7, buckets_per_range=3, value="bytes")
    assert caplog.text == ""
    for other in ({"buckets": 17, "buckets_per_range": 4}, {"buckets": 16, "buckets_per_range": 4, "exclusive": True}):
        with pytest.raises(OptionsDiffer):
            orders.configure_queue("orders", value="bytes", **other)  # type: ignore[arg-type]


def test_the_same_buckets_again_change_nothing_and_former_ones_make_a_new_layout(orders: Store) -> None:
    assert orders.alter_queue("orders", buckets=16, buckets_per_range=4, guard="seq").layout == 1
    orders.alter_queue("orders", **OTHER)
    back = orders.alter_queue("orders", buckets=16, buckets_per_range=4)
    assert (back.layout, back.older) == (3, ()), "an empty layout is closed at once"


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"buckets": 0}, "1 to 1000000, found 0"), ({"buckets": 3}, "buckets_per_range: .* from 1 to 3, found 4")],
)
def test_buckets_out_of_bounds_are_refused(orders: Store, options: dict[str, int], expected: str) -> None:
    with pytest.raises(InvalidArgument, match=expected):
        orders.alter_queue("orders", **options)  # type: ignore[arg-type]
    assert orders.queue("orders").layout == 1


# Deaths


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_alteration_that_dies_is_made_or_not(orders: Store, open_store: Callable[[], Store], moment: str) -> None:
    add(orders, KEYS)

    def work() -> None:
        with open_store() as mine:
            cease = queries.layouts.cease

            def die_before(*arguments: Any, **options: Any) -> None:
                cease(*arguments, **options)
                os.kill(os.getpid(), signal.SIGKILL)

            if moment == "before":
                queries.layouts.cease = die_before
            else:
                from export_queue.core.queue import options as altering

                altering.close_layouts = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            mine.alter_queue("orders", **OTHER)

    child = fork.Process(target=work, daemon=True)
    child.start()
    child.join(PATIENCE)
    assert child.exitcode == -signal.SIGKILL
    assert orders.queue("orders").layout == (1 if moment == "before" else 2)
    add(orders, KEYS, b"2")
    sink = MemorySink()
    orders.alter_queue("orders", buckets=5, guard="seq")
    assert drained(orders, sink).read == 80
    assert set(values(sink).values()) == {b"2"}
    assert orders.queue("orders").older == ()
