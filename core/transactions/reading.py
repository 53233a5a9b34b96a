"""What a transaction reads: its own writes over one snapshot (I1, I4)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice, pairwise
from operator import itemgetter
from typing import Concatenate, ParamSpec, TypeVar, cast

from export_queue.core.errors import TransactionEnded
from export_queue.core.store import Cell, Database, Handle, Snapshot, Span, Version
from export_queue.core.transactions.buffer import WriteBuffer
from export_queue.core.transactions.sessions import Session
from export_queue.core.transactions.states import OPEN, TRANSITIONS, State
from export_queue.core.transactions.value import Level, Transaction

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")
Found = tuple[bytes, bytes, bytes]
"""Row, column, value."""

READ_BLOCK = 1000
"""Cells that one statement looks up at most."""
FIRST_PAGE, LARGEST_PAGE = 100, 5000
"""Versions that a scan reads with its first statement, and with a later one at most."""
PAGE_BYTES = 4 << 20
"""What the values of a later page may take: it is as long as those of the page before it suggest."""
LAST_VERSION = (1 << 63) - 1
"""No version of a cell lies behind it."""
_VALUE = itemgetter(2)
_END = b"", b"", None  # no cell: a column's name is not empty


class ReadingTransaction:
    """The reading half of a transaction; how it begins and ends is its subclass's."""

    def __init__(self, database: Database, session: Session, buffer: WriteBuffer) -> None:
        self.database = database
        self.buffer = buffer
        self._session = session
        self._level = Level.SNAPSHOT
        self._state = State.NEW
        self._value: Transaction | None = None
        self._snapshot: Snapshot | None = None

    def _start(self, first: Cell | None = None) -> Version | None:
        raise NotImplementedError

    def _move(self, state: State) -> None:
        assert state in TRANSITIONS[self._state], f"{self._state} → {state}"
        self._state = state

    def require_open(self) -> None:
        """Refuse to go on after the end.

        :raises TransactionEnded: it has been committed or aborted.
        """
        if self._state not in OPEN:
            raise TransactionEnded(f"the transaction has ended: {self._state}")

    @property
    def value(self) -> Transaction:
        """The transaction as a value; draws the id if it has none yet."""
        self.require_open()
        if self._value is None:
            self._start()
        assert self._value is not None
        return self._value

    def _become(self, value: Transaction) -> None:
        self._value = value
        self._snapshot = value.stored_snapshot

    @property
    def snapshot(self) -> Snapshot:
        """What its reads in the store see."""
        _ = self.value
        assert self._snapshot is not None
        return self._snapshot

    @property
    def level(self) -> Level:
        """What it sees of its own writes."""
        return self._level

    @level.setter
    def level(self, level: Level) -> None:
        self.require_open()
        self._level = Level(level)
        if self._value is not None:
            self._become(replace(self._value, level=self._level))

    def read_cell(self, cell: Cell, *, ttl_ms: int | None = None) -> bytes | None:
        """Read one cell: own writes first, then the snapshot.

        :param ttl_ms: versions that are older than this many milliseconds count as deleted.
        :returns: the value; None if there is none.
        """
        self.require_open()
        if self.buffer:
            is_own, value = self.buffer.find(cell, self._level)
            if is_own:
                return value
        found = self._start(cell) if self._value is None else None
        if found is None:
            found = self._read(self.database.dialect.read_cell, *cell)
        version, value = found
        return value if version is not None and self._lives(version, ttl_ms) else None

    def read_cells(
        self, table: int, cells: Iterable[tuple[bytes, bytes]], *, ttl_ms: int | None = None
    ) -> dict[tuple[bytes, bytes], bytes]:
        """Read many cells of one table at once.

        :param cells: each row and column.
        :returns: the values of those that have one.
        """
        self.require_open()
        wanted = list(dict.fromkeys(cells))
        found: dict[tuple[bytes, bytes], bytes | None] = {}
        for cell in wanted:
            is_own, value = self.buffer.find((table, *cell), self._level)
            if is_own:
                found[cell] = value
        unknown = [cell for cell in wanted if cell not in found]
        for start in range(0, len(unknown), READ_BLOCK):
            rows = self._read(self.database.dialect.read_cells, table, unknown[start : start + READ_BLOCK])
            found |= {(row, column): value for row, column, version, value in rows if self._lives(version, ttl_ms)}
        return {cell: value for cell in wanted if (value := found.get(cell)) is not None}

    def scan_cells(
        self, table: int, span: Span, *, ttl_ms: int | None = None, limit: int | None = None, page: int = LARGEST_PAGE
    ) -> Iterator[Found]:
        """Read a span in the order of rows and columns, page by page, own writes merged in.

        :param limit: most cells.
        :param page: versions that one statement reads at most.
        :returns: row, column and value of each cell that has one.
        """
        self.require_open()
        mine = {  # as they are now: what is written while the scan runs is not part of it
            (row, column): value
            for (number, row, column), value in self.buffer.cells(self._level).items()
            if number == table and span.holds(row, column)
        }
        most = page if limit is None else min(page, max(limit + 1, FIRST_PAGE))
        stored = chain.from_iterable(self._pages(table, span, ttl_ms, most))
        if not mine:
            return islice(stored, limit)
        others = (found for found in stored if found[:2] not in mine)
        written = sorted((*cell, value) for cell, value in mine.items() if value is not None)
        return islice(heapq.merge(others, written), limit)

    def _pages(self, table: int, span: Span, ttl_ms: int | None, most: int) -> Iterator[list[Found]]:
        """Read page after page, each of so many versions at most.

        A cell is decided by what one statement found: between two of them, clean-up may remove an old version
        together with the delete that hides it.
        """
        dialect = self.database.dialect
        after = span.first_row, b"", 0  # before all columns of the first row: none of them has an empty name
        expired = None if ttl_ms is None else self._expired(ttl_ms)
        limit = min(most, FIRST_PAGE)
        while True:
            self.require_open()
            rows = self._read(dialect.scan_versions, table, span, after=after, limit=limit, expired=expired)
            newest = [one for one, next_ in pairwise((*rows, _END)) if one[0] != next_[0] or one[1] != next_[1]]
            is_last = len(rows) < limit
            if not is_last:
                row, column, _ = newest.pop()
                if newest:
                    after = row, column, 0  # the next page begins with all that there is of it
                else:
                    newest = [(row, column, self._read_stored((table, row, column), ttl_ms))]
                    after = row, column, LAST_VERSION
            yield cast("list[Found]", [found for found in newest if found[2] is not None])
            if is_last:
                return
            size = sum(map(len, filter(None, map(_VALUE, rows))))
            limit = max(1, min(most, limit * PAGE_BYTES // (size + 1)))

    def _read_stored(self, cell: Cell, ttl_ms: int | None) -> bytes | None:
        """Read one cell as it is stored."""
        version, value = self._read(self.database.dialect.read_cell, *cell)
        return value if version is not None and self._lives(version, ttl_ms) else None

    def read_versions(self, cell: Cell, *, ttl_ms: int | None = None) -> list[bytes | None]:
        """Read a cell's own versions, one a checkpoint, the newest first, and behind them what was committed.

        How many of them there are is the level's to say; None is a delete.
        """
        self.require_open()
        if self.value.kind == "long":
            self._read(_nothing)  # but the write pointers as they are now
        buffered = list(self.buffer.versions(cell, self._level))
        committed_only = self.value.snapshot
        own = [
            p for p in reversed(self.snapshot.write_pointers) if not (buffered and p == self.value.write_pointers[-1])
        ]
        snapshots = [replace(committed_only, write_pointers=(pointer,)) for pointer in own] + [committed_only]
        found = buffered
        for snapshot in snapshots:
            version, value = self._read(self._read_in, snapshot, cell)
            if version is not None and (version in snapshot.write_pointers or snapshot is committed_only):
                found.append(value if self._lives(version, ttl_ms) else None)
        return found if self._level is Level.SNAPSHOT_ALL else found[:1]

    def _read_in(self, connection: Handle, _: Snapshot, snapshot: Snapshot, cell: Cell) -> Version:
        return self.database.dialect.read_cell(connection, snapshot, *cell)

    def _lives(self, version: int, ttl_ms: int | None) -> bool:
        return ttl_ms is None or version > self._expired(ttl_ms)

    def _expired(self, ttl_ms: int) -> int:
        """The last version that has outlived its time; own ones are younger."""
        # Ids carry the time at which their transactions began, so a version's age needs no column of its own.
        return self._aged_from - ttl_ms * 1_000_000

    @cached_property
    def _aged_from(self) -> int:
        """The id that ages count back from; only those who read what expires need it."""
        value = self.value
        if value.kind != "read":
            return value.id
        # What only reads has drawn no id, and the last one of others may be of long ago.
        return max(value.id, self._session.call(self.database.dialect.now) * 1_000_000)

    def _read(
        self,
        read: Callable[Concatenate[Handle, Snapshot, Arguments], Answer],
        *plain: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Answer:
        snapshot, value = self.snapshot, self.value
        if value.kind != "long":
            return self._session.call(read, snapshot, *plain, **named)

        def step(connection: Handle) -> Answer:
            while True:
                found = read(connection, self.snapshot, *plain, **named)
                # Afterwards: while it is active nobody removes what it staged, and it read that too (I4).
                pointers = self.database.dialect.pointers(connection, self.value.id)
                if pointers == self.value.write_pointers:
                    return found
                self._become(replace(self.value, write_pointers=pointers))  # another process has made a checkpoint

        return self._session.call(step)


def _nothing(connection: Handle, snapshot: Snapshot) -> None:
    """Read nothing."""
