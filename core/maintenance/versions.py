"""Clean-up cell by cell: old versions in tables without conflicts, and in those whose cells expire.

No conflict key leads to these versions, so the whole table is gone through. Which versions may go is said in
:mod:`export_queue.core.store.queries.versions`.
"""

from __future__ import annotations

import struct
from collections import Counter

from export_queue.core.maintenance import pages
from export_queue.core.maintenance.pages import Page, current_pass
from export_queue.core.store import Work, cell_key, cells_of_key, queries

SUBJECT = "cells"

_VERSION = struct.Struct(">q")


def clean_versions(work: Work, limit: int) -> Page:
    """Delete versions from the next cells of the tables to whose cells no conflict key leads, or which expire."""
    horizon = queries.cleanup.horizon(work)
    state = current_pass(work, SUBJECT, horizon, start=_as_bytes(_start(0)))
    if state is None or state.place is None:
        return Page()
    most = min(limit, pages.MOST_ROWS)
    after = _as_cell(state.place)
    tables = {number: ttl_ms for number, ttl_ms in queries.cleanup.tables_without_keys(work) if number >= after[0]}
    number = min(tables, default=None)
    following: queries.versions.CellKey | None = None
    versions = 0
    if number is not None:
        after = after if after[0] == number else _start(number)
        ttl_ms = tables[number]
        following = queries.versions.page_end(work, after, rows=most)
        versions = queries.versions.delete_of_page(
            work,
            after,
            following,
            horizon=horizon,
            expired=None if ttl_ms is None else (queries.cleanup.expiry_ms(work) - ttl_ms) * 1_000_000,
        )
        if following is None and len(tables) > 1:
            following = _start(number + 1)
    end = None if following is None else _as_bytes(following)
    queries.cleanup.save_progress(work, SUBJECT, queries.cleanup.Progress(state.reached, end))
    return Page(most, Counter(versions=versions), more=following is not None)


def _start(table: int) -> queries.versions.CellKey:
    return table, b"", b"", -1


def _as_bytes(cell: queries.versions.CellKey) -> bytes:
    return cell_key(*cell[:3]) + _VERSION.pack(cell[3])


def _as_cell(place: bytes) -> queries.versions.CellKey:
    cells = cells_of_key(place[: -_VERSION.size])
    assert cells is not None
    table, row, column = cells
    return table, row, column or b"", _VERSION.unpack(place[-_VERSION.size :])[0]
