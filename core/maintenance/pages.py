"""Pages of clean-up: each is one short SQL transaction, and remembers where it ended.

A pass goes through a subject page by page. It begins when the horizon has risen since the last pass began.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from export_queue.core.store import Work, queries

MOST_ROWS = 5000
"""Rows a page: some ten milliseconds, for which a writer of SQLite may have to wait."""


@dataclass(frozen=True, slots=True)
class Page:
    """What one page did."""

    looked_at: int = 0
    deleted: Counter[str] = field(default_factory=Counter)
    more: bool = False
    """Whether there is a next page."""


CleanPage = Callable[[Work, int], Page]
"""Cleans one page; the number limits its rows."""


def current_pass(work: Work, subject: str, horizon: int, *, start: bytes) -> queries.cleanup.Progress | None:
    """Go on with the pass under way, or begin one if the horizon has risen since the last pass began.

    :param subject: name of the subject.
    :param horizon: the horizon of a pass that begins.
    :param start: where a pass begins.
    :returns: the pass and its place; None where nothing is to be done.
    """
    state = queries.cleanup.progress(work, subject)
    if state.place is not None:
        return state
    return queries.cleanup.Progress(horizon, start) if horizon > state.reached else None
