"""The hook to an Elasticsearch sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from export_queue.core.drivers import ELASTICSEARCH_CONNECTION, basic_auth, client_arguments
from export_queue.core.errors import SinkConfigurationError, SinkUnavailable
from export_queue.core.references import has_password
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

    def __init__(self, elasticsearch_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(elasticsearch_conn_id, **kwargs)
        self.elasticsearch_conn_id = elasticsearch_conn_id

    def get_conn(self) -> Any:
        """Return a client; the caller closes it."""
        import elasticsearch

        target, secrets = self._target(self._find())
        login = basic_auth(target["username"], secrets.get("password", "")) if "username" in target else None
        return elasticsearch.Elasticsearch(
            target["hosts"],
            basic_auth=login,
            api_key=secrets.get("api_key"),
            request_timeout=TEST_SECONDS,
            max_retries=0,
            **target.get("client_options", {}),
        )

    def _target(self, connection: Connection) -> tuple[dict[str, Any], dict[str, str]]:
        where = f"connection {self.sink_conn_id!r}"
        extra = ELASTICSEARCH_CONNECTION.read(connection.extra_dejson, where=where, error=SinkConfigurationError)
        if not connection.host:
            raise SinkConfigurationError(f"{where} names no host")
        scheme = _scheme(connection.schema, extra.pop("scheme", None), extra.pop("use_ssl", None), where)
        names = [name.strip() for name in connection.host.split(",") if name.strip()]
        target: dict[str, Any] = {"hosts": [_node(name, scheme, connection.port, where) for name in names]}
        api_key = extra.pop("api_key", None)
        seconds = [extra.pop(name) for name in ("request_timeout", "timeout") if name in extra]
        if len(seconds) > 1:
            raise SinkConfigurationError(f"{where}: give either request_timeout or timeout")
        if seconds:
            target["timeout"] = seconds[0]
        if extra:
            target["client_options"] = client_arguments(extra, target["hosts"])
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
        import elasticsearch

        with self.get_conn() as client:
            nodes = ", ".join(str(node.base_url) for node in client.transport.node_pool.all())
            try:
                # servers of 8.x and of 9.x understand this
                accept = {"accept": "application/vnd.elasticsearch+json; compatible-with=8"}
                health = client.perform_request("GET", "/_cluster/health", headers=accept).body
            except elasticsearch.AuthorizationException:
                return f"Elasticsearch at {nodes}; the user may not see the cluster's health, and need not"
            except elasticsearch.TransportError as error:
                raise SinkUnavailable(
                    f"Elasticsearch at {nodes}: {error.message}"
                ) from None  # the text of an error of transport names no cause
        return f"Elasticsearch at {nodes}, cluster {health['cluster_name']}, status {health['status']}"


def _scheme(schema: str | None, scheme: str | None, use_ssl: bool | None, where: str) -> str | None:
    """Return the scheme of all nodes, which a connection can set in three ways."""
    by_switch = None if use_ssl is None else "https" if use_ssl else "http"
    named = {"schema": (schema or "").lower(), "scheme": scheme, "use_ssl": by_switch}
    found = {name: value for name, value in named.items() if value}
    if not set(found.values()) <= {"http", "https"}:
        raise SinkConfigurationError(f"{where}: expected the schema http or https, found {schema!r}")
    if len(set(found.values())) > 1:
        said = ", ".join(f"{name} means {value}" for name, value in found.items())
        raise SinkConfigurationError(f"{where}: the scheme is named twice: {said}")
    return next(iter(found.values()), None)


def _node(name: str, scheme: str | None, port: int | None, where: str) -> str:
    """Make the URL of a node. Its name may be a URL, which must not contradict the connection."""
    bare = f"[{name}]" if name.count(":") > 1 and "://" not in name and not name.startswith("[") else name
    try:
        url = urlsplit(name if "://" in name else f"//{bare}")
        found, host = url.port, url.hostname
    except ValueError:
        host = None
    if not host or has_password(name) or "@" in name or "?" in name or "#" in name:
        raise SinkConfigurationError(
            f"{where}: expected a host, or its URL without user, password and options (what was found is not shown)"
        )
    if url.scheme and scheme and url.scheme != scheme:
        raise SinkConfigurationError(
            f"{where}: the host {host} is a URL with {url.scheme}, the connection says {scheme}"
        )
    if found and port and found != port:
        raise SinkConfigurationError(f"{where}: two ports are named, {found} and {port}")
    place = f"[{host}]" if ":" in host else host
    return f"{url.scheme or scheme or 'http'}://{place}:{found or port or 9200}{url.path.rstrip('/')}"
