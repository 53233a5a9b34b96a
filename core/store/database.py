"""The database of a store: its connections, and SQL transactions that rooms pass on."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa

from export_queue.core.errors import StoreReplaced, StoreUnavailable
from export_queue.core.store import forks
from export_queue.core.store.byte_cache import ByteCache
from export_queue.core.store.counters import Counters
from export_queue.core.store.dialect import Dialect
from export_queue.core.store.hints import HintTraffic
from export_queue.core.store.limits import Limits
from export_queue.core.store.pool import Pool, Translator
from export_queue.core.store.seams import Handle

if TYPE_CHECKING:
    from export_queue.core.store.postgresql.administration import PostgresServer

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")

ANSWER_SECONDS = 3600.0
"""Default limit of the wait for an answer, and of that for tidying at the end."""
KEPT_BYTES = 64 << 20
"""Maximum bytes of parts of files that a process keeps for one store."""

log = logging.getLogger("export_queue.store")


@dataclass(frozen=True, slots=True)
class Reading:
    """A connection for reading, lent for a block. Each statement sees all commits before it."""

    connection: sa.Connection
    database: Database

    def now(self) -> int:
        """Read the store's clock, in milliseconds since the epoch."""
        return self.database.dialect.steps.now(self.connection)

    def draw(self) -> int:
        """Draw an id."""
        return self.database.dialect.steps.draw(self.connection)

    def rows(self, statement: sa.Select[Any]) -> list[Mapping[str, Any]]:
        """Return the rows of a statement by the names of its columns."""
        return [dict(row) for row in self.connection.execute(statement).mappings()]


@dataclass(frozen=True, slots=True)
class Work(Reading):
    """An open SQL transaction of the store. Rooms pass it on and never end it."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a store."""

    store_id: str
    schema_version: int
    oldest_code: int


class Tidying:
    """Reclaims the space of removed entries in a thread, at most one at a time."""

    def __init__(
        self, server: PostgresServer, connect: Callable[[], contextlib.AbstractContextManager[sa.Connection]]
    ) -> None:
        self._server = server
        self._connect = connect
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Reclaim the space in the background, unless that is in progress."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._tidy, name="export-queue-tidying", daemon=True)
            self._thread.start()

    def _tidy(self) -> None:
        try:
            with self._connect() as connection:
                self._server.tidy_entries(connection)
        except Exception as error:  # the next removal of entries tries again
            log.debug("the space of removed entries was not reclaimed: %s", error)

    def wait(self) -> None:
        """Wait for the end of the thread, if any."""
        if self._thread is not None:
            self._thread.join(ANSWER_SECONDS)

    def begin_anew(self) -> None:
        """Forget the thread of a parent process."""
        self._thread = None


class Database:
    """The connections of one process to one store.

    :param engine: SQLAlchemy engine in autocommit mode: this class opens and ends SQL transactions itself.
    :param dialect: the seams of this kind of database.
    """

    def __init__(
        self,
        engine: sa.Engine,
        dialect: Dialect,
        *,
        shown_url: str,
        client: str | None = None,
        limits: Limits | None = None,
        segments: str | None = None,
    ) -> None:
        self.engine = engine
        self.dialect = dialect
        self.shown_url = shown_url
        self.limits = limits or Limits()
        self.segments = segments
        """The place of files with bulk entries, as it was given."""
        self.identity: Identity | None = None
        """The store, once it has been checked; None after another store was found in its place."""
        self.counters = Counters()
        """Counts of the ends of this process's transactions."""
        self.left_behind: set[int] = set()
        """Long transactions whose abort did not reach the store. A later start aborts them."""
        self.expired_at = 0.0
        """When this process last checked for late transactions, in monotonic seconds."""
        self.kept = ByteCache(KEPT_BYTES)
        """What this process keeps of files, which never change."""
        self._client = client
        self._translator = Translator(dialect.driver, shown_url)
        self.pool = Pool(engine, dialect, self._translator)
        self.hints = HintTraffic(self.pool, dialect)
        self.tidying = None if dialect.server is None else Tidying(dialect.server, self.pool.connect)
        """None if the database reuses the space of removed entries at once."""
        forks.follow(self)

    @property
    def client(self) -> str:
        """The name under which monitoring shows the transactions that run here; by default host and process."""
        return self._client or f"{socket.gethostname()}:{os.getpid()}"

    @contextlib.contextmanager
    def connect(self, *, seconds: float | None = None) -> Iterator[sa.Connection]:
        """Lend a connection in autocommit mode, and translate the database's errors.

        :param seconds: limit of the wait for each answer; by default an hour.
        """
        with self._forgetting(), self.pool.connect(seconds=seconds) as connection:
            yield connection

    @contextlib.contextmanager
    def begin(self, *, seconds: float | None = None) -> Iterator[Work]:
        """Open a SQL transaction for writing, which is committed after the block, or rolled back on any error."""
        with self.connect(seconds=seconds) as connection, self.dialect.steps.transaction(connection):
            yield Work(connection, self)

    @contextlib.contextmanager
    def read(self, *, seconds: float | None = None) -> Iterator[Reading]:
        """Lend a connection for reading, without a SQL transaction, which would cost two round trips."""
        with self.connect(seconds=seconds) as connection:
            yield Reading(connection, self)

    def call(
        self,
        seconds: float,
        step: Callable[Concatenate[Handle, Arguments], Answer],
        *plain: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Answer:
        """Run one step of the dialect with these arguments, on any connection of the driver.

        It costs less than :meth:`read`. A step checks by itself whether a file was replaced.

        :param seconds: how long to wait for the answer.
        """
        loan = self.pool.check_out()
        raw = loan.driver_connection
        try:
            if self.dialect.server is not None:
                self.dialect.server.limit(raw, seconds)
            return step(raw, *plain, **named)
        except BaseException as error:
            translated = self.translate(error)
            is_broken = isinstance(translated or error, StoreUnavailable) or not self.dialect.driver.is_idle(raw)
            if is_broken or not isinstance(error, Exception):
                # An answer may still arrive, and a cancelled call may have left a lock with the session.
                loan.pooled.invalidate()
            if translated is None or translated is error:
                raise
            raise translated from error
        finally:
            self.pool.check_in(loan)

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Translate a database's errors into this library's."""
        with self._forgetting(), self._translator:
            yield

    @contextlib.contextmanager
    def _forgetting(self) -> Iterator[None]:
        """Check the store again after another one was found in its place."""
        try:
            yield
        except StoreReplaced:
            self.identity = None
            raise

    def translate(self, error: BaseException) -> Exception | None:
        """Return this library's error for one of the database; None for all others."""
        if isinstance(error, StoreReplaced):
            self.identity = None
            return None
        return self._translator.translate(error)

    @property
    def is_file(self) -> bool:
        """Whether the store is a file."""
        return self.dialect.file is not None

    def borrowers(self) -> set[int]:
        """Return the threads that are using a connection."""
        return self.pool.borrowers()

    def forget_connections(self) -> None:
        """Close all connections that are not in use."""
        self.pool.close_idle()

    def create_file(self) -> None:
        """Create the file of a store in SQLite. Nothing else creates files."""
        if self.dialect.file is not None:
            self.forget_connections()
            with self._translator, self.pool.counted():
                self.dialect.file.create()

    def wait_until_tidy(self) -> None:
        """Wait until the space of removed entries is reclaimed, if that is in progress."""
        if self.tidying is not None:
            self.tidying.wait()

    def close(self) -> None:
        """Close all connections, after :meth:`wait_until_tidy`."""
        self.wait_until_tidy()
        self.hints.close()
        self.kept.clear()
        self.forget_connections()
        if self.dialect.file is not None:
            self.dialect.file.forget()

    def begin_anew(self, *, was_in_use: bool) -> None:
        """Become the database of a forked child.

        :param was_in_use: whether a thread of the parent may have been inside SQLite's library.
        """
        file = self.dialect.file
        self.pool.begin_anew(refusal=None if file is None else file.refusal_in_child(self.shown_url, was_in_use))
        self.hints.begin_anew()
        if self.tidying is not None:
            self.tidying.begin_anew()
        self.counters = Counters()
        self.kept = ByteCache(KEPT_BYTES)  # a thread of the parent may have held its lock
