"""The hook to an Elasticsearch sink."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from export_queue.core.drivers import ELASTICSEARCH_CONNECTION, Driver, basic_auth, client_arguments
from export_queue.core.errors import SinkConfigurationError
from export_queue.hooks.sink import TEST_SECONDS, SinkHook

if TYPE_CHECKING:
    from airflow.sdk import Connection


class ElasticsearchSinkHook(SinkHook):
    """Describes the cluster of an ``elasticsearch`` connection, as Airflow's Elasticsearch provider reads it.

    :param elasticsearch_conn_id: id of the connection.
    """

    conn_name_attr = "elasticsearch_conn_id"
    default_conn_name = "elasticsearch_default"
    conn_type = "elasticsearch"
    hook_name = "Elasticsearch sink"

    kind = "elasticsearch"
    conn_types = ("elasticsearch",)
    example: ClassVar[Mapping[str, Any]] = {
        "conn_type": "elasticsearch",
        "host": "search.example",
        "schema": "https",
        "port": 9200,
        "login": "exports",
        "password": "…",
    }
    from_connection = frozenset(("hosts", "username", "password", "api_key", "client_options"))
    driver: ClassVar[Driver] = ELASTICSEARCH_CONNECTION
    """The extras of its connections."""

    def __init__(self, elasticsearch_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(elasticsearch_conn_id, **kwargs)
        self.elasticsearch_conn_id = elasticsearch_conn_id

    def get_conn(self) -> Any:
        """Return a client; the caller closes it. It waits 5 seconds, unless the connection sets a limit."""
        import elasticsearch

        target, secrets = self._target(self._find())
        login = basic_auth(target["username"], secrets.get("password", "")) if "username" in target else None
        return elasticsearch.Elasticsearch(
            target["hosts"],
            basic_auth=login,
            api_key=secrets.get("api_key"),
            request_timeout=target.get("timeout", TEST_SECONDS),
            max_retries=0,
            **target.get("client_options", {}),
        )

    def _target(self, connection: Connection) -> tuple[dict[str, Any], dict[str, str]]:
        where = f"connection {self.sink_conn_id!r}"
        extra = self.driver.read(connection.extra_dejson, where=where, error=SinkConfigurationError)
        if not connection.host:
            raise SinkConfigurationError(f"{where} names no host")
        scheme = _scheme(connection.schema, extra.pop("scheme", None), extra.pop("use_ssl", None), where)
        names = [name.strip() for name in connection.host.split(",") if name.strip()]
        prefix = (extra.pop("url_prefix", None) or "").strip("/")
        target: dict[str, Any] = {"hosts": [_node(name, scheme, connection.port, prefix, where) for name in names]}
        api_key = extra.pop("api_key", None)
        seconds = [extra.pop(name) for name in ("request_timeout", "timeout") if name in extra]
        if len(seconds) > 1:
            raise SinkConfigurationError(f"{where}: give either request_timeout or timeout")
        if seconds:
            target["timeout"] = seconds[0]
        if extra:
            target["client_options"] = client_arguments(extra, target["hosts"], kind=self.kind)
        if api_key is not None:
            if connection.login or connection.password:
                raise SinkConfigurationError(f"{where}: give either api_key, or login and password")
            return target, {"api_key": api_key}
        if connection.login:
            target["username"] = connection.login
        elif connection.password:
            raise SinkConfigurationError(f"{where} has a password and no login")
        return target, {"password": connection.password} if connection.password else {}

    def _probe(self) -> str:
        target, secrets = self._target(self._find())
        with closing(self._sink(**{**target, **secrets, "timeout": TEST_SECONDS})) as sink:
            return str(sink.probe())

    def _sink(self, **arguments: Any) -> Any:
        from export_queue.core.sinks import ElasticsearchSink

        return ElasticsearchSink(**arguments)


def _scheme(schema: str | None, scheme: str | None, use_ssl: bool | None, where: str) -> str | None:
    """Return the scheme of all nodes, which a connection can set in three ways."""
    by_switch = None if use_ssl is None else "https" if use_ssl else "http"
    named = {"schema": (schema or "").lower(), "scheme": scheme, "use_ssl": by_switch}
    found = {name: value for name, value in named.items() if value}
    if not set(found.values()) <= {"http", "https"}:
        shown = repr(schema) if (schema or "").isalnum() else "something else (it is not shown)"
        raise SinkConfigurationError(f"{where}: expected the schema http or https, found {shown}")
    if len(set(found.values())) > 1:
        said = ", ".join(f"{name} means {value}" for name, value in found.items())
        raise SinkConfigurationError(f"{where}: the scheme is named twice: {said}")
    return next(iter(found.values()), None)


def _node(name: str, scheme: str | None, port: int | None, prefix: str, where: str) -> str:
    """Make the URL of a node. Its name may be a URL, which must not contradict the connection.

    :param prefix: what begins the path of every request, without slashes around it.
    """
    bare = f"[{name}]" if name.count(":") > 1 and "://" not in name and not name.startswith("[") else name
    try:
        url = urlsplit(name if "://" in name else f"//{bare}")
        found, host = url.port, url.hostname
    except ValueError:
        host = None
    if not host or "@" in name + prefix or re.search(r"[?#]", name + prefix):
        raise SinkConfigurationError(
            f"{where}: expected a host, or its URL without user, password and options (what was found is not shown)"
        )
    if url.scheme not in ("", "http", "https"):
        raise SinkConfigurationError(f"{where}: expected a host or its URL with http or https, found {url.scheme}://")
    if url.scheme and scheme and url.scheme != scheme:
        raise SinkConfigurationError(
            f"{where}: the host {host} is a URL with {url.scheme}, the connection says {scheme}"
        )
    if found and port and found != port:
        raise SinkConfigurationError(f"{where}: two ports are named, {found} and {port}")
    path = url.path.strip("/")
    if path and prefix and path != prefix:
        raise SinkConfigurationError(f"{where}: two prefixes are named, /{path} and url_prefix /{prefix}")
    place = f"[{host}]" if ":" in host else host
    path = f"/{path or prefix}".rstrip("/")
    return f"{url.scheme or scheme or 'http'}://{place}:{found or port or 9200}{path}"
