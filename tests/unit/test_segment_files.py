"""The place of files, and a process without pyarrow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from export_queue import InvalidArgument, Store, StoreSpec
from export_queue.core.segments import FileReport, Slice, check_base
from export_queue.core.segments.files import joined, parent_of


def described(place: Any) -> StoreSpec:
    return StoreSpec(url="sqlite:////a.db", segments=place)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("/data/files/", "/data/files"),
        ("file:///data/my%20files", "/data/my files"),
        ("s3://bucket/folder/", "s3://bucket/folder"),
        ("s3a://bucket", "s3://bucket"),
        ("s3://bucket/a?region=eu-west-1", "s3://bucket/a?region=eu-west-1"),
        ("S3://bucket/My Folder/", "s3://bucket/My%20Folder"),
        ("s3://bucket/My%20Folder", "s3://bucket/My%20Folder"),
        ("s3://bucket/%23a%3F", "s3://bucket/%23a%3F"),
        ("s3://bucket/a?endpoint_override=[::1]:9", "s3://bucket/a?endpoint_override=%5B::1%5D:9"),
        ("s3://bucket/a?endpoint_override=http%3A%2F%2Fhost%3A9", "s3://bucket/a?endpoint_override=http://host:9"),
        ("s3://b/a?tls_ca_file_path=/etc/ca.pem", "s3://b/a?tls_ca_file_path=/etc/ca.pem"),
        ("/data//files#1?", "/data/files#1?"),
        ("file:///data/100%25", "/data/100%"),
    ],
)
def test_a_place_has_one_form(given: str, expected: str) -> None:
    assert check_base(given) == expected


NO_PLACES = {
    "expected an absolute path": ["data/files", "http://a/b", "file://server/files", "file:data", "", "s3:/b/a"],
    "name of a bucket": ["s3:///files", "s3://", "s3://?region=a", "s3://host:9000/a", "s3://my bucket/a", "s3://-/a"],
    "without '#'": ["s3://exports/team#1/queue?region=a", "s3://b#", "s3://b/a?region=x#y"],
    r"without '\?' and '#'": ["file:///data/a?b", "file:///data/a#b"],
    "expected the options": [
        "s3://b/a?regoin=x",
        "s3://b?",
        "s3://b/a?region=x&",
        "s3://b?Region=x",
        "s3://b?;region=a",
    ],
    "once, found it twice": ["s3://b/a?region=x&region=y", "s3://b?scheme=http&scheme=http"],
    "option region": ["s3://b?region=", "s3://b?region", "s3://b?region=a%26scheme=http", "s3://b?region=a+b"],
    "option scheme": ["s3://b?scheme=ftp", "s3://b?scheme=HTTP"],
    "option endpoint_override": ["h:1/path", "ftp://h", "", "h:123456", "h?x"],
    "one scheme": ["s3://b?scheme=https&endpoint_override=http://h"],
    "without '.' and '..'": ["/data/../a", "s3://b/../a", "s3://b/a/%2e%2e/c", "/data/./a", "file:///a/.."],
    "empty names": ["s3://b//a", "s3://b/a//c"],
    "each '%'": ["s3://b/100%", "s3://b/a%2Fb", "file:///a%zz"],
    "UTF-8": ["s3://b/%ff"],
    "control characters": ["s3://b/a\n", "s3://b/a%0A", " /data", "/data ", "/da\x00ta", "s3://b/\ta"],
    "found PosixPath": [Path("/data")],
    "found bytes": [b"/data"],
}


@pytest.mark.parametrize(
    ("message", "given"), [(message, one) for message, several in NO_PLACES.items() for one in several]
)
def test_what_is_no_place_is_refused(message: str, given: Any) -> None:
    if "endpoint" in message:
        given = f"s3://b/a?endpoint_override={given}"
    for take in (check_base, described, lambda place: Store.open("sqlite:////a.db", segments=place)):
        with pytest.raises(InvalidArgument, match=message):
            take(given)


IN_QUERIES = [
    "s3://b/a?access_key=hidden",
    "s3://b/a?Secret_Key=hidden",
    "s3://b/a?region=x&secretAccessKey=hidden",
    "s3://b/a?session_token=hidden",
    "s3://b/a?endpoint_override=http://user:hidden@host",
    "s3://b/a?endpoint_override=http%3A%2F%2Fuser%3Ahidden%40host",
    "s3://b/a?endpoint_override=KEY:hidden@127.0.0.1:9",
    "s3://b/a?endpoint_override=KEY%3Ahidden%40host",
    "s3://b/a?region=KEY:hidden@eu-west-1",
    "s3://b/a?KEY:hidden",
    "s3://b/KEY:hidden@host/a",
    "s3://b/KEY%3Ahidden%40host/a",
    "s3://b/KEY:hid/den@host/a",
    "s3://b/a?tls_ca_file_path=/KEY:hidden@host",
    "/KEY:hidden@host/a",
    "/KEY:hidden/hidden@host/a",
    "file:///KEY:hidden@host/a",
    "s3://KEY%3Ahidden@b/a",
]
NOT_SHOWN = [*IN_QUERIES, "s3://b/a?region=eu&KEYhidden=x", "s3://key:hidden@b#/a", "key:hidden@b/a", "s3:key:hidden@b"]


@pytest.mark.parametrize("given", ["s3://key:hidden@bucket/a", "s3://key@bucket/a", *IN_QUERIES])
def test_keys_in_a_place_are_refused_and_not_shown(given: str) -> None:
    with pytest.raises(InvalidArgument, match="environment") as raised:
        check_base(given)
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize("given", [*NOT_SHOWN, "gs://bucket/a?json_credentials=hidden", "gs://key:hidden@b"])
def test_what_may_be_a_secret_in_a_refused_place_is_not_shown(given: str) -> None:
    for take in (check_base, described, lambda place: Store.open("sqlite:////a.db", segments=place)):
        with pytest.raises(InvalidArgument) as raised:
            take(given)
        assert "hidden" not in f"{raised.value}{raised.value.__cause__}{raised.value.__context__}"


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


def test_a_report_survives_json() -> None:
    report = FileReport("/a", 7, 3, "xxh3_128:0", (Slice(0, 5, 0, 1, 2, 3, 1, 7, 9), Slice(5, 10, 1, 2, 2, 3, 1, 8, 8)))
    assert msgspec.json.decode(msgspec.json.encode(report), type=FileReport) == report
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
