"""One round over the notifications that are due: their order, and the end of each."""

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
from export_queue.core.observers.backoff import delay_ms
from export_queue.core.observers.failures import describe
from export_queue.core.store import AnySnapshot, Cell, Database, Snapshot, notification_key, queries
from export_queue.core.tables import CellTypes, ObserverKind, TableOptions, cell_types
from export_queue.core.transactions import OpenTransaction, take_snapshot

PAGE = 256
"""Notifications of one column that are read at once, and shuffled."""
MOST_COUNTED = 1_000
"""The count of notifications that are left goes no further."""

Observer = Callable[[Any, Any, Any], object]
"""Called with a transaction, the row and the column, as a scan of the table gives them."""

log = logging.getLogger("export_queue.observers")


@dataclass(frozen=True, slots=True)
class Observation:
    """One column and the function that is called for it."""

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
        """Table and column for people."""
        return f"{self.table.name}/{self.column.decode('utf-8', 'backslashreplace')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """The notifications of one round, counted by their ends."""

    done: int = 0
    """Worked off by a transaction that has committed."""
    conflicted: int = 0
    """Tried, and met another transaction; due again at once."""
    failed: int = 0
    """The observer raised an error; due again later."""
    skipped: int = 0
    """Worked off by others before the observer was called."""
    left: int = 0
    """Due when the round ended, counted as far as 1000; without those that wait because they failed."""

    def then(self, later: Processed) -> Processed:
        """Add a later round."""
        return Processed(
            done=self.done + later.done,
            conflicted=self.conflicted + later.conflicted,
            failed=self.failed + later.failed,
            skipped=self.skipped + later.skipped,
            left=later.left,
        )


class _End(Enum):
    """The end of one notification in a round."""

    DONE = "done"
    CONFLICTED = "conflicted"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(slots=True)
class _Lane:
    """How far one column has been gone through."""

    observation: Observation
    after: queries.notifications.NotificationKey | None = None
    tried: set[bytes] = field(default_factory=set)
    """Rows that were tried and still wait: each is tried once in a round."""


class Round:
    """Goes through all notifications that were set before it began, oldest first, a page of each column in turn.

    Several processes share the work without knowing of each other: each shuffles its page, looks before it
    calls, and reads its page anew as soon as it meets another process's work. Of ``p`` notifications in a
    page two processes then do about ``√p`` each between two meetings (the birthday paradox), so that little is
    done in vain.

    :param limit: how many observers are called at most.
    :param timeout: seconds that one observer's transaction may take.
    :param stop: asked before each notification.
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
        """Do the round."""
        # Notifications that are set meanwhile are not part of the round, so that it ends.
        snapshot = take_snapshot(self._database)
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
        """Work off a page of one column; False if nothing is behind it."""
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
            return _End.FAILED, error  # a conflict too: it is not this transaction's
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
    """Show a row to people, also where its codec fails."""
    try:
        found = one.types.decode_row(row)
    except CodecError:
        found = row
    return found.decode("utf-8", "backslashreplace") if isinstance(found, bytes) else str(found)
