"""One table, bound to its transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar, overload

from export_queue.core.errors import InvalidArgument
from export_queue.core.store import Span, cell_key, row_key
from export_queue.core.tables.observed import ObservedColumns, ObserverKind
from export_queue.core.tables.options import ConflictLevel, TableOptions
from export_queue.core.transactions import OpenTransaction, read_cell, read_cells, read_versions, scan_cells

MAX_KEY_BYTES = 1024

Default = TypeVar("Default")


class Table:
    """Cells of (row, column) with byte values, as one transaction sees them.

    Rows and columns are text or bytes of any content; a deleted cell reads like a cell that never was;
    an empty value is a value.
    """

    def __init__(self, transaction: OpenTransaction, options: TableOptions, observed: ObservedColumns) -> None:
        self._transaction = transaction
        self._options = options
        self._observed = observed

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
        cell = self._options.number, as_key("row", row), as_key("column", column)
        value = read_cell(self._transaction, cell, ttl_ms=self._options.ttl_ms)
        return default if value is None else value

    def versions(self, row: str | bytes, column: str | bytes) -> list[bytes | None]:
        """Read the versions of one cell that the transaction's level shows, the newest first; None is a delete.

        At ``SNAPSHOT_ALL`` these are its own of each checkpoint and, behind them, the committed one; at other levels
        the newest alone.
        """
        cell = self._options.number, as_key("row", row), as_key("column", column)
        return read_versions(self._transaction, cell, ttl_ms=self._options.ttl_ms)

    def get_many(self, cells: Iterable[tuple[str | bytes, str | bytes]]) -> dict[tuple[bytes, bytes], bytes]:
        """Read many cells at once.

        :param cells: each row and column.
        :returns: the values of those that have one, by row and column as bytes.
        """
        wanted = [(as_key("row", row), as_key("column", column)) for row, column in cells]
        return read_cells(self._transaction, self._options.number, wanted, ttl_ms=self._options.ttl_ms)

    def scan(
        self,
        start: str | bytes | None = None,
        stop: str | bytes | None = None,
        *,
        prefix: str | bytes | None = None,
        columns: Iterable[str | bytes] = (),
        limit: int | None = None,
    ) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Read cells in the order of rows and columns, page by page; own writes are in their places.

        A write of this transaction while a scan runs is not part of it; a flush of a long transaction may be,
        unless the transaction has made a checkpoint and reads at ``SNAPSHOT_EXCLUDE_CURRENT``.

        :param start: first row.
        :param stop: the first row that is not read.
        :param prefix: instead of both: rows that begin with these bytes.
        :param columns: only these columns.
        :param limit: most cells.
        :returns: row, column and value of each cell that has one.
        """
        if limit is not None and (type(limit) is not int or limit < 0):
            raise InvalidArgument(f"limit: expected a whole number of cells, found {limit!r}")
        span = _span(start, stop, prefix, columns)
        return scan_cells(self._transaction, self._options.number, span, ttl_ms=self._options.ttl_ms, limit=limit)

    def delete_row(self, row: str | bytes) -> None:
        """Remove all cells of one row that this transaction sees."""
        key = as_key("row", row)
        for _, column, _ in list(self.scan(key, key + b"\x00")):
            self.delete(key, column)

    def set(self, row: str | bytes, column: str | bytes, value: bytes) -> None:
        """Write one cell; others see it when the transaction has committed.

        If the column has a strong observer, the write sets a notification.

        :raises InvalidArgument: the value is no bytes.
        """
        if not isinstance(value, bytes):
            raise InvalidArgument(f"value: expected bytes, found {type(value).__name__}; encode it first")
        self._write(row, column, value)

    def delete(self, row: str | bytes, column: str | bytes) -> None:
        """Remove one cell; a delete conflicts as a write does."""
        self._write(row, column, None)

    def notify(self, row: str | bytes, column: str | bytes) -> None:
        """Set a weak notification: the column's observer is called at least once after the commit.

        :raises InvalidArgument: the column has no weak observer.
        """
        number = self._options.number
        row_bytes, column_bytes = as_key("row", row), as_key("column", column)
        if self._observed.of(number).get(column_bytes) is not ObserverKind.WEAK:
            self._observed.refresh()  # it may be new
        found = self._observed.of(number).get(column_bytes)
        if found is not ObserverKind.WEAK:
            raise InvalidArgument(
                f"notify: expected a column of table {self._options.name!r} with a weak observer, "
                f"found {column_bytes!r} with {f'a {found} one' if found else 'none'}",
                hint="register it: store.observe(table, column, function, kind='weak') or store.watch(...); "
                "a strong observer is called when the column is written",
            )
        self._transaction.notify((number, row_bytes, column_bytes))

    def _write(self, row: str | bytes, column: str | bytes, value: bytes | None) -> None:
        number, level = self._options.number, self._options.conflict
        row_bytes, column_bytes = as_key("row", row), as_key("column", column)
        conflict_key = None
        if level is ConflictLevel.ROW:
            conflict_key = row_key(number, row_bytes)
        elif level is ConflictLevel.CELL:
            conflict_key = cell_key(number, row_bytes, column_bytes)
        cell = (number, row_bytes, column_bytes)
        self._transaction.write_cell(cell, value, conflict_key=conflict_key)
        if value is not None and self._observed.of(number).get(column_bytes) is ObserverKind.STRONG:
            self._transaction.notify(cell)


def _span(
    start: str | bytes | None, stop: str | bytes | None, prefix: str | bytes | None, columns: Iterable[str | bytes]
) -> Span:
    if prefix is not None and (start is not None or stop is not None):
        raise InvalidArgument("scan: expected either prefix or start and stop, found both")
    chosen = tuple(as_key("column", column) for column in columns)
    if prefix is not None:
        first = _bytes(prefix)
        return Span(first, _behind(first), chosen)
    return Span(_bytes(start or b""), None if stop is None else _bytes(stop), chosen)


def _bytes(value: str | bytes) -> bytes:
    try:
        return value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"a row or column: expected text or bytes, found half a character (a lone surrogate) at {error.start}",
            hint="repair the text: text.encode('utf-8', 'replace').decode()",
        ) from None


def _behind(prefix: bytes) -> bytes | None:
    """Return the first row behind all that begin with a prefix; None if there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def as_key(what: str, value: str | bytes) -> bytes:
    """Take a row or column as bytes.

    :raises InvalidArgument: it is empty, too long or neither text nor bytes.
    """
    key = value if type(value) is bytes else _bytes(value)
    if type(key) is not bytes or not 1 <= len(key) <= MAX_KEY_BYTES:
        size = f"{len(key)} bytes" if isinstance(key, bytes) else type(value).__name__
        raise InvalidArgument(f"{what}: expected text or bytes of 1 to {MAX_KEY_BYTES} bytes, found {size}")
    return key
