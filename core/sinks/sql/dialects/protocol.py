"""The interface of the SQL sink's dialects, and the meaning of their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, event

from export_queue.core.errors import ExportQueueError
from export_queue.core.sinks.error_table import ErrorRow, Fate
from export_queue.core.sinks.protocol import Capabilities
from export_queue.core.sinks.sql.rows import Limits, Rows
from export_queue.core.sinks.sql.statements import Syntax
from export_queue.core.sinks.sql.tables import Table

Password = str | Callable[[], str] | None
"""A password, or a function that returns it, called for each new connection."""

URL_OPTION = "url of the SQL sink"
"""The name of the URL in errors."""
DDL_LOCK_SECONDS = 2
"""How long a change of a table waits for the table's users."""
KEPT_OUT = "the table holds neither this row nor a newer one: a trigger or a rule keeps it out"
"""Why a row is rejected that caused no error and is not in the table."""


class Poison(Exception):
    """The database can never take a row of the batch. The text is the database's own."""


class TryAgain(Exception):
    """The database aborted this transaction in favour of another one. It may simply be repeated."""


class Clash(TryAgain):
    """A row broke a rule of its table.

    If another writer inserted the same key first, a repetition helps. Any other constraint refuses the row permanently.
    """


def judged(row: ErrorRow, words: str, server: str) -> ExportQueueError | Poison | TryAgain:
    """Return the meaning of an error, given its row of the database's table and the database's own message."""
    if row.fate is Fate.REJECTED:
        return Poison(words)
    if row.fate is Fate.AGAIN:
        return TryAgain(words)
    return row.error(f"{server}: {words}")


def give_password(engine: Engine, password: Password, *, encoding: str | None = None) -> None:
    """Ask for the password at each new connection of an engine; the URL does not contain it.

    :param encoding: how to encode the password, if the driver would choose another encoding than the server.
    """

    @event.listens_for(engine, "do_connect")
    def give(_dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
        found = password() if callable(password) else password
        if found is not None:
            parameters["password"] = found.encode(encoding) if encoding else found


class SchemaChanged(Exception):
    """A table was altered after it was examined. The transaction wrote nothing; the table must be examined again."""


class Dialect(Protocol):
    """One kind of database; some of its methods have a default."""

    name: str
    server: str
    """The server's name in messages: host and port, or the file."""
    capabilities: Capabilities = Capabilities(batch_rows=10_000, batch_bytes=8 << 20, binary_ids=False)
    limits: Limits
    locks_reads: bool = True
    """Whether a transaction that writes can lock a row that it reads."""
    driver_error: type[Exception]

    def engine(self) -> Engine:
        """Return an engine, which connects at its first use."""

    def folds_names(self, connection: Connection) -> bool:
        """Return whether names that differ only by case name one table."""
        return False

    def begin(self, connection: Connection) -> None:
        """Prepare a transaction that will write."""
        return

    def limit_ddl(self, connection: Connection) -> None:
        """Limit how long an open transaction waits for tables, since others queue behind it."""
        return

    def syntax(self, connection: Connection, table: Table | None = None) -> Syntax:
        """Return how the database writes common statements; types of key columns may depend on the table."""

    def shape(self, connection: Connection, table: Table) -> Any:
        """Read what writes to a table depend on: columns, their types, and how an upsert finds a row."""

    def problems(self, connection: Connection, table: Table) -> list[str]:
        """Return a table's problems that are specific to this kind of database. The caller rolls back."""

    def upsert(self, connection: Connection, table: Table, rows: Rows) -> int:
        """Write rows that are newer than those in the table, or all if it has no ranks; return how many were written.

        Raise SchemaChanged, as :meth:`delete` does, if the table was altered after it was described.
        """

    def held(self, connection: Connection, table: Table, rows: Rows) -> int:
        """Count the rows that the table holds at the same rank or newer, in the transaction that wrote them."""

    def delete(self, connection: Connection, table: Table, rows: Rows) -> int:
        """Delete one or more rows from a table without ranks; return how many of them are still in it."""

    def explain(self, error: Exception) -> ExportQueueError | Poison | TryAgain:
        """Return the meaning of an error of the driver."""

    def require_shape(self, connection: Connection, table: Table) -> None:
        """Raise SchemaChanged if a table differs from its description.

        Called after a change of a row, since from then on the transaction holds the table.
        """
        if table.shape is not None and self.shape(connection, table) != table.shape:
            raise SchemaChanged(f"table {table} was altered")
