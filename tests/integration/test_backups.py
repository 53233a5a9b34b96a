"""Copies of a SQLite store that are made while others write to it (I3, I12)."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.command_line import run_cli
from tests.support.waiting import PATIENCE, wait_until

from export_queue import (
    ExportQueueError,
    InvalidArgument,
    MemorySink,
    RegistrationLost,
    SinkSpec,
    Store,
    StoreError,
    drain,
)
from export_queue.core.transactions import take_snapshot

fork = multiprocessing.get_context("fork")


@pytest.fixture
def store(sqlite_url: str) -> Iterator[Store]:
    with Store.open(sqlite_url) as opened:
        opened.create()
        opened.configure_queue("q", buckets=8, buckets_per_range=8)
        yield opened


def write(store: Store, number: int) -> None:
    with store.transaction() as tx:
        tx.table("t").set("n", "c", b"%d" % number)
        tx.queue("q").add(f"k{number}", "x" * (number % 900))


def found(path: Path) -> tuple[int, int]:
    """The last number that a store holds, and how many entries it has."""
    with Store.open(f"sqlite:///{path}") as copy:
        with copy.transaction(read_only=True) as tx:
            number = int(tx.table("t").get("n", "c", b"0"))  # type: ignore[arg-type]
        with copy.database.read() as work:
            assert work.connection.exec_driver_sql("pragma integrity_check").scalar() == "ok"
        return number, sum(unit.entries for unit in copy.backlog("q"))


def write_for_ever(url: str, number: Any) -> None:
    with Store.open(url) as store:
        for n in range(1, 10**9):
            write(store, n)
            number.value = n


def test_a_backup_beside_a_writer_holds_exactly_what_was_committed_when_it_began(
    store: Store, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export_queue.core.store.sqlite.backup._PAGES", 20)
    told = fork.Value("q", 0)
    writer = fork.Process(target=write_for_ever, args=(sqlite_url, told), daemon=True)
    writer.start()
    try:
        for n in range(4):
            before = told.value
            wait_until(lambda before=before: told.value > before + 5, "the writer does not write")  # type: ignore[misc]
            acknowledged = told.value
            target = tmp_path / f"copy{n}.db"

            steps = []

            def wait_for_commit(done: int, total: int, steps: list[int] = steps) -> None:
                steps.append(done)
                assert len(steps) < 500, "commits make the copy begin anew, again and again"
                seen = told.value
                wait_until(lambda: told.value > seen, "the writer waits for the backup")

            size = store.backup(target, on_progress=wait_for_commit)
            meanwhile = told.value
            assert len(steps) > 1
            assert target.stat().st_size == size
            number, entries = found(target)
            assert acknowledged <= number == entries <= meanwhile
    finally:
        writer.kill()
        writer.join(PATIENCE)
    assert list(tmp_path.glob(".*partial")) == []


def test_a_backup_has_the_identity_and_the_rights_of_its_store(store: Store, sqlite_url: str, tmp_path: Path) -> None:
    write(store, 7)
    (tmp_path / "store.db").chmod(0o640)
    told = run_cli("backup", str(tmp_path / "copy.db"), url=sqlite_url)
    assert f"copied store {store.id} to {tmp_path}/copy.db" in told
    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o640
    with Store.open(f"sqlite:///{tmp_path}/copy.db") as copy:
        assert copy.identity == store.identity


def test_a_backup_names_the_files_that_are_not_in_it(store: Store, sqlite_url: str, tmp_path: Path) -> None:
    with store.transaction(long=True) as tx:
        tx.queue("q").add_batch(pa.table({"key": ["a", "b"], "value": [1, 2]}))
    told = run_cli("backup", str(tmp_path / "copy.db"), url=sqlite_url)
    (file,) = store.bulk_files()
    assert f"1 files with bulk entries, such as {file}" in told
    with Store.open(f"sqlite:///{tmp_path}/copy.db") as copy:
        assert drain(copy, "q", MemorySink(), sink_name="sink").acknowledged == 2
        assert copy.bulk_files() == []


def test_a_transaction_in_progress_at_the_backup_cannot_commit_a_half_in_the_copy(store: Store, tmp_path: Path) -> None:
    begun = store.begin()
    with store.resume(begun) as tx:
        tx.queue("q").add("first half", 1)
    store.backup(tmp_path / "copy.db")
    with store.resume(begun) as tx:
        tx.queue("q").add("second half", 1)
    with Store.open(f"sqlite:///{tmp_path}/copy.db") as copy:
        with pytest.raises(RegistrationLost):
            copy.commit(begun)
        with copy.transaction() as tx:
            tx.queue("q").add("after", 1)
        assert sum(unit.entries for unit in copy.backlog("q")) == 1
        copy.maintain()
        assert take_snapshot(copy.database).excluded == ()
    store.commit(begun)
    assert sum(unit.entries for unit in store.backlog("q")) == 2


def test_a_backup_tells_how_far_it_is(store: Store, tmp_path: Path) -> None:
    with store.transaction() as tx:
        for n in range(10):
            tx.queue("q").add(f"big{n}", "x" * 1_000_000)
    told: list[tuple[int, int]] = []
    size = store.backup(tmp_path / "copy.db", on_progress=lambda done, total: told.append((done, total)))
    assert len(told) > 2
    assert told == sorted(told)
    assert told[-1] == (size, size)


def back_up_and_die(url: str, target: Path) -> None:
    with Store.open(url) as store:
        store.backup(target, on_progress=lambda done, total: os.kill(os.getpid(), signal.SIGKILL))


def test_a_backup_that_is_killed_leaves_nothing_under_its_name(store: Store, sqlite_url: str, tmp_path: Path) -> None:
    write(store, 1)
    target = tmp_path / "copy.db"
    child = fork.Process(target=back_up_and_die, args=(sqlite_url, target))
    child.start()
    child.join(PATIENCE)
    assert child.exitcode == -signal.SIGKILL
    assert not target.exists()
    store.backup(target)
    assert found(target) == (1, 1)


def test_a_backup_that_fails_leaves_no_file(store: Store, tmp_path: Path) -> None:
    def give_up(done: int, total: int) -> None:
        raise KeyboardInterrupt

    before = set(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        store.backup(tmp_path / "copy.db", on_progress=give_up)
    assert set(tmp_path.iterdir()) == before


def test_a_backup_on_a_full_disk_says_so_and_leaves_no_file(store: Store, small_disk: Path) -> None:
    with store.transaction() as tx:
        for n in range(4):
            tx.queue("q").add(f"big{n}", "x" * 1_000_000)
    with pytest.raises(ExportQueueError, match="full") as refused:
        store.backup(small_disk / "copy.db")
    assert str(small_disk) in str(refused.value)
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize("there", ["copy.db", "copy.db-wal", "copy.db-journal"])
def test_a_backup_takes_the_place_of_no_file(store: Store, sqlite_url: str, tmp_path: Path, there: str) -> None:
    """SQLite would take a log that lies beside the copy for a part of it."""
    (tmp_path / there).write_text("not to be lost")
    said = run_cli("backup", str(tmp_path / "copy.db"), url=sqlite_url, status=1)
    assert f"{tmp_path / there}: the file exists" in said
    assert (tmp_path / there).read_text() == "not to be lost"


def test_a_backup_that_another_one_was_quicker_than_takes_the_place_of_no_file(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    with pytest.raises(StoreError, match="exists"):
        store.backup(target, on_progress=lambda done, total: target.write_text("the other's"))
    assert target.read_text() == "the other's"


def test_a_backup_into_a_folder_that_is_not_there_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no folder"):
        store.backup(tmp_path / "mistyped" / "copy.db")


def test_a_store_on_postgresql_is_left_to_its_own_tools() -> None:
    url = "postgresql+psycopg://user@host/database"
    with Store.open(url) as store, pytest.raises(InvalidArgument, match="pg_basebackup or pg_dump") as refused:
        store.backup("copy.db")
    assert "docs/backups.md" in refused.value.hint
    assert "pg_dump" in run_cli("backup", "copy.db", url=url, status=1)


def test_a_store_that_was_restored_from_a_backup_goes_on_and_is_made_even_with_its_sink(
    store: Store, tmp_path: Path
) -> None:
    spec = SinkSpec("sql", {"url": f"sqlite:///{tmp_path}/sink.db", "table": "copies"})
    write(store, 1)
    drain(store, "q", spec)
    write(store, 2)
    store.backup(tmp_path / "backup.db")
    write(store, 3)
    drain(store, "q", spec)
    store.close()
    for name in ("", "-wal", "-shm"):
        (tmp_path / f"store.db{name}").unlink(missing_ok=True)
    shutil.copy(tmp_path / "backup.db", tmp_path / "store.db")
    assert drain(store, "q", spec).acknowledged == 1, "what waited at the backup is sent again"
    with contextlib.closing(sqlite3.connect(tmp_path / "sink.db")) as sink:
        ids = "select id from copies_live order by id"
        assert sink.execute(ids).fetchall() == [("k1",), ("k2",), ("k3",)], "the sink is ahead of the store"
        with store.transaction() as tx:  # what the store holds is loaded anew, what it does not hold is deleted
            for key, value in (("k1", "new"), ("k2", "new"), ("k3", None)):
                tx.queue("q").add(key, value)
        assert drain(store, "q", spec).written == 3
        assert sink.execute(ids).fetchall() == [("k1",), ("k2",)]
