"""The SQL sink's way for databases that it does not know, forced upon some that it does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import orjson
import pytest
from sqlalchemy import make_url
from tests.support.servers import free_port
from tests.support.sql_targets import Documents, Fields, OnPostgresql, OnSqlite, admit, execute, puts

from export_queue import ApplyResult, Operations, SinkConfigurationError, SinkRefused, SinkUnavailable, SqlSink
from export_queue.core.sinks.sql.database import RETRY
from export_queue.core.sinks.sql.dialects import generic as generic_module
from export_queue.core.sinks.sql.dialects.generic import GenericDialect


def open_generic(url: str, password: Any, timeout: float) -> GenericDialect:
    found = make_url(url)
    return GenericDialect(found, password=password or found.password, timeout=timeout)


def generic(url: str, **options: Any) -> SqlSink:
    with mock.patch("export_queue.core.sinks.sql.sink.open_dialect", open_generic):
        return SqlSink(url, **options)


class GenericDocuments(Documents):
    def make_sink(self) -> SqlSink:
        return generic(self.url, **self.options)


@pytest.mark.full("the same portable statements as on PostgreSQL")
class TestSqliteDocuments(OnSqlite, GenericDocuments):
    pass


@pytest.mark.full("as the next one, but for one column instead of many")
class TestPostgresqlDocuments(OnPostgresql, GenericDocuments):
    pass


@pytest.mark.full("the portable statements, of which the tests below run anyway")
class TestPostgresqlFields(OnPostgresql, Fields):
    def make_sink(self) -> SqlSink:
        return generic(self.url, **self.options)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path) -> str:
    return f"sqlite:///{tmp_path}/sink.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
def make() -> Iterator[Any]:
    opened: list[SqlSink] = []

    def make_sink(url: str, **options: Any) -> SqlSink:
        opened.append(generic(url, **options))
        return opened[-1]

    yield make_sink
    for sink in opened:
        sink.close()


def test_a_database_without_a_dialect_of_its_own_gets_the_generic_one(tmp_path):
    with pytest.raises(SinkConfigurationError, match="needs a SQLAlchemy dialect and its driver"):
        SqlSink("oracle+oracledb://me@db/x")


def test_a_key_that_merges_ids_is_found_by_trying(mariadb_url, make):
    sink = make(mariadb_url)
    execute(
        mariadb_url,
        'CREATE TABLE orders ("id" varchar(99) COLLATE utf8mb4_bin PRIMARY KEY, "document" longtext, '
        '"_rank" bigint, "_deleted" boolean)',
    )
    with pytest.raises(SinkConfigurationError, match="treats different ids as equal"):
        admit(sink).apply(puts(b"1"))
    assert execute(mariadb_url, "SELECT * FROM orders") == [], "what was tried is rolled back"


def test_what_was_tried_on_a_table_is_not_there_afterwards(url, make):
    sink = admit(make(url, key={"a": "text", "n": "integer", "u": "uuid", "d": "date"}))
    record = b'["x",5,"12345678-0000-4000-8000-123456789abc","2026-11-21"]'
    assert sink.apply(puts(record)).written == 1
    assert sink.apply(puts(record, seq=4)).stale == 1
    assert execute(url, "SELECT a, n FROM orders WHERE _rank < 100") == [("x", 5)]


def test_fields_become_typed_columns_and_others_are_rejected_alone(url, make):
    sink = admit(make(url, columns={"n": "integer", "x": "real", "b": "boolean", "at": "timestamp"}))
    good = {"n": 2**62, "x": 0.5, "b": True, "at": "2026-11-21T10:00:00+01:00"}
    bad = [{"n": "5"}, {"x": "much"}, {"b": 1}, {"at": "yesterday"}, {"n": 1 << 64}]
    documents = [orjson.dumps(one) for one in (good, *bad[:4])] + [b'{"n":18446744073709551616}']
    n = len(documents)
    result = sink.apply(Operations(["orders"] * n, [b"%d" % i for i in range(n)], documents, [5] * n, range(n)))
    assert (result.written, [rejection.position for rejection in result.rejected]) == (1, [1, 2, 3, 4, 5])
    ((number, real, truth, moment),) = execute(url, "SELECT n, x, b, CAST(at AS text) FROM orders_live")
    assert (number, real, bool(truth)) == (2**62, 0.5, True)
    assert moment.startswith("2026-11-21 09:00:00")


@pytest.mark.parametrize("there", [True, False], ids=["a row that is there", "a row that is missing"])
def test_a_batch_that_read_before_a_newer_one_wrote_does_not_undo_it(url, make, monkeypatch, there):
    """Between reading the ranks and writing, another applier writes a newer version."""
    sink, other = admit(make(url)), admit(make(url))
    for one in (sink, other):
        one.create("orders")
    if there:
        sink.apply(puts(b"1", seq=1, document=b"oldest"))
    read, newer = generic_module._ranks, [puts(b"1", b"2", seq=9, document=b"newest")]

    def read_and_wait(*arguments: Any) -> Any:
        found = read(*arguments)
        if newer:
            assert other.apply(newer.pop()).written == 2
        return found

    monkeypatch.setattr(generic_module, "_ranks", read_and_wait)
    assert sink.apply(puts(b"1", seq=5, document=b"old")) == ApplyResult(0, 1)
    assert execute(url, "SELECT * FROM orders_live ORDER BY id") == [("1", "newest"), ("2", "newest")]


def test_a_tombstone_that_is_swept_between_reading_and_writing_takes_no_put_along(url, make, monkeypatch):
    """A change that finds no row is not stale by that: the row may be gone."""
    sink = admit(make(url))
    sink.apply(puts(b"1", b"2", seq=1, document=None))
    read, expired = generic_module._ranks, ["DELETE FROM orders WHERE id = '1'"]

    def read_and_wait(*arguments: Any) -> Any:
        found = read(*arguments)
        if expired:
            execute(url, expired.pop())
        return found

    monkeypatch.setattr(generic_module, "_ranks", read_and_wait)
    assert sink.apply(puts(b"1", b"2", seq=5, document=b"new")).written == 2
    assert execute(url, "SELECT * FROM orders_live ORDER BY id") == [("1", "new"), ("2", "new")]


def test_a_row_that_breaks_a_rule_for_good_is_isolated(url, make, monkeypatch):
    execute(
        url,
        'CREATE TABLE orders ("id" varchar(450) PRIMARY KEY, "document" text, "_rank" bigint, "_deleted" boolean, '
        "CHECK (document <> 'poison'))",
    )
    sink = admit(make(url))
    monkeypatch.setattr(sink._database, "retry", replace(RETRY, sleep=lambda _: None))
    ids = [b"%03d" % n for n in range(50)]
    documents = [b"poison" if n in (0, 27, 49) else b"fine" for n in range(50)]
    result = sink.apply(Operations(["orders"] * 50, ids, documents, [5] * 50, range(50)))
    assert (result.written, [rejection.position for rejection in result.rejected]) == (47, [0, 27, 49])
    assert "check" in result.rejected[0].reason.lower()


def test_a_table_of_somebodys_becomes_a_sink_by_the_printed_ddl(url, make):
    execute(
        url, "CREATE TABLE orders (id varchar(99) PRIMARY KEY, document text)", "INSERT INTO orders VALUES ('1', 'old')"
    )
    sink = make(url, create_tables=False)
    execute(url, *sink.ddl("orders").split(";\n")[:-1])
    assert admit(sink).apply(puts(b"1", b"2", seq=0)).written == 2
    assert execute(url, "SELECT * FROM orders_live ORDER BY id") == [("1", "x"), ("2", "x")]


def test_a_server_that_is_not_there_is_unavailable():
    for act in (admit, lambda sink: sink.apply(puts(b"1"))):
        with pytest.raises(SinkUnavailable) as caught:
            act(generic(f"postgresql+psycopg://me:hunter2@127.0.0.1:{free_port()}/x"))
        assert "hunter2" not in str(caught.value)


def test_a_role_that_may_not_create_tables_is_told_what_to_run(tmp_path):
    path = tmp_path / "sink.db"
    path.touch()
    with pytest.raises(SinkRefused, match="xq_control") as caught:
        admit(generic(f"sqlite:///{path}", create_tables=False))
    assert "CREATE TABLE" in caught.value.hint
