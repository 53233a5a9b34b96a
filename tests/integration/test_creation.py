"""Creating and opening stores."""

from __future__ import annotations

import secrets
import traceback
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from tests.support.contexts import opened_by

from export_queue import InvalidArgument, SchemaVersionError, Store, StoreNotCreated, StoreUnavailable
from export_queue.core.store import schema, views
from export_queue.core.store.creation import create


def test_creating_twice_keeps_everything(store: Store) -> None:
    store.configure_queue("q")
    identity = store.id
    store.create()
    assert store.id == identity
    assert [queue.id for queue in store.queues()] == ["q"]


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_pages_of_conflict_keys_have_room_for_the_next_version(store: Store) -> None:
    """An update in the same page leaves the index as it is."""
    options = "select reloptions from pg_class where oid = 'export_queue.xq_conflict_key'::regclass"
    with store.database.read() as work:
        assert work.connection.exec_driver_sql(options).scalar_one() == ["fillfactor=70"]


def test_an_empty_database_says_how_to_create_the_store(store_url: str) -> None:
    with Store.open(store_url) as store, pytest.raises(StoreNotCreated, match="export-queue init"):
        store.queues()


def test_a_store_of_a_newer_schema_is_refused_with_what_to_do(store: Store, store_url: str) -> None:
    with store.database.begin() as work:
        work.connection.execute(schema.store.update().values(schema_version=99, oldest_code=98))
    with Store.open(store_url) as other:
        for use in (other.queues, other.create, lambda: other.configure_queue("q")):
            with pytest.raises(SchemaVersionError, match=r"needs code of schema 98(.|\n)*upgrade"):
                use()
        with pytest.raises(SchemaVersionError), other.transaction():
            pass


def test_a_newer_schema_that_allows_this_code_is_used(store: Store, store_url: str) -> None:
    with store.database.begin() as work:
        work.connection.execute(schema.store.update().values(schema_version=99))
    with Store.open(store_url) as other:
        assert other.queues() == []


def test_a_store_of_an_older_schema_names_the_command(store: Store, store_url: str) -> None:
    with store.database.begin() as work:
        work.connection.execute(schema.store.update().values(schema_version=0, oldest_code=0))
    with Store.open(store_url) as other, pytest.raises(SchemaVersionError, match="export-queue init"):
        other.queues()


@pytest.mark.parametrize("url", ["nonsense", "mysql://h/d", "sqlite://", "sqlite:///:memory:", ""])
def test_a_url_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument):
        Store.open(url)


def test_a_password_in_a_bad_url_is_not_shown() -> None:
    with pytest.raises(InvalidArgument) as refused:
        Store.open("oracle://me:topsecret@host/db")
    assert "topsecret" not in str(refused.value)


def test_an_unreachable_server_is_a_transient_error_without_the_password() -> None:
    with (
        Store.open("postgresql+psycopg://me:topsecret@127.0.0.1:1/db") as store,
        pytest.raises(StoreUnavailable) as refused,
    ):
        store.queues()
    assert refused.value.transient
    assert "127.0.0.1" in str(refused.value)
    assert "topsecret" not in str(refused.value) + repr(refused.value)


def test_a_floor_lifts_all_ids_to_come(store_url: str) -> None:
    floor = 2**61
    with Store.open(store_url) as store:
        store.create(floor=floor)
        with store.transaction() as tx:
            assert tx.id > floor
        with pytest.raises(InvalidArgument, match="floor"):
            store.create(floor=-1)


def test_two_stores_in_one_database_do_not_meet(postgres_url: str) -> None:
    with Store.open(postgres_url, schema="one") as one, Store.open(postgres_url, schema='tw"o') as two:
        one.create()
        two.create()
        assert one.id != two.id
        with one.transaction() as tx:
            tx.table("t").set("a", "n", b"1")
            assert tx.id
            with two.transaction() as other:
                assert opened_by(other).value.excluded == frozenset()
                assert other.table("t").get("a", "n") is None


def test_advisory_locks_of_an_application_are_no_ids(postgres_url: str) -> None:
    with Store.open(postgres_url) as store, psycopg.connect(postgres_url.replace("+psycopg", "")) as application:
        store.create()
        application.execute("select pg_advisory_lock(k) from unnest(array[0, 42, -1, 9e18, -9e18]::bigint[]) k")
        application.execute("select pg_advisory_lock(1, 2), pg_advisory_xact_lock_shared(3)")
        with store.transaction() as tx:
            assert opened_by(tx).value.excluded == frozenset()


def test_ids_rise_when_the_clock_goes_back(sqlite_url: str) -> None:
    now = [2_000_000_000_000]
    with Store.open(sqlite_url, clock=lambda: now[0]) as store:
        store.create()
        ids = []
        for step in (0, 10, -500_000, 3, -1):
            now[0] += step
            with store.transaction() as tx:
                ids.append(tx.id)
        assert ids == sorted(set(ids))


def test_ids_rise_over_restarts(store: Store, store_url: str) -> None:
    ids = []
    for _ in range(3):
        with Store.open(store_url) as opened, opened.transaction() as tx:
            ids.append(tx.id)
    assert ids == sorted(set(ids))


def test_the_views_of_monitoring_can_be_read(store: Store) -> None:
    store.configure_queue("q")
    with store.transaction() as tx:
        tx.queue("q").add("k", 1)
    prefix = "export_queue." if store.database.dialect.name == "postgresql" else ""
    with store.database.read() as work:
        for view in views.VIEWS:
            rows = work.connection.execute(sa.text(f"select * from {prefix}{view}")).mappings().all()
            assert len(rows) == (view in ("queue_lag", "horizon"))


@pytest.mark.postgres
def test_creating_again_keeps_grants_and_the_views_of_others(postgres_url: str) -> None:
    with (
        Store.open(postgres_url) as store,
        psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as own,
    ):
        store.create()
        own.execute("grant select on export_queue.queue_lag to pg_monitor")
        own.execute("create view public.my_lag as select sum(entries) from export_queue.queue_lag")
        store.create()
        granted = own.execute("select has_table_privilege('pg_monitor', 'export_queue.queue_lag', 'select')")
        assert granted.fetchone() == (True,)
        assert own.execute("select * from public.my_lag").fetchone() == (None,)


@pytest.mark.postgres
def test_the_owner_of_a_schema_creates_without_rights_on_the_database(postgres_url: str) -> None:
    role = f"app_{secrets.token_hex(6)}"
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as admin:
        admin.execute(f"create role {role} login password 'a'; create schema mine authorization {role}".encode())
        url = sa.make_url(postgres_url).set(username=role, password="a").render_as_string(hide_password=False)
        try:
            with Store.open(url, schema="mine") as store:
                store.create()
                store.create()
                store.run(lambda tx: tx.table("t").set("a", "n", b"1"))
        finally:
            admin.execute(f"drop owned by {role} cascade; drop role {role}".encode())


@pytest.mark.postgres
def test_a_database_that_checks_functions_strictly_takes_a_store(postgres_url: str) -> None:
    name = sa.make_url(postgres_url).database
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as admin:
        admin.execute(f"alter database \"{name}\" set plpgsql.extra_errors = 'all'".encode())
    with Store.open(postgres_url) as store:
        store.create()
        store.run(lambda tx: tx.table("t").set("a", "n", b"1"))


@pytest.mark.parametrize("name", ["o'neil", "a%b", "", "x" * 64])
def test_a_schema_that_cannot_be_named_everywhere_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^schema: expected"):
        Store.open("postgresql+psycopg://u@127.0.0.1:1/d", schema=name)


@pytest.mark.postgres
def test_many_create_at_once_beside_a_store_that_works(postgres_url: str) -> None:
    def create_often() -> None:
        with Store.open(postgres_url) as mine:
            for _ in range(3):
                create(mine.database)

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(create_often) for _ in range(4)]:
            done.result()
        with Store.open(postgres_url) as store:
            again = threads.submit(create_often)
            for i in range(20):
                store.run(lambda tx, i=i: tx.table("t").set("a", "n", b"%d" % i))  # type: ignore[misc]
            again.result()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://u@127.0.0.1:1/d?password=s3cr3t",
        "postgresql+psycopg://u:s3cr3t@127.0.0.1:1/d",
        "postgresql+psycopg:///d?host=127.0.0.1&port=1&user=u&password=s3cr3t",
    ],
)
def test_no_password_of_a_url_is_shown(url: str) -> None:
    with Store.open(url) as store:
        assert "s3cr3t" not in store.url_safe
        with pytest.raises(StoreUnavailable) as refused:
            store.create()
    assert "s3cr3t" not in "".join(traceback.format_exception(refused.value))


def test_errors_of_the_database_hold_no_values(store: Store) -> None:
    statement = sa.text("select :card from nowhere")
    with store.database.engine.connect() as connection, pytest.raises(DBAPIError) as refused:
        connection.execute(statement, {"card": "VALUE-SECRET"})
    assert "VALUE-SECRET" not in str(refused.value)
