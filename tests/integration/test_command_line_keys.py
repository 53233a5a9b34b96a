"""Single keys from the command line: ``export-queue add``, ``resend`` and ``table get``."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.command_line import run_cli

from export_queue import Delete, MemorySink, Put, Store, drain


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a store that has queues and a table."""
    path = tmp_path_factory.mktemp("prepared") / "store.db"
    with Store.open(f"sqlite:///{path}") as store:
        store.create()
        store.configure_queue("orders", buckets=16)
        store.configure_queue("airports", buckets=16, subscriptions=["search"])
        store.configure_queue("remembered", buckets=16, state=True, subscriptions=["a", "b"])
        store.configure_table("totals", row="int")
    return path


@pytest.fixture
def url(sqlite_url: str, prepared: Path) -> str:
    """The URL of a copy."""
    shutil.copyfile(prepared, sqlite_url.removeprefix("sqlite:///"))
    return sqlite_url


def pending(url: str, queue: str = "orders") -> list[tuple[str, Any]]:
    found = json.loads(run_cli("peek", queue, "--values", "--json", url=url))
    return [(one["key"], one["value"]) for one in found]


def give_input(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content)))


def test_an_added_entry_is_delivered_by_the_next_drain(url: str) -> None:
    told = run_cli("add", "orders", "anna", '{"total": 3}', url=url)
    assert "added a value of key 'anna' to queue orders" in told
    found = json.loads(run_cli("add", "orders", "ben", "--delete", "--json", url=url))
    with Store.open(url) as store:
        sink = MemorySink()
        drain(store, "orders", sink, sink_name="m", exporter=exported)
        assert sink.records() == {("q", b"anna"): b'{"total":3}'}
        assert store.is_exported(found["token"], "orders")
        assert found["seq"] == store.reports()[0]["highest_seq"]


def exported(entry: Any) -> list[Any]:
    return [Delete("q", entry.key) if entry.value is None else Put("q", entry.key, entry.value)]


def test_a_value_is_read_with_the_codec_of_the_queue(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for codec, given, stored in (("json", "[1, 2]", "[1,2]"), ("str", "two words", "two words"), ("int", "12", "12")):
        with Store.open(url) as store:
            store.configure_queue(codec, buckets=16, value=codec)
        run_cli("add", codec, "anna", given, url=url)
        give_input(monkeypatch, given.encode())
        run_cli("add", codec, "ben", "-", url=url)
        assert sorted(pending(url, codec)) == [("anna", stored), ("ben", stored)]


def test_standard_input_is_taken_byte_by_byte(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(url) as store:
        store.configure_queue("raw", buckets=16, key="bytes", value="bytes")
    give_input(monkeypatch, b"\xff\n")
    run_cli("add", "raw", "--key-hex", "ff00", "-", url=url)
    with Store.open(url) as store:
        (entry,) = store.peek("raw", values=True)
        assert (entry.position.key, entry.value) == (b"\xff\x00", b"\xff\n")
    run_cli("add", "raw", "--key-hex", "ff00", "--delete", url=url)
    run_cli("add", "raw", "a", "--", "-5", url=url)
    assert ("a", "-5") in pending(url, "raw")


MISTAKES_OF_ENTRIES = [
    (["orders", "anna"], 2, "which value? give VALUE, - for standard input, or --delete"),
    (["orders", "anna", "1", "--delete"], 2, "which value?"),
    (["orders"], 2, "which key? give it as text, or by --key-hex"),
    (["orders", "--delete"], 2, "which key?"),
    (["orders", "anna", "text"], 1, "quote JSON for the shell"),
    (["orders", "anna", "null"], 1, "give --delete instead of a value"),
    (["nothing", "anna", "1"], 1, "it has: airports, airports/search, orders, remembered"),
    (["airports/search", "OSL", "1"], 1, "airports"),
]


def test_a_mistake_with_an_entry_says_what_to_do(url: str) -> None:
    for arguments, status, told in MISTAKES_OF_ENTRIES:
        complaint = run_cli("add", *arguments, url=url, status=status)
        assert told in " ".join(complaint.replace("│", " ").split())
    assert pending(url) == []


def test_keys_are_sent_once_more_with_their_latest_values(url: str) -> None:
    with Store.open(url) as store:
        for key, value in (("anna", 1), ("anna", 2), ("ben", 1), ("ben", None)):
            with store.transaction() as tx:
                tx.queue("remembered").add(key, value)
        for reader in ("a", "b"):
            drain(store, f"remembered/{reader}", MemorySink(), sink_name=reader, exporter=exported)
    assert pending(url, "remembered/a") == []
    assert "replayed 1 entries and 1 deletes" in run_cli("resend", "remembered", "anna", "ben", url=url)
    for reader in ("remembered/a", "remembered/b"):
        assert sorted(pending(url, reader)) == [("anna", "2"), ("ben", None)]
    complaint = run_cli("resend", "remembered", "anna", "--key-hex", "6e6f", url=url, status=1, complaint=False)
    assert "1 keys are not in the source: 'no'" in complaint


MISTAKES_OF_KEYS = [
    (
        ["orders", "anna"],
        1,
        "export-queue replay orders --key KEY --source MODULE:NAME, or export-queue add orders",
    ),
    (["orders"], 2, "which keys? give them as text, or by --key-hex"),
    (["remembered/a", "anna"], 1, "--repair"),
    (["nothing", "anna"], 1, "it has: airports, airports/search, orders, remembered"),
]


def test_a_mistake_with_a_key_to_resend_says_what_to_do(url: str) -> None:
    for arguments, status, told in MISTAKES_OF_KEYS:
        complaint = run_cli("resend", *arguments, url=url, status=status)
        assert told in " ".join(complaint.replace("│", " ").split())


ROWS = [
    ("bytes", b"anna", ["anna"]),
    ("str", "anna", ["anna"]),
    ("int", -7, ["--", "-7"]),
    ("bytes", b"\xff", ["--row-hex", "ff"]),
]


def test_a_row_is_shown_with_all_its_columns(url: str) -> None:
    for number, (codec, row, given) in enumerate(ROWS):
        name = f"t{number}"
        with Store.open(url) as store:
            store.configure_table(name, row=codec, value="json")
            with store.transaction() as tx:
                for column in ("n", "m", "gone"):
                    tx.table(name).set(row, column, {"is": column})
                tx.table(name).delete(row, "gone")
                tx.table(name).set({bytes: b"zoe", str: "zoe", int: 8}[type(row)], "n", 1)
        found = json.loads(run_cli("table", "get", name, "--json", *given, url=url))
        assert [(one["column"], one["value"]) for one in found] == [("m", {"is": "m"}), ("n", {"is": "n"})]
    assert '{"is":"m"}' in run_cli("table", "get", "t1", "anna", url=url)
    (one,) = json.loads(run_cli("table", "get", "t1", "anna", "--column", "n", "--json", url=url))
    assert one["column"] == "n"
    assert "perhaps more" in run_cli("table", "get", "t1", "anna", "--limit", "1", url=url)


MISTAKES_OF_ROWS = [
    (["nothing", "anna"], 1, "the store has no table 'nothing'; it has: totals"),
    (["totals"], 2, "which row? give it as text, or by --row-hex"),
    (["totals", "anna"], 1, "rows of table 'totals' have the codec int, which cannot read 'anna'"),
]


def test_a_mistake_with_a_row_says_what_to_do(url: str) -> None:
    for arguments, status, told in MISTAKES_OF_ROWS:
        complaint = run_cli("table", "get", *arguments, url=url, status=status)
        assert told in " ".join(complaint.replace("│", " ").split())
    assert run_cli("table", "get", "totals", "5", url=url) == "nothing to show\n"
