"""Connections to PostgreSQL on which nothing is waited for without end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import psycopg
import sqlalchemy as sa
from psycopg import Connection
from psycopg.pq import TransactionStatus
from sqlalchemy import event

from export_queue.core.errors import StoreUnavailable
from export_queue.core.postgresql_connection import LONGEST_SECONDS, BoundedConnection
from export_queue.core.store.postgresql import errors as errors
from export_queue.core.store.postgresql.errors import async_commits, not_utf8, standby
from export_queue.core.store.seams import Driver

CONNECT_SECONDS = 10
"""How long a connection attempt may take."""

CLIENT_DEFAULTS = {
    "connect_timeout": CONNECT_SECONDS,
    "application_name": "export-queue",
    # A server whose host or network is gone is noticed after a minute, not after the system's two hours.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""Parameters of libpq, unless the URL gives others."""

IDLE_SECONDS = 20.0
"""How long a process may stand still inside of a SQL transaction before the server ends it."""

# The server's side of the same: a session whose client is gone may hold the registration of an id, and one whose client
# stands still (a stopped process, a suspended machine) rows that every claim of a queue waits for, whatever has become
# of its lease. Only where the server's administrator has said nothing; names that a server does not know are left out.
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
# No function or operator that somebody creates in a schema of the role's path is called; and what has been acknowledged
# survives a crash, whatever the default of the role or the database is. Only a session that is ours is set up: a pooler
# tells its clients of another process than the server's own.
_SET_UP = b"""
    select pg_catalog.pg_is_in_recovery(), s.is_ours,
           case when s.commits = 'off' and s.is_ours
                then pg_catalog.set_config('synchronous_commit', 'on', false) else s.commits end,
           case when s.is_ours then pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false) end
    from (select %s and pg_catalog.pg_backend_pid() operator(pg_catalog.=) %s,
                 pg_catalog.current_setting('synchronous_commit')) s(is_ours, commits)
"""


def bound_connections(engine: sa.Engine, *, settings: bool, password: str | Callable[[], str] | None = None) -> None:
    """Make an engine's connections bounded, and lend none whose server has already ended it.

    :param engine: made with ``pool_reset_on_return=None``, since the reset is done here.
    :param settings: whether the server sessions belong to us, as far as is known, so that they may be set up.
    :param password: the password, or a function that is asked at each new connection, since it may have changed.
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

    @event.listens_for(engine, "connect")  # the last step: the driver's own questions have been answered
    def _opened(raw: BoundedConnection, record: object) -> None:
        raw.answer_seconds = LONGEST_SECONDS

    @event.listens_for(engine, "reset")
    def _give_back(raw: BoundedConnection, record: object, state: object) -> None:
        raw.answer_seconds = LONGEST_SECONDS
        # On a closed connection the pool would log a failure that its user has been told of already.
        if not raw.closed and raw.pgconn.transaction_status != TransactionStatus.IDLE:
            raw.rollback()

    @event.listens_for(engine, "checkout")
    def _lend(raw: BoundedConnection, record: object, proxy: object) -> None:
        if not is_alive(raw):
            raise sa.exc.InvalidatePoolError


def bound_transaction(raw: Connection[Any]) -> None:
    """Bound how long a SQL transaction of a session that is not ours stays open while its client stands still."""
    raw.execute(_BOUND_TRANSACTION, (_idle_ms(),))


def _idle_ms() -> str:
    return str(int(IDLE_SECONDS * 1000))


def is_idle(raw: BoundedConnection) -> bool:
    """Tell whether a session is open, as far as is known here, and in no SQL transaction."""
    return raw.pgconn.transaction_status == TransactionStatus.IDLE  # of a closed one it is unknown


def may_prepare(raw: Connection[Any]) -> bool:
    """Tell whether a session is one server's: a pooler may give each SQL transaction another server process."""
    return raw.prepare_threshold is not None


def is_alive(raw: BoundedConnection) -> bool:
    """Tell whether an idle session may be lent: its server has not ended it. Asking would cost a trip."""
    return is_idle(raw) and not raw.has_input()


class PostgresDriver(Driver):
    """psycopg 3."""

    error: ClassVar[type[Exception]] = psycopg.Error

    def is_idle(self, raw: object) -> bool:
        return isinstance(raw, BoundedConnection) and is_idle(raw)

    def is_alive(self, raw: object) -> bool:
        return isinstance(raw, BoundedConnection) and is_alive(raw)

    def is_missing_table(self, error: BaseException) -> bool:
        return errors.is_missing_table(error)

    def explain(self, error: BaseException, url: str) -> StoreUnavailable | None:
        return errors.unavailable(error, where=f"store {url}") if errors.is_transient(error) else None
