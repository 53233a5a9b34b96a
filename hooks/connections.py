"""Reading Airflow's connections: clear errors for missing ones, database addresses with a separate password."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from export_queue.core.errors import ConfigurationError, InvalidArgument
from export_queue.core.references import has_password
from export_queue.hooks.described import environment

if TYPE_CHECKING:
    from airflow.sdk import Connection

SQL_TYPES = ("postgres", "sqlite")
"""Connection types of SQL databases."""
_CONTEXT = "_AIRFLOW_PROCESS_CONTEXT"
"""The environment variable by which Airflow knows the kind of process."""


class MissingConnection(ConfigurationError, AirflowNotFoundException):
    """Airflow has no connection with this id."""


@dataclass(frozen=True, slots=True)
class SqlAddress:
    """The address of a SQL database. The password is never part of the URL and never shown.

    :param url: SQLAlchemy URL without a password.
    :param password: the password, or None.
    """

    url: str
    password: str | None = field(default=None, repr=False)

    @property
    def is_sqlite(self) -> bool:
        """Return whether the database is a file, which only this machine can open."""
        return self.url.startswith("sqlite")


def find_connection(conn_id: str, *, example: Mapping[str, Any]) -> Connection:
    """Return a connection.

    :param example: fields of a valid connection, for the error.
    :raises MissingConnection: Airflow has no such connection; the error shows the variable that would define it.
    :raises InvalidArgument: its extra is not a JSON object.
    """
    _check_id(conn_id)
    try:
        with _as_airflows_own_commands():
            return _with_readable_extra(BaseHook.get_connection(conn_id))
    except AirflowNotFoundException:
        raise missing(conn_id, example) from None


async def afind_connection(conn_id: str, *, example: Mapping[str, Any]) -> Connection:
    """Return a connection, from an event loop such as the triggerer's."""
    _check_id(conn_id)
    try:
        with _as_airflows_own_commands():
            return _with_readable_extra(await BaseHook.aget_connection(conn_id))
    except AirflowNotFoundException:
        raise missing(conn_id, example) from None


def _check_id(conn_id: object) -> None:
    if not conn_id or not isinstance(conn_id, str):
        raise InvalidArgument(f"a connection's id: expected text, found {conn_id!r}")
    if has_password(conn_id):
        raise InvalidArgument(
            "a connection's id: expected an id, found a URL with a password (it is not shown)",
            hint="define a connection of Airflow with this URL, and give its id",
        )


def _with_readable_extra(connection: Connection) -> Connection:
    """Refuse an extra that Airflow cannot read. Airflow would ignore it, with all that it requires."""
    try:
        found = json.loads(connection.extra or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidArgument(
            f"connection {connection.conn_id!r}: its extra is no JSON object (what was found is not shown)",
            hint='for example {"sslmode": "require"}, with double quotes',
        )
    return connection


async def aextra(connection: Connection) -> dict[str, Any]:
    """Return the extra fields of a connection, whose values Airflow masks in logs from now on, from an event loop.

    Airflow has a method for this only since 3.3.2.
    """
    from airflow.sdk.log import amask_secret

    extra: dict[str, Any] = json.loads(connection.extra or "{}")
    await amask_secret(extra)
    return extra


def _as_airflows_own_commands() -> AbstractContextManager[None]:
    # Outside a task Airflow reads only variables and secrets backends, unless a process declares that it may use
    # Airflow's database. A user's script or command line may, as `airflow connections` does.
    return nullcontext() if _CONTEXT in os.environ else environment({_CONTEXT: "server"})


def missing(conn_id: str, example: Mapping[str, Any]) -> MissingConnection:
    """Make the error for a connection that Airflow does not know."""
    variable = f"AIRFLOW_CONN_{conn_id.upper()}"
    if variable in os.environ:
        # Airflow reports "not defined" also for a value that it cannot read.
        return MissingConnection(
            f"connection {conn_id!r} cannot be read: the value of {variable} is neither valid JSON nor a valid URI",
            hint=f"for example: {variable}='{json.dumps(dict(example))}'",
        )
    return MissingConnection(
        f"connection {conn_id!r} is not defined",
        hint=f"create it in Airflow, or set {variable}='{json.dumps(dict(example))}'",
    )


def option(extra: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """Read a field of a connection's extra. Forms write untouched fields as null, so null means the default."""
    value = extra.get(name)
    return default if value is None or value == "" else value


def sql_address(connection: Connection, extra: Mapping[str, Any]) -> SqlAddress:
    """Convert a ``postgres`` or ``sqlite`` connection to an address.

    :param extra: its extra fields; the caller reads them, because an event loop does so in another way.
    :raises InvalidArgument: the connection has another type, or names no database.
    """
    if connection.conn_type == "sqlite":
        return _sqlite_address(connection, extra)
    if connection.conn_type == "postgres":
        return _postgres_address(connection, extra)
    raise InvalidArgument(
        f"connection {connection.conn_id!r} has the type {connection.conn_type!r}; "
        f"expected one of {', '.join(SQL_TYPES)}"
    )


def mysql_address(connection: Connection, extra: Mapping[str, Any]) -> SqlAddress:
    """Convert a ``mysql`` connection to an address, as Airflow's MySQL provider reads it.

    :raises InvalidArgument: the connection names no database, or requires something unsupported.
    """
    from sqlalchemy import URL

    from export_queue.core.drivers import check_sql_url, mysql_options, query_of

    where = f"connection {connection.conn_id!r}"
    options = mysql_options(extra, where=where)
    _check_host(connection.host, where)
    if connection.host and (re.search(r"[/@,%]", connection.host) or connection.host.count(":") == 1):
        raise InvalidArgument(
            f"{where}: expected the name or address of one host; port and unix_socket are of their own"
        )
    if not connection.schema:
        raise InvalidArgument(f"{where} names no database", hint="the field is called Schema in the form")
    url = URL.create(
        "mysql+pymysql",
        username=connection.login or None,
        host=(connection.host or "localhost").strip("[]"),
        port=connection.port or 3306,
        database=connection.schema,
        query=query_of(options),
    )
    check_sql_url(url, where=where)
    return SqlAddress(url.render_as_string(hide_password=False), connection.password or None)


def split_url(text: str, *, where: str, login: str | None = None, password: str | None = None) -> SqlAddress:
    """Parse a database URL, and separate the password from it.

    :param where: where the URL was found, for errors.
    :param login: user, if the URL names none.
    :param password: takes precedence over the URL's password.
    :raises InvalidArgument: the URL is not valid, has an option that its driver does not accept, or names another user.
    """
    from export_queue.core.drivers import check_sql_url, parse_url, password_of, postgresql_arguments, postgresql_url

    url = parse_url(
        text, where=where, hint="expected postgresql+psycopg://host:port/database or sqlite:////absolute/path"
    )
    backend = url.get_backend_name()
    if backend not in ("postgresql", "postgres", "sqlite"):
        raise InvalidArgument(f"{where}: expected a postgresql or sqlite URL, found {url.drivername}")
    if backend == "sqlite":
        _check_path(url.database, where)
        check_sql_url(url, where=where)
        if login or password:
            raise InvalidArgument(f"{where}: a SQLite file has no user and no password")
        return SqlAddress(url.render_as_string())
    arguments = postgresql_arguments(url, where=where)
    if login and arguments.setdefault("user", login) != login:
        raise InvalidArgument(f"{where}: the URL names another user than the field Login")
    return SqlAddress(postgresql_url(arguments).render_as_string(), password or password_of(url) or None)


def _sqlite_address(connection: Connection, extra: Mapping[str, Any]) -> SqlAddress:
    from sqlalchemy import URL

    from export_queue.core.drivers import SQLITE

    # A URI puts an absolute path into the schema, the form and JSON into the host.
    where = f"connection {connection.conn_id!r}"
    SQLITE.read(extra, where=where)
    refuse_fields(connection, "login", "password", "port", *(("schema",) if connection.host else ()))
    path = connection.host or ""
    if not path and connection.schema:
        path = connection.schema if connection.schema.startswith("/") else f"/{connection.schema}"
    if path.startswith("sqlite:"):
        return split_url(path, where=where)
    if "?" in path:
        raise InvalidArgument(f"{where}: options behind a ? cannot be honoured", hint="give the path of the file alone")
    _check_path(path, where)
    return SqlAddress(URL.create("sqlite", database=path).render_as_string())


def _check_path(path: str | None, where: str) -> None:
    if not path or path == ":memory:" or not Path(path).is_absolute():
        raise InvalidArgument(
            f"{where}: expected the absolute path of a SQLite file, found {path!r}",
            hint="workers, the triggerer and Spark run in folders of their own",
        )


def refuse_fields(connection: Connection, *names: str) -> None:
    """Refuse fields that have no meaning in a connection of this kind."""
    if filled := [name for name in names if getattr(connection, name)]:
        raise InvalidArgument(
            f"connection {connection.conn_id!r}: {', '.join(filled)} cannot be honoured",
            hint="fields are never ignored: leave what has no meaning here empty",
        )


def _check_host(host: str | None, where: str) -> None:
    if host and re.search(r"[?#\s]", host):
        raise InvalidArgument(f"{where}: expected a host, without options", hint="options are extras of the connection")


def _postgres_address(connection: Connection, extra: Mapping[str, Any]) -> SqlAddress:
    from export_queue.core.drivers import POSTGRESQL, POSTGRESQL_ADDRESS, postgresql_arguments, postgresql_url

    where = f"connection {connection.conn_id!r}"
    address = {"user": connection.login, "host": connection.host, "port": connection.port, "dbname": connection.schema}
    # As in a URI, postgres://user@/database?host=/folder
    given = {name: extra[name] for name, value in address.items() if not value and extra.get(name)}
    in_extra = POSTGRESQL_ADDRESS.read(given, where=where)
    options = POSTGRESQL.read({name: extra[name] for name in extra.keys() - in_extra}, where=where)
    if connection.host and "://" in connection.host:
        refuse_fields(connection, "schema", "port")
        if options:
            raise InvalidArgument(f"{where}: its host is a URL, which has the options {', '.join(options)} as its own")
        return split_url(connection.host, where=where, login=connection.login, password=connection.password)
    found = {name: str(value) for name, value in (address | in_extra).items() if value}
    _check_host(found.get("host"), where)
    if "dbname" not in found and "service" not in options:
        raise InvalidArgument(f"{where} names no database", hint="the field is called Schema or Database in the form")
    url = postgresql_url(found | options)
    postgresql_arguments(url, where=where)
    return SqlAddress(url.render_as_string(), connection.password or None)
