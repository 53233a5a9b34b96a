"""PostgreSQL servers and sessions under a store: primaries alone, durable, without functions of others (I1, I12)."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sa
from tests.support import bulk
from tests.support.servers import PostgresServer, PostgresStandby
from tests.support.waiting import wait_until

from export_queue import ConfigurationError, ConflictError, MemorySink, Retry, Store, StoreUnavailable, drain
from export_queue.core.retry import is_transient
from export_queue.core.transactions import outcomes, take_snapshot

EVERY_WAY = True
pytestmark = pytest.mark.postgres

UNCHECKED = (
    "setval(text, bigint)",
    "pg_sequence_last_value(text)",
    "unnest(bytea[])",
    "unnest(bigint[])",
    "unnest(integer[])",
    "cardinality(bytea[])",
    "cardinality(bigint[])",
    "cardinality(integer[])",
    "format(text, bigint)",
    "format(text, bigint, bigint)",
    "pg_try_advisory_lock(integer)",
)
"""Functions that fit calls in the store better than the server's own, which take arguments of other types."""
PINNED = "search_path=pg_catalog, pg_temp"


def connect(url: str, **options: Any) -> psycopg.Connection[Any]:
    return psycopg.connect(url.replace("+psycopg", ""), **options)


def set_default(url: str, setting: str) -> None:
    """Set a default of the database's, for sessions that begin from now on."""
    with connect(url, autocommit=True, options="-c default_transaction_read_only=off") as admin:
        admin.execute(f'alter database "{admin.info.dbname}" {setting}'.encode())


@pytest.fixture
def store(store_kind: str, store_url: str, open_store: Callable[[], Store]) -> Iterator[Store]:
    """A created store on PostgreSQL."""
    if store_kind == "sqlite":
        pytest.skip("SQLite has neither servers nor roles")
    with open_store() as opened:
        opened.create()
        yield opened


def use_all(store: Store, url: str) -> None:
    """Take every step of a store's transactions once."""
    store.create()
    store.configure_queue("q")
    store.run(lambda tx: tx.table("t").set("a", "n", tx.table("t").get("a", "n") or b"0"))
    with store.transaction(long=True) as long:
        long.table("t").set("b", "n", b"1")
        long.checkpoint()
        long.queue("q").add("long", 1)
        long.flush()
    with connect(url) as connection, store.transaction(connection=connection) as bound:
        bound.table("t").get_many([("a", "n"), ("b", "n")])
        bound.queue("q").add("bound", 1)
    with pytest.raises(ConflictError, match="table t: a"), store.transaction() as older:
        older.table("t").get("a", "n")
        store.run(lambda tx: tx.table("t").set("a", "n", b"2"))
        older.table("t").set("a", "n", b"3")
    assert drain(store, "q", MemorySink(), sink_name="memory").acknowledged == 2
    store.maintain()
    assert store.outcome(uuid4()).status == "refused"


def test_no_function_of_another_role_is_called(store: Store, store_kind: str, store_url: str) -> None:
    role = f"mallory_{secrets.token_hex(6)}"
    with connect(store_url, autocommit=True) as admin:
        admin.execute(f"create role {role} login password 'm'".encode())
        admin.execute(f"grant create on schema public to {role}".encode())  # the default before PostgreSQL 15
        address = {"host": admin.info.host, "port": admin.info.port, "dbname": admin.info.dbname}
        try:
            with psycopg.connect(user=role, password="m", autocommit=True, **address) as mallory:  # type: ignore[arg-type]
                mallory.execute("create table public.loot (name text); grant all on public.loot to public")
                shadow(mallory, with_operators=store_kind != "postgresql-pooler")
                use_all(store, store_url)
                assert mallory.execute("select distinct name from public.loot").fetchall() == []
        finally:
            admin.execute(f"drop owned by {role}; drop role {role}".encode())


def test_every_function_pins_its_search_path(store: Store, store_url: str) -> None:
    with connect(store_url) as connection:
        found = connection.execute(
            """
            select p.oid::regprocedure::text, array_to_string(p.proconfig, chr(10))
            from pg_proc p join pg_namespace n on n.oid = p.pronamespace where n.nspname = 'export_queue'
            """
        ).fetchall()
    assert found
    assert [name for name, settings in found if PINNED not in (settings or "").split("\n")] == []


def shadow(mallory: psycopg.Connection[Any], *, with_operators: bool) -> None:
    """Create functions and operators whose calls are noted."""
    body = "language plpgsql as $$ begin insert into public.loot values ('{}'); return null; end $$"
    for function in UNCHECKED:
        mallory.execute(f"create function public.{function} returns bigint {body.format(function)}".encode())
    if with_operators:  # a session of a pooler's has the role's own path
        text = "text, character varying"
        mallory.execute(f"create function public.same({text}) returns boolean {body.format('=')}".encode())
        mallory.execute("create operator public.= (leftarg = text, rightarg = varchar, function = public.same)")


def test_commits_are_durable_whatever_the_default_of_the_database_is(
    store: Store, store_kind: str, store_url: str, open_store: Callable[[], Store]
) -> None:
    set_default(store_url, "set synchronous_commit = off")
    with open_store() as opened:
        if store_kind == "postgresql-pooler":
            with pytest.raises(ConfigurationError, match="synchronous_commit"):
                _ = opened.id
            return
        opened.run(lambda tx: tx.table("t").set("a", "n", b"1"))
        with opened.database.read() as work:
            assert work.connection.exec_driver_sql("show synchronous_commit").scalar() == "on"


def test_a_bound_transaction_that_would_not_be_durable_is_refused_and_left_as_it_is(
    store: Store, store_url: str
) -> None:
    with connect(store_url) as connection:
        connection.execute("set synchronous_commit = off")
        connection.commit()
        with (
            pytest.raises(ConfigurationError, match="SET LOCAL synchronous_commit = on"),
            store.transaction(connection=connection) as tx,
        ):
            tx.table("t").set("a", "n", b"1")
        connection.rollback()
        assert connection.execute("show synchronous_commit").fetchone() == ("off",)
        connection.execute("set local synchronous_commit = local")
        with store.transaction(connection=connection) as tx:
            tx.table("t").set("a", "n", b"1")
        assert connection.execute("show synchronous_commit").fetchone() == ("local",)


def test_a_server_that_takes_no_writes_is_unavailable(
    store: Store, store_url: str, open_store: Callable[[], Store]
) -> None:
    store.configure_queue("q")
    set_default(store_url, "set default_transaction_read_only = on")
    with open_store() as opened, pytest.raises(StoreUnavailable, match="target_session_attrs=primary"):
        opened.run(lambda tx: tx.queue("q").add("a", 1), retry=Retry(attempts=1))


def test_the_outcome_is_asked_for_until_the_server_takes_writes_again(
    store: Store, store_url: str, open_store: Callable[[], Store]
) -> None:
    """As after a fail-over, which leads to a server that is a standby for some seconds more."""
    with store.transaction() as tx:
        tx.table("t").set("a", "n", b"1")
    set_default(store_url, "set default_transaction_read_only = on")
    pauses = 0

    def promote(_: float) -> None:
        nonlocal pauses
        pauses += 1
        if pauses == 2:
            set_default(store_url, "reset default_transaction_read_only")
            asked.database.forget_connections()

    with open_store() as asked:
        patience = Retry(attempts=None, seconds=outcomes.ASK_SECONDS, sleep=promote)
        assert outcomes.ask_outcome(asked.database, tx.request, asking=patience).status == "committed"
    assert pauses == 2


def test_a_session_that_ends_since_its_transaction_was_idle_is_unavailable(store: Store, store_url: str) -> None:
    with (
        connect(store_url, autocommit=True) as watcher,
        pytest.raises(StoreUnavailable),
        store.database.begin() as work,
    ):
        work.connection.exec_driver_sql("set local idle_in_transaction_session_timeout = '1ms'")
        pid = work.connection.connection.driver_connection.info.backend_pid  # type: ignore[union-attr]
        there = "select 1 from pg_stat_activity where pid = %s"
        wait_until(lambda: watcher.execute(there, (pid,)).fetchone() is None, "the session does not end")
        work.connection.execute(sa.text("select 1"))


@pytest.mark.full("a primary and its standby are two more servers")
def test_a_standby_is_refused_until_it_is_promoted(own_server: PostgresServer) -> None:
    with Store.open(own_server.url()) as store:
        store.create()
        store.configure_queue("q")
    with PostgresStandby(own_server) as standby, Store.open(standby.url()) as opened:
        with pytest.raises(StoreUnavailable, match="standby") as refused:
            _ = opened.id
        assert is_transient(refused.value)
        assert not refused.value.sent
        with connect(standby.url(), autocommit=True) as session:
            for call in ("xq_take_snapshot_v1()", "xq_require_primary_v1()"):
                with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                    session.execute(f"select export_queue.{call}".encode())
        standby.promote()
        opened.run(lambda tx: tx.queue("q").add("a", 1))
        assert take_snapshot(opened.database).excluded == ()


@pytest.mark.full("a server that crashes and recovers")
def test_an_acknowledged_commit_survives_a_crash_of_an_asynchronous_server(own_server: PostgresServer) -> None:
    url = own_server.url(own_server.create_database())
    set_default(url, "set synchronous_commit = off")
    with Store.open(url) as store:
        store.create()
        for i in range(20):
            store.run(lambda tx, i=i: tx.table("t").set(f"row{i}", "n", b"1"))  # type: ignore[misc]
        os.kill(own_server.pid, signal.SIGQUIT)
        wait_until(lambda: not own_server.is_running, "the server does not crash")
        own_server.stop()
        own_server.start()
        store.database.forget_connections()
        rows = store.run(lambda tx: tx.table("t").get_many([(f"row{i}", "n") for i in range(20)]))
    assert len(rows) == 20


def test_tables_and_queues_with_subscriptions_work_in_every_way(store: Store, tmp_path: Path) -> None:
    """What concerns no session of the server has its own tests, which run in the ordinary way only."""
    store.database.segments = str(tmp_path / "segments")
    store.configure_queue("orders", value="bytes", subscriptions=["search"])
    cached, searched = MemorySink(), MemorySink()
    for long in (False, True):
        with store.transaction(long=long) as tx:
            tx.table("orders").set("a", "state", b"%d" % long)
            tx.queue("orders").add("a", b"%d" % long)
    bulk.load(store, bulk.many(10))
    bulk.load(store, bulk.many(20))
    store.subscribe("orders", "cache")
    with store.first_load("orders/cache") as load:
        for row, _, value in load.table("orders").scan():
            load.add(row.decode(), value)
    store.alter_queue("orders", buckets=3, buckets_per_range=3, guard="seq")
    assert store.compact("orders/search", older_layouts=True).written == 32
    assert drain(store, "orders/search", searched, sink_name="search").acknowledged == 32
    assert drain(store, "orders/cache", cached, sink_name="cache").acknowledged == 1
    assert (len(searched.records()), len(cached.records())) == (21, 1)
    assert store.unsubscribe("orders", "cache") is None
    store.maintain()
