"""Which connection a transaction's steps run on."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa

from export_queue.core.errors import InvalidArgument, StoreUnavailable, TransactionError
from export_queue.core.store import Database, Handle, Work

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")


SLOW_SECONDS = 1.0
"""A step of this time has held its transaction up, for example by a lock of others; so does a tenth of the time-out."""


class Session:
    """Lends a transaction its connection, to one thread at a time: a second one would get the first one's answers."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._turn = threading.RLock()
        self.held_up_seconds = 0.0
        """Total time of slow steps."""

    def call(
        self, step: Callable[Concatenate[Handle, Arguments], Answer], *plain: Arguments.args, **named: Arguments.kwargs
    ) -> Answer:
        """Run one step of the dialect with these arguments.

        :raises TransactionError: another thread is in a step.
        """
        raise NotImplementedError

    def turn(self) -> threading.RLock:
        """Keep all other threads out for a block, which must be entered at once.

        :raises TransactionError: another thread is in a step.
        """
        self.require_turn()
        return self._turn

    def require_turn(self) -> None:
        """Check that no other thread is in a step.

        :raises TransactionError: one is.
        """
        if not self._turn.acquire(blocking=False):
            raise _used_twice()
        self._turn.release()

    def drop(self) -> None:
        """Forget connections whose answer was lost."""


class PooledSession(Session):
    """Any connection for each step: nothing of a transaction belongs to a connection between two of them.

    :param seconds: how long each answer is waited for.
    :param slow_seconds: time of a step from which on it counts as held up.
    """

    def __init__(self, database: Database, *, seconds: float, slow_seconds: float) -> None:
        super().__init__(database)
        self._seconds = seconds
        self._slow_seconds = slow_seconds
        self._limit = None if database.dialect.server is None else database.dialect.server.limit

    def call(
        self, step: Callable[Concatenate[Handle, Arguments], Answer], *plain: Arguments.args, **named: Arguments.kwargs
    ) -> Answer:
        """Run one step."""
        if not self._turn.acquire(blocking=False):
            raise _used_twice()
        begun = time.monotonic()
        try:
            database = self._database
            loan = database.pool.check_out()
            raw = loan.driver_connection
            try:
                if self._limit is not None:
                    self._limit(raw, self._seconds)
                return step(raw, *plain, **named)
            except BaseException as error:
                translated = database.translate(error)
                is_broken = isinstance(translated or error, StoreUnavailable) or not database.dialect.driver.is_idle(
                    raw
                )
                if is_broken or not isinstance(error, Exception):
                    # An answer may still come, and a cancelled call leave a lock to its session.
                    loan.pooled.invalidate()
                if translated is None or translated is error:
                    raise
                raise translated from error
            finally:
                database.pool.check_in(loan)
        finally:
            seconds = time.monotonic() - begun
            self.held_up_seconds += seconds if seconds >= self._slow_seconds else 0.0
            self._turn.release()

    def drop(self) -> None:
        """Close the pool's connections: a cut of one may have cut the others."""
        self._database.forget_connections()


class BoundSession(Session):
    """The user's own connection, in the user's own SQL transaction, which the user ends.

    :param connection: SQLAlchemy's, its ORM's session, or the driver's, to the store's database.
    :param store_id: identity of the store that is meant.
    :raises InvalidArgument: it leads elsewhere, or has no SQL transaction open.
    """

    def __init__(self, database: Database, connection: object, *, store_id: str) -> None:
        super().__init__(database)
        connection = _of_session(connection)
        raw = connection.connection.driver_connection if isinstance(connection, sa.Connection) else connection
        if isinstance(connection, sa.Connection) and not connection.in_transaction():
            connection.begin()
        database.dialect.steps.check_bound(raw)
        self._raw: Handle = raw  # type: ignore[assignment]  # checked by the dialect
        found = self.call(database.dialect.steps.store_id)
        if found != store_id:
            database.identity = None  # the store may have been created anew; the next transaction looks again
            raise InvalidArgument(f"connection: expected one to store {store_id}, found one to store {found}")

    def call(
        self, step: Callable[Concatenate[Handle, Arguments], Answer], *plain: Arguments.args, **named: Arguments.kwargs
    ) -> Answer:
        """Run one step."""
        database = self._database
        with self.turn(), database.translated(), self._plainly():
            return step(self._raw, *plain, **named)

    def begin(self) -> contextlib.AbstractContextManager[Work]:
        """Open a SQL transaction of the store's for a write that must not wait for the user's: that one, if need be."""
        users = self._database.dialect.user_connections
        return self._database.begin() if users is None else self._work(users.lend(self._raw))

    def _plainly(self) -> contextlib.AbstractContextManager[None]:
        users = self._database.dialect.user_connections
        return contextlib.nullcontext() if users is None else users.plainly(self._raw)

    @contextlib.contextmanager
    def _work(self, lent: contextlib.AbstractContextManager[sa.Connection]) -> Iterator[Work]:
        database = self._database
        with database.translated(), self._plainly(), lent as connection:
            yield Work(connection, self._database)


def _used_twice() -> TransactionError:
    return TransactionError(
        "the transaction is used by two threads at once",
        hint="give each thread a transaction of its own, or let the threads take turns",
    )


def _of_session(connection: object) -> object:
    """Give the connection under a session of SQLAlchemy's ORM; anything else as it is."""
    orm = sys.modules.get("sqlalchemy.orm")  # whoever has a session has loaded it
    if orm is not None and isinstance(connection, (orm.Session, orm.scoped_session)):
        return connection.connection()
    return connection
