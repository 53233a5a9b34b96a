"""Failures of observers: their text, and the rows that keep them."""

from __future__ import annotations

from dataclasses import dataclass

from export_queue.core.errors import text_of
from export_queue.core.store import Reading, queries

MOST_TEXT = 2_000
"""Characters that are kept of an error."""


@dataclass(frozen=True, slots=True)
class ObserverFailure:
    """One notification that waits because its observer failed."""

    table: str
    row: bytes
    column: bytes
    attempts: int
    next_ms: int
    """When it is tried again, by the store's clock."""
    error: str
    """Class and text of the last error."""


def observer_failures(work: Reading, *, limit: int) -> list[ObserverFailure]:
    """Read the failures whose notifications still wait, the next to be tried first."""
    return [
        ObserverFailure(row["name"], row["row_key"], row["column_key"], row["attempts"], row["next_ms"], row["error"])
        for row in queries.notifications.failures(work, limit=limit)
    ]


def describe(error: BaseException) -> str:
    """Put class and text of an error into text that every database takes."""
    return f"{type(error).__name__}: {text_of(error)}"[:MOST_TEXT]
