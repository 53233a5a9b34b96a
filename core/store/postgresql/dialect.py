"""The store on PostgreSQL: one function call per step."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from uuid import UUID
from weakref import WeakKeyDictionary

import psycopg
import sqlalchemy as sa

from export_queue.core.drivers import bare_url, check_postgresql_files, postgresql_arguments
from export_queue.core.errors import (
    AlreadyCommitted,
    InvalidArgument,
    OtherCluster,
    QueueBusy,
    RegistrationLost,
    StoreUnavailable,
)
from export_queue.core.postgresql_arrays import BigintArray, ByteaArray, numbers_of
from export_queue.core.postgresql_connection import LONGEST_SECONDS, BoundedConnection, Prepared
from export_queue.core.store.dialect import (
    NO_VERSION,
    Begun,
    Cell,
    CommitCall,
    Committed,
    EntryKey,
    Handle,
    LockCall,
    Outcome,
    Span,
    Swept,
    Version,
    VersionKey,
    Writes,
)
from export_queue.core.store.hints import Channel, Listener
from export_queue.core.store.postgresql import calls as calls
from export_queue.core.store.postgresql import errors as errors
from export_queue.core.store.postgresql import statements as sql
from export_queue.core.store.postgresql.calls import BIGINT, INT
from export_queue.core.store.postgresql.connection import (
    CLIENT_DEFAULTS,
    bound_connections,
    bound_transaction,
    is_alive,
    is_idle,
    may_prepare,
)
from export_queue.core.store.postgresql.excluded_ids import ExcludedIds, ServerMoment
from export_queue.core.store.postgresql.listening import HintListener
from export_queue.core.store.queries.conflict_keys import entry_key
from export_queue.core.store.registration import (
    HOUR_OF_IDS,
    LAG_OF_IDS,
    LOCK_WINDOW,
    QUEUE_BIT,
    SLOW_MS,
    STAYED_MS,
    Kind,
    Registration,
    floor_refused,
    registration_of,
)
from export_queue.core.store.snapshot import AnySnapshot, ServerSnapshot, Snapshot

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

MOST_CHANGES = 1000
"""How many changes of the excluded ids are kept at least; a process reads all ids where fewer are."""
_NO_CELL = (None, None, None)
_TRUE = b"\1"
"""How long a transaction that never read stays registered while its commit is on its way, where that takes a row."""


_SET_HERE = re.compile(r"(?:-c\s*|--)(search[-_]path|synchronous[-_]commit)\s*=", re.IGNORECASE)
"""Settings of a session that the store pins."""


def open_engine(
    url: sa.URL, schema: str, *, behind_pooler: bool = False, password: str | Callable[[], str] | None = None
) -> sa.Engine:
    """Make an engine on psycopg 3 whose connections begin no SQL transaction by themselves.

    :param password: the password, or a function that is asked at each new connection.
    :raises InvalidArgument: the URL has an option that the driver does not take.
    """
    # A pooler hands the next SQL transaction to another server session, without the prepared statements of this one.
    prepare: dict[str, Any] = {"prepare_threshold": None} if behind_pooler else {}
    arguments = postgresql_arguments(url, where="the store's URL")
    check_postgresql_files(arguments, where="the store's URL")
    if own := _SET_HERE.search(arguments.get("options", "")):
        raise InvalidArgument(
            f"the store's URL: option 'options': {own[1]} cannot be honoured: the store sets it itself",
            hint="the schema of the store's tables is an argument of its own, schema=",
        )
    engine = sa.create_engine(
        bare_url(url, "postgresql+psycopg"),
        isolation_level="AUTOCOMMIT",
        hide_parameters=True,  # values of entries do not belong into errors
        connect_args={
            **CLIENT_DEFAULTS,
            **arguments,
            "client_encoding": "UTF8",  # one in which every text can be sent, whatever the role asks for
            **prepare,
        },
        pool_size=8,
        max_overflow=56,
        pool_pre_ping=False,
        pool_use_lifo=True,
        pool_reset_on_return=None,
    )
    bound_connections(engine, settings=not behind_pooler, password=password)
    return engine.execution_options(schema_translate_map={None: schema})


class PostgresDialect:
    """Transaction steps in PostgreSQL; the functions stand in ``sql/``.

    How ids are registered follows from the store, which has a sequence and advisory locks, or a clock. In a store with
    a sequence the snapshot of a short transaction is the server's own, which registers nothing.

    :param engine: for steps that must not be part of a SQL transaction of the user's.
    :param behind_pooler: whether connections lead to a pooler in transaction mode.
    """

    name = "postgresql"
    driver_error: ClassVar[type[Exception]] = psycopg.Error
    is_file = False
    has_hints = True

    def __init__(self, schema: str, engine: sa.Engine, *, behind_pooler: bool = False) -> None:
        self.schema = schema
        self._engine = engine
        self._s = '"' + schema.replace('"', '""') + '"'
        self._origins: WeakKeyDictionary[psycopg.Connection[Any], str] = WeakKeyDictionary()
        """The life of the server that each connection leads to."""
        self._excluded = ExcludedIds("")
        """The ids that the last snapshot excluded for long."""
        self._server = self._sql(sql.SERVER)
        self._read_cell = self._prepared("xq_read", sql.READ_CELL)
        self._read_cell_up_to = self._prepared("xq_read_up_to", sql.READ_CELL_UP_TO)
        self._read_cell_by_server = self._prepared("xq_read_by_server", sql.READ_CELL_BY_SERVER)
        self._read_cell_in_servers = self._prepared("xq_read_in_servers", sql.READ_CELL_IN_SERVERS)
        self._read_cells = self._sql(sql.READ_CELLS)
        self._read_cells_up_to = self._sql(sql.READ_CELLS_UP_TO)
        self._read_cells_by_server = self._sql(sql.READ_CELLS_BY_SERVER)
        self._read_cells_in_servers = self._sql(sql.READ_CELLS_IN_SERVERS)
        self._snapshot = self._prepared("xq_snapshot", sql.SNAPSHOT)
        self._start = self._sql(sql.START)
        self._start_load = self._sql(sql.START_LOAD)
        self._commit = self._prepared("xq_commit", sql.COMMIT)
        self._abort = self._sql(sql.ABORT)

    def is_missing_table(self, error: BaseException) -> bool:
        """Tell whether the error says that the store's schema, tables or functions are not there."""
        return errors.is_missing_table(error)

    def now(self, connection: Handle) -> int:
        """Read the server's clock."""
        return int(calls.one(connection, sql.READ_CLOCK)[0])

    def explain(self, error: BaseException, url: str) -> StoreUnavailable | None:
        """Name the database."""
        return errors.unavailable(error, where=f"store {url}") if errors.is_transient(error) else None

    def create_place(self) -> None:
        """Nothing: the database is the administrator's to create."""

    def require_in_place(self) -> None:
        """Nothing: a server says itself what it serves."""

    def forget_place(self) -> None:
        """Nothing is remembered."""

    def refusal_in_child(self, url: str, *, was_in_use: bool) -> None:
        """Nothing: the child's connections are new ones."""

    def is_idle(self, raw: object) -> bool:
        """Look at the connection."""
        return isinstance(raw, BoundedConnection) and is_idle(raw)

    def is_alive(self, raw: object) -> bool:
        """Look at the connection, and at what has come in."""
        return isinstance(raw, BoundedConnection) and is_alive(raw)

    def limit(self, raw: object, seconds: float) -> None:
        """Give each answer a time limit."""
        if isinstance(raw, BoundedConnection):
            raw.answer_seconds = min(seconds, LONGEST_SECONDS)

    @contextlib.contextmanager
    def transaction(self, connection: Handle, *, durable: bool = True) -> Iterator[None]:
        """Open one READ COMMITTED transaction."""
        raw = calls.raw(connection)
        raw.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        with raw.transaction():
            if not may_prepare(raw):
                bound_transaction(raw)
            yield

    def create(self, connection: Handle) -> None:
        """Create the id source and the functions."""
        mask = calls.one(connection, self._sql(sql.MASK))[0]
        calls.run(connection, self._sql(sql.CREATE_SEQUENCE))
        for table in sql.WRITER_TABLES:
            named = {"s": self._s, "table": table}
            if not calls.one(connection, sql.HAS_WRITER.format(**named).encode())[0]:
                calls.run(connection, sql.ADD_WRITER.format(**named).encode())
        for name in ("ids_by_locks.sql", "servers.sql", "transactions.sql", "locks.sql"):
            self._run_file(connection, name, mask)

    def _run_file(self, connection: Handle, name: str, mask: int) -> None:
        text = (files("export_queue.core.store.postgresql") / "sql" / name).read_text("utf-8")
        values = {
            "{s}": self._s,
            "{mask}": f"'{mask}'::bigint",
            "{now}": sql.NOW,
            "{lock_window}": str(LOCK_WINDOW),
            "{hour}": str(HOUR_OF_IDS),
            "{stayed_ms}": str(STAYED_MS),
            "{slow_ms}": str(SLOW_MS),
            "{lag}": str(LAG_OF_IDS),
            "{queue_bit}": f"{QUEUE_BIT}::bigint",
            "{moment_ms}": str(sql.MOMENT_MS),
            "{bucket}": sql.BUCKET.format(hash="e.h", queue="q"),
            "{queues_of_tx}": sql.QUEUES_OF_TRANSACTION.replace("{s}", self._s),
            "{bucket_of_staged}": sql.BUCKET.format(hash="s.hash", queue="r"),
        }
        for placeholder, value in values.items():
            text = text.replace(placeholder, value)
        calls.raw(connection).execute(text.encode())

    def check_server(self, connection: Handle) -> None:
        """Compare the cluster with the store's."""
        self._origin(connection)

    def _origin(self, connection: Handle) -> str:
        """Tell the life of the server that a connection leads to; it is asked once."""
        raw = calls.raw(connection)
        origin = self._origins.get(raw)
        if origin is None:
            stored, cluster, life = calls.one(connection, self._server)
            if stored is not None and cluster is not None and stored != cluster:
                raise OtherCluster(f"store {self.schema}: expected a server of cluster {stored}, found {cluster}")
            if life is None:
                return ""  # a standby: the snapshot says so
            origin = self._origins[raw] = f"{cluster}/{life}"
        return origin

    def adopt(self, connection: Handle) -> None:
        """Let the store live in this cluster."""
        for statement in sql.ADOPT:
            calls.run(connection, self._sql(statement))
        self._origins.clear()

    def is_creation_met(self, error: Exception) -> bool:
        """Look for the catalogue's words on what is there already, or has just been changed."""
        return errors.is_creation_met(error)

    def try_readers(self, connection: Handle, queue: int) -> bool:
        """Take the lock that commits share."""
        return bool(calls.one(connection, self._sql(sql.TRY_READERS), (queue,))[0])

    def hold_readers(self, connection: Handle, queue: int) -> None:
        """Take the lock that commits share."""
        calls.one(connection, self._sql(sql.HOLD_READERS), (BigintArray.of([queue]),))

    @contextlib.contextmanager
    def brief_waits(self, connection: Handle, queue: str) -> Iterator[None]:
        """Give each wait a time limit."""
        calls.run(connection, self._sql(sql.WAIT_BRIEFLY))
        try:
            yield
        except Exception as error:
            if not errors.is_lock_timeout(error):
                raise
            raise QueueBusy(
                f"rows of queue {queue!r} or of its readers are in use",
                hint="try again; a drain that stands still inside of a SQL transaction holds them, or somebody who "
                "alters the queue",
            ) from error

    def last_id(self, connection: Handle) -> int:
        """Read the sequence."""
        return int(calls.one(connection, self._sql(sql.LAST_ID))[0])

    def set_floor(self, connection: Handle, floor: int) -> None:
        """Make all ids to come greater than a number."""
        if not calls.one(connection, self._sql(sql.SET_FLOOR), (floor,))[0]:
            raise floor_refused(floor)

    @contextlib.contextmanager
    def _apart(self, connection: Handle) -> Iterator[Handle]:
        """Lend a connection that is in no SQL transaction of the user's."""
        if calls.raw(connection).info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            yield connection
        else:
            with self._engine.connect() as apart:
                yield apart

    def _sql(self, statement: str) -> bytes:
        return statement.format(s=self._s).encode()

    def _prepared(self, name: str, statement: str) -> Prepared:
        return sql.prepared(name, statement.format(s=self._s))

    def draw(self, connection: Handle) -> int:
        """Draw a number from the id source; nothing stays registered after the SQL transaction."""
        return int(calls.one(connection, self._sql(sql.DRAW))[0])

    def lock_at_once(self, connection: Handle, call: LockCall) -> int | None:
        """Call the function that decides the plain cases."""
        firsts, ends, members = ([area[i] for area in call.areas] for i in range(3))
        of_queue = (call.queue, call.layout, call.buckets_per_range)
        of_task = (call.mode, call.priority, call.task, list(call.attempts), call.lease_ms)
        (fence,) = calls.one(connection, self._sql(sql.LOCK_AT_ONCE), (*of_queue, firsts, ends, members, *of_task))
        return None if fence is None else int(fence)

    def release_locks(self, connection: Handle, places: Sequence[tuple[int, int]], queues: Sequence[int]) -> bool:
        """Call the function that locks the rows in their order."""
        fences, firsts = ([place[i] for place in places] for i in range(2))
        return bool(calls.one(connection, self._sql(sql.RELEASE_LOCKS), (fences, firsts, list(queues)))[0])

    def check_bound(self, raw: object) -> None:
        """Check a driver's own connection."""
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

    def plainly(self, raw: object) -> contextlib.AbstractContextManager[None]:
        """Nothing: the cursors are plain ones."""
        return contextlib.nullcontext()

    def lend(self, raw: object) -> None:
        """Nothing: another connection need not wait for the user's."""

    def store_id(self, connection: Handle) -> str:
        """Read the store's identity."""
        return str(calls.one(connection, self._sql(sql.STORE_ID))[0])

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
        """Take the server's own snapshot: nothing is drawn, registered or written."""
        origin = self._origin(connection)
        known, cell = self._excluded, _NO_CELL if first is None else _packed(first)
        # Behind a pooler a server may crash and recover unseen, and give numbers anew.
        if known.origin != origin or not may_prepare(calls.raw(connection)):
            known = ExcludedIds(origin)
        answer, moment, now_known = self._ask_snapshot(connection, known, cell)
        if now_known is None:
            answer, moment, now_known = self._ask_snapshot(connection, ExcludedIds(origin), cell)
        assert now_known is not None
        self._excluded = now_known
        # Before a mark was recorded, all ids below it had ended; the horizon is such a mark.
        low, now = _number(answer(0, 0)), _number(answer(0, 2))
        snapshot = ServerSnapshot(moment.xmax, moment.xip, now_known.ids, low, origin)
        found = None
        if first is not None:
            found = _version(answer(0, 7), answer(0, 8))
            if found[0] is not None and snapshot.excludes(found[0]):
                found = self.read_cell(connection, snapshot, *first)
        return Begun(snapshot, now, None, found)

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

    def start(
        self,
        connection: Handle,
        *,
        kind: Kind,
        request: UUID,
        timeout_ms: int,
        client: str,
        first: Cell | None = None,
        load: int | None = None,
    ) -> tuple[int, tuple[int, ...], int, Version | None]:
        """Draw an id, register it, list the ids in progress and read the first cell, in one call."""
        registration = registration_of(kind, has_id=True)
        arguments = (kind, registration, registration == "row", request, timeout_ms, client)
        if load is not None:
            row = calls.one(connection, self._start_load, (*arguments[1:], load))
        else:
            row = calls.one(connection, self._start, (*arguments, *(first or (None, None, None))))
        tx, excluded, deadline, version, value = row
        return tx, tuple(excluded), deadline, None if first is None else (version, value)

    def checkpoint(self, connection: Handle, transaction: int) -> int:
        """Add a second active row; commit, abort and expiry take all rows of a transaction."""
        pointer = int(calls.one(connection, self._sql(sql.CHECKPOINT), (transaction,))[0])
        calls.run(connection, self._sql(sql.MAKE_DURABLE), (transaction,))  # after the gate has been released
        return pointer

    def take_snapshot(self, connection: Handle) -> Snapshot:
        """Read the last id under the gate, then the ids in progress."""
        read_pointer, excluded = calls.one(connection, self._sql(sql.TAKE_SNAPSHOT))
        return Snapshot(read_pointer, tuple(excluded))

    def read_cell(self, connection: Handle, snapshot: AnySnapshot, table: int, row: bytes, column: bytes) -> Version:
        """Read the newest visible version, and the horizon in the same statement."""
        cell = (BIGINT.pack(table), row, column)
        if isinstance(snapshot, ServerSnapshot):
            snapshot.require_origin(self._origin(connection))
            seen = (BIGINT.pack(snapshot.xmax), BigintArray.of(snapshot.xip).sent)
            answer = calls.ask(connection, self._read_cell_by_server, cell + seen)
        elif not snapshot.write_pointers:
            answer = calls.ask(connection, self._read_cell_up_to, (*cell, BIGINT.pack(snapshot.read_pointer)))
        else:
            answer = self._read_exactly(connection, snapshot, cell)
        version = answer.get_value(0, 1)
        # The excluded ids are sent only where they matter: there may be thousands.
        if version is not None and snapshot.excludes(_number(version)):
            answer = self._read_exactly(connection, snapshot, cell)
        snapshot.require_above(_number(answer.get_value(0, 0)))
        return _version(answer.get_value(0, 1), answer.get_value(0, 2))

    def _read_exactly(self, connection: Handle, snapshot: AnySnapshot, cell: tuple[bytes, bytes, bytes]) -> PGresult:
        excluded = BigintArray.of(snapshot.excluded).sent
        if isinstance(snapshot, ServerSnapshot):
            seen = (BIGINT.pack(snapshot.xmax), BigintArray.of(snapshot.xip).sent, excluded)
            return calls.ask(connection, self._read_cell_in_servers, cell + seen)
        seen = (BigintArray.of(snapshot.write_pointers).sent, BIGINT.pack(snapshot.read_pointer), excluded)
        return calls.ask(connection, self._read_cell, cell + seen)

    def read_cells(
        self, connection: Handle, snapshot: AnySnapshot, table: int, cells: Sequence[tuple[bytes, bytes]]
    ) -> list[Version]:
        """Read many cells in one statement."""
        if isinstance(snapshot, ServerSnapshot):
            snapshot.require_origin(self._origin(connection))
            seen: tuple[Any, ...] = (snapshot.xmax, BigintArray.of(snapshot.xip))
            statement = self._read_cells_by_server
        elif snapshot.write_pointers:
            statement, seen = self._read_cells, sql.of_snapshot(snapshot)
        else:
            statement, seen = self._read_cells_up_to, (snapshot.read_pointer,)
        found = self._read_versions(connection, statement, snapshot, table, cells, seen)
        if snapshot.excluded:  # not sent, as by read_cell
            hidden = [
                place for place, (version, _) in enumerate(found) if version is not None and snapshot.excludes(version)
            ]
            if hidden:
                exactly = self._read_cells_exactly(connection, snapshot, table, [cells[place] for place in hidden])
                for place, one in zip(hidden, exactly, strict=True):
                    found[place] = one
        return found

    def _read_cells_exactly(
        self, connection: Handle, snapshot: AnySnapshot, table: int, cells: Sequence[tuple[bytes, bytes]]
    ) -> list[Version]:
        excluded = BigintArray.of(snapshot.excluded)
        if isinstance(snapshot, ServerSnapshot):
            seen: tuple[Any, ...] = (snapshot.xmax, BigintArray.of(snapshot.xip), excluded)
            return self._read_versions(connection, self._read_cells_in_servers, snapshot, table, cells, seen)
        seen = (BigintArray.of(snapshot.write_pointers), snapshot.read_pointer, excluded)
        return self._read_versions(connection, self._read_cells, snapshot, table, cells, seen)

    def _read_versions(
        self,
        connection: Handle,
        statement: bytes,
        snapshot: AnySnapshot,
        table: int,
        cells: Sequence[tuple[bytes, bytes]],
        seen: tuple[Any, ...],
    ) -> list[Version]:
        rows, columns = zip(*cells, strict=True)
        arguments = (ByteaArray.of(rows), ByteaArray.of(columns), table, *seen)
        found: list[Version] = [NO_VERSION] * len(cells)
        answer = calls.rows(connection, statement, arguments)
        snapshot.require_above(answer[0][0])
        for _, place, version, value in answer:
            found[place - 1] = (version, value)
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
        newest: bool = False,
    ) -> list[tuple[bytes, bytes, bytes | None]]:
        """Read the first visible versions of a span in order."""
        if isinstance(snapshot, ServerSnapshot):
            snapshot.require_origin(self._origin(connection))
        statement = sql.scan(self._s, span, snapshot, expires=expired is not None, newest=newest)
        arguments = (*sql.of_span(table, span, after, expired=expired), *sql.of_snapshot(snapshot), limit)
        found = calls.rows(connection, statement, arguments)
        snapshot.require_above(calls.one(connection, self._sql(sql.HORIZON))[0])  # read later it is no smaller
        return found

    def pointers(self, connection: Handle, transaction: int) -> tuple[int, ...]:
        """Read the active rows."""
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
        """Write rows of a long transaction early, in one call."""
        arguments = (store_id, transaction, flush, *calls.columns(writes), *calls.cells(writes.notifications), load)
        return tuple(calls.one(connection, self._sql(sql.STAGE), arguments)[0] or ())

    def hold_long(self, connection: Handle, transaction: int, queues: Sequence[int], *, store_id: str) -> None:
        """Lock the active row, shared, and the readers."""
        calls.one(connection, self._sql(sql.HOLD_LONG), (store_id, transaction, BigintArray.of(queues)))

    def end_long(self, connection: Handle, transaction: int) -> None:
        """Take the active rows away, as a commit does."""
        if calls.one(connection, self._sql(sql.END_LONG), (transaction,))[0] is None:
            raise RegistrationLost(f"transaction {transaction} has ended")

    def commit(self, connection: Handle, call: CommitCall) -> Committed:
        """Check, write and publish: one call, one round trip, one flush."""
        registration = registration_of(call.kind, has_id=call.transaction is not None)
        if call.kind == "bound":
            return self._commit_bound(connection, call, registration)
        return self._send(connection, call, registration, call.transaction)

    def _commit_bound(self, connection: Handle, call: CommitCall, registration: Registration) -> Committed:
        """Lock the keys, those of entries too, and only then draw the number of all that is written."""
        writes = call.writes
        keys = sorted({*writes.keys, *(entry_key(queue, key) for queue, _, key, _ in writes.entries)})
        calls.one(connection, self._sql(sql.LOCK_KEYS), (ByteaArray.of(keys),))
        # Its lock belongs to the user's SQL transaction.
        return self._send(connection, call, registration, self.draw(connection))

    def _send(
        self, connection: Handle, call: CommitCall, registration: Registration, transaction: int | None
    ) -> Committed:
        snapshot, writes = call.snapshot, call.writes
        servers = snapshot if isinstance(snapshot, ServerSnapshot) else None
        if servers is not None:
            servers.require_origin(self._origin(connection))
        # Where the server's snapshot decides, excluded ids matter to notifications alone.
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
            return Committed(_number(calls.ask(connection, self._commit, values).get_value(0, 0)))
        except AlreadyCommitted as error:
            raise AlreadyCommitted(call.idempotency_key or "", None) from error.__cause__

    def abort(
        self, connection: Handle, *, kind: Kind, transaction: int, kept: Sequence[int] = (), left_to: str = ""
    ) -> None:
        """Free the registration and delete the staged rows."""
        registration = registration_of(kind, has_id=True)
        if registration == "transaction":
            return  # the lock goes with the user's SQL transaction
        with self._apart(connection) as apart:
            invalid = (BigintArray.of(kept), left_to) if kept else (None, None)
            calls.one(apart, self._abort, (registration, transaction, *invalid))

    def decide(self, connection: Handle, request: UUID) -> Outcome:
        """Insert a refusal unless the request has an outcome; waits for a commit in flight."""
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
        """Read in binary form: as text, keys and values would travel as hexadecimal digits."""
        arguments = [queue, layout, first, end, snapshot.read_pointer, BigintArray.of(snapshot.excluded)]
        if after is None:
            return calls.rows(connection, self._sql(sql.ENTRIES), [*arguments, rows])
        return calls.rows(connection, self._sql(sql.ENTRIES_AFTER), [*arguments, after[0], *after, rows])

    def send_hints(self, raw: object, channels: Collection[Channel]) -> bool:
        """Notify those that listen, as far as a lock shows that somebody does."""
        assert isinstance(raw, BoundedConnection)
        names = [channel.name for channel in channels]
        first, second = ([channel.locks[i] for channel in channels] for i in (0, 1))
        try:
            found = raw.execute(sql.SEND_HINTS, (names, first, second)).fetchone()
        except (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFunction):
            self.has_hints = False  # an engine that speaks the protocol, and lacks these
            return False
        assert found is not None
        return bool(found[0])

    def listen(self, raw: object, channels: Collection[Channel]) -> Listener | None:
        """Listen on a session of its own, which a pooler does not give."""
        assert isinstance(raw, BoundedConnection)
        if not may_prepare(raw):
            raw.close()
            return None
        try:
            return HintListener.begin(raw, channels)
        except (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFunction):
            self.has_hints = False
            raw.close()
            return None

    def is_untidy(self, connection: Handle, *, removed: int, after: int) -> bool:
        """Ask the server how many entries are dead.

        Its count is some seconds late: with the caller's own rows in it, the vacuum only comes earlier.
        """
        return removed + int(calls.one(connection, self._sql(sql.DEAD_ENTRIES))[0]) > after

    def tidy_entries(self, connection: Handle) -> None:
        """Vacuum the entries; without the owner's rights the server only warns."""
        calls.run(connection, self._sql(sql.VACUUM_ENTRIES))

    def shrink_log(self, connection: Handle) -> int:
        """Nothing: the server keeps its log."""
        return 0

    def back_up(self, target: Path, on_progress: Callable[[int, int], None]) -> int:
        """Refuse: the server's tools know the rest of the database, too."""
        raise InvalidArgument(
            "a store on PostgreSQL is backed up with its database, by pg_basebackup or pg_dump",
            hint="docs/backups.md says under 'Backups' what a backup needs",
        )

    def expire(self, connection: Handle) -> Swept:
        """Make transactions past their deadline invalid; a commit in flight keeps its row."""
        return Swept(*calls.one(connection, self._sql(sql.EXPIRE)))

    def prune(self, connection: Handle, *, limit: int) -> Swept:
        """Delete the rows of invalid transactions and forget their ids, and old changes of the ids."""
        swept = Swept(*calls.one(connection, self._sql(sql.PRUNE), (limit,)))
        calls.run(connection, self._sql(sql.FORGET_CHANGES), (MOST_CHANGES,))
        return swept


def _packed(cell: Cell) -> tuple[bytes, bytes, bytes]:
    """Give a cell as an argument of a prepared statement."""
    return (BIGINT.pack(cell[0]), cell[1], cell[2])


def _number(sent: Any) -> int:
    """Read a ``bigint`` of an answer."""
    return int.from_bytes(sent, signed=True)


def _version(number: bytes | None, value: bytes | None) -> Version:
    """Read the version of a cell in an answer."""
    return NO_VERSION if number is None else (_number(number), value)
