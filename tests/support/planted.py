"""Differences that tests plant in sinks, past the sink: a record is removed, or written with a rank and a document."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest
import sqlalchemy as sa
from tests.support.waiting import wait_until

from export_queue import MemorySink, RedisSink, Sink, SqlSink, bucket

COLLECTION = "orders"


class Planter(Protocol):
    """A sink, and a way into its target past it."""

    is_ranked: bool

    def make(self) -> Sink:
        """Open the sink."""

    def remove(self, record: str) -> None:
        """Remove a record, with its rank."""

    def write(self, record: str, rank: int, document: dict[str, Any] | None) -> None:
        """Write a record as it is given."""


class InMemory:
    is_ranked = True

    def __init__(self) -> None:
        self.sink = MemorySink()

    def make(self) -> Sink:
        return self.sink

    def remove(self, record: str) -> None:
        for column in (self.sink._contents.ranks, self.sink._contents.documents):
            column.pop((COLLECTION, record.encode()), None)  # type: ignore[attr-defined]

    def write(self, record: str, rank: int, document: dict[str, Any] | None) -> None:
        self.remove(record)
        self.sink._contents.ranks[COLLECTION, record.encode()] = rank
        if document is not None:
            self.sink._contents.documents[COLLECTION, record.encode()] = json.dumps(document).encode()


class InSql:
    def __init__(self, url: str, **options: Any) -> None:
        self.options = {"url": url, "document": "json", **options}
        self.is_ranked = options.get("guard") != "fence"
        self.engine = sa.create_engine(url)

    def make(self) -> Sink:
        return SqlSink(**self.options)

    def remove(self, record: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(sa.text("DELETE FROM orders WHERE id = :id"), {"id": record})

    def write(self, record: str, rank: int, document: dict[str, Any] | None) -> None:
        self.remove(record)
        row = {"id": record, "document": None if document is None else json.dumps(document, indent=1)}
        if self.is_ranked:
            row |= {"_rank": rank, "_deleted": document is None}  # type: ignore[dict-item]
        with self.engine.begin() as connection:
            names = ", ".join(row)
            values = ", ".join(f":{name}" for name in row)
            connection.execute(sa.text(f"INSERT INTO orders ({names}) VALUES ({values})"), row)


class InRedis:
    def __init__(self, server: Any, client: Any, **options: Any) -> None:
        self.server, self.client, self.options = server, client, options
        self.is_ranked = options.get("guard") != "fence"

    def make(self) -> Sink:
        return RedisSink(self.server.host, self.server.port, password=self.server.password, **self.options)

    def remove(self, record: str) -> None:
        self.client.delete(f"orders:{record}")
        self.client.hdel(self._hash(record), f"orders:{record}")

    def write(self, record: str, rank: int, document: dict[str, Any] | None) -> None:
        self.remove(record)
        if self.is_ranked:
            self.client.hset(self._hash(record), f"orders:{record}", f"{rank:020d}")
        if document is None:
            return
        if self.options.get("target") == "hash":
            self.client.hset(f"orders:{record}", mapping={name: str(value) for name, value in document.items()})
        else:
            self.client.set(f"orders:{record}", json.dumps(document, separators=(",", ":")))

    def _hash(self, record: str) -> str:
        return f"xq:rank:{bucket(record.encode(), 1009)}"


class InElasticsearch:
    is_ranked = True

    def __init__(self, server: Any, name: str) -> None:
        self.server, self.name = server, name

    def make(self) -> Sink:
        index = f"{self.name}-$collection"
        return self.server.sink(self.server.url, self.server.user, self.server.password, index=index)

    def remove(self, record: str) -> None:
        # without this, the server remembers the version of a deleted document for a minute
        self.server.request("PUT", f"/{self._index}/_settings", {"index": {"gc_deletes": "0s"}})
        self.server.request("DELETE", f"/{self._index}/_doc/{record}?refresh=true")

    def write(self, record: str, rank: int, document: dict[str, Any] | None) -> None:
        body = {"_xq": {"seq": rank >> 1, "deleted": True}} if document is None else document
        path = f"/{self._index}/_doc/{record}?version={rank}&version_type=external_gte&refresh=true"

        def is_written() -> bool:
            if self.server.request("PUT", path, body)[0] in (200, 201):
                return True
            self.remove(record)
            return False

        wait_until(is_written, "the server forgets the version of a deleted document")

    @property
    def _index(self) -> str:
        return f"{self.name}-orders-000001"


Plant = Callable[[pytest.FixtureRequest], Planter]

PLANTERS: dict[str, Plant] = {
    "memory": lambda request: InMemory(),
    "sqlite": lambda request: InSql(f"sqlite:///{request.getfixturevalue('tmp_path')}/sink.db"),
    "sqlite-fence": lambda request: InSql(f"sqlite:///{request.getfixturevalue('tmp_path')}/sink.db", guard="fence"),
    "postgresql": lambda request: InSql(request.getfixturevalue("postgres_url")),
    "mariadb": lambda request: InSql(request.getfixturevalue("mariadb_url")),
    "redis": lambda request: _in_redis(request),
    "redis-hash": lambda request: _in_redis(request, target="hash"),
    "redis-fence": lambda request: _in_redis(request, guard="fence"),
    "elasticsearch": lambda request: _in_elasticsearch(request),
    "opensearch": lambda request: _in_elasticsearch(request, is_opensearch=True),
}
"""By name of the sink."""
PLANTED = [
    pytest.param(name, marks=pytest.mark.full("another product") if name == "opensearch" else ()) for name in PLANTERS
]
"""The names, as parameters of a fixture."""


def _in_redis(request: pytest.FixtureRequest, **options: Any) -> InRedis:
    return InRedis(request.getfixturevalue("redis_server"), request.getfixturevalue("redis_client"), **options)


def _in_elasticsearch(request: pytest.FixtureRequest, *, is_opensearch: bool = False) -> InElasticsearch:
    from tests.support.fixtures import NEWER, OPENSEARCH, search_server

    alone = search_server(OPENSEARCH if is_opensearch else NEWER)  # all tests share the index of control records
    server = alone.__enter__()
    name = f"v{secrets.token_hex(4)}"

    def tidy() -> None:
        server.request("DELETE", f"/{name}-orders-000001")
        for document in ("%2A", "orders%2Fsink"):
            server.request("DELETE", f"/xq_control/_doc/{document}")
        alone.__exit__(None, None, None)

    request.addfinalizer(tidy)
    return InElasticsearch(server, name)


@contextlib.contextmanager
def opened(planter: Planter) -> Iterator[Any]:
    """Open the sink of a planter, and close it at the end."""
    sink = planter.make()
    try:
        yield sink
    finally:
        sink.close()
