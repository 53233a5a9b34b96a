"""Which connection a transaction's steps run on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import sqlalchemy as sa

from export_queue.core.errors import InvalidArgument
from export_queue.core.store import Database, Handle

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")


class Session(Protocol):
    """Lends a transaction its connection."""

    def call(
        self, step: Callable[Concatenate[Handle, Arguments], Answer], *plain: Arguments.args, **named: Arguments.kwargs
    ) -> Answer:
        """Run one step of the dialect with these arguments."""

    def drop(self) -> None:
        """Forget a connection whose answer was lost."""

    def close(self) -> None:
        """Give everything back."""


class PooledSession:
    """Any connection for each step: for long transactions, which are registered by a row.

    :param seconds: how long each answer is waited for.
    """

    def __init__(self, database: Database, *, seconds: float) -> None:
        self._database = database
        self._seconds = seconds

    def call(
        self, step: Callable[Concatenate[Handle, Arguments], Answer], *plain: Arguments.args, **named: Arguments.kwargs
    ) -> Answer:
        """Run one step."""
        with self._database.connect(seconds=self._seconds) as connection:
            return step(connection, *plain, **named)

    def drop(self) -> None:
        """Close the pool's connections: a cut of one may have cut the others."""
        self._database.forget_connections()

    def close(self) -> None:
        """Nothing is kept."""


class PinnedSession:
    """One connection from the first step to the end: its server session may hold the registration.

    :param seconds: how long each answer is waited for.
    """

    def __init__(self, database: Database, *, seconds: float) -> None:
        self._database = database
        self._seconds = seconds
        self._connection: sa.PoolProxiedConnection | None = None
        self._raw: Handle
        """The driver's own: SQLAlchemy's connection object would cost more than a statement."""
        self._limit = contextlib.ExitStack()

    def call(
        self, step: Callable[Concatenate[Handle, Arguments], Answer], *plain: Arguments.args, **named: Arguments.kwargs
    ) -> Answer:
        """Run one step."""
        if self._connection is None:
            self._connection = self._database.check_out()
            self._raw = self._connection.driver_connection  # type: ignore[assignment]  # made by the dialect
            self._limit.enter_context(self._database.dialect.limited(self._raw, self._seconds))
        with self._database.translated():
            return step(self._raw, *plain, **named)

    def drop(self) -> None:
        """Close this connection and the pool's: a cut of one may have cut the others."""
        connection, self._connection = self._connection, None
        self._limit.close()
        if connection is not None:
            self._database.throw_away(connection)
        self._database.forget_connections()

    def close(self) -> None:
        """Give the connection back."""
        connection, self._connection = self._connection, None
        self._limit.close()
        if connection is not None:
            self._database.check_in(connection)


class BoundSession:
    """The user's own connection, in the user's own SQL transaction, which the user ends.

    :param connection: SQLAlchemy's, or the driver's, to the store's database.
    :param store_id: identity of the store that is meant.
    :raises InvalidArgument: it leads elsewhere, or has no SQL transaction open.
    """

    def __init__(self, database: Database, connection: object, *, store_id: str) -> None:
        self._database = database
        raw = connection.connection.driver_connection if isinstance(connection, sa.Connection) else connection
        if isinstance(connection, sa.Connection) and not connection.in_transaction():
            connection.begin()
        database.dialect.check_bound(raw)
        self._raw: Handle = raw  # type: ignore[assignment]  # checked by the dialect
        found = self.call(database.dialect.store_id)
        if found != store_id:
            raise InvalidArgument(f"connection: expected one to store {store_id}, found one to store {found}")

    def call(
        self, step: Callable[Concatenate[Handle, Arguments], Answer], *plain: Arguments.args, **named: Arguments.kwargs
    ) -> Answer:
        """Run one step."""
        with self._database.translated():
            return step(self._raw, *plain, **named)

    def drop(self) -> None:
        """Nothing: the connection is the user's."""

    def close(self) -> None:
        """Nothing: the connection is the user's."""
