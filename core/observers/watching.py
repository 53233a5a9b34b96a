"""Noticing that notifications of a column await work, and that some came after what was noticed before."""

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
"""Notifications that one look reads, the oldest ones: no more rows are listed or counted."""


@dataclass(frozen=True, slots=True)
class WaitingRows:
    """The rows of a column whose notifications are due; empty ones are false."""

    rows: tuple[Any, ...]
    """Those that wait longest, first, as ``table.get`` takes them; one that its codec does not decode is its bytes."""
    more: int
    """Further rows, as far as they were counted."""
    is_all: bool
    """Whether every notification was read, so that no other row waits."""
    in_json: tuple[RowInJson, ...] = field(repr=False)
    """The same as ``rows``, as JSON has them."""

    def __bool__(self) -> bool:
        return bool(self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object: rows of numbers are numbers, text is text, and others are ``{"base64": …}``.

        Rows of ``bytes`` are text where they are UTF-8. An object in the place of a row has the bytes that are stored:
        of a row with NUL, of one that its codec does not decode, and of all that JSON does not have.
        """
        return {"rows": list(self.in_json), "more": self.more, "is_all": self.is_all}


@dataclass(frozen=True, slots=True)
class ColumnSighting:
    """The result of one look at a column's notifications."""

    waiting: WaitingRows
    has_news: bool
    """Whether notifications wait that the earlier sighting did not see, or that were not due then."""
    snapshot: Snapshot
    at_ms: int
    """The time of the look, by the store's clock."""


def look(
    work: Reading,
    table: str,
    column: str | bytes,
    snapshot: Snapshot,
    *,
    limit: int,
    since: ColumnSighting | None = None,
) -> ColumnSighting:
    """Look at a column's notifications; none is consumed.

    :param snapshot: taken just before.
    :param limit: most rows to list.
    :param since: an earlier sighting of the same column.
    :raises ColumnNotObserved: nobody has declared the column.
    """
    observed = _find(work, table, column)
    # One time for all of the look: a wait that ends between two statements is news of this look or of the next one.
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
    """Read the rows of a column whose notifications are due in a snapshot.

    :param limit: most rows to list.
    :raises ColumnNotObserved: nobody has declared the column.
    """
    observed = _find(work, table, column)
    return _read(work, observed, snapshot, now_ms=work.now(), limit=limit)


def check_limit(limit: Any) -> int:
    """Check the most rows that a look lists, which may have been rendered to text.

    :raises InvalidArgument: a look reads fewer notifications.
    """
    number = whole_number(limit, what="limit", least=1)
    if number > MOST_READ:
        raise InvalidArgument(f"limit: expected at most {MOST_READ} rows, found {number}")
    return number


@dataclass(frozen=True, slots=True)
class _Observed:
    """A column that is observed."""

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
    """Decode a row, and put it into JSON."""
    in_base64: RowInJson = {"base64": b64encode(stored).decode()}
    try:
        types = cell_types(observed.table, observed.row_codec, "bytes")
        row = types.decode_row(stored)
    except Exception:  # whatever a codec of a user's own raises: the other rows are listed
        return stored, in_base64
    if types.has_plain_rows:
        shown: Any = stored.decode("utf-8", "surrogateescape")  # what is no text becomes what JSON does not have
    else:
        shown = row
    return row, shown if _is_in_json(shown) else in_base64


def _is_in_json(row: Any) -> bool:
    """Tell whether a row is a number or text that all places keep where JSON goes."""
    if type(row) is int:
        return -(1 << 63) <= row < 1 << 63
    # PostgreSQL, which may hold Airflow's data, takes neither NUL nor halves of characters in JSON.
    return type(row) is str and "\0" not in row and not any("\ud800" <= char <= "\udfff" for char in row)
