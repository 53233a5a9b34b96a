"""Bounds of a transaction, client names and retries."""

from __future__ import annotations

import logging
import tracemalloc

import pytest
import sqlalchemy as sa
from tests.integration.test_transactions import read
from tests.support.contexts import opened_by

from export_queue import (
    ChangeSetTooLarge,
    ConflictError,
    InvalidArgument,
    Limits,
    Retry,
    Store,
    StoreUnavailable,
    TransactionContext,
    TransactionTimeout,
)


@pytest.fixture
def bounded(sqlite_url: str) -> Store:
    store = Store.open(sqlite_url, client="a shop", limits=Limits(warn_changes=4, max_changes=10, max_bytes=1000))
    store.create()
    store.configure_queue("q")
    return store


def test_too_many_changes_are_refused_and_nothing_is_left(bounded: Store, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING, "export_queue.transactions"),
        pytest.raises(ChangeSetTooLarge, match="at most 10 changes") as caught,
        bounded.transaction() as tx,
    ):
        for n in range(20):
            tx.queue("q").add(f"k{n}", {})
    assert "flush" in caught.value.hint
    assert [record.levelname for record in caplog.records] == ["WARNING"], "it is told once, before it is refused"
    assert bounded.backlog("q") == []


def test_too_many_bytes_are_refused(bounded: Store) -> None:
    with pytest.raises(ChangeSetTooLarge, match="1000 bytes"), bounded.transaction() as tx:
        tx.table("t").set("a", "n", b"x" * 1000)
    assert read(bounded, "a") is None


def test_the_same_cell_again_and_again_is_one_change(bounded: Store) -> None:
    with bounded.transaction() as tx:
        for n in range(100):
            tx.table("t").set("a", "n", b"%d" % n)
            tx.queue("q").add("k", {"n": n}, replace=n > 0)
    assert read(bounded, "a") == b"99"


def test_a_long_transaction_is_bounded_from_flush_to_flush(bounded: Store) -> None:
    with bounded.transaction(long=True) as tx:
        for n in range(30):
            tx.queue("q").add(f"k{n}", {})
            if n % 5 == 4:
                tx.flush()
    assert sum(unit.entries for unit in bounded.backlog("q")) == 30


def test_time_outs_have_a_default_and_a_maximum(sqlite_url: str) -> None:
    limits = Limits(short_seconds=5, max_short_seconds=10, long_seconds=60, max_long_seconds=120)
    with Store.open(sqlite_url, clock=lambda: 1_000_000, limits=limits) as store:
        store.create()
        for asked, seconds in ((None, 5), (10.0, 10)):
            with store.transaction(timeout=asked) as tx:
                assert opened_by(tx).value.deadline_ms == 1_000_000 + seconds * 1000
        for options in ({"timeout": 11}, {"timeout": 0}, {"timeout": 121, "long": True}):
            with pytest.raises(InvalidArgument, match="timeout"), store.transaction(**options):  # type: ignore[arg-type]
                pass


@pytest.mark.parametrize("wrong", [{"max_changes": 0}, {"short_seconds": -1}, {"max_short_seconds": 3601}])
def test_senseless_limits_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        Limits(**wrong)  # type: ignore[arg-type]


def test_those_who_watch_see_who_runs_a_transaction(store_url: str) -> None:
    with Store.open(store_url, client="nightly load") as store:
        store.create()
        value = store.begin()
        with store.database.read() as work:
            prefix = "export_queue." if "postgresql" in store_url else ""
            rows = work.connection.execute(sa.text(f"select id, client from {prefix}active_transactions")).all()
        assert rows == [(int(value["id"]), "nightly load")]
        store.abort(value)
        store.abort(value)


def test_a_retry_runs_the_function_again_and_ends_by_count(store: Store) -> None:
    calls = 0

    def meets_a_conflict(tx: TransactionContext) -> None:
        nonlocal calls
        calls += 1
        tx.table("t").get("a", "n")
        with store.transaction() as other:
            other.table("t").set("a", "n", b"other")
        tx.table("t").set("a", "n", b"mine")

    with pytest.raises(ConflictError):
        store.run(meets_a_conflict, retry=Retry(attempts=3, first_pause=0.0001))
    assert calls == 3
    with pytest.raises(ConflictError):
        store.run(meets_a_conflict, retry=Retry(attempts=1))
    assert calls == 4


def test_a_retry_ends_by_time(store: Store) -> None:
    calls = 0

    def fails(tx: TransactionContext) -> None:
        nonlocal calls
        calls += 1
        raise TransactionTimeout("too slow")

    with pytest.raises(TransactionTimeout):
        store.run(fails, retry=Retry(attempts=None, seconds=0.2, first_pause=0.001, longest_pause=0.01))
    assert calls > 1


def test_only_errors_of_the_transaction_are_tried_again(store: Store) -> None:
    calls = 0

    def fails(tx: TransactionContext) -> None:
        nonlocal calls
        calls += 1
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        store.run(fails)
    assert calls == 1


def test_an_unreachable_store_is_tried_again(store: Store) -> None:
    calls = 0

    def fails_once(tx: TransactionContext) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise StoreUnavailable("gone for a moment")
        return calls

    assert store.run(fails_once) == 2


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"attempts": None}, {"seconds": -1.0}, {"first_pause": -1.0}])
def test_senseless_retries_are_refused(wrong: dict[str, float | None]) -> None:
    with pytest.raises(InvalidArgument):
        Retry(**wrong)  # type: ignore[arg-type]


@pytest.mark.one_store("the writes of a transaction are in memory until the commit")
@pytest.mark.parametrize("add", ["add", "add_many", "replace", "exclusive", "set"])
def test_one_more_write_copies_none_of_those_before(store: Store, add: str) -> None:
    """A transaction of many writes would take the square of their number."""
    store.configure_queue("orders", value="bytes")
    with store.transaction() as tx:
        queue, table = tx.queue("orders"), tx.table("totals")
        one_more = {
            "add": lambda key: queue.add(key, b""),
            "add_many": lambda key: queue.add_many([(key, b"")]),
            "replace": lambda key: queue.add(key, b"", replace=True),
            "exclusive": lambda key: queue.add(key, b"", exclusive=True),
            "set": lambda key: table.set(key, "n", b""),
        }[add]
        for number in range(29_990):  # no collection is about to grow
            one_more(f"key {number}")
        tracemalloc.start()
        one_more("last")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100_000, "bytes for one write"
