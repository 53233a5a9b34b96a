"""JSON of columns is byte by byte that of rows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from export_queue.core.json_text import NotJson, json_bytes
from export_queue.core.state.json_columns import json_objects

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    ['"', "\\", "\x00", "\x1f", "\x7f", "é\n", "😀"]
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SHORT_FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int64": (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    "uint64": (pa.uint64(), st.integers(0, (1 << 64) - 1)),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), TEXTS),
    "large string": (pa.large_string(), TEXTS),
    "words": (pa.dictionary(pa.int32(), pa.string()), TEXTS),
    "double": (pa.float64(), FLOATS),
    "float": (pa.float32(), SHORT_FLOATS),
    "decimal": (pa.decimal128(12, 3), st.decimals(-9999, 9999, places=3)),
    "date": (pa.date32(), st.dates()),
    "list": (pa.list_(pa.string()), st.lists(TEXTS, max_size=3)),
    "struct": (pa.struct([("a b", pa.int64())]), st.fixed_dictionaries({"a b": st.integers(0, 9)})),
    "nothing": (pa.null(), st.none()),
}


@st.composite
def batches(draw: Callable[..., Any]) -> pa.RecordBatch:
    rows = draw(st.integers(0, 6))
    names = draw(st.lists(TEXTS, unique=True, max_size=4))
    columns = []
    for _ in names:
        kind, items = TYPES[draw(st.sampled_from(sorted(TYPES)))]
        column = pa.array(draw(st.lists(st.none() | items, min_size=rows, max_size=rows)), kind)
        columns.append(column)
    if not columns:
        return pa.RecordBatch.from_pylist([{}] * rows)
    first = draw(st.integers(0, rows))
    return pa.RecordBatch.from_arrays(columns, names).slice(first, draw(st.integers(0, rows)))


def of_columns(batch: pa.RecordBatch) -> list[bytes]:
    found = json_objects(dict(zip(batch.schema.names, batch.columns, strict=True)), batch.num_rows)
    return found.to_pylist()  # type: ignore[no-any-return]


@given(batches())
@example(pa.record_batch({"a": pa.array([1.0, None, 1e300, 5e-324, -0.0, 1e16, 123456789.125])}))
@example(pa.record_batch({"a": pa.array([Decimal("1.50"), None]), "b": pa.array([date(1, 1, 1), None])}))
@example(pa.record_batch({"a": pa.array([None, None], pa.string())}))
@example(pa.record_batch({"a": pa.array(["", 'say "no"', None])}).slice(1))
def test_objects_of_columns_are_those_of_rows(batch: pa.RecordBatch) -> None:
    assert of_columns(batch) == [json_bytes(row) for row in batch.to_pylist()]


@pytest.mark.parametrize("item", [float("nan"), float("inf"), b"bytes"])
def test_what_is_not_json_is_refused(item: Any) -> None:
    with pytest.raises(NotJson):
        of_columns(pa.record_batch({"a": pa.array([item, item])}))
