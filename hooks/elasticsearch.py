"""The hook to an Elasticsearch sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from export_queue.core.errors import SinkConfigurationError, SinkUnavailable
from export_queue.hooks.connections import as_bool, option
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
        login = (target["username"], secrets.get("password", "")) if "username" in target else None
        return elasticsearch.Elasticsearch(
            target["hosts"],
            basic_auth=login,
            api_key=secrets.get("api_key"),
            request_timeout=TEST_SECONDS,
            max_retries=0,
            **target.get("client_options", {}),
        )

    def _target(self, connection: Connection) -> tuple[dict[str, Any], dict[str, str]]:
        extra = connection.extra_dejson
        where = f"connection {self.sink_conn_id!r}"
        if unknown := sorted({"bearer_auth", "cloud_id", "headers", "hosts", "http_auth"} & extra.keys()):
            raise SinkConfigurationError(
                f"{where}: {', '.join(unknown)} in its extra cannot be used",
                hint="give host, port and schema, and login and password or an extra api_key",
            )
        if not connection.host:
            raise SinkConfigurationError(f"{where} names no host")
        scheme = connection.schema or option(extra, "scheme", "http")
        names = [name.strip() for name in connection.host.split(",") if name.strip()]
        target: dict[str, Any] = {
            "hosts": [n if "://" in n else f"{scheme}://{n}:{connection.port or 9200}" for n in names]
        }
        if options := _client_options(extra):
            target["client_options"] = options
        api_key = option(extra, "api_key")
        if api_key is not None:
            return target, {"api_key": str(api_key)}
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


def _client_options(extra: Mapping[str, Any]) -> dict[str, Any]:
    texts = ("ca_certs", "client_cert", "client_key", "ssl_assert_fingerprint", "ssl_assert_hostname")
    found = {name: option(extra, name) for name in texts if option(extra, name) is not None}
    for name in ("verify_certs", "ssl_show_warn", "http_compress"):
        if option(extra, name) is not None:
            found[name] = as_bool(extra[name])
    return found
