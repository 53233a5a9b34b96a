"""Tables and queues of types other than bytes, on both stores: from `set` and `add` to exporters and dead letters."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.command_line import run_cli

from export_queue import (
    CodecError,
    DeadLetterFilter,
    Entry,
    EntryError,
    InvalidArgument,
    Level,
    MemorySink,
    OptionsDiffer,
    Owner,
    Put,
    SinkSpec,
    Store,
    StoreSpec,
    drain,
)
from export_queue.core.codecs import ROWS
from export_queue.core.drain import DrainRequest, Part
from export_queue.core.locks import claim
from export_queue.core.observers import Processed
from export_queue.core.spark.tasks import TaskSetup
from export_queue.core.store import schema
from export_queue.core.transactions import take_snapshot

pytestmark = pytest.mark.one_store("codecs are called in the same way on each store")


def _join(pair: tuple[str, str]) -> bytes:
    return "/".join(pair).encode()


def _split(raw: bytes) -> tuple[str, ...]:
    one, other = raw.decode().split("/")
    return one, other


pairs = SimpleNamespace(encode=_join, decode=_split)
PAIRS = f"{__name__}:pairs"


@pytest.mark.parametrize(
    ("row", "rows", "columns"),
    [
        ("bytes", [b"a", b"\xff"], [b"n", b"\xff"]),
        ("str", ["LAX", "Zürich"], ["größe", "info"]),
        ("int", [-(1 << 63), -1, 0, 7, (1 << 63) - 1], ["n"]),
        (PAIRS, [("a", "x"), ("b", "y")], ["n"]),
    ],
)
@pytest.mark.parametrize(
    ("value", "values"),
    [
        ("bytes", [b"", b"\x00\xff"]),
        ("str", ["", "é"]),
        ("int", [0, -(1 << 90)]),
        ("json", [None, {"a": [1, "é", True]}, 0]),
        (PAIRS, [("v", "w")]),
    ],
)
def test_every_read_gives_what_was_written(
    store: Store, row: str, rows: list[Any], columns: list[Any], value: str, values: list[Any]
) -> None:
    options = store.configure_table("t", row=row, value=value)
    assert (options.row, options.value) == (row, value)
    cells = {(r, c): values[i % len(values)] for i, r in enumerate(rows) for c in columns}
    found = [(*cell, written) for cell, written in cells.items()]

    def check(tx: Any) -> None:
        table = tx.table("t")
        assert list(table.scan()) == found
        assert list(table.scan(rows[0], rows[1])) == found[: len(columns)]
        assert list(table.scan(rows[1], limit=1)) == found[len(columns) : len(columns) + 1]
        assert table.get_many(cells) == cells
        for r, c, written in found:
            assert table.get(r, c, "absent") == written
            assert table.versions(r, c) == [written]
        assert (table.get(rows[0], "none"), table.get(rows[0], "none", "absent")) == (None, "absent")

    with store.transaction() as tx:
        for r, c, written in reversed(found):
            tx.table("t").set(r, c, written)
        check(tx)
    with store.transaction() as tx:
        check(tx)
        tx.table("t").delete_row(rows[0])
        tx.table("t").delete(rows[1], columns[0])
    with store.transaction(read_only=True) as tx:
        assert list(tx.table("t").scan()) == found[len(columns) + 1 :]


def test_text_may_be_scanned_by_prefix_and_numbers_may_not(store: Store) -> None:
    store.configure_table("airports", row="str", value="json")
    store.configure_table("years", row="int", value="str")
    with store.transaction() as tx:
        for name in ("LAX", "LGA", "SFO"):
            tx.table("airports").set(name, "info", {"name": name})
        assert [row for row, _, _ in tx.table("airports").scan(prefix="L")] == ["LAX", "LGA"]
        assert [row for row, _, _ in tx.table("airports").scan("LB", columns=["info"])] == ["LGA", "SFO"]
        with pytest.raises(
            InvalidArgument, match="table 'years': prefix: expected rows of text or bytes, found .* int"
        ):
            tx.table("years").scan(prefix="2")


@pytest.mark.parametrize("row", ["bytes", "str"])
def test_a_scan_of_some_columns_wants_a_list_of_them(store: Store, row: str) -> None:
    store.configure_table("t", row=row)
    with store.transaction() as tx:
        table = tx.table("t")
        table.set("a", "n", b"1")
        for one in ("n", b"n"):
            with pytest.raises(InvalidArgument, match=rf"table 't': columns: expected a list of names, found {one!r}"):
                table.scan(columns=one)
        with pytest.raises(InvalidArgument, match="table 't': columns: expected a list of names, found 5"):
            table.scan(columns=5)  # type: ignore[arg-type]
        assert [column for _, column, _ in table.scan(columns=iter(["n"]))] == [b"n" if row == "bytes" else "n"]


def test_a_scan_of_no_columns_finds_nothing_and_one_of_all_finds_all(store: Store) -> None:
    with store.transaction() as tx:
        tx.table("t").set("a", "n", b"1")
        tx.table("t").set("b", "n", b"2")
    with store.transaction() as tx:
        tx.table("t").set("c", "n", b"3")
        assert list(tx.table("t").scan(columns=[])) == []
        assert len(list(tx.table("t").scan(columns=None))) == len(list(tx.table("t").scan())) == 3


@pytest.mark.parametrize(
    ("row", "expected", "wrong"),
    [
        ("bytes", "text or bytes", 5),
        ("bytes", "text or bytes", bytearray(b"a")),
        ("str", "str", 5),
        ("str", "str", b"a"),
        ("int", "a whole number", "5"),
    ],
)
@pytest.mark.parametrize("bound", ["start", "stop", "prefix"])
def test_a_bound_of_a_scan_is_of_the_rows_type(
    store: Store, row: str, expected: str, wrong: object, bound: str
) -> None:
    if (row, bound) == ("int", "prefix"):
        expected = "rows of text or bytes"
    store.configure_table("t", row=row)
    found = "a table of int" if (row, bound) == ("int", "prefix") else type(wrong).__name__
    with (
        store.transaction() as tx,
        pytest.raises(InvalidArgument, match=f"table 't': {bound}: expected {expected}, found {found}"),
    ):
        tx.table("t").scan(**{bound: wrong})


@pytest.mark.parametrize("ttl", ["5", b"5", True, [5], float("nan"), 0])
def test_a_ttl_is_a_number_of_seconds(store: Store, ttl: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"ttl: expected 0.001 to \d+ seconds, found ") as raised:
        store.configure_table("t", ttl=ttl)
    assert str(raised.value).startswith(f"ttl: expected 0.001 to 3153600000 seconds, found {ttl!r}")


def test_a_column_that_no_write_may_have_is_not_observed(store: Store) -> None:
    store.configure_table("t", row="str", value="json")
    for observe in (store.watch, lambda table, column: store.observe(table, column, print)):
        with pytest.raises(InvalidArgument, match="table 't': column: expected text, found bytes that are not UTF-8"):
            observe("t", b"\xff")
    store.watch("plain", b"\xff")


def test_versions_of_a_transaction_are_of_its_type(store: Store) -> None:
    store.configure_table("t", row="int", value="int")
    with store.transaction() as tx:
        tx.table("t").set(1, "n", 1)
    with store.transaction() as tx:
        tx.table("t").set(1, "n", 2)
        tx.checkpoint()
        tx.table("t").delete(1, "n")
        tx.level = Level.SNAPSHOT_ALL
        assert tx.table("t").versions(1, "n") == [None, 2, 1]


def test_a_table_that_nobody_has_configured_is_one_of_bytes(store: Store) -> None:
    with store.transaction() as tx:
        tx.table("t").set("é", b"\xff", b"1")
        with pytest.raises(
            InvalidArgument, match=r"table 't': value of row 'a', column 'n': expected bytes, found str"
        ):
            tx.table("t").set("a", "n", "text")
    with store.transaction() as tx:
        assert list(tx.table("t").scan()) == [("é".encode(), b"\xff", b"1")]
    assert store.configure_table("t") == store.configure_table("t", row="bytes", value="bytes", conflict="row")


def test_a_table_keeps_its_types(store: Store) -> None:
    with store.transaction() as tx:
        tx.table("t").set("a", "n", b"1")
    with pytest.raises(
        OptionsDiffer,
        match="conflict: expected 'cell', found 'row'; ttl: expected 1.5, found None; "
        "row: expected 'str', found 'bytes'; value: expected 'json', found 'bytes'",
    ):
        store.configure_table("t", conflict="cell", ttl=1.5, row="str", value="json")
    with store.transaction() as tx:
        assert tx.table("t").get("a", "n") == b"1"


@pytest.mark.parametrize(
    ("option", "name", "expected"),
    [
        ("row", "json", r"row: expected one of \['bytes', 'int', 'str'\] or an import path"),
        ("value", "xml", r"value: expected one of \['bytes', 'int', 'json', 'str'\] or an import path .*'xml'"),
    ],
)
def test_an_unknown_codec_of_a_table_names_those_that_exist(
    store: Store, option: str, name: str, expected: str
) -> None:
    with pytest.raises(InvalidArgument, match=expected):
        store.configure_table("t", **{option: name})  # type: ignore[arg-type]
    with pytest.raises(CodecError, match="no.such:codec cannot be imported"):
        store.configure_table("t", **{option: "no.such:codec"})  # type: ignore[arg-type]


def test_a_cell_of_another_type_is_refused_and_the_transaction_leaves_nothing(store: Store) -> None:
    store.configure_table("t", row="int", value="json")
    for cell, expected in (
        (("1", "n", 1), "table 't': row: expected a whole number, found str"),
        ((1, "n", {"a": {1}}), "value of row 1, column 'n': expected a JSON value, but field a is of type set"),
        ((1, b"\xff", 1), "column: expected text, found bytes that are not UTF-8"),
        ((1, "", 1), "column: expected text or bytes of 1 to 1024 bytes"),
    ):
        with pytest.raises(InvalidArgument, match=expected), store.transaction() as tx:
            tx.table("t").set(2, "n", 1)
            tx.table("t").set(*cell)
    with store.transaction(read_only=True) as tx:
        assert list(tx.table("t").scan()) == []


def test_a_codec_that_is_gone_ends_what_needs_it_and_nothing_else(store: Store, store_url: str) -> None:
    store.configure_table("t", row="str", value="json")
    store.configure_queue("q", value=PAIRS, buckets=1)
    with store.transaction() as tx:
        tx.table("t").set("a", "n", 1)
        tx.queue("q").add("a", ("x", "y"))
    with store.database.begin() as work:
        work.connection.execute(sa.update(schema.table).values(value_codec="no.such:codec"))
        work.connection.execute(sa.update(schema.queue).values(value_codec="no.such:codec"))
    with Store.open(store_url) as later:
        with pytest.raises(CodecError, match="no.such:codec cannot be imported"), later.transaction() as tx:
            tx.table("t")
        sink = MemorySink()
        with pytest.raises(CodecError, match="no.such:codec cannot be imported"):
            drain(later, "q", sink, sink_name="s", exporter=copy)
        assert later.dead_letters.list("q") == []
        assert drain(later, "q", sink, sink_name="s").acknowledged == 1, "the default exporter decodes nothing"


def copy(entry: Entry) -> list[Put]:
    return [Put("c", repr(entry.key), [repr(entry.key), repr(entry.value)])]


@pytest.mark.parametrize(
    ("codec", "key", "stored"),
    [("int", -77, b"-77"), ("str", "é", "é".encode()), ("bytes", b"\xff", b"\xff"), (PAIRS, ("a", "b"), b"a/b")],
)
def test_entries_come_to_exporters_as_they_were_added(store: Store, codec: str, key: Any, stored: bytes) -> None:
    store.configure_queue("q", key=codec, value="int", buckets=1)
    with store.transaction() as tx:
        tx.queue("q").add(key, 5)
    sink = MemorySink()
    assert drain(store, "q", sink, sink_name="s").acknowledged == 1
    assert sink.records() == {("q", stored): b"5"}
    with store.transaction() as tx:
        tx.queue("q").add(key, 6)
    store.rebind("q", "s")
    assert drain(store, "q", sink, sink_name="s", exporter=copy).acknowledged == 1
    assert json.loads(sink.records()["c", repr(key).encode()]) == [repr(key), "6"]


def refuse(entry: Entry) -> Iterator[Put]:
    raise ValueError("not today")
    yield


@pytest.mark.parametrize(
    ("codec", "key", "given", "other"),
    [("int", 77, "77", 78), ("str", "é", "é", "e"), ("bytes", b"k", "k", "l"), (PAIRS, ("a", "b"), None, ("a", "c"))],
)
def test_dead_letters_are_chosen_by_keys_of_their_type(
    store: Store, store_url: str, codec: str, key: Any, given: str | None, other: Any
) -> None:
    store.configure_queue("q", key=codec, buckets=1)
    with store.transaction() as tx:
        tx.queue("q").add(key, 5)
    drain(store, "q", MemorySink(), sink_name="s", exporter=refuse)
    (letter,) = store.dead_letters.list("q", DeadLetterFilter(key=key))
    assert letter.key == key
    assert store.dead_letters.list("q", DeadLetterFilter(key=letter.position.key)) == [letter], "bytes as they are"
    assert store.dead_letters.count("q", DeadLetterFilter(key=other)) == 0
    with pytest.raises(EntryError, match=r"queue 'q': key 1\.5"):
        store.dead_letters.list("q", DeadLetterFilter(key=1.5))
    if given is not None and store_url.startswith("sqlite"):
        (row,) = json.loads(run_cli("dead", "list", "q", "--key", given, "--json", url=store_url))
        assert row["key"] == given
    assert store.dead_letters.retry("q", DeadLetterFilter(key=key), who="eve") == 1
    assert json.loads(store.dead_letters.audit("q")[0].selection) == {"key": given or str(key)}


def test_what_no_longer_decodes_is_a_dead_letter_that_names_it(store: Store) -> None:
    store.configure_queue("q", value="json", buckets=1)
    with store.transaction() as tx:
        tx.queue("q").add_many([("good", 1), ("bad", 2)])
    with store.database.begin() as work:
        entry = schema.entry
        work.connection.execute(sa.update(entry).where(entry.c.key == b"bad").values(value=b"{secret"))
    report = drain(store, "q", MemorySink(), sink_name="s", exporter=copy)
    assert (report.acknowledged, report.dead) == (1, 1)
    (letter,) = store.dead_letters.list("q")
    assert (letter.key, letter.error_class) == ("bad", "export_queue.core.errors.CodecError")
    assert "queue 'q': value of key b'bad': the codec json cannot decode its 7 bytes" in letter.reason
    assert "secret" not in letter.reason


def test_tasks_of_spark_find_the_codecs_by_their_paths(store: Store, store_url: str, monkeypatch: Any) -> None:
    parsed = sa.make_url(store_url)
    monkeypatch.setenv("XQ_TASKS", parsed.password or "")
    address = StoreSpec(
        url=parsed._replace(password=None).render_as_string(), secret="env:XQ_TASKS" if parsed.password else None
    )
    store.configure_queue("q", key=PAIRS, value="int", buckets=1)
    with store.transaction() as tx:
        tx.queue("q").add(("a", "b"), 7)
    queue, name = store.queue("q"), uuid.uuid4().hex
    sink = SinkSpec("memory", {"name": name})
    request = DrainRequest(queue_id="q", sink_name=sink.name, drain_id=name, exporter=f"{__name__}:copy")
    leases = claim(store.database, queue, queue.units(), owner=Owner("job", "1"), lease_seconds=60)
    (report,) = TaskSetup(address, sink, queue, take_snapshot(store.database), request).run(
        [Part.whole(lease) for lease in leases], attempt=1
    )
    assert (report.problem, report.acknowledged) == (None, 1)
    assert list(MemorySink(name).records().values()) == [b"[\"('a', 'b')\",\"7\"]"]


def test_observers_are_given_rows_of_the_tables_type(store: Store) -> None:
    store.configure_table("t", row="int", value="int")
    seen: list[tuple[object, object]] = []

    def observe(tx: Any, row: int, column: str) -> None:
        seen.append((row, column))
        if row < 0:
            raise ValueError("below zero")
        tx.table("t").set(row, "seen", tx.table("t").get(row, column) + 1)

    store.observe("t", "n", observe)
    store.observe("t", "w", observe, kind="weak")
    with store.transaction() as tx:
        tx.table("t").set(7, "n", 1)
        tx.table("t").set(-1, "n", 2)
        tx.table("t").set(8, "w", 3)
        tx.table("t").notify(8, "w")
    assert store.process_notifications() == Processed(done=2, failed=1)
    assert sorted(seen) == [(-1, "n"), (7, "n"), (8, "w")]
    (failure,) = store.observer_failures()
    assert (failure.table, failure.row, failure.column) == ("t", -1, "n")
    with store.transaction(read_only=True) as tx:
        assert list(tx.table("t").scan(columns=["seen"])) == [(7, "seen", 2), (8, "seen", 4)]


def test_what_failed_is_listed_also_where_its_codec_is_gone(store: Store) -> None:
    store.configure_table("t", row="int")
    store.configure_queue("q", key="int", buckets=1)
    store.observe("t", "n", lambda tx, row, column: tx.table("t").get(row, column).no_such_attribute)
    with store.transaction() as tx:
        tx.table("t").set(7, "n", b"1")
        tx.queue("q").add(7, 1)
    assert store.process_notifications().failed == 1
    assert drain(store, "q", MemorySink(), sink_name="s", exporter=refuse).dead == 1
    with store.database.begin() as work:
        work.connection.execute(sa.update(schema.table).values(row_codec="no.such:codec"))
        work.connection.execute(sa.update(schema.queue).values(key_codec="no.such:codec"))
    (failure,) = store.observer_failures()
    assert (failure.row, failure.column) == (ROWS["int"].encode(7), b"n")
    (letter,) = store.dead_letters.list("q")
    assert letter.key == letter.position.key == b"7"
    assert store.dead_letters.drop("q", DeadLetterFilter(key=b"7")) == 1
