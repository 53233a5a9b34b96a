"""Finds out whether notifications of a column are due, and whether some are new since the last time."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field
from typing import Any

from export_queue.core.arguments import whole_number
from export_queue.core.errors import ColumnNotObserved, InvalidArgument
from export_queue.core.store import Reading, Snapshot, queries
from export_queue.core.tables import as_key, cell_types

RowInJson = int | str | dict[str, str]

MOST_READ = 1_000
"""Number of notifications that one call reads, oldest first. No more rows are listed or counted."""


@dataclass(frozen=True, slots=True)
class WaitingRows:
    """The rows of a column whose notifications are due; false if there are none."""

    rows: tuple[Any, ...]
    """Rows as ``table.get`` accepts them, oldest notification first. If the codec fails, the row is its bytes."""
    more: int
    """Number of further rows, as far as they were counted."""
    is_all: bool
    """Whether every notification was read, so that there are no other rows."""
    in_json: tuple[RowInJson, ...] = field(repr=False)
    """The same rows as JSON values."""

    def __bool__(self) -> bool:
        return bool(self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object. Rows are numbers, text, or ``{"base64": …}`` with the stored bytes.

        Rows of ``bytes`` are text if they are UTF-8. Base64 is used for rows that contain NUL, that their codec does
        not decode, or whose type JSON does not have.
        """
        return {"rows": list(self.in_json), "more": self.more, "is_all": self.is_all}


@dataclass(frozen=True, slots=True)
class ColumnSighting:
    """The notifications of a column at one time."""

    waiting: WaitingRows
    has_news: bool
    """Whether there are notifications that the earlier sighting did not see, or that were not due then."""
    snapshot: Snapshot
    at_ms: int
    """The time by the store's clock, in milliseconds since the epoch."""


def look(
    work: Reading,
    table: str,
    column: str | bytes,
    snapshot: Snapshot,
    *,
    limit: int,
    since: ColumnSighting | None = None,
) -> ColumnSighting:
    """Read a column's notifications without consuming them.

    :param snapshot: a snapshot that was taken just before.
    :param limit: maximum number of rows to list.
    :param since: an earlier sighting of the same column.
    :raises ColumnNotObserved: the column has not been declared.
    """
    observed = _find(work, table, column)
    # One time for all statements, so that a delay that ends between two of them is reported by this call or the next.
    now_ms = work.now()
    number, key = observed.number, observed.column
    waiting = _read(work, observed, snapshot, now_ms=now_ms, limit=limit)
    has_news = bool(waiting) and (
        since is None
        or now_ms < since.at_ms  # the clock was set back, so that times say nothing
        or queries.notifications.has_newer(work, number, key, snapshot, now_ms=now_ms, since=since.snapshot)
        or queries.notifications.has_come_due(work, number, key, snapshot, now_ms=now_ms, since_ms=since.at_ms)
    )
    return ColumnSighting(waiting, has_news, snapshot, now_ms)


def waiting_rows(work: Reading, table: str, column: str | bytes, snapshot: Snapshot, *, limit: int) -> WaitingRows:
    """Return the rows of a column whose notifications are due in a snapshot."""
    observed = _find(work, table, column)
    return _read(work, observed, snapshot, now_ms=work.now(), limit=limit)


def check_limit(limit: Any) -> int:
    """Return a maximum number of rows, which may be text that a template rendered, or raise InvalidArgument."""
    number = whole_number(limit, what="limit", least=1)
    if number > MOST_READ:
        raise InvalidArgument(f"limit: expected at most {MOST_READ} rows, found {number}")
    return number


@dataclass(frozen=True, slots=True)
class _Observed:
    table: str
    number: int
    row_codec: str
    column: bytes


def _find(work: Reading, table: str, column: str | bytes) -> _Observed:
    key = as_key("column", column)
    found = queries.notifications.table_of_observed(work, table, key)
    if found is None:
        names = queries.notifications.observed_names(work)
        known = ", ".join(f"{name}/{_shown(observed)}" for name, observed in names) or "none"
        raise ColumnNotObserved(f"column {table}/{_shown(key)} is not observed; the store has: {known}")
    return _Observed(table, *found, key)


def _read(work: Reading, observed: _Observed, snapshot: Snapshot, *, now_ms: int, limit: int) -> WaitingRows:
    stored, counted, read = queries.notifications.due_rows(
        work,
        observed.number,
        observed.column,
        snapshot,
        now_ms=now_ms,
        limit=check_limit(limit),
        most=MOST_READ,
    )
    found = [_decoded(observed, row) for row in stored]
    rows, in_json = tuple(row for row, _ in found), tuple(shown for _, shown in found)
    return WaitingRows(rows, counted - len(rows), read < MOST_READ, in_json)


def _shown(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")


def _decoded(observed: _Observed, stored: bytes) -> tuple[Any, RowInJson]:
    """Return a row as its decoded value and as a JSON value."""
    in_base64: RowInJson = {"base64": b64encode(stored).decode()}
    try:
        types = cell_types(observed.table, observed.row_codec, "bytes")
        row = types.decode_row(stored)
    except Exception:  # a user's codec may raise anything; the other rows are still listed
        return stored, in_base64
    # bytes that are not UTF-8 become lone surrogates, which JSON does not have
    shown: Any = stored.decode("utf-8", "surrogateescape") if types.has_plain_rows else row
    return row, shown if _is_in_json(shown) else in_base64


def _is_in_json(row: Any) -> bool:
    """Return whether a row is a number or text that every reader of JSON preserves."""
    if type(row) is int:
        return -(1 << 63) <= row < 1 << 63
    # PostgreSQL, which may hold Airflow's data, accepts neither NUL nor lone surrogates in JSON.
    return type(row) is str and "\0" not in row and not any("\ud800" <= char <= "\udfff" for char in row)
