"""Checkpoints and what each level shows of a transaction's own writes (I1, I3, I4)."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from tests.integration.test_transactions import begin, read, wait_past, write
from tests.support.contexts import catalogue_of, context_of, opened_by

from export_queue import (
    ConflictError,
    InvalidArgument,
    Level,
    Range,
    RegistrationLost,
    Store,
    TransactionContext,
    TransactionEnded,
)
from export_queue.core.queue import read_entries
from export_queue.core.store import Span, schema
from export_queue.core.transactions import OpenTransaction, expire, prune, scan_cells, take_snapshot

KINDS = pytest.mark.parametrize("kind", ["short", "long"])


def put(tx: TransactionContext, value: bytes, row: str = "a") -> None:
    tx.table("t").set(row, "n", value)


def get(tx: TransactionContext, level: Level, row: str = "a") -> bytes | None:
    tx.level = level
    return tx.table("t").get(row, "n")


@KINDS
def test_each_level_shows_its_part_of_the_own_writes(store: Store, kind: str) -> None:
    write(store, "a", b"old")
    tx = begin(store, kind=kind)
    put(tx, b"1")
    assert get(tx, Level.SNAPSHOT_EXCLUDE_CURRENT) == b"old"
    tx.checkpoint()
    assert get(tx, Level.SNAPSHOT_EXCLUDE_CURRENT) == b"1"
    put(tx, b"2")
    assert get(tx, Level.SNAPSHOT) == b"2"
    assert get(tx, Level.SNAPSHOT_EXCLUDE_CURRENT) == b"1"
    tx.level = Level.SNAPSHOT_ALL
    assert tx.table("t").get("a", "n") == b"2"
    assert tx.table("t").versions("a", "n") == [b"2", b"1", b"old"]
    tx.level = Level.SNAPSHOT
    assert tx.table("t").versions("a", "n") == [b"2"]
    opened_by(tx).commit()
    assert read(store, "a") == b"2"


@KINDS
def test_scans_and_many_cells_follow_the_level(store: Store, kind: str) -> None:
    write(store, "a", b"old")
    write(store, "b", b"old")
    tx = begin(store, kind=kind)
    put(tx, b"1")
    tx.checkpoint()
    tx.table("t").delete("b", "n")
    put(tx, b"2", row="c")
    for level, expected in (
        (Level.SNAPSHOT, {b"a": b"1", b"c": b"2"}),
        (Level.SNAPSHOT_EXCLUDE_CURRENT, {b"a": b"1", b"b": b"old"}),
    ):
        tx.level = level
        assert {row: value for row, _, value in tx.table("t").scan()} == expected
        many = tx.table("t").get_many([("a", "n"), ("b", "n"), ("c", "n")])
        assert {row: value for (row, _), value in many.items()} == expected
    opened_by(tx).abort()
    assert (read(store, "a"), read(store, "b"), read(store, "c")) == (b"old", b"old", None)


def test_work_that_reads_what_it_changes_may_flush_behind_a_checkpoint(store: Store) -> None:
    """Each row begets one behind it, which a later page would show."""
    for row in "adg":
        write(store, row, b"old")
    tx = begin(store, kind="long")
    tx.checkpoint()
    tx.level = Level.SNAPSHOT_EXCLUDE_CURRENT
    seen = []
    number = catalogue_of(store).table("t").number
    for row, _, _ in scan_cells(opened_by(tx), number, Span(), page=1):
        seen.append(row)
        put(tx, b"new", row=chr(row[0] + 1))
        tx.flush()
    assert seen == [b"a", b"d", b"g"]
    opened_by(tx).commit()
    with store.transaction() as after:
        assert [row for row, _, _ in after.table("t").scan()] == [b"a", b"b", b"d", b"e", b"g", b"h"]


@KINDS
def test_a_delete_is_a_version_too(store: Store, kind: str) -> None:
    tx = begin(store, kind=kind)
    put(tx, b"1")
    tx.checkpoint()
    tx.table("t").delete("a", "n")
    tx.level = Level.SNAPSHOT_ALL
    assert tx.table("t").versions("a", "n") == [None, b"1"]
    assert tx.table("t").get("a", "n") is None
    opened_by(tx).commit()
    assert read(store, "a") is None


@KINDS
def test_nobody_sees_any_version_before_the_commit_and_all_go_with_an_abort(store: Store, kind: str) -> None:
    store.configure_queue("q")
    tx = begin(store, kind=kind)
    for value in (b"1", b"2"):
        put(tx, value, row=value.decode())
        tx.queue("q").add(value.decode(), {})
        if kind == "long":
            tx.flush()
        tx.checkpoint()
    assert (read(store, "1"), read(store, "2"), store.backlog("q")) == (None, None, [])
    opened_by(tx).abort()
    assert (read(store, "1"), read(store, "2"), store.backlog("q")) == (None, None, [])
    assert take_snapshot(store.database).excluded == ()


def test_what_commits_after_a_checkpointed_transaction_has_a_greater_sequence(store: Store) -> None:
    """A blind write that draws its id between the two pointers must not commit behind the later one."""
    tx = begin(store, kind="long")
    _ = tx.id
    put(tx, b"first")
    late = OpenTransaction(store.database)
    own = late.value.id  # between the two write pointers
    tx.checkpoint()
    put(tx, b"second")
    tx_pointers = opened_by(tx).value.write_pointers
    assert tx_pointers[0] < own < tx_pointers[1]
    opened_by(tx).commit()
    with store.database.read() as work:
        assert list(work.connection.scalars(sa.select(schema.conflict_key.c.writer))) == [tx_pointers[1]]
    context_of(store, late).table("t").set("a", "n", b"lost")
    with pytest.raises(ConflictError):
        late.commit()
    write(store, "a", b"third")
    assert read(store, "a") == b"third"


def test_a_checkpoint_in_another_process_is_taken_over(store: Store) -> None:
    store.configure_queue("q")
    value = store.begin()
    with store.resume(value) as tx:
        put(tx, b"here")
    with store.resume(value) as other:
        other.checkpoint()
        put(other, b"there")
        other.queue("q").add("k", {})
    with store.resume(value) as tx:
        assert tx.table("t").get("a", "n") == b"there"
        tx.level = Level.SNAPSHOT_EXCLUDE_CURRENT
        assert tx.table("t").get("a", "n") == b"here"
    assert read(store, "a") is None
    committed = store.commit(value)
    assert store.commit(value) == committed
    assert read(store, "a") == b"there"
    assert sum(unit.entries for unit in store.backlog("q")) == 1
    assert take_snapshot(store.database).excluded == ()


def test_what_is_flushed_after_a_checkpoint_elsewhere_lies_behind_it(store: Store) -> None:
    """Also where the process has not read since."""
    value = store.begin()
    with store.resume(value) as other:
        other.checkpoint()
        put(other, b"there")
    with store.resume(value) as tx:
        put(tx, b"later")
        tx.flush()
        assert tx.table("t").get("a", "n") == b"later"
        tx.level = Level.SNAPSHOT_ALL
        assert tx.table("t").versions("a", "n") == [b"later"], "one pointer, one version: the last flush counts"
    store.commit(value)
    assert read(store, "a") == b"later"


def test_one_key_from_several_processes_is_one_entry_also_behind_a_checkpoint(store: Store) -> None:
    queue = store.configure_queue("q")
    value = store.begin()

    def add(n: int, *, checkpoint: bool = False) -> None:
        with store.resume(value) as tx:
            if checkpoint:
                tx.checkpoint()
            tx.queue("q").add("k", n)

    add(1)
    add(2)
    add(3, checkpoint=True)
    store.commit(value)
    with store.database.read() as work:
        found = read_entries(work, queue, take_snapshot(store.database), Range(0, queue.buckets), rows=10, size=1 << 20)
    assert list(found.values) == [b"3"]
    assert list(found.seqs) == [int(value["id"])]


@KINDS
def test_a_key_that_is_replaced_behind_a_checkpoint_is_one_entry(store: Store, kind: str) -> None:
    queue = store.configure_queue("q")
    tx = begin(store, kind=kind)
    tx.queue("q").add("k", 5)
    tx.checkpoint()
    tx.queue("q").add("k", 7, replace=True)
    own = tx.id
    opened_by(tx).commit()
    with store.database.read() as work:
        found = read_entries(work, queue, take_snapshot(store.database), Range(0, queue.buckets), rows=10, size=1 << 20)
    assert (list(found.values), list(found.seqs)) == ([b"7"], [own])


def test_the_later_write_pointer_counts_where_writes_do_not_conflict(store: Store) -> None:
    store.configure_table("free", conflict="none")
    first, second = begin(store, kind="long"), begin(store)
    for tx in (first, second):
        assert tx.id
    first.checkpoint()
    first.table("free").set("r", "c", b"began first, drew a line later")
    second.table("free").set("r", "c", b"began later")
    for tx in (first, second):
        opened_by(tx).commit()
    with store.transaction(read_only=True) as reader:
        assert reader.table("free").get("r", "c") == b"began first, drew a line later"


def test_all_write_pointers_of_a_late_transaction_become_invalid_and_are_pruned(store: Store) -> None:
    tx = begin(store, kind="long", timeout=0.05)
    put(tx, b"1")
    tx.checkpoint()
    put(tx, b"2", row="b")
    tx.flush()
    pointers = opened_by(tx).value.write_pointers
    wait_past(store, opened_by(tx).value.deadline_ms)
    assert expire(store.database) == 1
    assert take_snapshot(store.database).excluded == pointers
    for step in (tx.checkpoint, lambda: tx.table("t").get("a", "n"), tx.flush, opened_by(tx).commit):
        if step == tx.flush:
            put(tx, b"late")
        with pytest.raises(RegistrationLost):
            step()
    assert prune(store.database) == 2
    assert prune(store.database) == 0
    assert (read(store, "a"), read(store, "b"), take_snapshot(store.database).excluded) == (None, None, ())


def test_a_transaction_that_has_ended_makes_no_checkpoint(store: Store) -> None:
    tx = begin(store)
    opened_by(tx).abort()
    with pytest.raises(TransactionEnded):
        tx.checkpoint()
    with pytest.raises(TransactionEnded):
        tx.level = Level.SNAPSHOT_ALL


def test_only_long_transactions_are_given_away(store: Store) -> None:
    with store.transaction() as tx, pytest.raises(InvalidArgument, match="long"):
        tx.to_json()
    with store.transaction(read_only=True) as tx, pytest.raises(InvalidArgument, match="no id"):
        _ = tx.id
