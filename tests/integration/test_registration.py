"""How PostgreSQL registers ids: what other sessions, applications and mishaps may do to it (I1, I5)."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sa
from tests.conftest import VARIANT
from tests.integration.test_excluded_ids import excluded as excluded_by_server
from tests.support.contexts import catalogue_of, opened_by
from tests.support.servers import PostgresServer
from tests.support.waiting import wait_until

from export_queue import (
    ConfigurationError,
    ConflictError,
    RegistrationLost,
    SnapshotTooOld,
    Store,
    StoreUnavailable,
    TransactionError,
)
from export_queue.core.postgresql_connection import BoundedConnection
from export_queue.core.store import CommitCall, Snapshot, StartCall, Version, Writes, schema
from export_queue.core.store.conflict_keys import row_key
from export_queue.core.store.registration import Kind
from export_queue.core.transactions import expire, take_snapshot

POOLER = pytest.param("postgresql-pooler", marks=VARIANT)
sequence_ways = pytest.mark.parametrize("store_url", ["postgresql", POOLER], indirect=True)
all_ways = pytest.mark.parametrize("store_url", ["postgresql", POOLER], indirect=True)
locks_only = pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)


@pytest.fixture
def application(store_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A session that is not the store's."""
    with psycopg.connect(store_url.replace("+psycopg", ""), autocommit=True) as connection:
        yield connection


class Started(NamedTuple):
    """What a start gives."""

    id: int
    excluded: tuple[int, ...]
    deadline_ms: int
    found: Version | None


def start(store: Store, connection: sa.Connection, **options: Any) -> Started:
    options = {"kind": "short", "request": uuid4(), "timeout_ms": 30_000, "client": "test", **options}
    return Started(*store.database.dialect.steps.start(connection, StartCall(**options)))


def number_of_t(store: Store) -> int:
    return catalogue_of(store).table("t").number


def commit(
    store: Store, connection: sa.Connection, started: Started, *, row: bytes = b"a", kind: Kind = "short"
) -> int:
    number = number_of_t(store)
    call = CommitCall(
        kind=kind,
        request=uuid4(),
        store_id=store.id,
        transaction=started.id,
        snapshot=Snapshot(started.id - 1, started.excluded, (started.id,)),
        deadline_ms=started.deadline_ms,
        writes=Writes(keys=[row_key(number, row)], cells=[(number, row, b"n", b"%d" % started.id)]),
    )
    return store.database.dialect.steps.commit(connection, call)


def excluded(store: Store) -> tuple[int, ...]:
    return take_snapshot(store.database).excluded


def mask(store: Store) -> int:
    with store.database.read() as work:
        return int(work.connection.execute(sa.select(schema.store.c.mask)).scalar_one())


def waiting(application: psycopg.Connection[Any]) -> int:
    found = application.execute(
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    ).fetchone()
    assert found
    return int(found[0])


@contextlib.contextmanager
def seam(
    application: psycopg.Connection[Any], function: str, behind: str, *, only: str = "%"
) -> Iterator[Callable[[], None]]:
    """Let a function of the store wait behind the one place that matches, until the block opens the seam, or ends.

    :param only: pattern of the application names that wait; all others pass.
    """
    found = application.execute(f"select pg_get_functiondef('export_queue.{function}'::regproc)".encode()).fetchone()
    assert found
    table = f"export_queue.seam_of_{function}"
    wait = f" if current_setting('application_name') like '{only}' then perform 1 from {table}; end if;"
    changed, count = re.subn(behind, lambda place: place[0] + wait, found[0], flags=re.DOTALL)
    assert count == 1
    application.execute(f"create table {table} ()".encode())
    application.execute(changed.encode())
    with psycopg.connect(application.info.dsn, password=application.info.password) as holder:
        holder.execute(f"lock table {table} in access exclusive mode".encode())
        yield holder.rollback


# --- the order of steps ---------------------------------------------------------------------------------------------


@sequence_ways
def test_a_later_id_waits_until_a_smaller_one_is_registered(store: Store, application: psycopg.Connection[Any]) -> None:
    """With a pause between drawing and registering, as a busy server makes it now and then."""
    with (
        ThreadPoolExecutor(2) as pool,
        store.database.connect() as one,
        store.database.connect() as two,
        seam(application, "xq_draw_v1", r"id := setval[^;]*;\s*end if;") as open_seam,
    ):
        first = pool.submit(start, store, one)
        wait_until(lambda: waiting(application) == 1, "the first does not wait at the seam")
        second = pool.submit(start, store, two)
        wait_until(lambda: waiting(application) == 2, "the second does not wait for the gate")
        open_seam()
        assert first.result().id < second.result().id
        assert first.result().id in second.result().excluded


@all_ways
def test_an_id_is_in_progress_before_its_row_is_visible(store: Store, application: psycopg.Connection[Any]) -> None:
    with ThreadPoolExecutor(2) as pool, store.database.connect() as one, store.database.connect() as two:
        with application.transaction():
            application.execute("lock table export_queue.xq_active in exclusive mode")  # reading goes on
            first = pool.submit(start, store, one)
            wait_until(lambda: waiting(application) == 1, "the first does not wait for its row")
            seen = take_snapshot(store.database)
            second = pool.submit(start, store, two)
            wait_until(lambda: waiting(application) == 2, "the second does not wait")
        early, late = first.result(), second.result()
        assert early.id in seen.excluded or early.id > seen.read_pointer
        assert early.id < late.id
        assert early.id in late.excluded
        assert set(excluded(store)) == {early.id, late.id}


@all_ways
def test_a_write_that_never_read_is_in_progress_until_its_commit_has_ended(
    store: Store, application: psycopg.Connection[Any]
) -> None:
    def write(value: bytes) -> None:
        with store.transaction() as tx:
            tx.table("t").set("a", "n", value)

    write(b"before")
    with store.transaction() as reader, ThreadPoolExecutor(1) as pool:
        with application.transaction():
            application.execute("lock table export_queue.xq_cell in exclusive mode")  # reading goes on
            writing = pool.submit(write, b"after")
            wait_until(lambda: waiting(application) == 1, "the commit does not wait")
            assert reader.table("t").get("a", "n") == b"before"
        writing.result(60)
        assert reader.table("t").get("a", "n") == b"before"


@all_ways
def test_a_sweep_passes_over_a_commit_in_flight(store: Store, application: psycopg.Connection[Any]) -> None:
    with ThreadPoolExecutor(2) as pool, store.database.connect() as connection:
        started = start(store, connection, timeout_ms=1500)
        with application.transaction():
            application.execute("lock table export_queue.xq_cell in exclusive mode")
            done = pool.submit(commit, store, connection, started)
            wait_until(lambda: waiting(application) == 1, "the commit does not wait")
            wait_until(lambda: now(store) > started.deadline_ms, "the clock does not move")
            assert pool.submit(expire, store.database).result(timeout=20) == 0
        assert done.result() == started.id
        assert expire(store.database) == 0
        assert excluded(store) == ()


def now(store: Store) -> int:
    with store.database.read() as work:
        return work.now()


BEFORE_THE_LIST, BEHIND_THE_LIST = r"\bbegin\b", r"listed := .*?;"


@contextlib.contextmanager
def slow_snapshot(
    store: Store, application: psycopg.Connection[Any], place: str, *, starts: bool = False
) -> Iterator[tuple[Future[Snapshot], Callable[[], None]]]:
    """Take a snapshot that waits in the middle of listing what is in progress, until it is let go or the block ends.

    :param starts: whether it is one of a transaction that starts.
    """

    def take(connection: sa.Connection) -> Snapshot:
        if not starts:
            return store.database.dialect.steps.take_snapshot(connection)
        started = start(store, connection, kind="long")
        return Snapshot(started.id - 1, started.excluded)

    with (
        ThreadPoolExecutor(1) as pool,
        store.database.connect() as connection,
        seam(application, "xq_unfinished_v1", place, only="slow") as open_seam,
    ):
        connection.exec_driver_sql("set application_name = 'slow'")
        before = waiting(application)
        slow = pool.submit(take, connection)
        wait_until(lambda: waiting(application) > before, "the snapshot does not wait")
        try:
            yield slow, open_seam
        finally:
            open_seam()
            slow.exception()
            connection.exec_driver_sql("reset application_name")


def sees(snapshot: Snapshot, transaction: int) -> bool:
    return transaction <= snapshot.read_pointer and transaction not in snapshot.excluded


@all_ways
@pytest.mark.parametrize("starts", [pytest.param(True, id="start"), pytest.param(False, id="observe")])
def test_a_reader_that_sees_a_commit_sees_what_was_committed_before_it(
    store: Store, application: psycopg.Connection[Any], starts: bool
) -> None:
    """Also if what was committed before it started after the snapshot had begun."""

    def write() -> int:
        writes = Writes(cells=[(number_of_t(store), b"a", b"n", b"1")])
        call = CommitCall(kind="write", request=uuid4(), store_id=store.id, writes=writes)
        with store.database.connect() as connection:
            return store.database.dialect.steps.commit(connection, call)

    older = store.begin()
    with (
        ThreadPoolExecutor(1) as pool,
        slow_snapshot(store, application, BEFORE_THE_LIST, starts=starts) as (slow, let_go),
    ):
        writing = pool.submit(write)
        wait_until(lambda: writing.done() or waiting(application) > 1, "the write neither waits nor ends")
        was_first = writing.done()
        store.commit(older)
        let_go()
        younger, snapshot = writing.result(), slow.result()
    assert int(older["id"]) < younger
    if was_first:
        assert sees(snapshot, younger) or not sees(snapshot, int(older["id"]))
    else:
        assert not sees(snapshot, younger), "it waited for the snapshot, so it is not in it"


@sequence_ways
def test_a_commit_between_the_list_and_the_rows_is_seen_with_the_ones_behind_it(
    store: Store, store_url: str, application: psycopg.Connection[Any]
) -> None:
    """A bound transaction, which is in the list of locks, and a long one, which is in the active rows."""
    with Store.open(store_url) as direct, direct.database.connect() as connection:
        long = store.begin()
        connection.exec_driver_sql("begin")
        bound = start(direct, connection, kind="bound")
        number = commit(direct, connection, bound, kind="bound")
        with slow_snapshot(store, application, BEHIND_THE_LIST) as (slow, _):
            connection.exec_driver_sql("commit")
            store.commit(long)
        assert sees(slow.result(), number) or not sees(slow.result(), int(long["id"]))


@locks_only
def test_a_commit_whose_lock_is_still_held_is_seen(store: Store, application: psycopg.Connection[Any]) -> None:
    """A server makes a commit visible, then frees its locks, then answers: others may write and answer in between."""
    with store.database.connect() as connection:
        connection.exec_driver_sql("begin")
        started = start(store, connection, kind="bound")
        number = commit(store, connection, started, kind="bound")
        key = number ^ mask(store)
        connection.exec_driver_sql("select pg_advisory_lock(%s)", (key,))  # once more: the commit frees its own only
        connection.exec_driver_sql("commit")
        with store.transaction() as tx:
            tx.table("t").set("a", "n", b"over it")
        snapshot = start(store, connection)
        connection.exec_driver_sql("select pg_advisory_unlock(%s)", (key,))
        assert number not in snapshot.excluded


@locks_only
def test_a_checkpoint_on_its_way_is_no_pointer_of_its_own(store: Store, application: psycopg.Connection[Any]) -> None:
    """A snapshot has all write pointers of a transaction, or none."""
    long = store.begin()
    with store.resume(long) as tx:
        tx.table("t").set("a", "n", b"1")
    with (
        ThreadPoolExecutor(1) as pool,
        store.database.connect() as connection,
        seam(application, "xq_checkpoint_v1", r"where a\.id = tx;") as open_seam,
    ):
        checkpoint = pool.submit(store.database.dialect.steps.checkpoint, connection, int(long["id"]))
        wait_until(lambda: waiting(application) == 1, "the checkpoint does not wait")
        with slow_snapshot(store, application, BEHIND_THE_LIST) as (slow, _):
            open_seam()
            checkpoint.result()
            store.commit(long)
        assert slow.result().excluded == ()


# --- the first read -------------------------------------------------------------------------------------------------


@all_ways
def test_the_first_cell_comes_with_the_start(store: Store) -> None:
    with store.transaction() as tx:
        tx.table("t").set("a", "n", b"1")
    with store.transaction() as tx:
        tx.table("t").delete("b", "n")
        deleted = tx.id
    cells = {b"a": b"1", b"b": None}
    with store.database.connect() as connection:
        for row, value in cells.items():
            found = start(store, connection, first=(number_of_t(store), row, b"n")).found
            assert found is not None
            assert found[1] == value
        assert found[0] == deleted
        assert start(store, connection, first=(number_of_t(store), b"c", b"n")).found == (None, None)
        assert start(store, connection).found is None


@all_ways
def test_what_is_in_progress_is_not_found_with_the_start(store: Store) -> None:
    with store.database.connect() as one, store.database.connect() as two:
        older = start(store, one)
        younger = start(store, two)
        commit(store, one, older)
        assert start(store, one, first=(number_of_t(store), b"a", b"n")).found == (
            older.id,
            b"%d" % older.id,
        )
        snapshot = Snapshot(younger.id - 1, younger.excluded, (younger.id,))
        assert store.database.dialect.steps.read_cell(two, snapshot, number_of_t(store), b"a", b"n") == (None, None)


@all_ways
def test_a_start_below_the_horizon_is_refused_and_leaves_no_id(store: Store) -> None:
    with store.database.begin() as work:
        work.connection.execute(schema.store.update().values(horizon=1 << 62))
    with store.database.connect() as connection, pytest.raises(SnapshotTooOld):
        start(store, connection, first=(number_of_t(store), b"a", b"n"))
    assert excluded(store) == ()


@all_ways
def test_long_transactions_that_end_and_begin_during_a_first_read_are_seen_right(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind each statement that it sends: the ids that a server's snapshot excludes are of the snapshot's moment."""
    ways = (psycopg.Cursor, "execute"), (BoundedConnection, "call")

    def stage(row: str, value: bytes) -> dict[str, Any]:
        long = store.begin()
        with store.resume(long) as tx:
            tx.table("t").set(row, "n", value)
        return long

    def read_while_others_work(number: int) -> bool:
        value, begun, sent = b"%d" % number, [stage("ending", b"%d" % number)], 0

        def with_work_behind_it(send: Callable[..., Any]) -> Callable[..., Any]:
            def send_and_work(*arguments: Any, **options: Any) -> Any:
                nonlocal sent
                answer = send(*arguments, **options)
                sent += 1
                if sent == number:  # what follows sends statements, too
                    store.run(lambda tx: tx.table("t").set("before", "n", value))
                    store.commit(begun.pop())
                    begun.append(stage("begun", value))
                return answer

            return send_and_work

        with store.transaction() as tx:
            with monkeypatch.context() as patched:
                for kind, name in ways:
                    patched.setattr(kind, name, with_work_behind_it(getattr(kind, name)))
                ending = tx.table("t").get("ending", "n")
            assert tx.table("t").get("ending", "n") == ending
            assert ending != value or tx.table("t").get("before", "n") == value
            assert tx.table("t").get("begun", "n") is None
        store.abort(begun.pop())
        return sent >= number

    assert read_while_others_work(1)
    for number in itertools.count(2):
        if not read_while_others_work(number):
            break


# --- sessions -------------------------------------------------------------------------------------------------------


@all_ways
def test_two_transactions_on_one_connection_are_proven_each_by_itself(store: Store) -> None:
    with store.database.connect() as connection:
        one, two = start(store, connection), start(store, connection)
        assert set(excluded(store)) == {one.id, two.id}
        assert commit(store, connection, two, row=b"two") == two.id
        assert excluded(store) == (one.id,)
        assert commit(store, connection, one, row=b"one") == one.id
        assert excluded(store) == ()


@all_ways
@pytest.mark.parametrize("mishap", ["discard all", "another session"])
def test_a_row_registers_on_whatever_session(store: Store, mishap: str) -> None:
    with store.database.connect() as connection, store.database.connect() as another:
        started = start(store, connection)
        if mishap == "discard all":
            connection.exec_driver_sql(mishap)
        assert commit(store, another if mishap == "another session" else connection, started) == started.id
    assert excluded(store) == ()


@all_ways
def test_the_same_commit_after_a_refusal_is_refused_again(store: Store) -> None:
    with store.transaction() as tx:
        tx.table("t").set("b", "n", b"1")
    with store.database.connect() as connection:
        started = start(store, connection)
        with store.transaction() as tx:
            tx.table("t").set("a", "n", b"other")
        with pytest.raises(ConflictError):
            commit(store, connection, started)
        with pytest.raises((RegistrationLost, ConflictError)):
            commit(store, connection, started)
        store.database.dialect.steps.abort(connection, kind="short", transaction=started.id)
    assert excluded(store) == ()


@locks_only
def test_the_id_of_a_session_that_ends_leaves_the_list(store: Store, application: psycopg.Connection[Any]) -> None:
    with store.database.connect() as connection:
        connection.exec_driver_sql("begin")
        started = start(store, connection, kind="bound")
        pid = connection.connection.driver_connection.info.backend_pid  # type: ignore[union-attr]
        assert excluded(store) == (started.id,)
        application.execute("select pg_terminate_backend(%s)", (pid,))
        wait_until(lambda: excluded(store) == (), "the id stays in progress")
        connection.invalidate()


@sequence_ways
def test_clients_of_both_ways_share_a_store(store: Store, store_url: str) -> None:
    with Store.open(store_url) as direct, Store.open(store_url, behind_pooler=True) as pooled:
        with direct.database.connect() as one, pooled.database.connect() as two:
            older, younger = start(direct, one), start(pooled, two)
            youngest = start(direct, one)
            assert younger.excluded == (older.id,)
            assert youngest.excluded == (older.id, younger.id)
            commit(pooled, two, younger)
            with pytest.raises(ConflictError):
                commit(direct, one, youngest)
            for left in (older, youngest):
                direct.database.dialect.steps.abort(one, kind="short", transaction=left.id)
        assert excluded(store) == ()


# --- cancels and time-outs ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def cancelling(application: psycopg.Connection[Any]) -> Iterator[None]:
    """Cancel what all other sessions of the database do, again and again."""
    stop = threading.Event()

    def fire() -> None:
        while not stop.wait(0.0004):
            application.execute(
                "select pg_cancel_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid() "
                "and query ~ 'xq_(draw|take_snapshot|start|abort)'"
            )

    thread = threading.Thread(target=fire)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@locks_only
@pytest.mark.parametrize("call", ["xq_draw_v1(true, true)", "xq_take_snapshot_v1()"])
def test_a_cancel_at_any_time_leaves_the_gate_free(
    store: Store, store_url: str, application: psycopg.Connection[Any], call: str
) -> None:
    gate = (
        "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid() "
        f"and ((classid::bigint << 32) | objid::bigint) = {mask(store)}"
    )
    cancelled = 0
    with psycopg.connect(store_url.replace("+psycopg", ""), autocommit=True) as drawing:
        with cancelling(application):
            while cancelled < 150:
                try:
                    # Many in one call, so that a cancel hits inside of it.
                    loop = f"do $$ begin for i in 1..500 loop perform export_queue.{call}; end loop; end $$"
                    drawing.execute(loop.encode())
                except psycopg.errors.QueryCanceled:
                    cancelled += 1
        left = drawing.execute(gate.encode()).fetchone()
    assert left == (0,)


@all_ways
def test_cancelled_starts_and_aborts_leave_no_id_in_progress(
    store: Store, application: psycopg.Connection[Any]
) -> None:
    cancelled = 0
    with cancelling(application):
        for _ in range(20_000):
            try:
                with store.transaction() as tx:
                    assert tx.id
                    raise KeyError
            except KeyError:
                pass
            except StoreUnavailable:
                cancelled += 1
                if cancelled >= 40:
                    break
    assert cancelled >= 40
    with store.database.begin() as work:
        work.connection.execute(schema.active.update().values(deadline_ms=0))
    expire(store.database)  # a row whose deletion was cancelled goes at its deadline
    wait_until(lambda: excluded(store) == (), "an id stays in progress")


@sequence_ways
def test_a_time_out_while_waiting_for_the_gate_leaves_nothing(
    store: Store, application: psycopg.Connection[Any]
) -> None:
    key = mask(store)
    application.execute("select pg_advisory_lock(%s)", (key,))
    with store.database.connect() as connection:
        connection.exec_driver_sql("set statement_timeout = '100ms'")
        with pytest.raises(StoreUnavailable, match="timeout"):
            start(store, connection)
        connection.invalidate()
    application.execute("select pg_advisory_unlock(%s)", (key,))
    assert excluded(store) == ()


# --- other locks, other stores --------------------------------------------------------------------------------------


@sequence_ways
def test_locks_of_an_application_are_neither_waited_for_nor_read_as_ids(
    store: Store, application: psycopg.Connection[Any]
) -> None:
    key = mask(store)
    for own in (0, 1, -1, 42, 2**31, 2**62, -(2**62), key + 1, key - 1, key ^ 1, key ^ (1 << 62), ~key, -key):
        application.execute("select pg_advisory_lock(%s::bigint)", (own,))
    application.execute("select pg_advisory_lock(hashtext('orders')), pg_advisory_lock(hashtextextended('orders', 0))")
    application.execute("select pg_advisory_lock(1, 2), pg_advisory_lock(-1, hashtext('orders'))")
    # Two arguments whose bits are those of an id in the window.
    high, low = (key ^ (now(store) * 10**6)) >> 32, (key ^ (now(store) * 10**6)) & 0xFFFFFFFF
    application.execute("select pg_advisory_lock(%s::int, %s::int)", (high, low - (1 << 32 if low >> 31 else 0)))
    assert excluded(store) == ()
    with store.transaction() as tx:
        assert opened_by(tx).value.excluded == frozenset()
        assert tx.table("t").get("a", "n") is None
        tx.table("t").set("a", "n", b"1")
    with store.transaction() as tx:
        assert tx.table("t").get("a", "n") == b"1"


@sequence_ways
def test_an_id_whose_key_an_application_has_locked_is_passed_over(
    store: Store, application: psycopg.Connection[Any]
) -> None:
    store.configure_table("t")  # its number is an id, too
    last = (now(store) + 1_800_000) * 10**6  # half an hour ahead: the next id is one more, and known
    application.execute("select setval('export_queue.xq_id', %s)", (last,))
    application.execute("select pg_advisory_lock(%s)", ((last + 1) ^ mask(store),))
    with store.transaction() as tx:
        tx.table("t").set("a", "n", b"1")
    assert opened_by(tx)._value is None
    with store.transaction() as tx:
        assert tx.id == last + 3
        assert opened_by(tx).value.excluded == {last + 1}  # nobody has it, which does no harm
        assert tx.table("t").get("a", "n") == b"1"


@locks_only
def test_an_abort_frees_no_lock_of_its_user(store: Store, application: psycopg.Connection[Any]) -> None:
    with store.database.connect() as connection:
        connection.exec_driver_sql("select pg_advisory_lock(7)")
        started = start(store, connection)
        store.database.dialect.steps.abort(connection, kind="short", transaction=started.id)
        assert excluded(store) == ()
        held = application.execute(
            "select count(*) from pg_locks where locktype = 'advisory' and objid = 7 "
            "and database = (select oid from pg_database where datname = current_database())"
        ).fetchone()
        assert held == (1,)
        connection.exec_driver_sql("select pg_advisory_unlock(7)")


def test_two_stores_in_one_database_know_nothing_of_each_other(postgres_url: str) -> None:
    with Store.open(postgres_url) as one, Store.open(postgres_url, schema="other") as two:
        one.create()
        two.create()
        with one.database.connect() as connection, two.database.connect() as another:
            first = start(one, connection)
            connection.exec_driver_sql(f"select pg_advisory_lock({mask(one)})")  # its gate
            second = start(two, another)
            assert second.excluded == ()
            assert excluded(two) == (second.id,)
            connection.exec_driver_sql(f"select pg_advisory_unlock({mask(one)})")
            assert excluded(one) == (first.id,)


def test_a_copy_in_the_same_cluster_knows_nothing_of_its_original(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    with Store.open(postgres_url) as original:
        original.create()
        original.close()
        name = postgres_server.create_database(template=postgres_url.rpartition("/")[2])
        try:
            with Store.open(postgres_server.url(name)) as copied:
                assert mask(copied) == mask(original)
                with original.database.connect() as one, copied.database.connect() as two:
                    mine, theirs = start(original, one), start(copied, two)
                    assert (mine.excluded, theirs.excluded) == ((), ())
                    assert (excluded(original), excluded(copied)) == ((mine.id,), (theirs.id,))
        finally:
            postgres_server.drop_database(name)


# --- settings -------------------------------------------------------------------------------------------------------


@all_ways
def test_a_stricter_default_isolation_is_refused_with_what_to_do(store: Store, store_url: str) -> None:
    name = store_url.rpartition("/")[2]
    with store.database.connect() as connection:
        connection.exec_driver_sql(f"alter database {name} set default_transaction_isolation = serializable")
    with Store.open(store_url) as late:
        for reads in (False, True):
            refused = pytest.raises(ConfigurationError, match=r"found serializable\n.*default_transaction_isolation")
            with refused, late.transaction() as tx:
                if reads:
                    tx.table("t").get("a", "n")
                tx.table("t").set("a", "n", b"1")
        with pytest.raises(ConfigurationError):
            take_snapshot(late.database)


@pytest.mark.postgres
def test_a_full_lock_table_is_a_clear_transient_error(own_server: PostgresServer) -> None:
    url = own_server.url(own_server.create_database())
    with Store.open(url) as store, psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as application:
        store.create()
        store.configure_table("t")
        with store.database.connect() as connection:
            with pytest.raises(psycopg.errors.OutOfMemory):
                application.execute("select count(pg_advisory_lock(i)) from generate_series(1, 1000000) i")
            try:
                with (
                    pytest.raises(StoreUnavailable, match="max_locks_per_transaction"),
                    store.database.dialect.steps.transaction(connection),
                ):
                    for _ in range(2000):  # what is left has room for some
                        store.database.dialect.steps.draw(connection)
            finally:
                application.execute("select pg_advisory_unlock_all()")
        with store.transaction() as tx:
            assert tx.table("t").get("a", "n") is None


# --- PgBouncer ------------------------------------------------------------------------------------------------------


@pytest.fixture
def pooled_url(postgres_url: str, pgbouncer: Any) -> str:
    """A store that is reached through PgBouncer; the URL leads there."""
    with Store.open(postgres_url) as store:
        store.create()
        store.configure_table("t")
        store.configure_queue("q")
    return str(pgbouncer.url(postgres_url.rpartition("/")[2]))


def test_eight_clients_share_three_sessions_behind_pgbouncer(pooled_url: str, postgres_url: str) -> None:
    rounds, clients = 25, 8

    def count(tx: Any, number: int) -> None:
        for row in {number, (number * 3) % clients}:
            n = int(tx.table("t").get(f"r{row}", "n", b"0"))
            tx.table("t").set(f"r{row}", "n", b"%d" % (n + 1))
        tx.queue("q").add(f"r{number}", number)

    def work(number: int) -> int:
        counted = 0
        with Store.open(pooled_url, behind_pooler=True) as store:
            for turn in range(rounds):
                while True:
                    try:
                        with store.transaction() as tx:
                            count(tx, number)
                        counted += len({number, (number * 3) % clients})
                        break
                    except ConflictError:
                        continue
                with store.transaction() as tx:  # never reads
                    tx.table("t").set(f"blind{turn % 3}", "n", b"%d" % number)
                with contextlib.suppress(KeyError), store.transaction() as tx:
                    tx.table("t").get("r0", "n")
                    raise KeyError
        return counted

    with ThreadPoolExecutor(clients) as pool:
        counted = sum(pool.map(work, range(clients)))
    with Store.open(postgres_url) as store:
        assert excluded(store) == ()
        with store.transaction() as tx:
            assert sum(int(value) for row, _, value in tx.table("t").scan(prefix="r")) == counted
        with store.database.read() as sql:
            assert sql.connection.execute(schema.active.select()).all() == []
            sessions = sql.connection.execute(
                sa.text(
                    "select count(*) from pg_stat_activity where datname = current_database() "
                    "and pid <> pg_backend_pid() and backend_type = 'client backend'"
                )
            ).scalar_one()
        assert sessions <= 3


def test_everything_else_works_behind_pgbouncer(pooled_url: str) -> None:
    with Store.open(pooled_url, behind_pooler=True) as store:
        store.create()
        with store.transaction(long=True) as tx:
            tx.table("t").set("a", "n", b"1")
            tx.flush()
        with sa.create_engine(pooled_url).connect() as connection:
            with store.transaction(connection=connection) as tx:
                tx.table("t").get("a", "n")
                tx.table("t").set("b", "n", b"1")
            connection.commit()
        for _ in range(10):  # more often than a statement is run before psycopg prepares it
            with store.transaction() as tx:
                assert tx.table("t").get("b", "n") == b"1"
        assert store.run(lambda tx: tx.table("t").set("c", "n", b"1"), idempotency_key="once") is None
        with pytest.raises(TransactionError), store.transaction() as tx:
            tx.table("t").set("d", "n", b"1")
            store.outcome(tx.request)
        assert excluded(store) == ()


@locks_only
def test_statements_that_the_driver_has_forgotten_are_prepared_anew(store: Store) -> None:
    """The driver forgets all that is prepared when a SQL transaction with statements of its own is rolled back."""

    def count(tx: Any) -> int:
        n = int(tx.table("t").get("a", "n", b"0")) + 1
        tx.table("t").set("a", "n", b"%d" % n)
        return n

    for n in range(1, 4):
        assert store.run(count) == n
    for _ in range(8):
        with store.database.begin() as work:
            work.connection.execute(sa.select(schema.queue.c.id)).all()
    with pytest.raises(LookupError), store.database.begin() as work:
        work.connection.execute(sa.select(schema.queue.c.id)).all()
        raise LookupError
    assert store.run(count) == 4
    with store.database.connect() as connection:
        connection.exec_driver_sql("deallocate all")
    assert store.run(count) == 5


@pytest.mark.parametrize("store_url", [POOLER], indirect=True)
def test_behind_a_pooler_all_excluded_ids_are_read_each_time(store: Store) -> None:
    """The server behind it may have crashed unseen, and give the numbers of SQL transactions anew."""
    value = store.begin()
    assert excluded_by_server(store) == (int(value["id"]),)
    steps = store.database.dialect.steps
    steps._excluded = replace(steps._excluded, ids=(1, 2))  # type: ignore[attr-defined]
    assert excluded_by_server(store) == (int(value["id"]),)
