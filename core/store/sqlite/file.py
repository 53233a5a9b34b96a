"""The file under a SQLite store: connections to it, and the meaning of its errors."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from export_queue.core.errors import StoreError, StoreUnavailable

LOCK_SECONDS = 30.0
"""How long a writer waits for its turn."""

_PASSING = {
    sqlite3.SQLITE_BUSY: "another program holds the file without queueing as this library does: end its transaction",
    sqlite3.SQLITE_LOCKED: "another program holds the file without queueing as this library does: end its transaction",
    sqlite3.SQLITE_FULL: "free space on the disk that holds the file, then try again",
    sqlite3.SQLITE_IOERR: "check the disk that holds the file and its free space, then try again",
    sqlite3.SQLITE_CANTOPEN: "the file and its folder must exist, be writable, and leave this process file handles",
    sqlite3.SQLITE_INTERRUPT: None,
    sqlite3.SQLITE_NOMEM: None,
    sqlite3.SQLITE_PROTOCOL: None,
}
_LASTING = {
    sqlite3.SQLITE_READONLY: "the file, its folder and the files beside it must be writable for this user",
    sqlite3.SQLITE_PERM: "the file, its folder and the files beside it must be writable for this user",
    sqlite3.SQLITE_CORRUPT: "restore the file from a backup",
    sqlite3.SQLITE_NOTADB: "check the path: the file is no SQLite database",
}


def open_engine(url: sa.URL) -> sa.Engine:
    """Make an engine whose connections are durable and never begin a transaction by themselves."""
    engine = sa.create_engine(
        url,
        isolation_level="AUTOCOMMIT",
        connect_args={"timeout": LOCK_SECONDS, "check_same_thread": False},
        pool_size=8,
        max_overflow=56,
        pool_use_lifo=True,  # the connection that was used last has the newest pages in its cache
    )

    @event.listens_for(engine, "connect")
    def _set_up(connection: Any, record: object) -> None:
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")

    return engine


def explain(error: BaseException, url: str) -> StoreError | None:
    """Name the file and the remedy; None for errors that are not the file's.

    :param url: the store's, as it may be shown.
    """
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the upper bits say more about the same
    if code in _PASSING:
        return StoreUnavailable(f"store {url}: {error}", hint=_PASSING[code])
    if code in _LASTING:
        return StoreError(f"store {url}: {error}", hint=_LASTING[code])
    return None


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
def lent(raw: sqlite3.Connection) -> Iterator[sa.Connection]:
    """Run SQLAlchemy's statements in a SQL transaction of the user's."""
    engine = sa.create_engine("sqlite://", creator=lambda: LentConnection(raw), poolclass=sa.NullPool)
    with engine.connect() as connection:
        yield connection


@contextlib.contextmanager
def undone(path: str, *codes: int) -> Iterator[None]:
    """Tell with an error inside the block that nothing has taken effect.

    :param codes: the errors that prove it; any if left out.
    """
    try:
        yield
    except sqlite3.Error as error:
        failure = explain(error, f"sqlite:///{path}")
        if failure is None or (codes and error.sqlite_errorcode not in codes):
            raise
        if isinstance(failure, StoreUnavailable):
            failure.sent = False
        raise failure from error
