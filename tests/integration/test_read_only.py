"""Reading without registering, and settled snapshots (I1)."""

from __future__ import annotations

import pytest
from tests.integration.test_transactions import begin, read, wait_past, write
from tests.support.contexts import opened_by

from export_queue import InvalidArgument, Store
from export_queue.core.transactions import expire, prune, take_snapshot


def see(store: Store, **options: bool) -> bytes | None:
    with store.transaction(**options) as tx:  # type: ignore[arg-type]
        return tx.table("t").get("a", "n")


def test_a_read_only_transaction_sees_one_snapshot_and_leaves_no_trace(store: Store) -> None:
    write(store, "a", b"1")
    before = take_snapshot(store.database).read_pointer
    with store.transaction(read_only=True) as tx:
        table = tx.table("t")
        assert table.get("a", "n") == b"1"
        assert take_snapshot(store.database).read_pointer == before, "it drew an id"
        write(store, "a", b"2")
        assert table.get("a", "n") == b"1"
        assert [value for _, _, value in table.scan()] == [b"1"]
    assert see(store, read_only=True) == b"2"


def test_what_is_in_progress_stays_invisible_to_it(store: Store) -> None:
    write(store, "a", b"old")
    with store.transaction(long=True) as tx:
        tx.table("t").set("a", "n", b"new")
        tx.flush()
        with store.transaction(read_only=True) as reader:
            assert reader.table("t").get("a", "n") == b"old"
            store.commit(tx.to_json())
            assert reader.table("t").get("a", "n") == b"old"


@pytest.mark.parametrize("option", ["read_only", "settled"])
def test_it_refuses_to_write(store: Store, option: str) -> None:
    store.configure_queue("q")
    with store.transaction(**{option: True}) as tx:
        table, queue = tx.table("t"), tx.queue("q")
        for step in (
            lambda: table.set("a", "n", b"1"),
            lambda: table.delete("a", "n"),
            lambda: queue.add("k", {}),
            tx.checkpoint,
            tx.flush,
        ):
            with pytest.raises(InvalidArgument):
                step()


def test_kinds_that_exclude_each_other_are_refused(store: Store) -> None:
    for options in ({"long": True, "read_only": True}, {"settled": True, "connection": object()}):
        with pytest.raises(InvalidArgument, match="at once"), store.transaction(**options):  # type: ignore[arg-type]
            pass
    with (
        pytest.raises(InvalidArgument, match="idempotency key"),
        store.transaction(read_only=True, idempotency_key="t"),
    ):
        pass


def test_a_settled_snapshot_lies_below_every_id_in_progress(store: Store) -> None:
    """What it shows is complete: no later commit has an id that it would have shown."""
    write(store, "a", b"settled")
    older = begin(store)
    assert older.id  # registered from here on
    write(store, "a", b"young")
    assert see(store) == b"young"
    assert see(store, settled=True) == b"settled"
    older.table("t").set("x", "n", b"1")
    opened_by(older).commit()
    assert see(store, settled=True) == b"young"


def test_what_is_invalid_holds_no_settled_snapshot_back(store: Store) -> None:
    late = begin(store, kind="long", timeout=0.05)
    late.table("t").set("a", "n", b"never")
    late.flush()
    write(store, "b", b"1")
    wait_past(store, opened_by(late).value.deadline_ms)
    expire(store.database)
    write(store, "a", b"young")
    assert see(store, settled=True) == b"young"
    prune(store.database)
    assert see(store, settled=True) == b"young"


def test_an_id_kept_for_a_participant_hides_its_rows_for_good(store: Store) -> None:
    tx = begin(store)
    own = tx.id
    with store.database.connect() as connection:
        store.database.dialect.steps.abort(connection, kind="long", transaction=own, kept=[own], left_to="an index")
    opened_by(tx).abort()
    assert prune(store.database) == 0
    assert take_snapshot(store.database).excluded == (own,)
    assert [(found.id, found.left_to) for found in store.kept_invalid()] == [(own, "an index")]
    assert store.forget_invalid(own)
    assert not store.forget_invalid(own)
    assert prune(store.database) == 1
    assert take_snapshot(store.database).excluded == ()
    assert read(store, "a") is None
