"""Reads of a transaction: its own writes first, then its snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import cast

from export_queue.core.errors import SnapshotTooOld
from export_queue.core.store import AnySnapshot, Cell, Handle, Scan, Span, Version, VersionKey, queries
from export_queue.core.transactions.scans import LARGEST_PAGE, Found, first_limit, merged, newest_of, next_page, page_of
from export_queue.core.transactions.transaction import OpenTransaction
from export_queue.core.transactions.value import Level

READ_BLOCK = 1000
"""Maximum number of cells that one statement reads."""
LAST_VERSION = (1 << 63) - 1
"""Greater than the version of any cell."""


def read_cell(opened: OpenTransaction, cell: Cell, *, ttl_ms: int | None = None) -> bytes | None:
    """Return the value of a cell, or None if it has none.

    :param ttl_ms: versions that are older than this many milliseconds count as deleted.
    """
    opened.require_open()
    is_own, value = opened.buffer.find(cell, opened.level)
    if is_own:
        return value
    version, value = opened.first_read(cell) or opened.read(opened.database.dialect.steps.read_cell, *cell)
    if ttl_ms is None or _lives(opened, version, ttl_ms):
        return value
    return None


def read_cells(
    opened: OpenTransaction, table: int, cells: Iterable[tuple[bytes, bytes]], *, ttl_ms: int | None = None
) -> dict[tuple[bytes, bytes], bytes]:
    """Return the values of many cells of one table; cells without a value are left out.

    :param cells: row and column of each cell.
    """
    opened.require_open()
    wanted = list(dict.fromkeys(cells))
    own = opened.buffer.cells(opened.level)
    unknown = [cell for cell in wanted if (table, *cell) not in own] if own else wanted
    expired = None if ttl_ms is None or not unknown else _expired(opened, ttl_ms)
    found: dict[tuple[bytes, bytes], bytes] = {}
    for start in range(0, len(unknown), READ_BLOCK):
        block = unknown[start : start + READ_BLOCK]
        versions = opened.read(opened.database.dialect.steps.read_cells, table, block)
        for cell, (version, value) in zip(block, versions, strict=True):
            if value is not None and (expired is None or (version is not None and version > expired)):
                found[cell] = value
        if expired is not None and any(version is None for version, _ in versions):
            _require_young(opened)
    if not own:
        return found
    values = {cell: found[cell] if cell in found else own.get((table, *cell)) for cell in wanted}
    return {cell: value for cell, value in values.items() if value is not None}


def scan_cells(
    opened: OpenTransaction,
    table: int,
    span: Span,
    *,
    ttl_ms: int | None = None,
    limit: int | None = None,
    page: int = LARGEST_PAGE,
) -> Iterator[Found]:
    """Read a span page by page, in the order of rows and columns, merged with own writes.

    :param limit: maximum number of cells.
    :param page: maximum number of versions that one statement reads.
    """
    opened.require_open()
    own = {  # a copy: the scan does not include later writes
        (row, column): value
        for (number, row, column), value in opened.buffer.cells(opened.level).items()
        if number == table and span.holds(row, column)
    }
    stored = chain.from_iterable(_pages(opened, table, span, ttl_ms, *first_limit(page, limit)))
    return islice(merged(stored, own), limit)


def _pages(
    opened: OpenTransaction, table: int, span: Span, ttl_ms: int | None, limit: int, longest: int
) -> Iterator[list[Found]]:
    steps = opened.database.dialect.steps
    after: VersionKey = span.first_row, b"", 0  # before all columns of the first row: no column has an empty name
    expired = None if ttl_ms is None else _expired(opened, ttl_ms)
    newest = False
    while True:
        opened.require_open()
        scan = Scan(table=table, span=span, after=after, limit=limit, expired=expired, newest=newest)
        rows = opened.read(steps.scan_versions, scan)
        if expired is not None:
            _require_young(opened)
        page = newest_of(rows, limit) if newest else page_of(rows, limit)
        decided = page.decided
        if page.cut is not None:
            after = *page.cut, LAST_VERSION if newest else 0  # all versions of the cell again, unless it is decided
            if not decided:  # the page is too short for one cell
                version, value = opened.read(steps.read_cell, table, *page.cut)
                decided = [(*page.cut, value if _lives(opened, version, ttl_ms) else None)]
                after = *page.cut, LAST_VERSION
        yield cast("list[Found]", [found for found in decided if found[2] is not None])
        if page.cut is None:
            return
        newest, limit = next_page(rows, page, limit, longest, newest=newest)


def read_versions(opened: OpenTransaction, cell: Cell, *, ttl_ms: int | None = None) -> list[bytes | None]:
    """Return the versions of a cell that the level shows: own ones, newest first, then the committed one.

    None stands for a delete.
    """
    opened.require_open()
    found = list(opened.buffer.versions(cell, opened.level))
    if opened.kind == "long":
        found += _read_staged(opened, cell, ttl_ms, has_buffered=bool(found))
        committed: AnySnapshot = opened.value.snapshot
    else:
        committed = opened.snapshot
    version, value = _read_in(opened, committed, cell)
    is_alive = _lives(opened, version, ttl_ms)
    if version is not None:
        found.append(value if is_alive else None)
    return found if opened.level is Level.SNAPSHOT_ALL else found[:1]


def _read_staged(opened: OpenTransaction, cell: Cell, ttl_ms: int | None, *, has_buffered: bool) -> list[bytes | None]:
    opened.read(lambda connection, snapshot: None)  # updates the write pointers
    value = opened.value
    found: list[bytes | None] = []
    for pointer in reversed(value.stored_snapshot.write_pointers):
        if has_buffered and pointer == value.write_pointers[-1]:
            continue
        version, stored = _read_in(opened, replace(value.snapshot, write_pointers=(pointer,)), cell)
        if version == pointer:
            found.append(stored if _lives(opened, version, ttl_ms) else None)
    return found


def _read_in(opened: OpenTransaction, snapshot: AnySnapshot, cell: Cell) -> Version:
    """Read a cell in another snapshot than the transaction's own."""

    def read(connection: Handle, _: AnySnapshot) -> Version:
        return opened.database.dialect.steps.read_cell(connection, snapshot, *cell)

    return opened.read(read)


def _lives(opened: OpenTransaction, version: int | None, ttl_ms: int | None) -> bool:
    """Return whether there is a version, and it has not expired."""
    if version is None:
        if ttl_ms is not None:
            _require_young(opened)
        return False
    return ttl_ms is None or version > _expired(opened, ttl_ms)


def _expired(opened: OpenTransaction, ttl_ms: int) -> int:
    """Return the highest version that has expired. Own versions are greater."""
    return (opened.aged_from_ms - ttl_ms) * 1_000_000


def _require_young(opened: OpenTransaction) -> None:
    """After a read that found nothing, check that clean-up has deleted no version that is alive in this transaction."""
    with opened.database.read() as work:
        expiry_ms = queries.cleanup.expiry_ms(work)
    if expiry_ms > opened.aged_from_ms:
        raise SnapshotTooOld(
            f"the transaction counts ages of cells from {opened.aged_from_ms} ms, clean-up has deleted what had expired"
            f" by {expiry_ms} ms"
        )
