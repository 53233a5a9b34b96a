"""What the tests of the SQL sink share: targets of the conformance suite, batches, statements beside the sink."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sqlalchemy import Engine, create_engine, inspect

from export_queue import ApplyResult, Operations, SqlSink
from export_queue.testing import SinkConformance

Make = Callable[..., SqlSink]


def read_views(engine: Engine) -> Iterator[tuple[str, Any]]:
    """Read what readers see: the views that hide tombstones."""
    with engine.connect() as connection:
        for name in inspect(connection).get_view_names():
            quoted = connection.dialect.identifier_preparer.quote(name)
            for row in connection.exec_driver_sql(f"SELECT * FROM {quoted}"):
                yield name.removesuffix("_live"), row


class Documents(SinkConformance):
    """Whole documents in one column of text."""

    url: str
    readers: Engine
    options: ClassVar[Mapping[str, Any]] = {}
    takes = "text"

    def make_sink(self) -> SqlSink:
        return SqlSink(self.url, **self.options)

    def read_all(self) -> Mapping[tuple[str, bytes], bytes]:
        return {(name, row.id.encode()): row.document.encode() for name, row in read_views(self.readers)}


class Fields(Documents):
    """Fields of the documents in columns of their own."""

    options: ClassVar = {"columns": {"of": "text", "seq": "integer"}}
    takes = "json"

    def read_all(self) -> Mapping[tuple[str, bytes], bytes]:
        return {
            (name, row.id.encode()): b'{"of":"%s","seq":%d}' % (row.of.encode(), row.seq)
            for name, row in read_views(self.readers)
        }


class OnSqlite:
    @pytest.fixture(autouse=True)
    def _target(self, tmp_path) -> Iterator[None]:
        self.url = f"sqlite:///{tmp_path}/sink.db"
        self.readers = create_engine(self.url)
        yield
        self.readers.dispose()


class OnPostgresql:
    @pytest.fixture(autouse=True)
    def _target(self, postgres_url: str) -> Iterator[None]:
        self.url = postgres_url
        self.readers = create_engine(postgres_url)
        yield
        self.readers.dispose()


class OnMariadb:
    @pytest.fixture(autouse=True)
    def _target(self, mariadb_url: str) -> Iterator[None]:
        self.url = mariadb_url
        self.readers = create_engine(mariadb_url)
        yield
        self.readers.dispose()


def puts(*ids: bytes, seq: int = 5, collection: str = "orders", document: bytes | None = b"x") -> Operations:
    n = len(ids)
    return Operations([collection] * n, ids, [document] * n, [seq] * n, range(n))


def admit(sink: SqlSink) -> SqlSink:
    sink.admit(queue_id="q", store_id="s", fence=1)
    return sink


def apply_one(sink: SqlSink) -> ApplyResult:
    return sink.apply(puts(b"1"))


def opened_sinks() -> Iterator[Make]:
    """Give what opens sinks, and close them; the body of a fixture."""
    opened: list[SqlSink] = []

    def make_sink(url: str, **options: Any) -> SqlSink:
        opened.append(SqlSink(url, **options))
        return opened[-1]

    yield make_sink
    for sink in opened:
        sink.close()


def url_of(request: pytest.FixtureRequest, folder: Path) -> str:
    """Return the URL of an empty database of the kind that a fixture's parameter names."""
    if request.param == "sqlite":
        return f"sqlite:///{folder}/sink.db"
    return str(request.getfixturevalue({"postgresql": "postgres_url", "mariadb": "mariadb_url"}[request.param]))


def execute(url: str, *statements: str) -> list[Any]:
    """Run statements without the sink, and return the rows of the last one."""
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            if connection.dialect.name == "mysql":
                connection.exec_driver_sql("SET sql_mode = CONCAT(@@sql_mode, ',ANSI_QUOTES')")
                statements = tuple(map(as_mariadb, statements))
            results = [connection.exec_driver_sql(statement) for statement in statements]
            return [tuple(row) for row in results[-1]] if results[-1].returns_rows else []
    finally:
        engine.dispose()


def as_mariadb(statement: str) -> str:
    """Write a statement of a test as MariaDB wants it: keys of text have a length, and a collation without padding."""
    statement = re.sub(r'"id" text(?! COLL)', '"id" varchar(99) COLLATE utf8mb4_nopad_bin', statement)
    statement = statement.replace('"document" text', '"document" text CHARACTER SET utf8mb4')
    return re.sub(r"CAST\((\w+) AS text\)", r"CAST(\1 AS char)", statement).replace("text UNIQUE", "char(9) UNIQUE")
