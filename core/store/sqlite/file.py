"""The file of a SQLite store: connections to it, and its errors."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

import sqlalchemy as sa

from export_queue.core.errors import StoreError, StoreNotCreated, StoreUnavailable
from export_queue.core.store.engine_pool import EnginePool
from export_queue.core.store.sqlite.filelock import FileLock

LOCK_SECONDS = 30.0
"""Maximum wait of a writer for the lock."""
LOG_BYTES = 16 << 20
"""Size to which the log is truncated. Without readers it has a quarter of it and is overwritten from its start."""
SHRINK_MS = 1000
"""Milliseconds for which changing readers may delay the truncation of the log."""

_HELD = (
    "a transaction that is bound to a connection, or another program, holds the file without queueing as this library "
    "does: end its transaction"
)
_PASSING = {
    sqlite3.SQLITE_BUSY: _HELD,
    sqlite3.SQLITE_LOCKED: _HELD,
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


class StoreConnection(sqlite3.Connection):
    """A connection that frees the writers' lock when it is closed.

    An interruption may hit the code that ends a block, which then frees nothing. The connection, which is in
    mid-transaction, is closed.
    """

    write_lock: FileLock | None = None
    is_relaxed = False
    """Whether it commits without a flush. An interruption may leave it so."""

    @property
    def is_clean(self) -> bool:
        """Whether it has no remains of a SQL transaction, which an interruption may leave."""
        return not (self.in_transaction or self.is_relaxed or (self.write_lock is not None and self.write_lock.is_held))

    def close(self) -> None:
        """Close it, with a rollback, and free the lock."""
        with contextlib.suppress(sqlite3.Error):
            self.rollback()  # closing does so only without cursors, and an interruption's traceback may hold one
        super().close()
        if self.write_lock is not None:
            self.write_lock.free()


def is_in_transaction(raw: sqlite3.Connection) -> bool:
    """Return whether a connection has a SQL transaction open; a closed one has none."""
    with contextlib.suppress(sqlite3.ProgrammingError):
        return raw.in_transaction
    return False


class StoreFile:
    """The file of a store.

    :param path: absolute, since a process may change its folder.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._path = Path(path)
        self._lock_path = os.path.realpath(path) + ".lock"
        self._found: tuple[int, int] | None = None

    @property
    def url(self) -> str:
        """The store's URL."""
        return f"sqlite:///{self.path}"

    def lock(self) -> FileLock:
        """Return the lock of writers, which is the same for all links to the file."""
        return FileLock(self._lock_path, seconds=LOCK_SECONDS)

    def connect(self) -> sqlite3.Connection:
        """Open a durable connection; raise StoreNotCreated if there is no such file."""
        raw = self._open()
        try:
            is_wal = raw.execute("pragma journal_mode").fetchone()[0] == "wal"
            # Another program's file is not changed: the path may be mistyped.
            if not is_wal and raw.execute("select 1 from sqlite_schema where name = 'xq_store'").fetchone():
                raw.execute("pragma journal_mode = wal")
            raw.execute("pragma synchronous = full")
            raw.execute(f"pragma journal_size_limit = {LOG_BYTES}")
        except BaseException:
            raw.close()
            raise
        return raw

    def _open(self) -> sqlite3.Connection:
        found = self._identity()
        if found is None:
            raise StoreNotCreated(f"{self.url} holds no store: there is no such file")
        self._found = self._found or found
        where = f"file:{quote(self.path)}?mode=rw"
        return sqlite3.connect(where, uri=True, timeout=LOCK_SECONDS, check_same_thread=False, factory=StoreConnection)

    def create(self) -> None:
        """Create a missing file and its folder, with a log for which readers never wait; idempotent."""
        self._found = None
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self.lock():
                raw = sqlite3.connect(self.path, timeout=LOCK_SECONDS)
                with contextlib.closing(raw):
                    raw.execute("pragma journal_mode = wal")
        except sqlite3.Error as error:
            raise explain(error, self.url) or error from error
        except OSError as error:
            raise StoreError(f"store {self.url}: {error.strerror}") from error

    def refusal_in_child(self, url: str, was_in_use: bool) -> StoreError | None:
        """Return why a newly forked process may not use the file; None if it may.

        SQLite would treat the locks of a connection that the parent was using as this process's own.

        :param url: the store's URL without secrets.
        :param was_in_use: whether another thread of its parent may have been in a step.
        """
        if not was_in_use and not self.is_open():
            return None
        return StoreError(
            f"store {url}: this process was forked while a connection of its parent was using the file, "
            "and SQLite's locks cannot be inherited",
            hint="fork outside of calls to the store, with connections of your own to the file closed, or "
            "start processes with 'spawn' or 'forkserver'",
        )

    def shrink_log(self, connection: sa.Connection) -> int:
        """Move a log that readers have made grow into the file, and truncate it. Writers wait for a second at most.

        :returns: the bytes of a log that could not be truncated, as somebody still reads an older state; otherwise 0.
        """
        if self.log_bytes() <= LOG_BYTES:
            return 0
        raw = connection.connection.driver_connection
        assert isinstance(raw, sqlite3.Connection)
        raw.execute("pragma wal_checkpoint(passive)")  # the long part, next to writers
        raw.execute(f"pragma busy_timeout = {SHRINK_MS}")
        try:
            with self.lock():
                raw.execute("pragma wal_checkpoint(truncate)")
        finally:
            raw.execute(f"pragma busy_timeout = {int(LOCK_SECONDS * 1000)}")
        left = self.log_bytes()
        return left if left > LOG_BYTES else 0

    def log_bytes(self) -> int:
        """Return the size of the log; 0 where there is none."""
        try:
            return Path(f"{self.path}-wal").stat().st_size
        except FileNotFoundError:
            return 0

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return (found.st_dev, found.st_ino)

    def require_in_place(self) -> None:
        """Raise StoreError if the file was deleted or replaced, since what is written into it now would be lost."""
        if self._found is not None and self._identity() != self._found:
            raise StoreError(
                f"store {self.url}: the file was deleted or replaced while this process had it open",
                hint="start the process anew, or close this Store and open another, to go on with the file that is "
                "there now; stop all programs before you replace the file",
            )

    def forget(self) -> None:
        """Accept any file at the next connection."""
        self._found = None

    def is_open(self) -> bool:
        """Return whether this process has the file open in any way."""
        if self._found is None:
            return False
        for number in Path("/dev/fd").iterdir():
            with contextlib.suppress(OSError):
                open_file = os.fstat(int(number.name))
                if (open_file.st_dev, open_file.st_ino) == self._found:
                    return True
        return False


def open_engine(url: sa.URL, file: StoreFile) -> sa.Engine:
    """Make an engine whose connections are durable and never begin a transaction by themselves."""
    return sa.create_engine(
        url,
        isolation_level="AUTOCOMMIT",
        hide_parameters=True,  # errors must not show values of entries
        creator=file.connect,
        poolclass=EnginePool,
        pool_use_lifo=True,  # the connection that was used last has the newest pages in its cache
    )


def explain(error: BaseException, url: str) -> StoreError | None:
    """Translate an error of the file into one with a remedy; None for other errors."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the upper bits are details
    if code in _PASSING:
        return StoreUnavailable(f"store {url}: {error}", hint=_PASSING[code])
    if code in _LASTING:
        return StoreError(f"store {url}: {error}", hint=_LASTING[code])
    return None
