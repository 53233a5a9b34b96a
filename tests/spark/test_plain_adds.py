"""Rows that are added without a transaction around them: in small ones, at once, and again if a task is repeated."""

from __future__ import annotations

from typing import Any

import pytest

from export_queue import EntryError, InvalidArgument, MemorySink, Store, StoreSpec, drain, write_transactional


@pytest.fixture
def store_url(sqlite_url: str) -> str:
    """A task opens the store by its URL."""
    return sqlite_url


def waiting(store: Store) -> int:
    return sum(unit.entries for unit in store.backlog("orders"))


def drained(store: Store) -> dict[str, bytes]:
    sink = MemorySink()
    drain(store, "orders", sink, sink_name="copies")
    return {key.decode(): document for (_, key), document in sink.records().items()}


def test_rows_are_added_batch_by_batch(orders: Store, spark: Any, store_url: str) -> None:
    frame = spark.range(0, 2500, 1, 2).selectExpr("concat('k', id) as key", "id as value")
    report = write_transactional(frame, StoreSpec(url=store_url), "orders", transaction=False)
    assert (report.entries, report.queues, report.transaction) == (2500, {"orders": 2500}, None)
    seqs = {entry.position.seq for entry in orders.peek("orders", limit=1000)}
    assert len(seqs) == 4  # 1250 rows of two tasks
    assert drained(orders) == {f"k{n}": b"%d" % n for n in range(2500)}


def test_a_key_that_comes_twice_ends_at_its_later_row(orders: Store, spark: Any, store_url: str) -> None:
    frame = spark.createDataFrame([("a", 1), ("b", 1), ("a", 2), ("a", None)], "key string, value int").coalesce(1)
    write_transactional(frame, StoreSpec(url=store_url), "orders", transaction=False)
    assert waiting(orders) == 4
    assert drained(orders) == {"b": b"1"}


def test_rows_before_a_refused_one_stay(orders: Store, spark: Any, store_url: str) -> None:
    frame = spark.range(0, 1001, 1, 1).selectExpr("if(id = 1000, '', concat('k', id)) as key", "id as value")
    with pytest.raises(
        EntryError, match="row 1000 of partition 0, both counted from 0: key: expected 1 to 1024 bytes, found 0"
    ):
        write_transactional(frame, StoreSpec(url=store_url), "orders", transaction=False)
    assert waiting(orders) == 1000


def test_what_a_transaction_would_do_is_refused_without_one(orders: Store, spark: Any, store_url: str) -> None:
    frame, spec = spark.sql("select 'a' as key, 1 as value"), StoreSpec(url=store_url)
    with pytest.raises(InvalidArgument, match="expected a StoreSpec, which each task opens, found Store"):
        write_transactional(frame, orders, "orders", transaction=False)
    with pytest.raises(InvalidArgument, match="expected no tx, idempotency_key or timeout"):
        write_transactional(frame, spec, "orders", transaction=False, idempotency_key="key")
    with pytest.raises(InvalidArgument, match="expected no latest_by"):
        write_transactional(frame, spec, "orders", transaction=False, latest_by="value")


def test_an_exclusive_queue_takes_plain_adds(orders: Store, spark: Any, store_url: str) -> None:
    orders.alter_queue("orders", exclusive=True)
    frame = spark.sql("select 'a' as key, 1 as value")
    assert write_transactional(frame, StoreSpec(url=store_url), "orders", transaction=False).entries == 1
    assert waiting(orders) == 1
