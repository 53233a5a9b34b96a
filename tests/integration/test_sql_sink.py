"""The SQL sink on SQLite, PostgreSQL and MariaDB: the conformance suite, tables of others, failing servers."""

from __future__ import annotations

import random
import re
import sqlite3
import threading
import traceback
from collections.abc import Iterator
from decimal import Decimal

import orjson
import psycopg
import pytest
from sqlalchemy import make_url
from tests.support.servers import free_port
from tests.support.sql_targets import (
    Documents,
    Fields,
    Make,
    OnMariadb,
    OnPostgresql,
    OnSqlite,
    admit,
    apply_one,
    execute,
    opened_sinks,
    puts,
    url_of,
)
from tests.support.waiting import wait_until

from export_queue import (
    ApplyResult,
    ExportQueueError,
    Operations,
    SinkConfigurationError,
    SinkRefused,
    SinkSpec,
    SinkUnavailable,
    SqlSink,
)


class TestSqliteDocuments(OnSqlite, Documents):
    pass


@pytest.mark.full("fields run on the servers, documents on SQLite")
class TestSqliteFields(OnSqlite, Fields):
    pass


@pytest.mark.full("fields of documents run anyway")
class TestPostgresqlDocuments(OnPostgresql, Documents):
    pass


class TestPostgresqlFields(OnPostgresql, Fields):
    pass


@pytest.mark.full("fields of documents run anyway")
class TestMariadbDocuments(OnMariadb, Documents):
    pass


@pytest.mark.full("the suite on PostgreSQL runs anyway, and what is MariaDB's own")
class TestMariadbFields(OnMariadb, Fields):
    pass


def shown(error: BaseException) -> str:
    return repr(error) + "".join(traceback.format_exception(error))


SECRET = "hunter" + str(2)  # not as one literal: tracebacks show the lines of this file


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path) -> str:
    return url_of(request, tmp_path)


@pytest.fixture
def make() -> Iterator[Make]:
    yield from opened_sinks()


# Tables


def test_a_deleted_record_stays_as_a_row_that_the_view_hides(url, make):
    sink = admit(make(url))
    sink.apply(puts(b"1", b"2", seq=5))
    sink.apply(puts(b"2", seq=6, document=None))
    rows = execute(
        url, "SELECT id, document, _rank, CAST(_deleted AS int) FROM orders WHERE id <> 'xq_mark' ORDER BY id"
    )
    assert rows == [("1", "x", 11, 0), ("2", None, 12, 1)]
    assert execute(url, "SELECT * FROM orders_live") == [("1", "x")]


def test_the_ddl_can_be_printed_and_run_by_somebody_else(url, make):
    sink = make(url, create_tables=False)
    with pytest.raises(SinkRefused, match="xq_control") as caught:
        admit(sink)
    assert "CREATE TABLE" in caught.value.hint
    execute(url, *sink.ddl("orders").split(";\n")[:-1])
    admit(sink)
    assert sink.apply(puts(b"1")).written == 1
    with pytest.raises(SinkRefused, match="no table 'others'") as caught:
        sink.apply(puts(b"1", collection="others"))
    assert "others_live" in caught.value.hint


def test_a_table_is_created_beforehand_if_wanted(url, make):
    sink = make(url)
    sink.create("orders")
    sink.create("orders")
    assert execute(url, "SELECT * FROM orders_live") == []


def test_a_table_without_placeholder_takes_all_collections_and_is_checked_at_once(url, make):
    sink = admit(make(url, table="everything"))
    assert execute(url, "SELECT * FROM everything_live") == []
    batch = Operations(["a", "b", "b"], [b"1", b"1", b"2"], [b"old", b"new", b"x"], [5, 6, 5], [0, 1, 2])
    assert sink.apply(batch) == ApplyResult(2, 1)
    assert execute(url, "SELECT * FROM everything_live ORDER BY id") == [("1", "new"), ("2", "x")]


def test_collections_that_are_no_names_of_tables_are_rejected_alone(url, make):
    sink = admit(make(url))
    names = ["orders", "daily-orders", 'a"; DROP TABLE xq_control', "xq_control", "orders_live", "a.b", ""]
    n = len(names)
    result = sink.apply(Operations(names, [b"1"] * n, [b"x"] * n, [5] * n, range(n)))
    assert [rejection.position for rejection in result.rejected] == [2, 3, 4, 6]
    assert [execute(url, f'SELECT id FROM "{name}_live"') for name in ("orders", "daily-orders", "a.b")] == [
        [("1",)]
    ] * 3


def test_names_that_sqlite_takes_for_one_are_one_table(tmp_path, make):
    sink = admit(make(f"sqlite:///{tmp_path}/sink.db"))
    batch = Operations(["Orders", "orders"], [b"1", b"1"], [b"new", b"old"], [6, 5], [0, 1])
    assert sink.apply(batch) == ApplyResult(1, 1)


GOOD = (
    'CREATE TABLE orders ("id" text PRIMARY KEY, "document" text, "_rank" bigint NOT NULL, "_deleted" boolean NOT NULL'
)


@pytest.mark.parametrize(
    ("ddl", "problem"),
    [
        ('CREATE TABLE orders ("id" text PRIMARY KEY, "document" text)', "missing columns: _rank, _deleted"),
        (GOOD.replace("text PRIMARY", "integer PRIMARY") + ")", "column id is INTEGER"),
        (GOOD.replace("text PRIMARY", "char(9) PRIMARY") + ")", "column id is CHAR"),
        (GOOD.replace("bigint NOT", "double precision NOT") + ")", "a double would round"),
        (GOOD.replace('"document" text', '"document" text NOT NULL') + ")", "document may not be NULL"),
        (GOOD.replace(" PRIMARY KEY", "") + ")", "primary key"),
        (GOOD + ", email text UNIQUE)", "other unique columns"),
        (GOOD + ", email text NOT NULL)", "need a value but get none: email"),
    ],
)
def test_a_table_that_cannot_hold_the_guarantees_is_refused(url, make, ddl, problem):
    execute(url, ddl)
    for act in (lambda: admit(make(url, table="orders")), lambda: make(url).apply(puts(b"1"))):
        with pytest.raises(SinkConfigurationError, match=problem) as caught:
            act()
        assert "CREATE VIEW" in caught.value.hint or "CREATE OR REPLACE VIEW" in caught.value.hint


def test_a_key_that_merges_ids_is_refused(tmp_path, postgres_url, make):
    sqlite = f"sqlite:///{tmp_path}/sink.db"
    execute(sqlite, GOOD.replace("text PRIMARY", "text COLLATE NOCASE PRIMARY") + ")")
    execute(
        postgres_url,
        "CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level1', deterministic = false)",
        GOOD.replace("text PRIMARY", "text COLLATE blind PRIMARY") + ")",
    )
    for target in (sqlite, postgres_url):
        with pytest.raises(SinkConfigurationError, match="treats different ids as equal"):
            admit(make(target, table="orders"))


def test_a_table_of_somebody_else_with_more_columns_is_taken(url, make):
    execute(url, GOOD + ", more integer DEFAULT 7)")
    assert admit(make(url, table="orders")).apply(puts(b"1")).written == 1
    assert execute(url, "SELECT id, more FROM orders WHERE id = '1'") == [("1", 7)]


def test_rows_that_were_there_before_the_sink_are_older_than_anything(url, make):
    sink = make(url)
    sink.create("orders")
    execute(url, "INSERT INTO orders (id, document) VALUES ('1', 'before')")
    assert admit(sink).apply(puts(b"1", seq=0)).written == 1


def test_fields_become_typed_columns(url, make):
    types = {"n": "integer", "x": "real", "d": "numeric", "b": "boolean", "j": "json", "at": "timestamp", "t": "text"}
    sink = admit(make(url, columns=types))
    document = {
        "n": 2**62,
        "x": 0.5,
        "d": 1.25,
        "b": True,
        "j": {"a": [1]},
        "at": "2026-11-21T10:00:00Z",
        "t": 7,
        "no": 1,
    }
    assert sink.apply(puts(b"1", document=orjson.dumps(document))).rejected == ()
    ((*found,),) = execute(url, "SELECT n, x, CAST(d AS text), b, CAST(j AS text), t FROM orders_live")
    assert (found[0], found[1], Decimal(found[2])) == (2**62, 0.5, Decimal("1.25"))
    assert (bool(found[3]), orjson.loads(found[4]), found[5]) == (True, {"a": [1]}, "7")


# One operation that fails must not take others with it


def test_rows_that_the_database_refuses_are_isolated(url, make):
    execute(url, GOOD + ", CONSTRAINT fine CHECK (document <> 'poison'))")
    sink = admit(make(url))
    ids = [b"%03d" % n for n in range(200)]
    documents = [b"poison" if n in (0, 77, 199) else b"fine" for n in range(200)]
    result = sink.apply(Operations(["orders"] * 200, ids, documents, [5] * 200, range(200)))
    assert (result.written, [rejection.position for rejection in result.rejected]) == (197, [0, 77, 199])
    assert re.search("CHECK|CONSTRAINT", result.rejected[0].reason.upper())
    assert sink.apply(Operations(["orders"], [b"077"], [b"mended"], [5], [0])).written == 1


def test_a_row_that_a_trigger_refuses_is_isolated(postgres_url, make):
    sink = admit(make(postgres_url))
    sink.create("orders")
    execute(
        postgres_url,
        "CREATE FUNCTION picky() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$",
        "CREATE TRIGGER picky BEFORE INSERT ON orders FOR EACH ROW WHEN (NEW.id = 'bad') EXECUTE FUNCTION picky()",
    )
    result = sink.apply(puts(b"a", b"bad", b"z"))
    assert (result.written, [one.position for one in result.rejected]) == (2, [1])
    assert result.rejected[0].reason == "P0001: not this one"


def test_json_that_postgresql_alone_refuses_is_isolated(postgres_url, make):
    sink = admit(make(postgres_url, document="json"))
    documents = [b'{"a":1}', b'{"a":"\\u0000"}', b"no json", b'{"b":2}']
    result = sink.apply(Operations(["orders"] * 4, [b"%d" % n for n in range(4)], documents, [5] * 4, range(4)))
    assert (result.written, [rejection.position for rejection in result.rejected]) == (2, [1, 2])
    assert "22P05" in result.rejected[0].reason


def test_values_that_do_not_fit_their_columns_are_isolated(postgres_url, make):
    sink = admit(make(postgres_url, columns={"n": "integer", "at": "timestamp"}))
    documents = [b'{"n":1}', b'{"n":"many"}', b'{"n":18446744073709551615}', b'{"at":"yesteryear"}', b'{"n":"2"}']
    result = sink.apply(Operations(["orders"] * 5, [b"%d" % n for n in range(5)], documents, [5] * 5, range(5)))
    assert (result.written, [rejection.position for rejection in result.rejected]) == (2, [1, 2, 3])


def test_an_id_that_is_too_long_for_an_index_is_rejected_alone(postgres_url, make):
    sink = admit(make(postgres_url))
    result = sink.apply(puts(b"a" * 2600, b"b" * 2601, b"c"))
    assert (result.written, [rejection.position for rejection in result.rejected]) == (2, [1])


# Servers and locks


def test_a_server_that_is_not_there_is_unavailable_by_name(monkeypatch):
    monkeypatch.setenv("XQ_TEST", SECRET)
    spec = SinkSpec("sql", {"url": f"postgresql://me@127.0.0.1:{free_port()}/x"}, {"password": "env:XQ_TEST"})
    whole = SinkSpec("sql", {}, {"url": "env:XQ_URL"})
    monkeypatch.setenv("XQ_URL", f"postgresql://me:{SECRET}@127.0.0.1:{free_port()}/x")
    for sink in (spec.open(), whole.open()):
        for act in (admit, apply_one):
            with pytest.raises(SinkUnavailable, match=r"127\.0\.0\.1") as caught:
                act(sink)
            assert caught.value.transient
            assert SECRET not in shown(caught.value) + repr(sink) + repr(vars(sink)) + repr(sink._database.engine)


def test_a_wrong_password_is_not_shown(postgres_url, make):
    wrong = make_url(postgres_url).set(password=SECRET).render_as_string(hide_password=False)
    with pytest.raises(ExportQueueError, match=r"127\.0\.0\.1") as caught:
        admit(make(wrong))
    assert SECRET not in shown(caught.value)


def test_the_password_is_asked_for_at_each_connection(postgres_url, make):
    url = make_url(postgres_url)
    answers = iter(["wrong", url.password])
    sink = make(str(url.set(password=None)), password=lambda: next(answers))
    with pytest.raises(SinkUnavailable):
        admit(sink)
    admit(sink)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:////no/such/folder/x.db",
        "mysql://db",
        "nosuch://db/x",
        "nonsense",
        "postgres//me:hunter2@x",
    ],
)
def test_urls_that_are_no_sink_are_refused(url):
    with pytest.raises(SinkConfigurationError) as caught:
        SqlSink(url)
    assert SECRET not in shown(caught.value)


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg2", "postgresql+psycopg"])
def test_any_driver_of_postgresql_may_be_named(postgres_url, make, scheme):
    admit(make(postgres_url.replace("postgresql+psycopg", scheme, 1)))


def test_a_session_that_the_server_ends_is_replaced(postgres_url, make):
    sink = admit(make(postgres_url))
    sink.apply(puts(b"1"))
    execute(
        postgres_url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'export_queue' AND datname = current_database()",
    )
    with pytest.raises(SinkUnavailable):
        sink.apply(puts(b"1", seq=6))
    assert sink.apply(puts(b"1", seq=7)).written == 1


def test_a_server_that_takes_no_writes_for_now_is_unavailable(postgres_url, make):
    sink = admit(make(postgres_url))
    sink.apply(puts(b"1"))
    name = make_url(postgres_url).database
    execute(postgres_url, f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    sink.close()
    with pytest.raises(SinkUnavailable, match="25006") as caught:
        sink.apply(puts(b"1", seq=6))
    assert "default_transaction_read_only" in caught.value.hint
    with pytest.raises(SinkUnavailable, match="25006"):
        make(postgres_url).admit(queue_id="q", store_id="s", fence=2)


def test_a_lock_that_somebody_keeps_ends_in_a_transient_error(postgres_url, make):
    sink = admit(make(postgres_url, timeout=3))
    sink.apply(puts(b"1"))
    with psycopg.connect(postgres_url.replace("+psycopg", "")) as other:
        other.execute("SELECT * FROM orders FOR UPDATE")
        with pytest.raises(SinkUnavailable, match="55P03|57014"):
            sink.apply(puts(b"1", seq=6))
    assert sink.apply(puts(b"1", seq=6)).written == 1


def test_a_file_that_somebody_has_locked_ends_in_a_transient_error(tmp_path, make):
    path = tmp_path / "sink.db"
    sink = admit(make(f"sqlite:///{path}", timeout=0.2))
    sink.apply(puts(b"1"))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(SinkUnavailable, match="locked"):
        sink.apply(puts(b"1", seq=6))
    other.close()
    assert sink.apply(puts(b"1", seq=6)).written == 1


def test_a_deadlock_is_repeated_until_it_is_gone(postgres_url, make):
    """Another writer takes the rows the other way round; it is the sink that the server gives up."""
    database = make_url(postgres_url).database
    # who has waited for so long looks for a deadlock, once: the sink, when the other one waits, too
    execute(postgres_url, f"ALTER DATABASE \"{database}\" SET deadlock_timeout = '3s'")
    sink = admit(make(postgres_url))
    sink.apply(puts(b"a", b"z", seq=1))
    results: list[ApplyResult] = []
    plain = postgres_url.replace("+psycopg", "")
    with psycopg.connect(plain) as other, psycopg.connect(plain, autocommit=True) as watcher:
        other.execute("SET deadlock_timeout = '1h'")
        other.execute("UPDATE orders SET document = document WHERE id = 'z'")
        thread = threading.Thread(target=lambda: results.append(sink.apply(puts(b"a", b"z", seq=2, document=b"new"))))
        thread.start()
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        wait_until(lambda: watcher.execute(waiting).fetchone(), "the sink does not wait for the row")
        other.execute("UPDATE orders SET document = document WHERE id = 'a'")
        other.commit()
        thread.join(30)
    assert results == [ApplyResult(2, 0)]
    assert execute(postgres_url, "SELECT * FROM orders_live ORDER BY id") == [("a", "new"), ("z", "new")]
    assert execute(postgres_url, "SELECT deadlocks > 0 FROM pg_stat_database WHERE datname = current_database()")


def test_writers_of_the_same_rows_do_not_lock_each_other_out(postgres_url, make):
    """Each batch is in another order; the sink takes the rows' locks in one."""
    make(postgres_url).create("orders")
    ids = [b"%03d" % n for n in range(400)]
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            generator = random.Random(seed)
            sink = make(postgres_url)
            for seq in range(12):
                generator.shuffle(mine := list(ids))
                sink.apply(puts(*mine, seq=seq))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    counted = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    assert execute(postgres_url, counted) == [(0,)]


def test_a_role_that_may_not_create_tables_is_told_what_to_run(postgres_url, make):
    url = make_url(postgres_url)
    execute(postgres_url, "CREATE ROLE writer LOGIN PASSWORD 'hunter2'")
    as_writer = url.set(username="writer", password=SECRET).render_as_string(hide_password=False)
    try:
        sink = make(as_writer)
        with pytest.raises(SinkRefused, match="42501") as caught:
            admit(sink)
        assert 'CREATE TABLE IF NOT EXISTS "xq_control"' in caught.value.hint
        execute(postgres_url, *sink.ddl("orders").split(";\n")[:-1])
        execute(postgres_url, "GRANT SELECT, INSERT, UPDATE ON orders, xq_control, xq_floor, xq_target TO writer")
        assert admit(sink).apply(puts(b"1")).written == 1, "these are the least privileges"
    finally:
        sink.close()
        execute(postgres_url, "DROP OWNED BY writer", "DROP ROLE writer")


def test_two_sinks_create_one_table_at_once(url, make):
    sinks = [make(url) for _ in range(4)]
    failures: list[BaseException] = []
    start = threading.Barrier(len(sinks))

    def work(sink: SqlSink) -> None:
        try:
            start.wait(20)
            admit(sink).apply(puts(b"1"))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(sink,)) for sink in sinks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert execute(url, "SELECT id FROM orders_live") == [("1",)]
