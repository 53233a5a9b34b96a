"""A queue takes the columns whose values its codecs take, and names what it does not."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.test_spark_encoding import a_queue

from export_queue.core.errors import InvalidArgument

t = pytest.importorskip("pyspark.sql.types")
columns = pytest.importorskip("export_queue.core.spark.columns")


def misfit(schema: str, **options: Any) -> str | None:
    parsed = t.StructType.fromDDL(schema) if hasattr(t.StructType, "fromDDL") else None
    found = columns.Columns(key="key", value="value").misfits(parsed, {"orders": a_queue(**options)})
    return str(found["orders"]) if found else None


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        ("key string, value struct<a: int, b: array<map<string, timestamp>>, c: decimal(10, 2), d: date>", {}),
        ("key string, value void", {}),
        ("key string, value string, other binary", {"value": "str"}),
        ("key long, value short", {"key": "int", "value": "int"}),
        ("key binary, value binary", {"key": "bytes", "value": "bytes"}),
        ("key binary, value binary", {"key": "own:codec", "value": "own:codec"}),
    ],
)
def test_columns_that_fit(schema: str, options: dict[str, Any]) -> None:
    assert misfit(schema, **options) is None


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ("key int, value string", {}, "codec str of keys: column 'key': expected string, found int"),
        ("key decimal(5,0), value int", {"key": "int"}, "column 'key': expected byte, short, integer or long, found decimal"),
        ("key string, value string", {"value": "bytes"}, "column 'value': expected binary, found string"),
        ("key string, value double", {"value": "int"}, "column 'value': expected byte, short, integer or long, found double"),
        ("key string, value string", {"value": "own:codec"}, "expected binary, encoded by the codec, found string"),
        ("key string, value binary", {}, "column 'value': expected a type that is JSON, found binary"),
        ("key string, value struct<a: array<struct<b: timestamp_ntz>>>", {}, "column 'value', field a[].b: expected"),
        ("key string, value map<int, string>", {}, "found a map with keys of int"),
        ("key string, value map<string, interval day to second>", {}, "field {}: expected a type that is JSON, found inter"),
        ("key string, value struct<a: int, a: string>", {}, "field a: expected a type that is JSON, found several fields"),
    ],
)
def test_a_type_that_a_codec_does_not_take_is_named(schema: str, options: dict[str, Any], message: str) -> None:
    found = misfit(schema, **options)
    assert found is not None
    assert message in found
    assert "hint:" in found


def test_a_missing_column_is_named_with_those_that_there_are() -> None:
    with pytest.raises(InvalidArgument, match=r"key: the DataFrame has no column 'key'; it has: id, value"):
        misfit("id string, value string")
