"""Fixtures for real servers, from ``tests.support.servers``, and for stores on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from tests.support.elasticsearch import VERSIONS, ElasticsearchServer
from tests.support.mariadb import MariaDbServer
from tests.support.pgbouncer import PgBouncer
from tests.support.redis_cluster import RedisCluster
from tests.support.servers import PostgresServer, RedisServer

if TYPE_CHECKING:
    import redis

    from export_queue.core.client import Store

Server = TypeVar("Server", MariaDbServer, PostgresServer, RedisServer)


def _or_skip(kind: type[Server]) -> Server:
    try:
        return kind()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL server for the whole session: ``host``, ``port``, ``user``, ``password``, ``url(database)``."""
    with _or_skip(PostgresServer) as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A fresh, empty database, as SQLAlchemy's URL with user and password."""
    name = postgres_server.create_database()
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDbServer]:
    """One MariaDB server for the whole session: ``host``, ``port``, ``user``, ``password``, ``url(database)``."""
    with _or_skip(MariaDbServer) as server:
        yield server


@pytest.fixture
def mariadb_url(mariadb_server: MariaDbServer) -> Iterator[str]:
    """A fresh, empty database, as SQLAlchemy's URL with user and password."""
    name = mariadb_server.create_database()
    yield mariadb_server.url(name)
    mariadb_server.drop_database(name)


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    """A PgBouncer in transaction mode with 3 sessions a database: ``url(database)``."""
    try:
        pooler = PgBouncer(postgres_server)
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    with pooler:
        yield pooler


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of an SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def store_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database, once on each kind of store.

    Modules that say ``EVERY_WAY = True`` also run on ``postgresql-pooler``, where clients use the store as they would
    behind a pooler, and on ``postgresql-clock``, where it takes its ids from a row and no advisory lock can be had.
    """
    fixture = {"sqlite": "sqlite_url", "postgresql": "postgres_url"}.get(request.param, "copied_store_url")
    return str(request.getfixturevalue(fixture))


@pytest.fixture
def copied_store_url(
    postgres_server: PostgresServer, request: pytest.FixtureRequest, stores_to_copy: dict[str, str]
) -> Iterator[str]:
    """The URL of a database that holds a store: a copy, which takes less time than to create one."""
    name = postgres_server.create_database(stores_to_copy[request.node.callspec.params["store_url"]])
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def stores_to_copy(postgres_server: PostgresServer) -> dict[str, str]:
    """Databases with a store each, by kind; nobody is connected to them."""
    from export_queue.core.client import Store
    from export_queue.core.store.creation import create

    names = {}
    for kind in ("postgresql-pooler", "postgresql-clock"):
        names[kind] = postgres_server.create_database()
        url = postgres_server.url(names[kind])
        if kind == "postgresql-clock":
            without_advisory_locks(url)
        with Store.open(url) as opened:
            create(opened.database, id_source="clock" if kind == "postgresql-clock" else "sequence")
    return names


@pytest.fixture
def store_kind(store_url: str, request: pytest.FixtureRequest) -> str:
    """Which kind of store the test runs on; by its URL where the test's folder has one of its own."""
    call = getattr(request.node, "callspec", None)
    return str((call.params if call else {}).get("store_url") or store_url.partition(":")[0].partition("+")[0])


@pytest.fixture
def open_store(store_kind: str, store_url: str) -> Callable[[], Store]:
    """Open the test's store as one more client, in another process too; the caller closes it."""
    from export_queue.core.client import Store

    return lambda: Store.open(store_url, behind_pooler=store_kind == "postgresql-pooler")


@pytest.fixture
def store(store_kind: str, open_store: Callable[[], Store]) -> Iterator[Store]:
    """An opened and created store."""
    with open_store() as opened:
        if store_kind in ("sqlite", "postgresql"):
            opened.create()
        yield opened


def without_advisory_locks(url: str) -> None:
    """Take all functions for advisory locks out of a database, under their names at least."""
    import psycopg

    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        found = connection.execute(
            "select oid::regprocedure::text, proname from pg_proc where proname ~ 'advisory' "
            "and pronamespace = 'pg_catalog'::regnamespace"
        ).fetchall()
        assert found
        for signature, name in found:
            connection.execute(f"alter function pg_catalog.{signature} rename to gone_{name}".encode())


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One Redis server for the whole session: ``host``, ``port``, ``password``, ``url()``."""
    with _or_skip(RedisServer) as server:
        yield server


@pytest.fixture
def redis_client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A client of the Redis server, which holds nothing; answers are bytes."""
    import redis

    with redis.Redis(host=redis_server.host, port=redis_server.port, password=redis_server.password) as client:
        client.flushall()
        yield client


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    """One Redis Cluster of six processes for the whole session; whoever disturbs it brings it back."""
    try:
        cluster = RedisCluster()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    with cluster:
        yield cluster


OLDER, NEWER = VERSIONS
ON_EACH_ELASTICSEARCH = pytest.mark.parametrize(
    "elasticsearch_server", [OLDER, pytest.param(NEWER, marks=pytest.mark.slow)], indirect=True
)
"""For what takes long, and is the same in each version as far as anybody knows."""


@pytest.fixture(scope="session", params=VERSIONS)
def elasticsearch_server(request: pytest.FixtureRequest) -> Iterator[ElasticsearchServer]:
    """One Elasticsearch server for the whole session, once in each version: ``url``, ``user``, ``password``.

    It has the users ``reader``, ``writer``, ``sweeper`` and ``creator``; see ``ELASTICSEARCH_ROLES``.
    """
    settings = {"http.max_content_length": "5mb", "action.auto_create_index": "true"}
    try:
        server = ElasticsearchServer(settings, version=request.param, roles=ELASTICSEARCH_ROLES)
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    with server:
        yield server


_WRITES = ["index", "read", "view_index_metadata"]
ELASTICSEARCH_ROLES = {
    "reader": {"indices": [{"names": ["*"], "privileges": ["read", "view_index_metadata"]}]},
    "writer": {"indices": [{"names": ["least*", "xq_control"], "privileges": _WRITES}]},
    "sweeper": {"indices": [{"names": ["least*", "xq_control"], "privileges": [*_WRITES, "delete", "maintenance"]}]},
    "creator": {"indices": [{"names": ["least*", "xq_control"], "privileges": [*_WRITES, "manage"]}]},
}
"""What the page about sinks says is needed, without and with ``create_indices`` and for sweeps; one writes nothing."""
