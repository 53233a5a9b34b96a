"""Tables that are no plain ones: what cannot be added is refused as a whole, by column and row, and leaves nothing."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from export_queue import ChangeSetTooLarge, EntryError, InvalidArgument, Limits, MemorySink, Store, drain
from export_queue.core.segments import files


@pytest.fixture
def store_url(sqlite_url: str) -> str:
    """Tables are checked before the store is asked."""
    return sqlite_url


@pytest.fixture
def queues(store: Store, tmp_path: Path) -> Iterator[Store]:
    store.database.segments = str(tmp_path / "segments")
    for value in ("json", "str", "int", "bytes"):
        store.configure_queue(value, buckets=4, buckets_per_range=2, value=value)
    yield store
    assert not list(tmp_path.rglob("*.tmp"))


def broken(kind: Any, offsets: list[int], content: bytes) -> pa.Array:
    """Make an array of bytes that are no text, or of offsets beyond its memory."""
    buffers = [None, pa.array(offsets, pa.int32()).buffers()[1], pa.py_buffer(content)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


NO_TEXT = broken(pa.string(), [0, 2, 4], b"ok\xff\xfe")
TWO = ["a", "b"]


def table(value: Any, key: Any = TWO) -> pa.Table:
    return pa.table({"key": key, "value": value})


REFUSED: dict[str, tuple[str, Any, str]] = {
    "no text as value": ("str", table(NO_TEXT), "column value, row 1: expected a valid string"),
    "no text as key": ("str", table(TWO, NO_TEXT), "column key, row 1: expected a valid string"),
    "no text in a later chunk": (
        "str",
        table(pa.chunked_array([pa.array(["x"]), NO_TEXT]), ["a", "b", "c"]),
        "column value, row 2: expected a valid string",
    ),
    "no text for JSON": ("json", table(NO_TEXT), "column value, row 1"),
    "no text in a struct": ("json", table(pa.StructArray.from_arrays([NO_TEXT], ["a"])), "column value, row 1"),
    "no text in a dictionary": (
        "str",
        table(pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), NO_TEXT)),
        "column value, row",
    ),
    "offsets beyond the memory": ("bytes", table(broken(pa.binary(), [0, 999, 2], b"ab")), "column value, row 0"),
    "null key": ("str", table(TWO, pa.array(["a", None])), "column key, row 1: expected a key, found null"),
    "keys of the null type": ("str", table(TWO, pa.nulls(2)), "column key, row 0: expected a key, found null"),
    "null in the dictionary of a key": (
        "str",
        table(TWO, pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["a", None]))),
        "column key, row 1",
    ),
    "keys that are numbers": ("str", table(TWO, [1, 2]), "column key, row 0"),
    "keys that are lists": ("str", table(TWO, [["a"], ["b"]]), "column key, row 0"),
    "empty key": ("str", table(TWO, ["a", ""]), "column key, row 1"),
    "empty key in a dictionary": ("str", table(TWO, pa.array(["a", ""]).dictionary_encode()), "column key, row 1"),
    "long key": ("str", table(TWO, ["a", "b" * 1025]), "column key, row 1"),
    "large value": ("str", table(["x", "y" * ((1 << 20) + 1)]), "column value, row 1"),
    "value of another type": ("int", table([1.0, 2.0]), "column value, row 0"),
    "timestamp without a zone": ("json", table(pa.array([1, 2], pa.timestamp("us"))), "column value, row 0"),
    "year 10000": ("json", table(pa.array([0, 1 << 60], pa.timestamp("us", "UTC"))), "column value, row 1"),
    "date in year 10000": ("json", table(pa.array([0, 1 << 24], pa.date32())), "column value, row 1"),
    "NaN": ("json", table([1.0, float("nan")]), "column value, row 1"),
    "two columns key": (
        "str",
        pa.Table.from_arrays([pa.array(TWO), pa.array(TWO), pa.array(TWO)], names=["key", "key", "value"]),
        "found 2 columns key",
    ),
    "two columns value": (
        "str",
        pa.RecordBatch.from_arrays([pa.array(TWO), pa.array(TWO), pa.array(TWO)], names=["value", "key", "value"]),
        "found 2 columns value",
    ),
    "no columns": ("str", pa.table({}), "found no key and no value"),
    "no column value": ("str", pa.table({"key": TWO, "Value": TWO}), "found no value"),
    "the same key twice": ("str", table(TWO, ["a", "a"]), "key b'a' comes more than once"),
}


@pytest.mark.parametrize("long", [True, False], ids=["long", "short"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_table_is_named_by_column_and_row_and_adds_nothing(queues: Store, name: str, long: bool) -> None:
    queue, given, message = REFUSED[name]
    with queues.transaction(long=long) as tx:
        tx.queue(queue).add("before", value_for(queue))
        with pytest.raises(EntryError, match="^") as raised:
            tx.queue(queue).add_batch(given)
        assert message in str(raised.value)
    assert [one.position.key for one in queues.peek(queue)] == [b"before"]
    assert not list(Path(str(queues.database.segments)).rglob("*.parquet"))


def value_for(queue: str) -> Any:
    return {"bytes": b"1", "str": "1"}.get(queue, 1)


@pytest.mark.parametrize("long", [True, False], ids=["long", "short"])
@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (table(TWO), {"on_duplicate": "sometimes"}, "expected error or keep_last, found 'sometimes'"),
        (table([], []), {"on_duplicate": None}, "expected error or keep_last, found None"),
        ([("a", "b")], {}, "found list"),
        (None, {}, "found NoneType"),
        ({"key": TWO, "value": TWO}, {}, "found dict"),
    ],
)
def test_a_wrong_call_is_refused_at_once(
    queues: Store, given: Any, options: dict[str, Any], message: str, long: bool
) -> None:
    with queues.transaction(long=long) as tx, pytest.raises(InvalidArgument, match=message):
        tx.queue("str").add_batch(given, **options)
    assert not queues.peek("str")


VIEWS = pa.array(TWO, pa.string_view())
RUNS = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), ["x"])
NO_TEXTS = pa.array([], pa.string())
NO_CHUNKS = pa.chunked_array([], pa.string())
NEW_YEAR = pa.array([dt.datetime(2026, 1, 1)], pa.timestamp("us", "UTC"))
TWICE = pa.Table.from_arrays([pa.array(["a"]), pa.array(["x"]), *[pa.array([1])] * 2], names=["key", "value", "n", "n"])
TAKEN: dict[str, tuple[str, Any, dict[str, str]]] = {
    "large text": ("str", table(pa.array(TWO, pa.large_string())), {"a": "a", "b": "b"}),
    "views": ("str", table(VIEWS, VIEWS), {"a": "a", "b": "b"}),
    "dictionaries": ("str", table(pa.array(["x", None]).dictionary_encode()), {"a": "x"}),
    "runs": ("str", table(RUNS), {"a": "x", "b": "x"}),
    "nulls": ("str", table(pa.nulls(2)), {}),
    "no rows": ("str", table(NO_TEXTS, NO_TEXTS), {}),
    "no chunks": ("str", table(NO_CHUNKS, NO_CHUNKS), {}),
    "chunks": ("str", pa.concat_tables([table(["x", "y"]), table(["z"], ["c"])]), {"a": "x", "b": "y", "c": "z"}),
    "a slice": ("str", table(["x", "y"]).slice(1), {"b": "y"}),
    "bytes of one size": ("bytes", table(pa.array([b"12", None], pa.binary(2))), {"a": "12"}),
    "extension type": (
        "json",
        table(pa.array([b"0" * 16], pa.uuid()), ["a"]),
        {"a": f'"{uuid.UUID(bytes=b"0" * 16)}"'},
    ),
    "timestamps": ("json", table(NEW_YEAR, ["a"]), {"a": '"2026-01-01T00:00:00+00:00"'}),
    "other columns twice": ("str", TWICE, {"a": "x"}),
}


@pytest.mark.parametrize("long", [True, False], ids=["long", "short"])
@pytest.mark.parametrize("name", TAKEN)
def test_a_table_of_unusual_types_is_taken(queues: Store, name: str, long: bool) -> None:
    queue, given, expected = TAKEN[name]
    with queues.transaction(long=long) as tx:
        assert tx.queue(queue).add_batch(given) == given.num_rows
    sink = MemorySink()
    assert drain(queues, queue, sink, sink_name="sink").read == given.num_rows
    assert {key[1].decode(): value.decode() for key, value in sink.records().items()} == expected


@pytest.mark.parametrize("long", [True, False], ids=["long", "short"])
def test_of_a_key_in_two_tables_the_later_value_counts(queues: Store, long: bool) -> None:
    with queues.transaction(long=long) as tx:
        queue = tx.queue("str")
        queue.add_batch(table(["1", "1"]))
        queue.add_batch(table(["2", "2"], ["a", "a"]), on_duplicate="keep_last")
        queue.add_batch(table([None], ["b"]))
    sink = MemorySink()
    drain(queues, "str", sink, sink_name="sink")
    assert {key[1]: value for key, value in sink.records().items()} == {b"a": b"2"}


def test_a_table_that_is_too_large_for_a_short_transaction_adds_nothing(sqlite_url: str, tmp_path: Path) -> None:
    with Store.open(sqlite_url, limits=Limits(max_changes=10)) as store:
        store.create()
        store.configure_queue("str", value="str")
        with store.transaction() as tx:
            tx.queue("str").add("before", "1")
            with pytest.raises(ChangeSetTooLarge):
                tx.queue("str").add_batch(table(["x"] * 20, [f"{n}" for n in range(20)]))
            tx.queue("str").add_batch(table(["x"] * 9, [f"{n}" for n in range(9)]))
        assert len(store.peek("str")) == 10


@pytest.mark.full("a table of more than 2 GiB is sorted")
def test_a_table_of_more_than_two_gibibytes_is_added(queues: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.os, "fsync", lambda _: None)
    chunk = pa.array(["x" * (1 << 20)] * 700)  # Arrow's text counts 2 GiB at most, a chunked column more
    keys = pa.array([f"{n:05}" for n in range(2100)])
    with queues.transaction(long=True) as tx:
        tx.queue("str").add_batch(table(pa.chunked_array([chunk] * 3), keys))
    assert sum(unit.entries for unit in queues.backlog("str")) == 2100
