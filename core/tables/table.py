"""One table in a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from export_queue.core.errors import InvalidArgument
from export_queue.core.store import Cell, Span, cell_key, row_key
from export_queue.core.tables.cells import as_key, cell_types
from export_queue.core.tables.observed import ObservedColumns, ObserverKind
from export_queue.core.tables.options import ConflictLevel, TableOptions
from export_queue.core.transactions import OpenTransaction, read_cell, read_cells, read_versions, scan_cells


class Table:
    """The cells of a table, as one transaction reads and writes them. A cell has a row and a column.

    Rows and values have the types that were passed to ``store.configure_table``, by default bytes. A deleted cell is
    the same as a cell that never existed. An empty value is a value.
    """

    def __init__(self, transaction: OpenTransaction, options: TableOptions, observed: ObservedColumns) -> None:
        self._transaction = transaction
        self._options = options
        self._observed = observed
        self._types = cell_types(options.name, options.row, options.value)
        self._has_plain_rows = self._types.has_plain_rows
        self._has_plain_values = self._types.has_plain_values

    def get(self, row: Any, column: str | bytes, default: Any = None) -> Any:
        """Return the value of one cell in the snapshot, including own writes.

        :param row: a row of the table's type, 1–1024 bytes when encoded. If rows are ``bytes``, text is encoded as
            UTF-8.
        :param column: the name of the column, as text or bytes.
        :param default: returned if the cell has no value.
        """
        value = read_cell(self._transaction, self._cell(row, column), ttl_ms=self._options.ttl_ms)
        if value is None:
            return default
        return value if self._has_plain_values else self._types.decode_value(value, row, column)

    def versions(self, row: Any, column: str | bytes) -> list[Any]:
        """Return the versions of one cell that are visible at the transaction's level, newest first.

        At ``SNAPSHOT_ALL`` these are the own version of each checkpoint, followed by the committed version. At other
        levels it is the newest version only. None stands for a delete.
        """
        found = read_versions(self._transaction, self._cell(row, column), ttl_ms=self._options.ttl_ms)
        return [None if value is None else self._types.decode_value(value, row, column) for value in found]

    def get_many(self, cells: Iterable[tuple[Any, str | bytes]]) -> dict[tuple[Any, Any], Any]:
        """Return the values of many cells at once.

        :param cells: pairs of row and column.
        :returns: the values by row and column, which have the types that :meth:`scan` returns. Cells without a value
            are left out.
        """
        encode_row = self._types.encode_row
        wanted = [(encode_row(row), as_key("column", column)) for row, column in cells]
        found = read_cells(self._transaction, self._options.number, wanted, ttl_ms=self._options.ttl_ms)
        if self._has_plain_rows and self._has_plain_values:
            return found
        decoded = (self._types.decode_cell((*cell, value)) for cell, value in found.items())
        return {(row, column): value for row, column, value in decoded}

    def scan(
        self,
        start: Any = None,
        stop: Any = None,
        *,
        prefix: str | bytes | None = None,
        columns: Iterable[str | bytes] | None = None,
        limit: int | None = None,
    ) -> Iterator[tuple[Any, Any, Any]]:
        """Read cells page by page, ordered by row and column, including own writes.

        Rows are ordered by their encoded bytes: numbers by size, text by code points. Writes that this transaction
        makes during the scan are not included. If a long transaction is flushed during the scan, they may be, unless
        it has made a checkpoint and reads at ``SNAPSHOT_EXCLUDE_CURRENT``.

        :param start: first row to read.
        :param stop: first row that is not read.
        :param prefix: instead of ``start`` and ``stop``, read the rows that begin with this prefix. Rows must be text
            or bytes.
        :param columns: list of the columns to read; None for all. An empty list finds nothing.
        :param limit: maximum number of cells.
        :returns: row, column and value of each cell. Row and value have the table's types. The column is bytes if the
            rows are ``bytes``, and otherwise text.
        :raises InvalidArgument: an argument has the wrong type.
        """
        if limit is not None and (type(limit) is not int or limit < 0):
            raise InvalidArgument(f"limit: expected a whole number of cells, found {limit!r}")
        span = self._types.span(start, stop, prefix, () if columns is None else columns)
        if columns is not None and not span.columns:
            limit = 0
        found = self._scan(span, limit=limit)
        return found if self._has_plain_rows and self._has_plain_values else map(self._types.decode_cell, found)

    def delete_row(self, row: Any) -> None:
        """Delete all cells of one row that are visible to this transaction."""
        key = self._types.encode_row(row)
        for _, column, _ in list(self._scan(Span(key, key + b"\x00"))):
            self._write((self._options.number, key, column), None)

    def set(self, row: Any, column: str | bytes, value: Any) -> None:
        """Write one cell. Others see it after the commit.

        If the column has a strong observer, the write sets a notification.

        :raises InvalidArgument: row or value does not have the table's type.
        """
        if self._has_plain_values and type(value) is bytes:  # fast path: most tables have no types
            encoded = value
        else:
            encoded = self._types.encode_value(value, row, column)
        self._write(self._cell_to_write(row, column), encoded)

    def delete(self, row: Any, column: str | bytes) -> None:
        """Delete one cell. A delete conflicts like a write."""
        self._write(self._cell_to_write(row, column), None)

    def notify(self, row: Any, column: str | bytes) -> None:
        """Set a weak notification: after the commit, the column's observer is called at least once.

        :raises InvalidArgument: the column has no weak observer.
        """
        cell = self._cell_to_write(row, column)
        number, _, column_bytes = cell
        if self._observed.of(number).get(column_bytes) is not ObserverKind.WEAK:
            self._observed.refresh()  # the observer may be new
        found = self._observed.of(number).get(column_bytes)
        if found is not ObserverKind.WEAK:
            raise InvalidArgument(
                f"notify: expected a column of table {self._options.name!r} with a weak observer, "
                f"found {column_bytes!r} with {f'a {found} one' if found else 'none'}",
                hint="register it: store.observe(table, column, function, kind='weak') or store.watch(...); "
                "a strong observer is called when the column is written",
            )
        self._transaction.notify(cell)

    def _cell(self, row: Any, column: str | bytes) -> Cell:
        row_bytes = as_key("row", row) if self._has_plain_rows else self._types.encode_row(row)
        return self._options.number, row_bytes, as_key("column", column)

    def _cell_to_write(self, row: Any, column: str | bytes) -> Cell:
        if self._has_plain_rows:
            return self._options.number, as_key("row", row), as_key("column", column)
        return self._options.number, self._types.encode_row(row), self._types.encode_column(column)

    def _scan(self, span: Span, *, limit: int | None = None) -> Iterator[tuple[bytes, bytes, bytes]]:
        return scan_cells(self._transaction, self._options.number, span, ttl_ms=self._options.ttl_ms, limit=limit)

    def _write(self, cell: Cell, value: bytes | None) -> None:
        number, row, column = cell
        level = self._options.conflict
        conflict_key = None
        if level is ConflictLevel.ROW:
            conflict_key = row_key(number, row)
        elif level is ConflictLevel.CELL:
            conflict_key = cell_key(number, row, column)
        self._transaction.write_cell(cell, value, conflict_key=conflict_key)
        if value is not None and self._observed.of(number).get(column) is ObserverKind.STRONG:
            self._transaction.notify(cell)
