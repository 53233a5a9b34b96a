"""Connections to PostgreSQL on which every wait has a limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import psycopg
import sqlalchemy as sa
from psycopg import Connection
from psycopg.pq import TransactionStatus
from sqlalchemy import event

from export_queue.core.errors import StoreError
from export_queue.core.postgresql_connection import LONGEST_SECONDS, BoundedConnection
from export_queue.core.store.postgresql import errors as errors
from export_queue.core.store.postgresql.errors import async_commits, not_utf8, standby
from export_queue.core.store.seams import Driver

CONNECT_SECONDS = 10
"""Time limit of a connection attempt."""

CLIENT_DEFAULTS = {
    "connect_timeout": CONNECT_SECONDS,
    "fallback_application_name": "export-queue",
    # The loss of a server's host or network is noticed after a minute, not after the system's two hours.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""Parameters of libpq, unless the URL gives others."""

IDLE_SECONDS = 20.0
"""How long a process may be idle in a SQL transaction before the server ends it."""

# The same for the server. A session whose client is gone may hold the registration of an id. One whose client does not
# run (a stopped process, a suspended machine) may hold rows that all claims of a queue need, even without a lease. Only
# settings with the server's defaults are changed; unknown names are skipped.
_SERVER_DEFAULTS = b"""
    select pg_catalog.set_config(s.name, v.value, false)
    from (values ('tcp_keepalives_idle', '30'), ('tcp_keepalives_interval', '10'), ('tcp_keepalives_count', '3'),
                 ('tcp_user_timeout', '60000'), ('client_connection_check_interval', '10000'),
                 ('idle_in_transaction_session_timeout', %s)) v(name, value)
    join pg_catalog.pg_settings s on s.name = v.name and s.source = 'default'
"""
_BOUND_TRANSACTION = b"""
    select pg_catalog.set_config(s.name, %s, true)
    from pg_catalog.pg_settings s where s.name = 'idle_in_transaction_session_timeout' and s.setting = '0'
"""
# Functions and operators that somebody creates in a schema of the role's path are never called, and acknowledged data
# survives a crash, whatever the default of the role or the database is. Only our own sessions are set up: behind a
# pooler, clients see another process id than that of the server's session.
_SET_UP = b"""
    select pg_catalog.pg_is_in_recovery(), s.is_ours,
           case when s.commits = 'off' and s.is_ours
                then pg_catalog.set_config('synchronous_commit', 'on', false) else s.commits end,
           case when s.is_ours then pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false) end
    from (select %s and pg_catalog.pg_backend_pid() operator(pg_catalog.=) %s,
                 pg_catalog.current_setting('synchronous_commit')) s(is_ours, commits)
"""


def bound_connections(engine: sa.Engine, *, settings: bool, password: str | Callable[[], str] | None = None) -> None:
    """Limit the waits on an engine's connections, and lend none that its server has ended.

    :param engine: made with ``pool_reset_on_return=None``, since the reset is done here.
    :param settings: whether the server sessions seem to be our own, so that they may be set up.
    :param password: the password, or a function that is called for each new connection, since it may have changed.
    """

    @event.listens_for(engine, "do_connect")
    def _open(dialect: object, record: object, arguments: Any, options: Any) -> BoundedConnection:
        if password is not None:
            options["password"] = password() if callable(password) else password
        raw = BoundedConnection.open(*arguments, autocommit=True, **options)
        try:
            raw.answer_seconds = CONNECT_SECONDS
            encoding = raw.info.parameter_status("server_encoding")
            if encoding not in ("UTF8", None):
                raise not_utf8(raw.info.dbname, encoding)
            found = raw.execute(_SET_UP, (settings, raw.info.backend_pid)).fetchone()
            assert found is not None
            is_standby, is_ours, commits, _ = found
            if is_standby:
                raise standby()
            if commits == "off":
                raise async_commits()  # the session is not ours to set up
            if is_ours:
                raw.execute(_SERVER_DEFAULTS, (_idle_ms(),))
            else:
                raw.prepare_threshold = None
        except BaseException:
            raw.close()
            raise
        return raw

    @event.listens_for(engine, "connect")  # the last step, after the driver's own statements
    def _opened(raw: BoundedConnection, record: object) -> None:
        raw.answer_seconds = LONGEST_SECONDS

    @event.listens_for(engine, "reset")
    def _give_back(raw: BoundedConnection, record: object, state: object) -> None:
        raw.answer_seconds = LONGEST_SECONDS
        # On a closed connection the pool would log a failure that its user already knows.
        if not raw.closed and raw.pgconn.transaction_status != TransactionStatus.IDLE:
            raw.rollback()

    @event.listens_for(engine, "checkout")
    def _lend(raw: BoundedConnection, record: object, proxy: object) -> None:
        if not is_alive(raw):
            raise sa.exc.InvalidatePoolError


def bound_transaction(raw: Connection[Any]) -> None:
    """Limit how long a SQL transaction of a pooler's session stays open while its client does not run."""
    raw.execute(_BOUND_TRANSACTION, (_idle_ms(),))


def _idle_ms() -> str:
    return str(int(IDLE_SECONDS * 1000))


def is_idle(raw: BoundedConnection) -> bool:
    """Return whether a session is open, as far as is known here, and in no SQL transaction."""
    return raw.pgconn.transaction_status == TransactionStatus.IDLE  # of a closed one it is unknown


def may_prepare(raw: Connection[Any]) -> bool:
    """Return whether all SQL transactions of a session run in one server process, unlike behind a pooler."""
    return raw.prepare_threshold is not None


def is_alive(raw: BoundedConnection) -> bool:
    """Return whether an idle session may be lent because its server has not ended it, without a round trip."""
    return is_idle(raw) and not raw.has_input()


class PostgresDriver(Driver):
    """psycopg 3, for a store in a schema."""

    error: ClassVar[type[Exception]] = psycopg.Error

    def __init__(self, schema: str) -> None:
        self._schema = schema

    def is_idle(self, raw: object) -> bool:
        return isinstance(raw, BoundedConnection) and is_idle(raw)

    def is_alive(self, raw: object) -> bool:
        return isinstance(raw, BoundedConnection) and is_alive(raw)

    def is_missing_table(self, error: BaseException) -> bool:
        return errors.is_missing_table(error)

    def explain(self, error: BaseException, url: str) -> StoreError | None:
        if errors.is_missing_right(error):
            return errors.missing_right(
                error, where=f"store {url}", schema=self._schema, role=sa.make_url(url).username
            )
        return errors.unavailable(error, where=f"store {url}") if errors.is_transient(error) else None
