"""The SQL sink: a table per collection, a rank and a tombstone mark in each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, inspect
from sqlalchemy.exc import DBAPIError, SQLAlchemyError, StatementError

from export_queue.core.errors import (
    ExportQueueError,
    SinkConfigurationError,
    SinkError,
    SinkLostData,
    SinkRefused,
    SinkUnavailable,
)
from export_queue.core.retry import Retry
from export_queue.core.sinks.batch import Reasons, apply_batch, isolate, refuse_collections, refuse_seqs, retarget
from export_queue.core.sinks.claims import Claim, ClaimedSink, Guard, check_guard, unclaimed_error
from export_queue.core.sinks.control import check_owner, stale_rank
from export_queue.core.sinks.naming import first_collection, is_fixed
from export_queue.core.sinks.operations import Operations
from export_queue.core.sinks.protocol import ApplyResult, Capabilities, Rejection
from export_queue.core.sinks.sql.claims import UNIT_TABLE, claim_units, create_units, write_under
from export_queue.core.sinks.sql.control_table import admit, held_floor, raise_floor, read_control
from export_queue.core.sinks.sql.ddl import missing_ddl
from export_queue.core.sinks.sql.dialects import (
    KEPT_OUT,
    Clash,
    Password,
    Poison,
    SchemaChanged,
    TryAgain,
    open_dialect,
)
from export_queue.core.sinks.sql.fitting import measured, misfits
from export_queue.core.sinks.sql.marks import (
    NoMark,
    check_losses,
    check_mark,
    forget,
    found_mark,
    known_tables,
    leave_mark,
    note_rows,
    note_without_mark,
    prove,
    read_record,
    require_table,
)
from export_queue.core.sinks.sql.rows import Rows, rows_of
from export_queue.core.sinks.sql.statements import CONTROL_TABLE
from export_queue.core.sinks.sql.tables import (
    Contents,
    Key,
    Table,
    check_template,
    fill_collections,
    split_schema,
)
from export_queue.core.sinks.sql.tombstones import sweep_table, tables_of

RETRY = Retry(attempts=5, first_pause=0.02, longest_pause=0.2)
"""How a transaction is repeated that gave way to another one."""
DDL_RETRY = Retry(attempts=6, first_pause=0.1, longest_pause=1.0)
"""How a change of tables is repeated that did not get its locks: drains go on in the pauses."""
_Result = TypeVar("_Result")
_WriteRows = Callable[[Connection, Table, Rows], int]
"""Writes rows in an open transaction, and counts those that were written."""


class _NotCreated(Exception):
    """A table could not be created; another process may have created it at the same moment."""

    def __init__(self, reason: Exception, commands: Sequence[str]) -> None:
        super().__init__(reason.message if isinstance(reason, ExportQueueError) else str(reason))
        self.commands = commands


class SqlSink:
    """Tables of a database.

    A table has the record's key, the document's column or columns, ``_rank`` and ``_deleted``. A
    deleted record stays as a row without a document; the view ``<table>_live`` hides such rows.
    With ``guard="fence"`` a table has neither of these two, nor a view, and a deleted row is gone.

    :param url: SQLAlchemy's URL, such as ``sqlite:///path``, ``postgresql://user@host/database``,
        ``mysql://user@host/database``; any other dialect is written to with portable statements.
    :param password: the password, or a callable that returns it, asked at each new connection.
    :param table: template of the table names, from ``$collection``; a schema may stand before it,
        ``sales.$collection``.
    :param key: the columns of the primary key: a name, several, or names and types (``text``, ``integer``,
        ``uuid``, ``date``). With several, ids are JSON arrays of their values.
    :param columns: fields of the document that become columns: names, or names and types (``text``,
        ``integer``, ``real``, ``numeric``, ``boolean``, ``json``, ``timestamp``). Other fields are not kept.
    :param document: without ``columns`` the document is one column: its type, ``text`` or ``json``, or its
        name and type.
    :param create_tables: whether missing tables, views and the control table are created.
    :param timeout: seconds to wait for locks and for an answer.
    :param guard: what keeps late deliveries out: ``seq``, the rank of each row, or ``fence``, that of the drain.
    :raises SinkConfigurationError: an option is not valid.
    """

    def __init__(
        self,
        url: str,
        password: Password = None,
        table: str = "$collection",
        key: str | Sequence[str] | Mapping[str, str] = "id",
        columns: Sequence[str] | Mapping[str, str] | None = None,
        document: str | Mapping[str, str] = "text",
        create_tables: bool = True,
        timeout: float = 60.0,
        guard: Guard = "seq",
    ) -> None:
        check_guard(guard)
        if not isinstance(table, str):
            raise SinkConfigurationError(
                f"table: expected a template such as $collection, found {table!r}",
                hint="where a DAG renders templates as native objects, digits alone become a number: give the name a"
                " prefix, or the schema before it",
            )
        for name, given in (("key", key), ("columns", columns)):
            if not (given is None or isinstance(given, str | Sequence | Mapping)):
                raise SinkConfigurationError(f"{name}: expected names, or names and types, found {given!r}")
        self._schema, self._template = split_schema(table)
        self._template = check_template(self._template)
        self._key = Key.of(key)
        self._contents = Contents.of(columns, document, self._key)
        self._create = create_tables
        self._is_fenced = guard == "fence"
        self._dialect = open_dialect(url, password, timeout)
        self._engine = self._dialect.engine()
        self._ready: set[str] = set()
        self._queue_id: str | None = None
        """The queue whose drain is at work; None where a sink is used without a drain."""
        self._marks: dict[str, int] = {}
        """Of the tables that are proven, the rank of each one's mark; 0 where it has none."""
        self._tables: dict[str, Table] = {}
        self._folds: bool | None = None
        self._retry = RETRY

    @property
    def capabilities(self) -> Capabilities:
        """Batch sizes and abilities."""
        return replace(self._dialect.capabilities, fenced=self._is_fenced)

    def admit(self, *, queue_id: str, store_id: str, fence: int, shown: int = 0, readmit: bool = False) -> None:
        """Check the database and remember which store feeds it; see :class:`~export_queue.core.sinks.Sink`."""
        self._marks.clear()  # each drain proves the tables anew
        self._queue_id = queue_id
        if shown or readmit:  # nothing is created where all is lost, nor forgotten for a store that is refused
            found = self._ask(lambda connection: read_control(connection, schema=self._schema, queue_id=queue_id))
            check_owner(found, queue_id=queue_id, store_id=store_id, fence=fence, sink=str(self), shown=shown)
        self._prepare_control()
        if readmit:
            self._forget_lost(fence)
        if self._is_fenced:
            self._ensure(UNIT_TABLE, lambda connection: [create_units(connection, self._schema)])
        if not readmit:
            self._prove_first(queue_id)
        self._ask(
            lambda connection: admit(
                connection,
                schema=self._schema,
                queue_id=queue_id,
                store_id=store_id,
                fence=fence,
                sink=str(self),
                shown=shown,
                readmit=readmit,
                locks_reads=self._dialect.locks_reads,
            )
        )
        if readmit:
            self._prove_first(queue_id)

    def binding(self) -> Mapping[str, Any]:
        """Tables, columns and guard; see :class:`~export_queue.core.sinks.BoundSink`."""
        found = {column.name: column.type for column in self._contents.columns}
        return {
            "kind": "sql",
            "table": (f"{self._schema.replace('$', '$$')}." if self._schema else "") + self._template,
            "key": {column.name: column.type for column in self._key.columns},
            "columns": None if self._contents.whole else dict(sorted(found.items())),
            "document": found if self._contents.whole else "text",
            "guard": "fence" if self._is_fenced else "seq",
        }

    def continue_drain(self, queue_id: str) -> None:
        """Take the batches of a queue; see :class:`~export_queue.core.sinks.ContinuingSink`."""
        self._queue_id = queue_id

    def apply(self, operations: Operations) -> ApplyResult:
        """Apply a batch; see :class:`~export_queue.core.sinks.Sink`."""
        if self._is_fenced:
            raise unclaimed_error(self)
        return self._apply(operations, self._upsert_above_floor)

    def claim(self, claims: Sequence[Claim]) -> Sequence[ClaimedSink]:
        """Take units over; see :class:`~export_queue.core.sinks.FencedSink`."""
        self._ask(lambda connection: claim_units(connection, self._schema, claims, self))
        return [self.under(claim) for claim in claims]

    def under(self, claim: Claim) -> ClaimedSink:
        """Return the sink of a claim; see :class:`~export_queue.core.sinks.FencedSink`."""

        def write(connection: Connection, table: Table, rows: Rows) -> int:
            return write_under(connection, self._dialect, table, rows, schema=self._schema, claim=claim, sink=self)

        return ClaimedSink(self, lambda operations: self._apply(operations, write))

    def _apply(self, operations: Operations, write_rows: _WriteRows) -> ApplyResult:
        tables, refused = fill_collections(self._template, set(operations.collections), fold=self._folds_names())
        reasons: Reasons = {}
        refuse_collections(operations, reasons, refused, queue_id=self._queue_id)
        refuse_seqs(operations, reasons)
        return apply_batch(retarget(operations, tables), reasons=reasons, write=partial(self._write, write_rows))

    def sweep(self, *, store_id: str, floor: int) -> int:
        """Remove tombstones; see :class:`~export_queue.core.sinks.SweepableSink`."""
        self._prepare_control()
        raised = self._ask(
            lambda connection: raise_floor(
                connection, schema=self._schema, store_id=store_id, floor=floor, sink=str(self)
            )
        )
        keys = [column.name for column in self._key.columns]
        names = self._ask(
            lambda connection: tables_of(connection, schema=self._schema, template=self._template, keys=keys)
        )
        return sum(map(partial(self._sweep_table, keys=keys, floor=raised), names))

    def _sweep_table(self, name: str, *, keys: Sequence[str], floor: int) -> int:
        removed = sweep_table(self._ask, schema=self._schema, name=name, keys=keys, floor=floor)
        record = self._ask(lambda connection: read_record(connection, self._schema, name))
        if removed and record is not None and not record.mark:
            self._ask(lambda connection: note_rows(connection, self._named(name), deleted=True))
        return removed

    def create(self, collection: str) -> None:
        """Create the table of a collection, and its view, if the table is missing.

        :param collection: the collection.
        """
        self._prepare(self._table(collection).name)

    def ddl(self, *collections: str) -> str:
        """Return the statements that the sink still needs, to be run by a user with more rights.

        A table that is missing is created, one that is there gets the columns that it lacks; see
        :class:`~export_queue.core.sinks.PreparableSink`.

        :param collections: whose tables are wanted; the control table comes first.
        """
        tables = [self._table(collection) for collection in collections]
        return _script(self._ask(lambda connection: self._missing(connection, tables)))

    def run_ddl(self, *collections: str) -> str:
        """Run the statements that the sink still needs, beside running drains.

        :param collections: whose tables are wanted.
        :returns: the statements.
        :raises SinkConfigurationError: a table cannot be a sink with these columns either.
        """
        tables = [self._table(collection) for collection in collections]
        printed = self.ddl(*collections)

        def attempt() -> None:
            with self._transaction() as connection:
                self._dialect.limit_ddl(connection)
                for command in self._missing(connection, tables):
                    connection.exec_driver_sql(command.replace("%", "%%"))

        try:
            # also after a refusal: another process may have run the same at this moment
            DDL_RETRY.call(attempt, worth_repeating=lambda error: isinstance(error, Poison | TryAgain | SinkError))
        except (Poison, TryAgain) as error:
            kind = SinkUnavailable if _gave_way(error) else SinkRefused
            raise kind(f"{self}: {error}") from error
        for table in tables:
            problems, commands, _ = self._ask(partial(self._examine, table=table))
            self._refuse_misfits(table, problems, commands)
        return printed

    def _missing(self, connection: Connection, tables: Sequence[Table]) -> list[str]:
        return missing_ddl(connection, self._dialect, tables, schema=self._schema, is_fenced=self._is_fenced)

    def probe(self) -> str:
        """Reach the database once, as a drain would, and name the server that answered; nothing is created.

        :raises SinkUnavailable: it does not answer.
        :raises SinkRefused: it refuses user or password.
        """
        version = self._ask(lambda connection: connection.dialect.server_version_info or ())
        return f"{self}, version {'.'.join(map(str, version))}"

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _write(self, write_rows: _WriteRows, operations: Operations) -> ApplyResult:
        """Write operations on distinct records, in one transaction a table."""
        by_table = _by_table(operations.collections)
        written, rejected = 0, dict[int, str]()
        for name, positions in sorted(by_table.items()):
            part = operations if len(by_table) == 1 else operations.take(positions)
            count, unfit = self._write_table(write_rows, name, part)
            written += count
            rejected |= {positions[i]: reason for i, reason in unfit.items()}
        return ApplyResult(
            written,
            len(operations) - written - len(rejected),
            tuple(Rejection(*pair) for pair in sorted(rejected.items())),
        )

    def _write_table(self, write_rows: _WriteRows, name: str, operations: Operations) -> tuple[int, Reasons]:
        """Write operations of one table, which is looked at again where it was altered since it was looked at.

        :returns: how many were written, and why the others can never be, by position.
        """

        def attempt() -> tuple[int, Reasons]:
            try:
                table = self._prepare(name)
                rows, unfit = rows_of(operations, table.contents, self._dialect.limits, self._key)
                written, poison = self._write_rows(write_rows, table, rows)
            except SchemaChanged:
                self._tables.pop(name, None)
                raise
            except SinkRefused:
                if self._marks.pop(name, None) is not None:
                    self._prepare(name)  # says so if the table was lost just now
                raise
            return written, unfit | poison

        try:
            return self._retry.call(attempt, worth_repeating=lambda error: isinstance(error, SchemaChanged))
        except SchemaChanged as error:
            raise SinkUnavailable(f"{self}: {error}, {self._retry.attempts} times") from None

    def _write_rows(self, write_rows: _WriteRows, table: Table, rows: Rows) -> tuple[int, Reasons]:
        """Write rows.

        :returns: how many were written, and why the others can never be, by the position of their operation.
        """
        written = 0

        def attempt(chosen: range) -> str | None:
            nonlocal written
            part = rows.part(chosen)
            try:
                written += self._run(lambda connection: write_rows(connection, table, part))
            except Poison as error:
                return str(error)
            return None

        poison = {rows.positions[i]: reason for i, reason in isolate(len(rows), attempt)}
        return written, poison

    def _upsert_above_floor(self, connection: Connection, table: Table, rows: Rows) -> int:
        """Write the rows above the floor that are newer than those in the table; until then the floor stays."""
        mark = self._marks[table.name]
        beside = [found_mark(table)] if mark else []
        with held_floor(connection, self._schema, locks_reads=self._dialect.locks_reads, beside=beside) as found:
            floor, marks = found
            if mark:
                check_mark(table, marks[0], mark, sink=str(self))
            if floor:
                rows = rows.above(stale_rank(floor))
            if not len(rows):
                return 0
            if not mark:
                note_rows(connection, table, deleted=False)
            written = self._dialect.upsert(connection, table, rows)
            # the others are stale, and must be seen to be: triggers and rules keep rows out without an error
            is_kept_out = written < len(rows) and self._dialect.held(connection, table, rows) < len(rows)
        if is_kept_out:  # not inside: where the floor was raised meanwhile, a sweep may have taken what was newer
            raise Poison(KEPT_OUT)
        return written

    def _folds_names(self) -> bool:
        if self._folds is None:
            self._folds = self._ask(self._dialect.folds_names)
        return self._folds

    def _table(self, collection: str) -> Table:
        tables, refused = fill_collections(self._template, [collection], fold=self._folds_names())
        if refused:
            raise SinkConfigurationError(refused[collection])
        return self._named(tables[collection])

    def _named(self, name: str) -> Table:
        return Table(name, self._contents, self._key, self._schema, ranked=not self._is_fenced)

    def _prove_first(self, queue_id: str) -> None:
        """Prove, before a drain reads, the table that it will write to as far as that is known by now."""
        collection = first_collection(queue_id)
        tables, _ = fill_collections(self._template, [collection], fold=self._folds_names())
        name = tables.get(collection)
        if name is None:
            return
        self._check_losses(name)
        if is_fixed(self._template) or self._ask(lambda connection: read_record(connection, self._schema, name)):
            self._prepare(name)

    def _check_losses(self, name: str) -> None:
        """Make sure that the queue has lost nothing in a table that was readmitted for another queue."""
        if (queue_id := self._queue_id) is not None:
            self._ask(
                lambda connection: check_losses(connection, self._schema, name, queue_id=queue_id, sink=str(self))
            )

    def _forget_lost(self, fence: int) -> None:
        """Forget the tables that were set up and are not there any more as they were.

        :param fence: of the queue that goes on without what they held.
        """

        def forget_lost(connection: Connection) -> None:
            for name in known_tables(connection, self._schema, template=self._template):
                record = read_record(connection, self._schema, name)
                try:
                    if record is not None:
                        prove(connection, self._named(name), record, sink=str(self))
                except SinkLostData:
                    forget(connection, self._schema, name, fence=fence)

        self._ask(forget_lost)

    def _prepare(self, name: str) -> Table:
        """Make sure, once, that a table is there and can hold the guarantees; once a drain, that it lost nothing."""
        if name in self._marks and name in self._tables:
            return self._tables[name]
        self._prepare_control()
        self._check_losses(name)
        record = self._ask(lambda connection: read_record(connection, self._schema, name))
        if record is not None:
            self._ask(lambda connection: require_table(connection, self._named(name), sink=str(self)))
        table = self._tables.get(name)
        if table is None or record is None:  # one that was there before may have been lost and readmitted
            table = self._fit(name, is_known=record is not None)
        if record is not None:
            self._ask(lambda connection: prove(connection, table, record, sink=str(self)))
        self._marks[name] = self._set_up(table) if record is None else record.mark
        return table

    def _set_up(self, table: Table) -> int:
        """Leave a mark in a table that no sink has written to yet, and note it."""
        try:
            return self._run(lambda connection: leave_mark(connection, self._dialect, table))
        except (NoMark, Poison, SinkRefused):  # a rule of the table's own forbids such a row
            self._ask(lambda connection: note_without_mark(connection, table))
            return 0

    def _fit(self, name: str, *, is_known: bool) -> Table:
        """Make sure that a table can hold the guarantees, and return it as it is found."""
        table = self._named(name)
        if not is_known:
            self._ensure(name, lambda connection: self._dialect.create_table(connection, table))
        problems, commands, fitted = self._ask(partial(self._examine, table=table))
        self._refuse_misfits(table, problems, commands)
        if self._create and table.ranked:
            # also beside a user's own table, and where the creator of the sink's table was stopped before the view
            self._ensure(table.live, lambda connection: self._dialect.create_table(connection, table)[-1:])
        self._tables[name] = fitted
        return fitted

    def _refuse_misfits(self, table: Table, problems: Sequence[str], commands: Sequence[str]) -> None:
        if problems:
            raise SinkConfigurationError(
                f"table {str(table)!r} of {self} cannot be a sink:\n  " + "\n  ".join(problems),
                hint="name another table, or run this (export-queue ddl COLLECTION --sink … --run does), "
                f"or make it like a new one:\n{_script(commands)}",
            )

    def _prepare_control(self) -> None:
        """Make sure, once, that the control table is there."""
        if CONTROL_TABLE not in self._ready:
            self._ensure(CONTROL_TABLE, lambda connection: [self._dialect.create_control(connection, self._schema)])
            self._ready.add(CONTROL_TABLE)

    def _examine(self, connection: Connection, table: Table) -> tuple[list[str], list[str], Table]:
        """Return the problems of a table, the statements that would help, and the table as it is found.

        The trial rows are rolled back.
        """
        shape = self._dialect.shape(connection, table)  # first: what changes from here on is found by the next batch
        found = misfits(connection, table)
        if found.addable:
            commands = self._dialect.add_columns(connection, table, found.addable)
        else:
            commands = self._dialect.create_table(connection, table)
        fitted = table if found.problems else replace(measured(connection, table), shape=shape)
        problems = found.problems or self._dialect.problems(connection, table)
        connection.get_transaction().rollback()  # type: ignore[union-attr]
        return problems, commands, fitted

    def _ensure(self, name: str, make: Callable[[Connection], list[str]]) -> None:
        """Create what is missing; another process may do the same at this moment."""

        def create() -> None:
            there, commands = self._ask(
                lambda connection: (inspect(connection).has_table(name, schema=self._schema), make(connection))
            )
            if there:
                return
            if not self._create:
                raise SinkRefused(f"{self} has no table {name!r}", hint=f"create it:\n{_script(commands)}")
            try:
                with self._transaction() as connection:
                    for command in commands:
                        connection.exec_driver_sql(command.replace("%", "%%"))
            except (Poison, TryAgain, SinkRefused) as error:
                raise _NotCreated(error, commands) from error

        try:
            # PostgreSQL answers a race of two CREATE … IF NOT EXISTS with one of several errors
            self._retry.call(create, worth_repeating=lambda error: isinstance(error, _NotCreated))
        except _NotCreated as failure:
            hint = f"let a user with more rights run:\n{_script(failure.commands)}"
            kind = SinkUnavailable if _gave_way(failure.__cause__) else SinkRefused
            raise kind(f"{self}: {failure}", hint=hint) from failure.__cause__

    def _ask(self, work: Callable[[Connection], _Result]) -> _Result:
        """Run a transaction that writes no rows of records."""
        try:
            return self._run(work)
        except Poison as error:
            raise SinkRefused(f"{self}: {error}") from error

    def _run(self, work: Callable[[Connection], _Result]) -> _Result:
        """Run a transaction; one that was given up for another is repeated.

        :raises Poison: the database refuses a row of it, however often it is tried.
        """

        def attempt() -> _Result:
            with self._transaction() as connection:
                return work(connection)

        try:
            return self._retry.call(attempt, worth_repeating=lambda error: isinstance(error, TryAgain))
        except Clash as error:
            raise Poison(str(error)) from error
        except TryAgain as error:
            raise SinkUnavailable(f"{self}: {self._retry.attempts} tries failed, the last: {error}") from error

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Run a transaction that writes; errors of the driver come out as ours, Poison or TryAgain."""
        try:
            with self._engine.connect() as connection, connection.begin():
                try:
                    self._dialect.begin(connection)
                    yield connection
                except (DBAPIError, self._dialect.driver_error) as error:
                    explained = self._explain(error)
                    if not isinstance(explained, Poison | TryAgain):
                        connection.invalidate()  # before the roll-back, which would fail, too, and say less
                    raise explained from error
        except (SQLAlchemyError, self._dialect.driver_error) as error:
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> Exception:
        original = error.orig if isinstance(error, DBAPIError) else error
        if isinstance(error, StatementError) and isinstance(error.orig, Exception) and original is error:
            return error.orig  # no error of the database's: of a signal's handler, which SQLAlchemy has wrapped
        if not isinstance(original, self._dialect.driver_error):
            return SinkUnavailable(f"{self}: {original}")
        return self._dialect.explain(original)

    def __str__(self) -> str:
        return self._dialect.server

    def __repr__(self) -> str:
        return f"<SqlSink {self}>"


def _gave_way(error: BaseException | None) -> bool:
    """Return whether a transaction gave way to others, so that it may succeed later."""
    return isinstance(error, TryAgain) and not isinstance(error, Clash)


def _by_table(names: Sequence[str]) -> Mapping[str, Sequence[int]]:
    """Return the positions of each table's operations."""
    if names.count(names[0]) == len(names):  # as a rule; no need to look at each
        return {names[0]: range(len(names))}
    found: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        found.setdefault(name, []).append(i)
    return found


def _script(commands: Sequence[str]) -> str:
    return "".join(f"{command};\n" for command in commands)
