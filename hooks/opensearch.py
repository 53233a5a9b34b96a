"""The hook to an OpenSearch sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from export_queue.core.drivers import OPENSEARCH_CONNECTION
from export_queue.hooks.elasticsearch import ElasticsearchSinkHook
from export_queue.hooks.sink import TEST_SECONDS


class OpenSearchSinkHook(ElasticsearchSinkHook):
    """Describes the cluster of an ``opensearch`` connection, as Airflow's OpenSearch provider reads it.

    :param opensearch_conn_id: id of the connection.
    """

    conn_name_attr = "opensearch_conn_id"
    default_conn_name = "opensearch_default"
    conn_type = "opensearch"
    hook_name = "OpenSearch sink"

    kind = "opensearch"
    conn_types = ("opensearch",)
    example: ClassVar[Mapping[str, Any]] = {
        "conn_type": "opensearch",
        "host": "search.example",
        "port": 9200,
        "login": "exports",
        "password": "…",
        "extra": {"use_ssl": True},
    }
    from_connection = frozenset(("hosts", "username", "password", "client_options"))
    driver = OPENSEARCH_CONNECTION

    def __init__(self, opensearch_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(opensearch_conn_id, **kwargs)
        self.opensearch_conn_id = opensearch_conn_id

    def get_conn(self) -> Any:
        """Return a client; the caller closes it. It waits 5 seconds, unless the connection sets a limit."""
        import opensearchpy

        target, secrets = self._target(self._find())
        login = (target["username"], secrets.get("password", "")) if "username" in target else None
        return opensearchpy.OpenSearch(
            target["hosts"],
            http_auth=login,
            timeout=target.get("timeout", TEST_SECONDS),
            max_retries=0,
            **target.get("client_options", {}),
        )

    def _sink(self, **arguments: Any) -> Any:
        from export_queue.core.sinks import OpenSearchSink

        return OpenSearchSink(**arguments)
