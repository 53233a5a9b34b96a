"""One round over the notifications that are due."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Any

from export_queue.core.callables import name_of, returned
from export_queue.core.errors import CodecError, ConflictError
from export_queue.core.observers.failures import delay_ms, describe
from export_queue.core.store import AnySnapshot, Cell, Database, Snapshot, notification_key, queries
from export_queue.core.tables import CellTypes, ObserverKind, TableOptions, cell_types
from export_queue.core.transactions import OpenTransaction, take_snapshot

PAGE = 256
"""Number of notifications of one column that are read at once and shuffled."""
MOST_COUNTED = 1_000
"""The remaining notifications are counted up to this number."""

Observer = Callable[[Any, Any, Any], object]
"""Called with a transaction, the row and the column, as a scan of the table returns them."""

log = logging.getLogger("export_queue.observers")


@dataclass(frozen=True, slots=True)
class Observation:
    """A column and its observer."""

    table: TableOptions
    column: bytes
    kind: ObserverKind
    function: Observer

    @property
    def types(self) -> CellTypes:
        """The types of the table's cells."""
        return cell_types(self.table.name, self.table.row, self.table.value)

    @property
    def name(self) -> str:
        """Table and column, as shown in messages."""
        return f"{self.table.name}/{self.column.decode('utf-8', 'backslashreplace')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """The numbers of notifications in one round, by outcome."""

    done: int = 0
    """Processed by a transaction that has committed."""
    conflicted: int = 0
    """Conflicted with another transaction; due again at once."""
    failed: int = 0
    """The observer raised an error; due again later."""
    skipped: int = 0
    """Processed by others before the observer was called."""
    left: int = 0
    """Due when the round ended, counted up to 1000. Notifications that are delayed after a failure are not included."""

    def then(self, later: Processed) -> Processed:
        """Return the sum with a later round."""
        return Processed(
            done=self.done + later.done,
            conflicted=self.conflicted + later.conflicted,
            failed=self.failed + later.failed,
            skipped=self.skipped + later.skipped,
            left=later.left,
        )


class _End(Enum):
    DONE = "done"
    CONFLICTED = "conflicted"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(slots=True)
class _Lane:
    """The progress of a round in one column."""

    observation: Observation
    after: queries.notifications.NotificationKey | None = None
    tried: set[bytes] = field(default_factory=set)
    """Rows that were tried and are still pending: each is tried once in a round."""


class Round:
    """Processes all notifications that were set before it began, oldest first, one page of each column in turn.

    Several processes share the work without coordination. Each shuffles its page, checks a notification before it calls
    the observer, and reads the page again when it meets another process's work. With ``p`` notifications in a page, two
    processes do about ``√p`` each before they meet (the birthday paradox), so that little work is wasted.

    :param limit: maximum number of observers to call.
    :param timeout: time-out of each observer's transaction in seconds.
    :param stop: called before each notification; True ends the round.
    """

    def __init__(
        self,
        database: Database,
        bind: Callable[[OpenTransaction], Any],
        random: Random,
        *,
        limit: int | None,
        timeout: float | None,
        stop: Callable[[], bool],
    ) -> None:
        self._database = database
        self._bind = bind
        self._random = random
        self._limit = limit
        self._timeout = timeout
        self._stop = stop
        self._ends: Counter[_End] = Counter()

    def run(self, observations: Sequence[Observation]) -> Processed:
        """Run the round."""
        snapshot = take_snapshot(self._database)  # later notifications are not included, so that the round ends
        lanes = deque(_Lane(one) for one in self._random.sample(observations, len(observations)))
        while lanes and not self._ended():
            lane = lanes.popleft()
            if self._page(lane, snapshot):
                lanes.append(lane)
        counts = {end.value: number for end, number in self._ends.items()}
        return Processed(**counts, left=self._count_left(observations))

    def _ended(self) -> bool:
        called = self._ends.total() - self._ends[_End.SKIPPED]
        return (self._limit is not None and called >= self._limit) or self._stop()

    def _page(self, lane: _Lane, snapshot: Snapshot) -> bool:
        """Process a page of one column, and return whether there may be another one."""
        one = lane.observation
        with self._database.read() as work:
            page = queries.notifications.due(work, one.table.number, one.column, snapshot, after=lane.after, limit=PAGE)
        attempts = {row: failed for _, row, failed in page if row not in lane.tried}
        for row in self._random.sample(list(attempts), len(attempts)):
            if self._ended():
                return False
            end = self._call(one, row, attempts[row])
            self._ends[end] += 1
            if end is not _End.DONE:
                lane.tried.add(row)
            if end in (_End.CONFLICTED, _End.SKIPPED):
                return True  # another process works on this page: read it anew
        if page:
            lane.after = page[-1][:2]
        return len(page) == PAGE

    def _call(self, one: Observation, row: bytes, attempts: int) -> _End:
        cell = (one.table.number, row, one.column)
        opened = OpenTransaction(self._database, timeout=self._timeout)
        try:
            if not self._is_set(cell, opened.snapshot):
                return _End.SKIPPED
            strong = one.kind is ObserverKind.STRONG
            opened.acknowledge(cell, conflict_key=notification_key(*cell) if strong else None)
            end, error = self._attempt(one, opened, row)
        finally:
            opened.abort()
        if error is not None:
            self._record(one, cell, attempts + 1, error)
        elif attempts and end is _End.DONE:
            with self._database.begin() as work:
                queries.notifications.clear_failure(work, cell)
        return end

    def _attempt(self, one: Observation, opened: OpenTransaction, row: bytes) -> tuple[_End, Exception | None]:
        try:
            types = one.types
            result = one.function(self._bind(opened), types.decode_row(row), types.decode_column(one.column))
            returned(result, f"observer {name_of(one.function)}")
        except Exception as error:
            return _End.FAILED, error  # even if it is a conflict, which is not this transaction's
        try:
            opened.commit()
        except ConflictError:
            return _End.CONFLICTED, None
        except Exception as error:
            return _End.FAILED, error
        return _End.DONE, None

    def _is_set(self, cell: Cell, snapshot: AnySnapshot) -> bool:
        with self._database.read() as work:
            return queries.notifications.is_set(work, cell, snapshot)

    def _record(self, one: Observation, cell: Cell, attempts: int, error: Exception) -> None:
        wait = delay_ms(attempts, self._random.random())
        with self._database.begin() as work:
            told = describe(error)
            queries.notifications.record_failure(work, cell, attempts=attempts, next_ms=work.now() + wait, error=told)
        log.warning(
            "the observer of %s failed on row %s, attempt %d, next in %.1f s: %s",
            one.name,
            _shown(one, cell[1]),
            attempts,
            wait / 1000,
            told,
            exc_info=error,
        )

    def _count_left(self, observations: Sequence[Observation]) -> int:
        snapshot = take_snapshot(self._database)
        left = 0
        with self._database.read() as work:
            for one in observations:
                if left < MOST_COUNTED:
                    limit = MOST_COUNTED - left
                    left += queries.notifications.count_due(work, one.table.number, one.column, snapshot, limit=limit)
        return left


def _shown(one: Observation, row: bytes) -> str:
    """Return a row as text, even if its codec fails."""
    try:
        found = one.types.decode_row(row)
    except CodecError:
        found = row
    return found.decode("utf-8", "backslashreplace") if isinstance(found, bytes) else str(found)
