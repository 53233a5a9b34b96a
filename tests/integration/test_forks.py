"""A store that was opened before a fork, as under gunicorn, celery or multiprocessing (I1, I2, I12)."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine.base import RootTransaction
from tests.support.waiting import PATIENCE, wait_until

from export_queue import Store, StoreError, TransactionContext, TransactionEnded
from export_queue.core.store.sqlite.filelock import FileLock

fork = multiprocessing.get_context("fork")


@contextlib.contextmanager
def forked(target: Callable[[], object]) -> Iterator[BaseProcess]:
    """Run a function in a forked child, which is killed at the end of the block if it still lives."""
    child = fork.Process(target=target, daemon=True)
    child.start()
    try:
        yield child
    finally:
        child.kill()
        child.join(PATIENCE)


def is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_a_child_that_was_forked_under_the_write_lock_does_not_keep_it(tmp_path: Path) -> None:
    side = tmp_path / "lock"
    lock = FileLock(str(side), seconds=PATIENCE)
    with lock:
        child = fork.Process(target=signal.pause, daemon=True)
        child.start()
        assert is_locked(side)
    assert not is_locked(side)
    child.kill()
    child.join(PATIENCE)


def test_a_turn_that_came_too_late_frees_the_write_lock_beside_a_child(tmp_path: Path) -> None:
    side = tmp_path / "lock"
    with FileLock(str(side), seconds=PATIENCE):
        with pytest.raises(StoreError, match="has held the write lock"), FileLock(str(side), seconds=0.01):
            pass
        child = fork.Process(target=signal.pause, daemon=True)
        child.start()
    wait_until(lambda: not is_locked(side), "the lock is held by a child that never took it")
    child.kill()
    child.join(PATIENCE)


def test_the_write_lock_of_a_killed_process_is_free_although_its_child_lives(tmp_path: Path) -> None:
    side = tmp_path / "lock"
    receiver, sender = fork.Pipe(duplex=False)

    def hold_and_fork() -> None:
        with FileLock(str(side), seconds=PATIENCE):
            pid = os.fork()
            if pid == 0:
                sender.send(os.getpid())
                signal.pause()
            signal.pause()

    with forked(hold_and_fork) as holder:
        assert receiver.poll(PATIENCE)
        grandchild = receiver.recv()
        try:
            assert is_locked(side)
            holder.kill()
            wait_until(lambda: not holder.is_alive(), "the holder outlives its kill")
            assert not is_locked(side), "the lock outlives its holder"
        finally:
            os.kill(grandchild, signal.SIGKILL)


def test_a_child_that_leaves_the_locked_block_frees_nothing(tmp_path: Path) -> None:
    side = tmp_path / "lock"
    with FileLock(str(side), seconds=PATIENCE) as lock:
        with forked(lambda: lock.__exit__(None, None, None)) as child:
            child.join(PATIENCE)
            assert child.exitcode == 0
        assert is_locked(side)


def test_a_connection_of_a_child_keeps_the_log_of_a_file_that_its_parent_closes(sqlite_url: str) -> None:
    """SQLite takes the locks of inherited connections for the child's own, which the kernel does not."""
    log = Path(sqlite_url.removeprefix("sqlite:///") + "-wal")
    with Store.open(sqlite_url) as store:
        store.create()
        store.configure_queue("q")
        assert store.queues()
        receiver, sender = fork.Pipe(duplex=False)

        def look() -> None:
            with store.database.read():
                store.queues()
                sender.send("open")
                signal.pause()

        with forked(look):
            assert receiver.poll(PATIENCE)
            assert receiver.recv() == "open"
            with store.transaction() as tx:
                tx.queue("q").add("a", 1)
            store.close()
            assert log.exists()


@pytest.mark.postgres
def test_a_session_ends_with_its_process_although_a_child_lives(postgres_url: str) -> None:
    """Else the transaction in progress stays in progress, and holds the horizon, for as long as the child lives."""
    with Store.open(postgres_url) as store:
        store.create()
    receiver, sender = fork.Pipe(duplex=False)

    def read_and_fork() -> None:
        with Store.open(postgres_url) as own, own.transaction() as tx:
            tx.table("t").get("a", "n")
            with own.database.read() as work:
                work.connection.exec_driver_sql("set application_name = 'a parent'")
                if os.fork() == 0:
                    sender.send(os.getpid())
                    signal.pause()
                signal.pause()

    with (
        forked(read_and_fork) as parent,
        psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as other,
    ):
        assert receiver.poll(PATIENCE)
        grandchild = receiver.recv()

        def sessions() -> int:
            row = other.execute(
                "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
            ).fetchone()
            assert row
            return int(row[0])

        try:
            assert sessions() >= 1
            parent.kill()
            wait_until(lambda: sessions() == 0, "a session outlives its process")
        finally:
            os.kill(grandchild, signal.SIGKILL)


def test_a_transaction_is_refused_in_a_forked_child_and_goes_on_in_its_parent(store: Store) -> None:
    store.configure_queue("q")
    answers = fork.Queue()

    def use(tx: TransactionContext) -> None:
        try:
            tx.table("t").get("a", "n")
        except TransactionEnded as error:
            answers.put(f"belongs to process {os.getppid()}" in str(error))
        answers.put([queue.id for queue in store.queues()])

    transaction = store.transaction()
    tx = transaction.__enter__()
    assert tx.table("t").get("a", "n") is None

    def leave() -> None:
        use(tx)
        with contextlib.suppress(TransactionEnded):
            transaction.__exit__(None, None, None)
        answers.put("left")

    tx.queue("q").add("a", 1)
    with forked(leave) as child:
        heard = [answers.get(timeout=PATIENCE) for _ in range(3)]
        child.join(PATIENCE)
    assert heard == [True, ["q"], "left"]
    assert tx.table("t").get("b", "n") is None
    transaction.__exit__(None, None, None)
    assert [unit.entries for unit in store.backlog("q")] == [1]


def test_a_child_that_was_forked_during_a_read_of_the_file_is_refused_and_told_why(sqlite_url: str) -> None:
    refused, served = fork.Queue(), fork.Queue()  # one each: a child that is killed may leave its queue locked

    def look(answers: Any) -> None:
        try:
            answers.put(store.queues())
        except StoreError as error:
            answers.put(str(error))

    with Store.open(sqlite_url) as store:
        store.create()
        with store.database.read(), forked(lambda: look(refused)):
            assert "SQLite's locks cannot be inherited" in refused.get(timeout=PATIENCE)
        with forked(lambda: look(served)):
            assert served.get(timeout=PATIENCE) == []


def test_a_child_that_was_forked_while_a_thread_opened_a_connection_is_refused_and_does_not_hang(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's own locks would be locked in the child for ever, by a thread that the child does not have."""
    opening, opened = threading.Event(), threading.Event()
    with Store.open(sqlite_url) as store:
        store.create()
        store.database.forget_connections()
        connect = store.database.engine.raw_connection

        def slowly() -> Any:
            opening.set()
            assert opened.wait(PATIENCE)
            return connect()

        monkeypatch.setattr(store.database.engine, "raw_connection", slowly)
        receiver, sender = fork.Pipe(duplex=False)
        reader = threading.Thread(target=lambda: store.run(lambda tx: tx.table("t").get("a", "n")))
        reader.start()
        assert opening.wait(PATIENCE)
        monkeypatch.undo()

        def look() -> None:
            with pytest.raises(StoreError) as refusal:
                store.queues()
            sender.send(str(refusal.value))

        with forked(look):
            opened.set()
            assert receiver.poll(PATIENCE)
            assert "this process was forked while a connection of its parent was using the file" in receiver.recv()
            reader.join(PATIENCE)
        assert store.queues() == []


def test_the_open_connection_of_a_parent_is_not_the_childs(postgres_url: str) -> None:
    with Store.open(postgres_url) as store:
        store.create()
        with store.database.read() as work:
            raw = work.connection.connection.driver_connection
            assert isinstance(raw, psycopg.Connection)
            own = raw.fileno()
            answers = fork.Queue()
            with forked(lambda: answers.put(str(Path(f"/proc/self/fd/{own}").readlink()))):
                assert answers.get(timeout=PATIENCE) == os.devnull
            assert store.queues() == []


def test_an_alarm_while_a_connection_is_given_back_arrives_as_itself(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLAlchemy asserts after it that its transaction has ended."""

    class Alarm(Exception):
        pass

    def ring(*_: Any) -> None:
        raise Alarm

    def interrupted(transaction: Any) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(RootTransaction, "_deactivate_from_connection", interrupted)
            with pytest.raises(Alarm), store.database.read() as work:
                work.now()
                work.connection.execute(sa.text("select 1"))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert store.database.pool._lent == {}, "a fork would wait for it"
    with store.transaction() as tx:
        tx.table("t").set("a", "n", b"1")


def test_an_alarm_while_a_transaction_gives_its_connection_back_leaves_no_loan(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> bool:
        raise KeyboardInterrupt

    with store.transaction() as tx:
        tx.table("t").set("a", "n", b"1")
    with monkeypatch.context() as patch:
        patch.setattr(type(store.database.dialect.driver), "is_idle", interrupted)
        with contextlib.suppress(KeyboardInterrupt), store.transaction() as tx:
            tx.table("t").set("a", "n", b"2")
    assert store.database.pool._lent == {}, "a fork would wait for it"
