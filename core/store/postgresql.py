"""The store on PostgreSQL: one function call per step, ids registered by advisory locks."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any, ClassVar
from uuid import UUID

import psycopg
import sqlalchemy as sa
from psycopg.rows import tuple_row

from export_queue.core.errors import (
    AlreadyCommitted,
    CommitRefused,
    ConfigurationError,
    ExportQueueError,
    InvalidArgument,
    RegistrationLost,
    SnapshotTooOld,
    StoreUnavailable,
    TransactionTimeout,
)
from export_queue.core.store.bounded import CLIENT_DEFAULTS, bound_connections, limited
from export_queue.core.store.conflict_keys import conflict_error
from export_queue.core.store.protocol import CommitCall, Committed, Handle, Kind, Outcome, Span, Started, View, Writes

_READ_CELL = """
    select s.horizon, c.version, c.value
    from {s}.xq_store s left join (
        select version, value from {s}.xq_cell
        where table_number = %b and row_key = %b and column_key = %b
          and (version = any(%s::bigint[]) or (version <= %b and version <> all(%s::bigint[])))
        order by version desc limit 1) c on true
"""
_VISIBLE = "(version = any(%s::bigint[]) or (version <= %b and version <> all(%s::bigint[])))"
_READ_CELLS = (
    """
    select (select horizon from {s}.xq_store), w.r, w.k, c.version, c.value
    from unnest(%b::bytea[], %b::bytea[]) as w(r, k)
    left join lateral (
        select version, value from {s}.xq_cell
        where table_number = %b and row_key = w.r and column_key = w.k and """
    + _VISIBLE
    + """
        order by version desc limit 1) c on true
"""
)
_SCAN = (
    """
    select (select horizon from {s}.xq_store), c.row_key, c.column_key, c.version, c.value
    from (select 1) one left join (
        select distinct on (row_key, column_key) row_key, column_key, version, value from {s}.xq_cell
        where table_number = %b and row_key >= %b and (%b::bytea is null or row_key < %b)
          and (%b::bytea is null or (row_key, column_key) > (%b, %b))
          and (%b or column_key = any(%b::bytea[])) and """
    + _VISIBLE
    + """
        order by row_key, column_key, version desc limit %b) c on true
"""
)
_WRITES = ", ".join(["%b::bytea[]", "%s::int[]"] + ["%b::bytea[]"] * 3 + ["%s::int[]"] * 3 + ["%b::bytea[]"] * 2)
_NOTES = ", ".join(["%s::int[]", "%b::bytea[]", "%b::bytea[]"] * 2)
_COMMIT = "select {s}.xq_commit_v1(%b, %s, %b, %b, %s::bigint[], %b, %b, %s, %b, %s, " + _WRITES + ", " + _NOTES + ")"
_STAGE = "select {s}.xq_stage_v1(%b, " + _WRITES + ", %s::int[], %b::bytea[], %b::bytea[])"


def open_engine(url: sa.URL, schema: str) -> sa.Engine:
    """Make an engine on psycopg 3 whose connections begin no SQL transaction by themselves."""
    engine = sa.create_engine(
        url.set(drivername="postgresql+psycopg"),
        isolation_level="AUTOCOMMIT",
        connect_args={name: url.query.get(name, value) for name, value in CLIENT_DEFAULTS.items()},
        pool_size=8,
        max_overflow=56,
        pool_pre_ping=False,
        pool_reset_on_return=None,
    )
    bound_connections(engine)
    return engine.execution_options(schema_translate_map={None: schema})


class PostgresDialect:
    """Transaction steps in PostgreSQL; the functions stand in ``functions.sql``."""

    name = "postgresql"
    driver_error: ClassVar[type[Exception]] = psycopg.Error

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._s = '"' + schema.replace('"', '""') + '"'
        self._mask: int | None = None
        self._read_cell = _READ_CELL.format(s=self._s)
        self._read_cells = _READ_CELLS.format(s=self._s)
        self._scan = _SCAN.format(s=self._s)
        self._commit = _COMMIT.format(s=self._s)
        self._stage = _STAGE.format(s=self._s)

    def is_missing_table(self, error: BaseException) -> bool:
        """Tell whether the error says that the store's schema, tables or functions are not there."""
        return getattr(error, "sqlstate", None) in ("42P01", "3F000", "42883") and "xq_" in str(error)

    def is_transient(self, error: BaseException) -> bool:
        """Tell whether trying again may help: connection, resources, operator, deadlock, serialization."""
        if not isinstance(error, psycopg.Error):
            return False
        state = error.sqlstate
        if state is None:
            return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
        return state[:2] in ("08", "53", "57", "40", "55", "58")

    def now(self, connection: Handle) -> int:
        """Read the server's clock."""
        return int(self._one(connection, f"select {self._s}.xq_now_v1()")[0])

    def explain(self, error: BaseException, url: str) -> StoreUnavailable | None:
        """Name the database."""
        return StoreUnavailable(f"store {url}: {str(error).strip()}") if self.is_transient(error) else None

    def limited(self, connection: Handle, seconds: float | None) -> contextlib.AbstractContextManager[None]:
        """Give each answer a time limit."""
        return limited(_raw(connection), seconds)

    @contextlib.contextmanager
    def transaction(self, connection: Handle, *, durable: bool = True) -> Iterator[None]:
        """Open one READ COMMITTED transaction."""
        raw = _raw(connection)
        raw.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        with raw.transaction():
            yield

    def create(self, connection: Handle) -> None:
        """Create the id source and the functions."""
        raw = _raw(connection)
        raw.execute(f"create sequence if not exists {self._s}.xq_id as bigint minvalue 0 start 1".encode())
        text = (files("export_queue.core.store") / "functions.sql").read_text("utf-8")
        raw.execute(text.replace("{s}", self._s).encode())

    def set_floor(self, connection: Handle, floor: int) -> None:
        """Make all ids to come greater than a number."""
        _raw(connection).execute(
            f"select setval('{self._s}.xq_id', "
            f"greatest(coalesce(pg_sequence_last_value('{self._s}.xq_id'), 0), %s))".encode(),
            (floor,),
        )

    def _mask_of(self, connection: Handle) -> int:
        if self._mask is None:
            self._mask = int(self._one(connection, f"select mask from {self._s}.xq_store")[0])
        return self._mask

    def _one(self, connection: Handle, statement: str, arguments: Sequence[Any] = ()) -> tuple[Any, ...]:
        with self._refusals(), _raw(connection).cursor(binary=True, row_factory=tuple_row) as cursor:
            row = cursor.execute(statement.encode(), arguments).fetchone()
        assert row is not None
        return row

    def draw(self, connection: Handle) -> int:
        """Draw a number from the id source; nothing stays registered after the SQL transaction."""
        return int(self._one(connection, f"select {self._s}.xq_draw_v1(%b, false)", (self._mask_of(connection),))[0])

    def check_bound(self, raw: object) -> None:
        """Check a driver's own connection."""
        if not isinstance(raw, psycopg.Connection):
            raise InvalidArgument(
                f"expected a connection of psycopg 3 to the store's database, found {type(raw).__name__}"
            )
        if raw.autocommit and raw.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            raise InvalidArgument("connection: expected an open SQL transaction, found autocommit")

    def store_id(self, connection: Handle) -> str:
        """Read the store's identity."""
        return str(self._one(connection, f"select store_id from {self._s}.xq_store")[0])

    def start(self, connection: Handle, *, kind: Kind, request: UUID, timeout_ms: int) -> Started:
        """Draw an id, register it and list what is in progress, in one call."""
        try:
            own, excluded, deadline = self._one(
                connection,
                f"select id, excluded, deadline_ms from {self._s}.xq_start_v1(%b, %s, %b, %b)",
                (self._mask_of(connection), kind, request, timeout_ms),
            )
        except BaseException:
            # A cancel may hit after the id was locked; the session must not keep it in progress.
            if isinstance(connection, sa.Connection):
                connection.invalidate()
            raise
        return Started(own, tuple(excluded), deadline)

    def observe(self, connection: Handle) -> View:
        """Read the id source under the gate, then what is in progress."""
        read_pointer, excluded = self._one(
            connection,
            f"select read_pointer, excluded from {self._s}.xq_observe_v1(%b)",
            (self._mask_of(connection),),
        )
        return View(read_pointer, tuple(excluded))

    def read_cell(
        self, connection: Handle, view: View, table: int, row: bytes, column: bytes
    ) -> tuple[int | None, bytes | None]:
        """Read the newest visible version, and the horizon in the same statement."""
        horizon, version, value = self._one(
            connection,
            self._read_cell,
            (table, row, column, _ids(view.own), view.read_pointer, _ids(view.excluded)),
        )
        if view.low < horizon:
            raise SnapshotTooOld(f"snapshot reaches down to {view.low}, clean-up has reached {horizon}")
        return version, value

    def read_cells(
        self, connection: Handle, view: View, table: int, cells: Sequence[tuple[bytes, bytes]]
    ) -> list[tuple[bytes, bytes, int, bytes | None]]:
        """Read many cells in one statement."""
        rows, columns = zip(*cells, strict=True)
        seen = (_ids(view.own), view.read_pointer, _ids(view.excluded))
        return self._cells(connection, view, self._read_cells, (list(rows), list(columns), table, *seen))

    def scan_cells(
        self, connection: Handle, view: View, table: int, span: Span, *, limit: int
    ) -> list[tuple[bytes, bytes, int, bytes | None]]:
        """Read the first cells of a span in one statement."""
        after_row, after_column = span.after or (None, None)
        first = span.first_row if after_row is None else after_row
        seen = (_ids(view.own), view.read_pointer, _ids(view.excluded))
        arguments = (table, first, span.end_row, span.end_row, after_row, after_row, after_column)
        return self._cells(
            connection, view, self._scan, (*arguments, not span.columns, list(span.columns), *seen, limit)
        )

    def _cells(
        self, connection: Handle, view: View, statement: str, arguments: Sequence[Any]
    ) -> list[tuple[bytes, bytes, int, bytes | None]]:
        with self._refusals(), _raw(connection).cursor(binary=True, row_factory=tuple_row) as cursor:
            rows = cursor.execute(statement.encode(), arguments).fetchall()
        if rows and view.low < rows[0][0]:
            raise SnapshotTooOld(f"snapshot reaches down to {view.low}, clean-up has reached {rows[0][0]}")
        return [(row, column, version, value) for _, row, column, version, value in rows if version is not None]

    def require_active(self, connection: Handle, transaction: int) -> None:
        """Look for the active row."""
        statement = f"select exists (select 1 from {self._s}.xq_active where id = %b)"
        if not self._one(connection, statement, (transaction,))[0]:
            raise RegistrationLost(f"transaction {transaction} has ended")

    def stage(self, connection: Handle, transaction: int, writes: Writes) -> None:
        """Write rows of a long transaction early, in one call."""
        self._one(connection, self._stage, (transaction, *_columns(writes), *_cells_of(writes.notes)))

    def commit(self, connection: Handle, call: CommitCall) -> Committed:
        """Check, write and publish: one call, one round trip, one flush."""
        view = call.view
        arguments = (
            self._mask_of(connection),
            call.kind,
            call.request,
            view.own[0] if view else None,
            _ids(view.excluded if view else ()),
            view.low if view else None,
            call.deadline_ms,
            call.token,
            call.generation,
            call.result,
            *_columns(call.writes),
            *_cells_of(call.writes.notes),
            *_cells_of(call.writes.acknowledged),
        )
        try:
            return Committed(int(self._one(connection, self._commit, arguments)[0]))
        except AlreadyCommitted as error:
            raise AlreadyCommitted(call.token or "", None) from error.__cause__

    def abort(self, connection: Handle, *, kind: Kind, transaction: int) -> None:
        """Free the registration and delete what was staged."""
        if kind == "bound":
            return  # registered by a lock of the user's SQL transaction, which goes with it
        self._one(
            connection,
            f"select {self._s}.xq_abort_v1(%b, %s, %b)",
            (self._mask_of(connection), kind, transaction),
        )

    def decide(self, connection: Handle, request: UUID) -> Outcome:
        """Insert a refusal unless the request has an outcome; waits for a commit in flight."""
        raw = _raw(connection)
        raw.execute(
            f"insert into {self._s}.xq_outcome values (%s, 'refused', null, {self._s}.xq_now_v1()) "
            "on conflict do nothing".encode(),
            (request,),
        )
        status, own = self._one(
            connection, f"select status, id from {self._s}.xq_outcome where request = %b", (request,)
        )
        return Outcome(status, own)

    def tidy_entries(self, connection: Handle) -> None:
        """Vacuum the entries; who does not own the table gets a warning that nobody reads."""
        _raw(connection).execute(f"vacuum (index_cleanup on) {self._s}.xq_entry".encode())

    def sweep(self, connection: Handle) -> int:
        """Make transactions past their deadline invalid; a commit in flight keeps its row."""
        return int(self._one(connection, f"select {self._s}.xq_sweep_v1()")[0])

    def prune(self, connection: Handle, *, limit: int) -> int:
        """Delete what invalid transactions left and forget them."""
        return int(self._one(connection, f"select {self._s}.xq_prune_v1(%b)", (limit,))[0])

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            refusal = _refusal(error)
            if refusal is None:
                if self.is_transient(error):
                    raise StoreUnavailable(f"the store's database: {str(error).strip()}") from error
                raise
            raise refusal from error


def _refusal(error: psycopg.Error) -> ExportQueueError | None:
    """Turn an error that the functions raise into one of ours."""
    match error.sqlstate:
        case "XQ001":
            found = json.loads(error.diag.message_detail or "{}")
            return conflict_error(found["own"], bytes.fromhex(found["key"]), found["writer"])
        case "XQ002":
            return RegistrationLost(f"the transaction is no longer registered: {error.diag.message_primary}")
        case "XQ003":
            return TransactionTimeout("the transaction's deadline has passed, by the store's clock")
        case "XQ004":
            return CommitRefused("the commit was refused before, and stays refused")
        case "XQ005":
            return AlreadyCommitted("", None)
        case "XQ006":
            return SnapshotTooOld("clean-up has overtaken the snapshot")
        case "XQ007":
            return ConfigurationError(
                f"transactions need READ COMMITTED, found {error.diag.message_primary}",
                hint="remove default_transaction_isolation from the role, the database or the server",
            )
        case _:
            return None


def _raw(connection: Handle) -> psycopg.Connection[Any]:
    raw = connection.connection.driver_connection if isinstance(connection, sa.Connection) else connection
    assert isinstance(raw, psycopg.Connection)
    return raw


def _ids(ids: Sequence[int]) -> str:
    # As text: psycopg gives arrays of small and large numbers different types, and so different prepared statements.
    return "{" + ",".join(map(str, ids)) + "}"


def _cells_of(notes: Sequence[tuple[int, bytes, bytes]]) -> tuple[Any, ...]:
    tables, rows, columns = list(zip(*notes, strict=True)) or ((), (), ())
    return _ids(tables), list(rows), list(columns)


def _columns(writes: Writes) -> tuple[Any, ...]:
    cells, entries = list(zip(*writes.cells, strict=True)), list(zip(*writes.entries, strict=True))
    tables, rows, columns, values = cells or ((), (), (), ())
    queues, layouts, buckets, keys, payloads = entries or ((), (), (), (), ())
    return (
        list(writes.keys),
        _ids(tables),
        list(rows),
        list(columns),
        list(values),
        _ids(queues),
        _ids(layouts),
        _ids(buckets),
        list(keys),
        list(payloads),
    )
