"""Encoding the rows of Arrow batches as entries; an error names the row.

This code runs in Spark's Python workers. It does no I/O and needs no PySpark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from export_queue.core.codecs import MAX_KEY_BYTES
from export_queue.core.errors import EntryError
from export_queue.core.json_text import NotJson, json_bytes
from export_queue.core.queue import Queue


def raw_keys(keys: pa.Array) -> pa.Array:
    """Return keys as bytes: whole numbers as digits, text as UTF-8."""
    return (keys.cast(pa.string()) if pa.types.is_integer(keys.type) else keys).cast(pa.binary())


def row_location(partition: int, row: int) -> str:
    """Name a row by its position in the DataFrame, for errors about rows without a usable key."""
    return f"row {row} of partition {partition}, both counted from 0"


def row_without_queue(key: bytes | str | None, where: str | None = None) -> EntryError:
    """Return the error for a row that names no queue.

    :param where: the :func:`row_location` of the row, if it is known.
    """
    named = f"the row with key {key!r}" if where is None else f"{where}, with key {key!r}"
    return EntryError(f"expected the id of a queue in each row, found null in {named}")


def key_bytes(keys: pa.Array, queue: Queue, where: Callable[[int], str]) -> pa.Array:
    """Check the keys of a batch.

    :param keys: their bytes, as Spark encoded them.
    :param where: returns the :func:`row_location` of a row of the batch.
    :returns: the keys as ``binary``.
    :raises EntryError: a key is null, empty or too long, or is not UTF-8 although the queue's keys are text.
    """
    keys = keys.cast(pa.binary())
    if keys.null_count:
        first = pc.index(pc.is_null(keys), True).as_py()
        raise EntryError(
            f"queue {queue.id!r}: {where(first)}: expected a key, found null",
            hint="remove such rows or give them keys; df.where(key is null) shows them",
        )
    if not len(keys):
        return keys
    bounds = pc.min_max(pc.binary_length(keys)).as_py()
    if bounds["min"] < 1 or bounds["max"] > MAX_KEY_BYTES:
        for row, raw in enumerate(keys.to_pylist()):
            if not 1 <= len(raw) <= MAX_KEY_BYTES:
                raise EntryError(
                    f"queue {queue.id!r}: {where(row)}: key: expected 1 to {MAX_KEY_BYTES} bytes, "
                    f"found {len(raw)}: {raw[:60]!r}…"
                )
    if queue.key == "str":
        _check_text(keys, lambda n: f"queue {queue.id!r}: key {keys[n].as_py()!r}")
    return keys


def value_bytes(values: pa.Array, keys: pa.Array, queue: Queue) -> pa.Array:
    """Encode the values of a batch as ``queue.add`` does.

    :param values: the values of the DataFrame; null stays null.
    :param keys: the keys of the same rows, for errors.
    :param queue: the queue; its codec fits the values' type.
    :returns: the values as ``binary``.
    :raises EntryError: a value is refused; the error names its key and the reason.
    """

    def named(row: int) -> str:
        return f"value of key {_shown(keys, row, queue)}"

    if queue.value == "json":
        encoded = _json(values, keys, queue)
    elif queue.value == "int":
        encoded = values.cast(pa.string()).cast(pa.binary())
    else:
        encoded = values.cast(pa.binary())
        if queue.value == "str":
            _check_text(encoded, lambda row: f"queue {queue.id!r}: {named(row)}")
    longest = pc.max(pc.binary_length(encoded)).as_py() if len(encoded) else None
    if longest is not None and longest > queue.max_value_bytes:
        for row, raw in enumerate(encoded.to_pylist()):
            if raw is not None and len(raw) > queue.max_value_bytes:
                raise EntryError(
                    f"queue {queue.id!r}: {named(row)}: expected at most {queue.max_value_bytes} bytes, "
                    f"found {len(raw)}",
                    hint="give the queue a larger max_value_bytes (export-queue alter QUEUE --max-value-bytes …), "
                    "or add a reference instead of the content",
                )
    return encoded


def _shown(keys: pa.Array, row: int, queue: Queue) -> str:
    return shown_key(keys[row].as_py(), queue)


def shown_key(raw: bytes, queue: Queue) -> str:
    """Return a key as a message shows it, decoded by the queue's codec."""
    try:
        return repr(queue.decode_key(raw))
    except Exception:  # a key of another codec
        return repr(raw)


def _check_text(raw: pa.Array, named: Callable[[int], str]) -> None:
    try:
        raw.cast(pa.string())
    except pa.ArrowInvalid:
        for row, one in enumerate(raw.to_pylist()):
            try:
                (one or b"").decode()
            except UnicodeDecodeError as error:
                raise EntryError(
                    f"{named(row)}: expected UTF-8, found another byte at position {error.start}",
                    hint="repair the text: make_valid_utf8(column); bytes of any kind need the codec 'bytes'",
                ) from None
        raise


def _json(values: pa.Array, keys: pa.Array, queue: Queue) -> pa.Array:
    try:
        texts = [None if value is None else json_bytes(value) for value in _python(values)]
    except (NotJson, ValueError, OverflowError):
        for row in range(len(values)):  # one by one, to find the first that is refused
            _json_of_row(values.slice(row, 1), _shown(keys, row, queue), queue)
        raise
    return pa.array(texts, pa.binary())


def _json_of_row(one: pa.Array, key: str, queue: Queue) -> None:
    problem = f"queue {queue.id!r}: value of key {key}"
    try:
        (value,) = _python(one)
        json_bytes(value)
    except NotJson as error:
        raise EntryError(f"{problem}: expected a JSON value, but {error.misfit}", hint=error.misfit.remedy) from error
    except UnicodeDecodeError as error:
        raise EntryError(
            f"{problem}: expected UTF-8, found text with another byte", hint="repair it: make_valid_utf8(column)"
        ) from error
    except (ValueError, OverflowError) as error:
        raise EntryError(
            f"{problem}: it contains a date or time outside the years 1 to 9999", hint="send it as text"
        ) from error


def _python(values: pa.Array) -> Sequence[Any]:
    """Return the values as Python objects; timestamps are in UTC, because Spark's have no time zone."""
    kind = values.type
    if pa.types.is_struct(kind):
        names = [kind.field(n).name for n in range(kind.num_fields)]
        columns = [_python(column) for column in values.flatten()]
        rows = zip(*columns, strict=True) if columns else (() for _ in range(len(values)))
        return _with_nulls([dict(zip(names, row, strict=True)) for row in rows], values)
    if pa.types.is_map(kind):
        offsets = values.offsets.to_pylist()
        keys, items = _python(values.keys), _python(values.items)
        pairs = zip(offsets, offsets[1:], strict=False)
        return _with_nulls([dict(zip(keys[a:b], items[a:b], strict=True)) for a, b in pairs], values)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        offsets = values.offsets.to_pylist()
        parts = _python(values.values)
        return _with_nulls([list(parts[a:b]) for a, b in zip(offsets, offsets[1:], strict=False)], values)
    if pa.types.is_timestamp(kind):
        values = values.cast(pa.timestamp("us", "UTC"))
    found: list[Any] = values.to_pylist()
    return found


def _with_nulls(rows: list[Any], values: pa.Array) -> list[Any]:
    if not values.null_count:
        return rows
    return [row if valid else None for row, valid in zip(rows, values.is_valid().to_pylist(), strict=True)]
