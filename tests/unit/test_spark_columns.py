"""A queue takes the columns whose values its codecs take, and names what it does not."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.test_spark_encoding import a_queue

from export_queue import InvalidArgument

t = pytest.importorskip("pyspark.sql.types")
columns = pytest.importorskip("export_queue.core.spark.columns")


def frame(key: Any, value: Any, *others: Any) -> Any:
    return t.StructType([t.StructField("key", key), t.StructField("value", value), *others])


def struct(**fields: Any) -> Any:
    return t.StructType([t.StructField(name, kind) for name, kind in fields.items()])


def misfit(keys: Any, values: Any, **options: Any) -> str | None:
    found = columns.Columns(key="key", value="value").misfits(frame(keys, values), {"orders": a_queue(**options)})
    return str(found["orders"]) if found else None


TEXT, BINARY, INT, LONG = t.StringType(), t.BinaryType(), t.IntegerType(), t.LongType()
TWICE = t.StructType([t.StructField("a", INT), t.StructField("a", TEXT)])
MOMENTS = t.ArrayType(t.MapType(TEXT, t.TimestampType()))


@pytest.mark.parametrize(
    ("key", "value", "options"),
    [
        (TEXT, struct(a=INT, b=MOMENTS, c=t.DecimalType(10, 2), d=t.DateType()), {}),
        (TEXT, t.NullType(), {}),
        (TEXT, TEXT, {"value": "str"}),
        (LONG, t.ShortType(), {"key": "int", "value": "int"}),
        (BINARY, BINARY, {"key": "bytes", "value": "bytes"}),
        (BINARY, BINARY, {"key": "own:codec", "value": "own:codec"}),
    ],
)
def test_columns_that_fit(key: Any, value: Any, options: dict[str, Any]) -> None:
    assert misfit(key, value, **options) is None


WHOLE = "expected byte, short, integer or long, found"


@pytest.mark.parametrize(
    ("key", "value", "options", "message"),
    [
        (INT, TEXT, {}, "codec str of keys: column 'key': expected string, found int"),
        (t.DecimalType(5, 0), INT, {"key": "int"}, f"column 'key': {WHOLE} decimal(5,0)"),
        (TEXT, TEXT, {"value": "bytes"}, "column 'value': expected binary, found string"),
        (TEXT, t.DoubleType(), {"value": "int"}, f"column 'value': {WHOLE} double"),
        (TEXT, TEXT, {"value": "own:codec"}, "expected binary, encoded by the codec, found string"),
        (TEXT, BINARY, {}, "column 'value': expected a type that is JSON, found binary"),
        (TEXT, struct(a=t.ArrayType(struct(b=t.TimestampNTZType()))), {}, "column 'value', field a[].b: expected"),
        (TEXT, t.MapType(INT, TEXT), {}, "found a map with keys of int"),
        (TEXT, t.MapType(TEXT, t.DayTimeIntervalType()), {}, "field {}: expected a type that is JSON, found interval"),
        (TEXT, TWICE, {}, "field a: expected a type that is JSON, found several fields"),
    ],
)
def test_a_type_that_a_codec_does_not_take_is_named(
    key: Any, value: Any, options: dict[str, Any], message: str
) -> None:
    found = misfit(key, value, **options)
    assert found is not None
    assert message in found
    assert "hint:" in found


def test_a_missing_column_is_named_with_those_that_there_are() -> None:
    with pytest.raises(InvalidArgument, match="key: the DataFrame has no column 'id'; it has: key, value"):
        columns.Columns(key="id", value="value").misfits(frame(TEXT, TEXT), {})
