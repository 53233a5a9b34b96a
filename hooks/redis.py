"""The hook to a Redis sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from export_queue.hooks.connections import as_bool, as_int, option
from export_queue.hooks.sink import TEST_SECONDS, SinkHook

if TYPE_CHECKING:
    from airflow.sdk import Connection


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
        """Return a client, through Airflow's Redis provider."""
        from airflow.providers.redis.hooks.redis import RedisHook

        return RedisHook(self.redis_conn_id).get_conn()

    def _target(self, connection: Connection) -> tuple[dict[str, Any], dict[str, str]]:
        extra = connection.extra_dejson
        where = f"connection {self.sink_conn_id!r}"
        target: dict[str, Any] = {
            "host": connection.host or "localhost",
            "port": connection.port or 6379,
            "db": as_int(option(extra, "db", 0), what=f"{where}, field db"),
        }
        if connection.login:
            target["username"] = connection.login
        if as_bool(extra.get("ssl")):
            target["ssl"] = True
            if tls := _tls_options(extra):
                target["ssl_options"] = tls
        password = connection.password
        # Airflow's own hook, too, reads these texts as "no password".
        is_set = password is not None and password.lower() not in ("", "none", "false")
        return target, {"password": password} if is_set and password else {}

    def _probe(self) -> str:
        import redis

        target, secrets = self._target(self._find())
        limits = {"socket_timeout": TEST_SECONDS, "socket_connect_timeout": TEST_SECONDS}
        tls = target.pop("ssl_options", {})
        settings: dict[str, Any] = {**target, **tls, **secrets, **limits}
        with redis.Redis(**settings) as client:
            facts = client.info("server")
        kind = "Redis Cluster" if facts.get("redis_mode") == "cluster" else "Redis"
        return f"{kind} {facts['redis_version']} on {target['host']}:{target['port']}, database {target['db']}"


def _tls_options(extra: Mapping[str, Any]) -> dict[str, Any]:
    names = ("ssl_cert_reqs", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
    found = {name: option(extra, name) for name in names if option(extra, name) is not None}
    if option(extra, "ssl_check_hostname") is not None:
        found["ssl_check_hostname"] = as_bool(extra["ssl_check_hostname"])
    return found
