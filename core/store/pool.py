"""The connections of a process to a store, and their errors. None is lent while a thread forks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InvalidRequestError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from export_queue.core.errors import StoreError, StoreNotCreated, StoreUnavailable
from export_queue.core.interruptions import raised_by_handler
from export_queue.core.store import forks
from export_queue.core.store.dialect import Dialect
from export_queue.core.store.engine_pool import EnginePool
from export_queue.core.store.seams import Driver

_ENDED_AT_ONCE = "This connection is closed"
"""The pool's message if the connection that replaces a dead one is dead, too."""


class Translator:
    """Translates errors of one store; as a context manager, for a block. Blocks may be nested."""

    __slots__ = ("_driver", "_url")

    def __init__(self, driver: Driver, shown_url: str) -> None:
        self._driver = driver
        self._url = shown_url

    def translate(self, error: BaseException) -> Exception | None:
        """Return this library's error for an error of the database; None for all others."""
        if isinstance(error, PoolTimeout):
            return StoreUnavailable(
                f"store {self._url}: all connections of this process are taken",
                hint="each read, write and commit in progress takes one: do fewer at once",
            )
        if isinstance(error, InvalidRequestError) and str(error) == _ENDED_AT_ONCE:
            return StoreUnavailable(f"store {self._url}: sessions end as soon as they begin")
        if isinstance(error, DBAPIError):
            return self._translate(error.orig or error)
        if isinstance(error, StatementError) and isinstance(error.orig, Exception):
            return error.orig  # raised by a signal handler and wrapped by SQLAlchemy
        return self._translate(error) if isinstance(error, self._driver.error) else None

    def _translate(self, error: BaseException) -> Exception:
        if self._driver.is_missing_table(error):
            return StoreNotCreated(f"{self._url} holds no store")
        explained = self._driver.explain(error, self._url)
        if explained is not None:
            return explained
        return error if isinstance(error, Exception) else StoreUnavailable(str(error))

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        translated = self.translate(error)
        if translated is not None and translated is not error:
            cause = getattr(error, "orig", None) or error
            raise translated from (translated.__cause__ if cause is translated else cause)


class Loan:
    """A connection that one thread uses."""

    __slots__ = ("driver_connection", "pooled")

    driver_connection: Any
    """The driver's own: SQLAlchemy's would cost more than a statement."""
    pooled: sa.PoolProxiedConnection


class Pool:
    """Connections in autocommit mode.

    It keeps the connections used last in front of the engine's pool. With the engine's pool alone (medians of pairs), a
    transaction that reads one cell takes 1.27 times as long on PostgreSQL and 1.47 times on SQLite, and one that reads
    and writes 1.15 times on PostgreSQL without flushes.
    """

    def __init__(self, engine: sa.Engine, dialect: Dialect, translator: Translator) -> None:
        self.engine = engine
        self._driver = dialect.driver
        self._server = dialect.server
        self._file = dialect.file
        self.translator = translator
        self._idle: list[tuple[sa.PoolProxiedConnection, object]] = []
        """The one used last is at the end and lent first, since its caches are warm."""
        self._engine_pool.idle_in_front = self._idle
        self._era = object()
        """Replaced when the connections that are open now must be closed as they are returned."""
        self._lent: dict[object, int] = {}
        """By loan the thread that uses a connection, or is about to."""
        self.answer_seconds: float | None = None
        """Limit of the wait for each answer, unless a caller gives one; by default an hour."""
        self.refusal: StoreError | None = None
        """Why this process may not use the store."""

    def check_out(self) -> Loan:
        """Open or reuse a connection of the driver in autocommit mode; :meth:`check_in` ends the loan.

        It does not check whether a file was replaced; taking a snapshot and writing do.

        :raises StoreUnavailable: with ``sent`` false.
        :raises StoreError: this process may not use the store.
        """
        loan = Loan()
        # Recorded first: from now on a fork waits for this thread, or this thread sees the fork.
        self._lent[loan] = threading.get_ident()
        try:
            if forks.gate.forking or self.refusal is not None:
                self._hold_back(loan)
            while self._idle:
                try:
                    loan.pooled, loan.driver_connection = self._idle.pop()
                except IndexError:  # another thread has taken it
                    break
                if self._driver.is_alive(loan.driver_connection):
                    return loan
                loan.pooled.invalidate()
                loan.pooled.close()
            loan.pooled = self.connect_raw()
            loan.driver_connection = loan.pooled.driver_connection
        except BaseException:
            self._lent.pop(loan, None)
            raise
        return loan

    def check_in(self, loan: Loan) -> None:
        """Take back a connection of :meth:`check_out`."""
        try:
            if self._engine_pool.may_keep_in_front() and self._driver.is_idle(loan.driver_connection):
                self._idle.append((loan.pooled, loan.driver_connection))
                self._engine_pool.serve_from_front()
            else:
                loan.pooled.close()
        finally:  # also when an alarm strikes: a fork waits for every loan
            self._lent.pop(loan, None)

    @contextlib.contextmanager
    def connect(self, *, seconds: float | None = None) -> Iterator[sa.Connection]:
        """Lend a connection in autocommit mode, with a limit of the wait for each answer."""
        loan = Loan()
        self._lent[loan] = threading.get_ident()
        try:
            if forks.gate.forking or self.refusal is not None:
                self._hold_back(loan)
            if self._file is not None:
                self._file.require_in_place()
            with contextlib.suppress(IndexError):
                self._idle.pop()[0].close()  # a process should not need more sessions than it uses at once
            era = self._era
            with self._unsent():
                connection = self.engine.connect()
        except BaseException:
            self._lent.pop(loan, None)
            raise
        try:
            seconds = self.answer_seconds if seconds is None else seconds
            if seconds is not None and self._server is not None:
                self._server.limit(connection.connection.driver_connection, seconds)
            with self.translator:
                yield connection
        except BaseException as error:
            # Returning it would contact a server that may be gone, or that an interruption has left in mid-statement.
            if isinstance(error, StoreUnavailable) or not self._is_idle(connection):
                connection.invalidate()
            raise
        finally:
            try:
                if era is not self._era:
                    connection.invalidate()
                connection.close()
            except AssertionError as error:
                # SQLAlchemy asserts that its transaction has ended, which an interruption has prevented.
                raise raised_by_handler(error) or error from None
            finally:
                self._lent.pop(loan, None)

    def connect_raw(self) -> sa.PoolProxiedConnection:
        """Take a connection from the engine's pool, or open one; raise StoreUnavailable with ``sent`` false."""
        if self._file is not None:
            self._file.require_in_place()
        with self._unsent():
            return self.engine.raw_connection()

    @contextlib.contextmanager
    def connect_unused(self) -> Iterator[object | None]:
        """Lend an idle connection of the driver; None if there is none. No other thread ever waits for it."""
        with self.counted():
            era = self._era
            pooled = self._unused()
            if pooled is None:
                yield None
                return
            try:
                yield pooled.driver_connection
            except BaseException:
                pooled.invalidate()
                raise
            finally:
                if era is not self._era:
                    pooled.invalidate()
                pooled.close()

    @property
    def _engine_pool(self) -> EnginePool:
        pool = self.engine.pool
        assert isinstance(pool, EnginePool)
        return pool

    def _unused(self) -> sa.PoolProxiedConnection | None:
        with contextlib.suppress(IndexError):
            pooled, raw = self._idle.pop()
            if self._driver.is_alive(raw):
                return pooled
            pooled.invalidate()
            pooled.close()
        if not self._engine_pool.checkedin():
            return None
        with self.translator:
            return self.engine.raw_connection()

    def _hold_back(self, loan: Loan) -> None:
        """Wait for a fork in progress, unless it waits for another loan of this thread.

        :raises StoreError: this process may not use the store.
        """
        thread = self._lent[loan]
        while forks.gate.forking and list(self._lent.copy().values()).count(thread) == 1:
            del self._lent[loan]
            is_over = forks.gate.wait()
            self._lent[loan] = thread
            if not is_over:
                break
        if self.refusal is not None:
            raise StoreError(self.refusal.message, hint=self.refusal.hint)

    def _is_idle(self, connection: sa.Connection) -> bool:
        return connection.invalidated or self._driver.is_idle(connection.connection.driver_connection)

    @contextlib.contextmanager
    def _unsent(self) -> Iterator[None]:
        try:
            with self.translator:
                yield
        except StoreUnavailable as error:
            error.sent = False
            raise

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count this thread as a borrower, without waiting for forks."""
        loan = object()
        self._lent[loan] = threading.get_ident()
        try:
            yield
        finally:
            del self._lent[loan]

    def close_idle(self) -> None:
        """Close all connections that are not in use."""
        with self.counted():
            self._era = object()
            while self._idle:
                with contextlib.suppress(IndexError):
                    connection = self._idle.pop()[0]
                    connection.invalidate()
                    connection.close()
            # Disposing of the pool would put another in its place, which counts from zero, while threads still use
            # connections of this one or wait for them.
            self._engine_pool.close_idle()

    def borrowers(self) -> set[int]:
        """Return the threads that are using a connection."""
        return set(self._lent.copy().values())

    def begin_anew(self, *, refusal: StoreError | None) -> None:
        """Become the pool of a forked child, which leaves the connections to its parent."""
        forks.leave_to_parent((self._idle, self.engine.pool))
        self._idle = []
        self._lent = {}
        self._era = object()
        self.engine.dispose(close=False)
        self._engine_pool.idle_in_front = self._idle
        self.refusal = refusal
