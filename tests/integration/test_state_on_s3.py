"""The state of a queue whose files are in an object store: mirrors, rollbacks, first loads, clean-up, verify."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.support.s3 import READER, S3Server

from export_queue import Candidates, MemorySink, SegmentLost, Store, drain, verify
from export_queue.core.segments import compact, vacuum_segments
from export_queue.core.state import mirror as mirrors

pytestmark = pytest.mark.one_store("which rows name the files is the same on each store")
FIRST = {f"k{n}": n for n in range(200)}
SECOND = {f"k{n}": n % 150 for n in range(50, 250)}


@pytest.fixture
def orders(store: Store, s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A queue with a state and a reader; differences of 100 entries become files in the bucket."""
    monkeypatch.setattr(mirrors, "_FILES_FROM", 100)
    store.database.segments = s3_server.place(s3_bucket)
    store.configure_queue("orders", buckets=8, buckets_per_range=4, subscriptions=["cache"], state=True, history="1h")
    return store


def mirrored(store: Store, data: dict[str, int]) -> None:
    store.mirror("orders", data.items(), max_deletes=1.0)


def state_of(store: Store, **options: Any) -> dict[str, int]:
    return dict(store.state("orders").scan(**options))


def check_sink(store: Store, reader: str, sink: MemorySink, expected: dict[str, int]) -> None:
    """Drain a reader, and let the sink be compared with the state."""
    drain(store, reader, sink, sink_name="memory")
    assert {key.decode(): int(document) for (_, key), document in sink.records().items()} == expected
    report = verify(store, reader, sink, sink_name="memory")
    assert report.differences == 0, report.lines()
    assert report.compared >= len(expected)


def objects(server: S3Server, bucket: str) -> set[str]:
    return {key for key in server.objects(bucket) if key.endswith(".parquet")}


def named(store: Store) -> set[str]:
    """The objects that the store's rows name."""
    return {urlsplit(file).path.lstrip("/") for file in store.bulk_files()}


def test_mirrors_and_rollbacks_write_and_read_objects(orders: Store, s3_server: S3Server, s3_bucket: str) -> None:
    sink = MemorySink()
    mirrored(orders, FIRST)
    (good,) = {int(key.split("/")[2]) for key in objects(s3_server, s3_bucket)}
    check_sink(orders, "orders/cache", sink, FIRST)
    mirrored(orders, SECOND)
    assert state_of(orders) == SECOND
    assert state_of(orders, as_of=good) == FIRST
    assert orders.state("orders").get("k7", as_of=good) == 7
    check_sink(orders, "orders/cache", sink, SECOND)
    written = objects(s3_server, s3_bucket)
    orders.state("orders").rollback(to=good)
    assert objects(s3_server, s3_bucket) > written
    assert state_of(orders) == FIRST
    check_sink(orders, "orders/cache", sink, FIRST)


def test_a_first_load_shares_objects_that_clean_up_leaves_alone(
    orders: Store, s3_server: S3Server, s3_bucket: str
) -> None:
    for data in (FIRST, SECOND):
        mirrored(orders, data)
    check_sink(orders, "orders/cache", MemorySink(), SECOND)
    compact(orders.database, "orders/@state", wanted=Candidates(least=2))
    orders.subscribe("orders", "search")
    report = orders.first_load("orders/search", source="state")
    assert report.shared == report.entries >= len(SECOND)
    mirrored(orders, FIRST)
    compact(orders.database, "orders/@state", wanted=Candidates(least=2))
    for _ in range(2):
        vacuum_segments(orders.database, grace_seconds=0.0, zombie_seconds=0.0, hidden_seconds=0.0)
    assert objects(s3_server, s3_bucket) == named(orders)
    assert state_of(orders) == FIRST
    check_sink(orders, "orders/search", MemorySink(), FIRST)


def test_a_state_is_read_with_the_right_to_read_objects(
    orders: Store, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrored(orders, FIRST)
    for name, value in s3_server.user(*READER).variables.items():
        monkeypatch.setenv(name, value)
    assert state_of(orders) == FIRST
    assert (orders.state("orders").get("k7"), orders.state("orders").get("k700")) == (7, None)
    check_sink(orders, "orders/cache", MemorySink(), FIRST)


def test_a_state_that_lost_an_object_names_it(orders: Store, s3_server: S3Server, s3_bucket: str) -> None:
    mirrored(orders, FIRST)
    key = min(objects(s3_server, s3_bucket))
    content = s3_server.read(s3_bucket, key)
    s3_server.delete(s3_bucket, key)
    for read in (state_of, lambda store: mirrored(store, SECOND)):
        with pytest.raises(SegmentLost, match=key):
            read(orders)
    s3_server.write(s3_bucket, key, content)
    assert state_of(orders) == FIRST
