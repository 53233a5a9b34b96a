"""The store on SQLite: one file, one writer at a time, a clock row and active rows."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import ClassVar
from uuid import UUID

import sqlalchemy as sa

from export_queue.core.errors import (
    AlreadyCommitted,
    CommitRefused,
    InvalidArgument,
    RegistrationLost,
    SnapshotTooOld,
    StoreError,
    TransactionTimeout,
)
from export_queue.core.store import sqlite_statements as sql
from export_queue.core.store.conflict_keys import conflict_error
from export_queue.core.store.filelock import FileLock
from export_queue.core.store.protocol import (
    Clock,
    CommitCall,
    Committed,
    Handle,
    Kind,
    Outcome,
    Span,
    Started,
    View,
    Writes,
)
from export_queue.core.store.sqlite_file import LOCK_SECONDS, explain, undone


class SqliteDialect:
    """Transaction steps in SQLite.

    Ids are registered by rows (the portable way of ``docs/transactions.md``): a start writes the clock and
    an active row, a commit deletes the row. Writers queue at a file lock, since SQLite's own waiting is
    a sleep with growing pauses that leaves some writers without a turn for seconds.
    """

    name = "sqlite"
    driver_error: ClassVar[type[Exception]] = sqlite3.Error

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def is_missing_table(self, error: BaseException) -> bool:
        """Tell whether the error says that the store's tables are not there."""
        return "no such table: xq_" in str(error)

    def explain(self, error: BaseException, url: str) -> StoreError | None:
        """Name the file and what to do."""
        return explain(error, url)

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
        raw = _raw(connection)
        if raw.in_transaction:  # the user's own, which holds the write lock from our first write on
            yield
            return
        path = _path(connection)
        with FileLock(path + ".lock", seconds=LOCK_SECONDS):
            if not durable:
                raw.execute("pragma synchronous = normal")
            try:
                try:
                    with undone(path):  # nobody has tried to commit
                        raw.execute("begin immediate")
                        yield
                    # Where the log had no space for the end of a transaction, no recovery will find one.
                    with undone(path, sqlite3.SQLITE_FULL):
                        raw.execute("commit")
                except BaseException:
                    if raw.in_transaction:
                        raw.execute("rollback")
                    raise
            finally:
                if not durable:
                    raw.execute("pragma synchronous = full")

    def create(self, connection: Handle) -> None:
        """Add what SQLite needs beside the tables: nothing."""

    def set_floor(self, connection: Handle, floor: int) -> None:
        """Make all ids to come greater than a number."""
        _raw(connection).execute("update xq_clock set last_id = max(last_id, ?)", (floor,))

    def _draw(self, raw: sqlite3.Connection) -> int:
        return int(
            raw.execute(
                "update xq_clock set last_id = max(last_id + 1, ?) returning last_id", (self._clock() * 1_000_000,)
            ).fetchone()[0]
        )

    def draw(self, connection: Handle) -> int:
        """Draw a number from the id source; inside or outside of a SQL transaction."""
        raw = _raw(connection)
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

    def store_id(self, connection: Handle) -> str:
        """Read the store's identity."""
        return str(_raw(connection).execute("select store_id from xq_store").fetchone()[0])

    def start(self, connection: Handle, *, kind: Kind, request: UUID, timeout_ms: int) -> Started:
        """Draw an id, list what is in progress and add an active row, in one SQL transaction."""
        raw = _raw(connection)
        if kind == "bound" and not raw.in_transaction:
            raw.execute("begin immediate")
        with self.transaction(connection, durable=kind == "long"):
            own = self._draw(raw)
            excluded = _unfinished(raw, own)
            now = self._clock()
            low = excluded[0] if excluded else own
            raw.execute(
                "insert into xq_active (id, request, kind, started_ms, deadline_ms, low) values (?, ?, ?, ?, ?, ?)",
                (own, request.hex, kind, now, now + timeout_ms, low),
            )
        return Started(own, excluded, now + timeout_ms)

    def observe(self, connection: Handle) -> View:
        """Read the clock and the active rows in one SQL snapshot: every id up to it is listed or finished."""
        raw = _raw(connection)
        raw.execute("begin")
        try:
            last = int(raw.execute("select last_id from xq_clock").fetchone()[0])
            return View(last, _unfinished(raw, last + 1))
        finally:
            raw.execute("rollback")

    def read_cell(
        self, connection: Handle, view: View, table: int, row: bytes, column: bytes
    ) -> tuple[int | None, bytes | None]:
        """Read the newest visible version, and the horizon in the same statement."""
        arguments = (table, row, column, json.dumps(view.own), view.read_pointer, json.dumps(view.excluded))
        horizon, version, value = _raw(connection).execute(sql.READ_CELL, arguments).fetchone()
        if view.low < horizon:
            raise SnapshotTooOld(f"snapshot reaches down to {view.low}, clean-up has reached {horizon}")
        return version, value

    def read_cells(
        self, connection: Handle, view: View, table: int, cells: Sequence[tuple[bytes, bytes]]
    ) -> list[tuple[bytes, bytes, int, bytes | None]]:
        """Read many cells; in SQLite a statement a cell costs less than one for all."""
        found = []
        for row, column in cells:
            version, value = self.read_cell(connection, view, table, row, column)
            if version is not None:
                found.append((row, column, version, value))
        return found

    def scan_cells(
        self, connection: Handle, view: View, table: int, span: Span, *, limit: int
    ) -> list[tuple[bytes, bytes, int, bytes | None]]:
        """Read the first cells of a span; SQLite gives the value of the row that has the maximum."""
        raw = _raw(connection)
        wanted = {f"column{i}": column for i, column in enumerate(span.columns)}
        columns = f"and column_key in ({', '.join(f':{name}' for name in wanted)})" if wanted else ""
        after_row, after_column = span.after or (None, None)
        arguments = {
            "table": table,
            "first": span.first_row if after_row is None else after_row,
            "end": span.end_row,
            "after_row": after_row,
            "after_column": after_column,
            "own": json.dumps(view.own),
            "pointer": view.read_pointer,
            "hidden": json.dumps(view.excluded),
            "limit": limit,
            **wanted,
        }
        own_transaction = not raw.in_transaction
        if own_transaction:
            raw.execute("begin")
        try:
            horizon = int(raw.execute("select horizon from xq_store").fetchone()[0])
            if view.low < horizon:
                raise SnapshotTooOld(f"snapshot reaches down to {view.low}, clean-up has reached {horizon}")
            return raw.execute(sql.SCAN.format(columns=columns), arguments).fetchall()
        finally:
            if own_transaction:
                raw.execute("rollback")

    def require_active(self, connection: Handle, transaction: int) -> None:
        """Look for the active row."""
        if not _raw(connection).execute("select 1 from xq_active where id = ?", (transaction,)).fetchone():
            raise RegistrationLost(f"transaction {transaction} has ended")

    def stage(self, connection: Handle, transaction: int, writes: Writes) -> None:
        """Write rows of a long transaction early."""
        raw = _raw(connection)
        with self.transaction(connection):
            self.require_active(connection, transaction)
            raw.executemany(
                "insert or ignore into xq_staged_key (id, key) values (?, ?)", [(transaction, k) for k in writes.keys]
            )
            raw.executemany(
                "insert or ignore into xq_staged_cell (id, table_number, row_key, column_key) values (?, ?, ?, ?)",
                [(transaction, *cell[:3]) for cell in writes.cells],
            )
            raw.executemany(
                "insert or ignore into xq_staged_entry (id, queue_number, layout, bucket, key) values (?, ?, ?, ?, ?)",
                [(transaction, *entry[:4]) for entry in writes.entries],
            )
            self._write(raw, transaction, writes)
            raw.executemany(sql.PUT_NOTE, [(*note, transaction) for note in writes.notes])

    def _write(self, raw: sqlite3.Connection, own: int, writes: Writes) -> None:
        if writes.cells:
            raw.executemany(sql.PUT_CELL, [(t, r, c, own, v) for t, r, c, v in writes.cells])
        if writes.entries:
            raw.executemany(sql.PUT_ENTRY, [(q, la, b, k, own, v) for q, la, b, k, v in writes.entries])

    def commit(self, connection: Handle, call: CommitCall) -> Committed:
        """Check, write and publish under the one writer's lock, in the order of PostgreSQL's function."""
        raw = _raw(connection)
        with self.transaction(connection):
            decided = raw.execute("select status, id from xq_outcome where request = ?", (call.request.hex,)).fetchone()
            if decided is not None:
                if decided[0] == "committed":
                    return Committed(decided[1])
                raise CommitRefused(f"the commit of request {call.request} was refused before")
            own = self._prove_registration(raw, call)
            raw.execute(
                "insert into xq_outcome (request, status, id, decided_ms) values (?, 'committed', ?, ?)",
                (call.request.hex, own, self._clock()),
            )
            if call.token is not None:
                self._take_token(raw, call, own)
            self._take_keys(raw, call, own)
            self._write(raw, own, call.writes)
            self._notify(raw, call, own)
            if call.kind == "long":
                for statement in sql.FORGET_STAGED:
                    raw.execute(statement, {"id": own})
            if call.view is not None:
                horizon = int(raw.execute("select horizon from xq_store").fetchone()[0])
                if call.view.low < horizon:
                    raise SnapshotTooOld(f"snapshot reaches down to {call.view.low}, clean-up has reached {horizon}")
            return Committed(own)

    def _prove_registration(self, raw: sqlite3.Connection, call: CommitCall) -> int:
        if call.view is None:
            return self._draw(raw)
        own = call.view.own[0]
        if raw.execute("delete from xq_active where id = ?", (own,)).rowcount == 0:
            raise RegistrationLost(f"transaction {own} is no longer in progress")
        now = self._clock()
        if now > call.deadline_ms:
            raise TransactionTimeout(f"transaction {own} ran {now - call.deadline_ms} ms past its deadline")
        return own

    def _take_token(self, raw: sqlite3.Connection, call: CommitCall, own: int) -> None:
        taken = raw.execute(
            "insert or ignore into xq_token (token, generation, id, result, committed_ms) values (?, ?, ?, ?, ?)",
            (call.token, call.generation, own, call.result, self._clock()),
        )
        if taken.rowcount == 0:
            raise AlreadyCommitted(call.token or "", None)

    def _take_keys(self, raw: sqlite3.Connection, call: CommitCall, own: int) -> None:
        keys = set(call.writes.keys)
        if call.kind == "long":
            keys |= {row[0] for row in raw.execute("select key from xq_staged_key where id = ?", (own,))}
        if not keys:
            return
        view = call.view
        arguments = {
            "own": own,
            "reads": int(view is not None),
            "low": view.low if view else 0,
            "hidden": json.dumps(view.excluded if view else ()),
        }
        for key in sorted(keys):
            if raw.execute(sql.TAKE_KEY, {**arguments, "key": key}).rowcount == 0:
                writer = raw.execute("select writer from xq_conflict_key where key = ?", (key,)).fetchone()[0]
                raise conflict_error(own, key, writer)

    def _notify(self, raw: sqlite3.Connection, call: CommitCall, own: int) -> None:
        writes, view = call.writes, call.view
        if writes.notes:
            raw.executemany(sql.PUT_NOTE, [(*note, own) for note in writes.notes])
        if writes.acknowledged and view is not None:
            # Exactly what this transaction saw: a notification that an older one sets meanwhile stays.
            seen = (view.read_pointer, json.dumps(view.excluded))
            raw.executemany(sql.ACKNOWLEDGE, [(*note, *seen) for note in writes.acknowledged])

    def abort(self, connection: Handle, *, kind: Kind, transaction: int) -> None:
        """Delete the active row and what was staged under it."""
        raw = _raw(connection)
        if kind == "bound" and not raw.in_transaction:
            return  # the user's SQL transaction has ended; if it committed, the row goes at its deadline
        with self.transaction(connection, durable=kind == "long"):
            gone = raw.execute("delete from xq_active where id = ?", (transaction,)).rowcount
            if gone and kind == "long":
                self._roll_back(raw, transaction)

    def _roll_back(self, raw: sqlite3.Connection, transaction: int) -> None:
        for statement in (*sql.ROLLBACK, *sql.FORGET_STAGED):
            raw.execute(statement, {"id": transaction})

    def decide(self, connection: Handle, request: UUID) -> Outcome:
        """Insert a refusal unless the request has an outcome, then read it."""
        raw = _raw(connection)
        with self.transaction(connection):
            raw.execute(
                "insert or ignore into xq_outcome (request, status, id, decided_ms) values (?, 'refused', null, ?)",
                (request.hex, self._clock()),
            )
            status, own = raw.execute("select status, id from xq_outcome where request = ?", (request.hex,)).fetchone()
        return Outcome(status, own)

    def tidy_entries(self, connection: Handle) -> None:
        """Nothing: SQLite uses the pages of removed rows again at once."""

    def sweep(self, connection: Handle) -> int:
        """Make transactions past their deadline invalid; a short one staged nothing and is only forgotten."""
        raw = _raw(connection)
        now = self._clock()
        late = raw.execute("select 1 from xq_active where deadline_ms < ? limit 1", (now,)).fetchone()
        if late is None:
            return 0
        with self.transaction(connection):
            raw.execute(
                "insert into xq_invalid (id, since_ms) select id, ? from xq_active "
                "where deadline_ms < ? and kind = 'long'",
                (now, now),
            )
            return raw.execute("delete from xq_active where deadline_ms < ?", (now,)).rowcount

    def prune(self, connection: Handle, *, limit: int) -> int:
        """Delete what invalid transactions left and forget them."""
        raw = _raw(connection)
        with self.transaction(connection):
            ids = [row[0] for row in raw.execute("select id from xq_invalid order by id limit ?", (limit,))]
            for own in ids:
                self._roll_back(raw, own)
                raw.execute("delete from xq_invalid where id = ?", (own,))
        return len(ids)


def _raw(connection: Handle) -> sqlite3.Connection:
    raw = connection.connection.driver_connection if isinstance(connection, sa.Connection) else connection
    assert isinstance(raw, sqlite3.Connection)
    return raw


def _path(connection: Handle) -> str:
    assert isinstance(connection, sa.Connection)
    return str(connection.engine.url.database)


def _unfinished(raw: sqlite3.Connection, below: int) -> tuple[int, ...]:
    rows = raw.execute(
        "select id from xq_active where id < ? union select id from xq_invalid where id < ? order by 1", (below, below)
    )
    return tuple(row[0] for row in rows)
