"""Fixtures of servers, which the whole run shares, of stores on them, and of a disk that is soon full."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from tests.support import ways
from tests.support.elasticsearch import VERSIONS, ElasticsearchServer
from tests.support.mariadb import MariaDbServer
from tests.support.opensearch import VERSION as OPENSEARCH_VERSION
from tests.support.opensearch import OpenSearchServer
from tests.support.pgbouncer import PgBouncer
from tests.support.redis_cluster import RedisCluster
from tests.support.s3 import S3Server
from tests.support.servers import PostgresServer, RedisServer, Server
from tests.support.shared import exclusive, shared

if TYPE_CHECKING:
    import redis

    from export_queue import Store

Kept = TypeVar("Kept", bound=Server)
Alone = TypeVar("Alone", bound="Server | RedisCluster")


Covered = Callable[[str], None]


@pytest.fixture
def covered(request: pytest.FixtureRequest) -> Covered:
    """Tell in the summary what a test that stops at its budget of time has covered."""
    return lambda text: request.node.user_properties.append(("covered", text))


def shared_or_skip(kind: type[Kept], name: str = "") -> Kept:
    """Return the run's server of a kind; skip the test where the machine has none."""
    try:
        return shared(kind, name)
    except FileNotFoundError as missing:
        pytest.skip(str(missing))


def private_or_skip(kind: type[Alone]) -> Iterator[Alone]:
    """Start a server of a fixture's alone, and stop it; skip the test where the machine has none."""
    try:
        server = kind()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    with server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> PostgresServer:
    """The run's PostgreSQL server: ``host``, ``port``, ``user``, ``password``, ``url(database)``."""
    return shared_or_skip(PostgresServer)


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server of one test alone, which flushes its commits."""
    yield from private_or_skip(PostgresServer)


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A fresh, empty database, as SQLAlchemy's URL with user and password."""
    name = postgres_server.create_database()
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def mariadb_server() -> MariaDbServer:
    """The run's MariaDB server: ``host``, ``port``, ``user``, ``password``, ``url(database)``."""
    return shared_or_skip(MariaDbServer)


@pytest.fixture
def mariadb_url(mariadb_server: MariaDbServer) -> Iterator[str]:
    """A fresh, empty database, as SQLAlchemy's URL with user and password."""
    name = mariadb_server.create_database()
    yield mariadb_server.url(name)
    mariadb_server.drop_database(name)


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: PostgresServer) -> PgBouncer:
    """The run's PgBouncer in transaction mode, with 3 sessions a database: ``url(database)``."""
    return shared_or_skip(PgBouncer)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of an SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, b"size=2m"):
        pytest.skip(f"cannot mount a small disk: {os.strerror(ctypes.get_errno())}")
    yield folder
    libc.umount2(str(folder).encode(), 2)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def store_url(request: pytest.FixtureRequest) -> str:
    """The URL of a database, once on each kind of store; it is empty unless the test takes the fixture ``store`` too.

    Modules that say ``EVERY_WAY = True`` also run on ``postgresql-pooler``, where clients use the store as they would
    behind a pooler; that database always holds a store.
    """
    if request.param == "sqlite":
        return str(request.getfixturevalue("sqlite_url"))
    is_empty = request.param == "postgresql" and "store" not in request.fixturenames
    return str(request.getfixturevalue("postgres_url" if is_empty else "copied_store_url"))


@pytest.fixture
def copied_store_url(
    postgres_server: PostgresServer, request: pytest.FixtureRequest, stores_to_copy: StoresToCopy
) -> Iterator[str]:
    """The URL of a database that holds a store: a copy, which takes less time than to create one."""
    name = postgres_server.create_database(stores_to_copy[request.node.callspec.params["store_url"]])
    server = request.getfixturevalue("pgbouncer") if ways.chosen() == ways.PGBOUNCER else postgres_server
    yield server.url(name)
    postgres_server.drop_database(name)


class StoresToCopy(dict[str, str]):
    """Names of databases with a store each, by kind of store; each is created when it is first asked for.

    They are this process's own, since planted bugs may differ in what they create, and nobody is connected to them.
    """

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        self._server = server

    def __missing__(self, kind: str) -> str:
        from export_queue.core.client import Store
        from export_queue.core.store import DEFAULT_SCHEMA
        from export_queue.core.store.creation import create

        name = self._server.create_database()
        url = self._server.url(name)
        with Store.open(url) as opened:
            create(opened.database)
        if ways.chosen_role() is not None:
            ways.create_roles(url, DEFAULT_SCHEMA)
        self[kind] = name
        return name


@pytest.fixture(scope="session")
def stores_to_copy(postgres_server: PostgresServer) -> StoresToCopy:
    """Databases with a store each, by kind of store."""
    return StoresToCopy(postgres_server)


@pytest.fixture
def store_kind(store_url: str, request: pytest.FixtureRequest) -> str:
    """Which kind of store the test runs on; by its URL where the test's folder has one of its own."""
    call = getattr(request.node, "callspec", None)
    return str((call.params if call else {}).get("store_url") or store_url.partition(":")[0].partition("+")[0])


@pytest.fixture
def open_store(store_kind: str, store_url: str, request: pytest.FixtureRequest) -> Callable[[], Store]:
    """Open the test's store as one more client, in another process too; the caller closes it."""
    from export_queue.core.client import Store

    def opened() -> Store:
        is_pooled = ways.chosen() == ways.PGBOUNCER or store_kind == "postgresql-pooler"
        store = Store.open(store_url, behind_pooler=is_pooled and store_kind != "sqlite")
        is_limited = store_kind != "sqlite" and getattr(request.node, "originalname", "") not in ways.AS_OWNER
        if (role := ways.chosen_role()) is not None and is_limited:
            ways.limit_to_role(store, role)
        return store

    return opened


@pytest.fixture(scope="session", autouse=True)
def shared_work() -> Iterator[None]:
    """Where suites run as a role, each role does its own part."""
    with pytest.MonkeyPatch.context() as patch:
        if ways.chosen_role() is not None:
            ways.share_the_work(patch)
        yield


@pytest.fixture(scope="session")
def sqlite_store_to_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a store, which nobody has open: to copy it takes less time than to create one."""
    from export_queue.core.client import Store

    path = tmp_path_factory.mktemp("store-to-copy") / "store.db"
    with Store.open(f"sqlite:///{path}") as opened:
        opened.create()
    return path


@pytest.fixture
def store(request: pytest.FixtureRequest, store_url: str, open_store: Callable[[], Store]) -> Iterator[Store]:
    """An opened and created store."""
    call = getattr(request.node, "callspec", None)
    kind = "" if call is None else str(call.params.get("store_url"))
    if kind == "sqlite":
        shutil.copyfile(request.getfixturevalue("sqlite_store_to_copy"), store_url.removeprefix("sqlite:///"))
    with open_store() as opened:
        if not kind.startswith(("sqlite", "postgresql")):
            opened.create()
        yield opened


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A Redis server of this process alone, since tests empty and configure it; it starts in a moment."""
    yield from private_or_skip(RedisServer)


@pytest.fixture
def redis_client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A client of the Redis server, which holds nothing; answers are bytes."""
    import redis

    with redis.Redis(host=redis_server.host, port=redis_server.port, password=redis_server.password) as client:
        client.flushall()
        yield client


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """An object store of this process alone: ``place(bucket)``, ``user(*actions)``, ``owner``."""
    yield from private_or_skip(S3Server)


@pytest.fixture
def s3_bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket; this process has the keys of the server's owner."""
    name = f"exports-{secrets.token_hex(6)}"
    s3_server.create_bucket(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # else a client without keys asks the machine for some
    for variable, value in s3_server.owner.variables.items():
        monkeypatch.setenv(variable, value)
    return name


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    """One Redis Cluster of six processes for the whole session; whoever disturbs it brings it back."""
    yield from private_or_skip(RedisCluster)


OLDER, NEWER = VERSIONS
OPENSEARCH = f"opensearch-{OPENSEARCH_VERSION}"


@pytest.fixture(
    params=[
        OLDER,
        pytest.param(NEWER, marks=pytest.mark.full("the second version takes a second server")),
        pytest.param(OPENSEARCH, marks=pytest.mark.full("another product, of which test_opensearch.py tests a part")),
    ]
)
def elasticsearch_server(request: pytest.FixtureRequest) -> Iterator[ElasticsearchServer]:
    """The run's Elasticsearch server, once in each version, and OpenSearch: ``url``, ``user``, ``password``, ``sink``.

    Elasticsearch has the users of ``ELASTICSEARCH_ROLES``. One test has it at a time: all share the index of control
    records.
    """
    with search_server(request.param) as server:
        yield server


@pytest.fixture
def opensearch_server() -> Iterator[ElasticsearchServer]:
    """The run's OpenSearch server; one test has it at a time."""
    with search_server(OPENSEARCH) as server:
        yield server


@contextlib.contextmanager
def search_server(version: str) -> Iterator[ElasticsearchServer]:
    """Return the run's server of a version of Elasticsearch, or of OpenSearch, for this test alone."""
    is_opensearch = version == OPENSEARCH
    server = shared_or_skip(OpenSearchServer) if is_opensearch else shared_or_skip(ElasticsearchServer, version)
    with exclusive(f"elasticsearch-{version}"):
        server.request("DELETE", "/xq_control/_doc/%2A")  # the stores that an earlier test let write
        yield server
