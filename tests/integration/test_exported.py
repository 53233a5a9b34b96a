"""Waiting for exports: what is acknowledged, what is not yet, and what never will be (I6, I7)."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
import sqlalchemy as sa
from tests.support import bulk
from tests.support.command_line import run_cli

from export_queue import (
    AlreadyCommitted,
    Candidates,
    ExportTimedOut,
    HasSubscriptions,
    InvalidArgument,
    MemorySink,
    NotExported,
    Put,
    SinkConfigurationError,
    Store,
    TransactionEnded,
    UnknownQueue,
    drain,
)
from export_queue.core.drain import export_wait
from export_queue.core.drain.token import ExportToken
from export_queue.core.sinks import CompositeSink
from export_queue.core.store.queries import exports

FEW = Candidates(least=2)


@pytest.fixture
def orders(store: Store, tmp_path: Path) -> Store:
    """A store with a small queue ``orders``, whose files are in a folder of the test's."""
    store.database.segments = str(tmp_path / "segments")
    store.configure_queue("orders", buckets=20, buckets_per_range=5)
    return store


@pytest.fixture
def latest(store: Store, tmp_path: Path) -> Store:
    """The same with a queue whose compactions keep the latest entry of each key."""
    store.database.segments = str(tmp_path / "segments")
    store.configure_queue("orders", buckets=20, buckets_per_range=5, coalesce="latest")
    return store


def put(store: Store, *keys: str, value: Any = 1, queue: str = "orders") -> str:
    """Commit entries in one transaction; returns its token."""
    with store.transaction() as tx:
        for key in keys:
            tx.queue(queue).add(key, value)
    return tx.token


def load(store: Store, *keys: str, value: bytes = b"1") -> str:
    """Commit entries in files; returns the token."""
    with store.transaction(long=True) as tx:
        bulk.add(tx, store, dict.fromkeys(keys, value))
    return tx.token


def deliver(
    store: Store, sink: MemorySink | None = None, queue: str = "orders", refuse: bool = False, **options: Any
) -> None:
    """Drain a queue, by default into a sink of the test's.

    :param refuse: let the exporter refuse everything.
    """
    if sink is None:
        sink = vars(store).setdefault("sinks", {}).setdefault(queue, MemorySink())
    picky.refuses = refuse  # type: ignore[attr-defined]
    drain(store, queue, sink, sink_name="sink", exporter=picky, **options)


def picky(entry: Any) -> list[Put]:
    if picky.refuses:  # type: ignore[attr-defined]
        raise ValueError("not this one")
    return [Put("orders", entry.key, {"value": entry.value})]


@contextlib.contextmanager
def later(function: Callable[[], None]) -> Iterator[None]:
    """Call a function in a thread, a moment later."""
    thread = threading.Timer(0.1, function)
    thread.start()
    yield
    thread.join()


def compact(store: Store) -> None:
    assert store.compact("orders", wanted=FEW).written


# --- what is acknowledged ---------------------------------------------------------------------------------------------


def test_a_transaction_is_exported_when_all_its_entries_are_drained(orders: Store) -> None:
    token = put(orders, "anna", "berta", "carl")
    assert not orders.is_exported(token, "orders")
    for unit in orders.waiting_ranges("orders"):
        assert not orders.is_exported(token, "orders")
        deliver(orders, ranges=[unit])
    assert orders.is_exported(token, "orders")
    orders.wait_exported(token, "orders", timeout=0)


def test_later_entries_of_the_same_keys_are_not_waited_for(orders: Store) -> None:
    token = put(orders, "anna")
    deliver(orders)
    put(orders, "anna", value=2)
    assert orders.is_exported(token, "orders")


def test_many_keys_are_waited_for_as_few_are(orders: Store) -> None:
    token = put(orders, *(f"key-{i}" for i in range(200)))
    assert len(token) < 100
    units = orders.waiting_ranges("orders")
    for unit in units:
        assert not orders.is_exported(token, "orders")
        deliver(orders, ranges=[unit])
    assert orders.is_exported(token, "orders")


def test_a_token_fits_into_a_cookie_and_holds_no_key(orders: Store) -> None:
    token = put(orders, *(f"secret-{i}" for i in range(32)))
    assert len(token) <= 500
    assert token.isascii()
    assert all(letter.isalnum() or letter in "-_" for letter in token)
    assert "secret" not in token


def test_files_are_waited_for(orders: Store) -> None:
    token = load(orders, "anna", "berta")
    assert not orders.is_exported(token, "orders")
    deliver(orders)
    assert orders.is_exported(token, "orders")


def test_a_long_transaction_is_waited_for_by_its_value(orders: Store) -> None:
    value = orders.begin()
    token = orders.token(value)
    assert not orders.is_exported(token, "orders")
    with orders.resume(value) as tx:
        tx.queue("orders").add("anna", 1)
        with pytest.raises(InvalidArgument, match="not committed yet"):
            _ = tx.token
    with pytest.raises(InvalidArgument, match=r"store\.token"):
        _ = tx.token
    deliver(orders)
    assert not orders.is_exported(token, "orders")
    orders.commit(value)
    assert not orders.is_exported(token, "orders")
    deliver(orders)
    assert orders.is_exported(token, "orders")


def test_an_aborted_transaction_is_refused(orders: Store) -> None:
    value = orders.begin()
    token = orders.token(value)
    orders.abort(value)
    with pytest.raises(TransactionEnded, match="ended without a commit"):
        orders.is_exported(token, "orders")
    with pytest.raises(RuntimeError), orders.transaction() as tx:
        tx.queue("orders").add("anna", 1)
        raise RuntimeError
    with pytest.raises(TransactionEnded, match="aborted"):
        _ = tx.token


def test_a_bound_transaction_is_waited_for_until_its_user_commits(
    orders: Store, store_url: str, open_store: Callable[[], Store]
) -> None:
    engine = sa.create_engine(store_url)
    with open_store() as other, engine.connect() as connection:
        with connection.begin():
            with orders.transaction(connection=connection) as tx:
                tx.queue("orders").add("anna", 1)
                with pytest.raises(InvalidArgument, match="not committed yet"):
                    _ = tx.token
            assert not other.is_exported(tx.token, "orders")
        assert not other.is_exported(tx.token, "orders")
        deliver(orders)
        assert other.is_exported(tx.token, "orders")
        with connection.begin() as open_transaction:
            with orders.transaction(connection=connection) as undone:
                undone.queue("orders").add("carl", 1)
            assert not other.is_exported(undone.token, "orders")
            open_transaction.rollback()
        put(orders, "dora")
        with pytest.raises(TransactionEnded, match="ended without a commit"):
            other.is_exported(undone.token, "orders")
    engine.dispose()


def test_a_transaction_that_added_nothing_is_exported(orders: Store) -> None:
    put(orders, "anna")
    with orders.transaction(read_only=True) as reading:
        reading.table("totals").get("anna", "n")
    with orders.transaction() as writing:
        writing.table("totals").set("anna", "n", b"1")
    orders.configure_queue("other")
    elsewhere = put(orders, "anna", queue="other")
    for token in (reading.token, writing.token, elsewhere):
        assert orders.is_exported(token, "orders")
    assert not orders.is_exported(elsewhere, "other")


def test_the_transaction_that_a_function_returns_has_a_token(orders: Store) -> None:
    def write(tx: Any) -> Any:
        tx.queue("orders").add("anna", 1)
        return tx

    token = orders.run(write).token
    assert not orders.is_exported(token, "orders")
    deliver(orders)
    assert orders.is_exported(token, "orders")


# --- what a compaction, a move and a retry do to it -------------------------------------------------------------------


def test_entries_that_a_compaction_merged_are_waited_for(orders: Store) -> None:
    tokens = [put(orders, "anna"), load(orders, "anna"), load(orders, "anna", "berta"), put(orders, "anna")]
    compact(orders)
    assert not any(orders.is_exported(token, "orders") for token in tokens[:3])
    deliver(orders)
    assert all(orders.is_exported(token, "orders") for token in tokens)


def test_a_superseded_entry_is_exported_with_the_newer_one(latest: Store) -> None:
    first = put(latest, "anna")
    load(latest, "anna", value=b"2")
    load(latest, "anna", value=b"3")
    compact(latest)
    assert not latest.is_exported(first, "orders")
    sink = MemorySink()
    deliver(latest, sink)
    assert latest.is_exported(first, "orders")


def test_a_dead_newer_entry_stands_for_those_that_it_superseded(latest: Store) -> None:
    first = put(latest, "anna")
    load(latest, "anna", value=b"2")
    load(latest, "anna", value=b"3")
    compact(latest)
    deliver(latest, refuse=True)
    with pytest.raises(NotExported, match="newer entry that may stand for one"):
        latest.is_exported(first, "orders")
    assert latest.dead_letters.retry("orders") == 1
    assert not latest.is_exported(first, "orders")
    deliver(latest, refuse=True)
    with pytest.raises(NotExported, match="newer entry"):
        latest.is_exported(first, "orders")
    assert latest.dead_letters.retry("orders") == 1
    load(latest, "anna", value=b"4")
    load(latest, "anna", value=b"5")
    compact(latest)  # takes the retried row
    assert not latest.is_exported(first, "orders")
    deliver(latest)
    assert latest.is_exported(first, "orders")


def test_a_dropped_newer_entry_stands_for_those_that_it_superseded(latest: Store) -> None:
    first = put(latest, "anna")
    load(latest, "anna", value=b"2")
    load(latest, "anna", value=b"3")
    compact(latest)
    deliver(latest, refuse=True)
    after = put(latest, "anna", value=4)
    latest.dead_letters.drop("orders")
    deliver(latest)
    with pytest.raises(NotExported, match="dead letters were dropped"):
        latest.is_exported(first, "orders")
    assert latest.is_exported(after, "orders")


def test_a_dead_entry_of_another_key_concerns_nobody(latest: Store) -> None:
    latest.alter_queue("orders", buckets=1, buckets_per_range=1)
    first = put(latest, "anna")
    deliver(latest)
    load(latest, "berta", value=b"1")
    load(latest, "berta", value=b"2")
    compact(latest)
    deliver(latest, refuse=True)
    assert latest.is_exported(first, "orders")


def test_entries_that_were_moved_to_another_layout_are_waited_for(orders: Store) -> None:
    tokens = [put(orders, "anna", "berta"), load(orders, "anna", "carl")]
    orders.alter_queue("orders", buckets=40, buckets_per_range=5, guard="seq")
    assert not any(orders.is_exported(token, "orders") for token in tokens)
    orders.compact("orders", older_layouts=True)
    assert not any(orders.is_exported(token, "orders") for token in tokens)
    deliver(orders)
    assert all(orders.is_exported(token, "orders") for token in tokens)


def test_a_dead_letter_ends_the_wait_with_its_reason(orders: Store) -> None:
    token = put(orders, "anna")
    other = put(orders, "berta")
    deliver(orders, refuse=True, ranges=[next(iter(orders.waiting_ranges("orders")))])
    deliver(orders)
    dead, fine = (token, other) if orders.dead_letters.list("orders")[0].key == "anna" else (other, token)
    with pytest.raises(NotExported, match="ValueError: not this one") as told:
        orders.wait_exported(dead, "orders", timeout=600)
    assert not told.value.transient
    assert "dead retry orders" in told.value.hint
    assert orders.is_exported(fine, "orders")
    orders.dead_letters.retry("orders")
    assert not orders.is_exported(dead, "orders")
    deliver(orders)
    assert orders.is_exported(dead, "orders")


def test_dropped_dead_letters_are_not_taken_for_exported(orders: Store) -> None:
    before = put(orders, "anna")
    deliver(orders)
    dropped = put(orders, "anna")
    deliver(orders, refuse=True)
    between = put(orders, "anna")
    deliver(orders)
    again = put(orders, "anna")
    deliver(orders, refuse=True)
    assert orders.dead_letters.drop("orders") == 2
    for token in (dropped, again):
        with pytest.raises(NotExported, match="dead letters were dropped"):
            orders.is_exported(token, "orders")
    for token in (before, between):
        assert orders.is_exported(token, "orders")


def test_entries_of_a_file_that_was_given_up_are_not_taken_for_exported(orders: Store) -> None:
    before = put(orders, "anna")
    deliver(orders)
    with orders.transaction(long=True) as tx:
        (report,) = bulk.add(tx, orders, {"anna": b"1"})
    orders.dead_letters.give_up_file("orders", report.file)
    with pytest.raises(NotExported, match="lost file"):
        orders.is_exported(tx.token, "orders")
    assert orders.is_exported(before, "orders")


# --- readers ----------------------------------------------------------------------------------------------------------


def test_each_subscription_has_its_own_answer(orders: Store) -> None:
    orders.subscribe("orders", "search")
    orders.subscribe("orders", "cache")
    token = put(orders, "anna")
    deliver(orders, queue="orders/search")
    assert orders.is_exported(token, "orders/search")
    assert not orders.is_exported(token, "orders/cache")
    with pytest.raises(HasSubscriptions, match="orders/cache"):
        orders.is_exported(token, "orders")
    with pytest.raises(UnknownQueue, match="none"):
        orders.is_exported(token, "orders/none")


def test_a_younger_subscription_has_it_after_its_first_load(orders: Store) -> None:
    orders.subscribe("orders", "search")
    token = put(orders, "anna")
    orders.subscribe("orders", "late")
    assert not orders.is_exported(token, "orders/late")
    with pytest.raises(ExportTimedOut, match="first load of orders/late"):
        orders.wait_exported(token, "orders/late", timeout=0)
    with orders.first_load("orders/late") as first:
        first.add("anna", 1)
    assert not orders.is_exported(token, "orders/late")
    deliver(orders, queue="orders/late")
    assert orders.is_exported(token, "orders/late")
    put(orders, "anna", value=2)
    assert orders.is_exported(token, "orders/late")
    orders.subscribe("orders", "careless")
    orders.waive_first_load("orders/careless")
    with pytest.raises(NotExported, match="needs no first load"):
        orders.is_exported(token, "orders/careless")
    assert not orders.is_exported(put(orders, "berta"), "orders/careless")


@pytest.fixture(params=[1, 1000])
def pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let searches read few or many entries at once."""
    monkeypatch.setattr(exports, "PAGE", request.param)


NAMES = [f"name{n}" for n in range(25)]


def test_an_entry_of_a_load_is_waited_for_among_those_of_other_keys(orders: Store, pages: None) -> None:
    orders.subscribe("orders", "search")
    tokens = [put(orders, name) for name in NAMES]
    orders.subscribe("orders", "late")
    with orders.first_load("orders/late") as first:
        first.add_many([(name, 1) for name in NAMES])
    assert not any(orders.is_exported(token, "orders/late") for token in tokens)
    deliver(orders, queue="orders/late", refuse=True)
    for token in tokens:
        with pytest.raises(NotExported, match="a newer entry that may stand for one of it is a dead letter"):
            orders.is_exported(token, "orders/late")
    orders.dead_letters.retry("orders/late")
    assert not any(orders.is_exported(token, "orders/late") for token in tokens)
    deliver(orders, queue="orders/late")
    assert all(orders.is_exported(token, "orders/late") for token in tokens)


def test_a_dead_letter_is_found_among_those_that_stand_for_other_keys(latest: Store, pages: None) -> None:
    tokens = [put(latest, name) for name in NAMES]
    for value in (b"2", b"3"):
        load(latest, *NAMES, value=value)
    assert latest.compact("orders", wanted=FEW).written
    deliver(latest, refuse=True)
    for token in tokens:
        with pytest.raises(NotExported, match="a newer entry that may stand for one of it is a dead letter"):
            latest.is_exported(token, "orders")
    latest.dead_letters.retry("orders")
    assert not any(latest.is_exported(token, "orders") for token in tokens)
    deliver(latest)
    assert all(latest.is_exported(token, "orders") for token in tokens)


def test_an_entry_that_a_load_shares_stands_for_older_ones(orders: Store) -> None:
    orders.alter_queue("orders", state=True)
    orders.waive_first_load("orders/@state")
    orders.subscribe("orders", "search")
    older, token = put(orders, "anna"), put(orders, "anna", value=2)
    orders.subscribe("orders", "late")
    orders.first_load("orders/late", source="state")
    deliver(orders, queue="orders/late", refuse=True)
    for lacking in (older, token):
        with pytest.raises(NotExported, match="entry .* is a dead letter of orders/late"):
            orders.is_exported(lacking, "orders/late")
    orders.dead_letters.retry("orders/late")
    assert not orders.is_exported(older, "orders/late")
    deliver(orders, queue="orders/late", refuse=True)
    orders.dead_letters.drop("orders/late")
    for lacking in (older, token):
        with pytest.raises(NotExported, match="may be among these"):
            orders.is_exported(lacking, "orders/late")
    orders.replay("orders", all_keys=True)
    orders.declare_complete("orders/late")
    deliver(orders, queue="orders/late")
    assert orders.is_exported(older, "orders/late")


def test_everything_before_now_includes_what_a_first_load_delivers(orders: Store) -> None:
    orders.subscribe("orders", "search")
    put(orders, "anna")
    orders.subscribe("orders", "late")
    token = orders.token()
    assert not orders.is_exported(token, "orders/late")
    with orders.first_load("orders/late") as first:
        first.add("anna", 1)
    assert not orders.is_exported(token, "orders/late")
    deliver(orders, queue="orders/late", refuse=True)
    with pytest.raises(NotExported, match="a dead letter"):
        orders.is_exported(token, "orders/late")
    orders.dead_letters.retry("orders/late")
    deliver(orders, queue="orders/late")
    assert orders.is_exported(token, "orders/late")


@pytest.mark.parametrize("in_file", [False, True])
def test_discarded_entries_of_a_first_load_are_not_taken_for_exported(orders: Store, *, in_file: bool) -> None:
    orders.subscribe("orders", "search")
    token = put(orders, "anna")
    orders.subscribe("orders", "late")
    cut = orders.token()
    with orders.first_load("orders/late") as first:
        if in_file:
            first.add_batch(pa.table({"key": ["anna"], "value": ["1"]}))
        else:
            first.add("anna", 1)
    if in_file:
        orders.dead_letters.give_up_file("orders/late", orders.bulk_files()[0])
    else:
        deliver(orders, queue="orders/late", refuse=True)
        orders.dead_letters.drop("orders/late")
    after = put(orders, "anna")
    deliver(orders, queue="orders/late")
    for lacking in (token, cut):
        with pytest.raises(NotExported, match="an entry of its first load may be among these"):
            orders.is_exported(lacking, "orders/late")
    assert orders.is_exported(after, "orders/late")
    assert orders.is_exported(orders.token(), "orders/late")
    orders.declare_complete("orders/late")
    assert orders.is_exported(token, "orders/late")


@pytest.mark.parametrize("load_again", [False, True])
def test_a_first_load_and_a_promise_make_up_for_discarded_entries(orders: Store, *, load_again: bool) -> None:
    orders.subscribe("orders", "search")
    token, cut = put(orders, "anna"), orders.token()
    deliver(orders, queue="orders/search", refuse=True)
    orders.dead_letters.drop("orders/search")
    with pytest.raises(NotExported, match="make a first load of the subscription, or promise"):
        orders.is_exported(token, "orders/search")
    if load_again:
        with orders.first_load("orders/search") as first:
            first.add("anna", 1)
        assert not orders.is_exported(token, "orders/search")
        assert not orders.is_exported(cut, "orders/search")
        deliver(orders, queue="orders/search")
    else:
        orders.declare_complete("orders/search")
    assert orders.is_exported(token, "orders/search")
    assert orders.is_exported(cut, "orders/search")


def test_a_sink_that_lost_data_has_it_after_the_next_load(orders: Store) -> None:
    orders.subscribe("orders", "search")
    token = put(orders, "anna")
    sink = MemorySink()
    deliver(orders, sink, queue="orders/search")
    assert orders.is_exported(token, "orders/search")
    orders.rebind("orders/search", "other")
    after = put(orders, "berta")
    other = MemorySink()
    drain(orders, "orders/search", other, sink_name="other", exporter=picky)
    assert not orders.is_exported(token, "orders/search")
    assert orders.is_exported(after, "orders/search")
    with orders.first_load("orders/search") as first:
        first.add("anna", 1)
    assert not orders.is_exported(token, "orders/search")
    drain(orders, "orders/search", other, sink_name="other", exporter=picky)
    assert orders.is_exported(token, "orders/search")


def test_a_queue_whose_sink_lost_data_says_so(orders: Store) -> None:
    token = put(orders, "anna")
    deliver(orders)
    orders.rebind("orders", "other")
    with pytest.raises(NotExported, match="rebound from sink"):
        orders.is_exported(token, "orders")
    orders.declare_complete("orders")
    assert orders.is_exported(token, "orders")


# --- tokens and waits -------------------------------------------------------------------------------------------------


def test_tokens_of_other_stores_and_other_texts_are_refused(orders: Store, tmp_path: Path) -> None:
    token = put(orders, "anna")
    with Store.open(f"sqlite:///{tmp_path / 'other.db'}") as other:
        other.create()
        other.configure_queue("orders")
        with pytest.raises(InvalidArgument, match=f"of store {other.id}, found one of store {orders.id}"):
            other.is_exported(token, "orders")
    changed = token[:-1] + ("A" if token[-1] != "A" else "B")
    for text in ("", "xq1_", token[:-4], token + "AAAA", changed, "é", 7, None, str(uuid4())):
        with pytest.raises(InvalidArgument, match="expected a transaction's token"):
            orders.is_exported(text, "orders")  # type: ignore[arg-type]


@pytest.mark.parametrize("too_much", [-1, 1 << 63])
def test_tokens_with_impossible_numbers_are_refused(orders: Store, too_much: int) -> None:
    put(orders, "anna")
    for seq, added in ((too_much, None), (1, {orders.queue("orders").number: (1 << 63,)}), (1, {1 << 63: None})):
        text = ExportToken(store_id=orders.id, seq=seq, added=added).text
        with pytest.raises(InvalidArgument, match="expected a transaction's token"):
            orders.is_exported(text, "orders")


def test_a_wait_that_is_over_says_what_is_pending(orders: Store) -> None:
    token = put(orders, "anna", "berta")
    with pytest.raises(ExportTimedOut, match="pending entries in rows: 2; committed at") as told:
        orders.wait_exported(token, "orders", timeout=0.02)
    assert told.value.transient
    assert "where no drain works" in told.value.message
    assert "export-queue drain orders" in told.value.hint


def test_everything_before_now_is_waited_for(orders: Store) -> None:
    put(orders, "anna")
    load(orders, "berta")
    token = orders.token()
    put(orders, "carl")
    with pytest.raises(ExportTimedOut, match="pending entries: 2, the oldest of"):
        orders.wait_exported(token, "orders", timeout=0)
    deliver(orders)
    put(orders, "dora")
    assert orders.is_exported(token, "orders")
    deliver(orders, refuse=True)
    assert orders.is_exported(token, "orders")
    with pytest.raises(NotExported, match="everything committed before"):
        orders.is_exported(orders.token(), "orders")
    later_token = orders.token()
    orders.dead_letters.drop("orders")
    with pytest.raises(NotExported, match="were dropped"):
        orders.is_exported(later_token, "orders")
    assert orders.is_exported(orders.token(), "orders")


def test_a_wait_ends_with_the_drain(orders: Store, open_store: Callable[[], Store]) -> None:
    token = put(orders, "anna")
    with later(lambda: deliver(orders)), open_store() as other:
        other.wait_exported(token, "orders", timeout=60)
        assert orders.waiting_ranges("orders") == []


@pytest.mark.parametrize("store_url", [pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True)
def test_a_drain_wakes_a_wait(orders: Store, open_store: Callable[[], Store], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"FIRST_PAUSE": 600.0, "LONGEST_PAUSE": 600.0, "LISTEN_AFTER_SECONDS": 0.0}.items():
        monkeypatch.setattr(export_wait, name, seconds)
    token = put(orders, "anna")
    with open_store() as other, later(lambda: deliver(other, MemorySink())):
        orders.wait_exported(token, "orders", timeout=600)
    assert orders.is_exported(token, "orders")


def test_searchable_needs_a_sink_with_searches(orders: Store) -> None:
    token = put(orders, "anna")
    with pytest.raises(InvalidArgument, match="sink"):
        orders.wait_exported(token, "orders", searchable=True)
    with pytest.raises(SinkConfigurationError, match="MemorySink has no method refresh"):
        orders.wait_exported(token, "orders", searchable=True, sink=MemorySink(), timeout=600)


class Searched(MemorySink):
    """A sink whose searches see what was refreshed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[Any, Any] = {}

    def refresh(self) -> None:
        self.seen = dict(self.records())


def test_a_searchable_wait_refreshes_after_the_acknowledgement(orders: Store) -> None:
    sink = Searched()
    token = put(orders, "anna")
    with later(lambda: deliver(orders, sink)):
        orders.wait_exported(token, "orders", searchable=True, sink=sink, timeout=60)
    assert [key for _, key in sink.seen] == [b"anna"]


def test_a_composite_sink_refreshes_the_parts_that_need_it(orders: Store) -> None:
    searched, token = Searched(), put(orders, "anna")
    deliver(orders, searched)
    composite = CompositeSink([("cache", MemorySink()), ("search", searched)])
    orders.wait_exported(token, "orders", searchable=True, sink=composite)
    assert [key for _, key in searched.seen] == [b"anna"]
    with pytest.raises(SinkConfigurationError, match="no part has a method refresh"):
        orders.wait_exported(token, "orders", searchable=True, sink=CompositeSink([("cache", MemorySink())]))


def test_the_command_says_by_its_status_whether_to_try_again(sqlite_url: str) -> None:
    with Store.open(sqlite_url) as store:
        store.create()
        store.configure_queue("orders")
        token = put(store, "anna")
        assert "pending entries in rows: 1" in run_cli(
            "wait", "orders", "--token", token, "--timeout", "0", url=sqlite_url, status=75
        )
        deliver(store, refuse=True)
        assert "ValueError" in run_cli("wait", "orders", url=sqlite_url, status=1)
        store.dead_letters.retry("orders")
        deliver(store)
        found = json.loads(run_cli("wait", "orders", "--token", token, "--json", url=sqlite_url))
        assert (found["queue"], found["token"]) == ("orders", token)


REFRESHED: list[str] = []


def refreshable() -> MemorySink:
    """A sink by import path, which notes that it was refreshed."""

    class Noted(MemorySink):
        def refresh(self) -> None:
            REFRESHED.append("refreshed")

    return Noted()


def test_the_command_refreshes_searches_after_the_wait(sqlite_url: str) -> None:
    with Store.open(sqlite_url) as store:
        store.create()
        store.configure_queue("orders")
        token = put(store, "anna")
        REFRESHED.clear()
        searchable = ("wait", "orders", "--token", token, "--timeout", "0", "--searchable")
        assert "--sink" in run_cli(*searchable, url=sqlite_url, status=2)
        sink = ("--sink", f"{__name__}:refreshable")
        run_cli(*searchable, *sink, url=sqlite_url, status=75)
        assert REFRESHED == []
        deliver(store)
        run_cli(*searchable[:-1], *sink, url=sqlite_url)
        assert REFRESHED == []
        assert "and searches show it" in run_cli(*searchable, *sink, url=sqlite_url)
        assert REFRESHED == ["refreshed"]


# --- idempotency keys -------------------------------------------------------------------------------------------------


def test_a_repeated_unit_of_work_is_waited_for_as_the_first_one(orders: Store) -> None:
    key = "import/1"
    with pytest.raises(InvalidArgument, match="found 'import/1', which has not"):
        orders.token(idempotency_key=key)
    ran: list[str] = []

    def work(tx: Any) -> int:
        ran.append("run")
        tx.queue("orders").add("anna", 1)
        return 7

    assert orders.run(work, idempotency_key=key) == 7
    first = orders.token(idempotency_key=key)
    assert orders.run(work, idempotency_key=key) == 7
    assert ran == ["run"]
    put(orders, "berta")
    with pytest.raises(AlreadyCommitted), orders.transaction(idempotency_key=key):
        raise AssertionError("the work has taken effect")
    token = orders.token(idempotency_key=key)
    assert token == first
    assert not orders.is_exported(token, "orders")
    with pytest.raises(ExportTimedOut):
        orders.wait_exported(token, "orders", timeout=0)
    deliver(orders)
    orders.wait_exported(token, "orders", timeout=0)
    put(orders, "carl")
    orders.wait_exported(token, "orders", timeout=0)
    with pytest.raises(InvalidArgument, match="found both"):
        orders.token({}, idempotency_key=key)
    orders.close_idempotency_key(key)
    with pytest.raises(InvalidArgument, match="which has not"):
        orders.token(idempotency_key=key)


def test_a_bound_unit_of_work_has_the_token_of_its_entries(postgres_url: str) -> None:
    with Store.open(postgres_url) as store:
        store.create()
        store.configure_queue("orders")
        with sa.create_engine(postgres_url).begin() as connection:
            with store.transaction(connection=connection, idempotency_key="k") as tx:
                tx.queue("orders").add("anna", 1)
            with pytest.raises(InvalidArgument, match="which has not"):
                store.token(idempotency_key="k")
        token = store.token(idempotency_key="k")
        assert not store.is_exported(token, "orders")
        deliver(store)
        assert store.is_exported(token, "orders")
