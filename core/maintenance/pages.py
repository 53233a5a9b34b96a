"""Pages of clean-up. Each is one short SQL transaction, and records where it ended.

Old versions are found in two ways:

* A table with conflicts leaves a conflict key at every row that was written since its last clean-up. The keys lead to
  all old versions of such tables, and cells that nobody writes are never read.
* No conflict key leads to old versions in tables without conflicts, or to expired cells. These tables are read cell by
  cell.

:mod:`export_queue.core.store.queries.versions` says which versions may be deleted. A pass reads one of the two subjects
page by page, and begins when the horizon has risen since the last pass began.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from export_queue.core.store import Work, cell_key, cells_of_key, queries

MOST_ROWS = 5000
"""Rows in a page: some ten milliseconds, for which a writer of SQLite may have to wait."""
MOST_KEYS = 300
"""Conflict keys in a page: up to three parameters each, and one statement for all of their cells."""
KEYS, CELLS = "keys", "cells"
"""The subjects, by the names under which the store keeps their progress."""

_VERSION = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class Page:
    """The result of one page."""

    looked_at: int = 0
    deleted: Counter[str] = field(default_factory=Counter)
    more: bool = False
    """Whether another page follows."""


CleanPage = Callable[[Work, int], Page]
"""Cleans one page; the number limits its rows."""


def pages_of(name: str, delete: Callable[..., int]) -> CleanPage:
    """Make pages of a statement that deletes at most ``limit`` rows and returns how many it deleted."""

    def clean(work: Work, limit: int) -> Page:
        most = min(limit, MOST_ROWS)
        deleted = delete(work, limit=most)
        return Page(deleted, Counter({name: deleted}), more=deleted == most)

    return clean


def clean_conflict_keys(work: Work, limit: int) -> Page:
    """Delete the versions that the next conflict keys lead to, then the keys at or below the horizon."""
    horizon = queries.cleanup.horizon(work)
    state = _current_pass(work, KEYS, horizon, start=b"")
    if state is None or state.place is None:
        return Page()
    most = min(limit, MOST_KEYS)
    keys = queries.versions.keys_after(work, state.place, limit=most)
    cells = [cells for key in keys if (cells := cells_of_key(key)) is not None]
    versions = 0
    if cells:
        versions = queries.versions.delete_of_cells(work, cells, horizon=horizon, limit=MOST_ROWS)
    if versions == MOST_ROWS:  # the same page again, because keys are deleted only after their versions
        queries.cleanup.save_progress(work, KEYS, state)
        return Page(versions, Counter(versions=versions), more=True)
    deleted = queries.versions.delete_keys(work, state.place, keys[-1], horizon=horizon) if keys else 0
    more = len(keys) == most
    queries.cleanup.save_progress(work, KEYS, queries.cleanup.Progress(state.reached, keys[-1] if more else None))
    return Page(len(keys) + versions, Counter(versions=versions, conflict_keys=deleted), more)


def clean_versions(work: Work, limit: int) -> Page:
    """Delete versions from the next cells of tables without conflicts or with expiring cells."""
    horizon = queries.cleanup.horizon(work)
    state = _current_pass(work, CELLS, horizon, start=_as_bytes(_start(0)))
    if state is None or state.place is None:
        return Page()
    most = min(limit, MOST_ROWS)
    after = _as_cell(state.place)
    tables = {number: ttl_ms for number, ttl_ms in queries.cleanup.tables_without_keys(work) if number >= after[0]}
    number = min(tables, default=None)
    following: queries.versions.CellKey | None = None
    versions = 0
    if number is not None:
        after = after if after[0] == number else _start(number)
        ttl_ms = tables[number]
        following = queries.versions.page_end(work, after, rows=most)
        expired = None if ttl_ms is None else (queries.cleanup.expiry_ms(work) - ttl_ms) * 1_000_000
        versions = queries.versions.delete_of_page(work, after, following, horizon=horizon, expired=expired)
        if following is None and len(tables) > 1:
            following = _start(number + 1)
    end = None if following is None else _as_bytes(following)
    queries.cleanup.save_progress(work, CELLS, queries.cleanup.Progress(state.reached, end))
    return Page(most, Counter(versions=versions), more=following is not None)


def _current_pass(work: Work, subject: str, horizon: int, *, start: bytes) -> queries.cleanup.Progress | None:
    """Continue the current pass, or begin one if the horizon has risen since the last pass began; else return None."""
    state = queries.cleanup.progress(work, subject)
    if state.place is not None:
        return state
    return queries.cleanup.Progress(horizon, start) if horizon > state.reached else None


def _start(table: int) -> queries.versions.CellKey:
    return table, b"", b"", -1


def _as_bytes(cell: queries.versions.CellKey) -> bytes:
    return cell_key(*cell[:3]) + _VERSION.pack(cell[3])


def _as_cell(place: bytes) -> queries.versions.CellKey:
    cells = cells_of_key(place[: -_VERSION.size])
    assert cells is not None
    table, row, column = cells
    return table, row, column or b"", _VERSION.unpack(place[-_VERSION.size :])[0]
