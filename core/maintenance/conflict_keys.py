"""Clean-up along conflict keys: the versions that they lead to, then the keys themselves.

A table with conflicts leaves a conflict key at every row that was written since its last clean-up. So the keys lead to
all old versions of such tables, and cells that nobody writes are never looked at. Which versions may go is said in
:mod:`export_queue.core.store.queries.versions`.
"""

from __future__ import annotations

from collections import Counter

from export_queue.core.maintenance import pages
from export_queue.core.maintenance.pages import Page, current_pass
from export_queue.core.store import Work, cells_of_key, queries

SUBJECT = "keys"
MOST_KEYS = 300
"""Conflict keys a page: up to three parameters each, and one statement for all of their cells."""


def clean_conflict_keys(work: Work, limit: int) -> Page:
    """Delete the versions that the next conflict keys lead to, then the keys at or below the horizon."""
    horizon = queries.cleanup.horizon(work)
    state = current_pass(work, SUBJECT, horizon, start=b"")
    if state is None or state.place is None:
        return Page()
    most = min(limit, MOST_KEYS)
    keys = queries.versions.keys_after(work, state.place, limit=most)
    cells = [cells for key in keys if (cells := cells_of_key(key)) is not None]
    versions = 0
    if cells:
        versions = queries.versions.delete_of_cells(work, cells, horizon=horizon, limit=pages.MOST_ROWS)
    if versions == pages.MOST_ROWS:  # the same page again: a key goes only after its versions
        queries.cleanup.save_progress(work, SUBJECT, state)
        return Page(versions, Counter(versions=versions), more=True)
    deleted = queries.versions.delete_keys(work, state.place, keys[-1], horizon=horizon) if keys else 0
    more = len(keys) == most
    queries.cleanup.save_progress(work, SUBJECT, queries.cleanup.Progress(state.reached, keys[-1] if more else None))
    return Page(len(keys) + versions, Counter(versions=versions, conflict_keys=deleted), more)
