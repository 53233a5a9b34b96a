"""Where a SQLite store's file is: found again, never made by chance, never silently another one."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_line import run_cli
from tests.support.waiting import PATIENCE, wait_until

from export_queue import InvalidArgument, Store, StoreError, StoreNotCreated, StoreSpec
from export_queue.core.store.sqlite.filelock import FileLock


def test_a_relative_path_is_the_same_file_after_a_change_of_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, elsewhere = tmp_path / "there", tmp_path / "elsewhere"
    there.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(there)
    with Store.open("sqlite:///exports.db") as store:
        store.create()
        spec = StoreSpec(url="sqlite:///exports.db").to_json()
        store.database.forget_connections()
        monkeypatch.chdir(elsewhere)
        with store.transaction() as tx:
            tx.table("t").set("a", "b", b"1")
        assert store.url_safe == f"sqlite:///{there}/exports.db"
    with Store.open(StoreSpec.from_json(spec)) as store, store.transaction(read_only=True) as tx:
        assert tx.table("t").get("a", "b") == b"1"
    assert list(elsewhere.iterdir()) == []


def test_all_links_to_a_file_have_one_queue_of_writers(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "store.db")
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        store.create()
    with Store.open(f"sqlite:///{tmp_path}/link.db") as store, store.transaction() as tx:
        tx.table("t").set("a", "b", b"1")
    assert not (tmp_path / "link.db.lock").exists()
    with FileLock(str(tmp_path / "store.db.lock"), seconds=PATIENCE):
        pass


class TimedOut(Exception):
    """A plain exception, as that of a handler of signals."""


class TimedOutByKey(KeyError):
    """One of the kind that Python itself raises there."""


@pytest.mark.parametrize("kind", [TimedOut, TimedOutByKey])
def test_an_interruption_of_a_writer_that_gets_in_line_comes_out_as_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    begin = threading._start_new_thread  # type: ignore[attr-defined]

    def begin_and_stop(*arguments: Any) -> None:
        begin(*arguments)
        wait_until(lambda: not threading._limbo, "the thread did not begin")  # type: ignore[attr-defined]
        raise kind

    side = str(tmp_path / "lock")
    with FileLock(side, seconds=PATIENCE), monkeypatch.context() as patch:
        patch.setattr(threading, "_start_new_thread", begin_and_stop)
        with pytest.raises(kind), FileLock(side, seconds=PATIENCE):
            pass
    with FileLock(side, seconds=PATIENCE):
        pass


@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_commit_into_a_file_that_is_gone_is_refused(sqlite_url: str, *, replaced: bool, in_transaction: bool) -> None:
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    with Store.open(sqlite_url) as store:
        store.create()
        store.configure_queue("q")
        with store.transaction() as tx:
            tx.queue("q").add("a", 1)
        with sqlite3.connect(path) as source, sqlite3.connect(path.with_suffix(".copy")) as copy:
            source.backup(copy)
        source.close()
        copy.close()

        def lose_the_file() -> None:
            for name in ("", "-wal", "-shm"):
                Path(f"{path}{name}").unlink(missing_ok=True)
            if replaced:
                path.with_suffix(".copy").rename(path)

        with pytest.raises(StoreError, match="deleted or replaced"):
            if not in_transaction:
                lose_the_file()
            with store.transaction() as tx:
                tx.table("t").get("a", "b")
                lose_the_file()
                tx.queue("q").add("b", 1)
        with pytest.raises(StoreError, match="deleted or replaced"):
            store.backlog("q")
        store.close()
        if replaced:
            assert [unit.entries for unit in store.backlog("q")] == [1]
        else:
            with pytest.raises(StoreNotCreated, match="there is no such file"):
                store.backlog("q")
            assert not path.exists()
            store.create()
            assert path.exists()


def test_only_the_creation_makes_folders_and_files(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/mistyped/store.db"
    assert "there is no such file" in run_cli("status", url=url, status=1)
    with Store.open(url) as store:
        with pytest.raises(StoreNotCreated, match="there is no such file"):
            store.queues()
        with pytest.raises(StoreNotCreated, match="there is no such file"):
            store.maintain()
        assert list(tmp_path.iterdir()) == []
        store.create()
        assert store.queues() == []


def test_a_look_at_another_programs_file_leaves_it_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "foreign.db"
    with sqlite3.connect(path) as foreign:
        foreign.execute("create table theirs (one int)")
    foreign.close()
    before = path.read_bytes()
    assert "holds no store" in run_cli("status", url=f"sqlite:///{path}", status=1)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_store_whose_log_another_program_has_switched_off_has_it_again(sqlite_url: str) -> None:
    with Store.open(sqlite_url) as store:
        store.create()
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as foreign:
        assert foreign.execute("pragma journal_mode = delete").fetchone() == ("delete",)
    foreign.close()
    with Store.open(sqlite_url) as store, store.database.read() as work:
        assert work.connection.exec_driver_sql("pragma journal_mode").scalar() == "wal"


def test_a_store_in_memory_is_refused_in_each_spelling() -> None:
    for url in ("sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&cache=shared&uri=true"):
        with pytest.raises(InvalidArgument, match="the path of a file"):
            Store.open(url)
