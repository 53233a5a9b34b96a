"""Connections in a SQL transaction: one that writes to a SQLite file, from the queue of writers to its commit."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import sqlalchemy as sa

from export_queue.core.errors import StoreError, StoreUnavailable
from export_queue.core.store.seams import Handle
from export_queue.core.store.sqlite.file import StoreConnection, StoreFile, explain, is_in_transaction


def raw_of(connection: Handle) -> sqlite3.Connection:
    """Return the driver's connection."""
    raw = connection.connection.driver_connection if isinstance(connection, sa.Connection) else connection
    if isinstance(raw, LentConnection):
        return raw.raw
    assert isinstance(raw, sqlite3.Connection)
    return raw


def begin_own(raw: sqlite3.Connection) -> None:
    """Begin the user's SQL transaction, which the driver delays until the user's first write."""
    if not raw.in_transaction:
        raw.execute("begin immediate")


class LentConnection:
    """A user's connection, which SQLAlchemy must neither set up nor end."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self.raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)

    def _leave(self, *arguments: object, **options: object) -> None:
        pass

    commit = rollback = close = create_function = _leave


class Writing:
    """Hold the writers' lock and an immediate SQL transaction: committed after the block, rolled back on error.

    It is no generator, which would cost as much as the statements inside.

    :param begun: by thread the transaction that it began last, unless that ended normally. Two interruptions in a row
        leave such a one, if the second hits the end of the block after the first. A thread has one at a time.
    :param durable: whether the commit is flushed.
    """

    __slots__ = ("_begun", "_durable", "_file", "_lock", "_process", "_raw")

    def __init__(
        self, file: StoreFile, raw: sqlite3.Connection, begun: dict[int, Writing], *, durable: bool = True
    ) -> None:
        self._file = file
        self._raw = raw
        self._begun = begun
        self._durable = durable
        self._lock = file.lock()
        self._process = os.getpid()

    def __enter__(self) -> None:
        """Wait for the lock, and begin."""
        raw, thread = self._raw, threading.get_ident()
        interrupted = self._begun.get(thread)
        if interrupted is not None:
            interrupted._end_interrupted()
            self._begun.pop(thread, None)
        if isinstance(raw, StoreConnection):
            raw.write_lock = self._lock
            self._begun[thread] = self
        try:
            self._lock.__enter__()
            self._file.require_in_place()
            if not self._durable:
                self._relax(True)
            raw.execute("begin immediate")
        except BaseException as error:
            self._roll_back()
            self._raise_undone(error)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit or roll back, and free the lock."""
        if error is not None:
            self._roll_back()
            self._raise_undone(error)  # there was no commit
            return
        try:
            self._raw.execute("commit")
        except BaseException as failure:
            self._roll_back()
            # If the log had no space for the end of a transaction, no recovery will find one.
            if getattr(failure, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                self._raise_undone(failure)
            raise
        self._leave()

    def _relax(self, relaxed: bool) -> None:
        """Switch flushes of commits off or on. A connection on which they stay off is not used again."""
        if isinstance(self._raw, StoreConnection) and relaxed:
            self._raw.is_relaxed = True
        self._raw.execute(f"pragma synchronous = {'normal' if relaxed else 'full'}")
        if isinstance(self._raw, StoreConnection) and not relaxed:
            self._raw.is_relaxed = False

    def _roll_back(self) -> None:
        try:
            if self._has_connection() and is_in_transaction(self._raw):
                self._raw.execute("rollback")
        except BaseException:
            self._lock.free()
            raise
        self._leave()

    def _leave(self) -> None:
        try:
            if not self._durable and self._has_connection():
                with contextlib.suppress(sqlite3.ProgrammingError):  # closed, as by an interrupted statement
                    self._relax(False)
        finally:
            self._lock.free()
        if self._begun.get(threading.get_ident()) is self:
            self._begun.pop(threading.get_ident(), None)

    def _has_connection(self) -> bool:
        """Return whether the connection is still in use here. The garbage collector may end a block late."""
        return getattr(self._raw, "write_lock", self._lock) is self._lock

    def _end_interrupted(self) -> None:
        if self._process != os.getpid():
            return  # it belongs to the parent process
        if self._has_connection() and is_in_transaction(self._raw):
            self._raw.close()
        self._lock.free()

    def _raise_undone(self, error: BaseException) -> None:
        """Raise an error of the file as one that had no effect."""
        failure: StoreError | None = explain(error, self._file.url) if isinstance(error, sqlite3.Error) else None
        if failure is None:
            return
        if isinstance(failure, StoreUnavailable):
            failure.sent = False
        raise failure from error


@contextlib.contextmanager
def savepoint(raw: sqlite3.Connection) -> Iterator[None]:
    """Undo a failed block in a user's SQL transaction, whether the user commits that or not."""
    raw.execute("savepoint xq_step")
    try:
        yield
    except BaseException:
        if is_in_transaction(raw):  # some errors of the file end it
            raw.execute("rollback to xq_step")
            raw.execute("release xq_step")
        raise
    raw.execute("release xq_step")
