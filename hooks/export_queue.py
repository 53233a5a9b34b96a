"""The hook to a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from export_queue.core.drivers import Driver, flag, text
from export_queue.core.errors import ExportQueueError, InvalidArgument
from export_queue.hooks.connections import (
    SQL_TYPES,
    SqlAddress,
    aextra,
    afind_connection,
    find_connection,
    refuse_fields,
    split_url,
    sql_address,
)
from export_queue.hooks.described import Described

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from export_queue.core.client import Store
    from export_queue.core.store import StoreSpec

DEFAULT_CONNECTION = "export_queue_default"
DEFAULT_SCHEMA = "export_queue"
PASSWORD_VARIABLE = "XQ_STORE_PASSWORD"
HURRIED_SECONDS = 5
STORE = Driver(
    "an Export Queue connection",
    {"behind_pooler": flag, "segments": text, "sql_conn_id": text, "store_schema": text},
)
"""The extra fields of a store. Options of its database belong in the URL or in the connection of sql_conn_id."""

_EXAMPLE = {"conn_type": "export_queue", "host": "sqlite:////var/lib/exports.db"}
_SQL_EXAMPLE = {"conn_type": "postgres", "host": "db.example", "schema": "exports", "login": "exports", "password": "…"}


def open_store(store: Described[StoreSpec], *, client: str | None = None, hurried: bool = False) -> Store:
    """Open a described store; the caller closes it.

    The password is passed directly, because a process such as the triggerer has several stores and one environment.

    :param client: name of the process, by which its transactions are found.
    :param hurried: whether to wait only a few seconds for the server, unless the URL sets a limit; for the API server.
    """
    from export_queue.core.client import Store

    spec, password = _hurried(store.spec) if hurried else store.spec, store.variables.get(PASSWORD_VARIABLE)
    opened = Store.open(
        spec.url,
        password=password,
        schema=spec.schema,
        behind_pooler=spec.behind_pooler,
        segments=spec.segments,
        client=client,
    )
    if hurried:
        opened.database.pool.answer_seconds = HURRIED_SECONDS
    return opened


class ExportQueueHook(BaseHook):
    """Opens the store of a connection.

    The connection has the type ``export_queue`` and contains the store's URL or the id of a SQL connection; or it is a
    ``postgres`` or ``sqlite`` connection itself.

    :param export_queue_conn_id: id of the connection.
    """

    conn_name_attr = "export_queue_conn_id"
    default_conn_name = DEFAULT_CONNECTION
    conn_type = "export_queue"
    hook_name = "Export Queue"

    def __init__(self, export_queue_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.export_queue_conn_id = export_queue_conn_id

    def describe(self) -> Described[StoreSpec]:
        """Describe the store.

        :raises MissingConnection: Airflow has no such connection.
        :raises InvalidArgument: the connection does not describe a store.
        """
        connection = find_connection(self.export_queue_conn_id, example=_EXAMPLE)
        own, rest = _fields(connection, connection.extra_dejson)
        if linked := _linked(connection, own):
            target = find_connection(linked, example=_SQL_EXAMPLE)
            return _described(own, sql_address(target, target.extra_dejson))
        return _described(own, _own_address(connection, rest))

    async def adescribe(self) -> Described[StoreSpec]:
        """Describe the store from an event loop."""
        connection = await afind_connection(self.export_queue_conn_id, example=_EXAMPLE)
        own, rest = _fields(connection, await aextra(connection))
        if linked := _linked(connection, own):
            target = await afind_connection(linked, example=_SQL_EXAMPLE)
            return _described(own, sql_address(target, await aextra(target)))
        return _described(own, _own_address(connection, rest))

    def get_store(self) -> Store:
        """Open the store; close it, or use it in a ``with`` statement.

        :raises StoreNotCreated: the database contains no store yet.
        :raises StoreUnavailable: the database does not answer.
        """
        return open_store(self.describe())

    def get_conn(self) -> Store:
        """Open the store; all hooks have a method of this name."""
        return self.get_store()

    def test_connection(self) -> tuple[bool, str]:
        """Open the store and list its queues, for the form's test button.

        The test runs in Airflow's API server, so it waits a few seconds at most.
        """
        try:
            described = self.describe()
            with open_store(described, hurried=True) as store:
                queues = store.queues()
        except ExportQueueError as error:
            return False, str(error)
        return True, f"store {store.id} on {described.spec.url}, {len(queues)} queues"


def _fields(connection: Connection, extra: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the fields of a store, and return the other ones as options of the database's driver."""
    rest = dict(extra)
    if connection.conn_type == "export_queue":
        own, rest = rest, {}
    else:
        own = {name: rest.pop(name) for name in STORE.takes if name in rest and name != "sql_conn_id"}
    return STORE.read(own, where=f"connection {connection.conn_id!r}"), rest


def _linked(connection: Connection, own: Mapping[str, Any]) -> str | None:
    linked = own.get("sql_conn_id")
    if linked is None:
        return None
    refuse_fields(connection, "login", "password", "schema", "port")
    if connection.host:
        raise InvalidArgument(f"connection {connection.conn_id!r} has both a store URL and a SQL connection's id")
    if linked == connection.conn_id:
        raise InvalidArgument(f"connection {connection.conn_id!r} names itself as its SQL connection")
    return str(linked)


def _own_address(connection: Connection, extra: Mapping[str, Any]) -> SqlAddress:
    if connection.conn_type in SQL_TYPES:
        return sql_address(connection, extra)
    if connection.conn_type != "export_queue":
        raise InvalidArgument(
            f"connection {connection.conn_id!r} has the type {connection.conn_type!r}; "
            f"expected one of export_queue, {', '.join(SQL_TYPES)}",
            hint="Airflow reads no underscore in the type of a URI: write export-queue://, or JSON",
        )
    if not connection.host:
        raise InvalidArgument(
            f"connection {connection.conn_id!r} names no store",
            hint="give it a store URL, or the id of a postgres or sqlite connection (sql_conn_id)",
        )
    refuse_fields(connection, "schema", "port")
    where = f"the store URL of connection {connection.conn_id!r}"
    return split_url(connection.host, where=where, login=connection.login, password=connection.password)


def _described(own: Mapping[str, Any], address: SqlAddress) -> Described[StoreSpec]:
    from export_queue.core.store import StoreSpec

    spec = StoreSpec(
        url=address.url,
        schema=own.get("store_schema", DEFAULT_SCHEMA),
        secret=f"env:{PASSWORD_VARIABLE}" if address.password else None,
        behind_pooler=own.get("behind_pooler", False),
        segments=own.get("segments"),
    )
    return Described(spec, {PASSWORD_VARIABLE: address.password} if address.password else {})


def _hurried(spec: StoreSpec) -> StoreSpec:
    """Limit the time to connect, unless the connection sets a limit."""
    if spec.is_sqlite:
        return spec
    from sqlalchemy import make_url

    url = make_url(spec.url)
    if "connect_timeout" in url.query:
        return spec
    return replace(spec, url=url.update_query_dict({"connect_timeout": str(HURRIED_SECONDS)}).render_as_string())
