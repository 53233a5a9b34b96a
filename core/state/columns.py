"""Data sets as columns of encoded keys and values.

Keys and values that are stored as they are, and JSON documents, are encoded as columns. Everything else is encoded row
by row, and so is every batch with something to refuse: that way decides what the result is, and raises the errors.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from export_queue.core.codecs import MAX_KEY_BYTES
from export_queue.core.errors import EntryError
from export_queue.core.json_text import NotJson
from export_queue.core.queue import Queue
from export_queue.core.segments import is_as_stored, load_pyarrow
from export_queue.core.sources import (
    NO_VALUE,
    Columns,
    as_key,
    encoded_prefix,
    is_batch,
    missing_column,
    parts_of,
    record_of,
)
from export_queue.core.state.json_columns import json_objects, json_texts
from export_queue.core.state.sorted_spool import pieces_of

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS = 16_384
_BYTES = 8 << 20
"""Maximum rows and bytes that are encoded at once, unless one row is larger."""


class _Doubt(Exception):
    """Whether the columns are encoded as the rows would be is not certain."""


@dataclass(frozen=True, slots=True)
class RecordEncoder:
    """Encodes the records of a data set.

    :param key: columns that make up the key; see :func:`record_of`.
    :param value: columns that make up the value.
    :param scope: the beginning that all keys must have.
    """

    queue: Queue
    key: Columns
    value: Columns
    scope: str | bytes | None

    def batches(self, data: Any) -> Iterator[pa.RecordBatch]:
        """Yield encoded keys and values, in columns ``key`` and ``value``.

        :param data: see :func:`parts_of`.
        :raises EntryError: a record has no key or no value, or they do not fit the queue.
        :raises InvalidArgument: the data is of another kind, or pyarrow is not installed.
        """
        load_pyarrow()
        self._check_names(getattr(getattr(data, "schema", None), "names", ()))  # there may be no batch
        for are_batches, parts in groupby(parts_of(data), is_batch):
            if are_batches:
                for batch in parts:
                    yield from self._of_batch(batch)
            else:
                yield from self._of_rows(parts)

    def _check_names(self, names: Sequence[str]) -> None:
        """Refuse data that lacks a column which is needed, or has two of its name, even if there are no rows.

        Data without any column is empty, as a table that was made of no rows.
        """
        if self.key is None and self.value is not None:
            return  # the first row is refused
        wanted = ["key", "value"] if self.key is None else [*_listed(self.key), *_listed(self.value or names)]
        for name in wanted if names else ():
            if name not in names:
                raise missing_column(name, names)
            if names.count(name) > 1:
                raise EntryError(
                    f"column {name!r}: expected one of this name, found {names.count(name)} among {', '.join(names)}",
                    hint="give the columns different names",
                )

    def _of_batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        self._check_names(batch.schema.names)
        try:
            batch.validate(full=True)  # invalid memory must not be read
        except (pa.ArrowException, ValueError) as error:
            raise EntryError(f"queue {self.queue.id!r}: the data set has a batch that is not valid: {error}") from error
        for start in range(0, batch.num_rows, _ROWS):
            for piece in pieces_of(batch.slice(start, _ROWS), _BYTES):
                try:
                    columns = [self._keys(piece), self._values(piece)]
                except (_Doubt, NotJson, pa.ArrowException, OverflowError, ValueError):
                    yield from self._of_rows(self._python_rows(piece))
                else:
                    yield pa.RecordBatch.from_arrays(columns, ["key", "value"])

    def _python_rows(self, piece: pa.RecordBatch) -> list[Any]:
        import pyarrow as pa

        try:
            rows: list[Any] = piece.to_pylist()
        except (pa.ArrowException, ValueError, OverflowError) as error:  # as of a year after 9999, or an unknown zone
            raise EntryError(
                f"queue {self.queue.id!r}: a value of the data set has no form in Python: {error}",
                hint="cast its column to text in the query",
            ) from error
        return rows

    def _of_rows(self, rows: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        keys: list[bytes] = []
        values: list[bytes] = []
        size = 0
        for row in rows:
            key, value = self._record(row)
            keys.append(key)
            values.append(value)
            size += len(key) + len(value)
            if len(keys) >= _ROWS or size >= _BYTES:
                yield batch_of(keys, values)
                keys, values, size = [], [], 0
        if keys:
            yield batch_of(keys, values)

    def _record(self, row: Any) -> tuple[bytes, bytes]:
        queue = self.queue
        key, value = record_of(row, self.key, self.value)
        encoded = queue.encode_key(as_key(key, queue.key))
        if self.scope is not None and not encoded.startswith(encoded_prefix(self.scope)):
            raise EntryError(f"key {key!r}: expected one that begins with the scope {self.scope!r}")
        stored = queue.encode_value(value, key=key)
        if stored is None:
            raise EntryError(
                f"key {key!r}: expected a value, found none",
                hint=NO_VALUE,
            )
        return encoded, stored

    def _keys(self, batch: pa.RecordBatch) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.key is None or isinstance(self.key, str):
            column = batch.column(self.key or "key")
            keys = self._key_column(column)
        else:
            columns = [batch.column(name).to_pylist() for name in self.key]
            keys = pa.array([self._key_list(parts) for parts in zip(*columns, strict=True)], pa.binary())
        start = encoded_prefix(self.scope)
        if start and not pc.all(pc.equal(pc.binary_slice(keys, 0, len(start)), pa.scalar(start, pa.binary()))).as_py():
            raise _Doubt
        if keys.null_count or not _fit(keys, 1, MAX_KEY_BYTES):
            raise _Doubt
        return keys

    def _key_column(self, column: pa.Array) -> pa.Array:
        import pyarrow as pa
        import pyarrow.types as types

        codec = self.queue.key
        if column.null_count:
            raise _Doubt
        if is_as_stored(column.type, codec):
            return _as_binary(column, MAX_KEY_BYTES)
        if types.is_integer(column.type) and codec in ("str", "int"):
            return column.cast(pa.string()).cast(pa.binary())
        return pa.array([self.queue.encode_key(as_key(item, codec)) for item in column.to_pylist()], pa.binary())

    def _key_list(self, parts: Sequence[Any]) -> bytes:
        if None in parts:
            raise _Doubt
        text = json.dumps(parts, ensure_ascii=False, separators=(",", ":"), default=str)
        return self.queue.encode_key(text)

    def _values(self, batch: pa.RecordBatch) -> pa.Array:
        import pyarrow as pa

        queue, largest = self.queue, self.queue.max_value_bytes
        if self.key is None and self.value is not None:
            raise _Doubt
        name = "value" if self.key is None else self.value
        if isinstance(name, str):
            column = batch.column(name)
            if is_as_stored(column.type, queue.value):
                values = _as_binary(column, largest)
            elif queue.value == "json":
                values = json_texts(column)
            else:
                values = pa.array([queue.encode_value(item, key=None) for item in column.to_pylist()], pa.binary())
        elif queue.value == "json":
            names = batch.schema.names if name is None else name
            values = json_objects({one: batch.column(one) for one in names}, batch.num_rows)
        else:
            raise _Doubt
        if values.null_count or not _fit(values, 0, largest):
            raise _Doubt
        return values


def batch_of(keys: Sequence[bytes], values: Sequence[bytes | None]) -> pa.RecordBatch:
    """Return keys and values as columns."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array(keys, pa.binary()), pa.array(values, pa.binary())], ["key", "value"])


def _listed(columns: str | Sequence[str]) -> Sequence[str]:
    return [columns] if isinstance(columns, str) else columns


def _as_binary(column: pa.Array, largest: int) -> pa.Array:
    import pyarrow as pa

    if not _fit(column, 0, largest):
        raise _Doubt
    return column.cast(pa.binary())


def _fit(column: pa.Array, least: int, most: int) -> bool:
    """Return whether the lengths of all items are within bounds."""
    import pyarrow.compute as pc

    found = pc.min_max(pc.binary_length(column)).as_py()
    return found["min"] is None or least <= found["min"] <= found["max"] <= most
