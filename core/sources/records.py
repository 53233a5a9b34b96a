"""The records of a data set: pairs of key and value, from Arrow tables, rows or pairs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from export_queue.core.errors import EntryError, InvalidArgument

Columns = str | Sequence[str] | None
NO_VALUE = "leave out what should be deleted: a mirror deletes what the data set does not have"


def parts_of(data: Any) -> Iterator[Any]:
    """Yield the record batches and rows of a data set.

    :param data: an Arrow table, record batch or reader of batches; or an iterable of record batches, of mappings with
        the same names, or of pairs.
    :raises InvalidArgument: the data is none of these.
    """
    is_arrow = hasattr(data, "to_batches") or hasattr(data, "to_pylist")
    if isinstance(data, str | bytes | Mapping) or not (is_arrow or isinstance(data, Iterable)):
        raise InvalidArgument(
            f"data: expected an Arrow table or an iterable of rows, found {type(data).__name__}",
            hint="rows are mappings or pairs of key and value; for pandas pass pyarrow.Table.from_pandas(frame)",
        )
    if hasattr(data, "to_batches"):
        data = data.to_batches()
    elif hasattr(data, "to_pylist"):
        data = [data]
    for part in data:
        if hasattr(part, "to_batches"):
            yield from part.to_batches()
        else:
            yield part


def is_batch(part: Any) -> bool:
    """Return whether a part of a data set is a record batch."""
    return hasattr(part, "to_pylist") and hasattr(part, "schema")


def record_of(row: Any, key: Columns, value: Columns) -> tuple[Any, Any]:
    """Return key and value of a row.

    :param key: columns that make up the key; several become a JSON list. None: pairs, or columns ``key`` and ``value``.
    :param value: one column, which is the value; several, which become a mapping. None: all columns.
    :raises EntryError: the row lacks a column, or has no key.
    :raises InvalidArgument: the row is neither a mapping nor a pair.
    """
    if isinstance(row, Mapping):
        return _record(row, key, value)
    if (
        key is None
        and value is None
        and isinstance(row, Sequence)
        and not isinstance(row, str | bytes)
        and len(row) == 2
    ):
        return row[0], row[1]
    wanted = "a mapping of column names to values" if key is not None else "a pair of key and value"
    raise InvalidArgument(f"data: expected each row to be {wanted}, found {type(row).__name__}")


def _record(row: Mapping[str, Any], key: Columns, value: Columns) -> tuple[Any, Any]:
    if key is None:
        if value is not None:
            raise InvalidArgument("value: expected together with key, found without")
        return _of(row, "key"), _of(row, "value")
    if isinstance(key, str):
        found = _of(row, key)
    else:
        parts = [_of(row, name) for name in key]
        found = None if None in parts else json.dumps(parts, ensure_ascii=False, separators=(",", ":"), default=str)
    if found is None:
        raise EntryError(f"key {key!r}: expected a value in each row, found null in {sorted(row)[:5]}")
    if value is None:
        return found, dict(row)
    return found, _of(row, value) if isinstance(value, str) else {name: _of(row, name) for name in value}


def _of(row: Mapping[str, Any], name: str) -> Any:
    try:
        return row[name]
    except KeyError:
        raise missing_column(name, row) from None


def missing_column(name: str, names: Iterable[object]) -> EntryError:
    """Build the error of a data set that lacks a column."""
    return EntryError(f"column {name!r}: expected in each row, found only {', '.join(map(str, names))}")


def as_key(value: Any, codec: str) -> Any:
    """Turn a key of another system into one for a queue's codec: numbers, times and UUIDs are text for ``str``.

    Other types are returned unchanged, and refused by the codec.
    """
    if isinstance(value, Decimal) and value == value.to_integral_value():
        value = int(value)
    if codec == "str":
        if isinstance(value, date | time):
            return value.isoformat()
        if isinstance(value, UUID) or (isinstance(value, int) and not isinstance(value, bool)):
            return str(value)
    return value
