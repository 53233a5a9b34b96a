"""JSON documents of columns: byte by byte the same as the JSON of each row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from export_queue.core.json_text import json_bytes

if TYPE_CHECKING:
    import pyarrow as pa

_ESCAPED = bytes([*range(0x20), *b'"\\'])
"""Bytes that JSON text has only escaped."""
_PATTERN = r'["\\\x00-\x1f]'


def json_objects(columns: Mapping[str, pa.Array], rows: int) -> pa.Array:
    """Return a JSON object for each row.

    :raises NotJson: a part is not JSON.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    parts: list[Any] = []
    before = b"{"
    for name, column in columns.items():
        parts += [pa.scalar(before + json_bytes(name) + b":", pa.binary()), pc.fill_null(json_texts(column), b"null")]
        before = b","
    if not parts:
        return pa.array([b"{}"] * rows, pa.binary())
    end, separator = pa.scalar(b"}", pa.binary()), pa.scalar(b"", pa.binary())
    return pc.binary_join_element_wise(*parts, end, separator)


def json_texts(column: pa.Array) -> pa.Array:
    """Return each item of a column as JSON; null for null.

    Only whole numbers, booleans and text are written by columns. Arrow writes numbers with a fraction differently, so
    these are one list for the encoder of rows.

    :raises NotJson: an item is not JSON.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as types

    kind = column.type
    if types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if types.is_integer(kind):
        return column.cast(pa.string()).cast(pa.binary())
    if types.is_boolean(kind):
        return pc.if_else(column, pa.scalar(b"true", pa.binary()), pa.scalar(b"false", pa.binary()))
    if types.is_string(kind) or types.is_large_string(kind):
        return _quoted(column.cast(pa.string()))
    if (types.is_float64(kind) or types.is_float32(kind)) and pc.all(pc.is_finite(column)).as_py() is not False:
        texts = orjson.dumps(column.to_pylist())[1:-1].split(b",") if len(column) else []
        return pc.if_else(column.is_valid(), pa.array(texts, pa.binary()), pa.scalar(None, pa.binary()))
    return pa.array([None if item is None else json_bytes(item) for item in column.to_pylist()], pa.binary())


def _quoted(column: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    quote, nothing = pa.scalar(b'"', pa.binary()), pa.scalar(b"", pa.binary())
    quoted = pc.binary_join_element_wise(quote, column.cast(pa.binary()), quote, nothing)
    content = _content(column)
    if len(content.translate(None, _ESCAPED)) == len(content):
        return quoted
    mask = pc.fill_null(pc.match_substring_regex(column, _PATTERN), False)
    escaped = [json_bytes(text) for text in column.filter(mask).to_pylist()]
    return pc.replace_with_mask(quoted, mask, pa.array(escaped, pa.binary()))


def _content(column: pa.Array) -> bytes:
    """Return the bytes of all texts of a column, one after the other."""
    _, offsets, data = column.buffers()
    if data is None:
        return b""
    ends = memoryview(offsets).cast("i")
    return bytes(memoryview(data)[ends[column.offset] : ends[column.offset + len(column)]])
