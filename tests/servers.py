"""Fixtures for real servers, from ``export_queue.core.testing.servers``, and for stores on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from export_queue.core.testing.servers import PostgresServer, RedisServer

if TYPE_CHECKING:
    import redis

    from export_queue.core.client import Store

Server = TypeVar("Server", PostgresServer, RedisServer)


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


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of an SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def store_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database, once on each store."""
    fixture = {"sqlite": "sqlite_url", "postgresql": "postgres_url"}[request.param]
    return str(request.getfixturevalue(fixture))


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """An opened and created store, once on each database."""
    from export_queue.core.client import Store

    with Store.open(store_url) as opened:
        opened.create()
        yield opened


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
