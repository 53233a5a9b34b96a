"""One database under a store: engine, dialect, and SQL transactions that rooms pass on."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InvalidRequestError, NoSuchModuleError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import QueuePool

from export_queue.core.drivers import check_sql_url, parse_url, password_of
from export_queue.core.errors import InvalidArgument, StoreError, StoreNotCreated, StoreReplaced, StoreUnavailable
from export_queue.core.references import hide_secrets
from export_queue.core.store import forks
from export_queue.core.store.counters import Counters
from export_queue.core.store.hints import ALL_QUEUES, Channel, Hints, Listener
from export_queue.core.store.limits import Limits
from export_queue.core.store.place import parse_place

if TYPE_CHECKING:
    from export_queue.core.store.dialect import Clock, StoreDialect

log = logging.getLogger("export_queue.store")

_MOST_IDLE = 8
"""Connections that stay at hand between transactions; the pool takes back all others."""
_TIDY_SECONDS = 3600.0
"""How long the end waits for tidying, as for any answer."""
_HINT_SECONDS = 5.0
"""How long an answer to hints is waited for."""
MOST_SCHEMA_BYTES = 63
URL_HINT = "expected postgresql+psycopg://user@host:port/database or sqlite:////absolute/path"
_ENDED_AT_ONCE = "This connection is closed"
"""The pool's words when the connection in the place of a dead one is dead, too."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A connection for reading, lent for a block: each statement sees all commits before it."""

    connection: sa.Connection
    database: Database

    def now(self) -> int:
        """Read the store's clock, in milliseconds since the epoch."""
        return self.database.now(self.connection)


@dataclass(frozen=True, slots=True)
class Work(Reading):
    """An open SQL transaction of the store; rooms pass it on and never end it."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which store this is."""

    store_id: str
    schema_version: int
    oldest_code: int


class Loan:
    """A connection that one thread uses."""

    __slots__ = ("driver_connection", "pooled")

    driver_connection: Any
    """The driver's own: SQLAlchemy's would cost more than a statement."""
    pooled: sa.PoolProxiedConnection


class Database:
    """The connections of one process to one store.

    :param engine: SQLAlchemy engine in autocommit mode: this class opens and ends SQL transactions itself.
    :param dialect: the steps of a transaction as this database does them best.
    """

    def __init__(
        self,
        engine: sa.Engine,
        dialect: StoreDialect,
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
        """The store that is there, once it has been checked; None again when another one was found in its place."""
        self.counters = Counters()
        """Ends of this process's transactions, counted."""
        self._client = client
        self.left_behind: set[int] = set()
        """Long transactions whose abort did not reach the store; they are aborted at a later start."""
        self.expired_at = 0.0
        """Monotonic seconds of this process's last look for late transactions."""
        # The last used one first: its caches are warm. The pool's own way out and in would cost as much as a statement.
        self._idle: list[tuple[sa.PoolProxiedConnection, object]] = []
        self._lent: dict[object, int] = {}
        """The threads that use a connection, or are about to, by their loans."""
        self._refusal: StoreError | None = None
        """Why this process may not use the store."""
        self._tidying: threading.Thread | None = None
        self._begin_hints()
        forks.follow(self)

    @classmethod
    def open(
        cls,
        url: str,
        *,
        password: str | Callable[[], str] | None = None,
        schema: str = "export_queue",
        behind_pooler: bool = False,
        clock: Clock | None = None,
        client: str | None = None,
        limits: Limits | None = None,
        segments: str | None = None,
    ) -> Database:
        """Prepare connections; nothing is sent yet.

        :param url: ``sqlite:///path`` or ``postgresql+psycopg://user@host/database``.
        :param password: a password that is kept out of the URL, or a function that tells it at each new connection.
        :param schema: the PostgreSQL schema that is the store; SQLite has one store a file.
        :param behind_pooler: whether the URL leads to a pooler in transaction mode (PgBouncer), for PostgreSQL.
        :param clock: the host's clock, for SQLite; PostgreSQL uses the server's.
        :param client: the name under which monitoring shows the transactions that run here.
        :param limits: time-outs and sizes of its transactions.
        :param segments: the place of files with bulk entries, a URL or an absolute path; for SQLite by default a folder
            beside the file.
        :raises InvalidArgument: the URL is of another kind, or the place of segments is refused.
        """
        if segments is not None:
            segments = parse_place(segments)
        parsed = parse_url(url, where="the store's URL", hint=URL_HINT)
        backend = parsed.get_backend_name()
        shown = hide_secrets(parsed.render_as_string(hide_password=True))
        if backend == "sqlite":
            from export_queue.core.store.sqlite.dialect import SqliteDialect
            from export_queue.core.store.sqlite.file import StoreFile, open_engine

            if not parsed.database or parsed.database == ":memory:" or parsed.database.startswith("file:"):
                raise InvalidArgument(f"a store needs the path of a file that processes can share, found {shown}")
            check_sql_url(parsed, where="the store's URL")
            file = StoreFile(str(Path(parsed.database).absolute()))
            parsed = parsed.set(database=file.path)
            shown = hide_secrets(parsed.render_as_string(hide_password=True))
            engine, dialect = open_engine(parsed, file), SqliteDialect(file, clock or _host_clock)
            place = f"{os.path.normpath(file.path)}.segments" if segments is None else segments
            return cls(engine, dialect, shown_url=shown, client=client, limits=limits, segments=place)
        if backend in ("postgresql", "postgres"):
            _check_schema(schema)
            try:
                from export_queue.core.store.postgresql.dialect import PostgresDialect
                from export_queue.core.store.postgresql.dialect import open_engine as open_postgres

                postgres = open_postgres(
                    parsed,
                    schema,
                    behind_pooler=behind_pooler,
                    password=password if password is not None else password_of(parsed),
                )
                steps = PostgresDialect(schema, postgres, behind_pooler=behind_pooler)
                return cls(postgres, steps, shown_url=shown, client=client, limits=limits, segments=segments)
            except (ImportError, NoSuchModuleError) as error:
                raise InvalidArgument(
                    f"{shown} needs psycopg, which is not installed",
                    hint="pip install 'airflow-provider-export-queue[postgres]'",
                ) from error
        raise InvalidArgument(f"a store lives in sqlite or postgresql, found {backend!r}")

    @property
    def client(self) -> str:
        """The name under which monitoring shows the transactions that run here; by default host and process."""
        return self._client or f"{socket.gethostname()}:{os.getpid()}"

    def check_out(self) -> Loan:
        """Open or reuse a connection of the driver in autocommit mode; :meth:`check_in` ends the loan.

        What is lent is not compared with the place it came from: whoever takes a snapshot or writes does that.

        :raises StoreUnavailable: with ``sent`` false.
        :raises StoreError: this process may not use the store.
        """
        loan = Loan()
        # Counted first: from then on a fork waits for this thread, or this thread sees the fork.
        self._lent[loan] = threading.get_ident()
        try:
            if forks.gate.forking or self._refusal is not None:
                self._hold_back(loan)
            while self._idle:
                try:
                    loan.pooled, loan.driver_connection = self._idle.pop()
                except IndexError:  # another thread has taken it
                    break
                if self.dialect.is_alive(loan.driver_connection):
                    return loan
                loan.pooled.invalidate()
                loan.pooled.close()
            self.dialect.require_in_place()
            with self._unsent():
                loan.pooled = self.engine.raw_connection()
            loan.driver_connection = loan.pooled.driver_connection
        except BaseException:
            self._lent.pop(loan, None)
            raise
        return loan

    def check_in(self, loan: Loan) -> None:
        """Take back a connection of :meth:`check_out`."""
        if len(self._idle) < _MOST_IDLE and self.dialect.is_idle(loan.driver_connection):
            self._idle.append((loan.pooled, loan.driver_connection))
        else:
            loan.pooled.close()
        self._lent.pop(loan, None)

    @contextlib.contextmanager
    def connect(self, *, seconds: float | None = None) -> Iterator[sa.Connection]:
        """Lend a connection in autocommit mode; errors of the database come out as this library's.

        :param seconds: how long each answer is waited for; an hour.
        """
        loan = Loan()
        self._lent[loan] = threading.get_ident()
        try:
            if forks.gate.forking or self._refusal is not None:
                self._hold_back(loan)
            self.dialect.require_in_place()
            with contextlib.suppress(IndexError):
                self._idle.pop()[0].close()  # no process should need a session more than it uses at once
            pool = self.engine.pool
            with self._unsent():
                connection = self.engine.connect()
        except BaseException:
            self._lent.pop(loan, None)
            raise
        try:
            if seconds is not None:
                self.dialect.limit(connection.connection.driver_connection, seconds)
            with self.translated():
                yield connection
        except BaseException as error:
            # Giving it back would ask a server that may be gone, or that an interruption has left in mid-statement.
            if isinstance(error, StoreUnavailable) or not self._is_idle(connection):
                connection.invalidate()
            raise
        finally:
            if pool is not self.engine.pool:  # a pool that was given up meanwhile would keep it open
                connection.invalidate()
            connection.close()
            self._lent.pop(loan, None)

    def _hold_back(self, loan: Loan) -> None:
        """Wait for a fork that has begun, unless this thread has borrowed already: the fork waits for it to end.

        :raises StoreError: this process may not use the store.
        """
        thread = self._lent[loan]
        while forks.gate.forking and list(self._lent.copy().values()).count(thread) == 1:
            del self._lent[loan]
            is_over = forks.gate.wait()
            self._lent[loan] = thread
            if not is_over:
                break
        if self._refusal is not None:
            raise StoreError(self._refusal.message, hint=self._refusal.hint)

    def _is_idle(self, connection: sa.Connection) -> bool:
        return connection.invalidated or self.dialect.is_idle(connection.connection.driver_connection)

    @contextlib.contextmanager
    def begin(self, *, seconds: float | None = None) -> Iterator[Work]:
        """Open a SQL transaction for writing: committed at the end of the block, rolled back on any error.

        :param seconds: how long each answer is waited for; an hour.
        """
        with self.connect(seconds=seconds) as connection, self.dialect.transaction(connection):
            yield Work(connection, self)

    @contextlib.contextmanager
    def _unsent(self) -> Iterator[None]:
        try:
            with self.translated():
                yield
        except StoreUnavailable as error:
            error.sent = False
            raise

    @contextlib.contextmanager
    def read(self, *, seconds: float | None = None) -> Iterator[Reading]:
        """Lend a connection for reading; without a SQL transaction, which would cost two round trips.

        :param seconds: how long each answer is waited for; an hour.
        """
        with self.connect(seconds=seconds) as connection:
            yield Reading(connection, self)

    def translated(self) -> Translated:
        """Turn a database's own errors into :class:`StoreUnavailable` or :class:`StoreNotCreated`."""
        return Translated(self)

    def translate(self, error: BaseException) -> Exception | None:
        """Find this library's error for one of the database; None for all others."""
        if isinstance(error, StoreReplaced):
            self.identity = None
            return None
        if isinstance(error, PoolTimeout):
            return StoreUnavailable(
                f"store {self.shown_url}: all connections of this process are taken",
                hint="each read, write and commit under way takes one: do fewer at once",
            )
        if isinstance(error, InvalidRequestError) and str(error) == _ENDED_AT_ONCE:
            return StoreUnavailable(f"store {self.shown_url}: sessions end as soon as they begin")
        if isinstance(error, DBAPIError):
            return self._translate(error.orig or error)
        if isinstance(error, StatementError) and isinstance(error.orig, Exception):
            return error.orig  # no error of the database's: of a signal's handler, which SQLAlchemy has wrapped
        return self._translate(error) if isinstance(error, self.dialect.driver_error) else None

    def _translate(self, error: BaseException) -> Exception:
        if self.dialect.is_missing_table(error):
            return StoreNotCreated(f"{self.shown_url} holds no store")
        explained = self.dialect.explain(error, self.shown_url)
        if explained is not None:
            return explained
        return error if isinstance(error, Exception) else StoreUnavailable(str(error))

    def now(self, connection: sa.Connection) -> int:
        """Read the store's clock, in milliseconds since the epoch."""
        return self.dialect.now(connection)

    def forget_connections(self) -> None:
        """Close all connections that are not in use at this moment."""
        with self._counted():
            self._close_idle()

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Count this thread among the borrowers, as one that is not held back by a fork."""
        loan = object()
        self._lent[loan] = threading.get_ident()
        try:
            yield
        finally:
            del self._lent[loan]

    def _close_idle(self) -> None:
        while self._idle:
            with contextlib.suppress(IndexError):
                connection = self._idle.pop()[0]
                connection.invalidate()  # its pool may have been given up, and would keep it open
                connection.close()
        self.engine.dispose()

    def tidy_beside(self) -> None:
        """Reclaim the space of removed entries beside what this process does next."""
        if self._tidying is None or not self._tidying.is_alive():
            self._tidying = threading.Thread(target=self._tidy, name="export-queue-tidying", daemon=True)
            self._tidying.start()

    def _tidy(self) -> None:
        try:
            with self.connect() as connection:
                self.dialect.tidy_entries(connection)
        except Exception as error:  # whoever removes entries next tries again
            log.debug("the space of removed entries was not reclaimed: %s", error)

    def wait_until_tidy(self) -> None:
        """Wait for what :meth:`tidy_beside` has begun."""
        if self._tidying is not None:
            self._tidying.join(_TIDY_SECONDS)

    def hint(self, store_id: str, queues: Collection[int]) -> None:
        """Leave word that entries were committed, for those that follow their queues; it takes microseconds.

        :param store_id: identity of the store.
        :param queues: numbers of the queues, or ``ALL_QUEUES`` where they are not known.
        """
        if self.dialect.has_hints:
            self.hints.tell(store_id, queues)

    def _begin_hints(self) -> None:
        method = weakref.WeakMethod(self._send_hints)  # a thread that waits for commits keeps no database

        def send(channels: Collection[Channel]) -> bool | None:
            send_now = method()
            return False if send_now is None else send_now(channels)

        self.hints = Hints(send)
        """Where commits leave word for those that follow their queues."""
        self._abandoned = weakref.finalize(self, self.hints.stop)
        self._abandoned.atexit = False

    def _send_hints(self, channels: Collection[Channel]) -> bool | None:
        """Send hints by a connection that nobody uses at this moment; None where there is none.

        A commit that comes meanwhile opens another connection, and no commit ever waits for this one: it goes back to
        the pool itself.
        """
        if not self.dialect.has_hints or self._refusal is not None:
            return False
        with self._counted():
            pool = self.engine.pool
            found = self._unused()
            if found is None:
                return None
            pooled, raw = found
            try:
                self.dialect.limit(raw, _HINT_SECONDS)
                return self.dialect.send_hints(raw, channels)
            except BaseException:
                pooled.invalidate()
                raise
            finally:
                if pool is not self.engine.pool:  # as in connect()
                    pooled.invalidate()
                pooled.close()

    def _unused(self) -> tuple[sa.PoolProxiedConnection, object] | None:
        """Take a connection that is open and that nobody uses; None where there is none."""
        with contextlib.suppress(IndexError):
            pooled, raw = self._idle.pop()
            if self.dialect.is_alive(raw):
                return pooled, raw
            pooled.invalidate()
            pooled.close()
        pool = self.engine.pool
        if not isinstance(pool, QueuePool) or not pool.checkedin():
            return None
        with self.translated():
            pooled = self.engine.raw_connection()
        return pooled, pooled.driver_connection

    def listen(self, store_id: str, queue: int) -> Listener | None:
        """Wait for hints of what is committed to a queue, by a connection of its own; None where none can come.

        :param store_id: identity of the store.
        :param queue: the number of the queue to which entries are added.
        """
        if not self.dialect.has_hints:
            return None
        with self._unsent():
            pooled = self.engine.raw_connection()
        try:
            raw = pooled.driver_connection
            pooled.detach()
            with self.translated():
                return self.dialect.listen(raw, [Channel.of(store_id, number) for number in (queue, ALL_QUEUES)])
        except BaseException:
            pooled.close()
            raise

    def close(self) -> None:
        """Close all connections, once the space of removed entries is reclaimed, if that was begun."""
        self.wait_until_tidy()
        self.hints.close()
        self.forget_connections()
        self.dialect.forget_place()

    def create_place(self) -> None:
        """Create the file of a store that is one; everything else opens files only."""
        self.forget_connections()
        with self.translated(), self._counted():
            self.dialect.create_place()

    def borrowers(self) -> set[int]:
        """Return the threads that use a connection at this moment."""
        return set(self._lent.copy().values())

    def begin_anew(self, *, was_in_use: bool) -> None:
        """Be the database of a forked child: the connections of the parent are none of this process's.

        :param was_in_use: whether a thread of the parent may have been inside of a file's library.
        """
        forks.leave_to_parent((self._idle, self.engine.pool))
        self._idle = []
        self._lent = {}
        self._tidying = None
        self._abandoned.detach()
        forks.leave_to_parent(self.hints)
        self._begin_hints()
        self.engine.dispose(close=False)
        self.counters = Counters()
        self._refusal = self.dialect.refusal_in_child(self.shown_url, was_in_use=was_in_use)


def _check_schema(name: str) -> None:
    """Check the name of a schema; the server would cut a longer one, which may be that of another store then.

    :raises InvalidArgument: the message says what is allowed.
    """
    if not 0 < len(name.encode()) <= MOST_SCHEMA_BYTES or any(character in name for character in "'%\x00"):
        raise InvalidArgument(
            f"schema: expected a name of 1 to {MOST_SCHEMA_BYTES} bytes without ' and %, found {name[:100]!r}"
        )
    if name.startswith("pg_"):
        raise InvalidArgument(f"schema: PostgreSQL keeps names that begin with pg_ for itself, found {name!r}")


def schema_of(connection: sa.Connection) -> str:
    """Name the PostgreSQL schema that holds the store."""
    return str(connection.get_execution_options()["schema_translate_map"][None])


def prefix_of(connection: sa.Connection) -> str:
    """Return the prefix of the store's names in a statement: the quoted schema and a point, nothing on SQLite."""
    if connection.dialect.name != "postgresql":
        return ""
    return connection.dialect.identifier_preparer.quote_schema(schema_of(connection)) + "."


class Translated:
    """A block whose database's errors come out as this library's; a class, since each step of a transaction has one."""

    __slots__ = ("_database",)

    def __init__(self, database: Database) -> None:
        self._database = database

    def __enter__(self) -> None:
        """Nothing: only the end counts."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        translated = self._database.translate(error)
        if translated is not None and translated is not error:
            cause = getattr(error, "orig", None) or error
            raise translated from (translated.__cause__ if cause is translated else cause)


def _host_clock() -> int:
    return time.time_ns() // 1_000_000
