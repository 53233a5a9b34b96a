"""The connection on which the steps of a transaction run."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa

from export_queue.core.errors import InvalidArgument, TransactionError
from export_queue.core.store import Database, Handle, Work

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")


SLOW_SECONDS = 1.0
"""Steps that take longer have delayed the transaction; so have steps that take a tenth of its time-out."""


class Session:
    """Runs the steps of a transaction, for one thread at a time: two threads would read each other's answers."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._turn = threading.RLock()
        self.held_up_seconds = 0.0
        """Total time of slow steps."""

    def call(
        self, step: Callable[Concatenate[Handle, Arguments], Answer], *plain: Arguments.args, **named: Arguments.kwargs
    ) -> Answer:
        """Run one step of the dialect with these arguments.

        :raises TransactionError: another thread is running a step.
        """
        raise NotImplementedError

    def turn(self) -> threading.RLock:
        """Return a lock that keeps other threads out; the caller must enter it at once.

        :raises TransactionError: another thread is running a step.
        """
        self.require_turn()
        return self._turn

    def require_turn(self) -> None:
        """Check that no other thread is running a step.

        :raises TransactionError: another thread is running one.
        """
        if not self._turn.acquire(blocking=False):
            raise _used_twice()
        self._turn.release()

    def drop(self) -> None:
        """Discard connections whose answer was lost."""


class PooledSession(Session):
    """Takes any connection of the pool for each step; no state stays with a connection between two steps.

    :param seconds: how long to wait for each answer.
    :param slow_seconds: duration from which a step counts as slow.
    """

    def __init__(self, database: Database, *, seconds: float, slow_seconds: float) -> None:
        super().__init__(database)
        self._seconds = seconds
        self._slow_seconds = slow_seconds

    def call(
        self, step: Callable[Concatenate[Handle, Arguments], Answer], *plain: Arguments.args, **named: Arguments.kwargs
    ) -> Answer:
        """Run one step."""
        if not self._turn.acquire(blocking=False):
            raise _used_twice()
        begun = time.monotonic()
        try:
            return self._database.call(self._seconds, step, *plain, **named)
        finally:
            seconds = time.monotonic() - begun
            self.held_up_seconds += seconds if seconds >= self._slow_seconds else 0.0
            self._turn.release()

    def drop(self) -> None:
        """Close all connections of the pool: what broke one may have broken the others."""
        self._database.forget_connections()


class BoundSession(Session):
    """Uses the user's own connection and SQL transaction, which the user ends.

    :param connection: SQLAlchemy's connection, a session of its ORM, or the driver's connection.
    :param store_id: identity of the store that the connection must lead to.
    :raises InvalidArgument: it leads elsewhere, or has no SQL transaction open.
    """

    def __init__(self, database: Database, connection: object, *, store_id: str) -> None:
        super().__init__(database)
        orm = sys.modules.get("sqlalchemy.orm")  # loaded by whoever has a session
        if orm is not None and isinstance(connection, (orm.Session, orm.scoped_session)):
            connection = connection.connection()
        raw = connection.connection.driver_connection if isinstance(connection, sa.Connection) else connection
        if isinstance(connection, sa.Connection) and not connection.in_transaction():
            connection.begin()
        database.dialect.steps.check_bound(raw)
        self._raw: Handle = raw  # type: ignore[assignment]  # checked by the dialect
        found = self.call(database.dialect.steps.store_id)
        if found != store_id:
            database.identity = None  # the store may have been created anew; the next transaction checks it again
            raise InvalidArgument(f"connection: expected one to store {store_id}, found one to store {found}")

    def call(
        self, step: Callable[Concatenate[Handle, Arguments], Answer], *plain: Arguments.args, **named: Arguments.kwargs
    ) -> Answer:
        """Run one step."""
        with self.turn(), self._database.translated(), self._plainly():
            return step(self._raw, *plain, **named)

    def begin(self) -> contextlib.AbstractContextManager[Work]:
        """Open a SQL transaction for a write of the store that must not wait for the user's, or use the user's own."""
        users = self._database.dialect.user_connections
        return self._database.begin() if users is None else self._work(users.lend(self._raw))

    def _plainly(self) -> contextlib.AbstractContextManager[None]:
        users = self._database.dialect.user_connections
        return contextlib.nullcontext() if users is None else users.plainly(self._raw)

    @contextlib.contextmanager
    def _work(self, lent: contextlib.AbstractContextManager[sa.Connection]) -> Iterator[Work]:
        with self._database.translated(), self._plainly(), lent as connection:
            yield Work(connection, self._database)


def _used_twice() -> TransactionError:
    return TransactionError(
        "the transaction is used by two threads at once",
        hint="give each thread a transaction of its own, or let the threads take turns",
    )
