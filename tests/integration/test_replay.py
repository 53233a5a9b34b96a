"""Replays: what a source has is added again, and no older value wins (I9, I16)."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import pytest
from tests.integration.test_mirror import waiting_ids
from tests.support.waiting import wait_until

from export_queue import (
    ConflictError,
    InvalidArgument,
    MemorySink,
    Store,
    TransactionsInProgress,
    drain,
)

pytestmark = pytest.mark.timeout(120)
fork = multiprocessing.get_context("fork")
module: Any = import_module("export_queue.core.verify.replay")


@pytest.fixture
def orders(store: Store) -> Store:
    store.configure_queue("orders", buckets=16, buckets_per_range=4, state=True)
    for name in ("one", "two"):
        store.subscribe("orders", name)
    return store


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = import_module("export_queue.core.sources.state")
    monkeypatch.setattr(module, "PART", 5)
    monkeypatch.setattr(reading, "PAGE_ROWS", 3)


def add(store: Store, entries: dict[str, Any]) -> None:
    with store.transaction() as tx:
        for key, value in entries.items():
            tx.queue("orders").add(key, value)


def drained(store: Store, name: str, sink: MemorySink) -> dict[str, Any]:
    drain(store, f"orders/{name}", sink, sink_name=name)
    return {record.decode(): document for (_, record), document in sink.records().items()}


def fill(store: Store) -> None:
    add(store, {f"r{n:02}": {"n": n} for n in range(40)})
    add(store, {f"r{n:02}": {"n": -n} for n in range(10)})
    add(store, {f"r{n:02}": None for n in range(35, 40)})


def test_everything_is_replayed_to_all_subscriptions(orders: Store, small_parts: None) -> None:
    fill(orders)
    sinks = {name: MemorySink() for name in ("one", "two")}
    before = {name: drained(orders, name, sink) for name, sink in sinks.items()}
    report = orders.replay("orders", all_keys=True)
    assert (report.replayed, report.deleted, report.absent) == (35, 0, 0)
    assert report.transactions > 3, "5 entries in each, and more only in one bucket"
    pending = {one.position.key.decode() for one in orders.peek("orders/one", limit=100)}
    assert pending == {f"r{n:02}" for n in range(35)}
    for name, sink in sinks.items():
        sink._contents.documents.clear()
        assert drained(orders, name, sink) == before[name], "the exporter gets the same keys and values again"
    assert dict(orders.state("orders").scan()) == {f"r{n:02}": {"n": -n if n < 10 else n} for n in range(35)}


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({"prefix": "r1"}, {f"r1{n}" for n in range(10)}),
        ({"key_range": ("r05", "r08")}, {"r05", "r06", "r07"}),
        ({"keys": ["r03", "r36", "x"]}, {"r03", "r36"}),
        ({"prefix": "r3"}, {f"r3{n}" for n in range(5)}),
    ],
)
def test_keys_are_chosen(orders: Store, options: dict[str, Any], keys: set[str]) -> None:
    fill(orders)
    drained(orders, "one", MemorySink())
    report = orders.replay("orders", **options)
    pending = list(orders.peek("orders/one", limit=100))
    assert {one.position.key.decode() for one in pending} == keys
    if "keys" in options:
        assert (report.replayed, report.deleted, report.absent, report.samples) == (1, 1, 1, ["x"])
        assert {one.position.key for one in pending if one.value_bytes is None} == {b"r36"}
        assert "not in the source: 'x'" in report.line()


@pytest.mark.parametrize("buckets", [3, 64])
@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("options", [{"all_keys": True}, {"keys": [f"r{n:02}" for n in range(35)]}])
def test_nothing_is_left_out_if_the_buckets_are_altered_meanwhile(
    orders: Store, small_parts: None, monkeypatch: pytest.MonkeyPatch, buckets: int, at: int, options: dict[str, Any]
) -> None:
    fill(orders)
    sink = MemorySink()
    drained(orders, "one", sink)
    original, parts = module.Replay._replay_part, 0

    def altered(*arguments: Any) -> int | None:
        nonlocal parts
        parts += 1
        if parts == at:
            orders.alter_queue("orders", buckets=buckets, buckets_per_range=1, guard="seq")
        return original(*arguments)

    monkeypatch.setattr(module.Replay, "_replay_part", altered)
    report = orders.replay("orders", **options)
    assert report.absent == 0
    pending = {one.position.key.decode() for one in orders.peek("orders/one", limit=1000)}
    assert pending == {f"r{n:02}" for n in range(35)}
    assert len(drained(orders, "one", sink)) == 35


def test_an_older_transaction_is_waited_for_and_then_wins(orders: Store) -> None:
    fill(orders)
    older = orders.begin()
    with orders.resume(older) as tx:
        tx.queue("orders").add("r03", {"n": "older"})
    with pytest.raises(TransactionsInProgress):
        orders.replay("orders", all_keys=True, settle_timeout=0.1)
    with ThreadPoolExecutor(1) as pool:
        replay = pool.submit(orders.replay, "orders", all_keys=True)
        wait_until(lambda: replay.done() or len(waiting_ids(orders)) == 2, "the replay does not begin")
        orders.commit(older)
        assert replay.result().replayed == 35
    assert orders.state("orders").get("r03") == {"n": "older"}


def test_what_is_committed_between_reading_and_adding_is_not_overwritten(
    orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(orders)
    add_part = module.Part.add

    def add_late(*arguments: Any) -> Any:
        following = add_part(*arguments)
        add(orders, {"r03": {"n": "newer"}, "r04": None})
        return following

    monkeypatch.setattr(module.Part, "add", add_late)
    orders.replay("orders", all_keys=True)
    assert orders.state("orders").get("r03") == {"n": "newer"}
    assert orders.state("orders").get("r04") is None
    records = drained(orders, "one", MemorySink())
    assert "r04" not in records
    assert b"newer" in records["r03"]


def test_a_function_is_a_source(store: Store) -> None:
    store.configure_queue("orders", buckets=16)
    report = store.replay("orders", prefix="a", source=lambda: [("a1", 1), ("a2", 2), ("b", 3)])
    assert (report.replayed, report.transactions) == (2, 1)
    assert {one.position.key for one in store.peek("orders", limit=9)} == {b"a1", b"a2"}
    report = store.replay("orders", keys=["zz"], source=lambda: [("a1", 1)])
    assert (report.replayed, report.absent, report.transactions) == (0, 1, 0)


def test_a_bad_selection_is_refused(orders: Store) -> None:
    for options in ({}, {"prefix": "a", "all_keys": True}):
        with pytest.raises(InvalidArgument, match="expected one of keys, prefix, key_range or all_keys=True"):
            orders.replay("orders", **options)
    with pytest.raises(InvalidArgument, match="expected a list of keys, found str"):
        orders.replay("orders", keys="r01")
    with pytest.raises(InvalidArgument, match="expected a queue, found subscription 'orders/one'"):
        orders.replay("orders/one", all_keys=True)
    with pytest.raises(InvalidArgument, match="key_range"):
        orders.replay("orders", key_range=["a"])
    with pytest.raises(InvalidArgument, match="expected a source"):
        orders.replay("orders", all_keys=True, source=7)


def replay_until_killed(open_store: Callable[[], Store], at: int, after: bool) -> None:
    module.PART = 5
    replay_part, parts = module.Replay._replay_part, iter(range(1, 100))

    def killed(*arguments: Any) -> Any:
        last = next(parts) == at
        if last and not after:
            module.Part.add = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
        following = replay_part(*arguments)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return following

    module.Replay._replay_part = killed
    with open_store() as store:
        store.replay("orders", all_keys=True)


@pytest.mark.parametrize(("at", "after"), [(1, False), (1, True), (3, False)])
def test_a_replay_that_is_killed_is_repeated(
    orders: Store, open_store: Callable[[], Store], small_parts: None, at: int, after: bool
) -> None:
    fill(orders)
    sink = MemorySink()
    drained(orders, "one", sink)
    sink._contents.documents.clear()
    one = fork.Process(target=replay_until_killed, args=(open_store, at, after))
    one.start()
    one.join(60)
    assert one.exitcode == -signal.SIGKILL
    add(orders, {"r20": {"n": "newer"}, "r21": None})
    report = orders.replay("orders", all_keys=True, settle_timeout=20)
    assert report.replayed == 34
    records = drained(orders, "one", sink)
    assert set(records) == {f"r{n:02}" for n in range(35) if n != 21}
    assert b"newer" in records["r20"]
    assert b"-3" in records["r03"]


def test_replays_next_to_writers_end_with_the_newest_values(
    orders: Store, open_store: Callable[[], Store], small_parts: None
) -> None:
    stop, last, errors = threading.Event(), dict[str, int](), list[BaseException]()

    def write(name: int) -> None:
        try:
            with open_store() as store:
                for n in range(100_000):
                    if stop.is_set():
                        return
                    key = f"w{name}-{n % 7}"
                    with contextlib.suppress(ConflictError):
                        add(store, {key: n})
                        last[key] = n
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(name,)) for name in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(4):
            orders.replay("orders", all_keys=True)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors
    assert dict(orders.state("orders").scan()) == last
    records = drained(orders, "one", MemorySink())
    assert {key: int(value) for key, value in records.items()} == last
