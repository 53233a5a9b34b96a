"""The steps of a transaction on SQLite, with one writer at a time."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite.base import SQLiteDialect

from export_queue.core.errors import (
    AlreadyCommitted,
    CommitRefused,
    InvalidArgument,
    RegistrationLost,
    StoreReplaced,
    TransactionTimeout,
)
from export_queue.core.store import schema
from export_queue.core.store.conflict_keys import conflict_error, number_of
from export_queue.core.store.refusals import (
    StagedMeanwhile,
    added_to_subscription,
    first_load_not_missing,
    layout_closed,
    removed_while_loading,
)
from export_queue.core.store.registration import HOUR_OF_IDS, SLOW_MS, STAYED_MS, Kind
from export_queue.core.store.seams import (
    NO_VERSION,
    Begun,
    Cell,
    CellOfTable,
    Clock,
    CommitCall,
    EntryKey,
    Handle,
    Outcome,
    Scan,
    StartCall,
    Started,
    Swept,
    TransactionSteps,
    Version,
    Writes,
)
from export_queue.core.store.snapshot import AnySnapshot, Snapshot
from export_queue.core.store.sqlite import statements as sql
from export_queue.core.store.sqlite.file import StoreConnection, StoreFile
from export_queue.core.store.sqlite.writing import Writing, begin_own, raw_of, savepoint
from export_queue.core.store.state_key import SQLITE as FIND_KEY
from export_queue.core.store.state_key import KeyInLayout

_DECLARED = {
    column.type.compile(SQLiteDialect()).partition("(")[0]: column
    for table in schema.metadata.tables.values()
    for column in table.columns
}
"""A column of each declared type, by the name under which the driver looks up a converter."""


class SqliteSteps(TransactionSteps):
    """Steps under one writer at a time.

    Ids are drawn in the writer's SQL transaction, so every id up to the last one has ended except those with an active
    row and the invalid ones. A snapshot only reads them. An id is registered, by a row, only if it is needed before the
    commit. Writers queue at a file lock: SQLite itself waits with growing pauses, so some writers would starve for
    seconds.
    """

    def __init__(self, file: StoreFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._lists: tuple[int, tuple[int, ...]] = (0, ())
        """The number of the list of ids that are excluded for a long time, and these ids; in a new store 0 and none."""
        self._begun: dict[int, Writing] = {}
        """By thread the transaction that it began last, unless that ended normally."""

    def now(self, connection: Handle) -> int:
        return self._clock()

    def transaction(self, connection: Handle, *, durable: bool = True) -> contextlib.AbstractContextManager[None]:
        raw = raw_of(connection)
        if raw.in_transaction:  # the user's, which holds the write lock from our first write on
            return contextlib.nullcontext()
        return Writing(self._file, raw, self._begun, durable=durable)

    def _draw(self, raw: sqlite3.Connection) -> int:
        arguments = {"now_ms": self._clock(), "hour": HOUR_OF_IDS, "stayed_ms": STAYED_MS}
        return int(raw.execute(sql.DRAW, arguments).fetchone()[0])

    def draw(self, connection: Handle) -> int:
        raw = raw_of(connection)
        if raw.in_transaction:
            return self._draw(raw)
        with self.transaction(connection, durable=False):
            return self._draw(raw)

    def check_bound(self, raw: object) -> None:
        if not isinstance(raw, sqlite3.Connection):
            raise InvalidArgument(f"expected a connection of sqlite3 to the store's file, found {type(raw).__name__}")
        # With the attribute autocommit (Python 3.12) commit() does nothing, and isolation_level says nothing.
        begins_none = raw.isolation_level is None or getattr(raw, "autocommit", None) is True
        if begins_none and not raw.in_transaction:
            raise InvalidArgument("connection: expected an open SQL transaction, found autocommit; run BEGIN IMMEDIATE")

    def store_id(self, connection: Handle) -> str:
        raw = raw_of(connection)
        store_id = raw.execute(sql.STORE_ID).fetchone()[0]
        for kind, column in _DECLARED.items():
            if kind in sqlite3.converters and _is_converted(raw, column):
                raise InvalidArgument(
                    f"connection: it converts values of type {kind} (detect_types=PARSE_DECLTYPES), which the store "
                    "reads as they are",
                    hint="connect without detect_types, or register the converter under another type",
                )
        return str(store_id)

    def begin(self, connection: Handle, first: Cell | None = None) -> Begun:
        snapshot = self.take_snapshot(connection)
        found = None if first is None else self.read_cell(connection, snapshot, *first)
        return Begun(snapshot, self._clock(), found)

    def start(self, connection: Handle, call: StartCall) -> Started:
        raw, first = raw_of(connection), call.first
        if call.kind == "bound":
            begin_own(raw)
        with self.transaction(connection, durable=call.kind == "long"):
            number = self._draw(raw)
            excluded = self._list_excluded(raw)
            now = self._clock()
            deadline, low = now + call.timeout_ms, excluded[0] if excluded else number
            limits = (call.load, call.mirrors, call.queues)
            raw.execute(
                sql.REGISTER, (number, call.request.hex, call.kind, now, deadline, low, number, call.client, *limits)
            )
        found = None if first is None else self.read_cell(connection, Snapshot(number - 1, excluded), *first)
        return Started(number, excluded, deadline, found)

    def checkpoint(self, connection: Handle, transaction: int) -> int:
        raw = raw_of(connection)
        with self.transaction(connection, durable=True):
            self.pointers(connection, transaction)
            pointer = self._draw(raw)
            raw.execute(sql.REGISTER_POINTER, (pointer, transaction))
        return pointer

    def take_snapshot(self, connection: Handle) -> Snapshot:
        self._file.require_in_place()
        raw = raw_of(connection)
        last, lists, short = raw.execute(sql.SNAPSHOT).fetchone()
        known = self._lists
        if known[0] == lists:
            return Snapshot(last, _with_short(known[1], short))
        raw.execute("begin")
        try:
            last = raw.execute(sql.LAST_ID).fetchone()[0]
            return Snapshot(last, self._list_excluded(raw))
        finally:
            raw.execute("rollback")

    def _list_excluded(self, raw: sqlite3.Connection) -> tuple[int, ...]:
        """Read the ids that snapshots exclude, ascending, in a SQL transaction."""
        _, lists, short = raw.execute(sql.SNAPSHOT).fetchone()
        known = self._lists
        if known[0] != lists:
            known = self._lists = (lists, tuple(row[0] for row in raw.execute(sql.EXCLUDED_FOR_LONG)))
        return _with_short(known[1], short)

    def read_cell(self, connection: Handle, snapshot: AnySnapshot, table: int, row: bytes, column: bytes) -> Version:
        raw = connection if type(connection) is StoreConnection else raw_of(connection)
        assert isinstance(snapshot, Snapshot)
        found = None
        if not snapshot.write_pointers:
            found = raw.execute(sql.READ_CELL_UP_TO, (table, row, column, snapshot.read_pointer)).fetchone()
        # The excluded ids, maybe thousands, are sent only if they matter.
        if snapshot.write_pointers or (found is not None and snapshot.excluded and snapshot.excludes(found[1])):
            arguments = {"table": table, "row": row, "column": column, "pointer": snapshot.read_pointer}
            seen = {"pointers": f"[{snapshot.write_pointers_text}]", "excluded": f"[{snapshot.excluded_text}]"}
            found = raw.execute(sql.READ_CELL, arguments | seen).fetchone()
        # If nothing was found, the horizon may be read later, since it only grows.
        horizon, version, value = found or (*raw.execute(sql.HORIZON).fetchone(), None, None)
        snapshot.require_above(horizon)
        return version, value

    def read_cells(
        self, connection: Handle, snapshot: AnySnapshot, table: int, cells: Sequence[CellOfTable]
    ) -> list[Version]:
        snapshot = _told_by_ids(snapshot)
        raw = raw_of(connection)
        found: list[Version] = []
        excluded = snapshot.excluded
        is_begun = raw.in_transaction
        if not is_begun:
            raw.execute("begin")
        try:
            for row, column in cells:
                version = None
                if not snapshot.write_pointers:
                    arguments = (table, row, column, snapshot.read_pointer)
                    version = raw.execute(sql.READ_VERSION_UP_TO, arguments).fetchone()
                if snapshot.write_pointers or (version is not None and excluded and snapshot.excludes(version[0])):
                    version = self.read_cell(raw, snapshot, table, row, column)
                found.append(version or NO_VERSION)
            snapshot.require_above(raw.execute(sql.HORIZON).fetchone()[0])
        finally:
            if not is_begun:
                raw.execute("rollback")
        return found

    def scan_versions(
        self, connection: Handle, snapshot: AnySnapshot, scan: Scan
    ) -> list[tuple[bytes, bytes, bytes | None]]:
        snapshot = _told_by_ids(snapshot)
        raw = raw_of(connection)
        arguments: dict[str, object] = {"table": scan.table, "pointer": snapshot.read_pointer, "limit": scan.limit}
        arguments |= {"pointers": f"[{snapshot.write_pointers_text}]", "excluded": f"[{snapshot.excluded_text}]"}
        arguments |= {"end": scan.span.end_row, "expired": scan.expired}
        arguments |= dict(zip(("after_row", "after_column", "after_version"), scan.after, strict=True))
        arguments |= {f"column{i}": column for i, column in enumerate(scan.span.columns)}
        found = raw.execute(sql.scan(scan, is_prefix=snapshot.is_prefix), arguments).fetchall()
        snapshot.require_above(raw.execute(sql.HORIZON).fetchone()[0])  # read later it is no smaller
        return found

    def pointers(self, connection: Handle, transaction: int) -> tuple[int, ...]:
        rows = raw_of(connection).execute(sql.POINTERS, (transaction,)).fetchall()
        if not rows:
            raise RegistrationLost(f"transaction {transaction} has ended")
        return tuple(row[0] for row in rows)

    def stage(
        self,
        connection: Handle,
        transaction: int,
        writes: Writes,
        flush: int,
        *,
        store_id: str,
        load: int | None = None,
    ) -> tuple[int, ...]:
        raw = raw_of(connection)
        with self.transaction(connection):
            _prove_store(raw, store_id, writes, load)
            pointers = self.pointers(connection, transaction)
            pointer = pointers[-1]
            if flush < pointer:
                return ()
            raw.executemany(sql.STAGE_KEY, [(pointer, key) for key in writes.keys])
            staged = raw.executemany(sql.STAGE_CELL, [(pointer, *cell[:3], flush) for cell in writes.cells])
            if writes.cells and staged.rowcount < len(writes.cells):
                return ()
            if writes.entries:
                raw.execute(sql.COUNT_STAGING, (transaction,))
            entries = _staged(raw, transaction, writes.entries)
            staged = raw.executemany(sql.STAGE_ENTRY, [(transaction, *key, h, flush) for key, h, _ in entries])
            if writes.entries and staged.rowcount < len(writes.entries):
                return ()
            self._write_cells(raw, pointer, writes)
            raw.executemany(sql.PUT_ENTRY, [(*key, transaction, value) for key, _, value in entries])
            raw.executemany(sql.PUT_NOTIFICATION, [(*cell, pointer) for cell in writes.notifications])
        return pointers

    def hold_long(self, connection: Handle, transaction: int, queues: Sequence[int], *, store_id: str) -> None:
        raw = raw_of(connection)
        load = raw.execute(sql.LOAD, (transaction,)).fetchone()
        if load is None:
            raise RegistrationLost(f"transaction {transaction} has ended")
        _prove_store(raw, store_id, Writes(entries=[(queue, 0, b"", None) for queue in queues]), load[0])

    def end_long(self, connection: Handle, transaction: int) -> None:
        if not self._forget(raw_of(connection), transaction):
            raise RegistrationLost(f"transaction {transaction} has ended")

    def _write_cells(self, raw: sqlite3.Connection, pointer: int, writes: Writes) -> None:
        if writes.cells:
            raw.executemany(sql.PUT_CELL, [(t, r, c, pointer, v) for t, r, c, v in writes.cells])

    def _publish_staged(self, raw: sqlite3.Connection, transaction: int, load: int | None) -> None:
        """Give entries that were staged for queues with subscriptions to their current readers."""
        if load is not None:
            if raw.execute(sql.MAKE_FIRST_LOAD, (transaction, load)).rowcount == 0:
                _require_subscription(raw, load)
                raise first_load_not_missing()
        elif raw.execute(sql.STAGED_FOR_READERS, (transaction,)).fetchone() is not None:
            self._run_for_each(raw, sql.PUBLISH_STAGED, (transaction,))

    def commit(self, connection: Handle, call: CommitCall) -> int:
        raw = raw_of(connection)
        if call.kind == "bound":
            begin_own(raw)
            with savepoint(raw):
                return self._commit(raw, call)
        with self.transaction(raw):
            return self._commit(raw, call)  # with the order of steps of PostgreSQL's function

    def _commit(self, raw: sqlite3.Connection, call: CommitCall) -> int:
        execute, executemany, writes, now = raw.execute, raw.executemany, call.writes, self._clock()
        snapshot = None if call.snapshot is None else _told_by_ids(call.snapshot)

        # 1. The registration ends, or the id is drawn. The last pointer becomes the writer of keys, since each later
        # commit must have a greater id than any version written here.
        pointers = (self._draw(raw),) if call.transaction is None else self._forget(raw, call.transaction)
        transaction = pointers[0] if pointers else call.transaction

        # 2. The outcome, before everything else, so that a repeated call meets neither the end of its registration nor
        # its own writes.
        if execute(sql.COMMITTED, (call.request.hex, transaction, now)).rowcount == 0:
            status, decided = execute(sql.OUTCOME, (call.request.hex,)).fetchone()
            if status == "committed":
                return int(decided)
            raise CommitRefused(f"the commit of request {call.request} was refused before")
        if transaction is None or not pointers:
            raise RegistrationLost(f"transaction {call.transaction} is no longer in progress")
        if call.transaction is not None and execute(sql.IS_INVALID, (transaction,)).fetchone() is not None:
            raise RegistrationLost(f"transaction {transaction} has become invalid")

        # 3. The deadline, by the host's clock.
        if snapshot is not None and now > call.deadline_ms:
            raise TransactionTimeout(f"transaction {transaction} ran {now - call.deadline_ms} ms past its deadline")
        if call.idempotency_key is not None:
            taken = execute(
                sql.TAKE_IDEMPOTENCY_KEY, (call.idempotency_key, call.generation, transaction, call.result, now)
            )
            if taken.rowcount == 0:
                raise AlreadyCommitted(call.idempotency_key, None)

        # 4. First committer wins. A transaction without a snapshot starts here, with an id above all committed ones.
        keys = writes.keys
        if call.kind == "long":
            staged = {row[0] for pointer in pointers for row in execute(sql.STAGED_KEYS, (pointer,))}
            keys = sorted(staged.union(keys))
        if snapshot is not None:
            for key in keys:
                writer = execute(sql.WRITER, (key,)).fetchone()
                if writer and not snapshot.sees(writer[0]):
                    naming = sql.NAME_OF_QUEUE if key.startswith(b"q") else sql.NAME_OF_TABLE
                    named = execute(naming, (number_of(key),)).fetchone()
                    raise conflict_error(transaction, key, writer[0], name=named and named[0])
        if keys:
            executemany(sql.TAKE_KEY, [(key, pointers[-1]) for key in keys])

        # 5. Cells, entries, notifications.
        self._write_cells(raw, transaction, writes)
        if call.kind == "long":
            if execute(sql.MAY_REPEAT_KEYS, {"id": transaction}).fetchone() is not None:
                raise StagedMeanwhile
            self._publish_staged(raw, transaction, call.load)
            if (closed := execute(sql.CLOSED_LAYOUT, {"id": transaction}).fetchone()) is not None:
                raise layout_closed(f"queue {closed[0]!r}")
            execute(sql.PUBLISH_SEGMENTS, {"id": transaction})
        if writes.entries:
            executemany(sql.PUT_ENTRY, _of_readers(raw, writes.entries, transaction, call.load))
        if writes.notifications:
            executemany(sql.PUT_NOTIFICATION, [(*cell, transaction) for cell in writes.notifications])
        if writes.acknowledged and snapshot is not None:
            # Only those that this transaction saw. A notification that an older one sets meanwhile stays.
            seen = (snapshot.read_pointer, json.dumps(snapshot.excluded))
            executemany(sql.ACKNOWLEDGE, [(*cell, *seen) for cell in writes.acknowledged])
        if call.kind == "long":
            self._run_for_each(raw, sql.FORGET_STAGED, pointers)

        # 6. The store, and the horizon, after the checks.
        horizon = _prove_store(raw, call.store_id, writes, call.load)
        if snapshot is not None:
            snapshot.require_above(horizon)
        return int(transaction)

    def _forget(self, raw: sqlite3.Connection, transaction: int) -> tuple[int, ...]:
        rows = raw.execute(sql.FORGET, (transaction,)).fetchall()
        return tuple(sorted(row[0] for row in rows))

    def abort(
        self, connection: Handle, *, kind: Kind, transaction: int, kept: Sequence[int] = (), left_to: str = ""
    ) -> None:
        raw = raw_of(connection)
        if kind == "bound" and not raw.in_transaction:
            return  # the user's SQL transaction has ended; if it committed, the row is deleted at its deadline
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
        raw = raw_of(connection)
        with self.transaction(connection):
            raw.execute(sql.REFUSE, (request.hex, self._clock()))
            status, transaction = raw.execute(sql.OUTCOME, (request.hex,)).fetchone()
        return Outcome(status, transaction)

    def select_entries(
        self,
        connection: Handle,
        queue: int,
        layout: int,
        snapshot: Snapshot,
        *,
        first: int,
        end: int,
        after: EntryKey | None,
        rows: int,
    ) -> list[tuple[int, bytes, int, bytes | None]]:
        arguments: dict[str, object] = {"queue": queue, "layout": layout, "first": first, "end": end, "rows": rows}
        arguments |= {"pointer": snapshot.read_pointer, "excluded": f"[{snapshot.excluded_text}]"}
        if after is None:
            return raw_of(connection).execute(sql.ENTRIES, arguments).fetchall()
        arguments |= dict(zip(("bucket", "key", "seq"), after, strict=True))
        return raw_of(connection).execute(sql.ENTRIES_AFTER, arguments).fetchall()

    def find_key(self, connection: Handle, state: int, hashed: int, key: bytes, cut: int) -> list[KeyInLayout]:
        self._file.require_in_place()
        return [KeyInLayout(*row) for row in raw_of(connection).execute(FIND_KEY, (state, hashed, key, cut))]

    def expire(self, connection: Handle) -> Swept:
        raw = raw_of(connection)
        now = self._clock()
        if raw.execute(sql.ANY_LATE, (now,)).fetchone() is None:
            return Swept(0)
        arguments = {"now": now, "slow": SLOW_MS, "stayed_ms": STAYED_MS}
        with self.transaction(connection):
            raw.execute(sql.NOTE_LATE, arguments)
            late = [row[0] for row in raw.execute(sql.LATE, arguments)]
            return self._sweep(raw, (sql.MAKE_INVALID, sql.FORGET_LATE), late, now)

    def prune(self, connection: Handle, *, limit: int) -> Swept:
        raw = raw_of(connection)
        with self.transaction(connection):
            ids = [row[0] for row in raw.execute(sql.PRUNABLE, (limit,))]
            return self._sweep(raw, (*sql.ROLLBACK, sql.FORGET_INVALID), ids, self._clock())

    def _sweep(self, raw: sqlite3.Connection, statements: Sequence[str], ids: Sequence[int], now: int) -> Swept:
        """Run the statements for each id, and continue after an id whose rows cannot be changed."""
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


def _told_by_ids(snapshot: AnySnapshot) -> Snapshot:
    assert isinstance(snapshot, Snapshot), "a server's snapshot has no meaning in SQLite"
    return snapshot


def _of_readers(
    raw: sqlite3.Connection, entries: Sequence[tuple[int, int, bytes, bytes | None]], seq: int, load: int | None
) -> list[tuple[int, int, int, bytes, int, bytes | None]]:
    """Return the rows of entries for all readers of their queues, or for the subscription of a first load."""
    readers: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    added_to = json.dumps(list({entry[0] for entry in entries}))
    if load is None:
        for source, *reader in raw.execute(sql.READERS, (seq, added_to)):
            readers[source].append(tuple(reader))
    else:
        for number, layout, buckets, _ in raw.execute(sql.QUEUES, (seq, added_to)):
            readers[number].append((number, layout, buckets))
    return [
        (number, layout, hashed % buckets, key, seq, value)
        for queue, hashed, key, value in entries
        for number, layout, buckets in readers[queue]
    ]


def _staged(
    raw: sqlite3.Connection, transaction: int, entries: Sequence[tuple[int, int, bytes, bytes | None]]
) -> list[tuple[tuple[int, int, int, bytes], int | None, bytes | None]]:
    """Return position, hash and value of the staged rows of entries.

    Those of a queue with subscriptions are staged in layout and bucket 0, and the commit needs their hash.
    """
    if not entries:
        return []
    numbers = json.dumps(list({entry[0] for entry in entries}))
    queues = {row[0]: row[1:] for row in raw.execute(sql.QUEUES, (transaction, numbers))}
    found: list[tuple[tuple[int, int, int, bytes], int | None, bytes | None]] = []
    for queue, hashed, key, value in entries:
        layout, buckets, fans_out = queues[queue]
        if fans_out:
            found.append(((queue, 0, 0, key), hashed, value))
        else:
            found.append(((queue, layout, hashed % buckets, key), None, value))
    return found


def _require_subscription(raw: sqlite3.Connection, load: int) -> None:
    if raw.execute(sql.SUBSCRIPTION, (load,)).fetchone() is None:
        raise removed_while_loading()


def _prove_store(raw: sqlite3.Connection, store_id: str, writes: Writes, load: int | None) -> int:
    """Check that the rows' store and numbers are those of this store, and return its horizon.

    Numbers are never used again.

    :param load: the subscription whose first load this is. Entries may be added to no other subscription.
    """
    tables = {row[0] for row in (*writes.cells, *writes.notifications, *writes.acknowledged)}
    queues = {entry[0] for entry in writes.entries}
    proof = sql.store_proof(len(tables), len(queues))
    found, horizon, known = raw.execute(proof, (*tables, *queues, load)).fetchone()
    if found != store_id or known != len(tables) + len(queues) or (load is not None and queues - {load}):
        if load is not None and found == store_id:
            _require_subscription(raw, load)
        for queue in queues - {load}:
            subscription = raw.execute(sql.SUBSCRIPTION, (queue,)).fetchone()
            if subscription is not None:
                raise added_to_subscription(subscription[0])
        raise StoreReplaced
    return int(horizon)


def _with_short(excluded: tuple[int, ...], short: str | None) -> tuple[int, ...]:
    """Add the ids of short transactions, which are separated by commas."""
    return excluded if short is None else tuple(sorted((*excluded, *map(int, short.split(",")))))


def _is_converted(raw: sqlite3.Connection, column: sa.Column[object]) -> bool:
    """Return whether a connection converts values of a column as it reads them."""
    probe = f"select {column.name} from {column.table.name} where false union all select x'00'"
    try:
        return bool(raw.execute(probe).fetchone() != (b"\0",))
    except sqlite3.OperationalError:
        raise
    except Exception:  # of the converter
        return True
