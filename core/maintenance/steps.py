"""The subjects of clean-up, each in pages of one short SQL transaction that remember where they ended.

Which versions may go: see :mod:`export_queue.core.store.queries.versions`. Where they are: a table with
conflicts leaves a conflict key at every row that was written since its last clean-up, so the keys lead to them and
cells that nobody writes are never looked at. Tables without conflicts, and those whose cells expire, are gone
through cell by cell. A pass begins when the horizon has risen since the last one began.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from export_queue.core.store import Work, cell_key, cells_of_key, queries

KEYS = "keys"
CELLS = "cells"
SUBJECTS = (KEYS, CELLS, queries.outcomes.SUBJECT)

MOST_KEYS = 300
"""Conflict keys a page: up to three parameters each, and one statement for all of their cells."""
MOST_ROWS = 5000
"""Rows a page: some ten milliseconds, for which a writer of SQLite may have to wait."""

_VERSION = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class Page:
    """What one page did."""

    looked_at: int = 0
    deleted: Counter[str] = field(default_factory=Counter)
    more: bool = False
    """Whether there is a next one."""


Step = Callable[[Work, int], Page]
"""Cleans one page of at most so many rows."""


def clean_by_keys(work: Work, limit: int) -> Page:
    """Delete the versions that the next conflict keys lead to, then the keys that are settled."""
    horizon = queries.cleanup.horizon(work)
    state = _pass(work, KEYS, horizon)
    if state is None or state.place is None:
        return Page()
    most = min(limit, MOST_KEYS)
    keys = queries.versions.keys_after(work, state.place, limit=most)
    cells = [cells for key in keys if (cells := cells_of_key(key)) is not None]
    versions = 0
    if cells:
        versions = queries.versions.delete_of_cells(work, cells, horizon=horizon, limit=MOST_ROWS)
    if versions == MOST_ROWS:  # the same page again: a key goes only after what it leads to
        queries.cleanup.save_progress(work, KEYS, state)
        return Page(versions, Counter(versions=versions), more=True)
    settled = queries.versions.delete_keys(work, state.place, keys[-1], horizon=horizon) if keys else 0
    more = len(keys) == most
    queries.cleanup.save_progress(work, KEYS, queries.cleanup.Progress(state.reached, keys[-1] if more else None))
    return Page(len(keys) + versions, Counter(versions=versions, conflict_keys=settled), more)


def clean_cells(work: Work, limit: int) -> Page:
    """Delete versions from the next cells of the tables to whose cells no conflict key leads, or which expire."""
    horizon = queries.cleanup.horizon(work)
    state = _pass(work, CELLS, horizon)
    if state is None or state.place is None:
        return Page()
    most = min(limit, MOST_ROWS)
    after = _place(state.place)
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
            # The snapshot of the oldest transaction that may still read has at least this id.
            expired=None if ttl_ms is None else horizon - ttl_ms * 1_000_000,
        )
        if following is None and len(tables) > 1:
            following = _start(number + 1)
    place = None if following is None else _as_bytes(following)
    queries.cleanup.save_progress(work, CELLS, queries.cleanup.Progress(state.reached, place))
    return Page(most, Counter(versions=versions), more=following is not None)


def forget_outcomes(work: Work, limit: int, *, keep_ms: int) -> Page:
    """Delete outcomes of commits that nobody asks for any more."""
    most = min(limit, MOST_ROWS)
    deleted = queries.outcomes.delete_outcomes(work, before_ms=work.now() - keep_ms, limit=most)
    return Page(deleted, Counter(outcomes=deleted), more=deleted == most)


def forget_idempotency_keys(work: Work, limit: int, *, keep_ms: int) -> Page:
    """Delete idempotency keys of work that nobody retries any more."""
    most = min(limit, MOST_ROWS)
    deleted = queries.cleanup.delete_idempotency_keys(work, before_ms=work.now() - keep_ms, limit=most)
    return Page(deleted, Counter(idempotency_keys=deleted), more=deleted == most)


def _pass(work: Work, subject: str, horizon: int) -> queries.cleanup.Progress | None:
    """Go on with the pass under way, or begin one if the horizon has risen since the last."""
    state = queries.cleanup.progress(work, subject)
    if state.place is not None:
        return state
    begins = horizon > state.reached
    return queries.cleanup.Progress(horizon, _as_bytes(_start(0)) if subject == CELLS else b"") if begins else None


def _start(table: int) -> queries.versions.CellKey:
    return table, b"", b"", -1


def _as_bytes(place: queries.versions.CellKey) -> bytes:
    return cell_key(*place[:3]) + _VERSION.pack(place[3])


def _place(place: bytes) -> queries.versions.CellKey:
    cells = cells_of_key(place[: -_VERSION.size])
    assert cells is not None
    table, row, column = cells
    return table, row, column or b"", _VERSION.unpack(place[-_VERSION.size :])[0]
