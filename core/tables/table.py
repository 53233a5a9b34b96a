"""One table, bound to its transaction."""

from __future__ import annotations

from typing import TypeVar, overload

from export_queue.core.errors import InvalidArgument
from export_queue.core.store.conflict_keys import cell_key, row_key
from export_queue.core.tables.options import ConflictLevel, TableOptions
from export_queue.core.transactions import OpenTransaction

MAX_KEY_BYTES = 1024

Default = TypeVar("Default")


class Table:
    """Cells of (row, column) with byte values, as one transaction sees them.

    Rows and columns are text or bytes of any content; a deleted cell and one that never was read alike;
    an empty value is a value.
    """

    def __init__(self, transaction: OpenTransaction, options: TableOptions) -> None:
        self._transaction = transaction
        self._options = options

    @overload
    def get(self, row: str | bytes, column: str | bytes) -> bytes | None: ...

    @overload
    def get(self, row: str | bytes, column: str | bytes, default: Default) -> bytes | Default: ...

    def get(self, row: str | bytes, column: str | bytes, default: object = None) -> object:
        """Read one cell of the snapshot, own writes included.

        :param row: 1–1024 bytes; text is taken as UTF-8.
        :param column: the same.
        :param default: returned if there is no value.
        """
        found, value = self._transaction.read_cell((self._options.number, _key("row", row), _key("column", column)))
        return value if found else default

    def set(self, row: str | bytes, column: str | bytes, value: bytes) -> None:
        """Write one cell; others see it when the transaction has committed.

        :raises InvalidArgument: the value is no bytes.
        """
        if not isinstance(value, bytes):
            raise InvalidArgument(f"value: expected bytes, found {type(value).__name__}; encode it first")
        self._write(row, column, value)

    def delete(self, row: str | bytes, column: str | bytes) -> None:
        """Remove one cell; a delete conflicts as a write does."""
        self._write(row, column, None)

    def _write(self, row: str | bytes, column: str | bytes, value: bytes | None) -> None:
        number, level = self._options.number, self._options.conflict
        row_bytes, column_bytes = _key("row", row), _key("column", column)
        conflict_key = None
        if level is ConflictLevel.ROW:
            conflict_key = row_key(number, row_bytes)
        elif level is ConflictLevel.CELL:
            conflict_key = cell_key(number, row_bytes, column_bytes)
        self._transaction.write_cell((number, row_bytes, column_bytes), value, conflict_key=conflict_key)


def _key(what: str, value: str | bytes) -> bytes:
    key = value.encode() if isinstance(value, str) else value
    if not isinstance(key, bytes) or not 1 <= len(key) <= MAX_KEY_BYTES:
        size = f"{len(key)} bytes" if isinstance(key, bytes) else type(value).__name__
        raise InvalidArgument(f"{what}: expected text or bytes of 1 to {MAX_KEY_BYTES} bytes, found {size}")
    return key
