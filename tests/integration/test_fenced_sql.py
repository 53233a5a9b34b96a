"""The SQL sink with the guard ``fence``: plain tables, claims, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import pytest
from sqlalchemy import inspect
from sqlalchemy.engine import make_url
from tests.support.sql_targets import Make, OnMariadb, OnPostgresql, OnSqlite, execute, opened_sinks, puts, url_of

from export_queue import Claim, LeaseLost, SinkConfigurationError, SinkRefused, SqlSink
from export_queue.core.sinks import CompositeSink
from export_queue.testing import FencedConformance

MINE = Claim("q/1/0", 7)


class Plain(FencedConformance):
    """Whole documents in tables that have nothing but them."""

    takes = "text"

    def make_sink(self) -> SqlSink:
        return SqlSink(self.url, guard="fence")

    def read_all(self) -> Mapping[tuple[str, bytes], bytes]:
        found = {}
        with self.readers.connect() as connection:
            for name in self.collections:
                if inspect(connection).has_table(name):
                    for row in connection.exec_driver_sql(f"SELECT id, document FROM {name}"):
                        found[name, row.id.encode()] = row.document.encode()
        return found


class TestSqlite(OnSqlite, Plain):
    pass


class TestPostgresql(OnPostgresql, Plain):
    pass


@pytest.mark.full("PostgreSQL and SQLite run anyway")
class TestMariadb(OnMariadb, Plain):
    pass


class OnGeneric(OnPostgresql):
    """PostgreSQL by statements that every database has."""

    def make_sink(self) -> SqlSink:
        return generic(self.url)


@pytest.mark.full("the guard is that of the dialects, in portable statements")
class TestGeneric(OnGeneric, Plain):
    pass


def generic(url: str) -> SqlSink:
    from export_queue.core.sinks.sql.dialects.generic import GenericDialect

    parsed = make_url(url)
    dialect = GenericDialect(parsed._replace(password=None), password=parsed.password, timeout=60)
    with mock.patch("export_queue.core.sinks.sql.sink.open_dialect", return_value=dialect):
        return SqlSink(url, guard="fence")


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path) -> str:
    return url_of(request, tmp_path)


@pytest.fixture
def make() -> Iterator[Make]:
    yield from opened_sinks()


def claimed(sink: SqlSink) -> SqlSink:
    sink.admit(queue_id="q", store_id="s", fence=1)
    sink.claim([MINE])
    return sink


def test_a_table_holds_nothing_but_the_data(url, make):
    sink = claimed(make(url, guard="fence"))
    sink.under(MINE).apply(puts(b"1", b"2"))
    sink.under(MINE).apply(puts(b"2", document=None))
    assert execute(url, "SELECT * FROM orders") == [("1", "x")]
    assert execute(url, "SELECT unit, fence FROM xq_unit") == [("q/1/0", 7)]
    with pytest.raises(Exception, match="orders_live"):
        execute(url, "SELECT * FROM orders_live")


KEYS: Mapping = {"customer": "text", "number": "integer"}


def test_keys_of_several_columns_are_put_and_deleted(url, make):
    sink = claimed(make(url, guard="fence", key=KEYS, columns={"total": "integer"}))
    document = b'{"total": 7}'
    sink.under(MINE).apply(puts(b'["a",1]', b'["a",2]', b'["b",1]', document=document))
    sink.under(MINE).apply(puts(b'["a",2]', b'["b",1]', b'["c",1]', document=None))
    assert execute(url, "SELECT customer, number, total FROM orders") == [("a", 1, 7)]


def test_rows_and_columns_of_somebody_else_stay(url, make):
    execute(
        url,
        'CREATE TABLE orders ("id" text PRIMARY KEY, "document" text NOT NULL, more integer DEFAULT 7)',
        "INSERT INTO orders (id, document, more) VALUES ('1', 'before', 8), ('2', 'before', 8), ('3', 'before', 8)",
    )
    sink = claimed(make(url, guard="fence"))
    assert sink.under(MINE).apply(puts(b"2", b"4")).written == 2
    sink.under(MINE).apply(puts(b"3", document=None))
    assert execute(url, "SELECT id, document, more FROM orders ORDER BY id") == [
        ("1", "before", 8),
        ("2", "x", 8),
        ("4", "x", 7),
    ]


def test_a_row_that_the_table_refuses_is_rejected_alone(url, make):
    execute(url, 'CREATE TABLE orders ("id" text PRIMARY KEY, "document" text NOT NULL, CHECK (document <> \'bad\'))')
    sink = claimed(make(url, guard="fence"))
    batch = puts(b"1", b"2", b"3")
    batch.documents[1] = b"bad"
    result = sink.under(MINE).apply(batch)
    assert (result.written, [rejection.position for rejection in result.rejected]) == (2, [1])


def test_a_table_of_the_other_guard_is_refused_with_a_word_about_it(url, make):
    for guard, other in (("seq", "fence"), ("fence", "seq")):
        sink = make(url, table=f"of_{guard}", guard=guard)
        sink.admit(queue_id="q", store_id="s", fence=1)
        with pytest.raises(SinkConfigurationError, match=f"with guard='{guard}'"):
            make(url, table=f"of_{guard}", guard=other).admit(queue_id="q", store_id="s", fence=2)


def test_the_ddl_can_be_printed_and_run_by_somebody_else(url, make):
    sink = make(url, guard="fence", create_tables=False)
    with pytest.raises(SinkRefused, match="xq_unit.*xq_control") as caught:
        sink.admit(queue_id="q", store_id="s", fence=1)
    execute(url, *caught.value.hint.split(":\n", 1)[1].split(";\n")[:-1])
    ddl = sink.ddl("orders")
    assert "xq_unit" not in ddl
    assert "_rank" not in ddl
    execute(url, *ddl.split(";\n")[:-1])
    assert claimed(sink).under(MINE).apply(puts(b"1")).written == 1
    assert make(url, guard="fence").ddl("orders") == ""


def test_two_tables_in_one_batch_are_both_checked(url, make):
    sink = claimed(make(url, guard="fence"))
    batch = puts(b"1", b"2")
    batch.collections[1] = "others"
    assert sink.under(MINE).apply(batch).written == 2
    sink.claim([Claim(MINE.unit, 8)])
    with pytest.raises(LeaseLost):
        sink.under(MINE).apply(puts(b"3", collection="others"))
    assert execute(url, "SELECT id FROM others") == [("2",)]


@pytest.mark.parametrize("portable", [False, True], ids=["own", "portable"])
def test_a_claim_waits_for_the_batch_that_has_compared_its_fence(url, make, portable):
    """Else the batch would be committed behind it."""
    if portable and not url.startswith("postgresql"):
        pytest.skip("the portable statements are tried on PostgreSQL")
    older, younger = (generic(url) if portable else make(url, guard="fence") for _ in range(2))
    claimed(older)
    younger.admit(queue_id="q", store_id="s", fence=1)
    older.under(MINE).apply(puts(b"0"))
    compared, go_on = threading.Event(), threading.Event()
    upsert, results = older._database.dialect.upsert, []

    def wait_and_upsert(*arguments: Any) -> int:
        compared.set()
        assert go_on.wait(30)
        return upsert(*arguments)

    older._database.dialect.upsert = wait_and_upsert

    def claim_and_look() -> None:
        younger.claim([Claim(MINE.unit, 8)])
        results.append(execute(url, "SELECT id FROM orders ORDER BY id"))

    writer = threading.Thread(target=lambda: results.append(older.under(MINE).apply(puts(b"1", b"2")).written))
    claimer = threading.Thread(target=claim_and_look)
    writer.start()
    assert compared.wait(30)
    claimer.start()
    claimer.join(0.5)
    is_waiting = claimer.is_alive()
    go_on.set()
    writer.join(30)
    claimer.join(30)
    assert is_waiting
    assert sorted(results, key=str) == [2, [("0",), ("1",), ("2",)]]
    with pytest.raises(LeaseLost):
        older.under(MINE).apply(puts(b"3"))
    older.close()
    younger.close()


def test_a_claim_that_the_sink_has_lost_is_not_taken_for_one_that_stands(url, make):
    sink = claimed(make(url, guard="fence"))
    execute(url, "UPDATE xq_unit SET fence = 6")
    with pytest.raises(LeaseLost, match="forgotten the claim.*expected fence 7, found 6"):
        sink.under(MINE).apply(puts(b"1"))
    execute(url, "DELETE FROM xq_unit")
    with pytest.raises(LeaseLost, match="found none") as caught:
        sink.under(MINE).apply(puts(b"1"))
    assert "fail-over" in caught.value.hint


def test_units_of_one_table_live_in_the_schema_of_the_tables(postgres_url, make):
    execute(postgres_url, "CREATE SCHEMA sales")
    sink = claimed(make(postgres_url, guard="fence", table="sales.$collection"))
    assert sink.under(MINE).apply(puts(b"1", b"2")).written == 2
    assert sink.under(MINE).apply(puts(b"2", document=None)).written == 1
    assert execute(postgres_url, "SELECT id FROM sales.orders") == [("1",)]
    assert execute(postgres_url, "SELECT unit FROM sales.xq_unit") == [("q/1/0",)]


def test_another_guard_is_refused(tmp_path, make):
    with pytest.raises(SinkConfigurationError, match="expected 'seq' or 'fence'"):
        make(f"sqlite:///{tmp_path}/sink.db", guard="none")


def test_a_part_of_a_composite_sink_is_refused(tmp_path, make):
    with pytest.raises(SinkConfigurationError, match="'one' of a composite sink needs the guard seq"):
        CompositeSink([("one", make(f"sqlite:///{tmp_path}/sink.db", guard="fence"))])


def test_a_batch_without_a_claim_is_refused(url, make):
    with pytest.raises(SinkConfigurationError, match="guard"):
        claimed(make(url, guard="fence")).apply(puts(b"1"))
