"""Failures of observers: their text, and the rows that keep them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from export_queue.core.errors import CodecError, text_of
from export_queue.core.store import Reading, queries
from export_queue.core.tables import cell_types

MOST_TEXT = 2_000
"""Characters that are kept of an error."""


@dataclass(frozen=True, slots=True)
class ObserverFailure:
    """One notification that waits because its observer failed."""

    table: str
    row: Any
    """As the observer is given it; bytes where the codec of the rows fails."""
    column: Any
    attempts: int
    next_ms: int
    """When it is tried again, by the store's clock."""
    error: str
    """Class and text of the last error."""


def observer_failures(work: Reading, *, limit: int) -> list[ObserverFailure]:
    """Read the failures whose notifications still wait, the next to be tried first."""
    return [
        ObserverFailure(found["name"], *_place(found), found["attempts"], found["next_ms"], found["error"])
        for found in queries.notifications.failures(work, limit=limit)
    ]


def _place(found: Mapping[str, Any]) -> tuple[Any, Any]:
    row, column = found["row_key"], found["column_key"]
    try:
        types = cell_types(found["name"], found["row_codec"], "bytes")
        return types.decode_row(row), types.decode_column(column)
    except CodecError:
        return row, column


def describe(error: BaseException) -> str:
    """Put class and text of an error into text that every database takes."""
    return f"{type(error).__name__}: {text_of(error)}"[:MOST_TEXT]
