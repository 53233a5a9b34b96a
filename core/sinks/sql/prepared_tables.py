"""Prepares the tables of a SQL sink: creates them, examines them, and proves that they have lost no data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sqlalchemy import Connection

from export_queue.core.errors import (
    ExportQueueError,
    SinkConfigurationError,
    SinkError,
    SinkLostData,
    SinkRefused,
    SinkUnavailable,
)
from export_queue.core.retry import Retry
from export_queue.core.sinks.naming import first_collection, is_fixed
from export_queue.core.sinks.sql.control_tables import check_control_tables
from export_queue.core.sinks.sql.database import Database, execute, gave_way
from export_queue.core.sinks.sql.ddl import (
    Missing,
    add_columns,
    create_table,
    missing_control,
    missing_ddl,
    missing_table,
    missing_view,
)
from export_queue.core.sinks.sql.dialects import Poison, TryAgain
from export_queue.core.sinks.sql.fitting import measured, misfits
from export_queue.core.sinks.sql.marks import (
    NoMark,
    check_losses,
    known_tables,
    leave_mark,
    note_loss,
    note_without_mark,
    prove,
    read_record,
    require_table,
)
from export_queue.core.sinks.sql.tables import Contents, Key, Table, fill_collections

DDL_RETRY = Retry(attempts=6, first_pause=0.1, longest_pause=1.0)
"""For a change of tables that did not get its locks; drains continue during the pauses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What all tables of a sink have in common."""

    schema: str | None
    template: str
    """Template of the tables' names."""
    key: Key
    contents: Contents
    is_fenced: bool
    """Whether the sink has the guard ``fence``: its tables have no ranks, no tombstones and no mark."""

    def table(self, name: str) -> Table:
        """Describe a table of the sink."""
        return Table(name, self.contents, self.key, self.schema, ranked=not self.is_fenced)


class PreparedTables:
    """Prepares each table once, and proves once per drain that it has lost nothing."""

    def __init__(self, database: Database, layout: Layout, *, may_create: bool) -> None:
        self._database = database
        self._layout = layout
        self._may_create = may_create
        self._has_control = False
        self._marks: dict[str, int] = {}
        self._tables: dict[str, Table] = {}
        self._folds: bool | None = None
        self.queue_id: str | None = None
        """The queue that is being drained; None outside of a drain."""

    def start_drain(self, queue_id: str) -> None:
        """Prove all tables again from now on."""
        self._marks.clear()
        self.queue_id = queue_id

    def mark(self, name: str) -> int:
        """Return the rank of a proven table's mark; 0 if it has none."""
        return self._marks[name]

    def of_collections(self, collections: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
        """Return the table's name for each collection, and for other collections why they cannot have a table."""
        if self._folds is None:
            self._folds = self._database.ask(self._database.dialect.folds_names)
        return fill_collections(self._layout.template, collections, fold=self._folds)

    def of(self, collection: str) -> Table:
        """Describe the table of a collection, or raise SinkConfigurationError if it cannot have one."""
        names, refused = self.of_collections([collection])
        if refused:
            raise SinkConfigurationError(refused[collection])
        return self._layout.table(names[collection])

    def prepare(self, name: str) -> Table:
        """Make sure that a table exists, fits and has lost nothing, and describe it as it is in the database."""
        if name in self._marks and name in self._tables:
            return self._tables[name]
        self.prepare_control()
        self._check_losses(name)
        ask, schema, sink = self._database.ask, self._layout.schema, str(self._database)
        record = ask(read_record, schema, name)
        if record is not None:
            ask(require_table, self._layout.table(name), sink=sink)
        table = self._tables.get(name)
        if table is None or record is None:  # a known table may have been lost and readmitted
            table = self._fit(name, is_known=record is not None)
        if record is not None:
            ask(prove, table, record, sink=sink)
        self._marks[name] = self._set_up(table) if record is None else record.mark
        return table

    def examine_again(self, name: str) -> None:
        """Examine an altered table before the next batch."""
        self._tables.pop(name, None)

    def prove_again(self, name: str) -> None:
        """Prove a table that refuses its rows, or raise SinkLostData if it was lost during the drain."""
        if self._marks.pop(name, None) is not None:
            self.prepare(name)

    def prepare_control(self, *, readmit: bool = False) -> None:
        """Make sure, once, that the control tables exist. Unless the sink is readmitted, a lost one is an error."""
        if self._has_control and not readmit:
            return
        self._create(partial(self._missing_control, readmit=readmit))
        self._has_control = True

    def prove_first(self, queue_id: str) -> None:
        """Before a drain reads, prove the table that it will write to, as far as it is known by then."""
        collection = first_collection(queue_id)
        name = self.of_collections([collection])[0].get(collection)
        if name is None:
            return
        self._check_losses(name)
        if is_fixed(self._layout.template) or self._database.ask(read_record, self._layout.schema, name):
            self.prepare(name)

    def forget_lost(self, fence: int) -> None:
        """Forget the tables that were lost, for the queue with this fence, which continues without their records."""
        self._database.ask(self._forget_lost, fence)

    def ddl(self, tables: Sequence[Table]) -> list[str]:
        """Return the statements that create whatever is missing for some tables."""
        return self._database.ask(self._missing, tables)

    def run_ddl(self, tables: Sequence[Table]) -> None:
        """Create whatever is missing for some tables, while drains run; refuse tables that still cannot be a sink."""
        self.change_ddl(lambda connection: execute(connection, self._missing(connection, tables)))
        for table in tables:
            self._examine(table)

    def change_ddl(self, change: Callable[[Connection], None]) -> None:
        """Change tables or views in a transaction, while drains and readers use them."""

        def attempt() -> None:
            with self._database.transaction() as connection:
                self._database.dialect.limit_ddl(connection)
                change(connection)

        try:
            # retried even after a refusal: another process may have run the same statements
            DDL_RETRY.call(attempt, worth_repeating=lambda error: isinstance(error, Poison | TryAgain | SinkError))
        except (Poison, TryAgain) as error:
            kind = SinkUnavailable if gave_way(error) else SinkRefused
            raise kind(f"{self._database}: {error}") from error

    def _missing(self, connection: Connection, tables: Sequence[Table]) -> list[str]:
        schema, is_fenced = self._layout.schema, self._layout.is_fenced
        return missing_ddl(connection, self._database.dialect, tables, schema=schema, is_fenced=is_fenced)

    def _check_losses(self, name: str) -> None:
        if (queue_id := self.queue_id) is not None:
            sink = str(self._database)
            self._database.ask(check_losses, self._layout.schema, name, queue_id=queue_id, sink=sink)

    def _forget_lost(self, connection: Connection, fence: int) -> None:
        schema = self._layout.schema
        for name, record in known_tables(connection, schema, template=self._layout.template).items():
            try:
                prove(connection, self._layout.table(name), record, sink=str(self._database))
            except SinkLostData:
                note_loss(connection, schema, name, record, fence=fence)

    def _set_up(self, table: Table) -> int:
        """Write and record the mark of a table that no sink has written to yet."""
        try:
            return self._database.run(leave_mark, self._database.dialect, table)
        except (NoMark, Poison, SinkRefused):  # a rule of the table forbids such a row
            self._database.ask(note_without_mark, table)
            return 0

    def _fit(self, name: str, *, is_known: bool) -> Table:
        table = self._layout.table(name)
        if not is_known:
            self._create(partial(missing_table, dialect=self._database.dialect, table=table))
        fitted = self._examine(table)
        if self._may_create and table.ranked:
            # also for a user's own table, and if the table's creator was stopped before it created the view
            self._create(partial(missing_view, dialect=self._database.dialect, table=table))
        self._tables[name] = fitted
        return fitted

    def _examine(self, table: Table) -> Table:
        """Describe a table as it is in the database; raise SinkConfigurationError if it cannot be a sink."""
        problems, commands, fitted = self._database.ask(self._try_out, table)
        if problems:
            raise SinkConfigurationError(
                f"table {str(table)!r} of {self._database} cannot be a sink:\n  " + "\n  ".join(problems),
                hint="name another table, or run this (export-queue ddl COLLECTION --sink … --run does), "
                f"or make it like a new one:\n{script(commands)}",
            )
        return fitted

    def _try_out(self, connection: Connection, table: Table) -> tuple[list[str], list[str], Table]:
        """Return a table's problems, the statements that would help, and its description. Roll back trial rows."""
        dialect = self._database.dialect
        shape = dialect.shape(connection, table)  # first, so that the next batch notices later changes
        found = misfits(connection, table)
        if found.addable:
            commands = add_columns(connection, dialect, table, found.addable)
        else:
            commands = create_table(connection, dialect, table)
        fitted = table if found.problems else replace(measured(connection, table), shape=shape)
        problems = found.problems or dialect.problems(connection, table)
        connection.get_transaction().rollback()  # type: ignore[union-attr]
        return problems, commands, fitted

    def _missing_control(self, connection: Connection, *, readmit: bool) -> Missing:
        schema = self._layout.schema
        if not readmit:
            check_control_tables(connection, schema, sink=str(self._database))
        return missing_control(connection, self._database.dialect, schema, is_fenced=self._layout.is_fenced)

    def _create(self, find: Callable[[Connection], Missing]) -> None:
        """Create whatever is missing. Another process may do the same at this moment."""
        if not (missing := self._database.ask(find)):
            return
        commands = [command for found in missing.values() for command in found]
        if not self._may_create:
            names = " and no table ".join(map(repr, missing))
            raise SinkRefused(f"{self._database} has no table {names}", hint=f"create it:\n{script(commands)}")

        def attempt() -> None:
            with self._database.transaction() as connection:
                execute(connection, [command for found in find(connection).values() for command in found])

        try:
            # PostgreSQL answers a race of two CREATE … IF NOT EXISTS with one of several errors
            self._database.retry.call(
                attempt, worth_repeating=lambda error: isinstance(error, Poison | TryAgain | SinkRefused)
            )
        except (Poison, TryAgain, SinkRefused) as error:
            reason = error.message if isinstance(error, ExportQueueError) else str(error)
            hint = f"let a user with more rights run:\n{script(commands)}"
            kind = SinkUnavailable if gave_way(error) else SinkRefused
            raise kind(f"{self._database}: {reason}", hint=hint) from error


def script(commands: Iterable[str]) -> str:
    """Return statements as text that can be run."""
    return "".join(f"{command};\n" for command in commands)
