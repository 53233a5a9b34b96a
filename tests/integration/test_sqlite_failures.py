"""A SQLite store whose writer is killed, whose disk is full, or whose file is held or sealed by others (I3, I12)."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from tests.support.cuts import fill
from tests.support.waiting import wait_until

from export_queue import Store, StoreError, StoreUnavailable
from export_queue.core.store import schema
from export_queue.core.transactions import expire, prune, take_snapshot

fork = multiprocessing.get_context("fork")


def create(url: str) -> None:
    with Store.open(url) as store:
        store.create()
        store.configure_queue("q")
        store.configure_table("t")


def rows_of(store: Store, name: str) -> tuple[int, int]:
    with store.database.read() as work:
        count = [
            work.connection.scalar(sa.select(sa.func.count()).select_from(table).where(column == name.encode()))
            for table, column in ((schema.cell, schema.cell.c.row_key), (schema.entry, schema.entry.c.key))
        ]
    return (count[0], count[1])


def nothing_in_progress(store: Store) -> None:
    def forgotten() -> bool:
        expire(store.database)
        prune(store.database)
        return take_snapshot(store.database).excluded == ()

    wait_until(forgotten, "an id stays in progress")
    with store.database.read() as work:
        for table in (schema.active, schema.invalid, schema.staged_cell, schema.staged_entry, schema.staged_key):
            assert work.connection.execute(table.select()).all() == [], table.name
        assert work.connection.exec_driver_sql("pragma integrity_check").scalar() == "ok"


def everything(receiver: Any) -> list[Any]:
    """What a child that has ended has told."""
    heard = []
    with receiver:
        while True:
            try:
                heard.append(receiver.recv())
            except EOFError:
                return heard


def commit(store: Store, kind: str, name: str, tell: Callable[[UUID], object], begin: Callable[[], object]) -> None:
    with store.transaction(long=kind == "long", timeout=0.3, idempotency_key=name if kind == "keyed" else None) as tx:
        if kind == "short":
            assert tx.table("t").get(name, "n") is None
        if kind == "long":
            assert tx.id
        tell(tx.request)
        fill(tx, name)
        begin()


def kill_at_statement(url: str, kind: str, name: str, nth: int, sender: Any) -> None:
    """Commit, and die when the n-th statement of the commit begins."""
    armed, count = False, 0

    def trace(statement: str) -> None:
        nonlocal count
        count += armed
        if count == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    def arm() -> None:
        nonlocal armed
        armed = True

    with Store.open(url) as store:
        event.listen(store.database.engine, "connect", lambda raw, record: raw.set_trace_callback(trace))
        commit(store, kind, name, sender.send, arm)
        armed = False
        sender.send("committed")


@pytest.mark.parametrize("kind", ["write_only", "short", "long", "keyed"])
def test_a_writer_killed_at_any_statement_of_its_commit_leaves_all_or_nothing(sqlite_url: str, kind: str) -> None:
    create(sqlite_url)
    killed = 0
    with Store.open(sqlite_url) as store:
        for nth in range(1, 60):
            name = f"{kind}-{nth}"
            receiver, sender = fork.Pipe(duplex=False)
            child = fork.Process(target=kill_at_statement, args=(sqlite_url, kind, name, nth, sender), daemon=True)
            child.start()
            sender.close()
            child.join(60)
            request, *told = everything(receiver)
            found = rows_of(store, name) if kind != "long" else visible(store, name)
            status = store.outcome(request).status
            assert found == ((1, 1) if status == "committed" else (0, 0)), nth
            assert status == "committed" or not told, nth
            assert store.idempotency(name).committed == (status == "committed" and kind == "keyed")
            killed += child.exitcode == -signal.SIGKILL
            if child.exitcode == 0:
                break
        else:
            pytest.fail("the commit never ends")
        assert killed >= 5
        nothing_in_progress(store)


def visible(store: Store, name: str) -> tuple[int, int]:
    with store.transaction() as tx:
        return (int(tx.table("t").get(name, "n") is not None), found_entries(store, name))


def found_entries(store: Store, name: str) -> int:
    excluded = take_snapshot(store.database).excluded
    with store.database.read() as work:
        rows = work.connection.execute(schema.entry.select().where(schema.entry.c.key == name.encode()))
        return sum(row.seq not in excluded for row in rows)


def commit_for_ever(url: str, kind: str, first: str, sender: Any) -> None:
    with Store.open(url) as store:
        number = 0
        while True:
            name = f"{first}-{number}"
            commit(store, kind, name, lambda request, name=name: sender.send((name, request)), lambda: None)  # type: ignore[misc]
            sender.send((name, "committed"))
            number += 1


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(6, marks=pytest.mark.brief),
        pytest.param(100, marks=[pytest.mark.full("a hundred kills"), pytest.mark.timeout(900)]),
    ],
    ids=["few", "many"],
)
def test_a_writer_killed_at_any_moment_has_lost_nothing_that_it_was_told(sqlite_url: str, kills: int) -> None:
    create(sqlite_url)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chosen = random.Random(seed)
    requests: dict[str, UUID] = {}
    told = set()
    for number in range(20 * kills):
        if number >= kills and told:  # where the machine is busy, the first ones may all have died too early
            break
        receiver, sender = fork.Pipe(duplex=False)
        kind = ("write_only", "short", "long")[number % 3]
        child = fork.Process(target=commit_for_ever, args=(sqlite_url, kind, f"{kind}{number}", sender), daemon=True)
        child.start()
        sender.close()
        name, request = receiver.recv()
        requests[name] = request
        time.sleep(chosen.uniform(0, 0.05))  # the moment of the kill, not a wait
        child.kill()
        child.join(60)
        for name, what in everything(receiver):
            if what == "committed":
                told.add(name)
            else:
                requests[name] = what
    with Store.open(sqlite_url) as store:
        for name, request in requests.items():
            status = store.outcome(request).status
            assert status == "committed" or name not in told, name
            assert visible(store, name) == ((1, 1) if status == "committed" else (0, 0)), name
        assert told
        nothing_in_progress(store)
        for name, request in requests.items():  # and stays so
            assert rows_of(store, name) == ((1, 1) if store.outcome(request).status == "committed" else (0, 0)), name


def refuse(store: Store, kind: str, name: str) -> StoreError:
    with pytest.raises(StoreError) as refused:
        commit(store, kind, name, lambda request: None, lambda: None)
    return refused.value


@pytest.mark.parametrize("kind", ["write_only", "short", "long", "keyed"])
def test_a_full_database_refuses_and_says_where_space_is_missing(sqlite_url: str, tmp_path: Path, kind: str) -> None:
    create(sqlite_url)
    with Store.open(sqlite_url) as store:
        limit = None

        def limit_pages(raw: sqlite3.Connection, record: object, proxy: object) -> None:
            raw.execute(f"pragma max_page_count = {limit or 2**30}")

        event.listen(store.database.engine, "checkout", limit_pages)
        limit = 1  # as few as there are
        big = "x" * 900_000
        with pytest.raises(StoreUnavailable) as refused, store.transaction(long=kind == "long") as tx:
            if kind == "short":
                tx.table("t").get("a", "n")
            fill(tx, "a")
            tx.queue("q").add("big", big)
        assert str(tmp_path / "store.db") in refused.value.message
        assert "full" in refused.value.message
        assert "free space" in refused.value.hint
        limit = None
        assert rows_of(store, "a") == (0, 0)
        commit(store, kind, "b", lambda request: None, lambda: None)
        assert rows_of(store, "b") == (1, 1)


@pytest.mark.parametrize("kind", ["write_only", "short", "long"])
def test_a_full_disk_loses_nothing_that_was_committed(small_disk: Path, kind: str) -> None:
    url = f"sqlite:///{small_disk / 'store.db'}"
    create(url)
    committed = []
    with Store.open(url) as store:
        refused = None
        for number in range(1000):
            name = f"{kind}-{number}"
            try:
                with store.transaction(long=kind == "long") as tx:
                    request = tx.request
                    if kind == "short":
                        tx.table("t").get(name, "n")
                    fill(tx, name)
                    tx.queue("q").add("filler", "x" * 20_000)
            except StoreUnavailable as error:
                refused = error
                break
            committed.append(name)
        assert committed
        assert refused is not None
        assert "free space" in refused.hint
        assert str(small_disk) in refused.message
        for each in committed:
            assert rows_of(store, each) == (1, 1)
        libc = ctypes.CDLL(None)
        assert libc.mount(b"tmpfs", str(small_disk).encode(), b"tmpfs", 32, b"size=64m") == 0  # the same, larger
        assert store.outcome(request).status == "refused"
        assert visible(store, name) == (0, 0)
        commit(store, kind, "after", lambda request: None, lambda: None)
        nothing_in_progress(store)  # whatever the refused one could not undo on the full disk
    with Store.open(url) as store:
        for each in [*committed, "after"]:
            assert visible(store, each) == (1, 1)
        assert visible(store, name) == (0, 0)
        with store.database.read() as work:
            assert work.connection.exec_driver_sql("pragma integrity_check").scalar() == "ok"


def test_a_long_transaction_whose_abort_meets_a_full_disk_is_aborted_at_the_first_start_with_room(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export_queue.core.transactions.invalid_ids.EXPIRE_SECONDS", 0)
    url, ballast = f"sqlite:///{small_disk / 'store.db'}", small_disk / "ballast"
    create(url)
    with Store.open(url) as store:
        commit(store, "short", "before", lambda request: None, lambda: None)
        with pytest.raises(KeyError) as caught, store.transaction(long=True) as tx:
            fill(tx, "a")
            tx.queue("q").add("big", "x" * 100_000)
            transaction = int(tx.to_json()["id"])  # and stages it
            free = os.statvfs(small_disk)
            ballast.write_bytes(b"x" * free.f_bavail * free.f_bsize)
            raise KeyError
        assert any("tried again at a later start" in note for note in caught.value.__notes__)
        assert visible(store, "before") == (1, 1), "a full disk keeps nobody from reading"
        assert take_snapshot(store.database).excluded == (transaction,)
        ballast.unlink()
        assert visible(store, "before") == (1, 1)
        assert take_snapshot(store.database).excluded == ()
        assert rows_of(store, "a") == (0, 0)


@pytest.mark.parametrize("ended_by", ["commits", "maintenance"])
def test_a_log_that_a_foreign_reader_made_grow_is_cut_once_it_is_gone(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ended_by: str
) -> None:
    monkeypatch.setattr("export_queue.core.store.sqlite.file.LOG_BYTES", 5 << 20)
    monkeypatch.setattr("export_queue.core.store.sqlite.file.SHRINK_MS", 1)
    create(sqlite_url)
    log = tmp_path / "store.db-wal"

    def write(count: int) -> None:
        for _ in range(count):
            with store.transaction() as tx:
                tx.queue("q").add("k", "x" * 900_000)

    with Store.open(sqlite_url) as store:
        write(12)
        assert log.stat().st_size < 6 << 20
        reader = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
        reader.execute("begin")
        reader.execute("select count(*) from xq_entry").fetchone()
        write(12)
        assert log.stat().st_size > 10 << 20
        store.maintain()
        (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert f"{tmp_path}/store.db has " in warning
        assert "open for reading" in warning
        reader.execute("rollback")
        reader.close()
        if ended_by == "commits":
            write(3)
        else:
            store.maintain()
        assert log.stat().st_size <= 5 << 20
        assert len(caplog.records) == 1


@pytest.mark.parametrize("kind", ["write_only", "short", "long", "keyed"])
def test_a_file_held_by_another_program_is_refused_in_time_with_a_hint(
    sqlite_url: str, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(sqlite_url)
    monkeypatch.setattr("export_queue.core.store.sqlite.file.LOCK_SECONDS", 0.2)
    with Store.open(sqlite_url) as store:
        other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
        other.execute("begin immediate")
        refused = refuse(store, kind, "a")
        assert isinstance(refused, StoreUnavailable)
        assert not refused.sent
        assert str(tmp_path / "store.db") in refused.message
        assert "or another program, holds the file" in refused.hint
        assert rows_of(store, "a") == (0, 0)
        other.execute("rollback")
        other.close()
        commit(store, kind, "b", lambda request: None, lambda: None)
        assert rows_of(store, "b") == (1, 1)


@pytest.fixture
def sealed(tmp_path: Path) -> Iterator[Path]:
    """A store's folder that others may enter and read only."""
    folder = Path(tempfile.mkdtemp(prefix="export-queue-sealed-"))
    create(f"sqlite:///{folder / 'store.db'}")
    with Store.open(f"sqlite:///{folder / 'store.db'}") as store:
        commit(store, "write_only", "a", lambda request: None, lambda: None)
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("kind", ["write_only", "short", "long"])
def test_a_file_that_may_only_be_read_is_named_with_a_hint(sealed: Path, kind: str) -> None:
    receiver, sender = fork.Pipe(duplex=False)

    def work() -> None:
        if os.geteuid() == 0:
            os.seteuid(65534)  # for whom a sealed folder is sealed
        try:
            with Store.open(f"sqlite:///{sealed / 'store.db'}") as store:
                commit(store, kind, "b", lambda request: None, lambda: None)
        except BaseException as error:
            sender.send((type(error).__name__, str(error), getattr(error, "hint", "")))
        else:
            sender.send(("nothing", "", ""))

    child = fork.Process(target=work, daemon=True)
    child.start()
    kind_of_error, message, hint = receiver.recv()
    child.join(60)
    assert kind_of_error in ("StoreError", "StoreUnavailable"), message
    assert str(sealed / "store.db") in message
    assert "writable" in hint


@pytest.mark.parametrize("content", [b"no database at all, only text" * 100, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_file_that_is_no_database_is_named_with_a_hint(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "store.db").write_bytes(content)
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store, pytest.raises(StoreError) as refused:
        store.create()
    assert str(tmp_path / "store.db") in refused.value.message
    assert refused.value.hint


def test_an_interruption_inside_a_statement_reaches_the_caller_and_the_next_one_writes(sqlite_url: str) -> None:
    """SQLAlchemy closes the connection whose statement was interrupted."""
    create(sqlite_url)
    with Store.open(sqlite_url) as store:

        def interrupt(_cursor: Any, statement: str, *_: Any) -> None:
            if statement.startswith("INSERT"):
                event.remove(store.database.engine, "do_execute", interrupt)
                raise KeyboardInterrupt

        event.listen(store.database.engine, "do_execute", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.configure_table("met", conflict="none")
        store.configure_table("met", conflict="none")
        with store.transaction() as tx:
            tx.table("met").set("a", "b", b"1")
