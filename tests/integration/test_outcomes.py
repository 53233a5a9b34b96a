"""What became of a commit, asked while the server is still at it (I12, I14)."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import sqlalchemy as sa
from tests.integration.test_participants import Resource
from tests.support.contexts import catalogue_of, opened_by
from tests.support.cuts import Truth, fill
from tests.support.fixtures import private_or_skip
from tests.support.servers import PostgresServer
from tests.support.waiting import wait_until

from export_queue import (
    CommitOutcomeUnknown,
    CommitRefused,
    RegistrationLost,
    Retry,
    Store,
    StoreUnavailable,
    TransactionContext,
    TransactionEnded,
)
from export_queue.core.store import Writes, schema
from export_queue.core.store.sqlite.filelock import FileLock
from export_queue.core.transactions import expire, outcome, take_snapshot

fork = multiprocessing.get_context("fork")
HELD = 4711
"""An advisory lock of an application's own."""


def connect(url: str) -> psycopg.Connection:
    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True)


@pytest.fixture
def held(postgres_url: str) -> Iterator[tuple[Store, psycopg.Connection]]:
    """A store whose commits stop in the server, after all of their statements, while a connection holds a lock."""
    with Store.open(postgres_url) as store, connect(postgres_url) as holder:
        store.create()
        store.configure_queue("q")
        store.configure_table("t")
        holder.execute(f"""
            create function public.hold() returns trigger language plpgsql as $$
            begin
              if new.status = 'committed' then perform pg_advisory_xact_lock_shared({HELD}); end if;
              return null;
            end $$;
            create constraint trigger hold after insert on export_queue.xq_outcome
              deferrable initially deferred for each row execute function public.hold()""")
        holder.execute("select pg_advisory_lock(%s)", (HELD,))
        yield store, holder


def rows_of(url: str, name: str) -> tuple[object, object]:
    with contextlib.closing(Truth(url)) as truth:
        return truth.rows_of(name)


def release(holder: psycopg.Connection) -> None:
    holder.execute("select pg_advisory_unlock(%s)", (HELD,))


def committing(holder: psycopg.Connection) -> list[int]:
    rows = holder.execute(
        "select l.pid from pg_locks l join pg_stat_activity a using (pid) where l.locktype = 'advisory' "
        "and not l.granted and a.query like '%%xq_commit%%' and a.datname = current_database()"
    ).fetchall()
    return [row[0] for row in rows]


def asking(holder: psycopg.Connection) -> object:
    rows = holder.execute(
        "select 1 from pg_stat_activity where query like '%%refused%%' and wait_event_type = 'Lock' "
        "and datname = current_database()"
    )
    return rows.fetchone()


@contextlib.contextmanager
def in_background(*works: Callable[[], object]) -> Iterator[list[Future[object]]]:
    with ThreadPoolExecutor(len(works)) as threads:
        yield [threads.submit(work) for work in works]


def commit(store: Store, name: str, requests: list[UUID], **options: float) -> None:
    with store.transaction(**options) as tx:  # type: ignore[arg-type]
        requests.append(tx.request)
        fill(tx, name)


def test_a_session_that_is_ended_in_the_middle_of_work_is_told_as_such(postgres_url: str) -> None:
    with Store.open(postgres_url) as store, connect(postgres_url) as other:
        store.create()
        with pytest.raises(StoreUnavailable), store.database.begin() as work:
            own = work.connection.exec_driver_sql("select pg_backend_pid()").scalar()
            other.execute("select pg_terminate_backend(%s)", (own,))
            wait_until(
                lambda: not other.execute("select 1 from pg_stat_activity where pid = %s", (own,)).fetchall(),
                "it goes on",
            )
        assert store.queues() == []


def test_a_forked_child_has_connections_of_its_own(postgres_url: str) -> None:
    """Two processes in one conversation with the server would read each other's answers."""
    with Store.open(postgres_url) as store:
        store.create()
        store.configure_queue("q")

        def commit_and_tell() -> int:
            with store.transaction() as tx:
                fill(tx, "child or parent")
            lent = store.database.pool.check_out()
            session = lent.driver_connection
            assert isinstance(session, psycopg.Connection)
            store.database.pool.check_in(lent)
            return session.info.backend_pid

        before = commit_and_tell()
        answers = fork.Queue()
        child = fork.Process(target=lambda: answers.put(commit_and_tell()), daemon=True)
        child.start()
        assert answers.get(timeout=60) != before
        child.join(60)
        assert commit_and_tell() == before


def test_sessions_that_end_as_soon_as_they_begin_are_told_as_such(postgres_url: str) -> None:
    """One that is dead when it is lent is replaced, which the pool does once and no more."""
    with Store.open(postgres_url) as store, connect(postgres_url) as other:
        store.create()

        @sa.event.listens_for(store.database.engine, "connect")
        def end(raw: psycopg.Connection[Any], record: object) -> None:
            other.execute("select pg_terminate_backend(%s, 30000)", (raw.info.backend_pid,))

        store.database.forget_connections()
        for _ in range(2):
            with pytest.raises((StoreUnavailable, sa.exc.InvalidRequestError)) as caught:
                take_snapshot(store.database)
            assert isinstance(caught.value, StoreUnavailable), "an error of the pool"
        sa.event.remove(store.database.engine, "connect", end)
        assert store.queues() == []


class TimedOut(BaseException):
    """As Airflow's time-out of a task."""


INTERRUPTIONS = pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, TimedOut])


@contextlib.contextmanager
def raising(kind: type[BaseException]) -> Iterator[Callable[[], None]]:
    """Give a function that has this process's main thread raise an error, from the handler of a signal."""

    def interrupt(*_: object) -> None:
        raise kind

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        yield lambda: os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


@INTERRUPTIONS
def test_an_interruption_of_a_commit_in_flight_waits_for_its_outcome_and_undoes_nothing(
    held: tuple[Store, psycopg.Connection], kind: type[BaseException]
) -> None:
    store, holder = held
    resource = Resource("file")

    def interrupt_and_release(interrupt: Callable[[], None]) -> None:
        wait_until(lambda: committing(holder), "the commit did not come to wait")
        interrupt()
        wait_until(lambda: asking(holder), "the outcome was not asked")
        release(holder)

    with raising(kind) as interrupt, in_background(lambda: interrupt_and_release(interrupt)) as (other,):
        with pytest.raises(kind) as caught, store.transaction() as tx:
            tx.join(resource)
            tx.table("t").get("a", "n")
            tx.table("t").set("a", "n", b"1")
        other.result(60)
    assert "has committed" in caught.value.__notes__[0]
    assert resource.calls == ["start", "changes", "persist", "after_commit"]
    assert store.outcome(tx.request).status == "committed"
    assert take_snapshot(store.database).excluded == ()


def test_a_second_interruption_leaves_the_outcome_unknown_and_calls_no_participant(
    held: tuple[Store, psycopg.Connection],
) -> None:
    store, holder = held
    resource = Resource("file")

    def interrupt_twice(interrupt: Callable[[], None]) -> None:
        wait_until(lambda: committing(holder), "the commit did not come to wait")
        interrupt()
        wait_until(lambda: asking(holder), "the outcome was not asked")
        interrupt()

    with raising(KeyboardInterrupt) as interrupt, in_background(lambda: interrupt_twice(interrupt)) as (other,):
        with pytest.raises(KeyboardInterrupt), store.transaction() as tx:
            tx.join(resource)
        other.result(60)
    assert resource.calls == ["start", "changes", "persist"]
    release(holder)
    assert store.outcome(tx.request).status == "committed"


@INTERRUPTIONS
@pytest.mark.parametrize("moment", ["before", "behind"])
@pytest.mark.parametrize("long", [False, True])
def test_an_interruption_around_the_commit_tells_participants_the_truth(
    store: Store, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException], moment: str, long: bool
) -> None:
    commit, resource = store.database.dialect.steps.commit, Resource("file")

    def interrupted(*arguments: Any) -> None:
        if moment == "behind":
            commit(*arguments)
        raise kind

    monkeypatch.setattr(store.database.dialect.steps, "commit", interrupted)
    with pytest.raises(kind), store.transaction(long=long) as tx:
        tx.join(resource)
        tx.table("t").set("a", "n", b"1")
    committed = moment == "behind"
    assert store.outcome(tx.request).status == ("committed" if committed else "refused")
    assert resource.calls[-1] == ("after_commit" if committed else "rollback")
    assert take_snapshot(store.database).excluded == ()


def test_an_interruption_in_a_participants_end_skips_no_other(store: Store) -> None:
    for step in ("rollback", "after_commit"):
        resources = [Resource(name) for name in "abc"]

        def interrupt() -> None:
            raise KeyboardInterrupt

        setattr(resources[1], step, interrupt)
        with pytest.raises(KeyboardInterrupt), store.transaction() as tx:
            for resource in resources:
                tx.join(resource)
            if step == "rollback":
                raise KeyError
        assert resources[0].calls[-1] == resources[2].calls[-1] == step
    assert [kept.left_to for kept in store.kept_invalid()] == ["b"], "of the failed roll-back"


@pytest.mark.parametrize("moment", ["before", "behind"])
def test_an_interrupted_flush_ends_the_transaction(store: Store, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    value, stage = store.begin(), store.database.dialect.steps.stage

    def interrupted(*arguments: Any, **named: Any) -> None:
        if moment == "behind":
            stage(*arguments, **named)
        raise TimedOut

    with pytest.raises(TimedOut), store.resume(value) as tx:
        tx.table("t").set("a", "n", b"1")
        monkeypatch.setattr(store.database.dialect.steps, "stage", interrupted)
    monkeypatch.undo()
    with pytest.raises(RegistrationLost):
        store.commit(value)
    assert take_snapshot(store.database).excluded == ()


def test_what_two_interruptions_in_a_row_leave_open_is_undone_by_the_next_write(sqlite_url: str) -> None:
    """The second one hits what ends the SQL transaction after the first, and the connection stays as it is."""
    with Store.open(sqlite_url) as store:
        store.create()
        connection = store.database.pool.check_out()
        raw = connection.driver_connection
        assert isinstance(raw, sqlite3.Connection)
        suspended = store.database.dialect.steps.transaction(raw)
        suspended.__enter__()
        raw.execute("update xq_store set horizon = 7")
        with store.transaction() as tx:  # else it would wait for itself
            tx.table("t").set("a", "n", b"1")
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            raw.execute("select 1")
        with store.transaction() as tx:
            assert tx.table("t").get("a", "n") == b"1"


PLACES = (
    *(f"sqlite/writing.py:{name}" for name in ("__enter__", "__exit__", "_relax", "_leave", "_roll_back")),
    *(f"sqlite/filelock.py:{name}" for name in ("__enter__", "__exit__", "free", "lock", "__init__", "_close")),
)


class Interruption(Exception):
    """An error that a signal's handler raises anywhere, as those of time-outs do that are plain exceptions."""


def test_an_error_at_any_point_of_a_sql_transaction_leaves_neither_lock_nor_relaxed_commits(sqlite_url: str) -> None:
    with Store.open(sqlite_url) as store:
        store.create()
        points, interrupted = 0, 0
        while True:
            points += 1
            with (
                interrupting(points) as reached,
                contextlib.suppress(Interruption),
                store.transaction() as tx,
            ):
                assert tx.id  # drawn in a SQL transaction that is not flushed
            if not reached():
                break
            interrupted += 1
            with FileLock(f"{os.path.realpath(sqlite_url.removeprefix('sqlite:///'))}.lock", seconds=5):
                pass
            connections = [store.database.pool.check_out() for _ in range(3)]
            for connection in connections:
                raw: Any = connection.driver_connection
                assert raw.execute("pragma synchronous").fetchone() == (2,)
            for connection in connections:
                store.database.pool.check_in(connection)
        assert interrupted > 20


@contextlib.contextmanager
def interrupting(number: int) -> Iterator[Callable[[], bool]]:
    """Raise an error in what begins and ends SQL transactions, where the handler of a signal may: at one of the points.

    The interpreter looks for signals when a function begins, and when a call of one that is not Python's has ended.
    """
    left = [number]

    def count(frame: FrameType, event: str, _: object) -> None:
        where = f"{frame.f_code.co_filename}:{frame.f_code.co_name}"
        if event in ("call", "c_return") and where.endswith(PLACES):
            left[0] -= 1
            if left[0] == 0:
                raise Interruption

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield lambda: left[0] <= 0
    finally:
        sys.setprofile(before)


def test_a_connection_that_is_closed_in_mid_transaction_locks_nothing_while_a_cursor_of_it_lives(
    sqlite_url: str,
) -> None:
    """The traceback of an interruption may hold one."""
    with Store.open(sqlite_url) as store:
        store.create()
        store.configure_queue("q")
        connection = store.database.pool.check_out()
        raw = connection.driver_connection
        assert isinstance(raw, sqlite3.Connection)
        raw.execute("begin immediate")
        cursor = raw.execute("select id from xq_queue union select 'r'")
        assert cursor.fetchone() is not None
        raw.close()
        with store.transaction() as tx:
            tx.queue("q").add("a", 1)
        del cursor


@pytest.mark.parametrize("can_undo", [True, False], ids=["undone", "left-to-a-participant"])
def test_an_interrupted_abort_of_a_long_transaction_is_made_up_for(
    store: Store, monkeypatch: pytest.MonkeyPatch, can_undo: bool
) -> None:
    abort, interruptions, resource = store.database.dialect.steps.abort, [TimedOut()], Resource("file")

    def fail() -> None:
        raise OSError("the file is locked")

    def interrupted(*arguments: Any, **named: Any) -> None:
        if interruptions:
            raise interruptions.pop()
        abort(*arguments, **named)

    with pytest.raises(TimedOut), store.transaction(long=True) as tx:
        tx.join(resource)
        tx.table("t").set("a", "n", b"1")
        tx.flush()
        monkeypatch.setattr(store.database.dialect.steps, "abort", interrupted)
        if not can_undo:
            monkeypatch.setattr(resource, "rollback", fail)
        raise KeyError
    expire(store.database)  # as starts do, and maintenance
    kept = list(take_snapshot(store.database).excluded)
    assert [one.id for one in store.kept_invalid()] == kept
    assert len(kept) == (0 if can_undo else 1)


def test_a_flush_that_arrives_behind_its_repetition_changes_nothing(store: Store) -> None:
    """Also where a checkpoint has been made meanwhile; a flush that is still awaited draws another number."""
    store.configure_queue("q")
    table, queue = catalogue_of(store).table("t").number, catalogue_of(store).queue("q").number
    dialect, value = store.database.dialect.steps, store.begin()
    own = int(value["id"])

    def writes(text: bytes) -> Writes:
        return Writes(cells=[(table, b"a", b"n", text)], entries=[(queue, 7, b"k", text)])

    with store.database.connect() as connection:
        late, repeated = dialect.draw(connection), dialect.draw(connection)

        def stage(text: bytes, number: int) -> Sequence[int]:
            return dialect.stage(connection, own, writes(text), number, store_id=store.identity.store_id, load=None)

        assert stage(b"new", repeated)
        assert stage(b"old", late) == ()
        dialect.checkpoint(connection, own)
        assert stage(b"old", late) == ()
        assert stage(b"old", repeated) == ()
    with store.resume(value) as tx:
        assert tx.table("t").get("a", "n") == b"new"
        tx.table("t").set("a", "n", b"newest")
    store.commit(value)
    with store.transaction(read_only=True) as tx:
        assert tx.table("t").get("a", "n") == b"newest"
    with store.database.read() as work:
        assert list(work.connection.scalars(sa.select(schema.entry.c.value))) == [b"new"]


def test_a_flush_without_an_answer_ends_the_transaction(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delivered late, it would undo what a later flush has written."""
    with pytest.raises(StoreUnavailable, match="lost"), store.transaction(long=True) as tx:
        tx.table("t").set("a", "n", b"1")
        stage = store.database.dialect.steps.stage

        def lose(*arguments: Any, **named: Any) -> None:
            stage(*arguments, **named)
            raise StoreUnavailable("the answer is lost")

        monkeypatch.setattr(store.database.dialect.steps, "stage", lose)
        with pytest.raises(StoreUnavailable):
            tx.flush()
        monkeypatch.undo()
        with pytest.raises(TransactionEnded):
            tx.table("t").set("a", "n", b"2")
        with store.transaction(read_only=True) as reader:
            assert reader.table("t").get("a", "n") is None
        assert take_snapshot(store.database).excluded == ()
        raise StoreUnavailable("lost")


def test_asking_waits_for_a_commit_in_flight(held: tuple[Store, psycopg.Connection], postgres_url: str) -> None:
    store, holder = held
    requests: list[UUID] = []
    answers = fork.Queue()

    def ask() -> None:
        with Store.open(postgres_url) as elsewhere:
            answers.put(elsewhere.outcome(requests[0]).status)

    with in_background(lambda: commit(store, "a", requests)) as (committer,):
        wait_until(lambda: committing(holder), "no commit came")
        asker = fork.Process(target=ask, daemon=True)
        asker.start()
        wait_until(lambda: asking(holder), "nobody asks")
        assert answers.empty()
        assert not committer.done()
        release(holder)
        assert answers.get(timeout=60) == "committed"
        committer.result(60)
        asker.join(60)
    assert rows_of(postgres_url, "a") == (1, 1)


def test_asking_waits_for_a_commit_in_flight_that_is_cancelled(
    held: tuple[Store, psycopg.Connection], postgres_url: str
) -> None:
    store, holder = held
    requests: list[UUID] = []
    with in_background(lambda: commit(store, "a", requests)) as (committer,):
        wait_until(lambda: committing(holder), "no commit came")
        with in_background(lambda: store.outcome(requests[0]).status) as (asker,):
            wait_until(lambda: asking(holder), "nobody asks")
            holder.execute("select pg_cancel_backend(%s)", (committing(holder)[0],))
            assert asker.result(60) == "refused"
        with pytest.raises(CommitRefused):
            committer.result(60)
    assert rows_of(postgres_url, "a") == (0, 0)
    assert store.outcome(requests[0]).status == "refused"


def test_a_commit_whose_session_is_ended_while_it_commits_is_refused(
    held: tuple[Store, psycopg.Connection], postgres_url: str
) -> None:
    store, holder = held
    requests: list[UUID] = []
    with in_background(lambda: commit(store, "a", requests)) as (committer,):
        wait_until(lambda: committing(holder), "no commit came")
        holder.execute("select pg_terminate_backend(%s)", (committing(holder)[0],))
        with pytest.raises(CommitRefused):
            committer.result(60)
    assert rows_of(postgres_url, "a") == (0, 0)


def test_a_commit_that_stays_in_flight_ends_in_outcome_unknown_and_the_truth_can_be_asked_later(
    held: tuple[Store, psycopg.Connection], postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export_queue.core.transactions.transaction.ANSWER_SECONDS", 0.2)
    monkeypatch.setattr("export_queue.core.transactions.outcomes.ASKING", Retry(attempts=None, seconds=0.3))
    store, holder = held
    requests: list[UUID] = []
    with pytest.raises(CommitOutcomeUnknown, match="has not answered") as unknown:
        commit(store, "a", requests, timeout=0.2)
    assert str(requests[0]) in str(unknown.value)
    assert "store.outcome" in unknown.value.hint
    with pytest.raises(StoreUnavailable):
        outcome(store.database, requests[0], seconds=0.2)
    release(holder)
    assert store.outcome(requests[0]).status == "committed"
    assert rows_of(postgres_url, "a") == (1, 1)


def test_an_answer_is_waited_for_no_longer_than_was_said(held: tuple[Store, psycopg.Connection]) -> None:
    store, _ = held
    with pytest.raises(StoreUnavailable, match="has not answered"), store.database.connect(seconds=0.2) as connection:
        connection.exec_driver_sql("set statement_timeout = '10s'")  # the server's own end, should ours not come
        connection.exec_driver_sql(f"select pg_advisory_lock({HELD})")


def test_asked_first_the_late_commit_is_refused(store: Store) -> None:
    store.configure_queue("q")
    for options in ({}, {"long": True}):
        with pytest.raises(CommitRefused), store.transaction(**options) as tx:  # type: ignore[arg-type]
            fill(tx, "a")
            assert tx.id
            assert store.outcome(tx.request).status == "refused"
        with store.transaction() as tx:
            assert tx.table("t").get("a", "n") is None
    assert store.backlog("q") == []


def test_a_commit_that_fails_behind_its_answer_has_not_taken_effect(postgres_url: str) -> None:
    """The function gives its row, and then the SQL transaction does not end well."""
    with Store.open(postgres_url) as store, connect(postgres_url) as other:
        store.create()
        store.configure_queue("q")
        other.execute(
            "create function public.refuse() returns trigger language plpgsql as "
            "$$ begin raise exception using errcode = '40001', message = 'not now'; end $$"
        )
        other.execute(
            "create constraint trigger refuse after insert on export_queue.xq_entry deferrable initially deferred "
            "for each row execute function public.refuse()"
        )
        requests: list[UUID] = []
        with pytest.raises(CommitRefused):
            commit(store, "a", requests)
        assert store.outcome(requests[0]).status == "refused"
        other.execute("drop trigger refuse on export_queue.xq_entry")
        commit(store, "b", requests)
        assert store.outcome(requests[1]).status == "committed"


def test_texts_reach_the_store_whatever_the_clients_encoding_is(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    with Store.open(postgres_url) as store, Store.open(postgres_url) as western:
        store.create()
        assert western.run(lambda tx: "naïve €", idempotency_key="café €") == "naïve €"
        assert store.idempotency("café €").result == "naïve €"
        assert western.idempotency("café €").result == "naïve €"


def test_many_ask_at_once_and_all_hear_the_same(store: Store) -> None:
    for _ in range(10):
        request = uuid4()
        start = threading.Barrier(6)

        def ask(request: UUID = request, start: threading.Barrier = start) -> str:
            start.wait(60)
            return store.outcome(request).status

        def late(request: UUID = request, start: threading.Barrier = start) -> str:
            try:
                with store.transaction() as tx:
                    opened_by(tx).request = request
                    tx.table("t").set("a", "n", request.bytes)
                    start.wait(60)
            except CommitRefused:
                return "refused"
            return "committed"

        with in_background(late, *[ask] * 5) as answers:
            heard = {answer.result(60) for answer in answers}
        assert len(heard) == 1
        with store.transaction() as tx:
            assert (tx.table("t").get("a", "n") == request.bytes) == (heard == {"committed"})


def test_an_idempotency_key_whose_commit_is_still_in_flight_is_waited_for(
    held: tuple[Store, psycopg.Connection], postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt does not know its outcome; the next call gives the stored result, not a second effect."""
    store, holder = held
    called: list[str] = []

    def work(name: str) -> Callable[[TransactionContext], str]:
        def function(tx: TransactionContext) -> str:
            called.append(name)
            fill(tx, name)
            return name

        return function

    with monkeypatch.context() as patched:
        patched.setattr("export_queue.core.transactions.transaction.ANSWER_SECONDS", 0.2)
        patched.setattr("export_queue.core.transactions.outcomes.ASKING", Retry(attempts=None, seconds=0.3))
        with pytest.raises(CommitOutcomeUnknown):
            store.run(work("first"), idempotency_key="load/1", timeout=0.2)
    with in_background(lambda: store.run(work("second"), idempotency_key="load/1")) as (second,):
        wait_until(lambda: "second" in called, "the second attempt does not begin")
        release(holder)
        assert second.result(60) == "first"
    assert (rows_of(postgres_url, "first"), rows_of(postgres_url, "second")) == ((1, 1), (0, 0))
    assert store.run(work("third"), idempotency_key="load/1") == "first"
    assert called == ["first", "second"]


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server whose settings a test may change."""
    yield from private_or_skip(PostgresServer)


def wait_until_commits_wait(url: str, admin: psycopg.Connection) -> None:
    """Return when commits wait for the standby: `show` says the new value before the server's other processes act."""
    waits = threading.Event()

    def commit_until_it_waits() -> None:
        while not waits.is_set():
            probe.execute("select pg_logical_emit_message(true, 'probe', '')")

    with connect(url) as probe, in_background(commit_until_it_waits):
        try:
            wait_until(lambda: waiting_for_standby(admin), "no commit waits for the standby")
        finally:
            waits.set()
            admin.execute("select pg_cancel_backend(%s)", [probe.info.backend_pid])


@pytest.fixture
def unreplicated(own_server: PostgresServer) -> Iterator[tuple[Store, psycopg.Connection]]:
    """A store whose server waits for a standby that does not exist, at every commit."""
    url = own_server.url(own_server.create_database())
    with Store.open(url) as store, connect(url) as admin:
        store.create()
        store.configure_queue("q")
        store.configure_table("t")
        _ = store.id
        admin.execute("set synchronous_commit = local")
        admin.execute("alter system set synchronous_standby_names = 'missing'")
        admin.execute("select pg_reload_conf()")
        wait_until_commits_wait(url, admin)
        yield store, admin
        admin.execute("alter system reset synchronous_standby_names")
        admin.execute("select pg_reload_conf()")


def waiting_for_standby(admin: psycopg.Connection) -> list[int]:
    rows = admin.execute("select pid from pg_stat_activity where wait_event = 'SyncRep'").fetchall()
    return [row[0] for row in rows]


@pytest.mark.postgres
@pytest.mark.parametrize("end", ["cancel", "terminate"])
def test_a_commit_that_waits_for_a_standby_has_committed_when_the_wait_is_broken(
    unreplicated: tuple[Store, psycopg.Connection], end: str
) -> None:
    store, admin = unreplicated
    requests: list[UUID] = []
    with in_background(lambda: commit(store, "a", requests)) as (committer,):
        wait_until(lambda: waiting_for_standby(admin), "no commit waits")
        assert not committer.done()
        admin.execute(f"select pg_{end}_backend(%s)".encode(), (waiting_for_standby(admin)[0],))
        committer.result(60)
    assert admin.execute("select count(*) from export_queue.xq_cell").fetchone() == (1,)
    assert store.outcome(requests[0]).status == "committed"


@pytest.mark.postgres
def test_a_commit_that_waits_for_a_standby_too_long_is_unknown_and_not_broken_off(
    unreplicated: tuple[Store, psycopg.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export_queue.core.transactions.transaction.ANSWER_SECONDS", 0.2)
    monkeypatch.setattr("export_queue.core.transactions.outcomes.ASKING", Retry(attempts=None, seconds=0.3))
    store, admin = unreplicated
    requests: list[UUID] = []
    with pytest.raises(CommitOutcomeUnknown):
        commit(store, "a", requests, timeout=0.2)
    assert waiting_for_standby(admin)  # nobody has told the server to do without its standby
    assert admin.execute("select count(*) from export_queue.xq_cell").fetchone() == (0,)
    admin.execute("alter system reset synchronous_standby_names")
    admin.execute("select pg_reload_conf()")
    assert store.outcome(requests[0]).status == "committed"


@pytest.mark.postgres
def test_a_store_that_is_down_is_no_unknown_outcome(own_server: PostgresServer) -> None:
    """What was never sent is not in doubt, whatever kind of transaction it was."""
    url = own_server.url(own_server.create_database())
    with Store.open(url) as store:
        store.create()
        store.configure_queue("q")
        store.configure_table("t")
        commit(store, "warm", [])
        own_server.stop()
        try:
            with pytest.raises(StoreUnavailable):
                commit(store, "a", [])
        finally:
            own_server.start()
        commit(store, "b", [])  # at once: connections of before the restart are not lent
        assert take_snapshot(store.database).excluded == ()
        assert sum(unit.entries for unit in store.backlog("q")) == 2


@pytest.mark.postgres
@pytest.mark.parametrize("long", [False, True])
def test_a_restarted_server_costs_no_transaction(own_server: PostgresServer, long: bool) -> None:
    url = own_server.url(own_server.create_database())
    with Store.open(url) as store:
        store.create()
        store.configure_queue("q")
        store.configure_table("t")
        with contextlib.ExitStack() as opened:
            for i in range(5):
                tx = opened.enter_context(store.transaction(long=long))
                assert tx.table("t").get("a", str(i)) is None
        own_server.stop()
        own_server.start()
        for i in range(6):
            with store.transaction(long=long) as tx:
                fill(tx, str(i))


def test_a_store_that_refuses_the_question_leaves_the_outcome_unknown(
    held: tuple[Store, psycopg.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that became a standby answers, but decides nothing."""
    monkeypatch.setattr("export_queue.core.transactions.outcomes.ASKING", Retry(attempts=None, seconds=0.3))
    store, holder = held
    requests: list[UUID] = []
    with in_background(lambda: commit(store, "a", requests)) as (committer,):
        wait_until(lambda: committing(holder), "no commit came")
        holder.execute(f'alter database "{holder.info.dbname}" set default_transaction_read_only = on'.encode())
        holder.execute("select pg_terminate_backend(%s)", (committing(holder)[0],))
        with pytest.raises(CommitOutcomeUnknown):
            committer.result(60)


def test_what_an_administrator_has_set_is_left_alone_and_the_rest_is_bounded(postgres_url: str) -> None:
    with connect(postgres_url) as admin:
        admin.execute(f'alter database "{admin.info.dbname}" set tcp_keepalives_idle = 7')
    with Store.open(postgres_url + "?keepalives_idle=11") as store, store.database.read() as work:
        raw = work.connection.connection.driver_connection
        assert isinstance(raw, psycopg.Connection)
        parameters = raw.info.get_parameters()
        assert parameters["keepalives_idle"] == "11"
        assert parameters["tcp_user_timeout"] == "60000"
        shown = {
            name: raw.execute(f"show {name}".encode()).fetchone()
            for name in (
                "tcp_keepalives_idle",
                "tcp_keepalives_count",
                "client_connection_check_interval",
                "idle_in_transaction_session_timeout",
            )
        }
    assert shown == {
        "tcp_keepalives_idle": ("7",),
        "tcp_keepalives_count": ("3",),
        "client_connection_check_interval": ("10s",),
        "idle_in_transaction_session_timeout": ("20s",),
    }
