"""The seams of a store in a SQLite file."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import ClassVar

import sqlalchemy as sa

from export_queue.core.errors import StoreError
from export_queue.core.store.registration import floor_refused
from export_queue.core.store.seams import Administration, Clock, Dialect, Driver, Handle
from export_queue.core.store.sqlite import statements as sql
from export_queue.core.store.sqlite.file import StoreConnection, StoreFile, explain
from export_queue.core.store.sqlite.transactions import SqliteSteps
from export_queue.core.store.sqlite.writing import LentConnection, begin_own, raw_of


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


@contextlib.contextmanager
def _lent(raw: sqlite3.Connection) -> Iterator[sa.Connection]:
    """Run SQLAlchemy's statements in the user's SQL transaction."""
    engine = sa.create_engine("sqlite://", creator=lambda: LentConnection(raw), poolclass=sa.NullPool)
    with engine.connect() as connection:
        yield connection


class SqliteUserConnections:
    """Connections that their users have set up, for bound transactions.

    A cursor cannot override the connection's text factory, and the user's SQL transaction holds the write lock.
    """

    @contextlib.contextmanager
    def plainly(self, raw: object) -> Iterator[None]:
        """Make a connection return values as its driver does by default, for a block."""
        assert isinstance(raw, sqlite3.Connection)
        kept = (raw.row_factory, raw.text_factory)
        raw.row_factory, raw.text_factory = None, str
        try:
            yield
        finally:
            raw.row_factory, raw.text_factory = kept

    def lend(self, raw: object) -> contextlib.AbstractContextManager[sa.Connection]:
        """Lend the connection for a write that would wait for the user's commit on any other connection."""
        assert isinstance(raw, sqlite3.Connection)
        begin_own(raw)
        return _lent(raw)


class SqliteAdministration(Administration):
    """Creates the triggers that show a process whether the ids which it has read are still valid."""

    def create(self, connection: Handle) -> None:
        raw = raw_of(connection)
        for statement in sql.TRIGGERS:
            raw.execute(statement)

    def last_id(self, connection: Handle) -> int:
        return int(raw_of(connection).execute(sql.LAST_ID).fetchone()[0])

    def set_floor(self, connection: Handle, floor: int) -> None:
        raw = raw_of(connection)
        if raw.execute(sql.KEEPS_FROM_FLOOR, (floor,)).fetchone() is not None:
            raise floor_refused(floor)
        raw.execute(sql.SET_FLOOR, (floor,))


def open_dialect(file: StoreFile, clock: Clock) -> Dialect:
    """Make the seams of a store."""
    return Dialect(
        name="sqlite",
        driver=SqliteDriver(),
        steps=SqliteSteps(file, clock),
        administration=SqliteAdministration(),
        user_connections=SqliteUserConnections(),
        file=file,
    )
