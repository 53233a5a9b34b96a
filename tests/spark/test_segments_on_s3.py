"""A DataFrame whose files lie in an object store: Spark's tasks reach it by Arrow, with the environment's keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.s3 import READER, WRITER, Keys, S3Server

from export_queue import (
    MemorySink,
    SegmentRefused,
    Store,
    StoreSpec,
    drain,
    register_data_source,
    verify,
    write_transactional,
)

ROWS = 500
EXPECTED = {("orders", b"k%d" % n): b'{"n":%d}' % n for n in range(ROWS)}


@pytest.fixture
def store_url(sqlite_url: str) -> str:
    """What kind of store names the files is all the same."""
    return sqlite_url


@pytest.fixture
def on_s3(orders: Store, s3_server: S3Server, s3_bucket: str) -> Store:
    orders.database.segments = s3_server.place(s3_bucket).replace("s3:", "s3a:", 1)
    return orders


@pytest.fixture
def rows(spark: Any) -> Iterator[Any]:
    yield spark.range(0, ROWS, 1, 3).selectExpr("concat('k', id) as key", "named_struct('n', id) as value")
    spark.sparkContext.environment.clear()


def give_tasks(spark: Any, keys: Keys) -> None:
    """Let the workers of this session have keys, as the environment of an executor has them."""
    spark.sparkContext.environment |= {**keys.variables, "AWS_EC2_METADATA_DISABLED": "true"}


def drained(store: Store, name: str) -> dict[tuple[str, bytes], Any]:
    sink = MemorySink(f"{store.id} {name}")
    drain(store, "orders", sink, sink_name="sink")
    return sink.records()


def test_a_frame_is_written_by_tasks_that_may_only_write_and_drained_by_a_process_that_may_only_read(
    on_s3: Store, rows: Any, spark: Any, s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_tasks(spark, s3_server.user(*WRITER))
    report = write_transactional(rows, on_s3, "orders")
    assert report.entries == ROWS
    assert all(one.startswith(f"s3://{s3_bucket}/queue/{on_s3.id}/") for one in on_s3.bulk_files())
    for name, value in s3_server.user(*READER).variables.items():
        monkeypatch.setenv(name, value)
    assert drained(on_s3, "frame") == EXPECTED


@pytest.mark.full("one more way of writing, by the same code")
def test_sparks_own_interface_takes_the_same_place(
    on_s3: Store, rows: Any, spark: Any, s3_server: S3Server, s3_bucket: str, store_url: str
) -> None:
    give_tasks(spark, s3_server.owner)
    register_data_source(spark)
    write = rows.write.format("export_queue").mode("append").option("url", store_url).option("queue", "orders")
    write.option("segments", str(on_s3.database.segments)).save()
    assert drained(on_s3, "source") == EXPECTED


def test_tasks_without_rights_end_the_load_with_what_the_object_store_said(
    on_s3: Store, rows: Any, spark: Any, s3_server: S3Server
) -> None:
    keys = s3_server.user(*READER)
    give_tasks(spark, keys)
    with pytest.raises(SegmentRefused, match="AWS Error ACCESS_DENIED") as caught:
        write_transactional(rows, on_s3, "orders")
    assert keys.secret not in str(caught.value)
    assert on_s3.backlog("orders") == []


def test_a_mirror_by_tasks_and_its_state_are_in_the_object_store(
    store: Store, store_url: str, spark: Any, rows: Any, s3_server: S3Server, s3_bucket: str
) -> None:
    give_tasks(spark, s3_server.owner)
    spec = StoreSpec(url=store_url, segments=s3_server.place(s3_bucket))
    store.database.segments = spec.segments
    store.configure_queue("orders", buckets=20, buckets_per_range=5, state=True)
    first = write_transactional(rows, spec, "orders", mode="mirror")
    assert (first.new, len(s3_server.objects(s3_bucket)) > 0) == (ROWS, True)
    later = rows.where("key <> 'k7'")
    second = write_transactional(later, spec, "orders", mode="mirror")
    assert (second.deleted, second.unchanged) == (1, ROWS - 1)
    register_data_source(spark)
    read = spark.read.format("export_queue").option("url", store_url).option("segments", spec.segments)
    assert read.option("queue", "orders").load().count() == ROWS - 1
    sink = MemorySink(f"{store.id} mirror")
    drain(store, "orders", sink, sink_name="sink")
    assert sink.records() == {key: value for key, value in EXPECTED.items() if key[1] != b"k7"}
    assert verify(store, "orders", sink, sink_name="sink").differences == 0
