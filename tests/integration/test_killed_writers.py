"""A writer that dies between its writes and its commit leaves the state before (I3, I12)."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from tests.support.store_urls import whole_url
from tests.support.waiting import wait_until

from export_queue import CommitOutcomeUnknown, Store, TransactionError
from export_queue.core.store import schema
from export_queue.core.store.sqlite.transactions import SqliteSteps
from export_queue.core.transactions import expire, prune, take_snapshot

EVERY_WAY = True
fork = multiprocessing.get_context("fork")


def write_all(tx: Any) -> None:
    tx.table("t").set("a", "n", b"killed")
    tx.queue("q").add("a", "killed")


def in_a_child(work: Callable[[], None]) -> int | None:
    """Run in a process of its own; returns how it ended."""
    child = fork.Process(target=work, daemon=True)
    child.start()
    child.join(60)
    assert not child.is_alive(), "the child hangs"
    return child.exitcode


def nothing_is_left(store: Store) -> None:
    with store.transaction() as tx:
        assert tx.table("t").get("a", "n") is None
    assert store.backlog("q") == []
    with store.database.read() as work:
        for table in (schema.cell, schema.entry, schema.conflict_key, schema.active, schema.invalid):
            assert work.connection.execute(table.select()).all() == [], table.name


def is_swept(store: Store) -> bool:
    expire(store.database)  # unless a start has done so before
    with store.database.read() as work:
        return not work.connection.execute(schema.active.select()).all()


def test_a_long_writer_killed_between_flush_and_commit_leaves_nothing(
    store: Store, open_store: Callable[[], Store]
) -> None:
    store.configure_queue("q")
    store.configure_table("t")

    def work() -> None:
        with open_store() as mine, mine.transaction(long=True, timeout=0.2) as tx:
            write_all(tx)
            tx.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_a_child(work) == -signal.SIGKILL
    with store.transaction() as tx:
        assert tx.table("t").get("a", "n") is None
    assert store.backlog("q") == []
    wait_until(lambda: is_swept(store), "the dead transaction was not swept")
    assert prune(store.database) == 1
    assert prune(store.database) == 0  # recovering twice is recovering once
    nothing_is_left(store)


def test_a_short_writer_killed_before_the_commit_leaves_nothing(store: Store, open_store: Callable[[], Store]) -> None:
    store.configure_queue("q")
    store.configure_table("t")

    def work() -> None:
        with open_store() as mine, mine.transaction(timeout=0.2) as tx:
            assert tx.table("t").get("a", "n") is None
            write_all(tx)
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_a_child(work) == -signal.SIGKILL

    def forgotten() -> bool:
        expire(store.database)
        return take_snapshot(store.database).excluded == ()

    wait_until(forgotten, "the id stays in progress")
    nothing_is_left(store)


def test_a_writer_killed_inside_the_commit_of_sqlite_leaves_nothing(sqlite_url: str) -> None:
    with Store.open(sqlite_url) as store:
        store.create()
        store.configure_queue("q")
        store.configure_table("t")

        class Dying(SqliteSteps):
            def _write_cells(self, *arguments: Any) -> None:
                super()._write_cells(*arguments)
                os.kill(os.getpid(), signal.SIGKILL)

        def work() -> None:
            with Store.open(sqlite_url) as mine:
                mine.database.dialect.steps.__class__ = Dying
                with mine.transaction() as tx:
                    write_all(tx)

        assert in_a_child(work) == -signal.SIGKILL
        nothing_is_left(store)


@pytest.fixture
def blocked_commit(postgres_url: str):  # type: ignore[no-untyped-def]
    """A PostgreSQL store whose commits stop half-way, at the entries, until the lock on them is given back."""
    with Store.open(postgres_url) as store, psycopg.connect(postgres_url.replace("+psycopg", "")) as blocker:
        store.create()
        store.configure_queue("q")
        store.configure_table("t")
        blocker.execute("lock table export_queue.xq_entry in exclusive mode")
        yield store, blocker


def is_committing(store: Store) -> int | None:
    with store.database.read() as work:
        return work.connection.execute(
            sa.text(
                "select pid from pg_stat_activity where wait_event_type = 'Lock' and query like '%xq_commit_v1%' "
                "and datname = current_database()"
            )
        ).scalar()


def test_a_session_ended_in_the_middle_of_a_commit_is_decided_truthfully(blocked_commit: Any) -> None:
    store, blocker = blocked_commit
    receiver, sender = fork.Pipe(duplex=False)

    def work() -> None:
        with Store.open(whole_url(store).render_as_string(hide_password=False)) as mine:
            try:
                with mine.transaction() as tx:
                    write_all(tx)
                    sender.send(tx.request)
            except CommitOutcomeUnknown:
                sender.send("unknown")
            except TransactionError as error:
                sender.send(type(error).__name__)
            else:
                sender.send("committed")

    child = fork.Process(target=work, daemon=True)
    child.start()
    request = receiver.recv()
    wait_until(lambda: is_committing(store), "no commit came")
    with store.database.read() as sql:
        sql.connection.execute(sa.text("select pg_terminate_backend(:pid)"), {"pid": is_committing(store)})
    told = receiver.recv()
    child.join(30)
    blocker.rollback()
    assert told == "CommitRefused"
    assert store.outcome(request).status == "refused"
    nothing_is_left(store)


def test_a_client_killed_in_the_middle_of_a_commit_has_committed_as_a_whole_or_not_at_all(blocked_commit: Any) -> None:
    store, blocker = blocked_commit
    receiver, sender = fork.Pipe(duplex=False)

    def work() -> None:
        with (
            Store.open(whole_url(store).render_as_string(hide_password=False)) as mine,
            mine.transaction() as tx,
        ):
            write_all(tx)
            sender.send(tx.request)

    child = fork.Process(target=work, daemon=True)
    child.start()
    request = receiver.recv()
    wait_until(lambda: is_committing(store), "no commit came")
    child.kill()
    child.join(30)
    blocker.rollback()
    committed = store.outcome(request).status == "committed"  # waits for the commit in flight
    with store.transaction() as tx:
        assert (tx.table("t").get("a", "n") == b"killed") == committed
    assert sum(unit.entries for unit in store.backlog("q")) == committed
