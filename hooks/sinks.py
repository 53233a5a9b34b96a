"""The hooks to sinks: they turn users' connections into descriptions that Spark tasks can build a sink from."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseHook

from export_queue.core.errors import InvalidArgument, SinkConfigurationError, SinkUnavailable
from export_queue.hooks.connections import as_bool, as_int, find_connection, mysql_address, option, sql_address

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from export_queue.core.sinks import SinkSpec

TEST_SECONDS = 5


class SinkHook(BaseHook):
    """Describes the sink that a connection leads to.

    :param sink_conn_id: id of the connection.
    """

    kind: ClassVar[str]
    """The kind of sink that is built."""
    conn_types: ClassVar[tuple[str, ...]]
    """The types of connections that lead to it."""
    example: ClassVar[Mapping[str, Any]]
    """A connection that would do, for errors."""
    from_connection: ClassVar[frozenset[str]]
    """Options that only the connection gives; as an operator's argument they would be stored and shown."""

    def __init__(self, sink_conn_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sink_conn_id = sink_conn_id

    def sink_spec(self, options: Mapping[str, Any] | None = None) -> tuple[SinkSpec, dict[str, str]]:
        """Describe the sink.

        :param options: what is not in the connection, such as ``{"key": "customer:{id}"}``.
        :returns: the description, which holds references in the place of secrets, and the variables that these
            references name.
        :raises MissingConnection: Airflow has no such connection.
        :raises SinkConfigurationError: the connection or the options do not describe such a sink.
        """
        from export_queue.core.sinks import SinkSpec

        connection = self._find()
        chosen = dict(options or {})
        if forbidden := sorted(self.from_connection & chosen.keys()):
            raise SinkConfigurationError(
                f"sink_options: {', '.join(forbidden)} belongs in connection {self.sink_conn_id!r}",
                hint="options of a task are stored and shown; connections keep secrets",
            )
        target, secrets = self._target(connection)
        names = {option_name: self._variable(option_name) for option_name in secrets}
        spec = SinkSpec(
            kind=self.kind,
            name=self.sink_conn_id,
            options={**target, **chosen},
            secrets={option_name: f"env:{variable}" for option_name, variable in names.items()},
        )
        return spec, {names[option_name]: value for option_name, value in secrets.items()}

    def get_conn(self) -> Any:
        """Return a client of the target system."""
        raise NotImplementedError

    def test_connection(self) -> tuple[bool, str]:
        """Reach the target once; it waits a few seconds at most."""
        try:
            return True, self._probe()
        except Exception as error:
            return False, f"{type(error).__name__}: {error}"

    def _find(self) -> Connection:
        connection = find_connection(self.sink_conn_id, example=self.example)
        if connection.conn_type not in self.conn_types:
            raise SinkConfigurationError(
                f"connection {self.sink_conn_id!r} has the type {connection.conn_type!r}; "
                f"{type(self).__name__} takes {' or '.join(self.conn_types)}"
            )
        return connection

    def _variable(self, option_name: str) -> str:
        return "XQ_SINK_" + re.sub(r"[^A-Z0-9]+", "_", f"{self.sink_conn_id}_{option_name}".upper())

    def _target(self, connection: Connection) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the options that name the target, and its secrets by option."""
        raise NotImplementedError

    def _probe(self) -> str:
        """Reach the target and say what answered."""
        raise NotImplementedError


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
        # Airflow's own hook reads these texts as "no password", too.
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

        address = self._address(self._find())
        url = sqlalchemy.make_url(address.url)
        arguments = {} if address.is_sqlite else {"connect_timeout": TEST_SECONDS}
        return sqlalchemy.create_engine(
            url.set(password=address.password) if address.password else url,
            poolclass=sqlalchemy.NullPool,
            connect_args=arguments,
            hide_parameters=True,
        )

    def _address(self, connection: Connection) -> Any:
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
                # what servers of 8.x and 9.x understand
                accept = {"accept": "application/vnd.elasticsearch+json; compatible-with=8"}
                health = client.perform_request("GET", "/_cluster/health", headers=accept).body
            except elasticsearch.AuthorizationException:
                return f"Elasticsearch at {nodes}; the user may not see the cluster's health, and need not"
            except elasticsearch.TransportError as error:
                raise SinkUnavailable(f"Elasticsearch at {nodes}: {error.message}") from None  # its text has no cause
        return f"Elasticsearch at {nodes}, cluster {health['cluster_name']}, status {health['status']}"


def _client_options(extra: Mapping[str, Any]) -> dict[str, Any]:
    texts = ("ca_certs", "client_cert", "client_key", "ssl_assert_fingerprint", "ssl_assert_hostname")
    found = {name: option(extra, name) for name in texts if option(extra, name) is not None}
    for name in ("verify_certs", "ssl_show_warn", "http_compress"):
        if option(extra, name) is not None:
            found[name] = as_bool(extra[name])
    return found


_HOOKS: tuple[type[RedisSinkHook] | type[SqlSinkHook] | type[ElasticsearchSinkHook], ...] = (
    RedisSinkHook,
    SqlSinkHook,
    ElasticsearchSinkHook,
)


def sink_hook(conn_id: str) -> SinkHook:
    """Return the hook that fits a connection's type.

    :param conn_id: id of the connection.
    :raises MissingConnection: Airflow has no such connection.
    :raises SinkConfigurationError: its type leads to no sink.
    """
    connection = find_connection(conn_id, example=RedisSinkHook.example)
    for hook in _HOOKS:
        if connection.conn_type in hook.conn_types:
            return hook(conn_id)
    supported = [name for hook in _HOOKS for name in hook.conn_types]
    raise SinkConfigurationError(
        f"connection {conn_id!r} has the type {connection.conn_type!r}, which leads to no sink; "
        f"supported are {', '.join(supported)}",
        hint="for a sink of your own give sink='module:factory' instead of sink_conn_id",
    )


def resolve_sink(
    *,
    sink_conn_id: str | None,
    sink_options: Mapping[str, Any] | str | None,
    sink: SinkSpec | Mapping[str, Any] | str | None,
) -> tuple[SinkSpec, dict[str, str]]:
    """Describe the sink that an operator's arguments name.

    :param sink_conn_id: id of a connection whose type says which sink it is.
    :param sink_options: what the connection does not say; a mapping, or JSON text.
    :param sink: instead of a connection: a description, the same as a mapping or JSON text, or the import path
        ``module:factory`` of a sink of the user's own, to which ``sink_options`` go.
    :returns: the description, and the variables that its references to secrets name.
    """
    options = _mapping(sink_options, what="sink_options")
    if (sink_conn_id is None) == (sink is None):
        raise InvalidArgument("give either sink_conn_id or sink")
    if sink_conn_id is not None:
        return sink_hook(sink_conn_id).sink_spec(options)
    from export_queue.core.sinks import SinkSpec

    if isinstance(sink, str) and not sink.lstrip().startswith("{"):
        return SinkSpec(kind=sink.strip(), options=options), {}
    if options:
        raise InvalidArgument("sink_options go with sink_conn_id or an import path; this sink describes its own")
    if isinstance(sink, SinkSpec):
        return sink, {}
    return SinkSpec.from_dict(_mapping(sink, what="sink")), {}


def _mapping(value: Mapping[str, Any] | str | None, *, what: str) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except json.JSONDecodeError as error:
            raise InvalidArgument(f"{what} is not valid JSON: {error}") from None
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"{what}: expected a mapping, found {type(value).__name__}")
    return dict(value)
