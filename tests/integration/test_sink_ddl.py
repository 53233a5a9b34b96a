"""What a sink's target still lacks: printed and run, on real servers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine
from tests.support.elasticsearch import ElasticsearchServer
from tests.support.sql_targets import Make, admit, execute, opened_sinks, puts, url_of

from export_queue import Retry, SinkConfigurationError, SinkUnavailable
from export_queue.core.sinks import PreparableSink
from export_queue.core.sinks.sql import prepared_tables
from export_queue.core.sinks.sql.dialects import mysql, postgresql

COLUMNS = {"a": "text", "order": "numeric"}


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path) -> str:
    return url_of(request, tmp_path)


@pytest.fixture
def make() -> Iterator[Make]:
    yield from opened_sinks()


@pytest.mark.parametrize("guard", ["seq", "fence"])
def test_what_is_missing_is_printed_then_run_then_nothing_is(url, make, guard):
    sink = make(url, create_tables=False, guard=guard, columns=COLUMNS)
    assert isinstance(sink, PreparableSink)
    printed = sink.ddl("orders", "bills")
    assert printed.count("CREATE TABLE") == (5 if guard == "seq" else 6)
    assert execute(url, "SELECT 1") == [(1,)]
    assert sink.ddl("orders", "bills") == printed, "printing runs nothing"
    assert sink.run_ddl("orders", "bills") == printed
    assert (sink.ddl("orders", "bills"), sink.run_ddl("orders", "bills")) == ("", "")
    assert "CREATE TABLE" in sink.ddl("others")
    if guard == "seq":
        assert admit(sink).apply(puts(b"1", document=b'{"a":"x","order":1}')).written == 1


def test_a_new_column_is_added_beside_a_drain_that_does_not_know_it(url, make):
    old = admit(make(url, columns={"a": "text"}))
    assert old.apply(puts(b"1", document=b'{"a":"x"}')).written == 1
    new = make(url, columns=COLUMNS)
    with pytest.raises(SinkConfigurationError, match="missing columns: order") as caught:
        new.create("orders")
    assert "export-queue ddl COLLECTION --sink … --run" in caught.value.hint
    assert "ALTER TABLE" in new.run_ddl("orders")
    assert new.run_ddl("orders") == ""
    assert old.apply(puts(b"2", document=b'{"a":"y"}')).written == 1
    assert admit(new).apply(puts(b"1", seq=6, document=b'{"a":"x","order":7.5}')).written == 1
    rows = execute(url, 'SELECT id, a, "order" + 0.0 FROM orders_live ORDER BY id')
    assert [(key, a, None if n is None else float(n)) for key, a, n in rows] == [("1", "x", 7.5), ("2", "y", None)]


@pytest.mark.parametrize("state", ["gone", "stale"])
def test_a_view_that_was_left_behind_is_made_anew(url, make, state):
    make(url, columns={"a": "text"}).run_ddl("orders")
    if state == "gone":
        execute(url, "DROP VIEW orders_live")
        sink = make(url, columns={"a": "text"})
    else:
        execute(url, 'ALTER TABLE orders ADD COLUMN "order" numeric')  # as where MariaDB was stopped in between
        sink = make(url, columns=COLUMNS)
    printed = sink.run_ddl("orders")
    assert "VIEW" in printed
    assert "ALTER" not in printed
    assert sink.ddl("orders") == ""
    assert execute(url, "SELECT * FROM orders_live") == []


def test_a_table_that_cannot_be_a_sink_is_told_so(url, make):
    execute(url, "CREATE TABLE orders (id integer PRIMARY KEY, a varchar(9))")
    with pytest.raises(SinkConfigurationError, match="cannot be a sink"):
        make(url, columns={"a": "text"}).run_ddl("orders")


def test_several_processes_may_do_it_at_once(url, make):
    sinks = [make(url, columns=COLUMNS) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(sink.run_ddl, "orders") for sink in sinks]:
            done.result()
    assert sinks[0].ddl("orders") == ""
    assert admit(sinks[0]).apply(puts(b"1", document=b'{"a":"x"}')).written == 1


def test_a_table_that_somebody_reads_is_waited_for_shortly(url, make, monkeypatch):
    if url.startswith("sqlite"):
        pytest.skip("readers of a file do not keep writers out")
    admit(make(url, columns={"a": "text"})).apply(puts(b"1", document=b'{"a":"x"}'))
    monkeypatch.setattr(prepared_tables, "DDL_RETRY", Retry(attempts=1))
    for module in (mysql, postgresql):
        monkeypatch.setattr(module, "DDL_LOCK_SECONDS", 1)
    sink = make(url, columns=COLUMNS, timeout=100)
    engine = create_engine(url)
    with engine.connect() as reader:
        reader.exec_driver_sql("SELECT * FROM orders").all()
        with pytest.raises(SinkUnavailable, match=r"[Ll]ock"):
            sink.run_ddl("orders")
    engine.dispose()
    assert "ALTER TABLE" in sink.run_ddl("orders")


def test_an_index_is_created_or_completed(elasticsearch_server: ElasticsearchServer):
    server = elasticsearch_server
    sink = server.sink(server.url, server.user, server.password, index="ddl-$collection", create_indices=False)
    assert isinstance(sink, PreparableSink)
    server.request("PUT", "/ddl-bills-1", {"aliases": {"ddl-bills": {}}})
    try:
        printed = sink.ddl("orders", "bills")
        for expected in ("PUT /ddl-orders-000001", "PUT /ddl-bills-1/_mapping", "POST /_aliases"):
            assert expected in printed
        assert sink.run_ddl("orders", "bills") == printed
        assert (sink.ddl("orders", "bills"), sink.run_ddl("orders", "bills")) == ("", "")
        sink.admit(queue_id="ddl-q", store_id="s", fence=1)
        for collection in ("orders", "bills"):
            assert sink.apply(puts(b"1", collection=collection, document=b"{}")).written == 1
        server.request("PUT", "/ddl-own", {})
        assert sink.ddl("own") == ""
        with pytest.raises(SinkConfigurationError, match="an index, not an alias"):
            sink.run_ddl("own")
    finally:
        sink.close()
        for index in ("ddl-bills-1", "ddl-orders-000001", "ddl-own"):
            server.request("DELETE", f"/{index}")
        for record in ("ddl-q", "%2A"):
            server.request("DELETE", f"/xq_control/_doc/{record}")
