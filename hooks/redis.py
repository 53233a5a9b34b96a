"""The hook to a Redis sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from export_queue.core.drivers import check_redis_host, flag, redis_target, redis_tls
from export_queue.core.errors import SinkConfigurationError
from export_queue.hooks.sink import TEST_SECONDS, SinkHook

if TYPE_CHECKING:
    from airflow.sdk import Connection

_LIMITS = {"socket_timeout": TEST_SECONDS, "socket_connect_timeout": TEST_SECONDS}


class RedisSinkHook(SinkHook):
    """Describes the Redis server of a ``redis`` connection, as Airflow's Redis provider reads it.

    :param redis_conn_id: id of the connection.
    """

    conn_name_attr = "redis_conn_id"
    default_conn_name = "redis_default"
    conn_type = "redis"
    hook_name = "Redis"

    kind = "redis"
    conn_types = ("redis",)
    example: ClassVar[Mapping[str, Any]] = {
        "conn_type": "redis",
        "host": "redis.example",
        "port": 6379,
        "password": "…",
    }
    from_connection = frozenset(("host", "port", "db", "username", "password", "ssl", "ssl_options"))

    def __init__(self, redis_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(redis_conn_id, **kwargs)
        self.redis_conn_id = redis_conn_id

    def get_conn(self) -> Any:
        """Return a client; the caller closes it. It waits 5 seconds, unless the connection sets a limit."""
        import redis

        connection = self._find()
        is_cluster = flag(connection.extra_dejson.get("cluster") or False)
        return self._client(redis.RedisCluster if is_cluster else redis.Redis, connection)

    def _client(self, kind: Any, connection: Connection, **limits: float) -> Any:
        target, secrets = self._target(connection)
        tls = redis_tls(target.pop("ssl_options", {}), ssl=target.get("ssl", False), where=f"{self.sink_conn_id!r}")
        return kind(**{**_LIMITS, **target, **tls, **secrets, **limits})

    def _target(self, connection: Connection) -> tuple[dict[str, Any], dict[str, str]]:
        where = f"connection {self.sink_conn_id!r}"
        host = (connection.host or "localhost").strip("[]")
        check_redis_host(host, where=where, error=SinkConfigurationError)
        target: dict[str, Any] = {
            "host": host,
            "port": connection.port or 6379,
            **redis_target(connection.extra_dejson, path=connection.schema, where=where, error=SinkConfigurationError),
        }
        if connection.login:
            target["username"] = connection.login
        password = connection.password
        # Airflow's own hook also reads these texts as "no password".
        is_set = password is not None and password.lower() not in ("", "none", "false")
        return target, {"password": password} if is_set and password else {}

    def _probe(self) -> str:
        import redis

        connection = self._find()
        target, _ = self._target(connection)
        with self._client(redis.Redis, connection, **_LIMITS) as client:
            facts = client.info("server")
        kind = "Redis Cluster" if facts.get("redis_mode") == "cluster" else "Redis"
        return f"{kind} {facts['redis_version']} on {target['host']}:{target['port']}, database {target['db']}"
