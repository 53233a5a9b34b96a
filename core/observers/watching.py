"""Noticing that notifications of a column await work, and that some came after what was noticed before."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from typing import Any

from export_queue.core.arguments import whole_number
from export_queue.core.errors import ColumnNotObserved, InvalidArgument
from export_queue.core.store import Reading, Snapshot, queries
from export_queue.core.tables import as_key

MOST_READ = 1_000
"""Notifications that one look reads, the oldest ones: no more rows are listed or counted."""


@dataclass(frozen=True, slots=True)
class WaitingRows:
    """The rows of a column whose notifications are due; empty ones are false."""

    rows: tuple[bytes, ...]
    """Those that wait longest, first."""
    more: int
    """Further rows, as far as they were counted."""
    is_all: bool
    """Whether every notification was read, so that no other row waits."""

    def __bool__(self) -> bool:
        return bool(self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; a row that is no text is ``{"base64": …}``."""
        return {"rows": [_row_to_json(row) for row in self.rows], "more": self.more, "is_all": self.is_all}


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
    number, key = _find(work, table, column)
    # One time for all of the look: a wait that ends between two statements is news of this look or of the next one.
    now_ms = work.now()
    waiting = _read(work, number, key, snapshot, now_ms=now_ms, limit=limit)
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
    number, key = _find(work, table, column)
    return _read(work, number, key, snapshot, now_ms=work.now(), limit=limit)


def check_limit(limit: Any) -> int:
    """Check the most rows that a look lists, which may have been rendered to text.

    :raises InvalidArgument: a look reads fewer notifications.
    """
    number = whole_number(limit, what="limit", least=1)
    if number > MOST_READ:
        raise InvalidArgument(f"limit: expected at most {MOST_READ} rows, found {number}")
    return number


def _find(work: Reading, table: str, column: str | bytes) -> tuple[int, bytes]:
    key = as_key("column", column)
    number = queries.notifications.table_of_observed(work, table, key)
    if number is None:
        names = queries.notifications.observed_names(work)
        known = ", ".join(f"{name}/{_shown(observed)}" for name, observed in names) or "none"
        raise ColumnNotObserved(f"column {table}/{_shown(key)} is not observed; the store has: {known}")
    return number, key


def _read(work: Reading, table: int, column: bytes, snapshot: Snapshot, *, now_ms: int, limit: int) -> WaitingRows:
    rows, counted, read = queries.notifications.due_rows(
        work, table, column, snapshot, now_ms=now_ms, limit=check_limit(limit), most=MOST_READ
    )
    return WaitingRows(tuple(rows), counted - len(rows), read < MOST_READ)


def _shown(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")


def _row_to_json(row: bytes) -> str | dict[str, str]:
    try:
        text = row.decode()
    except UnicodeDecodeError:
        text = "\0"
    # PostgreSQL, which may hold Airflow's data, takes no NUL in JSON.
    return {"base64": b64encode(row).decode()} if "\0" in text else text
