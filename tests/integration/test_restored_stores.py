"""A process outlives a restore of its store, or its being created anew: it writes nowhere else (I3, I6)."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.support.servers import find_postgres_programs

from export_queue import Store, StoreReplaced, UnknownQueue
from export_queue.core.store import schema
from export_queue.core.store.creation import create

EVERY_WAY = True

Restore = Callable[[], None]


def back_up(url: str, folder: Path) -> Restore:
    """Back a store up with its database's own tool; returns the function that restores it in its place."""
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        copy(path, str(folder / "backup.db"))
        return lambda: copy(str(folder / "backup.db"), path)
    parsed = sa.make_url(url)
    address = ["-h", str(parsed.host), "-p", str(parsed.port), "-U", str(parsed.username)]
    environment = {**os.environ, "PGPASSWORD": str(parsed.password)}
    programs = find_postgres_programs()
    if not (programs / "pg_dump").exists():
        pytest.skip(f"{programs} has no pg_dump")
    backup = subprocess.run(
        [programs / "pg_dump", *address, "-n", "export_queue", str(parsed.database)],
        env=environment,
        capture_output=True,
        check=True,
    ).stdout

    def restore() -> None:
        script = b"drop schema export_queue cascade;\n" + backup
        command = [programs / "psql", "-q", "-v", "ON_ERROR_STOP=1", *address, str(parsed.database)]
        subprocess.run(command, env=environment, input=script, capture_output=True, check=True)

    return restore


def copy(source: str, target: str) -> None:
    with contextlib.closing(sqlite3.connect(source)) as one, contextlib.closing(sqlite3.connect(target)) as two:
        one.backup(two)


def create_anew(store: Store) -> None:
    with store.database.begin() as work:
        if work.connection.dialect.name == "postgresql":
            work.connection.exec_driver_sql("drop schema export_queue cascade")
        else:
            schema.metadata.drop_all(work.connection)
    create(store.database)


def entries(store: Store) -> dict[str, int]:
    return {queue.id: sum(unit.entries for unit in store.backlog(queue.id)) for queue in store.queues()}


@pytest.fixture
def other(open_store: Callable[[], Store]) -> Iterator[Store]:
    """Another process's store."""
    with open_store() as opened:
        yield opened


def test_a_process_that_outlives_a_restore_writes_into_no_other_queue(
    store: Store, other: Store, store_url: str, tmp_path: Path
) -> None:
    store.configure_queue("customers")
    restore = back_up(store_url, tmp_path)
    store.configure_queue("orders")
    with store.transaction() as tx:
        tx.queue("orders").add("o1", 1)
    restore()
    other.configure_queue("invoices")
    with pytest.raises(StoreReplaced), store.transaction() as tx:
        tx.queue("orders").add("o2", 2)
    assert entries(other) == {"customers": 0, "invoices": 0}
    with pytest.raises(UnknownQueue), store.transaction() as tx:
        tx.queue("orders").add("o2", 2)
    other.configure_queue("orders")
    with store.transaction() as tx:
        tx.queue("orders").add("o2", 2)
    assert entries(other) == {"customers": 0, "invoices": 0, "orders": 1}


@pytest.mark.parametrize("adopts", [False, True])
def test_a_process_that_outlives_a_restore_sees_nothing_of_transactions_that_its_backup_holds(
    store: Store, other: Store, store_url: str, tmp_path: Path, *, adopts: bool
) -> None:
    """It knows them as ended, and they are in progress again."""
    other.run(lambda tx: tx.table("t").set("a", "n", b"committed"))
    staged = other.begin()
    with other.resume(staged) as tx:
        tx.table("t").set("a", "n", b"staged")
    restore = back_up(store_url, tmp_path)
    other.abort(staged)
    assert seen(store) == b"committed"
    restore()
    if adopts:
        other.adopt()
    assert seen(store) == b"committed"
    if not adopts:
        other.abort(staged)
    other.maintain()
    assert seen(store) == b"committed"


def seen(store: Store) -> bytes | None:
    with store.transaction(read_only=True) as tx:
        value: bytes | None = tx.table("t").get("a", "n")
        return value


def test_a_process_that_outlives_a_restore_writes_into_no_other_table(
    store: Store, other: Store, store_url: str, tmp_path: Path
) -> None:
    restore = back_up(store_url, tmp_path)
    with store.transaction() as tx:
        tx.table("stock").set("x", "n", b"1")
    restore()
    other.configure_table("audit")
    # The function is run again: it reads the options of its table anew.
    store.run(lambda tx: tx.table("stock").set("x", "n", b"2"))
    with other.transaction(read_only=True) as tx:
        assert list(tx.table("audit").scan()) == []
        assert tx.table("stock").get("x", "n") == b"2"


def test_a_process_whose_store_was_created_anew_writes_into_the_new_one_by_name(store: Store, other: Store) -> None:
    store.configure_queue("orders")
    with store.transaction() as tx:
        tx.queue("orders").add("o1", 1)
    before = store.id
    create_anew(other)
    other.configure_queue("salaries")
    other.configure_queue("orders")
    with pytest.raises(StoreReplaced), store.transaction() as tx:
        tx.queue("orders").add("o2", 2)
    store.run(lambda tx: tx.queue("orders").add("o3", 3))
    assert entries(other) == {"salaries": 0, "orders": 1}
    assert before != store.id == other.id


def test_a_flush_into_another_store_is_refused(store: Store, store_url: str, tmp_path: Path) -> None:
    value = store.begin()
    restore = back_up(store_url, tmp_path)
    with pytest.raises(StoreReplaced), store.resume(value) as tx:
        tx.table("stock").set("x", "n", b"1")
        restore()
    store.abort(value)
    with store.transaction(read_only=True) as tx:
        assert tx.table("stock").get("x", "n") is None


def test_an_observer_that_outlives_a_restore_is_called(
    store: Store, other: Store, store_url: str, tmp_path: Path
) -> None:
    restore = back_up(store_url, tmp_path)
    seen: list[bytes] = []
    store.observe("stock", "n", lambda tx, row, column: seen.append(row))
    restore()
    assert store.process_notifications().done == 0
    other.run(lambda tx: tx.table("stock").set("x", "n", b"1"))
    assert store.process_notifications().done == 1
    assert seen == [b"x"]
