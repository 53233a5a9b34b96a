"""One transaction from its first read to its end."""

from __future__ import annotations

import contextlib
import heapq
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any, Literal, TypeVar
from uuid import UUID, uuid4

from export_queue.core.errors import (
    AlreadyCommitted,
    CommitOutcomeUnknown,
    CommitRefused,
    ConflictError,
    ExportQueueError,
    InvalidArgument,
    RegistrationLost,
    StoreUnavailable,
    TransactionEnded,
)
from export_queue.core.store import CommitCall, Database, Handle, Span
from export_queue.core.transactions.buffer import Cell, EntryPlace, WriteBuffer
from export_queue.core.transactions.sessions import BoundSession, PinnedSession, PooledSession, Session
from export_queue.core.transactions.snapshot import Transaction
from export_queue.core.transactions.steps import ASK_SECONDS, outcome, sweep_if_due, token_state
from export_queue.core.transactions.tokens import as_json, check_token

Answer = TypeVar("Answer")

READ_BLOCK = 1000
"""Cells that one statement reads at most."""
ANSWER_SECONDS = 10.0
"""How long beyond its time-out a transaction waits for an answer before it takes the connection for dead."""
WRITE_ONLY_TRIES = 20
"""How often a commit is repeated that never read, and so may be, when a younger transaction overtook it."""
MAX_SHORT_SECONDS = 3600.0
MAX_LONG_SECONDS = 7 * 24 * 3600.0


class OpenTransaction:
    """A transaction in progress: buffered if short, staged early if long.

    Its id is drawn at the first read or when somebody asks for it, at the latest in the commit, so that
    nothing that depends on a read has an id younger than its snapshot.

    :param database: the store.
    :param long: whether writes are staged in the store before the commit, for work that spans processes.
    :param timeout: seconds from the first read until the commit is refused.
    :param token: the unit of work; a second commit under it is refused (I14).
    :param bound: the user's own SQL transaction: the commit writes into it, and the user ends it.
    """

    def __init__(
        self,
        database: Database,
        *,
        long: bool = False,
        timeout: float | None = None,
        token: str | None = None,
        bound: BoundSession | None = None,
    ) -> None:
        self.database = database
        self.kind: Literal["short", "long", "bound"] = "bound" if bound else "long" if long else "short"
        self.request: UUID = uuid4()
        self.token = token
        self.buffer = WriteBuffer()
        self._generation = 1
        self._timeout_ms = _checked_timeout(timeout, long)
        self._value: Transaction | None = None
        self._seconds = self._timeout_ms / 1000 + ANSWER_SECONDS
        self._session: Session = bound or (PooledSession if long else PinnedSession)(database, seconds=self._seconds)
        self._state: Literal["open", "committed", "aborted"] = "open"
        if token is not None:
            check_token(token)
            state = token_state(database, token, seconds=self._seconds)
            if state.committed:
                raise AlreadyCommitted(token, state.result)
            self._generation = state.generation

    @classmethod
    def resume(cls, database: Database, value: Transaction) -> OpenTransaction:
        """Go on with a long transaction that another process began.

        :raises InvalidArgument: the transaction is short: its writes live in the process that began it.
        """
        if value.kind != "long":
            raise InvalidArgument(f"only a long transaction may travel, found transaction {value.id} of kind short")
        opened = cls(database, long=True)
        opened.request = UUID(value.request)
        opened._value = value
        return opened

    @property
    def value(self) -> Transaction:
        """The transaction as a value; draws the id if it has none yet."""
        self.require_open()
        if self._value is None:
            self._value = self._start()
        return self._value

    def require_open(self) -> None:
        """Refuse to go on after the end.

        :raises TransactionEnded: it has been committed or aborted.
        """
        if self._state != "open":
            raise TransactionEnded(f"the transaction has been {self._state}")

    def _start(self) -> Transaction:
        if self.kind != "bound":
            sweep_if_due(self.database, seconds=self._seconds)
        start = partial(
            self.database.dialect.start,
            kind=self.kind,
            request=self.request,
            timeout_ms=self._timeout_ms,
        )
        started = self._session.call(start)
        return Transaction(
            id=started.id,
            read_pointer=started.id - 1,
            excluded=frozenset(started.excluded),
            own=(started.id,),
            kind=self.kind,
            deadline_ms=started.deadline_ms,
            request=self.request.hex,
        )

    def read_cell(self, cell: Cell, *, ttl_ms: int | None = None) -> bytes | None:
        """Read one cell: own writes first (I4), then the snapshot (I1).

        :param ttl_ms: versions that are older than this many milliseconds count as deleted.
        :returns: the value; None if there is none.
        """
        self.require_open()
        if cell in self.buffer.cells:
            return self.buffer.cells[cell]
        view = self.value.view
        version, value = self._read(lambda connection: self.database.dialect.read_cell(connection, view, *cell))
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
        found = {cell: self.buffer.cells[table, *cell] for cell in wanted if (table, *cell) in self.buffer.cells}
        unknown = [cell for cell in wanted if cell not in found]
        for start in range(0, len(unknown), READ_BLOCK):
            read = partial(
                self.database.dialect.read_cells,
                view=self.value.view,
                table=table,
                cells=unknown[start : start + READ_BLOCK],
            )
            rows = self._read(read)
            found |= {(row, column): value for row, column, version, value in rows if self._lives(version, ttl_ms)}
        return {cell: value for cell in wanted if (value := found.get(cell)) is not None}

    def scan_cells(
        self, table: int, span: Span, *, ttl_ms: int | None = None, page: int = READ_BLOCK
    ) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Read a span in the order of rows and columns, page by page, own writes merged in.

        :returns: row, column and value of each cell that has one.
        """
        self.require_open()
        mine = {  # as they are now: what is written while the scan runs is not part of it
            (row, column): value
            for (number, row, column), value in self.buffer.cells.items()
            if number == table and span.holds(row, column)
        }
        stored = ((cell, value) for cell, value in self._stored(table, span, ttl_ms, page) if cell not in mine)
        for (row, column), value in heapq.merge(stored, sorted(mine.items()), key=itemgetter(0)):
            if value is not None:
                yield row, column, value

    def _stored(
        self, table: int, span: Span, ttl_ms: int | None, page: int
    ) -> Iterator[tuple[tuple[bytes, bytes], bytes | None]]:
        while True:
            self.require_open()
            read = partial(self.database.dialect.scan_cells, view=self.value.view, table=table, span=span, limit=page)
            rows = self._read(read)
            for row, column, version, value in rows:
                yield (row, column), value if self._lives(version, ttl_ms) else None
            if len(rows) < page:
                return
            span = replace(span, after=(rows[-1][0], rows[-1][1]))

    def _lives(self, version: int, ttl_ms: int | None) -> bool:
        # Ids carry the time at which their transactions began, so a version's age needs no column of its own.
        value = self.value
        return ttl_ms is None or version in value.own or version > value.id - ttl_ms * 1_000_000

    def _read(self, read: Callable[[Handle], Answer]) -> Answer:
        def read_and_check(connection: Handle) -> Answer:
            found = read(connection)
            if self.kind == "long":
                # Afterwards: while it is active nobody removes what it staged, and it read that too (I4).
                self.database.dialect.require_active(connection, self.value.id)
            return found

        return self._session.call(read_and_check)

    def write_cell(self, cell: Cell, value: bytes | None, *, conflict_key: bytes | None) -> None:
        """Buffer a write; None is a delete."""
        self.require_open()
        self.buffer.cells[cell] = value
        if conflict_key is not None:
            self.buffer.keys.add(conflict_key)

    def add_entry(self, place: EntryPlace, value: bytes | None, *, conflict_key: bytes | None) -> None:
        """Buffer an entry."""
        self.require_open()
        self.buffer.entries[place] = value
        if conflict_key is not None:
            self.buffer.keys.add(conflict_key)

    def notify(self, cell: Cell) -> None:
        """Set a notification on a cell, with the commit."""
        self.require_open()
        self.buffer.notes.add(cell)

    def acknowledge(self, cell: Cell, *, conflict_key: bytes | None) -> None:
        """Remove the notifications on a cell that this snapshot sees, with the commit.

        :param conflict_key: of two overlapping transactions that give it, one commits.
        """
        _ = self.value  # what is seen is what the snapshot holds
        self.buffer.acknowledged.add(cell)
        if conflict_key is not None:
            self.buffer.keys.add(conflict_key)

    def flush(self) -> None:
        """Stage what is buffered, so that it need not fit into memory; for long transactions only.

        :raises InvalidArgument: the transaction is short.
        :raises RegistrationLost: it has ended, or was swept after its time-out.
        """
        if self.kind != "long":
            raise InvalidArgument("a short transaction is sent as a whole; flush() is for transaction(long=True)")
        own = self.value.id
        if self.buffer:
            writes = self.buffer.writes()
            self._session.call(lambda connection: self.database.dialect.stage(connection, own, writes))
            # What is removed for good waits for the commit; notifications must not: another process may commit.
            self.buffer = WriteBuffer(acknowledged=self.buffer.acknowledged)

    def commit(self, result: Any = None) -> int | None:
        """Commit, or find out truthfully what became of it.

        :param result: a JSON value that is stored with the token.
        :returns: the transaction's id; None if there was nothing to commit.
        :raises ConflictError: another transaction wrote a key of this one; run the function again.
        :raises CommitOutcomeUnknown: the connection broke and the store cannot be asked.
        :raises AlreadyCommitted: the token has been committed meanwhile.
        """
        self.require_open()
        if self._value is None and not self.buffer and self.token is None:
            self._end("committed")
            return None
        if self._value is not None and self.kind == "short" and not self.buffer and self.token is None:
            own = self._value.id
            self.abort()  # it only read: there is nothing to write, and giving the id back costs no flush
            self._state = "committed"
            return own
        if self.kind == "long":
            self.flush()
        call = self._call(result)
        if self.kind == "bound":
            return self._write_into_bound(call)
        try:
            own = self._send(call)
        except StoreUnavailable as error:
            if not error.sent:
                self.abort()
                raise
            own = self._ask(error)
        except RegistrationLost as error:
            # Not a verdict: the same commit may have taken effect before its answer was lost.
            own = self._ask(error)
        except AlreadyCommitted as error:
            self.abort()
            state = token_state(self.database, error.token, seconds=self._seconds)
            raise AlreadyCommitted(error.token, state.result) from error
        except BaseException:
            self.abort()
            raise
        self._end("committed")
        return own

    def _write_into_bound(self, call: CommitCall) -> int:
        # Whatever goes wrong belongs to the user's SQL transaction, which cannot commit any more.
        try:
            own = int(self._session.call(lambda connection: self.database.dialect.commit(connection, call)).id)
        except BaseException:
            self.abort()
            raise
        self._end("committed")
        return own

    def _call(self, result: Any) -> CommitCall:
        value = self._value
        return CommitCall(
            kind="write" if value is None else self.kind,
            request=self.request,
            view=None if value is None else value.view,
            deadline_ms=0 if value is None else value.deadline_ms,
            writes=self.buffer.writes(),
            token=self.token,
            generation=self._generation,
            result=None if self.token is None else as_json(result, self.token),
        )

    def _send(self, call: CommitCall) -> int:
        for left in range(WRITE_ONLY_TRIES, -1, -1):
            try:
                return int(self._session.call(lambda c: self.database.dialect.commit(c, call)).id)
            except ConflictError:
                if call.view is not None or not left:
                    raise
        raise AssertionError("unreachable")

    def _ask(self, reason: ExportQueueError) -> int:
        """Learn the outcome on a new connection after the commit's answer was lost."""
        self._session.drop()
        deadline = time.monotonic() + ASK_SECONDS
        while True:
            try:
                decided = outcome(self.database, self.request, seconds=ASK_SECONDS)
                break
            except Exception as error:  # whatever it is: the commit may have taken effect
                if not isinstance(error, StoreUnavailable) or time.monotonic() > deadline:
                    self._end("aborted")
                    raise CommitOutcomeUnknown(
                        f"the commit of request {self.request} got no answer, and the store cannot be asked: {error}",
                    ) from reason
                time.sleep(0.2)
        if decided.status == "committed" and decided.id is not None:
            return decided.id
        self.abort()
        if isinstance(reason, RegistrationLost):
            raise reason
        raise CommitRefused(f"the commit of request {self.request} did not take effect: {reason.message}") from reason

    def abort(self) -> None:
        """Drop what was written and forget the id; safe to call after the end."""
        if self._state != "open":
            return
        if self._value is not None:
            own = self._value.id
            # What cannot be undone now becomes invalid at its deadline; the abort itself always succeeds.
            with contextlib.suppress(ExportQueueError):
                self._session.call(
                    lambda connection: self.database.dialect.abort(connection, kind=self.kind, transaction=own)
                )
        self._end("aborted")

    def _end(self, state: Literal["committed", "aborted"]) -> None:
        self._state = state
        self.buffer = WriteBuffer()
        self._session.close()


def _checked_timeout(timeout: float | None, long: bool) -> int:
    default, most = (24 * 3600.0, MAX_LONG_SECONDS) if long else (30.0, MAX_SHORT_SECONDS)
    seconds = default if timeout is None else timeout
    if not 0 < seconds <= most:
        raise InvalidArgument(f"timeout: expected more than 0 and at most {most:.0f} seconds, found {seconds}")
    return int(seconds * 1000)
