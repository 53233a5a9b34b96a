"""The hook to a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from export_queue.core.errors import ExportQueueError, InvalidArgument
from export_queue.hooks.connections import (
    SqlAddress,
    afind_connection,
    as_bool,
    find_connection,
    option,
    split_url,
    sql_address,
)

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from export_queue.core.client import Store

DEFAULT_CONNECTION = "export_queue_default"
DEFAULT_SCHEMA = "export_queue"
PASSWORD_VARIABLE = "XQ_STORE_PASSWORD"
TEST_SECONDS = 5

_EXAMPLE = {"conn_type": "export_queue", "host": "sqlite:////var/lib/exports.db"}
_SQL_EXAMPLE = {"conn_type": "postgres", "host": "db.example", "schema": "exports", "login": "exports", "password": "…"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAddress:
    """Where a store is, and what opens it; the password is never shown."""

    url: str
    """SQLAlchemy URL without a password."""
    schema: str
    password: str | None = field(default=None, repr=False)

    @property
    def is_sqlite(self) -> bool:
        """Tell whether the store is a file that only this machine sees."""
        return self.url.startswith("sqlite")

    @property
    def secret(self) -> str | None:
        """Reference under which other processes find the password; it goes with :meth:`environment`."""
        return f"env:{PASSWORD_VARIABLE}" if self.password else None

    def environment(self) -> dict[str, str]:
        """Return the variables that the reference names."""
        return {PASSWORD_VARIABLE: self.password} if self.password else {}

    def open(self) -> Store:
        """Open the store; the caller closes it."""
        from export_queue.core.client import Store

        return Store.open(self.url, password=self.password, schema=self.schema)


class ExportQueueHook(BaseHook):
    """Opens the store that a connection leads to.

    The connection is of the type ``export_queue``, which holds the store's URL or the id of another SQL connection,
    or directly any ``postgres`` or ``sqlite`` connection.

    :param export_queue_conn_id: id of the connection.
    """

    conn_name_attr = "export_queue_conn_id"
    default_conn_name = DEFAULT_CONNECTION
    conn_type = "export_queue"
    hook_name = "Export Queue"

    def __init__(self, export_queue_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.export_queue_conn_id = export_queue_conn_id

    def get_address(self) -> StoreAddress:
        """Read where the store is.

        :raises MissingConnection: Airflow has no such connection.
        :raises InvalidArgument: the connection does not lead to a store.
        """
        connection = find_connection(self.export_queue_conn_id, example=_EXAMPLE)
        extra = connection.extra_dejson
        if linked := _linked(connection, extra):
            target = find_connection(linked, example=_SQL_EXAMPLE)
            return _address(extra, sql_address(target, target.extra_dejson))
        return _address(extra, _own_address(connection, extra))

    async def aget_address(self) -> StoreAddress:
        """Read where the store is; the way for code on an event loop."""
        connection = await afind_connection(self.export_queue_conn_id, example=_EXAMPLE)
        extra = await connection.aextra_dejson()
        if linked := _linked(connection, extra):
            target = await afind_connection(linked, example=_SQL_EXAMPLE)
            return _address(extra, sql_address(target, await target.aextra_dejson()))
        return _address(extra, _own_address(connection, extra))

    def get_store(self) -> Store:
        """Open the store; close it, or use it in a ``with`` statement.

        :raises StoreNotCreated: the database holds no store yet.
        :raises StoreUnavailable: the database does not answer.
        """
        return self.get_address().open()

    def get_conn(self) -> Store:
        """Open the store, under the name that all hooks have for this."""
        return self.get_store()

    def test_connection(self) -> tuple[bool, str]:
        """Open the store and list its queues; for the form's test button.

        This runs inside Airflow's API server, so it waits a few seconds at most.
        """
        try:
            address = self.get_address()
            with _hurried(address).open() as store:
                queues = store.queues()
        except ExportQueueError as error:
            return False, str(error)
        return True, f"store {store.id} on {address.url}, {len(queues)} queues"


def _linked(connection: Connection, extra: Mapping[str, Any]) -> str | None:
    linked = option(extra, "sql_conn_id") if connection.conn_type == "export_queue" else None
    if linked is None:
        return None
    if connection.host:
        raise InvalidArgument(f"connection {connection.conn_id!r} has both a store URL and a SQL connection's id")
    if linked == connection.conn_id:
        raise InvalidArgument(f"connection {connection.conn_id!r} names itself as its SQL connection")
    return str(linked)


def _own_address(connection: Connection, extra: Mapping[str, Any]) -> SqlAddress:
    if connection.conn_type != "export_queue":
        return sql_address(connection, extra)
    if not connection.host:
        raise InvalidArgument(
            f"connection {connection.conn_id!r} names no store",
            hint="give it a store URL, or the id of a postgres or sqlite connection (sql_conn_id)",
        )
    where = f"the store URL of connection {connection.conn_id!r}"
    return split_url(connection.host, where=where, login=connection.login, password=connection.password)


def _address(extra: Mapping[str, Any], address: SqlAddress) -> StoreAddress:
    schema = str(option(extra, "store_schema", DEFAULT_SCHEMA))
    url = address.url
    if as_bool(option(extra, "behind_pooler", False)) and not url.startswith("sqlite"):
        url += ("&" if "?" in url else "?") + "behind_pooler=true"  # in the URL it goes along to Spark
    return StoreAddress(url=url, schema=schema, password=address.password)


def _hurried(address: StoreAddress) -> StoreAddress:
    """Bound the time to connect, unless the connection says otherwise."""
    if address.is_sqlite:
        return address
    from sqlalchemy import make_url

    url = make_url(address.url)
    if "connect_timeout" in url.query:
        return address
    hurried = url.update_query_dict({"connect_timeout": str(TEST_SECONDS)})
    return StoreAddress(url=hurried.render_as_string(), schema=address.schema, password=address.password)
