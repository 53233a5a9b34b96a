"""The database of a store: its connections, and SQL transactions that rooms pass on."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from export_queue.core.errors import StoreReplaced
from export_queue.core.store import forks
from export_queue.core.store.counters import Counters
from export_queue.core.store.hints import HintTraffic
from export_queue.core.store.limits import Limits
from export_queue.core.store.pool import Pool, Translator
from export_queue.core.store.seams import Dialect
from export_queue.core.store.tidying import Tidying


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
