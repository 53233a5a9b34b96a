"""The systems that records are delivered to: emptied, looked into, and brought to refuse writes."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import psycopg
import redis
from tests.support.elasticsearch import ElasticsearchServer
from tests.support.servers import PostgresServer, RedisServer, Server

from benchmarks.peers.greeting import Greeting
from export_queue import ElasticsearchSink, SqlSink

NAME = "bench"
RECORDS = "records"
REFUSED = "customer-000000007"
"""The record that PostgreSQL is made to refuse."""
Found = dict[str, list[int]]
"""The versions of all records by key; a record that is there twice has two."""


class Target(ABC):
    """One server; each contestant finds it empty."""

    name: ClassVar[str]
    refusal: ClassVar[str]
    """How it is brought to refuse writes, in a few words."""
    passes: ClassVar[bool] = True
    """Whether it takes everything once :meth:`refusing` has ended."""

    def __init__(self, server: Server, secret: str) -> None:
        self.server = server
        self.secret = secret
        """The variable that has the password, in Spark's processes."""

    @abstractmethod
    def empty(self, guard: str | None) -> None:
        """Make it as it is before the first delivery.

        :param guard: that of the sink that will deliver; None for a peer.
        """

    @abstractmethod
    def address(self) -> dict[str, Any]:
        """Return where it is, as peers are told."""

    @abstractmethod
    def sink(self, guard: str) -> dict[str, Any]:
        """Describe the sink of this library for it."""

    @abstractmethod
    def found(self) -> Found:
        """Read what readers see."""

    @abstractmethod
    def refusing(self) -> Any:
        """Bring it to refuse writes, as long as a ``with`` block lasts."""

    def described(self, kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Describe a sink; the password is a reference."""
        return {"kind": kind, "options": dict(options), "secrets": {"password": f"env:{self.secret}"}, "name": NAME}


class InRedis(Target):
    """Keys ``r:ID``: strings, or the hashes of spark-redis."""

    name = "Redis"
    refusal = "memory full, `noeviction`"

    def __init__(self, server: RedisServer) -> None:
        super().__init__(server, "PEERS_REDIS")
        self.client = redis.Redis(server.host, server.port, password=server.password)

    def empty(self, guard: str | None) -> None:
        self.client.flushall()

    def address(self) -> dict[str, Any]:
        return {"host": self.server.host, "port": self.server.port}

    def sink(self, guard: str) -> dict[str, Any]:
        return self.described("redis", {**self.address(), "key": "r:$id", "guard": guard})

    def found(self) -> Found:
        keys = list(self.client.scan_iter("r:*", count=10_000))
        pipeline = self.client.pipeline(transaction=False)
        for key in keys:
            pipeline.type(key)
        kinds = pipeline.execute()
        for key, kind in zip(keys, kinds, strict=True):
            if kind == b"hash":
                pipeline.hget(key, "value")
            else:
                pipeline.get(key)
        values = pipeline.execute()
        return {key.decode().removeprefix("r:"): [version_of(value)] for key, value in zip(keys, values, strict=True)}

    @contextmanager
    def refusing(self) -> Iterator[None]:
        used = self.client.info("memory")["used_memory"]  # type: ignore[index]
        self.client.config_set("maxmemory-policy", "noeviction")
        self.client.config_set("maxmemory", used + 200_000)
        try:
            yield
        finally:
            self.client.config_set("maxmemory", 0)


class InElasticsearch(Target):
    """Documents behind the alias ``records``, in an index as the sink makes it."""

    name = "Elasticsearch"
    refusal = "index write-blocked"

    def __init__(self, server: ElasticsearchServer, greeting: Greeting) -> None:
        super().__init__(server, "PEERS_ELASTICSEARCH")
        self.elasticsearch, self.greeting = server, greeting

    def empty(self, guard: str | None) -> None:
        for index in (f"{RECORDS}-000001", "xq_control"):
            self.elasticsearch.request("DELETE", f"/{index}")
        sink = ElasticsearchSink(self.elasticsearch.url, self.elasticsearch.user, self.server.password, index=RECORDS)
        sink.run_ddl(RECORDS)
        sink.close()

    def address(self) -> dict[str, Any]:
        server = self.elasticsearch
        return {
            "host": server.host,
            "port": str(server.port),
            "user": server.user,
            "greeted_port": str(self.greeting.port),
            "index": RECORDS,
        }

    def sink(self, guard: str) -> dict[str, Any]:
        server = self.elasticsearch
        return self.described("elasticsearch", {"hosts": server.url, "username": server.user, "index": RECORDS})

    def found(self) -> Found:
        self.elasticsearch.request("POST", f"/{RECORDS}/_refresh")
        status, answer = self.elasticsearch.request("GET", f"/{RECORDS}/_search?size=10000")
        assert status == 200, answer
        hits = answer["hits"]["hits"]
        assert len(hits) == answer["hits"]["total"]["value"]
        return {hit["_id"]: [hit["_source"].get("version", 0)] for hit in hits}

    @contextmanager
    def refusing(self) -> Iterator[None]:
        self._block(True)
        try:
            yield
        finally:
            self._block(False)

    def _block(self, blocked: bool) -> None:
        status, answer = self.elasticsearch.request("PUT", f"/{RECORDS}/_settings", {"index.blocks.write": blocked})
        assert status == 200, answer


class InPostgresql(Target):
    """Rows of a table with a primary key, in a database that is made anew each time."""

    name = "PostgreSQL"
    refusal = "a `CHECK` refuses one record"
    passes = False

    def __init__(self, server: PostgresServer) -> None:
        super().__init__(server, "PEERS_POSTGRESQL")
        self.postgres = server
        self.database = ""

    def empty(self, guard: str | None) -> None:
        if self.database:
            self.postgres.drop_database(self.database)
        self.database = self.postgres.create_database()
        if guard is None:
            self._execute(f'CREATE TABLE {RECORDS} (id text COLLATE "C" PRIMARY KEY, document text)')
        else:
            options = self.sink(guard)["options"]
            sink = SqlSink(**options, password=self.server.password)
            sink.run_ddl(RECORDS)
            sink.close()

    def address(self) -> dict[str, Any]:
        server = self.postgres
        address = {"host": server.host, "port": str(server.port), "user": server.user}
        return {**address, "database": self.database, "table": RECORDS}

    def sink(self, guard: str) -> dict[str, Any]:
        server = self.postgres
        url = f"postgresql+psycopg://{server.user}@{server.host}:{server.port}/{self.database}"
        return self.described("sql", {"url": url, "table": RECORDS, "guard": guard})

    def found(self) -> Found:
        ((live,),) = self._execute(f"SELECT to_regclass('{RECORDS}_live') IS NOT NULL")
        rows = self._execute(f"SELECT id, document FROM {RECORDS}{'_live' if live else ''}")
        found: Found = {}
        for record, document in rows:
            found.setdefault(record, []).append(version_of(document))
        return found

    @contextmanager
    def refusing(self) -> Iterator[None]:
        self._execute(f"ALTER TABLE {RECORDS} ADD CONSTRAINT refusing CHECK (id <> '{REFUSED}')")
        yield

    def _execute(self, statement: str) -> list[Any]:
        server = self.postgres
        address = {"host": server.host, "port": server.port, "user": server.user, "password": server.password}
        with psycopg.connect(dbname=self.database, **address) as connection:  # type: ignore[arg-type]
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


def version_of(value: str | bytes | None) -> int:
    """Read the version of a record; 0 stands for one without a value."""
    return 0 if not value else int(json.loads(value)["version"])
