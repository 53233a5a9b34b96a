"""Reads Airflow's connections: clear errors for missing ones, addresses of databases with the password kept apart."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from export_queue.core.errors import ConfigurationError, InvalidArgument

if TYPE_CHECKING:
    from airflow.sdk import Connection
    from sqlalchemy import URL

SQL_TYPES = ("postgres", "sqlite")
"""Connection types that lead to a SQL database."""

_LIBPQ_OPTIONS = frozenset(
    "application_name channel_binding client_encoding connect_timeout gssencmode hostaddr keepalives keepalives_count "
    "keepalives_idle keepalives_interval krbsrvname load_balance_hosts options passfile service sslcert sslcrl sslkey "
    "sslmode sslnegotiation sslrootcert target_session_attrs tcp_user_timeout".split()
)
"""Parameters of libpq; other extras of a postgres connection are for Airflow's own hook."""

_MYSQL_TLS = {"ca": "ssl_ca", "cert": "ssl_cert", "key": "ssl_key"}
"""Names of the files of TLS: in Airflow, and in the driver."""


class MissingConnection(ConfigurationError, AirflowNotFoundException):
    """Airflow has no connection of this id."""


@dataclass(frozen=True, slots=True)
class SqlAddress:
    """The address of a SQL database; the password never stands in the URL and is never shown.

    :param url: SQLAlchemy URL without a password.
    :param password: the password, or None.
    """

    url: str
    password: str | None = field(default=None, repr=False)

    @property
    def is_sqlite(self) -> bool:
        """Tell whether the database is a file that only this machine sees."""
        return self.url.startswith("sqlite")


def find_connection(conn_id: str, *, example: Mapping[str, Any]) -> Connection:
    """Return a connection.

    :param conn_id: id of the connection.
    :param example: fields of a fitting connection, for the error.
    :raises MissingConnection: Airflow has no such connection; the error shows the variable that would define it.
    """
    if not conn_id or not isinstance(conn_id, str):
        raise InvalidArgument(f"a connection's id: expected text, found {conn_id!r}")
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise missing(conn_id, example) from None


async def afind_connection(conn_id: str, *, example: Mapping[str, Any]) -> Connection:
    """Return a connection, from an event loop such as the triggerer's."""
    try:
        return await BaseHook.aget_connection(conn_id)
    except AirflowNotFoundException:
        raise missing(conn_id, example) from None


def missing(conn_id: str, example: Mapping[str, Any]) -> MissingConnection:
    """Build the error for a connection that Airflow does not know."""
    variable = f"AIRFLOW_CONN_{conn_id.upper()}"
    if variable in os.environ:
        # Airflow answers "not defined" also for a value that it cannot read.
        return MissingConnection(
            f"connection {conn_id!r} cannot be read: the value of {variable} is neither valid JSON nor a valid URI",
            hint=f"for example: {variable}='{json.dumps(dict(example))}'",
        )
    return MissingConnection(
        f"connection {conn_id!r} is not defined",
        hint=f"create it in Airflow, or set {variable}='{json.dumps(dict(example))}'",
    )


def option(extra: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """Read a field of a connection's extra; forms write untouched fields as null, so null means the default."""
    value = extra.get(name)
    return default if value is None or value == "" else value


def as_bool(value: Any) -> bool:
    """Read a switch; connections given as URIs carry texts."""
    if isinstance(value, str):
        return value.strip().lower() in ("1", "true", "t", "yes", "y", "on")
    return bool(value)


def as_int(value: Any, *, what: str) -> int:
    """Read a whole number; connections given as URIs carry texts."""
    try:
        return int(value)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{what}: expected a whole number, found {value!r}") from None


def sql_address(connection: Connection, extra: Mapping[str, Any]) -> SqlAddress:
    """Turn a ``postgres`` or ``sqlite`` connection into an address.

    :param connection: the connection.
    :param extra: its extra fields; the caller reads them, since an event loop does so in another way.
    :raises InvalidArgument: the connection has another type, or names no database.
    """
    if connection.conn_type == "sqlite":
        return _sqlite_address(connection)
    if connection.conn_type == "postgres":
        return _postgres_address(connection, extra)
    raise InvalidArgument(
        f"connection {connection.conn_id!r} has the type {connection.conn_type!r}; "
        f"expected one of {', '.join(SQL_TYPES)}"
    )


def mysql_address(connection: Connection, extra: Mapping[str, Any]) -> SqlAddress:
    """Turn a ``mysql`` connection into an address, as Airflow's MySQL provider reads it.

    :param connection: the connection.
    :param extra: its extra fields; ``ssl`` gives the files of TLS.
    :raises InvalidArgument: the connection names no database, or asks for something unsupported.
    """
    from sqlalchemy import URL

    where = f"connection {connection.conn_id!r}"
    if as_bool(extra.get("iam")):
        raise InvalidArgument(f"{where}: IAM authentication is not supported; use a password")
    if not connection.schema:
        raise InvalidArgument(f"{where} names no database", hint="the field is called Schema in the form")
    tls = extra.get("ssl") or {}
    if isinstance(tls, str):
        try:
            tls = json.loads(tls)
        except ValueError:
            tls = None
    if not isinstance(tls, dict) or set(tls) - set(_MYSQL_TLS):
        raise InvalidArgument(f"{where}: extra ssl: expected an object with some of {', '.join(_MYSQL_TLS)}")
    url = URL.create(
        "mysql+pymysql",
        username=connection.login or None,
        host=connection.host or "localhost",
        port=connection.port or 3306,
        database=connection.schema,
        query={_MYSQL_TLS[name]: str(value) for name, value in tls.items()},
    )
    return SqlAddress(url.render_as_string(hide_password=False), connection.password or None)


def split_url(text: str, *, where: str, login: str | None = None, password: str | None = None) -> SqlAddress:
    """Read a database URL that a person wrote, and separate the password from it.

    :param text: the URL.
    :param where: place of the URL, for errors.
    :param login: user of a URL that names none.
    :param password: password that precedes the URL's own.
    """
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(text.strip())
    except (ArgumentError, ValueError):
        # The text may hold a password, so it is not repeated.
        raise InvalidArgument(
            f"{where} is not a database URL",
            hint="expected postgresql+psycopg://host:port/database or sqlite:////absolute/path",
        ) from None
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    backend = url.get_backend_name()
    if backend == "sqlite":
        _check_path(url.database, where)
        return SqlAddress(url.render_as_string())
    if backend != "postgresql":
        raise InvalidArgument(f"{where}: expected a postgresql or sqlite URL, found {url.drivername}")
    return _without_password(url.set(username=url.username or login), password)


def _without_password(url: URL, password: str | None) -> SqlAddress:
    hidden = password or url.password or url.query.get("password")
    if isinstance(hidden, tuple):
        hidden = hidden[-1]
    # Built anew: URL.set(password=None) would keep the password.
    bare = (
        type(url)
        .create(
            url.drivername, username=url.username, host=url.host, port=url.port, database=url.database, query=url.query
        )
        .difference_update_query(["password"])
    )
    return SqlAddress(bare.render_as_string(hide_password=False), str(hidden) if hidden else None)


def _sqlite_address(connection: Connection) -> SqlAddress:
    # A URI puts an absolute path into the schema, the form and JSON into the host.
    path = connection.host or ""
    if not path and connection.schema:
        path = connection.schema if connection.schema.startswith("/") else f"/{connection.schema}"
    where = f"connection {connection.conn_id!r}"
    if path.startswith("sqlite:"):
        return split_url(path, where=where)
    _check_path(path, where)
    from sqlalchemy import URL

    return SqlAddress(URL.create("sqlite", database=path).render_as_string())


def _check_path(path: str | None, where: str) -> None:
    if not path or path == ":memory:" or not Path(path).is_absolute():
        raise InvalidArgument(
            f"{where}: expected the absolute path of a SQLite file, found {path!r}",
            hint="workers, the triggerer and Spark run in folders of their own",
        )


def _postgres_address(connection: Connection, extra: Mapping[str, Any]) -> SqlAddress:
    from sqlalchemy import URL

    where = f"connection {connection.conn_id!r}"
    if as_bool(extra.get("iam")):
        raise InvalidArgument(f"{where}: IAM authentication is not supported; use a password or a client certificate")
    if connection.host and "://" in connection.host:
        return split_url(connection.host, where=where, login=connection.login, password=connection.password)
    if not connection.schema:
        raise InvalidArgument(f"{where} names no database", hint="the field is called Schema or Database in the form")
    query = {name: str(value) for name, value in extra.items() if name in _LIBPQ_OPTIONS and value not in (None, "")}
    url = URL.create(
        "postgresql+psycopg",
        username=connection.login or None,
        host=connection.host or None,
        port=connection.port,
        database=connection.schema,
        query=query,
    )
    return _without_password(url, connection.password)
