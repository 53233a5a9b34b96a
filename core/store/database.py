"""One database under a store: its connections, and SQL transactions that rooms pass on."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from export_queue.core.errors import StoreReplaced
from export_queue.core.store import forks
from export_queue.core.store.counters import Counters
from export_queue.core.store.hints import HintTraffic
from export_queue.core.store.limits import Limits
from export_queue.core.store.opening import DEFAULT_SCHEMA, open_database
from export_queue.core.store.place import parse_place
from export_queue.core.store.pool import Pool
from export_queue.core.store.seams import Clock, Dialect, Listener
from export_queue.core.store.tidying import Tidying
from export_queue.core.store.translation import Translator


@dataclass(frozen=True, slots=True)
class Reading:
    """A connection for reading, lent for a block: each statement sees all commits before it."""

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
    """An open SQL transaction of the store; rooms pass it on and never end it."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which store this is."""

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
        """The store, once it has been checked; None again after another one was found in its place."""
        self.counters = Counters()
        """Ends of this process's transactions, counted."""
        self.left_behind: set[int] = set()
        """Long transactions whose abort did not reach the store; they are aborted at a later start."""
        self.expired_at = 0.0
        """Monotonic seconds of this process's last check for late transactions."""
        self._client = client
        self._translator = Translator(dialect.driver, shown_url)
        self.pool = Pool(engine, dialect, self._translator)
        self.hints = HintTraffic(self.pool, dialect)
        """Where commits leave word for those that follow their queues."""
        self.tidying = None if dialect.server is None else Tidying(dialect.server, self.pool.connect)
        """None where the database uses the space of removed entries again at once."""
        forks.follow(self)

    @classmethod
    def open(
        cls,
        url: str,
        *,
        password: str | Callable[[], str] | None = None,
        schema: str = DEFAULT_SCHEMA,
        behind_pooler: bool = False,
        clock: Clock | None = None,
        client: str | None = None,
        limits: Limits | None = None,
        segments: str | None = None,
    ) -> Database:
        """Prepare connections; nothing is sent yet.

        :param url: ``sqlite:///path`` or ``postgresql+psycopg://user@host/database``.
        :param password: a password that is kept out of the URL, or a function that returns it for each new connection.
        :param schema: the PostgreSQL schema that is the store; SQLite has one store per file.
        :param behind_pooler: whether the URL leads to a pooler in transaction mode (PgBouncer), for PostgreSQL.
        :param clock: the host's clock, for SQLite; PostgreSQL uses the server's.
        :param client: the name under which monitoring shows the transactions that run here.
        :param limits: time-outs and sizes of its transactions.
        :param segments: the place of files with bulk entries, a URL or an absolute path; for SQLite by default a folder
            next to the file.
        :raises InvalidArgument: the URL is of another kind, or the place of segments is refused.
        """
        if segments is not None:
            segments = parse_place(segments)
        opened = open_database(url, password=password, schema=schema, behind_pooler=behind_pooler, clock=clock)
        return cls(
            opened.engine,
            opened.dialect,
            shown_url=opened.shown_url,
            client=client,
            limits=limits,
            segments=opened.segments if segments is None else segments,
        )

    @property
    def client(self) -> str:
        """The name under which monitoring shows the transactions that run here; by default host and process."""
        return self._client or f"{socket.gethostname()}:{os.getpid()}"

    @contextlib.contextmanager
    def connect(self, *, seconds: float | None = None) -> Iterator[sa.Connection]:
        """Lend a connection in autocommit mode; the database's errors are translated.

        :param seconds: how long each answer is waited for; by default an hour.
        """
        with self._forgetting(), self.pool.connect(seconds=seconds) as connection:
            yield connection

    @contextlib.contextmanager
    def begin(self, *, seconds: float | None = None) -> Iterator[Work]:
        """Open a SQL transaction for writing: committed at the end of the block, rolled back on any error.

        :param seconds: how long each answer is waited for; by default an hour.
        """
        with self.connect(seconds=seconds) as connection, self.dialect.steps.transaction(connection):
            yield Work(connection, self)

    @contextlib.contextmanager
    def read(self, *, seconds: float | None = None) -> Iterator[Reading]:
        """Lend a connection for reading, without a SQL transaction, which would cost two round trips.

        :param seconds: how long each answer is waited for; by default an hour.
        """
        with self.connect(seconds=seconds) as connection:
            yield Reading(connection, self)

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Translate a database's own errors into :class:`StoreUnavailable` or :class:`StoreNotCreated`."""
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

    def now(self, connection: sa.Connection) -> int:
        """Read the store's clock, in milliseconds since the epoch."""
        return self.dialect.steps.now(connection)

    def hint(self, store_id: str, queues: Collection[int]) -> None:
        """Leave word that entries were committed, for those that follow their queues; it takes microseconds.

        :param store_id: identity of the store.
        :param queues: numbers of the queues, or ``ALL_QUEUES`` where they are not known.
        """
        self.hints.tell(store_id, queues)

    def listen(self, store_id: str, queue: int) -> Listener | None:
        """Wait for hints of commits to a queue, on a connection of its own; None where none can come.

        :param store_id: identity of the store.
        :param queue: the number of the queue to which entries are added.
        """
        return self.hints.listen(store_id, queue)

    def borrowers(self) -> set[int]:
        """Return the threads that use a connection at this moment."""
        return self.pool.borrowers()

    def forget_connections(self) -> None:
        """Close all connections that are not in use at this moment."""
        self.pool.close_idle()

    def create_file(self) -> None:
        """Create the file of a store that is one; everything else only opens files."""
        if self.dialect.file is not None:
            self.forget_connections()
            with self._translator, self.pool.counted():
                self.dialect.file.create()

    def wait_until_tidy(self) -> None:
        """Wait until the space of removed entries is reclaimed, if that was begun."""
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
        """Be the database of a forked child.

        :param was_in_use: whether a thread of the parent may have been inside a file's library.
        """
        file = self.dialect.file
        self.pool.begin_anew(refusal=None if file is None else file.refusal_in_child(self.shown_url, was_in_use))
        self.hints.begin_anew()
        if self.tidying is not None:
            self.tidying.begin_anew()
        self.counters = Counters()
