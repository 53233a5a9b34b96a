"""Connections to a SQLite store: this library's own, and those of users."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any, ClassVar

import sqlalchemy as sa

from export_queue.core.errors import StoreError
from export_queue.core.store.seams import Driver, Handle, UserConnections
from export_queue.core.store.sqlite.file import StoreConnection, explain


class SqliteDriver(Driver):
    """The driver of Python's standard library."""

    error: ClassVar[type[Exception]] = sqlite3.Error

    def is_idle(self, raw: object) -> bool:
        try:
            return isinstance(raw, StoreConnection) and raw.is_clean
        except sqlite3.ProgrammingError:  # closed
            return False

    is_alive = is_idle

    def is_missing_table(self, error: BaseException) -> bool:
        return "no such table: xq_" in str(error)

    def explain(self, error: BaseException, url: str) -> StoreError | None:
        return explain(error, url)


def raw_of(connection: Handle) -> sqlite3.Connection:
    """Give the driver's connection."""
    raw = connection.connection.driver_connection if isinstance(connection, sa.Connection) else connection
    if isinstance(raw, LentConnection):
        return raw.raw
    assert isinstance(raw, sqlite3.Connection)
    return raw


def begin_own(raw: sqlite3.Connection) -> None:
    """Begin the user's SQL transaction, where the driver waits with that for the user's first write."""
    if not raw.in_transaction:
        raw.execute("begin immediate")


class LentConnection:
    """A connection of the user's, which SQLAlchemy must neither set up nor end."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self.raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)

    def _leave(self, *arguments: object, **options: object) -> None:
        """Do nothing."""

    commit = rollback = close = create_function = _leave


@contextlib.contextmanager
def _lent(raw: sqlite3.Connection) -> Iterator[sa.Connection]:
    """Run SQLAlchemy's statements in a SQL transaction of the user's."""
    engine = sa.create_engine("sqlite://", creator=lambda: LentConnection(raw), poolclass=sa.NullPool)
    with engine.connect() as connection:
        yield connection


class SqliteUserConnections(UserConnections):
    """A cursor cannot override the connection's factory of texts, and the user's SQL transaction has the write lock."""

    @contextlib.contextmanager
    def plainly(self, raw: object) -> Iterator[None]:
        assert isinstance(raw, sqlite3.Connection)
        kept = (raw.row_factory, raw.text_factory)
        raw.row_factory, raw.text_factory = None, str
        try:
            yield
        finally:
            raw.row_factory, raw.text_factory = kept

    def lend(self, raw: object) -> contextlib.AbstractContextManager[sa.Connection]:
        assert isinstance(raw, sqlite3.Connection)
        begin_own(raw)
        return _lent(raw)
