"""Failures of observers: their text, the rows that record them, and the delay before the next attempt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from export_queue.core.errors import CodecError, text_of
from export_queue.core.store import Reading, queries
from export_queue.core.tables import cell_types

MOST_TEXT = 2_000
"""Maximum number of characters that are kept of an error."""
FIRST_MS = 1_000
LONGEST_MS = 300_000


@dataclass(frozen=True, slots=True)
class ObserverFailure:
    """A pending notification whose observer failed."""

    table: str
    row: Any
    """The row as the observer gets it; bytes if the codec of rows fails."""
    column: Any
    attempts: int
    next_ms: int
    """Time of the next attempt by the store's clock, in milliseconds since the epoch."""
    error: str
    """Class and text of the last error."""


def observer_failures(work: Reading, *, limit: int) -> list[ObserverFailure]:
    """Return the failures whose notifications are pending, in the order of their next attempts."""
    failures = []
    for found in queries.notifications.failures(work, limit=limit):
        row, column = found["row_key"], found["column_key"]
        try:
            types = cell_types(found["name"], found["row_codec"], "bytes")
            row, column = types.decode_row(row), types.decode_column(column)
        except CodecError:
            pass
        failures.append(
            ObserverFailure(found["name"], row, column, found["attempts"], found["next_ms"], found["error"])
        )
    return failures


def describe(error: BaseException) -> str:
    """Return class and text of an error, as text that every database accepts."""
    return f"{type(error).__name__}: {text_of(error)}"[:MOST_TEXT]


def delay_ms(attempts: int, jitter: float) -> int:
    """Return the delay after a failure in milliseconds: half to all of 1 s, 2 s, 4 s … 5 min.

    :param attempts: number of failures, at least 1.
    :param jitter: a random number from 0 to 1, which separates observers that failed together.
    """
    whole = LONGEST_MS if attempts > 16 else min(LONGEST_MS, FIRST_MS << (attempts - 1))
    return round(whole * (0.5 + 0.5 * jitter))
