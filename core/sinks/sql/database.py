"""The database of a SQL sink: retries transactions and explains their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError, StatementError

from export_queue.core.errors import SinkRefused, SinkUnavailable
from export_queue.core.retry import Retry
from export_queue.core.sinks.sql.dialects import Clash, Dialect, Poison, TryAgain

RETRY = Retry(attempts=5, first_pause=0.02, longest_pause=0.2)
"""For a transaction that gave way to another one."""
_Result = TypeVar("_Result")


class Database:
    """A database of a sink, connected at its first use."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.engine = dialect.engine()
        self.retry = RETRY

    def ask(self, work: Callable[..., _Result], *args: Any, **options: Any) -> _Result:
        """Run a function in a transaction that writes no records."""
        try:
            return self.run(work, *args, **options)
        except Poison as error:
            raise SinkRefused(f"{self}: {error}") from error

    def run(self, work: Callable[..., _Result], *args: Any, **options: Any) -> _Result:
        """Run a function in a transaction. Retry if it gives way to another transaction.

        :raises Poison: the database permanently refuses one of its rows.
        :raises SinkUnavailable: all retries failed.
        """

        def attempt() -> _Result:
            with self.transaction() as connection:
                return work(connection, *args, **options)

        try:
            return self.retry.call(attempt, worth_repeating=lambda error: isinstance(error, TryAgain))
        except Clash as error:
            raise Poison(str(error)) from error
        except TryAgain as error:
            raise SinkUnavailable(f"{self}: {self.retry.attempts} tries failed, the last: {error}") from error

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Run a transaction once. Errors of the driver are raised as errors of the sink, Poison or TryAgain."""
        try:
            with self.engine.connect() as connection, connection.begin():
                try:
                    self.dialect.begin(connection)
                    yield connection
                except (DBAPIError, self.dialect.driver_error) as error:
                    explained = self._explain(error)
                    if not isinstance(explained, Poison | TryAgain):
                        connection.invalidate()  # a rollback would also fail, with a less helpful error
                    raise explained from error
        except (SQLAlchemyError, self.dialect.driver_error) as error:
            raise self._explain(error) from error

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def _explain(self, error: Exception) -> Exception:
        original = error.orig if isinstance(error, DBAPIError) else error
        if isinstance(error, StatementError) and isinstance(error.orig, Exception) and original is error:
            return error.orig  # the error of a signal handler, which SQLAlchemy has wrapped
        if not isinstance(original, self.dialect.driver_error):
            return SinkUnavailable(f"{self}: {original}")
        return self.dialect.explain(original)

    def __str__(self) -> str:
        return self.dialect.server


def execute(connection: Connection, commands: Iterable[str]) -> None:
    """Execute statements without parameters."""
    for command in commands:
        connection.exec_driver_sql(command.replace("%", "%%"))


def gave_way(error: BaseException | None) -> bool:
    """Return whether a transaction gave way to others, so that it may succeed later."""
    return isinstance(error, TryAgain) and not isinstance(error, Clash)
