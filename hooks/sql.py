"""The hook to a SQL sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from export_queue.core.errors import InvalidArgument, SinkConfigurationError
from export_queue.hooks.connections import SqlAddress, mysql_address, sql_address
from export_queue.hooks.sink import TEST_SECONDS, SinkHook

if TYPE_CHECKING:
    from airflow.sdk import Connection


class SqlSinkHook(SinkHook):
    """Describes the database of a ``sqlite``, ``postgres`` or ``mysql`` connection.

    :param sql_conn_id: id of the connection.
    """

    conn_name_attr = "sql_conn_id"
    default_conn_name = "sql_default"
    conn_type = "sql"
    hook_name = "SQL sink"

    kind = "sql"
    conn_types = ("sqlite", "postgres", "mysql")
    example: ClassVar[Mapping[str, Any]] = {"conn_type": "sqlite", "host": "/var/lib/copies.db"}
    from_connection = frozenset(("url", "password"))

    def __init__(self, sql_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(sql_conn_id, **kwargs)
        self.sql_conn_id = sql_conn_id

    def get_conn(self) -> Any:
        """Return a SQLAlchemy engine; the caller disposes of it."""
        import sqlalchemy

        from export_queue.core.drivers import bare_url, driver_arguments, parse_url

        address = self._address(self._find())
        where = f"connection {self.sql_conn_id!r}"
        url = parse_url(address.url, where=where)
        limits = {} if address.is_sqlite else {"connect_timeout": TEST_SECONDS}
        is_mysql = url.get_backend_name() == "mysql"
        secret = {"password": address.password.encode() if is_mysql else address.password} if address.password else {}
        return sqlalchemy.create_engine(
            bare_url(url),
            poolclass=sqlalchemy.NullPool,
            connect_args={**limits, **driver_arguments(url, where=where), **secret},
            hide_parameters=True,
        )

    def _address(self, connection: Connection) -> SqlAddress:
        try:
            read = mysql_address if connection.conn_type == "mysql" else sql_address
            return read(connection, connection.extra_dejson)
        except InvalidArgument as error:
            raise SinkConfigurationError(error.message, hint=error.hint) from None

    def _target(self, connection: Connection) -> tuple[dict[str, Any], dict[str, str]]:
        address = self._address(connection)
        return {"url": address.url}, {"password": address.password} if address.password else {}

    def _probe(self) -> str:
        from export_queue.core.sinks import SqlSink

        address = self._address(self._find())
        sink = SqlSink(address.url, password=address.password, timeout=TEST_SECONDS)
        try:
            return sink.probe()
        finally:
            sink.close()
