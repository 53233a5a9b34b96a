"""Transactions bound to the user's own SQL transaction: business rows and entries are one (I1-I3)."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, scoped_session
from tests.conftest import VARIANT
from tests.integration.test_transactions import wait_past
from tests.support.contexts import opened_by
from tests.support.store_urls import whole_url
from tests.support.waiting import wait_until

from export_queue import (
    ConfigurationError,
    ConflictError,
    InvalidArgument,
    RegistrationLost,
    Store,
    StoreUnavailable,
    TransactionTimeout,
)
from export_queue.core.store import schema
from export_queue.core.transactions import take_snapshot

Connect = Callable[[], Any]
EVERY_WAY = True
ON_POSTGRESQL = [
    "postgresql",
    pytest.param("postgresql-pooler", marks=VARIANT),
]
on_postgresql = pytest.mark.parametrize("store_url", ON_POSTGRESQL, indirect=True)


@pytest.fixture(params=["sqlalchemy", "driver"])
def connect(request: pytest.FixtureRequest, store: Store) -> Iterator[Connect]:
    """Makes connections of the user's, SQLAlchemy's or the driver's own."""
    url = whole_url(store)
    opened: list[Any] = []
    store.configure_queue("q")
    store.configure_table("t")
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text(f"create table {business_table(store)} (id text primary key)"))

    def new() -> Any:
        if request.param == "sqlalchemy":
            opened.append(engine.connect())
        elif url.get_backend_name() == "sqlite":
            opened.append(sqlite3.connect(str(url.database), timeout=10))
        else:
            plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
            opened.append(psycopg.connect(plain))
        return opened[-1]

    yield new
    for connection in opened:
        connection.close()
    engine.dispose()


def insert(connection: Any, key: str) -> None:
    statement = f"insert into business values ('{key}')"
    connection.execute(sa.text(statement) if isinstance(connection, sa.Connection) else statement)


def business_table(store: Store) -> str:
    """The user's table, in a schema that the store's own connections do not search."""
    return "public.business" if store.database.dialect.name == "postgresql" else "business"


def business(store: Store) -> list[str]:
    with store.database.read() as work:
        return sorted(work.connection.execute(sa.text(f"select id from {business_table(store)}")).scalars())


def queued(store: Store) -> int:
    return sum(unit.entries for unit in store.backlog("q"))


def assert_forgotten(store: Store) -> None:
    assert take_snapshot(store.database).excluded == ()


def values_in_order(store: Store) -> list[Any]:
    """What the queue's entries carry, by their sequences."""
    with store.database.read() as work:
        rows = work.connection.execute(sa.select(schema.entry.c.value).order_by(schema.entry.c.seq))
        return [orjson.loads(value) for (value,) in rows]


def waiting(store: Store) -> bool:
    """Whether a session of the store's database waits for a lock."""
    statement = """
        select count(*) from pg_stat_activity
        where wait_event_type = 'Lock' and datname = current_database()"""
    with store.database.read() as work:
        return bool(work.connection.scalar(sa.text(statement)))


def read(store: Store, row: str) -> bytes | None:
    with store.transaction() as tx:
        return tx.table("t").get(row, "n")


def change(tx: Any, key: str, *, reads: bool) -> None:
    if reads:
        assert tx.table("t").get(key, "n") is None
    tx.table("t").set(key, "n", b"1")
    tx.queue("q").add(key, {"key": key})


@pytest.mark.parametrize("reads", [False, True])
def test_the_users_commit_makes_rows_and_entries_one(store: Store, connect: Connect, reads: bool) -> None:
    connection = connect()
    insert(connection, "a")
    with store.transaction(connection=connection) as tx:
        change(tx, "a", reads=reads)
    assert business(store) == []
    assert queued(store) == 0
    connection.commit()
    assert business(store) == ["a"]
    assert queued(store) == 1
    assert read(store, "a") == b"1"
    assert store.outcome(tx.request).status == "committed"
    assert take_snapshot(store.database).excluded == ()


@pytest.mark.parametrize("reads", [False, True])
def test_the_users_roll_back_leaves_nothing(store: Store, connect: Connect, reads: bool) -> None:
    connection = connect()
    insert(connection, "a")
    with store.transaction(connection=connection) as tx:
        change(tx, "a", reads=reads)
    connection.rollback()
    assert business(store) == []
    assert queued(store) == 0
    assert read(store, "a") is None
    assert_forgotten(store)
    assert store.outcome(tx.request).status == "refused"


@on_postgresql
def test_until_the_users_commit_the_id_is_in_progress(store: Store, connect: Connect) -> None:
    """In SQLite the user's SQL transaction keeps all other writers out, so nobody can look."""
    connection = connect()
    with store.transaction(connection=connection) as tx:
        change(tx, "a", reads=True)
        own = tx.id
    assert own in take_snapshot(store.database).excluded
    with store.transaction() as later:
        assert later.table("t").get("a", "n") is None
        connection.commit()
        assert later.table("t").get("a", "n") is None
    assert read(store, "a") == b"1"


def test_a_roll_back_to_a_savepoint_leaves_nothing_of_ours(store: Store, connect: Connect) -> None:
    connection = connect()
    insert(connection, "a")
    execute = connection.exec_driver_sql if isinstance(connection, sa.Connection) else connection.execute
    execute("savepoint here")
    with store.transaction(connection=connection) as tx:
        change(tx, "b", reads=True)
    execute("rollback to savepoint here")
    connection.commit()
    assert business(store) == ["a"]
    assert queued(store) == 0
    assert read(store, "b") is None
    assert_forgotten(store)


@on_postgresql
@pytest.mark.parametrize("early", ["reads", "asks for its id", "nothing"])
def test_the_order_of_entries_is_the_order_of_the_users_commits(store: Store, connect: Connect, early: str) -> None:
    """Whatever the block has looked at before another transaction committed the same business row."""
    older, younger = connect(), connect()
    with store.transaction(connection=older) as tx:
        if early == "reads":
            assert tx.table("t").get("rate", "n") is None
        elif early == "asks for its id":
            assert tx.id
        with store.transaction(connection=younger) as other:
            insert(younger, "a")
            other.queue("q").add("a", "first")
        younger.commit()
        insert(older, "b")  # with the row lock of an update this came after the other's commit
        tx.queue("q").add("a", "second")
        tx.table("t").set("a", "n", b"second")
    older.commit()
    assert values_in_order(store) == ["first", "second"]
    assert read(store, "a") == b"second"
    assert take_snapshot(store.database).excluded == ()


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_connection_in_pipeline_mode_carries_a_transaction(store: Store, store_url: str) -> None:
    store.configure_queue("q")
    with psycopg.connect(store_url.replace("+psycopg", "")) as connection, connection.pipeline():
        connection.execute("select 1")
        with store.transaction(connection=connection) as tx:
            change(tx, "a", reads=True)
    assert queued(store) == 1


@on_postgresql
def test_a_block_that_adds_a_key_waits_for_another_one_that_has_added_it(
    store: Store, connect: Connect, postgres_server: Any
) -> None:
    first, second = connect(), connect()
    with store.transaction(connection=first) as tx:
        tx.queue("q").add("a", "first")

    def follow() -> None:
        with store.transaction(connection=second) as tx:
            tx.table("t").set("b", "n", b"second")
            tx.queue("q").add("a", "second")
        second.commit()

    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(follow)
        wait_until(lambda: waiting(store) or following.done(), "the second block did not come to wait")
        assert not following.done(), "the second block did not wait"
        with store.transaction() as younger:
            younger.table("t").set("b", "n", b"younger")
        first.commit()
        following.result(60)  # never refused: it has read nothing
    assert values_in_order(store) == ["first", "second"]
    assert read(store, "b") == b"second"


def test_a_session_of_the_orm_is_a_connection(store: Store, store_url: str) -> None:
    store.configure_queue("q")
    engine = sa.create_engine(whole_url(store))
    with Session(engine) as session:
        with store.transaction(connection=session) as tx:
            tx.queue("q").add("a", 1)
        session.rollback()
        with store.transaction(connection=scoped_session(lambda: session)) as tx:
            tx.queue("q").add("b", 2)
        session.commit()
    engine.dispose()
    assert values_in_order(store) == [2]


@pytest.mark.parametrize("keeps", [True, False])
def test_a_table_may_be_used_for_the_first_time_in_a_bound_transaction(
    store: Store, connect: Connect, keeps: bool
) -> None:
    """It may be the user's SQL transaction that keeps all other writers out."""
    connection = connect()
    insert(connection, "a")
    with store.transaction(connection=connection) as tx:
        assert tx.table("new").get("a", "n") is None
        tx.table("new").set("a", "n", b"1")
    connection.commit() if keeps else connection.rollback()
    with store.transaction() as tx:
        assert tx.table("new").get("a", "n") == (b"1" if keeps else None)
        tx.table("newer").set("a", "n", b"another table")
    with store.transaction() as tx:
        assert tx.table("new").get("a", "n") == (b"1" if keeps else None)


def test_an_engine_that_was_made_before_the_store_carries_a_transaction(postgres_url: str) -> None:
    """The driver copies its adapters for an engine, without those that are loaded later."""
    program = """
import sys, sqlalchemy
engine = sqlalchemy.create_engine(sys.argv[1])
with engine.connect() as connection:
    connection.execute(sqlalchemy.text("select 1"))
from export_queue.core.client import Store
with Store.open(sys.argv[1]) as store:
    store.create()
    store.configure_queue("q")
    with engine.begin() as connection, store.transaction(connection=connection) as tx:
        tx.queue("q").add("a", 1)
    assert sum(unit.entries for unit in store.backlog("q")) == 1
"""
    subprocess.run([sys.executable, "-P", "-c", program, postgres_url], check=True, timeout=60)


@pytest.mark.parametrize("kind", [psycopg.ClientCursor, psycopg.RawCursor])
@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_connection_that_makes_cursors_of_another_kind_carries_a_transaction(
    store: Store, store_url: str, kind: Any
) -> None:
    """Django's bind in the client."""
    store.configure_queue("q")
    with psycopg.connect(store_url.replace("+psycopg", ""), cursor_factory=kind) as connection:
        connection.execute("select 1")
        with store.transaction(connection=connection) as tx:
            change(tx, "a", reads=True)
    assert queued(store) == 1


@on_postgresql
def test_a_conflict_is_raised_and_the_user_rolls_back(store: Store, connect: Connect) -> None:
    """In SQLite nothing can overlap a bound transaction."""
    connection = connect()
    insert(connection, "a")
    with pytest.raises(ConflictError), store.transaction(connection=connection) as tx:
        change(tx, "a", reads=True)
        with store.transaction() as other:
            other.table("t").set("a", "n", b"other")
    connection.rollback()
    assert business(store) == []
    assert queued(store) == 0
    assert read(store, "a") == b"other"
    assert take_snapshot(store.database).excluded == ()


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_refused_block_leaves_nothing_in_the_users_transaction_if_that_goes_on(
    store: Store, connect: Connect
) -> None:
    """PostgreSQL lets no SQL transaction go on behind an error."""
    connection = connect()
    insert(connection, "a")
    with (
        pytest.raises(TransactionTimeout),
        store.transaction(connection=connection, timeout=0.05) as tx,
    ):
        change(tx, "a", reads=True)
        wait_past(store, opened_by(tx)._deadline_ms)
    connection.commit()
    assert business(store) == ["a"]
    assert queued(store) == 0
    assert store.outcome(tx.request).status == "refused"


def test_an_exception_in_the_block_writes_nothing_of_ours(store: Store, connect: Connect) -> None:
    connection = connect()
    insert(connection, "a")
    with pytest.raises(KeyError), store.transaction(connection=connection) as tx:
        change(tx, "a", reads=True)
        raise KeyError
    connection.commit()
    assert business(store) == ["a"]
    assert queued(store) == 0
    assert take_snapshot(store.database).excluded == ()


@pytest.mark.parametrize("store_url", ON_POSTGRESQL[:2], indirect=True)
def test_a_start_in_another_sql_transaction_is_refused(store: Store, connect: Connect) -> None:
    """Where a row registers it the start is not part of the first one, and is proven in the second."""
    connection = connect()
    with pytest.raises(RegistrationLost), store.transaction(connection=connection) as tx:
        change(tx, "a", reads=True)
        connection.commit()
    connection.rollback()
    assert queued(store) == 0


def test_several_bound_transactions_in_one_sql_transaction(store: Store, connect: Connect) -> None:
    connection = connect()
    insert(connection, "a")
    for key in "ab":
        with store.transaction(connection=connection) as tx:
            change(tx, key, reads=False)
    connection.commit()
    assert queued(store) == 2


def test_a_connection_that_cannot_carry_it_is_refused(store: Store, store_url: str, tmp_path: Any) -> None:
    store.configure_queue("q")
    elsewhere = sa.create_engine(f"sqlite:///{tmp_path / 'elsewhere.db'}")
    with Store.open(f"sqlite:///{tmp_path / 'elsewhere.db'}") as other:
        other.create()
    with elsewhere.connect() as connection, pytest.raises(InvalidArgument), store.transaction(connection=connection):
        raise AssertionError("the block is not entered")
    for wrong in ("text", object(), 7):
        with pytest.raises(InvalidArgument, match="expected a connection"), store.transaction(connection=wrong):
            raise AssertionError("the block is not entered")
    autocommit = sa.create_engine(whole_url(store), isolation_level="AUTOCOMMIT")
    with (
        autocommit.connect() as connection,
        pytest.raises(InvalidArgument, match="autocommit"),
        store.transaction(connection=connection),
    ):
        raise AssertionError("the block is not entered")
    with pytest.raises(InvalidArgument, match="long"), store.transaction(connection=object(), long=True):
        raise AssertionError("the block is not entered")


def test_another_isolation_level_is_refused(postgres_url: str) -> None:
    with Store.open(postgres_url) as store:
        store.create()
        store.configure_table("t")
        engine = sa.create_engine(postgres_url, isolation_level="REPEATABLE READ")
        for reads in (False, True):
            with (
                engine.connect() as connection,
                pytest.raises(ConfigurationError, match="READ COMMITTED, found repeatable read"),
                store.transaction(connection=connection) as tx,
            ):
                if reads:
                    tx.table("t").get("a", "n")
                tx.table("t").set("a", "n", b"1")
        assert read(store, "a") is None


def test_durability_of_the_users_transaction_is_not_touched(postgres_url: str) -> None:
    with Store.open(postgres_url) as store, sa.create_engine(postgres_url).connect() as connection:
        store.create()
        with store.transaction(connection=connection) as tx:
            tx.table("t").get("a", "n")
            tx.table("t").set("a", "n", b"1")
        assert connection.execute(sa.text("show synchronous_commit")).scalar() == "on"
        connection.commit()


def test_a_start_that_is_cancelled_frees_the_gate(postgres_url: str) -> None:
    """Else all starts of the store would hang until the user's session ends."""
    plain = postgres_url.replace("+psycopg", "")
    with (
        Store.open(postgres_url) as store,
        psycopg.connect(plain) as mine,
        psycopg.connect(plain) as somebody,
        ThreadPoolExecutor(1) as thread,
    ):
        store.create()
        store.configure_table("t")

        def start() -> None:
            with store.transaction(connection=mine) as tx:
                assert tx.id

        def states() -> tuple[bool, int]:
            """Whether the session waits for a lock, and how many advisory locks it holds."""
            statement = """
                select coalesce((select wait_event_type = 'Lock' from pg_stat_activity where pid = %(pid)s), false),
                    (select count(*) from pg_locks where pid = %(pid)s and locktype = 'advisory' and granted)"""
            return somebody.execute(statement, {"pid": mine.info.backend_pid}).fetchone()  # type: ignore[return-value]

        somebody.execute("alter sequence export_queue.xq_id cache 1")  # so that drawing waits, under the gate
        starting = thread.submit(start)
        pause = threading.Event()
        for _ in range(3000):
            if states() == (True, 1):
                break
            pause.wait(0.01)
        else:
            raise AssertionError("the start did not come to wait under the gate")
        somebody.execute("select pg_cancel_backend(%s)", (mine.info.backend_pid,))
        with pytest.raises(StoreUnavailable, match="cancel"):
            starting.result(60)
        assert states() == (False, 0)
        somebody.rollback()
        mine.rollback()
        assert read(store, "a") is None
