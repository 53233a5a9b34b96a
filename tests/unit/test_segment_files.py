"""The place of files, and a process without pyarrow."""

from __future__ import annotations

import subprocess
import sys

import pytest

from export_queue.core.errors import InvalidArgument
from export_queue.core.segments import FileReport, Slice, check_base
from export_queue.core.segments.files import joined, parent_of
from export_queue.core.store import StoreSpec


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("/data/files/", "/data/files"),
        ("file:///data/my%20files", "/data/my files"),
        ("s3://bucket/folder/", "s3://bucket/folder"),
        ("s3a://bucket", "s3://bucket"),
        ("s3://bucket/a?region=eu-west-1", "s3://bucket/a?region=eu-west-1"),
    ],
)
def test_a_place_has_one_form(given: str, expected: str) -> None:
    assert check_base(given) == expected


@pytest.mark.parametrize("given", ["data/files", "http://server/files", "s3:///files", "file://server/files", ""])
def test_what_is_no_place_is_refused(given: str) -> None:
    with pytest.raises(InvalidArgument, match="expected an absolute path"):
        check_base(given)


IN_QUERIES = [
    "s3://b/a?access_key=hidden",
    "s3://b/a?Secret_Key=hidden",
    "s3://b/a?region=x&secretAccessKey=hidden",
    "s3://b/a?session_token=hidden",
    "s3://b/a?endpoint_override=http://user:hidden@host",
    "s3://b/a?endpoint_override=http%3A%2F%2Fuser%3Ahidden%40host",
]


@pytest.mark.parametrize("given", ["s3://key:hidden@bucket/a", "s3://key@bucket/a", *IN_QUERIES])
def test_keys_in_a_place_are_refused_and_not_shown(given: str) -> None:
    with pytest.raises(InvalidArgument, match="environment") as raised:
        check_base(given)
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize("given", ["s3://key:hidden@bucket/a", *IN_QUERIES])
def test_a_password_in_the_place_of_a_described_store_is_refused(given: str) -> None:
    with pytest.raises(InvalidArgument, match="environment") as raised:
        StoreSpec(url="sqlite:////a.db", segments=given)
    assert "hidden" not in str(raised.value)


def test_the_query_of_what_is_no_place_is_not_shown() -> None:
    with pytest.raises(InvalidArgument, match="expected an absolute path") as raised:
        check_base("gs://bucket/a?json_credentials=hidden")
    assert "hidden" not in str(raised.value)


def test_a_place_may_name_its_server() -> None:
    place = "s3://bucket/a?region=eu-west-1&endpoint_override=http://127.0.0.1:9000"
    assert check_base(place) == StoreSpec(url="sqlite:////a.db", segments=place).segments == place


def test_the_place_travels_with_the_description_of_a_store() -> None:
    spec = StoreSpec(url="sqlite:////a.db", segments="s3://bucket/a")
    assert StoreSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize("base", ["/data", "s3://bucket/a", "s3://bucket/a?endpoint_override=http://host/x"])
def test_a_file_lies_in_its_folder(base: str) -> None:
    folder = joined(base, "store", "1")
    assert parent_of(joined(folder, "a.parquet")) == folder
    assert joined(folder, "a.parquet").partition("?")[0].endswith("/store/1/a.parquet")


def test_a_report_travels_as_json() -> None:
    report = FileReport("/a", 7, 3, "xxh3_128:0", (Slice(0, 5, 0, 1, 2, 3), Slice(5, 10, 1, 2, 2, 3)))
    assert FileReport.from_json(report.to_json()) == report
    assert report.entries == 4


def test_without_pyarrow_rows_are_added_and_drained_and_bulk_entries_name_the_extra() -> None:
    program = """
import sys
sys.modules["pyarrow"] = None
import tempfile
from export_queue import InvalidArgument, MemorySink, Store, drain
with Store.open(f"sqlite:///{tempfile.mkdtemp()}/a.db") as store:
    store.create()
    store.configure_queue("orders")
    with store.transaction() as tx:
        tx.queue("orders").add("a", 1)
    assert drain(store, "orders", MemorySink(), sink_name="sink").acknowledged == 1
    store.maintain()
    try:
        with store.transaction(long=True) as tx:
            tx.queue("orders").add_batch(None)
    except InvalidArgument as error:
        print(error)
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "airflow-provider-export-queue[s3]" in told.stdout
