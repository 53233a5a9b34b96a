"""Columns that have observers; every writer must know them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import StrEnum

from export_queue.core.store import Database, queries

OBSERVED_SECONDS = 3.0
"""How long a process uses its list of observed columns. After this time, all processes know a new one."""


class ObserverKind(StrEnum):
    """How a notification is set and processed."""

    STRONG = "strong"
    """Set by every write to the column; processed by exactly one committed transaction."""
    WEAK = "weak"
    """Set by ``notify``; never conflicts; processed at least once."""


class ObservedColumns:
    """The columns of one store that have observers, as this process last read them.

    :param clock: returns seconds that never go back.
    """

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._read_at: float | None = None
        self._kinds: dict[int, dict[bytes, ObserverKind]] = {}

    def of(self, table: int) -> Mapping[bytes, ObserverKind]:
        """Return the observed columns of a table; read the store if the list is older than a few seconds."""
        if self._read_at is None or self._clock() - self._read_at > OBSERVED_SECONDS:
            self.refresh()
        return self._kinds.get(table, {})

    def forget(self) -> None:
        """Read the store before the next answer."""
        self._read_at = None

    def refresh(self) -> None:
        """Read the store."""
        now = self._clock()
        with self._database.read() as work:
            rows = queries.notifications.observed_columns(work)
        kinds: dict[int, dict[bytes, ObserverKind]] = {}
        for table, column, kind in rows:
            kinds.setdefault(table, {})[column] = ObserverKind(kind)
        self._kinds, self._read_at = kinds, now
