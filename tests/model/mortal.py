"""Processes that die: all connections of a store in this one, cut before or after any statement.

What dies runs no clean-up of the library's: from then on every statement raises :class:`Crash`, and what only this
end of a connection does (closing, resetting) does nothing, until :meth:`Life.end` cuts the connections as the end
of a process would.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from psycopg import OperationalError
from sqlalchemy import event

from export_queue import Store
from export_queue.core.postgresql_connection import BoundedConnection
from export_queue.core.store.sqlite.file import LOCK_SECONDS, StoreConnection


class Crash(BaseException):
    """The process is gone."""


class Life:
    """How long a process lives, in moments: each statement has one before and one after it."""

    def __init__(self) -> None:
        self.is_over = False
        self.is_cut = False
        """Whether the server ends sessions in the middle of a SQL transaction, by which the process dies too."""
        self.sessions: list[int] = []
        self._left: int | None = None
        self._commits: int | None = None
        self._ends: list[Callable[[], object]] = []

    def arm(self, *, moments: int | None = None, commits: int | None = None) -> None:
        """Die after so many moments, or as soon as so many SQL transactions have committed."""
        self._left, self._commits = moments, commits

    def moment(self) -> None:
        """Live through one moment."""
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                self.is_over = True
        if self.is_over:
            raise Crash

    def has_committed(self) -> None:
        """A SQL transaction has taken effect, and nobody has been told."""
        if self._commits is not None:
            self._commits -= 1
            self.is_over = self.is_over or self._commits == 0

    def cut(self, error: Exception) -> None:
        """The server has ended a session."""
        if self.is_cut:
            self.is_over = True
            raise Crash from error

    def with_it(self, end: Callable[[], object]) -> None:
        """Note what ends with the process."""
        self._ends.append(end)

    def end(self) -> None:
        """Cut everything that it had open."""
        self.is_over = True
        for end in self._ends:
            end()


def live(store: Store) -> Life:
    """Make a store, which has no connection yet, the store of a process that may die.

    On PostgreSQL its connections are of :class:`MortalSession` if ``bounded.BoundedConnection`` is.
    """
    life, engine = Life(), store.database.engine

    def connect() -> MortalFile:
        raw = MortalFile(file.path, timeout=LOCK_SECONDS, check_same_thread=False)
        raw.life = life
        life.with_it(raw.cut)
        return raw

    def connected(raw: MortalSession, record: object) -> None:
        raw.life = life
        life.sessions.append(raw.info.backend_pid)
        life.with_it(raw.pgconn.finish)

    if engine.dialect.name == "sqlite":
        file = store.database.dialect.file
        assert file is not None
        file._open = connect  # type: ignore[method-assign]
    else:
        store.database.dialect.wake_ups = None  # their thread would come to moments of its own, in no order
        event.listen(engine, "connect", connected)
    return life


class MortalFile(StoreConnection):
    """A connection to a file whose every statement is between two moments."""

    life: Life

    def cursor(self, factory: Any = None) -> Any:
        cursor = super().cursor(MortalCursor)
        cursor.life = self.life
        return cursor

    def execute(self, *arguments: Any) -> Any:
        return self.cursor().execute(*arguments)

    def executemany(self, *arguments: Any) -> Any:
        return self.cursor().executemany(*arguments)

    def rollback(self) -> None:
        if not self.life.is_over:
            super().rollback()

    def close(self) -> None:
        if not self.life.is_over:
            super().close()

    def cut(self) -> None:
        """End as the system ends a dead process's: what is not committed never was."""
        if self.write_lock is not None:
            self.write_lock.free()
        with suppress(sqlite3.ProgrammingError):  # it has been closed
            super().rollback()  # closing waits for cursors that somebody may still refer to
            super().close()


class MortalCursor(sqlite3.Cursor):
    life: Life

    def execute(self, *arguments: Any) -> Any:
        self.life.moment()
        done = super().execute(*arguments)
        if arguments[0] == "commit":
            self.life.has_committed()
        self.life.moment()
        return done

    def executemany(self, statement: str, rows: Any) -> Any:  # type: ignore[override]
        self.life.moment()
        done = super().executemany(statement, rows)
        self.life.moment()
        return done


class MortalSession(BoundedConnection):
    """A connection to a server, with a moment before each question and one after each answer."""

    life: Life | None = None

    def rollback(self) -> None:
        if self.life is None or not self.life.is_over:
            super().rollback()

    def wait(self, *arguments: Any, **options: Any) -> Any:
        return self._between_moments(super().wait, *arguments, **options)

    def call(self, *arguments: Any) -> Any:
        return self._between_moments(super().call, *arguments)

    def _between_moments(self, ask: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if self.life is None:  # it is being set up, or watches for others
            return ask(*arguments, **options)
        self.life.moment()
        try:
            done = ask(*arguments, **options)
        except OperationalError as error:
            self.life.cut(error)
            raise
        self.life.moment()
        return done
