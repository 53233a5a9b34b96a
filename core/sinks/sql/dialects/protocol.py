"""What every dialect of the SQL sink does, and what its errors mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, event

from export_queue.core.errors import ExportQueueError
from export_queue.core.sinks.error_table import ErrorRow, Fate
from export_queue.core.sinks.protocol import Capabilities
from export_queue.core.sinks.sql.rows import Limits, Rows
from export_queue.core.sinks.sql.tables import Table

Password = str | Callable[[], str] | None
"""A password, or a function that finds it, called at each new connection."""


URL_OPTION = "url of the SQL sink"
"""What errors call the URL."""
DDL_LOCK_SECONDS = 2
"""How long a change of a table waits for those that use the table."""
KEPT_OUT = "the table holds neither this row nor a newer one: a trigger or a rule keeps it out"
"""Why a row is rejected that met no error and is not there."""


class Poison(Exception):
    """The database can never take a row of the batch; the text is its own."""


class TryAgain(Exception):
    """The database gave this transaction up in favour of another: it may simply be repeated."""


class Clash(TryAgain):
    """A row broke a rule of its table.

    If another writer inserted the same key first, a repetition helps; any other constraint refuses the row for good.
    """


def judged(row: ErrorRow, words: str, server: str) -> ExportQueueError | Poison | TryAgain:
    """Say what an error means, by its row of the database's table.

    :param words: the database's own message.
    :param server: the name of the server in messages.
    """
    if row.fate is Fate.REJECTED:
        return Poison(words)
    if row.fate is Fate.AGAIN:
        return TryAgain(words)
    return row.error(f"{server}: {words}")


def give_password(engine: Engine, password: Password, *, encoding: str | None = None) -> None:
    """Look the password up at each new connection of an engine; it is no part of the URL.

    :param encoding: how the password is encoded, where the driver would choose another one than the server reads.
    """

    @event.listens_for(engine, "do_connect")
    def give(_dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
        found = password() if callable(password) else password
        if found is not None:
            parameters["password"] = found.encode(encoding) if encoding else found


class SchemaChanged(Exception):
    """A table was altered since it was examined. This transaction wrote nothing; the table must be examined again."""


class Dialect(Protocol):
    """A database of one kind."""

    name: str
    server: str
    """Its name in messages: host and port, or the file."""
    capabilities: Capabilities
    limits: Limits
    locks_reads: bool
    """Whether a transaction that writes can lock a row that it reads."""
    driver_error: type[Exception]

    def engine(self) -> Engine:
        """Make the engine; it connects at its first use."""

    def folds_names(self, connection: Connection) -> bool:
        """Return whether names that differ only by case name one table."""

    def begin(self, connection: Connection) -> None:
        """Prepare a transaction that is going to write."""

    def limit_ddl(self, connection: Connection) -> None:
        """Let an open transaction wait only shortly for tables: others queue after it."""

    def create_control(self, connection: Connection, schema: str | None) -> Mapping[str, str]:
        """Return the statements that create the control tables, by table, in order."""

    def create_table(self, connection: Connection, table: Table) -> list[str]:
        """Return the statements that create a table; the last one creates its view, if it has ranks."""

    def add_columns(self, connection: Connection, table: Table, missing: Sequence[str]) -> list[str]:
        """Return the statements that give a table the columns that it lacks, and a view that shows them."""

    def shape(self, connection: Connection, table: Table) -> Any:
        """Read what a table's writes depend on: columns and their types, and what leads an upsert to a row."""

    def problems(self, connection: Connection, table: Table) -> list[str]:
        """Find problems of a table that only this kind of database has; the transaction is rolled back."""

    def upsert(self, connection: Connection, table: Table, rows: Rows) -> int:
        """Write rows where they are newer; return how many were.

        Into a table without ranks all of them are written.

        :raises SchemaChanged: the table has another shape than its description says.
        """

    def held(self, connection: Connection, table: Table, rows: Rows) -> int:
        """Count the rows that the table holds as they are or newer, in the transaction that wrote them."""

    def delete(self, connection: Connection, table: Table, rows: Rows) -> int:
        """Delete rows, at least one, by their keys from a table without ranks; return how many are left.

        :raises SchemaChanged: as of :meth:`upsert`.
        """

    def explain(self, error: Exception) -> ExportQueueError | Poison | TryAgain:
        """Return what an error of the driver means."""


def require_shape(dialect: Dialect, connection: Connection, table: Table) -> None:
    """Compare a table with its description. From its first change of a row to its end, a transaction keeps the table.

    :raises SchemaChanged: it was altered since it was examined.
    """
    if table.shape is not None and dialect.shape(connection, table) != table.shape:
        raise SchemaChanged(f"table {table} was altered")
