"""What goes wrong in SQL databases: rows that are refused, transactions that give way, servers that are killed or that
become standbys, and a pooler before PostgreSQL."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, make_url
from tests.support.mariadb import MariaDbServer
from tests.support.pgbouncer import PgBouncer
from tests.support.proxy import Cut, CuttingProxy
from tests.support.servers import PostgresServer
from tests.support.sql_targets import Documents, Fields, Make, admit, execute, opened_sinks, puts

from export_queue import ApplyResult, SinkUnavailable, Store, drain
from export_queue.core.drain import DRAIN_RETRY, Progress

KINDS = ["sqlite", "postgresql", "mariadb"]


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path) -> str:
    kind = getattr(request, "param", "postgresql")
    if kind == "sqlite":
        return f"sqlite:///{tmp_path}/sink.db"
    return request.getfixturevalue({"postgresql": "postgres_url", "mariadb": "mariadb_url"}[kind])


on_all = pytest.mark.parametrize("url", KINDS, indirect=True)


@pytest.fixture
def make() -> Iterator[Make]:
    yield from opened_sinks()


@pytest.fixture
def orders(sqlite_url: str) -> Iterator[Store]:
    """A store with one queue; what is drained goes into one table."""
    with Store.open(sqlite_url) as store:
        store.create()
        store.configure_queue("orders", buckets=5, buckets_per_range=5, key="bytes", value="bytes")
        yield store


def waiting(store: Store) -> int:
    return sum(unit.entries for unit in store.backlog("orders"))


# Rows that are refused


@on_all
def test_bad_rows_of_a_large_batch_become_dead_letters_and_the_others_are_there(url, make, orders, monkeypatch):
    """A constraint, NUL, what is no Unicode, ids that are too long: each alone, with the reason, without a search
    through every row."""
    execute(
        url,
        'CREATE TABLE orders ("id" text PRIMARY KEY, "document" text, "_rank" bigint, "_deleted" boolean,'
        " CONSTRAINT fine CHECK (document <> 'poison'))",
    )
    bad = {
        b"constraint-1": b"poison",
        b"constraint-2": b"poison",
        b"constraint-3": b"poison",
        b"nul": b"a\0b",
        b"nul\0id": b"x",
        b"surrogate": b"\xed\xa0\x80",
        b"surrogate\xed\xa0\x80id": b"x",
        b"long" * 250: b"x",
    }
    if not url.startswith("mysql"):
        del bad[b"long" * 250]  # the others take what a queue's key may be
    with orders.transaction() as tx:
        queue = tx.queue("orders")
        for n in range(4000):
            queue.add(b"%04d" % n, b"fine")
        for record, document in bad.items():
            queue.add(record, document)
    sink = make(url)
    statements: list[int] = []
    upsert = sink._database.dialect.upsert

    def counted(connection: Any, table: Any, rows: Any) -> int:
        statements.append(len(rows))
        return upsert(connection, table, rows)

    monkeypatch.setattr(sink._database.dialect, "upsert", counted)
    report = drain(orders, "orders", sink, sink_name="copies")
    assert (report.acknowledged, report.dead, report.left) == (4000, len(bad), 0)
    letters = {letter.position.key: letter.reason for letter in orders.dead_letters.list("orders")}
    assert letters.keys() == bad.keys()
    assert all(letters.values())
    assert "fine" in letters[b"constraint-1"], "the database's own words"
    assert execute(url, "SELECT count(*) FROM orders_live") == [(4000,)]
    assert len(statements) < 150, "bad rows are found by halving"


# Transactions that give way, and statements that take too long


def give_way(url: str, times: int) -> None:
    """Let the database refuse the next transactions on the table as it does when two are in each other's way."""
    execute(
        url,
        "CREATE SEQUENCE tries",
        "CREATE FUNCTION give_way() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF nextval('tries') <= {times} THEN RAISE EXCEPTION 'another goes first' USING ERRCODE = '40001'; END IF;"
        " RETURN NEW; END $$",
        "CREATE TRIGGER give_way BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION give_way()",
    )


def test_a_serialization_failure_is_repeated_until_it_is_gone(postgres_url, make):
    sink = admit(make(postgres_url))
    sink.create("orders")
    give_way(postgres_url, 3)
    assert sink.apply(puts(b"1")) == ApplyResult(1, 0)
    assert execute(postgres_url, "SELECT last_value FROM tries") == [(4,)]


def test_serialization_failures_without_end_are_transient(postgres_url, make):
    sink = admit(make(postgres_url))
    sink.create("orders")
    give_way(postgres_url, 1_000)
    sink = admit(make(postgres_url))  # which knows the trigger from the start
    with pytest.raises(SinkUnavailable, match="5 tries failed, the last: 40001"):
        sink.apply(puts(b"1"))
    assert execute(postgres_url, "SELECT last_value FROM tries") == [(5,)]


def test_a_statement_that_takes_too_long_on_postgresql_is_ended_and_transient(postgres_url, make):
    # A process that stands still for as long within a transaction would get the server's other error, 25P03.
    sink = admit(make(postgres_url, timeout=4))
    sink.create("orders")
    execute(
        postgres_url,
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(60); RETURN NEW; END $$",
        "CREATE TRIGGER slow BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION slow()",
    )
    with pytest.raises(SinkUnavailable, match="57014"):
        sink.apply(puts(b"1"))
    execute(postgres_url, "DROP TRIGGER slow ON orders")
    patient = admit(make(postgres_url))
    assert patient.apply(puts(b"1")) == ApplyResult(1, 0), "nothing of the first try is there"


def test_a_statement_that_takes_too_long_on_mariadb_is_given_up_and_transient(mariadb_url, make, monkeypatch):
    monkeypatch.setattr("export_queue.core.sinks.sql.dialects.mysql._GRACE_SECONDS", 0.5)
    sink = admit(make(mariadb_url, timeout=1))
    sink.create("orders")
    execute(
        mariadb_url,
        "CREATE TABLE pace (seconds int)",
        "INSERT INTO pace VALUES (3)",
        "CREATE TRIGGER slow BEFORE INSERT ON orders FOR EACH ROW DO SLEEP((SELECT seconds FROM pace))",
    )
    with pytest.raises(SinkUnavailable, match="2013"):
        sink.apply(puts(b"1"))
    execute(mariadb_url, "UPDATE pace SET seconds = 0")
    patient = admit(make(mariadb_url))
    assert patient.apply(puts(b"1")) == ApplyResult(1, 0), "nothing of the first try is there"


# Servers that come back, or come back as others


def test_after_a_fail_over_another_session_is_made(postgres_url, make):
    """A server that became a standby goes on answering: only a new session may find the new primary."""
    sink = admit(make(postgres_url))
    sink.create("orders")
    name = make_url(postgres_url).database
    execute(postgres_url, f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    sink.close()
    with pytest.raises(SinkUnavailable, match="25006"):
        sink.apply(puts(b"1"))
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as other:
        other.execute("SET default_transaction_read_only = off")
        other.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only'.encode())
    assert sink.apply(puts(b"1")) == ApplyResult(1, 0)


@pytest.fixture(params=[PostgresServer, MariaDbServer], ids=["postgresql", "mariadb"])
def mortal(request: pytest.FixtureRequest) -> Iterator[PostgresServer | MariaDbServer]:
    """A server of the test's own."""
    try:
        server = request.param()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    with server:
        yield server


def test_a_server_that_is_killed_amid_a_batch_and_restarted_delays_the_drain(mortal, make, orders):
    """What it acknowledged is there, and what it was about to write is written once."""
    with orders.transaction() as tx:
        for n in range(400):
            tx.queue("orders").add(b"%03d" % n, b"x" * 100)
    url = mortal.url(mortal.create_database())
    killer: list[threading.Thread] = []
    with CuttingProxy(mortal.host, mortal.port) as proxy:

        def kill() -> None:
            assert proxy.wait_for_cut(60)
            os.kill(mortal.pid, signal.SIGKILL)
            mortal.stop()
            proxy.drop()

        def after_a_chunk(progress: Progress) -> None:
            if not killer and progress.acknowledged >= 100:
                proxy.arm(Cut(direction="to_server", after=3000, how="hold"))
                killer.append(threading.Thread(target=kill))
                killer[0].start()

        def restart(seconds: float) -> None:
            killer[0].join(60)
            if mortal._process is None:
                mortal.start()

        sink = make(make_url(url).set(port=proxy.port).render_as_string(hide_password=False))
        retry = replace(DRAIN_RETRY, sleep=restart)
        report = drain(
            orders, "orders", sink, sink_name="copies", retry=retry, on_progress=after_a_chunk, chunk_rows=50
        )
    assert (report.acknowledged, report.dead, waiting(orders)) == (400, 0, 0)
    assert killer, "the server was killed"
    assert execute(url, "SELECT count(*), min(document) = max(document) FROM orders_live") == [(400, True)]


def test_a_session_of_postgresql_that_crashes_takes_all_others_along_until_the_server_has_recovered(make, orders):
    """The server ends every session, and lets nobody in while it reads its log."""
    try:
        server = PostgresServer()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    with orders.transaction() as tx:
        tx.queue("orders").add(b"1", b"new")
    with server:
        url = server.url()
        sink = admit(make(url))
        sink.apply(puts(b"1", seq=1))
        found = (
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'export_queue' AND backend_type LIKE 'client%%'"
        )
        ((pid,),) = execute(url, found)
        os.kill(pid, signal.SIGKILL)
        report = drain(
            orders, "orders", sink, sink_name="copies", retry=replace(DRAIN_RETRY, attempts=1_000, longest_pause=0.1)
        )
        assert (report.acknowledged, report.dead) == (1, 0)
        assert execute(url, "SELECT document FROM orders_live") == [("new",)]


# PgBouncer in transaction mode: each transaction may meet another session of the server


@pytest.fixture
def pooled_url(pgbouncer: PgBouncer, postgres_url: str) -> str:
    name = make_url(postgres_url).database
    assert name is not None
    return pgbouncer.url(name)


class ThroughPgBouncer:
    @pytest.fixture(autouse=True)
    def _target(self, postgres_url: str, pooled_url: str) -> Iterator[None]:
        self.url = pooled_url
        self.readers = create_engine(postgres_url)
        yield
        self.readers.dispose()


class TestDocumentsThroughPgBouncer(ThroughPgBouncer, Documents):
    pass


class TestFieldsThroughPgBouncer(ThroughPgBouncer, Fields):
    pass


@pytest.mark.parametrize("way", ["postgres_url", "pooled_url"])
def test_a_table_that_is_changed_takes_the_next_batch_as_it_is_now(way, request, postgres_url, make):
    """Nothing that a session remembers of the table decides: behind a pooler it may be older than the drain."""
    execute(
        postgres_url,
        'CREATE TABLE orders ("id" text PRIMARY KEY, "document" varchar(3), _rank bigint, _deleted boolean)',
    )
    sinks = [admit(make(request.getfixturevalue(way))) for _ in range(4)]
    for n, sink in enumerate(sinks):
        assert sink.apply(puts(b"0", seq=n, document=b"ok")) == ApplyResult(1, 0)
        result = sink.apply(puts(b"1", b"2", document=b"long"))
        assert [rejection.position for rejection in result.rejected] == [0, 1]
    execute(postgres_url, "DROP VIEW orders_live", "ALTER TABLE orders ALTER COLUMN document TYPE text")
    for n, sink in enumerate(sinks):
        assert sink.apply(puts(b"1", b"2", seq=6 + n, document=b"long")) == ApplyResult(2, 0)


def test_sessions_of_a_pooler_keep_no_limits_of_the_sink(pooled_url, make):
    sink = admit(make(pooled_url, timeout=7))
    for seq in range(12):
        assert sink.apply(puts(b"1", seq=seq)) == ApplyResult(1, 0)
    for _ in range(6):  # some of which are the sessions that the sink had
        assert execute(pooled_url, "SHOW statement_timeout") == [("0",)]
        assert execute(pooled_url, "SHOW lock_timeout") == [("0",)]
        assert execute(pooled_url, "SHOW enable_seqscan") == [("on",)]


def test_a_pooler_that_is_killed_is_unavailable_until_it_is_back(postgres_server, postgres_url, make):
    try:
        pooler = PgBouncer(postgres_server)
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    with pooler:
        sink = admit(make(pooler.url(make_url(postgres_url).database or "")))
        sink.apply(puts(b"1"))
        os.kill(pooler.pid, signal.SIGKILL)
        pooler.stop()
        with pytest.raises(SinkUnavailable):
            sink.apply(puts(b"1", b"2", seq=6))
        pooler.start()
        assert sink.apply(puts(b"1", b"2", seq=6)) == ApplyResult(2, 0)
