"""The steps of a transaction on PostgreSQL, with one call of a SQL function each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import sqlalchemy as sa

from export_queue.core.errors import AlreadyCommitted, InvalidArgument, RegistrationLost
from export_queue.core.postgresql_arrays import BigintArray, ByteaArray, numbers_of
from export_queue.core.postgresql_connection import Prepared
from export_queue.core.store.conflict_keys import entry_key
from export_queue.core.store.postgresql import calls as calls
from export_queue.core.store.postgresql import errors as errors
from export_queue.core.store.postgresql import statements as sql
from export_queue.core.store.postgresql.administration import PostgresServer
from export_queue.core.store.postgresql.calls import BIGINT, INT
from export_queue.core.store.postgresql.connection import bound_transaction, may_prepare
from export_queue.core.store.postgresql.excluded_ids import ExcludedIds, ServerMoment
from export_queue.core.store.registration import Kind, Registration, registration_of
from export_queue.core.store.seams import (
    NO_VERSION,
    Begun,
    Cell,
    CellOfTable,
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
from export_queue.core.store.snapshot import AnySnapshot, ServerSnapshot, Snapshot
from export_queue.core.store.state_key import POSTGRESQL as FIND_KEY
from export_queue.core.store.state_key import KeyInLayout

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

MOST_CHANGES = 1000
"""Number of changes of the excluded ids that are kept at least. A process that has missed more reads all ids."""
_NO_CELL = (None, None, None)
_TRUE = b"\1"


class PostgresSteps(TransactionSteps):
    """Steps that call the functions in ``sql/``. The snapshot of a short transaction is the server's own.

    :param engine: for steps that must not be part of a user's SQL transaction.
    """

    def __init__(self, schema: str, engine: sa.Engine, server: PostgresServer) -> None:
        self._engine = engine
        self._schema = schema
        self._server = server
        self._excluded = ExcludedIds("")
        """The ids that the last snapshot excluded for long."""
        self._read_cell = {seen: self._prepared("xq_read", sql.read_cell(seen)) for seen in sql.PREDICATES}
        self._read_cells = {seen: self._sql(sql.read_cells(seen)) for seen in sql.PREDICATES}
        self._snapshot = self._prepared("xq_snapshot", sql.SNAPSHOT)
        self._start = self._sql(sql.START)
        self._start_limited = self._sql(sql.START_LIMITED)
        self._commit = self._prepared("xq_commit", sql.COMMIT)
        self._abort = self._sql(sql.ABORT)
        self._find_key = self._prepared("xq_find_key", FIND_KEY)

    def now(self, connection: Handle) -> int:
        return int(calls.one(connection, sql.READ_CLOCK)[0])

    @contextlib.contextmanager
    def transaction(self, connection: Handle, *, durable: bool = True) -> Iterator[None]:
        raw = calls.raw(connection)
        raw.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        with raw.transaction():
            if not may_prepare(raw):
                bound_transaction(raw)
            yield

    @contextlib.contextmanager
    def _apart(self, connection: Handle) -> Iterator[Handle]:
        """Lend a connection outside of the user's SQL transaction."""
        if calls.raw(connection).info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            yield connection
        else:
            with self._engine.connect() as apart:
                yield apart

    def _sql(self, statement: str) -> bytes:
        return sql.in_schema(self._schema, statement)

    def _prepared(self, name: str, statement: str) -> Prepared:
        return sql.prepared(name, self._sql(statement).decode())

    def draw(self, connection: Handle) -> int:
        return int(calls.one(connection, self._sql(sql.DRAW))[0])

    def check_bound(self, raw: object) -> None:
        if not isinstance(raw, psycopg.Connection):
            raise InvalidArgument(
                f"expected a connection of psycopg 3 to the store's database, found {type(raw).__name__}"
            )
        if raw.autocommit and raw.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            raise InvalidArgument("connection: expected an open SQL transaction, found autocommit")
        encoding = raw.info.parameter_status("client_encoding")
        if encoding not in ("UTF8", None):
            raise InvalidArgument(
                f"connection: expected client_encoding UTF8, in which every text can be sent, found {encoding}",
                hint="run SET client_encoding TO 'UTF8' on it, or connect with client_encoding=utf8",
            )

    def store_id(self, connection: Handle) -> str:
        return str(calls.one(connection, self._sql(sql.STORE_ID))[0])

    def begin(self, connection: Handle, first: Cell | None = None) -> Begun:
        origin = self._server.life_of(connection)
        known, cell = self._excluded, _NO_CELL if first is None else (BIGINT.pack(first[0]), *first[1:])
        # Behind a pooler a server may crash and recover unnoticed, and reuse numbers of SQL transactions.
        if known.origin != origin or not may_prepare(calls.raw(connection)):
            known = ExcludedIds(origin)
        answer, moment, now_known = self._ask_snapshot(connection, known, cell)
        if now_known is None:
            answer, moment, now_known = self._ask_snapshot(connection, ExcludedIds(origin), cell)
        assert now_known is not None
        self._excluded = now_known
        # All ids below a mark had ended before it was recorded; the horizon is such a mark.
        low, now = _number(answer(0, 0)), _number(answer(0, 2))
        snapshot = ServerSnapshot(moment.xmax, moment.xip, now_known.ids, low, origin)
        found = None
        if first is not None:
            found = _version(answer(0, 7), answer(0, 8))
            if found[0] is not None and snapshot.excludes(found[0]):
                found = self.read_cell(connection, snapshot, *first)
        return Begun(snapshot, now, found)

    def _ask_snapshot(
        self, connection: Handle, known: ExcludedIds, cell: tuple[bytes | None, ...]
    ) -> tuple[Any, ServerMoment, ExcludedIds | None]:
        answer: Any = calls.ask(connection, self._snapshot, (*known.as_of(), *cell)).get_value
        servers, is_standby, listed, changes, table = (answer(0, column) for column in (1, 3, 4, 5, 6))
        if is_standby == _TRUE:
            raise errors.standby()
        moment = ServerMoment.unpack(servers)
        every = None if listed is None else numbers_of(listed)
        return answer, moment, known.at(moment, table, every, () if changes is None else numbers_of(changes))

    def start(self, connection: Handle, call: StartCall) -> Started:
        registration = registration_of(call.kind, has_id=True)
        arguments = (registration, registration == "row", call.request, call.timeout_ms, call.client)
        if call.is_limited:
            limits = (call.load, call.mirrors, call.queues)
            row = calls.one(connection, self._start_limited, (*arguments, *limits))
        else:
            row = calls.one(connection, self._start, (call.kind, *arguments, *(call.first or (None, None, None))))
        tx, excluded, deadline, version, value = row
        return Started(tx, tuple(excluded), deadline, None if call.first is None else (version, value))

    def checkpoint(self, connection: Handle, transaction: int) -> int:
        pointer = int(calls.one(connection, self._sql(sql.CHECKPOINT), (transaction,))[0])
        calls.run(connection, self._sql(sql.MAKE_DURABLE), (transaction,))  # after the gate has been released
        return pointer

    def take_snapshot(self, connection: Handle) -> Snapshot:
        read_pointer, excluded = calls.one(connection, self._sql(sql.TAKE_SNAPSHOT))
        return Snapshot(read_pointer, tuple(excluded))

    def read_cell(self, connection: Handle, snapshot: AnySnapshot, table: int, row: bytes, column: bytes) -> Version:
        cell = (BIGINT.pack(table), row, column)
        if isinstance(snapshot, ServerSnapshot):
            snapshot.require_origin(self._server.life_of(connection))
        answer = self._ask_cell(connection, snapshot, cell, exactly=False)
        version = answer.get_value(0, 1)
        # The excluded ids, maybe thousands, are sent only if they matter.
        if version is not None and snapshot.excludes(_number(version)):
            answer = self._ask_cell(connection, snapshot, cell, exactly=True)
        snapshot.require_above(_number(answer.get_value(0, 0)))
        return _version(answer.get_value(0, 1), answer.get_value(0, 2))

    def _ask_cell(
        self, connection: Handle, snapshot: AnySnapshot, cell: tuple[bytes, bytes, bytes], *, exactly: bool
    ) -> PGresult:
        seen, arguments = sql.seen_by(snapshot, exactly=exactly)
        sent = [BIGINT.pack(told) if isinstance(told, int) else told.sent for told in arguments]
        return calls.ask(connection, self._read_cell[seen], (*cell, *sent))

    def read_cells(
        self, connection: Handle, snapshot: AnySnapshot, table: int, cells: Sequence[CellOfTable]
    ) -> list[Version]:
        if isinstance(snapshot, ServerSnapshot):
            snapshot.require_origin(self._server.life_of(connection))
        found = self._ask_cells(connection, snapshot, table, cells, exactly=False)
        if snapshot.excluded:  # not sent at first, as in read_cell
            hidden = [
                place for place, (version, _) in enumerate(found) if version is not None and snapshot.excludes(version)
            ]
            if hidden:
                exact = self._ask_cells(connection, snapshot, table, [cells[place] for place in hidden], exactly=True)
                for place, one in zip(hidden, exact, strict=True):
                    found[place] = one
        return found

    def _ask_cells(
        self, connection: Handle, snapshot: AnySnapshot, table: int, cells: Sequence[CellOfTable], *, exactly: bool
    ) -> list[Version]:
        seen, arguments = sql.seen_by(snapshot, exactly=exactly)
        rows, columns = zip(*cells, strict=True)
        found: list[Version] = [NO_VERSION] * len(cells)
        asked = (ByteaArray.of(rows), ByteaArray.of(columns), table, *arguments)
        answer = calls.rows(connection, self._read_cells[seen], asked)
        snapshot.require_above(answer[0][0])
        for _, place, version, value in answer:
            found[place - 1] = (version, value)
        return found

    def scan_versions(
        self, connection: Handle, snapshot: AnySnapshot, scan: Scan
    ) -> list[tuple[bytes, bytes, bytes | None]]:
        if isinstance(snapshot, ServerSnapshot):
            snapshot.require_origin(self._server.life_of(connection))
        exactly = isinstance(snapshot, ServerSnapshot) or not snapshot.is_prefix
        statement, arguments = sql.scan(sql.quoted(self._schema), scan, *sql.seen_by(snapshot, exactly=exactly))
        found = calls.rows(connection, statement, arguments)
        snapshot.require_above(calls.one(connection, self._sql(sql.HORIZON))[0])  # read later it is no smaller
        return found

    def pointers(self, connection: Handle, transaction: int) -> tuple[int, ...]:
        found = calls.one(connection, self._sql(sql.POINTERS), (transaction,))[0]
        if not found:
            raise RegistrationLost(f"transaction {transaction} has ended")
        return tuple(found)

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
        arguments = (store_id, transaction, flush, *calls.columns(writes), *calls.cells(writes.notifications), load)
        return tuple(calls.one(connection, self._sql(sql.STAGE), arguments)[0] or ())

    def hold_long(self, connection: Handle, transaction: int, queues: Sequence[int], *, store_id: str) -> None:
        calls.one(connection, self._sql(sql.HOLD_LONG), (store_id, transaction, BigintArray.of(queues)))

    def end_long(self, connection: Handle, transaction: int) -> None:
        if calls.one(connection, self._sql(sql.END_LONG), (transaction,))[0] is None:
            raise RegistrationLost(f"transaction {transaction} has ended")

    def commit(self, connection: Handle, call: CommitCall) -> int:
        registration = registration_of(call.kind, has_id=call.transaction is not None)
        if call.kind == "bound":
            return self._commit_bound(connection, call, registration)
        return self._send(connection, call, registration, call.transaction)

    def _commit_bound(self, connection: Handle, call: CommitCall, registration: Registration) -> int:
        """Lock the keys, including those of entries, and only then draw the number under which all is written."""
        writes = call.writes
        keys = sorted({*writes.keys, *(entry_key(queue, key) for queue, _, key, _ in writes.entries)})
        calls.one(connection, self._sql(sql.LOCK_KEYS), (ByteaArray.of(keys),))
        # The number's lock belongs to the user's SQL transaction.
        return self._send(connection, call, registration, self.draw(connection))

    def _send(self, connection: Handle, call: CommitCall, registration: Registration, transaction: int | None) -> int:
        snapshot, writes = call.snapshot, call.writes
        servers = snapshot if isinstance(snapshot, ServerSnapshot) else None
        if servers is not None:
            servers.require_origin(self._server.life_of(connection))
        # With a server's snapshot, excluded ids only matter for notifications.
        needs_excluded = snapshot is not None and (servers is None or writes.acknowledged)
        texts: tuple[bytes | None, bytes | None] = (None, None)
        if call.idempotency_key is not None:
            texts = (call.idempotency_key.encode(), None if call.result is None else call.result.encode())
        columns = (*calls.columns(writes), *calls.cells(writes.notifications), *calls.cells(writes.acknowledged))
        values = (
            call.store_id.encode(),
            registration.encode(),
            call.request.bytes,
            None if transaction is None else BIGINT.pack(transaction),
            BigintArray.of(snapshot.excluded if snapshot is not None and needs_excluded else ()).sent,
            None if snapshot is None else BIGINT.pack(snapshot.low),
            None if servers is None else BIGINT.pack(servers.xmax),
            BigintArray.of(() if servers is None else servers.xip).sent,
            BIGINT.pack(call.deadline_ms),
            texts[0],
            INT.pack(call.generation),
            texts[1],
            *[column.sent for column in columns],
            None if call.transaction is None else BIGINT.pack(call.transaction),
            None if call.load is None else BIGINT.pack(call.load),
        )
        try:
            return _number(calls.ask(connection, self._commit, values).get_value(0, 0))
        except AlreadyCommitted as error:
            raise AlreadyCommitted(call.idempotency_key or "", None) from error.__cause__

    def abort(
        self, connection: Handle, *, kind: Kind, transaction: int, kept: Sequence[int] = (), left_to: str = ""
    ) -> None:
        registration = registration_of(kind, has_id=True)
        if registration == "transaction":
            return  # the lock ends with the user's SQL transaction
        with self._apart(connection) as apart:
            invalid = (BigintArray.of(kept), left_to) if kept else (None, None)
            calls.one(apart, self._abort, (registration, transaction, *invalid))

    def decide(self, connection: Handle, request: UUID) -> Outcome:
        calls.run(connection, self._sql(sql.REFUSE), (request,))
        return Outcome(*calls.one(connection, self._sql(sql.OUTCOME), (request,)))

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
        arguments = [queue, layout, first, end, snapshot.read_pointer, BigintArray.of(snapshot.excluded)]
        if after is None:
            return calls.rows(connection, self._sql(sql.ENTRIES), [*arguments, rows])
        return calls.rows(connection, self._sql(sql.ENTRIES_AFTER), [*arguments, after[0], *after, rows])

    def find_key(self, connection: Handle, state: int, hashed: int, key: bytes, cut: int) -> list[KeyInLayout]:
        arguments = (BIGINT.pack(state), BIGINT.pack(hashed), key, BIGINT.pack(cut))
        answer = calls.ask(connection, self._find_key, arguments)
        return [_key_in_layout(*(answer.get_value(row, at) for at in range(8))) for row in range(answer.ntuples)]

    def expire(self, connection: Handle) -> Swept:
        return Swept(*calls.one(connection, self._sql(sql.EXPIRE)))

    def prune(self, connection: Handle, *, limit: int) -> Swept:
        swept = Swept(*calls.one(connection, self._sql(sql.PRUNE), (limit,)))
        calls.run(connection, self._sql(sql.FORGET_CHANGES), (MOST_CHANGES,))
        return swept


def _number(sent: Any) -> int:
    """Read a ``bigint`` of an answer."""
    return int.from_bytes(sent, signed=True)


def _version(number: bytes | None, value: bytes | None) -> Version:
    return NO_VERSION if number is None else (_number(number), value)


def _key_in_layout(is_standby: bytes | None, first_load: bytes | None, *others: bytes | None) -> KeyInLayout:
    if is_standby == _TRUE:
        raise errors.standby()
    first_load_seq, oldest_cut, buckets, seq, value, segments = others
    return KeyInLayout(
        None if first_load is None else first_load.decode(),
        None if first_load_seq is None else _number(first_load_seq),
        _number(oldest_cut),
        _number(buckets),
        None if seq is None else _number(seq),
        value,
        segments,
    )
