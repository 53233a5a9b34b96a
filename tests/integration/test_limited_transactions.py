"""Long transactions that name the queues they may add to: readers of other queues need not wait for them."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from export_queue import InvalidArgument, MemorySink, Store, TransactionsInProgress, UnknownQueue, drain, verify
from export_queue.core.store import schema
from export_queue.core.transactions import OpenTransaction


@pytest.fixture
def shop(store: Store) -> Store:
    for name in ("customers", "orders"):
        store.configure_queue(name, buckets=4, buckets_per_range=2, state=True)
    return store


def mirrored(store: Store, name: str, *keys: str) -> Any:
    return store.mirror(name, [(key, {"n": key}) for key in keys], max_deletes=1.0, settle_timeout=0.0)


def content(store: Store, name: str) -> dict[str, Any]:
    return dict(store.state(name).scan())


def test_a_transaction_of_another_queue_holds_no_mirror_up(shop: Store) -> None:
    nightly = shop.begin(queues=["orders"])
    assert mirrored(shop, "customers", "a", "b").new == 2
    assert content(shop, "customers") == {"a": {"n": "a"}, "b": {"n": "b"}}
    with pytest.raises(TransactionsInProgress, match=nightly["id"]):
        mirrored(shop, "orders", "x")
    with shop.resume(json.loads(json.dumps(nightly))) as tx:
        tx.queue("orders").add("y", 1)
    shop.commit(nightly)
    assert mirrored(shop, "orders", "x").deleted == 1


def test_a_transaction_that_names_no_queue_holds_all_mirrors_up(shop: Store) -> None:
    nightly = shop.begin()
    with pytest.raises(TransactionsInProgress, match=nightly["id"]):
        mirrored(shop, "customers", "a")
    shop.abort(nightly)
    assert mirrored(shop, "customers", "a").new == 1


def test_what_has_made_checkpoints_still_holds_only_its_own_queues_up(shop: Store) -> None:
    with shop.transaction(long=True, queues=["orders"]) as tx:
        for n in range(3):
            tx.queue("orders").add("y", n, replace=True)
            tx.checkpoint()
            assert mirrored(shop, "customers", "a", str(n)).new
        with pytest.raises(TransactionsInProgress):
            mirrored(shop, "orders", "x")
    assert content(shop, "orders") == {"y": 2}


def test_mirrors_of_different_queues_do_not_wait_for_each_other(shop: Store) -> None:
    """The data of the first one end only after the second one has committed."""
    done = threading.Event()

    def slow() -> Any:
        yield "x", {"n": "x"}
        assert done.wait(60)
        yield "y", {"n": "y"}

    def first() -> None:
        reports.append(shop.mirror("orders", slow, settle_timeout=0.0))

    reports: list[Any] = []
    thread = threading.Thread(target=first)
    thread.start()
    try:
        reports.append(mirrored(shop, "customers", "a"))
    finally:
        done.set()
        thread.join()
    assert [report.new for report in reports] == [1, 2]


def test_other_queues_are_refused(shop: Store) -> None:
    with shop.transaction(long=True, queues=["orders"]) as tx:
        with pytest.raises(InvalidArgument, match=r"may add to 'orders', found 'customers'.*\n?.*queues=\["):
            tx.queue("customers")
        tx.queue("orders").add("y", 1)
    with shop.resume(nightly := shop.begin(queues=["orders"])) as tx, pytest.raises(InvalidArgument, match="customers"):
        tx.queue("customers")
    shop.abort(nightly)
    assert content(shop, "orders") == {"y": 1}


@pytest.mark.parametrize(
    ("queues", "error", "found"),
    [
        ("orders", InvalidArgument, "expected a list of queues"),
        (["nothing"], UnknownQueue, "nothing"),
        (["orders/@state"], InvalidArgument, "orders/@state"),
    ],
)
def test_wrong_names_are_refused_before_anything_begins(
    shop: Store, queues: Any, error: type[Exception], found: str
) -> None:
    with pytest.raises(error, match=found):
        shop.begin(queues=queues)
    with pytest.raises(error, match=found), shop.transaction(long=True, queues=queues):
        pass
    assert mirrored(shop, "orders", "x").new == 1  # nothing is in progress


def test_only_long_transactions_name_queues(shop: Store) -> None:
    with pytest.raises(InvalidArgument, match="long=True"), shop.transaction(queues=["orders"]):
        pass


def test_a_drain_and_verify_see_past_it(shop: Store) -> None:
    """An older transaction commits later than entries of another queue were drained and compared."""
    nightly = shop.begin(queues=["orders"])
    sink = MemorySink()
    for n in range(3):
        with shop.transaction() as tx:
            tx.queue("customers").add("a", n)
        drain(shop, "customers", sink, sink_name="memory")
    report = verify(shop, "customers", sink, sink_name="memory")
    assert (report.differences, report.compared) == (0, 1)
    assert report.cut > int(nightly["id"])
    with shop.resume(nightly) as tx:
        tx.queue("orders").add("y", 1)
    shop.commit(nightly)
    assert content(shop, "orders") == {"y": 1}
    assert content(shop, "customers") == {"a": 2}


def operate(store: Store, operation: str, number: int = 0) -> Any:
    if operation == "replay":
        return store.replay("orders", all_keys=True, settle_timeout=0.0)
    if operation == "roll back":
        return store.state("orders").rollback(to=number, settle_timeout=0.0)
    return store.mirror("orders", [("x", 1)], max_deletes=1.0, settle_timeout=0.0, dry_run=operation == "dry run")


@pytest.mark.parametrize("operation", ["mirror", "dry run", "replay", "roll back"])
def test_what_was_killed_once_it_was_registered_holds_nothing_up(
    shop: Store, open_store: Callable[[], Store], operation: str
) -> None:
    with shop.transaction() as tx:
        tx.queue("orders").add("y", 1)
        number = tx.id

    def registered_and_killed() -> None:
        def kill(*_: Any, **__: Any) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

        OpenTransaction._wait_for_older = kill  # type: ignore[method-assign]
        with open_store() as opened:
            operate(opened, operation, number)

    process = multiprocessing.get_context("fork").Process(target=registered_and_killed)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with shop.database.read() as work:
        assert work.connection.scalar(sa.select(sa.func.count()).select_from(schema.active)) == 1
    operate(shop, operation, number)
    if operation == "dry run":  # nobody at all waits for it
        operate(shop, "mirror")
        shop.alter_queue("orders", state=False)
        shop.alter_queue("orders", state=True)
        assert shop.first_load("orders/@state", source=lambda: [("x", 1)], settle_timeout=0.0).entries == 1
