"""Encodes and decodes the rows, columns and values of a table; no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from export_queue.core.codecs import MAX_KEY_BYTES, ROWS, VALUES, Codec, Refused, find_codec, raise_undecodable
from export_queue.core.errors import InvalidArgument
from export_queue.core.store import Span


@dataclass(frozen=True, slots=True)
class CellTypes:
    """The types of one table's cells.

    If rows are ``bytes``, text is accepted and encoded as UTF-8, and rows and columns are returned as bytes. In other
    tables, columns are text.
    """

    table: str
    row: Codec
    value: Codec

    @property
    def has_plain_rows(self) -> bool:
        """Whether rows and columns are bytes."""
        return self.row is ROWS["bytes"]

    @property
    def has_plain_values(self) -> bool:
        """Whether values are bytes."""
        return self.value is VALUES["bytes"]

    def encode_row(self, row: Any) -> bytes:
        """Encode a row, or raise :class:`InvalidArgument`."""
        return as_key("row", row if self.has_plain_rows else self._bound("row", row))

    def encode_column(self, column: str | bytes) -> bytes:
        """Encode a column, or raise :class:`InvalidArgument`."""
        key = as_key("column", column)
        if type(column) is bytes and not self.has_plain_rows:
            try:
                key.decode()
            except UnicodeDecodeError as error:
                raise InvalidArgument(
                    f"table {self.table!r}: column: expected text, found bytes that are not UTF-8 (byte {error.start})",
                    hint="columns are any bytes only in a table whose rows are 'bytes'",
                ) from None
        return key

    def encode_value(self, value: Any, row: object, column: object) -> bytes:
        """Encode a value, or raise :class:`InvalidArgument`, which names the cell."""
        try:
            return self.value.encode(value)
        except Refused as refused:
            hint = refused.hint
            if self.has_plain_values:
                hint = "encode it, or give the table a type: store.configure_table(name, value='json')"
            raise InvalidArgument(
                f"table {self.table!r}: value of {_named(row, column)}: {refused.message}", hint=hint
            ) from refused

    def decode_row(self, row: bytes) -> Any:
        """Decode a row, or raise :class:`CodecError`."""
        try:
            return self.row.decode(row)
        except Exception as error:
            raise_undecodable(self.row, row, f"table {self.table!r}: row {row!r}", error)

    def decode_column(self, column: bytes) -> Any:
        """Decode a column."""
        return column if self.has_plain_rows else column.decode()

    def decode_value(self, value: bytes, row: object, column: object) -> Any:
        """Decode a value, or raise :class:`CodecError`, which names the cell."""
        try:
            return self.value.decode(value)
        except Exception as error:
            raise_undecodable(self.value, value, f"table {self.table!r}: value of {_named(row, column)}", error)

    def decode_cell(self, found: tuple[bytes, bytes, bytes]) -> tuple[Any, Any, Any]:
        """Decode row, column and value of a cell."""
        row, column = self.decode_row(found[0]), self.decode_column(found[1])
        return row, column, self.decode_value(found[2], row, column)

    def span(self, start: Any, stop: Any, prefix: Any, columns: Iterable[str | bytes]) -> Span:
        """Encode the bounds of a scan.

        :param columns: columns to read; none stands for all.
        :raises InvalidArgument: the arguments contradict each other, or have the wrong type.
        """
        if isinstance(columns, str | bytes) or not isinstance(columns, Iterable):
            raise InvalidArgument(
                f"table {self.table!r}: columns: expected a list of names, found {columns!r}",
                hint="one column is a list of one name: columns=['name']",
            )
        chosen = tuple(as_key("column", column) for column in columns)
        if prefix is None:
            first = b"" if start is None else self._bound("start", start)
            return Span(first, None if stop is None else self._bound("stop", stop), chosen)
        if start is not None or stop is not None:
            raise InvalidArgument("scan: expected either prefix or start and stop, found both")
        if self.row not in (ROWS["bytes"], ROWS["str"]):
            raise InvalidArgument(
                f"table {self.table!r}: prefix: expected rows of text or bytes, found a table of {self.row.name}",
                hint="give start and stop",
            )
        first = self._bound("prefix", prefix)
        return Span(first, _after_prefix(first), chosen)

    def _bound(self, what: str, row: Any) -> bytes:
        """Encode a row or a bound of a scan, which may be empty."""
        if self.has_plain_rows:
            if not isinstance(row, str | bytes):
                found = type(row).__name__
                raise InvalidArgument(f"table {self.table!r}: {what}: expected text or bytes, found {found}")
            return _bytes(row)
        try:
            return self.row.encode(row)
        except Refused as refused:
            raise InvalidArgument(f"table {self.table!r}: {what}: {refused.message}", hint=refused.hint) from refused


@lru_cache(maxsize=256)
def cell_types(table: str, row: str, value: str) -> CellTypes:
    """Return the types of a table's cells.

    :param row: name or import path of the codec of rows.
    :param value: name or import path of the codec of values.
    :raises CodecError: an import path does not lead to a codec.
    """
    return CellTypes(table, find_codec(row, ROWS), find_codec(value, VALUES))


def _named(row: object, column: object) -> str:
    return f"row {row!r}, column {column!r}"


def _bytes(value: str | bytes) -> bytes:
    try:
        if isinstance(value, str):
            return str.encode(value)  # not value.encode(), which a subclass may override
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"a row or column: expected text or bytes, found half a character (a lone surrogate) at {error.start}",
            hint="repair the text: text.encode('utf-8', 'replace').decode()",
        ) from None
    return memoryview(value).tobytes() if isinstance(value, bytes) else value


def _after_prefix(prefix: bytes) -> bytes | None:
    """Return the first row after all rows that begin with a prefix; None if there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def as_key(what: str, value: str | bytes) -> bytes:
    """Return a row or column as bytes, or raise :class:`InvalidArgument`."""
    key = value if type(value) is bytes else _bytes(value)
    if type(key) is not bytes or not 1 <= len(key) <= MAX_KEY_BYTES:
        size = f"{len(key)} bytes" if isinstance(key, bytes) else type(value).__name__
        raise InvalidArgument(f"{what}: expected text or bytes of 1 to {MAX_KEY_BYTES} bytes, found {size}")
    return key
