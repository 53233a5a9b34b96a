"""The differences between databases: one dialect each, chosen by the URL."""

from __future__ import annotations

from export_queue.core.drivers import check_sql_url, parse_url, password_of
from export_queue.core.errors import SinkConfigurationError
from export_queue.core.sinks.sql.dialects.protocol import (
    KEPT_OUT,
    URL_OPTION,
    Clash,
    Dialect,
    Password,
    Poison,
    SchemaChanged,
    TryAgain,
)

__all__ = ["KEPT_OUT", "Clash", "Dialect", "Password", "Poison", "SchemaChanged", "TryAgain", "open_dialect"]

_HINT = (
    "expected sqlite:///path, postgresql://user@host/database, mysql://user@host/database, or another URL of SQLAlchemy"
)


def open_dialect(url: str, password: Password, timeout: float) -> Dialect:
    """Return the dialect for a database, without connecting.

    :param password: the password, or a function that returns it; by default the URL's.
    :param timeout: seconds to wait for locks and for an answer.
    :raises SinkConfigurationError: the URL names no database that can be a sink, it has an option that the driver does
        not take, or a driver is missing.
    """
    parsed = parse_url(url, where=URL_OPTION, error=SinkConfigurationError, hint=_HINT)
    check_sql_url(parsed, where=URL_OPTION, error=SinkConfigurationError)
    kind = parsed.get_backend_name()
    if kind == "sqlite":
        from export_queue.core.sinks.sql.dialects.sqlite import SqliteDialect

        return SqliteDialect(parsed, timeout=timeout)
    found = password if password is not None else password_of(parsed)
    try:
        if kind in ("postgresql", "postgres"):
            from export_queue.core.sinks.sql.dialects.postgresql import PostgresDialect

            return PostgresDialect(parsed, password=found, timeout=timeout)
        if kind in ("mysql", "mariadb"):
            from export_queue.core.sinks.sql.dialects.mysql import MySqlDialect

            return MySqlDialect(parsed, password=found, timeout=timeout)
    except ModuleNotFoundError as error:
        extra = "mysql" if kind in ("mysql", "mariadb") else "postgres"
        raise SinkConfigurationError(
            f"a sink on {kind} needs the module {error.name}",
            hint=f"pip install 'airflow-provider-export-queue[{extra}]'",
        ) from None
    from export_queue.core.sinks.sql.dialects.generic import GenericDialect

    # url.set(password=None) would keep the password
    return GenericDialect(parsed._replace(password=None), password=found, timeout=timeout)
