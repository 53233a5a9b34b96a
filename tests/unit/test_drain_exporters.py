"""Finding an exporter and calling it entry by entry."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from export_queue import Delete, Entry, ExporterError, Put, SinkUnavailable
from export_queue.core.drain import load_exporter
from export_queue.core.queue import Entries, Queue

QUEUE = Queue(
    id="orders",
    number=1,
    layout=1,
    buckets=10,
    buckets_per_range=5,
    key="str",
    value="json",
    max_value_bytes=1000,
    exclusive=False,
    sink=None,
)


def entries(*rows: tuple[str, object, int]) -> Entries:
    values = [None if value is None else json.dumps(value).encode() for _, value, _ in rows]
    return Entries([0] * len(rows), [key.encode() for key, _, _ in rows], [seq for _, _, seq in rows], values)


def swap(entry: Entry) -> Iterator[Put | Delete]:
    yield Delete("index", entry.value["old"])
    yield Put("index", entry.value["new"], {"key": entry.key, "seq": entry.seq})


class Remembering:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def open(self) -> None:
        self.calls.append("open")

    def export(self, entry: Entry) -> list[Put]:
        self.calls.append(entry.key)
        return [Put("c", entry.key, entry.value)]

    def close(self) -> None:
        self.calls.append("close")


def test_the_default_copies_keys_and_values_and_deletes_at_null():
    exported = load_exporter(None).export(QUEUE, entries(("a", {"n": 1}, 5), ("b", None, 6)))
    operations = exported.operations
    assert list(operations.collections) == ["orders", "orders"]
    assert list(operations.ids) == [b"a", b"b"]
    assert list(operations.documents) == [b'{"n": 1}', None]
    assert (list(operations.seqs), list(operations.entries)) == ([5, 6], [0, 1])
    assert exported.failures == {}


def test_a_function_gets_decoded_entries_and_its_operations_carry_their_seq():
    exported = load_exporter(swap).export(QUEUE, entries(("a", {"old": "1", "new": "2"}, 5)))
    operations = exported.operations
    assert operations.ids == [b"1", b"2"]
    assert operations.documents == [None, b'{"key":"a","seq":5}']
    assert (operations.seqs, operations.entries) == ([5, 5], [0, 0])


def test_an_exporter_is_found_by_its_import_path(tmp_path, monkeypatch):
    (tmp_path / "my_exports.py").write_text(
        "from export_queue.core.sinks import Put\n"
        "def export(entry):\n    return [Put('c', entry.key, entry.value)]\n"
        "class Holder:\n    inner = staticmethod(export)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for path in ("my_exports:export", "my_exports:Holder.inner"):
        assert load_exporter(path).export(QUEUE, entries(("a", 1, 5))).operations.ids == [b"a"]


@pytest.mark.parametrize("given", [Remembering(), Remembering])
def test_an_object_or_a_class_of_objects_is_opened_and_closed_around_the_drain(given):
    exporter = load_exporter(given)
    exporter.open()
    exporter.export(QUEUE, entries(("a", 1, 5)))
    exporter.close()
    assert exporter._owner.calls == ["open", "a", "close"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no colon", "expected an import path"),
        (":name", "expected an import path"),
        ("no_such_module:name", "No module named 'no_such_module'"),
        ("json:no_such_name", "no attribute 'no_such_name'"),
        ("json:__name__", "expected a function"),
    ],
)
def test_an_exporter_that_cannot_be_found_is_named(path, message):
    with pytest.raises(ExporterError, match=message) as caught:
        load_exporter(path)
    assert path in str(caught.value)


def test_an_entry_that_the_exporter_refuses_fails_alone_and_with_the_exporters_words():
    def picky(entry: Entry) -> Iterator[Put]:
        yield Put("c", entry.key, entry.value)
        if entry.value == "bad":
            raise LookupError("no such customer")

    exported = load_exporter(picky).export(QUEUE, entries(("a", 1, 5), ("b", "bad", 6), ("c", 2, 7)))
    assert exported.operations.ids == [b"a", b"c"], "no half of the failed entry"
    assert exported.operations.entries == [0, 2]
    (failure,) = exported.failures.values()
    assert (failure.reason, failure.error_class) == ("no such customer", "LookupError")


def test_a_refused_entry_is_offered_to_the_exporter_once_more():
    calls = []

    def forgetful(entry: Entry) -> list[Put]:
        calls.append(entry.key)
        if len(calls) == 1:
            raise LookupError("not found yet")
        return [Put("c", entry.key, 1)]

    exported = load_exporter(forgetful).export(QUEUE, entries(("a", 1, 5)))
    assert calls == ["a", "a"]
    assert (exported.failures, exported.operations.ids) == ({}, [b"a"])


@pytest.mark.parametrize("error", [SinkUnavailable("busy"), ConnectionResetError("gone")])
def test_transient_errors_of_an_exporter_do_not_belong_to_the_entry(error):
    def looking_up(entry: Entry) -> list[Put]:
        raise error

    with pytest.raises(type(error)):
        load_exporter(looking_up).export(QUEUE, entries(("a", 1, 5)))


@pytest.mark.parametrize("wrong", [["text"], [Put("c", 7, "x")], None])
def test_what_is_neither_put_nor_delete_fails_its_entry(wrong):
    exported = load_exporter(lambda entry: wrong).export(QUEUE, entries(("a", 1, 5)))
    assert list(exported.failures) == [0]
    assert len(exported.operations) == 0


def test_a_value_that_cannot_be_decoded_fails_its_entry():
    broken = Entries([0], [b"a"], [5], [b"{"])
    assert list(load_exporter(swap).export(QUEUE, broken).failures) == [0]


def test_an_exporter_that_cannot_open_says_so():
    class Broken:
        def open(self) -> None:
            raise KeyError("settings")

        def export(self, entry: Entry) -> list[Put]:
            return []

    with pytest.raises(ExporterError, match=r"open\(\) of exporter .*Broken failed: .*settings"):
        load_exporter(Broken()).open()
