"""Rows of Arrow batches become exactly the bytes that ``queue.add`` writes, or an error that names the row."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from export_queue import EntryError
from export_queue.core.queue import Queue

pa = pytest.importorskip("pyarrow")
encoding = pytest.importorskip("export_queue.core.spark.encoding")

OPTIONS: dict[str, Any] = {
    "id": "orders",
    "number": 1,
    "layout": 1,
    "buckets": 8,
    "buckets_per_range": 4,
    "key": "str",
    "value": "json",
    "max_value_bytes": 1000,
    "exclusive": False,
    "sink": None,
}


def a_queue(**options: Any) -> Queue:
    return Queue(**{**OPTIONS, **options})


def encode(values: Any, queue: Queue | None = None) -> list[bytes | None]:
    keys = pa.array([f"k{n}".encode() for n in range(len(values))], pa.binary())
    found: list[bytes | None] = encoding.value_bytes(values, keys, queue or a_queue()).to_pylist()
    return found


UTC = dt.UTC
JSON = [
    (pa.bool_(), [True, None]),
    (pa.int8(), [-3]),
    (pa.int64(), [2**63 - 1]),
    (pa.float64(), [0.1, 1e300, -0.0, 1e-7]),
    (pa.float32(), [0.5]),
    (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("-0.01")]),
    (pa.string(), ['é\x07"\\/\u2028', ""]),
    (pa.date32(), [dt.date(2026, 1, 31)]),
    (pa.timestamp("us", "UTC"), [dt.datetime(2026, 1, 31, 1, 2, 3, 45, UTC), dt.datetime(1969, 1, 1, tzinfo=UTC)]),
    (pa.list_(pa.int32()), [[1, None], [], None]),
    (pa.struct([("a", pa.int32()), ("b", pa.list_(pa.struct([("c", pa.string())])))]), [{"a": 1, "b": [{"c": None}]}]),
    (pa.struct([]), [{}]),
    (pa.null(), [None]),
]


@pytest.mark.parametrize(("kind", "values"), JSON, ids=lambda part: str(part) if isinstance(part, pa.DataType) else "")
def test_json_of_each_type_is_what_add_writes(kind: Any, values: list[Any]) -> None:
    queue = a_queue()
    assert encode(pa.array(values, kind)) == [queue.encode_value(value, key="k") for value in values]


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_maps_and_slices_keep_their_own_parts(cut: int) -> None:
    values: list[Mapping[str, Any] | None] = [{"a": [1], "b": []}, None, {}, {"c": [2, 3]}]
    kind = pa.map_(pa.string(), pa.list_(pa.int64()))
    array = pa.array([None if value is None else list(value.items()) for value in values], kind)
    nested = pa.StructArray.from_arrays([array], ["m"])
    queue = a_queue()
    expected = [queue.encode_value({"m": value}, key="k") for value in values[cut:]]
    assert encode(nested.slice(cut)) == expected


def test_a_timestamp_of_another_session_zone_is_written_in_utc() -> None:
    moment = dt.datetime(2026, 7, 1, 12, tzinfo=UTC)
    (text,) = encode(pa.array([moment], pa.timestamp("us", "Europe/Berlin")))
    assert text == b'"2026-07-01T12:00:00+00:00"'


FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.none() | st.text(), FLOATS), max_size=5))
def test_any_rows_are_what_add_writes(rows: list[tuple[Any, ...]]) -> None:
    kind = pa.struct([("n", pa.int64()), ("s", pa.string()), ("f", pa.float64())])
    queue, values = a_queue(max_value_bytes=1 << 20), [dict(zip("nsf", row, strict=True)) for row in rows]
    assert encode(pa.array(values, kind), queue) == [queue.encode_value(value, key="k") for value in values]


def test_the_other_codecs_take_bytes_text_and_whole_numbers() -> None:
    assert encode(pa.array([b"\xff", None], pa.binary()), a_queue(value="bytes")) == [b"\xff", None]
    assert encode(pa.array(["é", None]), a_queue(value="str")) == ["é".encode(), None]
    assert encode(pa.array([-7, None], pa.int32()), a_queue(value="int")) == [b"-7", None]
    assert encode(pa.array([b"own"], pa.binary()), a_queue(value="module:codec")) == [b"own"]


NO_TEXT = pa.array([b"good", b"\xffbad"], pa.binary())


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (
            pa.array([1.0, float("nan")]),
            {},
            "queue 'orders': value of key 'k1': expected a JSON value, but the value is nan",
        ),
        (
            pa.array([{"a": [0.0]}, {"a": [float("inf")]}]),
            {},
            "value of key 'k1': expected a JSON value, but field a[0] is inf",
        ),
        (NO_TEXT.view(pa.string()), {}, "value of key 'k1': expected UTF-8"),
        (NO_TEXT, {"value": "str"}, "value of key 'k1': expected UTF-8, found another byte at position 0"),
        (pa.array(["", "a" * 1001]), {"value": "str"}, "value of key 'k1': expected at most 1000 bytes, found 1001"),
        (
            pa.array([0, 200_000_000 * 86400 * 10**6 // 10], pa.timestamp("us", "UTC")),
            {},
            "value of key 'k1': it contains a date or",
        ),
    ],
)
def test_a_refused_value_is_named_by_its_key(values: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(EntryError) as raised:
        encode(values, a_queue(**options))
    assert message in raised.value.message
    assert raised.value.hint


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([b"a", None, None], "row 1 of partition 7, both counted from 0: expected a key, found null"),
        ([b"a", b""], "row 1 of partition 7, both counted from 0: key: expected 1 to 1024 bytes, found 0"),
        ([b"a" * 1025], "key: expected 1 to 1024 bytes, found 1025"),
        ([b"a", b"\xff"], "key b'\\xff': expected UTF-8"),
    ],
)
def test_a_refused_key_is_named(keys: list[bytes | None], message: str) -> None:
    with pytest.raises(EntryError) as raised:
        encoding.key_bytes(pa.array(keys, pa.binary()), a_queue(), lambda row: encoding.row_location(7, row))
    assert message in raised.value.message


def test_keys_of_bytes_need_not_be_text() -> None:
    keys = pa.array([b"\xff"], pa.binary())
    found = encoding.key_bytes(keys, a_queue(key="bytes"), lambda row: encoding.row_location(7, row))
    assert found.to_pylist() == [b"\xff"]
