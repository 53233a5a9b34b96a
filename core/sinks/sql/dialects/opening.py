"""Which dialect a URL names."""

from __future__ import annotations

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from export_queue.core.errors import SinkConfigurationError
from export_queue.core.sinks.sql.dialects.protocol import Dialect, Password


def open_dialect(url: str, password: Password, timeout: float) -> Dialect:
    """Return the dialect for a database; nothing is connected yet.

    :param url: SQLAlchemy's URL.
    :param password: the password, or a function that finds it; by default the URL's.
    :param timeout: seconds to wait for locks and for an answer.
    :raises SinkConfigurationError: the URL names no database that can be a sink, or a driver is missing.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        # the text is not repeated: it may hold a password
        raise SinkConfigurationError(
            "url: expected sqlite:///path, postgresql://user@host/database, mysql://user@host/database, "
            "or another URL of SQLAlchemy"
        ) from None
    kind = parsed.get_backend_name()
    if kind == "sqlite":
        from export_queue.core.sinks.sql.dialects.sqlite import SqliteDialect

        return SqliteDialect(parsed, timeout=timeout)
    found = password if password is not None else parsed.password
    try:
        if kind in ("postgresql", "postgres"):
            from export_queue.core.sinks.sql.dialects.postgresql import PostgresDialect

            return PostgresDialect(_bare(parsed, "postgresql+psycopg"), password=found, timeout=timeout)
        if kind in ("mysql", "mariadb"):
            from export_queue.core.sinks.sql.dialects.mysql import MySqlDialect

            return MySqlDialect(_bare(parsed, "mysql+pymysql"), password=found, timeout=timeout)
    except ModuleNotFoundError as error:
        extra = "mysql" if kind in ("mysql", "mariadb") else "postgres"
        raise SinkConfigurationError(
            f"a sink on {kind} needs the module {error.name}",
            hint=f"pip install 'airflow-provider-export-queue[{extra}]'",
        ) from None
    from export_queue.core.sinks.sql.dialects.generic import GenericDialect

    return GenericDialect(_bare(parsed, parsed.drivername), password=found, timeout=timeout)


def _bare(url: URL, driver: str) -> URL:
    # set() would keep the password
    return url.set(drivername=driver)._replace(password=None)
