"""Many ids in progress or invalid: a process knows them from its last snapshot, and is told what has changed (I1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.test_transactions import read, write
from tests.support.waiting import wait_until

from export_queue import Store
from export_queue.core.store import ServerSnapshot
from export_queue.core.store.postgresql import calls
from export_queue.core.transactions import prune

pytestmark = pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)


def staged(store: Store, row: str) -> dict[str, Any]:
    """Begin a long transaction with a staged cell."""
    value = store.begin()
    with store.resume(value) as tx:
        tx.table("t").set(row, "n", b"staged")
    return value


def number_of(value: dict[str, Any]) -> int:
    return int(value["id"])


def excluded(store: Store) -> tuple[int, ...]:
    """Take a snapshot as a transaction does that has no id."""
    with store.database.connect() as connection:
        begun = store.database.dialect.steps.begin(connection)
    assert isinstance(begun.snapshot, ServerSnapshot)
    return begun.snapshot.excluded


def forget_changes(store: Store, most: int = 0) -> None:
    """Forget all changes, as soon as no SQL transaction of the whole server is older than they are."""

    def forgotten() -> bool:
        with store.database.begin() as work:
            work.connection.exec_driver_sql(f"select export_queue.xq_forget_changes_v1({most})")
        return count_changes(store) <= most

    wait_until(forgotten, "the changes stay")


def count_changes(store: Store) -> int:
    with store.database.read() as work:
        return int(work.connection.exec_driver_sql("select count(*) from export_queue.xq_change").scalar_one())


def test_ids_that_come_and_go_between_two_snapshots_are_excluded_while_they_are_there(store: Store) -> None:
    write(store, "a", b"1")
    assert excluded(store) == ()
    first, second = staged(store, "a"), staged(store, "b")
    assert excluded(store) == (number_of(first), number_of(second))
    with store.transaction() as tx:
        before = tx.table("t").get("a", "n")  # the staged version is the newest in the server's snapshot
        store.abort(first)
        store.commit(second)
        assert tx.table("t").get("b", "n") is None
    assert before == b"1"
    assert excluded(store) == ()
    assert read(store, "b") == b"staged"


def test_changes_that_are_not_visible_yet_come_with_a_later_snapshot(store: Store) -> None:
    first = staged(store, "a")
    assert excluded(store) == (number_of(first),)
    with store.database.begin() as work:
        # SQL transactions end in another order than they begin.
        work.connection.exec_driver_sql(f"delete from export_queue.xq_active where id = {number_of(first)}")
        second = staged(store, "b")
        assert excluded(store) == (number_of(first), number_of(second))
        assert excluded(store) == (number_of(first), number_of(second))
    assert excluded(store) == (number_of(second),)


def test_a_process_whose_changes_have_been_forgotten_reads_all_ids(
    store: Store, open_store: Callable[[], Store]
) -> None:
    with open_store() as other:
        gone = staged(store, "a")
        assert excluded(store) == excluded(other) == (number_of(gone),)
        store.abort(gone)
        here = staged(store, "b")
        forget_changes(store)
        assert excluded(other) == (number_of(here),)
        assert excluded(store) == (number_of(here),)
        store.abort(here)
        assert excluded(store) == excluded(other) == ()


def test_many_cells_that_are_staged_by_others_are_read_in_two_statements(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [(f"row{i}", "n") for i in range(50)]
    with store.transaction() as tx:
        for row, column in cells:
            tx.table("t").set(row, column, b"1")
    with store.resume(store.begin()) as tx:
        for row, column in cells[::2]:
            tx.table("t").set(row, column, b"staged")
    statements: list[bytes] = []
    rows = calls.rows

    def counted(connection: Any, statement: bytes, arguments: Any = ()) -> Any:
        statements.append(statement)
        return rows(connection, statement, arguments)

    monkeypatch.setattr(calls, "rows", counted)
    with store.transaction(read_only=True) as tx:
        assert set(tx.table("t").get_many(cells).values()) == {b"1"}
    assert len([one for one in statements if b"unnest" in one]) == 2


def test_clean_up_keeps_few_changes(store: Store) -> None:
    for _ in range(3):
        store.abort(staged(store, "a"))
    assert count_changes(store) == 6
    prune(store.database)
    assert count_changes(store) == 6
    forget_changes(store, most=5)


def test_a_snapshot_reads_no_ids_that_its_process_knows(store: Store) -> None:
    staged(store, "a")
    excluded(store)
    known = store.database.dialect.steps._excluded.ids  # type: ignore[attr-defined]
    assert excluded(store) is known
    write(store, "b", b"1")
    assert excluded(store) is known
