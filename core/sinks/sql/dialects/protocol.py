"""What every dialect of the SQL sink does, and what its errors mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, event

from export_queue.core.errors import ExportQueueError
from export_queue.core.sinks.error_table import ErrorRow, Fate
from export_queue.core.sinks.protocol import Capabilities
from export_queue.core.sinks.sql.tables import Limits, Row, Table

Password = str | Callable[[], str] | None
"""A password, or a function that finds it, called at each new connection."""


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


def give_password(engine: Engine, password: Password) -> None:
    """Look the password up at each new connection of an engine; it is no part of the URL."""

    @event.listens_for(engine, "do_connect")
    def give(_dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
        found = password() if callable(password) else password
        if found is not None:
            parameters["password"] = found


class Dialect(Protocol):
    """One kind of database, and where this one is."""

    name: str
    server: str
    """Its name in messages: host and port, or the file."""
    capabilities: Capabilities
    limits: Limits
    folds_names: bool
    """Whether names of tables that differ by case name one table."""
    locks_reads: bool
    """Whether a row that was read in a transaction that writes stays as it is, if that is asked for."""
    driver_error: type[Exception]

    def engine(self) -> Engine:
        """Make the engine; it connects at its first use."""

    def begin(self, connection: Connection) -> None:
        """Prepare a transaction that is going to write."""

    def create_control(self, connection: Connection, schema: str | None) -> str:
        """Return the statement that creates the control table."""

    def create_table(self, connection: Connection, table: Table) -> list[str]:
        """Return the statements that create a table; the last one creates its view, if it has ranks."""

    def add_columns(self, connection: Connection, table: Table) -> list[str]:
        """Return the statements that make a user's own table a sink; the last one creates its view."""

    def problems(self, connection: Connection, table: Table) -> list[str]:
        """Find problems of a table that only this kind of database has; the transaction is rolled back."""

    def upsert(self, connection: Connection, table: Table, rows: Sequence[Row]) -> int:
        """Write rows, of distinct keys and sorted by them, where they are newer; return how many were.

        Into a table without ranks all of them are written.
        """

    def delete(self, connection: Connection, table: Table, keys: Sequence[Row]) -> None:
        """Delete the rows of keys, sorted and at least one, from a table without ranks."""

    def explain(self, error: Exception) -> ExportQueueError | Poison | TryAgain:
        """Say what an error of the driver means."""
