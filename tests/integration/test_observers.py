"""Notifications and observers on both stores."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.support.contexts import begin, catalogue_of, opened_by
from tests.support.waiting import wait_until

from export_queue import (
    ConflictError,
    InvalidArgument,
    OptionsDiffer,
    Range,
    Retry,
    Store,
    StoreUnavailable,
    TransactionContext,
)
from export_queue.core.observers import Processed, failures, rounds
from export_queue.core.queue import read_entries
from export_queue.core.store import schema
from export_queue.core.tables import ObservedColumns
from export_queue.core.tables.observed import OBSERVED_SECONDS
from export_queue.core.transactions import expire, prune, take_snapshot

fork = multiprocessing.get_context("fork")


def write(store: Store, row: str | bytes, value: bytes = b"x", column: str = "n") -> None:
    with store.transaction() as tx:
        tx.table("t").set(row, column, value)


def notify(store: Store, row: str | bytes, column: str = "n") -> None:
    with store.transaction() as tx:
        tx.table("t").notify(row, column)


def notifications(store: Store) -> list[tuple[bytes, bytes]]:
    n = schema.notification.c
    with store.database.read() as work:
        rows = work.connection.execute(schema.notification.select().order_by(n.row_key, n.column_key))
        return [(row.row_key, row.column_key) for row in rows]


def make_all_due(store: Store) -> None:
    """As if the waits after all failures were over."""
    with store.database.begin() as work:
        work.connection.execute(schema.observer_failure.update().values(next_ms=0))


def entries(store: Store, queue_id: str) -> list[tuple[bytes, int, Any]]:
    """Key, sequence and value of all entries, in the order of sequences."""
    queue = store.queue(queue_id)
    with store.database.read() as work:
        found = read_entries(
            work, queue, take_snapshot(store.database), Range(0, queue.buckets), rows=100_000, size=1 << 30
        )
    triples = zip(found.keys, found.seqs, [orjson.loads(value) for value in found.values], strict=True)  # type: ignore[arg-type]
    return sorted(triples, key=lambda triple: triple[1])


@pytest.fixture
def second(store: Store, store_url: str) -> Iterator[Store]:
    """The same store, as another process has it open."""
    with Store.open(store_url) as opened:
        yield opened


class Calls:
    """An observer that notes the rows that it was called for."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []

    def __call__(self, tx: TransactionContext, row: bytes, column: bytes) -> None:
        self.rows.append(row)


# --- the seed's example: a count by entity, and its inverted index over an export queue ------------------------------


def count_updates(tx: TransactionContext, row: bytes, column: bytes) -> None:
    """The seed's observer."""
    table = tx.table("meta")
    old = int(table.get(row, "counter1", b"0"))
    updates = int(table.get(row, "numUpdates", b"0"))
    table.set(row, "counter1", b"%d" % (old + updates))
    table.delete(row, "numUpdates")
    tx.queue("ici").add(row.decode(), {"old": old, "new": old + updates})


def add_updates(tx: TransactionContext, row: str, number: int) -> None:
    table = tx.table("meta")
    updates = int(table.get(row, "numUpdates", b"0"))
    table.set(row, "numUpdates", b"%d" % (updates + number))


def assert_chains(store: Store, expected: dict[str, int]) -> None:
    """Each row's entries lead from 0 to its counter without a break, and an index built of them is right."""
    index: dict[str, set[str]] = defaultdict(set)
    at: Counter[str] = Counter()
    for key, _, update in entries(store, "ici"):
        row = key.decode()
        assert update["old"] == at[row], f"the chain of {row} is broken"
        index[f"{update['old']:06d}"].discard(row)
        index[f"{update['new']:06d}"].add(row)
        at[row] = update["new"]
    assert at == expected
    with store.transaction() as tx:
        assert {row: int(tx.table("meta").get(row, "counter1", b"0")) for row in expected} == expected
    assert {(count, row) for count, rows in index.items() for row in rows} == {
        (f"{count:06d}", row) for row, count in expected.items()
    }


def test_the_seeds_example_exports_an_unbroken_chain(store: Store) -> None:
    store.configure_queue("ici")
    store.observe("meta", "numUpdates", count_updates, "strong")
    expected: Counter[str] = Counter()
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(40):
        row, number = f"e{chance.randrange(4)}", chance.randint(1, 9)
        store.run(lambda tx, row=row, number=number: add_updates(tx, row, number))  # type: ignore[misc]
        expected[row] += number
        if chance.random() < 0.4:
            found = store.process_notifications()
            assert (found.conflicted, found.failed, found.left) == (0, 0, 0)
    store.process_notifications()
    assert_chains(store, expected)


# --- the seed's section Concurrency ----------------------------------------------------------------------------------


def interleave(store: Store, *, cells: tuple[tuple[str, str], tuple[str, str]], exclusive: bool) -> None:
    """Two transactions read, add the same key, and write one cell each; TH1 commits first."""
    store.configure_table("t", conflict="cell")
    store.configure_queue("export-queue-a")
    store.run(lambda tx: tx.table("t").set("row1", "fam1:qual1", b"0"))
    one, two = begin(store), begin(store)
    try:
        for tx, other in ((one, "rowA"), (two, "rowB")):
            read = [tx.table("t").get("row1", "fam1:qual1"), tx.table("t").get(other, "fam1:qual2")]
            tx.queue("export-queue-a").add("row1", str(read), exclusive=exclusive)
        for tx, cell in ((one, cells[0]), (two, cells[1])):
            tx.table("t").set(*cell, b"1")
        opened_by(one).commit()
        opened_by(two).commit()
    finally:
        opened_by(one).abort()
        opened_by(two).abort()


SAME = (("row1", "fam1:qual1"), ("row1", "fam1:qual1"))
OTHER = (("rowA", "fam1:qual2"), ("rowB", "fam1:qual2"))


def test_of_two_that_write_the_cell_that_the_key_derives_from_one_commits(store: Store) -> None:
    with pytest.raises(ConflictError, match="row1/fam1:qual1"):
        interleave(store, cells=SAME, exclusive=False)
    assert len(entries(store, "export-queue-a")) == 1


def test_two_that_write_other_cells_both_add_the_key(store: Store) -> None:
    interleave(store, cells=OTHER, exclusive=False)  # write skew
    first, last = entries(store, "export-queue-a")
    assert first[0] == last[0] == b"row1"
    assert first[1] < last[1]


def test_exclusive_entries_turn_the_write_skew_into_a_conflict(store: Store) -> None:
    with pytest.raises(ConflictError, match="queue export-queue-a: row1"):
        interleave(store, cells=OTHER, exclusive=True)
    assert len(entries(store, "export-queue-a")) == 1


# --- when a notification is set --------------------------------------------------------------------------------------


def test_a_write_to_an_observed_column_calls_its_observer_once(store: Store) -> None:
    calls = Calls()
    store.observe("t", "n", calls)
    for _ in range(3):
        write(store, "a")
    write(store, "a", column="other")
    assert store.process_notifications() == Processed(done=1)
    assert store.process_notifications() == Processed()
    assert calls.rows == [b"a"]
    assert notifications(store) == []


def test_a_delete_is_no_write(store: Store) -> None:
    store.observe("t", "n", Calls())
    with store.transaction() as tx:
        tx.table("t").delete("a", "n")
    assert notifications(store) == []


def test_a_transaction_that_does_not_commit_notifies_nobody(store: Store) -> None:
    store.observe("t", "n", Calls())
    with pytest.raises(ConflictError), store.transaction() as tx:
        tx.table("t").get("a", "other")
        write(store, "a", column="other")
        tx.table("t").set("a", "n", b"1")
    assert notifications(store) == []


def test_any_bytes_are_a_row_that_notifies(store: Store) -> None:
    rows = [b"\x00", b"\xff\xfe", b"a\x00b", "Zürich".encode(), b"x" * 1024]
    calls = Calls()
    store.observe("t", b"\xff", calls)
    with store.transaction() as tx:
        for row in rows:
            tx.table("t").set(row, b"\xff", b"")
    assert store.process_notifications().done == len(rows)
    assert sorted(calls.rows) == sorted(rows)


def test_long_transactions_notify_when_they_commit(store: Store) -> None:
    calls = Calls()
    store.observe("t", "n", calls)
    with store.transaction(long=True) as tx:
        tx.table("t").set("a", "n", b"1")
        tx.flush()
        tx.table("t").set("b", "n", b"1")
        assert store.process_notifications() == Processed()
    assert store.process_notifications().done == 2
    assert sorted(calls.rows) == [b"a", b"b"]


def test_a_long_transaction_notifies_though_another_process_commits_it(store: Store, second: Store) -> None:
    store.observe("t", "n", Calls())
    store.observe("t", "w", Calls(), "weak")
    tx = begin(store, kind="long")
    tx.table("t").set("a", "n", b"1")
    tx.table("t").notify("a", "w")
    second.commit(tx.to_json())
    assert store.process_notifications() == Processed(done=2)


def test_a_long_transaction_that_ends_without_a_commit_notifies_nobody(store: Store) -> None:
    store.observe("t", "n", Calls())
    aborted, expired = begin(store, kind="long"), begin(store, kind="long", timeout=0.05)
    for tx in (aborted, expired):
        tx.table("t").set("a", "n", b"1")
        tx.flush()
    opened_by(aborted).abort()
    assert store.process_notifications() == Processed()
    wait_until(lambda: expire(store.database), "the transaction is not swept")
    assert store.process_notifications() == Processed()
    assert prune(store.database) == 1
    assert notifications(store) == []


def test_every_process_notifies(store: Store, second: Store) -> None:
    second.run(lambda tx: tx.table("t").set("early", "n", b"1"))
    store.observe("t", "n", Calls())
    now = 0.0
    catalogue_of(second).observed = ObservedColumns(second.database, clock=lambda: now)
    second.run(lambda tx: tx.table("t").set("a", "n", b"1"))
    assert notifications(store) == [(b"a", b"n")]
    store.observe("t", "m", Calls())
    second.run(lambda tx: tx.table("t").set("a", "m", b"1"))
    assert notifications(store) == [(b"a", b"n")], "known only after a moment"
    now = OBSERVED_SECONDS + 0.1
    second.run(lambda tx: tx.table("t").set("a", "m", b"1"))
    assert notifications(store) == [(b"a", b"m"), (b"a", b"n")]


# --- registration ----------------------------------------------------------------------------------------------------


def test_a_table_that_was_bound_long_ago_notifies_too(
    store: Store, second: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.transaction(long=True) as tx:
        table = tx.table("t")
        assert table.get("a", "n") is None
        calls: list[bytes] = []
        second.observe("t", "n", lambda tx, row, column: calls.append(row))
        monkeypatch.setattr("export_queue.core.tables.observed.OBSERVED_SECONDS", -1.0)  # as after three seconds
        table.set("a", "n", b"1")
    assert second.process_notifications().done == 1
    assert calls == [b"a"]


def test_the_same_registration_again_changes_nothing(store: Store, second: Store) -> None:
    calls = Calls()
    for one in (store, store, second):
        one.observe("t", "n", calls)
    with store.database.read() as work:
        assert len(work.connection.execute(schema.observed.select()).all()) == 1


def test_another_kind_is_an_error(store: Store, second: Store) -> None:
    calls = Calls()
    store.observe("t", "n", calls)
    for one in (store, second):
        with pytest.raises(OptionsDiffer, match="'t'.* expected weak, found strong"):
            one.observe("t", "n", calls, kind="weak")


def test_another_function_for_a_column_is_an_error(store: Store) -> None:
    store.observe("t", "n", Calls())
    with pytest.raises(InvalidArgument, match="t/n has the observer"):
        store.observe("t", "n", Calls())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("t", "n", print, "loud"), "kind: expected one of"),
        (("t", "n", 3), "expected a function, found int"),
        (("t", "", print), "column: expected text or bytes of 1"),
        (("Ä", "n", print), "table name"),
    ],
)
def test_a_bad_registration_is_refused(store: Store, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        store.observe(*arguments)


def test_processing_without_observers_is_refused(store: Store) -> None:
    with pytest.raises(InvalidArgument, match="no observer is registered"):
        store.process_notifications()


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_a_bad_limit_is_refused(store: Store, limit: Any) -> None:
    with pytest.raises(InvalidArgument, match="limit"):
        store.process_notifications(limit=limit)


def test_only_a_column_with_a_weak_observer_is_notified_by_hand(store: Store, second: Store) -> None:
    store.observe("t", "n", Calls())
    for column in ("n", "other"):
        with pytest.raises(InvalidArgument, match="expected a column of table 't' with a weak observer"):
            notify(store, "a", column)
    with second.transaction() as tx:
        table = tx.table("t")
        store.observe("t", "w", Calls(), "weak")
        table.notify("a", "w")  # new, and known at once
    assert notifications(store) == [(b"a", b"w")]


# --- strong: exactly one committed transaction -----------------------------------------------------------------------


def test_of_two_observers_of_one_notification_one_commits(store: Store, second: Store) -> None:
    """The inner one commits while the outer is at work; they write no common row."""
    met: list[Processed] = []

    def outer(tx: TransactionContext, row: bytes, column: bytes) -> None:
        tx.queue("q").add("outer", 1)
        met.append(second.process_notifications())

    store.configure_queue("q")
    store.observe("t", "n", outer)
    second.observe("t", "n", lambda tx, row, column: tx.queue("q").add("inner", 1))
    write(store, "a")
    assert store.process_notifications() == Processed(conflicted=1)
    assert met == [Processed(done=1)]
    assert [key for key, _, _ in entries(store, "q")] == [b"inner"]
    assert store.observer_failures() == [], "a conflict is no failure"
    assert take_snapshot(store.database).excluded == (), "no transaction is left open"


def acknowledge(store: Store, row: bytes, **options: Any) -> None:
    """Work one notification off as an observer's transaction does."""
    tx = begin(store, **options)
    opened_by(tx).acknowledge((catalogue_of(store).table("t").number, row, b"n"), conflict_key=None)
    if options:
        tx.flush()
    opened_by(tx).commit()


def test_what_others_have_done_meanwhile_is_skipped(store: Store, second: Store) -> None:
    called = []

    def observer(tx: TransactionContext, row: bytes, column: bytes) -> None:
        called.append(row)
        acknowledge(second, b"b" if row == b"a" else b"a")  # which this round has read already

    store.observe("t", "n", observer)
    write(store, "a")
    write(store, "b")
    assert store.process_notifications() == Processed(done=1, skipped=1)
    assert len(called) == 1


def test_a_round_looks_anew_when_others_are_at_work(store: Store, second: Store) -> None:
    """The other one does the whole page during the first call, and new notifications come."""
    first = True

    def slow(tx: TransactionContext, row: bytes, column: bytes) -> None:
        nonlocal first
        if first:
            first = False
            second.process_notifications()
            for other in "abcde":
                write(store, other)

    calls = Calls()
    store.observe("t", "n", slow)
    second.observe("t", "n", calls)
    for row in "abcde":
        write(store, row)
    assert store.process_notifications() == Processed(conflicted=1, left=5), "its own round sees nothing new"
    assert sorted(calls.rows) == [b"a", b"b", b"c", b"d", b"e"]


def test_a_long_transaction_may_work_a_notification_off(store: Store) -> None:
    store.observe("t", "n", Calls())
    write(store, "a")
    acknowledge(store, b"a", kind="long")
    assert notifications(store) == []


def test_a_conflict_on_other_data_is_tried_again_without_a_failure(store: Store) -> None:
    runs = []

    def observer(tx: TransactionContext, row: bytes, column: bytes) -> None:
        tx.table("t").get("shared", "x")
        if not runs:
            write(store, "shared", column="x")
        runs.append(row)
        tx.table("t").set("shared", "x", b"mine")

    store.observe("t", "n", observer)
    write(store, "a")
    assert store.process_notifications() == Processed(conflicted=1, left=1)
    assert store.observer_failures() == []
    assert store.process_notifications() == Processed(done=1)
    assert runs == [b"a", b"a"]


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_a_notification_that_is_set_during_the_observers_transaction_is_not_lost(store: Store, kind: str) -> None:
    """Of one cell: first by an older transaction that commits now, then by a younger one."""
    store.configure_table("free", conflict="none")
    waiting: list[Callable[[], object]] = []

    def observer(tx: TransactionContext, row: bytes, column: bytes) -> None:
        if waiting:
            waiting.pop(0)()

    def touch(tx: TransactionContext) -> None:
        table = tx.table("free")
        table.set("a", "n", b"") if kind == "strong" else table.notify("a", "n")

    store.observe("free", "n", observer, kind)
    older = begin(store)
    assert older.id
    touch(older)
    store.run(touch)
    waiting += [lambda: opened_by(older).commit(), lambda: store.run(touch)]
    for _ in range(2):
        assert store.process_notifications() == Processed(done=1, left=1)
    assert store.process_notifications() == Processed(done=1)


def test_an_observer_that_writes_its_own_column_is_called_again(store: Store) -> None:
    """The self-notification that works a backlog off in bounded pieces."""

    def countdown(tx: TransactionContext, row: bytes, column: bytes) -> None:
        left = int(tx.table("t").get(row, column, b"0"))
        if left:
            tx.table("t").set(row, column, b"%d" % (left - 1))

    store.observe("t", "n", countdown)
    write(store, "a", b"3")
    rounds = [store.process_notifications() for _ in range(5)]
    assert rounds == [Processed(done=1, left=1)] * 3 + [Processed(done=1), Processed()]
    with store.transaction() as tx:
        assert tx.table("t").get("a", "n") == b"0"


def test_a_weak_observer_may_notify_itself(store: Store) -> None:
    pieces = list(range(3))

    def observer(tx: TransactionContext, row: bytes, column: bytes) -> None:
        pieces.pop()
        if pieces:
            tx.table("t").notify(row, column)

    store.observe("t", "n", observer, "weak")
    notify(store, "a")
    while store.process_notifications().left:
        pass
    assert pieces == []
    assert notifications(store) == []


# --- weak: at least once, no conflicts -------------------------------------------------------------------------------


def test_weak_notifications_never_conflict(store: Store, second: Store) -> None:
    met: list[Processed] = []
    store.observe("t", "n", lambda tx, row, column: met.append(second.process_notifications()), "weak")
    second.observe("t", "n", Calls(), "weak")
    notify(store, "a")
    assert store.process_notifications() == Processed(done=1)
    assert met == [Processed(done=1)], "called twice, and both have committed"
    assert notifications(store) == []


def test_setters_of_weak_notifications_do_not_conflict_with_each_other_or_with_observers(store: Store) -> None:
    store.observe("t", "n", lambda tx, row, column: notify(store, row), "weak")
    one, two = begin(store), begin(store)
    for tx in (one, two):
        assert tx.id
        tx.table("t").notify("a", "n")
    for tx in (one, two):
        opened_by(tx).commit()
    assert store.process_notifications() == Processed(done=1, left=1)


def test_a_transaction_that_only_notifies_and_an_observer_that_writes_nothing_take_effect(store: Store) -> None:
    store.observe("t", "n", Calls(), "weak")
    notify(store, "a")
    assert notifications(store) == [(b"a", b"n")]
    store.process_notifications()
    assert notifications(store) == []


def test_a_write_to_a_column_with_a_weak_observer_notifies_nobody(store: Store) -> None:
    store.observe("t", "n", Calls(), "weak")
    write(store, "a")
    assert notifications(store) == []


# --- failures --------------------------------------------------------------------------------------------------------


class Sick(Calls):
    """Fails on some rows."""

    def __init__(self, *sick: bytes) -> None:
        super().__init__()
        self.sick = set(sick)

    def __call__(self, tx: TransactionContext, row: bytes, column: bytes) -> None:
        super().__call__(tx, row, column)
        tx.table("t").set(row, "result", b"written")
        if row in self.sick:
            raise ValueError(f"cannot digest {row!r}")


def result(store: Store, row: str) -> bytes | None:
    with store.transaction() as tx:
        return tx.table("t").get(row, "result")


def test_a_failing_observer_waits_while_others_go_on_and_recovers(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "FIRST_MS", 20_000)  # no wait ends while the test looks
    observer = Sick(b"b")
    store.observe("t", "n", observer)
    for row in "abc":
        write(store, row)
    assert store.process_notifications() == Processed(done=2, failed=1)
    (record,) = caplog.records
    assert "observer of t/n failed on row b, attempt 1, next in" in record.message
    assert "ValueError: cannot digest b'b'" in record.message
    assert store.process_notifications() == Processed(), "it waits"
    assert (result(store, "a"), result(store, "b")) == (b"written", None)
    (failure,) = store.observer_failures()
    assert (failure.table, failure.row, failure.column, failure.attempts) == ("t", b"b", b"n", 1)
    assert failure.error == "ValueError: cannot digest b'b'"

    waits = []
    for attempt in range(2, 5):
        make_all_due(store)
        with store.database.read() as work:
            before = work.now()
        write(store, "c")
        assert store.process_notifications() == Processed(done=1, failed=1)
        (failure,) = store.observer_failures()
        assert failure.attempts == attempt
        waits.append(failure.next_ms - before)
    assert all(10_000 * 2**i <= wait for i, wait in enumerate(waits, start=1)), waits
    assert notifications(store) == [(b"b", b"n")]

    observer.sick.clear()
    make_all_due(store)
    assert store.process_notifications() == Processed(done=1)
    assert result(store, "b") == b"written"
    assert store.observer_failures() == []
    with store.database.read() as work:
        assert work.connection.execute(schema.observer_failure.select()).all() == []


def test_waits_end_by_the_stores_clock(sqlite_url: str) -> None:
    now = time.time_ns() // 10**6
    with Store.open(sqlite_url, clock=lambda: now) as store:
        store.create()
        store.observe("t", "n", Sick(b"a"))
        write(store, "a")
        assert store.process_notifications().failed == 1
        now += 499
        assert store.process_notifications() == Processed()
        now += 501
        assert store.process_notifications().failed == 1


def test_an_observer_that_failed_while_the_clock_was_ahead_is_called_when_it_is_right_again(sqlite_url: str) -> None:
    now = time.time_ns() // 10**6
    with Store.open(sqlite_url, clock=lambda: now) as store:
        store.create()
        store.observe("t", "n", Sick(b"a"))
        write(store, "a")
        now += 2 * 86_400_000
        assert store.process_notifications().failed == 1
        now -= 2 * 86_400_000
        assert store.process_notifications().failed == 1
        assert store.process_notifications() == Processed()


def test_a_failing_column_does_not_hold_others_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PAGE", 4)
    monkeypatch.setattr(failures, "FIRST_MS", 120_000)  # none is due again before the test is over
    healthy = Calls()
    store.observe("t", "n", Sick(*[b"%02d" % i for i in range(20)]))
    store.observe("t", "m", healthy)
    for i in range(20):
        write(store, f"{i:02d}")
    write(store, "a", column="m")
    assert store.process_notifications(limit=8).failed >= 4
    assert healthy.rows == [b"a"]
    assert store.process_notifications().left == 0
    assert len(store.observer_failures()) == 20


def test_an_error_of_any_kind_is_a_failure_but_an_end_of_the_process_is_none(store: Store) -> None:
    errors: list[BaseException] = [
        ConflictError("of another transaction"),
        StoreUnavailable("of another store"),
        RuntimeError("\x00\ud800"),
        SystemExit(),
    ]

    def observer(tx: TransactionContext, row: bytes, column: bytes) -> None:
        raise errors.pop(0)

    store.observe("t", "n", observer)
    write(store, "a")
    for attempt in (1, 2, 3):
        assert store.process_notifications() == Processed(failed=1)
        assert store.observer_failures()[0].attempts == attempt
        make_all_due(store)
    with pytest.raises(SystemExit):
        store.process_notifications()
    assert store.observer_failures()[0].attempts == 3
    assert notifications(store) == [(b"a", b"n")]
    assert take_snapshot(store.database).excluded == ()


def test_an_observer_that_takes_too_long_fails(store: Store) -> None:
    def observer(tx: TransactionContext, row: bytes, column: bytes) -> None:
        def clock() -> int:
            with store.database.read() as work:
                return work.now()

        moment = clock() + 50
        wait_until(lambda: clock() > moment, "the clock does not move")

    store.observe("t", "n", observer)
    write(store, "a")
    assert store.process_notifications(timeout=0.05) == Processed(failed=1)
    assert "Timeout" in store.observer_failures()[0].error or "Registration" in store.observer_failures()[0].error


# --- order and bounds ------------------------------------------------------------------------------------------------


def test_the_oldest_come_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PAGE", 4)
    calls = Calls()
    store.observe("t", "n", calls)
    rows = [b"%02d" % (i * 7 % 20) for i in range(20)]
    for row in rows:
        write(store, row)
    assert store.process_notifications(limit=8) == Processed(done=8, left=12)
    assert sorted(calls.rows) == sorted(rows[:8])
    assert store.process_notifications().done == 12
    assert sorted(calls.rows) == sorted(rows), "each once"


def test_a_row_that_is_written_all_the_time_does_not_hold_others_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its notifications fill a page, and its observer meets a writer each time."""
    monkeypatch.setattr(rounds, "PAGE", 4)
    calls = Calls()

    def observer(tx: TransactionContext, row: bytes, column: bytes) -> None:
        calls(tx, row, column)
        if row == b"hot":
            write(store, row)
            tx.table("t").set(row, "x", b"")

    store.observe("t", "n", observer)
    for _ in range(10):
        write(store, "hot")
    write(store, "cold")
    assert store.process_notifications() == Processed(done=1, conflicted=1, left=1)
    assert calls.rows == [b"hot", b"cold"]


def test_a_round_ends_though_writers_go_on(store: Store) -> None:
    def observer(tx: TransactionContext, row: bytes, column: bytes) -> None:
        write(store, row + b"x")

    store.observe("t", "n", observer)
    write(store, "a")
    assert store.process_notifications() == Processed(done=1, left=1)


def test_a_round_stops_between_two_notifications_when_told(store: Store) -> None:
    calls = Calls()
    store.observe("t", "n", calls)
    for row in "abcd":
        write(store, row)
    assert store.process_notifications(stop=lambda: len(calls.rows) >= 2) == Processed(done=2, left=2)


# --- several processes -----------------------------------------------------------------------------------------------


def in_processes(count: int, work: Callable[[int], None]) -> list[multiprocessing.process.BaseProcess]:
    children = [fork.Process(target=work, args=(i,), daemon=True) for i in range(count)]
    for child in children:
        child.start()
    return children


def test_two_processes_together_call_an_observer_once_for_each_row(store: Store, store_url: str) -> None:
    rows = 240
    store.configure_table("meta", conflict="row")
    store.configure_queue("ici")
    store.observe("meta", "numUpdates", count_updates)
    for i in range(0, rows, 40):
        with store.transaction() as tx:
            for j in range(i, i + 40):
                tx.table("meta").set(f"r{j}", "numUpdates", b"1")
    receiver, sender = fork.Pipe(duplex=False)
    barrier = fork.Barrier(2)

    def work(number: int) -> None:
        with Store.open(store_url) as mine:
            mine.observe("meta", "numUpdates", count_updates)
            barrier.wait(60)
            total = Processed()
            while (found := mine.process_notifications()).left:
                total = total.then(found)
            sender.send(total.then(found))

    children = in_processes(2, work)
    found = [receiver.recv() for _ in children]
    for child in children:
        child.join(30)
    assert sum(one.done for one in found) == rows
    assert_chains(store, {f"r{j}": 1 for j in range(rows)})


def export_once(tx: TransactionContext, row: bytes, column: bytes) -> None:
    """Writes nothing that could conflict; and takes its time, so that processes meet."""
    time.sleep(0.003)
    tx.queue("once").add(row.decode(), 1)


def test_strong_notifications_take_effect_once_while_processes_are_killed(store: Store, store_url: str) -> None:
    """Whatever dies, what was added is counted once: the sum that observers moved is the sum that writers added.

    And each job, whose observer writes no cell, is exported once.
    """
    seed = int(os.environ.get("EXPORT_QUEUE_SEED", random.randrange(1 << 32)))
    print("EXPORT_QUEUE_SEED", seed)
    chance = random.Random(seed)
    store.configure_table("jobs", conflict="none")
    for queue_id in ("ici", "once"):
        store.configure_queue(queue_id)

    def register(one: Store) -> None:
        one.observe("meta", "numUpdates", count_updates)
        one.observe("jobs", "n", export_once)

    def work(number: int) -> None:
        with Store.open(store_url) as mine:
            register(mine)
            while True:
                if not mine.process_notifications(timeout=2).done:
                    time.sleep(0.01)

    register(store)
    expected: Counter[str] = Counter()
    jobs: list[str] = []
    children = in_processes(3, work)
    for _ in range(8):
        for _ in range(chance.randint(5, 15)):
            row, number = f"e{chance.randrange(6)}", chance.randint(1, 9)
            store.run(lambda tx, row=row, number=number: add_updates(tx, row, number), retry=Retry(attempts=50))  # type: ignore[misc]
            expected[row] += number
            with store.transaction() as tx:
                for _ in range(3):
                    jobs.append(f"j{len(jobs)}")
                    tx.table("jobs").set(jobs[-1], "n", b"")
        time.sleep(chance.random() * 0.1)
        victim = chance.randrange(3)
        children[victim].kill()
        children[victim].join(10)
        children[victim] = in_processes(1, work)[0]
    for child in children:
        child.kill()
        child.join(10)

    wait_until(lambda: store.process_notifications() and not notifications(store), "notifications are left")
    assert store.observer_failures() == []
    assert_chains(store, expected)
    assert Counter(key.decode() for key, _, _ in entries(store, "once")) == Counter(jobs)


MODULE = """
import time
from pathlib import Path

def register(store):
    store.observe("t", "n", slow)

def slow(tx, row, column):
    tx.table("t").set(row, "result", b"written")
    Path("begun").touch()
    end = time.monotonic() + 120
    while not Path("go").exists() and time.monotonic() < end:
        time.sleep(0.01)
"""


@pytest.fixture
def worker(store: Store, store_url: str, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts ``export-queue observe`` in a folder with the module ``mine``."""
    started = []
    (tmp_path / "mine.py").write_text(MODULE)

    def start(target: str = "mine:register") -> subprocess.Popen[str]:
        program = Path(sys.executable).with_name("export-queue")
        started.append(
            subprocess.Popen(
                [program, "observe", target, "--poll", "0.05"],
                env={**os.environ, "EXPORT_QUEUE_STORE": store_url},
                cwd=tmp_path,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full("the other signal runs anyway"))]
)
def test_a_worker_ends_the_transaction_at_hand_when_it_is_told_to_stop(
    store: Store, worker: Callable[..., subprocess.Popen[str]], tmp_path: Path, number: signal.Signals
) -> None:
    process = worker()
    wait_until(lambda: _observed(store), "the worker did not register")
    catalogue_of(store).observed.refresh()
    with store.transaction() as tx:
        for row in "abc":
            tx.table("t").set(row, "n", b"1")
    wait_until((tmp_path / "begun").exists, "no observer was called")
    process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    (tmp_path / "go").touch()
    _, told = process.communicate(timeout=30)
    assert process.returncode == 0, told
    assert "stopped: 1 done, 0 conflicted, 0 failed" in told
    assert sum(result(store, row) == b"written" for row in "abc") == 1
    assert len(notifications(store)) == 2


def test_a_second_ctrl_c_ends_a_worker_at_once_and_leaves_nothing_half_done(
    store: Store, worker: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = worker()
    wait_until(lambda: _observed(store), "the worker did not register")
    catalogue_of(store).observed.refresh()
    write(store, "a")
    wait_until((tmp_path / "begun").exists, "no observer was called")
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)  # the observer alone would go on for 30 s
    assert process.returncode != 0
    assert result(store, "a") is None
    assert notifications(store) == [(b"a", b"n")]
    wait_until(lambda: take_snapshot(store.database).excluded == (), "its id stays in progress")


def _observed(store: Store) -> bool:
    with store.database.read() as work:
        return bool(work.connection.execute(schema.observed.select()).all())


def test_an_idle_worker_stops_at_once(store: Store, worker: Callable[..., subprocess.Popen[str]]) -> None:
    process = worker()
    wait_until(lambda: _observed(store), "the worker did not register")
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 0, told


def test_a_worker_says_what_is_wrong_with_its_target(worker: Callable[..., subprocess.Popen[str]]) -> None:
    process = worker("mine:missing")
    _, told = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "has no attribute 'missing'" in told
    assert "Traceback" not in told
    process = worker("asyncio:sleep")
    _, told = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "asyncio:sleep: expected a plain function, found an async function" in told
    assert "never awaited" not in told


class Mute(Exception):
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [Mute, lambda: ValueError("\x00 \ud800")], ids=["no text", "half a character"])
def test_an_observer_whose_error_cannot_be_stored_as_it_is_blocks_no_other(
    store: Store, error: Callable[[], Exception]
) -> None:
    called: list[bytes] = []

    def observer(tx: TransactionContext, row: bytes, column: bytes) -> None:
        called.append(row)
        if row == b"bad":
            raise error()

    store.observe("t", "c", observer)
    with store.transaction() as tx:
        for row in ("a", "bad", "z"):
            tx.table("t").set(row, "c", b"1")
    processed = store.process_notifications()
    assert (processed.done, processed.failed) == (2, 1)
    assert sorted(called) == [b"a", b"bad", b"z"]
    assert [failure.row for failure in store.observer_failures()] == [b"bad"]
