"""The store on SQLite: one file, one writer at a time, a clock row and active rows."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Literal
from uuid import UUID

import sqlalchemy as sa

from export_queue.core.errors import (
    AlreadyCommitted,
    CommitRefused,
    InvalidArgument,
    RegistrationLost,
    StoreError,
    StoreReplaced,
    TransactionTimeout,
)
from export_queue.core.store.dialect import (
    Begun,
    Cell,
    Clock,
    CommitCall,
    Committed,
    Handle,
    Outcome,
    Span,
    Swept,
    Version,
    VersionKey,
    Writes,
)
from export_queue.core.store.queries.conflict_keys import conflict_error, number_of
from export_queue.core.store.registration import HOUR_OF_IDS, STAYED_MS, IdSource, Kind, floor_refused
from export_queue.core.store.snapshot import AnySnapshot, Snapshot
from export_queue.core.store.sqlite import statements as sql
from export_queue.core.store.sqlite.backup import back_up
from export_queue.core.store.sqlite.file import (
    LOCK_SECONDS,
    LOG_BYTES,
    LentConnection,
    StoreConnection,
    StoreFile,
    explain,
    is_in_transaction,
    lent,
    undone,
)
from export_queue.core.store.sqlite.filelock import FileLock

_SHRINK_MS = 1000
"""Milliseconds for which readers that come and go may keep the log from being cut."""


class SqliteDialect:
    """Transaction steps in SQLite.

    There is one writer at a time, and ids are drawn inside its SQL transaction: every id up to the last one has ended
    but for those with an active row and the invalid ones. So a snapshot is read, not written, and only an id that
    somebody needs before the commit is registered, by a row. Writers queue at a file lock, since SQLite's own waiting
    is a sleep with growing pauses that leaves some writers without a turn for seconds.
    """

    name = "sqlite"
    driver_error: ClassVar[type[Exception]] = sqlite3.Error
    is_file = True

    def __init__(self, file: StoreFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._lists: tuple[int, tuple[int, ...]] = (0, ())
        """The ids that are excluded for long, and the number that the store had then; of a new store 0 and none."""
        self._begun: dict[int, tuple[int, StoreConnection, FileLock]] = {}
        """By thread the transaction that it began last, unless that has ended in order; with the process's id."""

    def is_missing_table(self, error: BaseException) -> bool:
        """Tell whether the error says that the store's tables are not there."""
        return "no such table: xq_" in str(error)

    def explain(self, error: BaseException, url: str) -> StoreError | None:
        """Name the file and the remedy."""
        return explain(error, url)

    def create_place(self) -> None:
        """Create the file and its folder."""
        try:
            self._file.create()
        except sqlite3.Error as error:
            raise explain(error, self._file.url) or error from error
        except OSError as error:
            raise StoreError(f"store {self._file.url}: {error.strerror}") from error

    def require_in_place(self) -> None:
        """Look at the file's identity."""
        self._file.require_in_place()

    def forget_place(self) -> None:
        """Forget the file's identity."""
        self._file.forget()

    def refusal_in_child(self, url: str, *, was_in_use: bool) -> StoreError | None:
        """Look for a connection that the parent had in use: SQLite would take its locks for this process's own."""
        if not was_in_use and not self._file.is_open():
            return None
        return StoreError(
            f"store {url}: this process was forked while a connection of its parent was using the file, "
            "and SQLite's locks cannot be inherited",
            hint="fork outside of calls to the store, with connections of your own to the file closed, or "
            "start processes with 'spawn' or 'forkserver'",
        )

    def is_idle(self, raw: object) -> bool:
        """Look at the connection."""
        with contextlib.suppress(sqlite3.ProgrammingError):  # closed
            return isinstance(raw, StoreConnection) and raw.is_clean
        return False

    def limited(self, connection: Handle, seconds: float | None) -> contextlib.AbstractContextManager[None]:
        """Nothing to limit: the only long waits are those for the write lock, which have their own."""
        return contextlib.nullcontext()

    def now(self, connection: Handle) -> int:
        """Read the host's clock."""
        return self._clock()

    @contextlib.contextmanager
    def transaction(self, connection: Handle, *, durable: bool = True) -> Iterator[None]:
        """Hold the writers' queue and one immediate SQL transaction.

        :param durable: whether the commit is flushed; a start need not be.
        """
        raw = _raw_of(connection)
        if raw.in_transaction:  # the user's own, which holds the write lock from our first write on
            yield
            return
        self._end_interrupted()
        lock = self._file.lock()
        if isinstance(raw, StoreConnection):
            raw.write_lock = lock
            self._begun[threading.get_ident()] = (os.getpid(), raw, lock)
        try:
            with lock:
                self._file.require_in_place()
                if not durable:
                    _relax(raw, True)
                try:
                    try:
                        with undone(self._file.path):  # no commit has been tried
                            raw.execute("begin immediate")
                            yield
                        # Where the log had no space for the end of a transaction, no recovery will find one.
                        with undone(self._file.path, sqlite3.SQLITE_FULL):
                            raw.execute("commit")
                    except BaseException:
                        # Another transaction's, where this block is ended late, by the garbage collector.
                        if getattr(raw, "write_lock", lock) is lock and is_in_transaction(raw):
                            raw.execute("rollback")
                        raise
                finally:
                    if not durable:
                        with contextlib.suppress(sqlite3.ProgrammingError):  # closed, as by an interrupted statement
                            _relax(raw, False)
        except BaseException:
            lock.free()  # an interruption may have come while the block was being left
            raise
        self._begun.pop(threading.get_ident(), None)

    def _end_interrupted(self) -> None:
        """Undo what two interruptions in a row have left: the second one hits what ends the block after the first.

        A thread has one transaction at a time, as each one waits for the write lock.
        """
        begun = self._begun.get(threading.get_ident())
        if begun is None:
            return
        process, raw, lock = begun
        if process == os.getpid():  # else it is the parent's
            if raw.write_lock is lock and is_in_transaction(raw):
                raw.close()
            lock.free()
        self._begun.pop(threading.get_ident(), None)

    def id_source(self, connection: Handle) -> IdSource:
        """SQLite has no sequences."""
        return "clock"

    def create(self, connection: Handle) -> None:
        """Create the triggers by which a process knows that the ids which it has read are still those of the store."""
        raw = _raw_of(connection)
        for statement in sql.TRIGGERS:
            raw.execute(statement)

    def check_server(self, connection: Handle) -> None:
        """Nothing: the numbers in a file are those of the file."""

    def adopt(self, connection: Handle) -> None:
        """Nothing: the numbers in a file are those of the file."""

    def is_creation_met(self, error: Exception) -> bool:
        """Never: creations queue at the file lock."""
        return False

    def set_floor(self, connection: Handle, floor: int) -> None:
        """Make all ids to come greater than a number."""
        raw = _raw_of(connection)
        if raw.execute(sql.KEEPS_FROM_FLOOR, (floor,)).fetchone() is not None:
            raise floor_refused(floor)
        raw.execute(sql.SET_FLOOR, (floor,))

    def _draw(self, raw: sqlite3.Connection) -> int:
        arguments = {"now_ms": self._clock(), "hour": HOUR_OF_IDS, "stayed_ms": STAYED_MS}
        return int(raw.execute(sql.DRAW, arguments).fetchone()[0])

    def draw(self, connection: Handle) -> int:
        """Draw a number from the id source; inside or outside of a SQL transaction."""
        raw = _raw_of(connection)
        if raw.in_transaction:
            return self._draw(raw)
        with self.transaction(connection, durable=False):
            return self._draw(raw)

    def check_bound(self, raw: object) -> None:
        """Check a driver's own connection."""
        if not isinstance(raw, sqlite3.Connection):
            raise InvalidArgument(f"expected a connection of sqlite3 to the store's file, found {type(raw).__name__}")
        if raw.isolation_level is None and not raw.in_transaction:
            raise InvalidArgument("connection: expected an open SQL transaction, found autocommit; run BEGIN IMMEDIATE")

    def lend(self, raw: object) -> contextlib.AbstractContextManager[sa.Connection]:
        """Lend the user's connection: it may hold the write lock, for which any other connection would wait."""
        assert isinstance(raw, sqlite3.Connection)
        _begin(raw)
        return lent(raw)

    def store_id(self, connection: Handle) -> str:
        """Read the store's identity."""
        return str(_raw_of(connection).execute(sql.STORE_ID).fetchone()[0])

    def begin(
        self,
        connection: Handle,
        *,
        kind: Literal["read", "short"],
        request: UUID,
        timeout_ms: int,
        client: str,
        first: Cell | None = None,
    ) -> Begun:
        """Read the snapshot, then the first cell in it."""
        snapshot = self.take_snapshot(connection)
        found = None if first is None else self.read_cell(connection, snapshot, *first)
        return Begun(snapshot, self._clock(), None, found)

    def start(
        self,
        connection: Handle,
        *,
        kind: Kind,
        request: UUID,
        timeout_ms: int,
        client: str,
        first: Cell | None = None,
    ) -> tuple[int, tuple[int, ...], int, Version | None]:
        """Draw an id, list the ids in progress and add an active row, in one SQL transaction."""
        raw = _raw_of(connection)
        if kind == "bound":
            _begin(raw)
        with self.transaction(connection, durable=kind == "long"):
            number = self._draw(raw)
            excluded = _unfinished(raw, number)
            now = self._clock()
            low = excluded[0] if excluded else number
            raw.execute(sql.REGISTER, (number, request.hex, kind, now, now + timeout_ms, low, number, client))
        found = None if first is None else self.read_cell(connection, Snapshot(number - 1, excluded), *first)
        return number, excluded, now + timeout_ms, found

    def checkpoint(self, connection: Handle, transaction: int) -> int:
        """Add a second active row; commit, abort and expiry take all rows of a transaction."""
        raw = _raw_of(connection)
        with self.transaction(connection, durable=True):
            self.pointers(connection, transaction)
            pointer = self._draw(raw)
            raw.execute(sql.REGISTER_POINTER, (pointer, transaction))
        return pointer

    def take_snapshot(self, connection: Handle) -> Snapshot:
        """Read the last id and the ids in progress in one statement: every other id up to it has ended.

        Ids of long transactions and invalid ones are read again only after a change.
        """
        raw = _raw_of(connection)
        last, lists, short = raw.execute(sql.SNAPSHOT).fetchone()
        known = self._lists
        if known[0] != lists:
            raw.execute("begin")
            try:
                last, lists, short = raw.execute(sql.SNAPSHOT).fetchone()
                known = self._lists = (lists, tuple(row[0] for row in raw.execute(sql.EXCLUDED_FOR_LONG)))
            finally:
                raw.execute("rollback")
        excluded = known[1]
        if short is not None:
            excluded = tuple(sorted((*excluded, *map(int, short.split(",")))))
        return Snapshot(last, excluded)

    def read_cell(self, connection: Handle, snapshot: AnySnapshot, table: int, row: bytes, column: bytes) -> Version:
        """Read the newest visible version, and the horizon in the same statement."""
        snapshot = _told_by_ids(snapshot)
        raw = _raw_of(connection)
        arguments = {"table": table, "row": row, "column": column, "pointer": snapshot.read_pointer}
        found = None
        if not snapshot.write_pointers:
            found = raw.execute(sql.READ_CELL_UP_TO, arguments).fetchone()
        # The excluded ids are sent only where they matter: there may be thousands.
        if snapshot.write_pointers or (found is not None and not snapshot.sees(found[1])):
            arguments |= {"pointers": f"[{snapshot.write_pointers_text}]", "excluded": f"[{snapshot.excluded_text}]"}
            found = raw.execute(sql.READ_CELL, arguments).fetchone()
        # Where nothing was found the horizon may be read later: it only grows.
        horizon, version, value = found or (*raw.execute(sql.HORIZON).fetchone(), None, None)
        snapshot.require_above(horizon)
        return version, value

    def read_cells(
        self, connection: Handle, snapshot: AnySnapshot, table: int, cells: Sequence[tuple[bytes, bytes]]
    ) -> list[tuple[bytes, bytes, int, bytes | None]]:
        """Read many cells; in SQLite a statement a cell costs less than one for all."""
        found = []
        for row, column in cells:
            version, value = self.read_cell(connection, snapshot, table, row, column)
            if version is not None:
                found.append((row, column, version, value))
        return found

    def scan_versions(
        self,
        connection: Handle,
        snapshot: AnySnapshot,
        table: int,
        span: Span,
        *,
        after: VersionKey,
        limit: int,
        expired: int | None = None,
    ) -> list[tuple[bytes, bytes, bytes | None]]:
        """Read the first visible versions of a span in order."""
        snapshot = _told_by_ids(snapshot)
        raw = _raw_of(connection)
        arguments: dict[str, object] = {"table": table, "pointer": snapshot.read_pointer, "limit": limit}
        arguments |= {"pointers": f"[{snapshot.write_pointers_text}]", "excluded": f"[{snapshot.excluded_text}]"}
        arguments |= {"end": span.end_row, "expired": expired}
        arguments |= dict(zip(("after_row", "after_column", "after_version"), after, strict=True))
        arguments |= {f"column{i}": column for i, column in enumerate(span.columns)}
        statement = sql.scan(span, is_prefix=snapshot.is_prefix, expires=expired is not None)
        found = raw.execute(statement, arguments).fetchall()
        snapshot.require_above(raw.execute(sql.HORIZON).fetchone()[0])  # read later it is no smaller
        return found

    def pointers(self, connection: Handle, transaction: int) -> tuple[int, ...]:
        """Read the active rows."""
        rows = _raw_of(connection).execute(sql.POINTERS, (transaction,)).fetchall()
        if not rows:
            raise RegistrationLost(f"transaction {transaction} has ended")
        return tuple(row[0] for row in rows)

    def stage(
        self, connection: Handle, transaction: int, writes: Writes, flush: int, *, store_id: str
    ) -> tuple[int, ...]:
        """Write rows of a long transaction early."""
        raw = _raw_of(connection)
        with self.transaction(connection):
            _prove_store(raw, store_id, writes)
            pointers = self.pointers(connection, transaction)
            pointer = pointers[-1]
            if flush < pointer:
                return ()
            raw.executemany(sql.STAGE_KEY, [(pointer, key) for key in writes.keys])
            staged = raw.executemany(sql.STAGE_CELL, [(pointer, *cell[:3], flush) for cell in writes.cells])
            if writes.cells and staged.rowcount < len(writes.cells):
                return ()
            staged = raw.executemany(sql.STAGE_ENTRY, [(transaction, *entry[:4], flush) for entry in writes.entries])
            if writes.entries and staged.rowcount < len(writes.entries):
                return ()
            self._write(raw, pointer, transaction, writes)
            raw.executemany(sql.PUT_NOTIFICATION, [(*cell, pointer) for cell in writes.notifications])
        return pointers

    def _write(self, raw: sqlite3.Connection, pointer: int, seq: int, writes: Writes) -> None:
        if writes.cells:
            raw.executemany(sql.PUT_CELL, [(t, r, c, pointer, v) for t, r, c, v in writes.cells])
        if writes.entries:
            raw.executemany(sql.PUT_ENTRY, [(q, la, b, k, seq, v) for q, la, b, k, v in writes.entries])

    def commit(self, connection: Handle, call: CommitCall) -> Committed:
        """Check, write and publish under the one writer's lock, in the order of PostgreSQL's function."""
        raw = _raw_of(connection)
        if call.kind == "bound":
            _begin(raw)
        with self.transaction(connection):
            decided = raw.execute(sql.OUTCOME, (call.request.hex,)).fetchone()
            if decided is not None:
                if decided[0] == "committed":
                    return Committed(decided[1])
                raise CommitRefused(f"the commit of request {call.request} was refused before")
            pointers = self._end_registration(raw, call)
            transaction = pointers[0]
            _prove_store(raw, call.store_id, call.writes)
            raw.execute(sql.COMMITTED, (call.request.hex, transaction, self._clock()))
            if call.idempotency_key is not None:
                self._take_idempotency_key(raw, call, transaction)
            self._take_keys(raw, call, pointers)
            self._write(raw, transaction, transaction, call.writes)
            self._notify(raw, call, transaction)
            if call.kind == "long":
                self._run_for_each(raw, sql.FORGET_STAGED, pointers)
            if call.snapshot is not None:
                call.snapshot.require_above(raw.execute(sql.HORIZON).fetchone()[0])
            return Committed(transaction)

    def _end_registration(self, raw: sqlite3.Connection, call: CommitCall) -> tuple[int, ...]:
        """Prove that the transaction is in progress and end that; returns its write pointers, its id first."""
        pointers = (self._draw(raw),) if call.transaction is None else self._forget(raw, call.transaction)
        if not pointers:
            raise RegistrationLost(f"transaction {call.transaction} is no longer in progress")
        if call.transaction and raw.execute(sql.IS_INVALID, (call.transaction,)).fetchone() is not None:
            raise RegistrationLost(f"transaction {call.transaction} has become invalid")
        now = self._clock()
        if call.snapshot is not None and now > call.deadline_ms:
            raise TransactionTimeout(f"transaction {pointers[0]} ran {now - call.deadline_ms} ms past its deadline")
        return pointers

    def _forget(self, raw: sqlite3.Connection, transaction: int) -> tuple[int, ...]:
        rows = raw.execute(sql.FORGET, (transaction,)).fetchall()
        return tuple(sorted(row[0] for row in rows))

    def _take_idempotency_key(self, raw: sqlite3.Connection, call: CommitCall, transaction: int) -> None:
        taken = raw.execute(
            sql.TAKE_IDEMPOTENCY_KEY,
            (call.idempotency_key, call.generation, transaction, call.result, self._clock()),
        )
        if taken.rowcount == 0:
            raise AlreadyCommitted(call.idempotency_key or "", None)

    def _take_keys(self, raw: sqlite3.Connection, call: CommitCall, pointers: tuple[int, ...]) -> None:
        keys = set(call.writes.keys)
        if call.kind == "long":
            for pointer in pointers:
                keys |= {row[0] for row in raw.execute(sql.STAGED_KEYS, (pointer,))}
        if not keys:
            return
        snapshot = None if call.snapshot is None else _told_by_ids(call.snapshot)
        for key in sorted(keys):
            found = raw.execute(sql.WRITER, (key,)).fetchone()
            # Without a snapshot it starts here, with an id above all that have committed.
            if found and snapshot is not None and (found[0] > pointers[0] or not snapshot.sees(found[0])):
                named = raw.execute(sql.NAME, {"number": number_of(key)}).fetchone()
                raise conflict_error(pointers[0], key, found[0], name=named and named[0])
            # The last pointer: each later commit must have a greater id than any version written here.
            raw.execute(sql.TAKE_KEY, (key, pointers[-1]))

    def _notify(self, raw: sqlite3.Connection, call: CommitCall, transaction: int) -> None:
        writes = call.writes
        if writes.notifications:
            raw.executemany(sql.PUT_NOTIFICATION, [(*cell, transaction) for cell in writes.notifications])
        if writes.acknowledged and call.snapshot is not None:
            snapshot = _told_by_ids(call.snapshot)
            # Only those that this transaction saw: a notification that an older one sets meanwhile stays.
            seen = (snapshot.read_pointer, json.dumps(snapshot.excluded))
            raw.executemany(sql.ACKNOWLEDGE, [(*cell, *seen) for cell in writes.acknowledged])

    def abort(
        self, connection: Handle, *, kind: Kind, transaction: int, kept: Sequence[int] = (), left_to: str = ""
    ) -> None:
        """Delete the active rows and the rows that were staged under them."""
        raw = _raw_of(connection)
        if kind == "bound" and not raw.in_transaction:
            return  # the user's SQL transaction has ended; if it committed, the row goes at its deadline
        with self.transaction(connection, durable=kind == "long" or bool(kept)):
            raw.executemany(sql.KEEP_INVALID, [(pointer, self._clock(), left_to) for pointer in kept])
            pointers = self._forget(raw, transaction)
            if kind == "long":
                self._run_for_each(raw, sql.ROLLBACK, pointers)

    def _run_for_each(self, raw: sqlite3.Connection, statements: Sequence[str], pointers: Sequence[int]) -> None:
        for pointer in pointers:
            for statement in statements:
                raw.execute(statement, {"id": pointer})

    def decide(self, connection: Handle, request: UUID) -> Outcome:
        """Insert a refusal unless the request has an outcome, then read it."""
        raw = _raw_of(connection)
        with self.transaction(connection):
            raw.execute(sql.REFUSE, (request.hex, self._clock()))
            status, transaction = raw.execute(sql.OUTCOME, (request.hex,)).fetchone()
        return Outcome(status, transaction)

    def tidy_entries(self, connection: Handle, *, removed: int, after: int) -> None:
        """Nothing: SQLite uses the pages of removed rows again at once."""

    def shrink_log(self, connection: Handle) -> int:
        """Bring the log into the file and cut it; writers wait in their line meanwhile, for a second at most."""
        if self._file.log_bytes() <= LOG_BYTES:
            return 0
        raw = _raw_of(connection)
        raw.execute("pragma wal_checkpoint(passive)")  # the long part, beside writers
        raw.execute(f"pragma busy_timeout = {_SHRINK_MS}")
        try:
            with self._file.lock():
                raw.execute("pragma wal_checkpoint(truncate)")
        finally:
            raw.execute(f"pragma busy_timeout = {int(LOCK_SECONDS * 1000)}")
        left = self._file.log_bytes()
        return left if left > LOG_BYTES else 0

    def back_up(self, target: Path, on_progress: Callable[[int, int], None]) -> int:
        """Copy the file as one reading transaction sees it."""
        return back_up(self._file, target, on_progress)

    def expire(self, connection: Handle) -> Swept:
        """Make transactions past their deadline invalid; a short one staged nothing and is only forgotten."""
        raw = _raw_of(connection)
        now = self._clock()
        if raw.execute(sql.LATE, (now,)).fetchone() is None:
            return Swept(0)
        with self.transaction(connection):
            late = [row[0] for row in raw.execute(sql.LATE, (now,))]
            return self._sweep(raw, (sql.MAKE_INVALID, sql.FORGET_LATE), late, now)

    def prune(self, connection: Handle, *, limit: int) -> Swept:
        """Delete the rows of invalid transactions and forget their ids."""
        raw = _raw_of(connection)
        with self.transaction(connection):
            ids = [row[0] for row in raw.execute(sql.PRUNABLE, (limit,))]
            return self._sweep(raw, (*sql.ROLLBACK, sql.FORGET_INVALID), ids, self._clock())

    def _sweep(self, raw: sqlite3.Connection, statements: Sequence[str], ids: Sequence[int], now: int) -> Swept:
        """Run the statements for each id; one whose rows cannot be changed keeps no other."""
        ended, failed = 0, None
        for number in ids:
            raw.execute("savepoint xq_sweep")
            try:
                for statement in statements:
                    raw.execute(statement, {"id": number, "now": now})
                ended += 1
            except sqlite3.IntegrityError as error:
                raw.execute("rollback to xq_sweep")
                failed = failed or f"transaction {number}: {error}"
            raw.execute("release xq_sweep")
        return Swept(ended, failed)


def _raw_of(connection: Handle) -> sqlite3.Connection:
    """Give the driver's connection."""
    raw = connection.connection.driver_connection if isinstance(connection, sa.Connection) else connection
    if isinstance(raw, LentConnection):
        return raw.raw
    assert isinstance(raw, sqlite3.Connection)
    return raw


def _told_by_ids(snapshot: AnySnapshot) -> Snapshot:
    assert isinstance(snapshot, Snapshot), "a server's snapshot says nothing to SQLite"
    return snapshot


def _begin(raw: sqlite3.Connection) -> None:
    """Begin the user's SQL transaction, where the driver waits with that for the user's first write."""
    if not raw.in_transaction:
        raw.execute("begin immediate")


def _relax(raw: sqlite3.Connection, relaxed: bool) -> None:
    """Let commits end without a flush, or no more; a connection that may do so for longer is not used again."""
    if isinstance(raw, StoreConnection) and relaxed:
        raw.is_relaxed = True
    raw.execute(f"pragma synchronous = {'normal' if relaxed else 'full'}")
    if isinstance(raw, StoreConnection) and not relaxed:
        raw.is_relaxed = False


def _prove_store(raw: sqlite3.Connection, store_id: str, writes: Writes) -> None:
    """Prove that rows go into the store that their writer knows, whose numbers are never used again."""
    tables = {row[0] for row in (*writes.cells, *writes.notifications, *writes.acknowledged)}
    queues = {entry[0] for entry in writes.entries}
    if (
        raw.execute(sql.STORE_ID).fetchone() != (store_id,)
        or (queues and not queues <= {row[0] for row in raw.execute(sql.QUEUE_NUMBERS)})
        or (tables and not tables <= {row[0] for row in raw.execute(sql.TABLE_NUMBERS)})
    ):
        raise StoreReplaced


def _unfinished(raw: sqlite3.Connection, below: int) -> tuple[int, ...]:
    """Read the ids below a bound that are in progress or invalid, ascending."""
    rows = raw.execute(sql.UNFINISHED, (below, below))
    return tuple(row[0] for row in rows)
