"""A transaction leaves one entry for each key: what it added last, value or gone, whatever form each took (I9)."""

from __future__ import annotations

import contextlib
import os
import random
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
from tests.support import bulk
from tests.support.contexts import begin, opened_by

from export_queue import (
    Candidates,
    ChangeSetTooLarge,
    EntryError,
    InvalidArgument,
    Limits,
    MemorySink,
    SegmentLost,
    Store,
    TransactionContext,
    drain,
)
from export_queue.core.drain import claims
from export_queue.core.maintenance import maintain
from export_queue.core.segments import one_entry, vacuum_segments
from export_queue.core.store import queries
from export_queue.core.store.refusals import StagedMeanwhile
from export_queue.core.transactions import BEFORE_COMMIT

Value = bytes | None
SEED = os.environ.get("EXPORT_QUEUE_SEED")


@pytest.fixture
def orders(store: Store, tmp_path: Path) -> Store:
    """A store with a queue of four units, whose files are in a folder of the test's."""
    store.database.segments = str(tmp_path / "segments")
    store.configure_queue("orders", buckets=20, buckets_per_range=5, value="bytes")
    return store


def one_unit(store: Store, folder: Path) -> Store:
    """Give a store a queue of one unit."""
    store.database.segments = str(folder / "segments")
    store.configure_queue("orders", buckets=1, value="bytes")
    return store


def add_table(tx: TransactionContext, entries: dict[str, Value], queue_id: str = "orders") -> None:
    values = pa.array(list(entries.values()), pa.binary())
    tx.queue(queue_id).add_batch(pa.table({"key": list(entries), "value": values}))


def add_rows(tx: TransactionContext, entries: dict[str, Value], queue_id: str = "orders") -> None:
    for key, value in entries.items():
        tx.queue(queue_id).add(key, value, replace=True)


FORMS = {"table": add_table, "row": add_rows}


def deliver(store: Store, reader: str = "orders") -> tuple[int, dict[str, Any]]:
    """Drain a reader into an empty sink; returns how many entries were read, and the records."""
    sink = MemorySink(f"{reader} {random.random()}")
    report = drain(store, reader, sink, sink_name=reader)
    assert report.read == report.acknowledged
    return report.read, {key.decode(): value for (_, key), value in sink.records().items()}


def books(store: Store, reader: str = "orders") -> tuple[int, int]:
    """Count what waits, as the backlog and peek say."""
    return sum(unit.entries for unit in store.backlog(reader)), len(store.peek(reader, limit=1000))


def without_gone(entries: dict[str, Value]) -> dict[str, Value]:
    return {key: value for key, value in entries.items() if value is not None}


ORDERS_OF_ADDS = [
    ("table", "row"),
    ("row", "table"),
    ("table", "table"),
    ("row", "row"),
    ("table", "row", "table"),
    ("row", "table", "row"),
    ("table", "table", "row"),
]


@pytest.mark.parametrize("kind", ["long", "short"])
def test_what_a_transaction_adds_last_of_a_key_is_its_only_entry(orders: Store, kind: Any) -> None:
    """Each order of forms ends once with a value and once with gone, in one transaction for all."""
    expected: dict[str, Value] = {}
    with orders.transaction(long=kind == "long") as tx:
        for number, forms in enumerate(ORDERS_OF_ADDS):
            for last in (b"last", None):
                key = f"{number} {last!r}"
                for form in forms[:-1]:
                    FORMS[form](tx, {key: None if last else b"first"})
                FORMS[forms[-1]](tx, {key: last})
                expected[key] = last
    assert books(orders) == (len(expected), len(expected))
    assert deliver(orders) == (len(expected), without_gone(expected))
    assert books(orders) == (0, 0)


@pytest.mark.parametrize("form", FORMS)
def test_an_add_of_several_entries_that_is_refused_adds_none(orders: Store, form: str) -> None:
    """Whoever catches the error has in the transaction what was there before."""
    refused: list[tuple[type[Exception], Any]] = [
        (EntryError, [("a", b"1"), ("", b"2")]),
        (EntryError, [("a", b"1"), ("b", b"2"), ("a", b"3")]),
        (EntryError, [("a", b"1"), ("b", b"x" * (2 << 20))]),
        (ChangeSetTooLarge, [(f"k{n}", b"1") for n in range(40)]),
        (ChangeSetTooLarge, [(f"k{n}", b"x" * 400_000) for n in range(4)]),
    ]
    orders.database.limits = Limits(max_changes=20, max_bytes=1 << 20)
    with orders.transaction() as tx:
        queue = tx.queue("orders")
        queue.add("before", b"1")
        for error, pairs in refused:
            with pytest.raises(error):
                if form == "row":
                    queue.add_many(pairs)
                else:
                    keys, values = zip(*pairs, strict=True)
                    queue.add_batch(pa.table({"key": keys, "value": pa.array(values, pa.binary())}))
        queue.add_many([("a", b"1"), ("after", b"1")])
    assert deliver(orders) == (3, {"before": b"1", "a": b"1", "after": b"1"})


@pytest.mark.parametrize("what", ["backlog", "peek"])
def test_a_count_during_a_compaction_counts_nothing_twice(store: Store, tmp_path: Path, what: str) -> None:
    """The compaction moves rows into a file after rows, or files, are counted."""
    orders = one_unit(store, tmp_path)
    for number in range(3):
        bulk.load(orders, {f"k{number}": b"1"})
    bulk.put(orders, ["a", "b"], b"1")
    merged: list[Any] = []

    def merge(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if not merged and re.match(r"(?is)\s*select.*\bxq_(entry|segment)\b", statement):
            merged.append(None)
            merged[0] = orders.compact("orders", wanted=Candidates(least=2)).rows

    sa.event.listen(orders.database.engine, "after_cursor_execute", merge)
    if what == "backlog":
        assert sum(unit.entries for unit in orders.backlog("orders")) == 5
    else:
        assert len(orders.peek("orders")) == 5
    assert merged == [2]


def test_a_bound_transaction_leaves_the_last_entry_of_a_key(orders: Store, store_url: str) -> None:
    if store_url.startswith("sqlite"):
        connection: Any = sqlite3.connect(store_url.removeprefix("sqlite:///"), isolation_level=None)
        connection.execute("begin immediate")
    else:
        connection = psycopg.connect(store_url.replace("+psycopg", ""))
    with contextlib.closing(connection):
        with orders.transaction(connection=connection) as tx:
            add_table(tx, {"a": b"1", "b": b"1"})
            add_rows(tx, {"a": None})
            add_rows(tx, {"b": None})
            add_table(tx, {"b": b"2"})
        connection.commit()
    assert deliver(orders) == (2, {"b": b"2"})


def test_each_subscription_gets_one_entry_of_a_key(store: Store, tmp_path: Path) -> None:
    store.database.segments = str(tmp_path / "segments")
    readers = ["search", "cache"]
    store.configure_queue("orders", buckets=12, buckets_per_range=3, value="bytes", subscriptions=readers)
    with store.transaction(long=True) as tx:
        add_table(tx, {f"k{n}": b"1" for n in range(30)})
        add_rows(tx, {f"k{n}": None for n in range(10)})
        tx.flush()
        add_rows(tx, {f"k{n}": b"row" for n in range(5, 20)})
        add_table(tx, {f"k{n}": b"table" for n in range(15, 25)})
    values = [*[None] * 5, *[b"row"] * 10, *[b"table"] * 10, *[b"1"] * 5]
    expected = {f"k{n}": value for n, value in enumerate(values)}
    for reader in readers:
        assert books(store, f"orders/{reader}") == (30, 30)
        assert deliver(store, f"orders/{reader}") == (30, without_gone(expected))


def test_a_first_load_leaves_one_entry_of_a_key(store: Store, tmp_path: Path) -> None:
    store.database.segments = str(tmp_path / "segments")
    store.configure_queue("orders", buckets=4, buckets_per_range=2, value="bytes", subscriptions=["search"])
    store.subscribe("orders", "cache")
    with store.first_load("orders/cache") as load:
        load.add_batch(pa.table({"key": ["a", "b"], "value": [b"1", b"1"]}))
        load.add("a", b"2")
        load.add_batch(pa.table({"key": ["b"], "value": [b"2"]}))
    assert books(store, "orders/cache") == (2, 2)
    assert deliver(store, "orders/cache") == (2, {"a": b"2", "b": b"2"})


def test_the_adds_of_several_queues_are_not_mixed(orders: Store) -> None:
    orders.configure_queue("airports", buckets=4, value="bytes")
    with orders.transaction(long=True) as tx:
        add_table(tx, {"a": b"1", "b": b"1"})
        add_table(tx, {"a": b"2", "c": b"2"}, "airports")
        add_rows(tx, {"c": b"3", "a": None}, "airports")
        add_rows(tx, {"b": b"3"})
    assert deliver(orders) == (2, {"a": b"1", "b": b"3"})
    assert deliver(orders, "airports") == (2, {"c": b"3"})


@pytest.mark.parametrize("buckets", [1, 16])
def test_keys_are_compared_part_by_part(store: Store, tmp_path: Path, monkeypatch: Any, buckets: int) -> None:
    """As in transactions whose keys do not fit into memory together."""
    monkeypatch.setattr(one_entry, "ENTRIES_AT_ONCE", 40)
    store.database.segments = str(tmp_path / "segments")
    store.configure_queue("orders", buckets=buckets, value="bytes")
    expected: dict[str, Value] = {}
    with store.transaction(long=True) as tx:
        for number in range(6):
            entries: dict[str, Value] = {f"k{n}": b"%d" % number for n in range(number * 10, 200 - number * 20)}
            FORMS["row" if number in (1, 4) else "table"](tx, entries)
            expected |= entries
        opened_by(tx).known_keys.clear()
    assert books(store) == (200, 200)
    assert deliver(store) == (200, expected)


def test_another_process_that_commits_leaves_one_entry_too(orders: Store) -> None:
    """It knows no keys by itself, and reads them back."""
    handle = orders.begin()
    with orders.resume(handle) as tx:
        add_table(tx, {"a": b"1", "b": b"1"})
    with orders.resume(handle) as tx:
        add_rows(tx, {"a": None})
    with orders.resume(handle) as tx:
        add_table(tx, {"b": b"2"})
    orders.commit(handle)
    assert deliver(orders) == (2, {"b": b"2"})


@pytest.fixture
def before_commit() -> Iterator[Callable[[Callable[[Any], None]], None]]:
    """Adds a step that runs after keys are compared and before the commit."""
    length = len(BEFORE_COMMIT)
    yield BEFORE_COMMIT.append
    del BEFORE_COMMIT[length:]


@pytest.mark.parametrize("form", FORMS)
def test_what_is_staged_after_the_comparison_is_compared_too(orders: Store, before_commit: Any, form: str) -> None:
    """The commit refuses to publish what nobody has compared."""
    staged: list[int] = []

    def stage(database: Any, transaction: int, known: Any, seconds: float) -> None:
        if transaction == int(handle["id"]) and not staged:
            staged.append(transaction)
            with orders.resume(handle) as other:
                FORMS[form](other, {"a": None, "b": b"2"})

    before_commit(stage)
    with orders.transaction(long=True) as tx:
        handle = opened_by(tx).value.to_json()
        add_table(tx, {"a": b"1", "b": b"1"})
        add_rows(tx, {"b": b"row"})
    assert len(staged) == 1
    assert books(orders) == (2, 2)
    assert deliver(orders) == (2, {"b": b"2"})


def test_a_commit_during_endless_stagings_is_refused_and_says_why(orders: Store, before_commit: Any) -> None:
    def stage(database: Any, transaction: int, known: Any, seconds: float) -> None:
        if transaction == int(handle["id"]):
            with orders.resume(handle) as other:
                add_table(other, {"a": None})

    before_commit(stage)
    with (
        pytest.raises(StagedMeanwhile, match="adds entries in other processes at the same time"),
        orders.transaction(long=True) as tx,
    ):
        handle = opened_by(tx).value.to_json()
        add_table(tx, {"a": b"1"})
    assert books(orders) == (0, 0)


def test_a_comparison_that_is_cut_off_is_repeated_by_the_next_commit(orders: Store, monkeypatch: Any) -> None:
    handle = orders.begin()
    with orders.resume(handle) as tx:
        add_table(tx, {f"k{n}": b"1" for n in range(20)})
        add_table(tx, {f"k{n}": b"2" for n in range(10)})
        add_rows(tx, {f"k{n}": None for n in range(5, 15)})

    class Died(BaseException):
        pass

    def die(*given: Any) -> None:
        raise Died

    with monkeypatch.context() as patches:
        patches.setattr(queries.staged_twice, "note_checked", die)
        with pytest.raises(Died):
            orders.commit(handle)
    with orders.resume(handle) as tx:
        add_rows(tx, {"k0": b"later"})
    orders.commit(handle)
    assert books(orders) == (20, 20)
    values = [b"later", *[b"2"] * 4, *[None] * 10, *[b"1"] * 5]
    assert deliver(orders) == (20, without_gone({f"k{n}": value for n, value in enumerate(values)}))


def test_a_staged_file_that_is_lost_refuses_the_commit_and_publishes_nothing(orders: Store, tmp_path: Path) -> None:
    with pytest.raises(SegmentLost), orders.transaction(long=True) as tx:
        add_table(tx, {"a": b"1"})
        add_table(tx, {"a": b"2"})
        next(iter((tmp_path / "segments").rglob("*.parquet"))).unlink()
    assert books(orders) == (0, 0)


def test_keys_that_differ_are_not_read_back(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process knows the hashes of the keys that it has added by itself."""
    read = []
    monkeypatch.setattr(one_entry, "row_group_tables", lambda *given, **named: read.append(given) or iter(()))
    with orders.transaction(long=True) as tx:
        for number in range(3):
            add_table(tx, {f"k{number} {n}": b"1" for n in range(50)})
    assert read == []
    assert books(orders) == (150, 150)


def test_files_without_entries_that_count_are_deleted(orders: Store, tmp_path: Path) -> None:
    with orders.transaction(long=True) as tx:
        add_table(tx, {f"k{n}": b"1" for n in range(50)})
        add_table(tx, {f"k{n}": b"2" for n in range(50)})
    assert books(orders) == (50, 50)
    assert deliver(orders) == (50, {f"k{n}": b"2" for n in range(50)})
    for _ in range(2):
        maintain(orders.database)
        vacuum_segments(orders.database, grace_seconds=0.0, zombie_seconds=0.0)
    assert [path for path in (tmp_path / "segments").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("when", ["before the claim", "after the claim"])
def test_a_drain_delivers_all_or_nothing_of_a_transaction_that_commits_meanwhile(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The claim lists segments, and rows are read after it: one snapshot decides both."""
    orders = one_unit(store, tmp_path)
    bulk.put(orders, ["other"], b"x")
    claim_units, committed = claims.claim_in_layouts, []

    def commit() -> None:
        if not committed:
            with orders.transaction(long=True) as tx:
                committed.append(tx.id)
                add_table(tx, {"k": b"table", "in the table": b"1"})
                add_rows(tx, {"k": None, "in a row": b"1"})

    def claim(*given: Any, **named: Any) -> Any:
        if when == "before the claim":
            commit()
        leases = claim_units(*given, **named)
        commit()
        return leases

    monkeypatch.setattr(claims, "claim_in_layouts", claim)
    sink = MemorySink()
    assert drain(orders, "orders", sink, sink_name="sink").acknowledged in (1, 4)
    read = {key.decode() for _, key in sink.ranks()}
    assert read in ({"other"}, {"other", "k", "in the table", "in a row"})
    drain(orders, "orders", sink, sink_name="sink")
    records = {key.decode(): value for (_, key), value in sink.records().items()}
    assert records == {"other": b"x", "in the table": b"1", "in a row": b"1"}


@pytest.mark.parametrize("second", [b"row", None], ids=["value", "gone"])
def test_a_moved_file_that_is_lost_brings_no_earlier_entry_back(orders: Store, second: Value) -> None:
    with orders.transaction(long=True) as tx:
        add_table(tx, {"k": b"table", "other": b"1"})
        add_rows(tx, {"k": second})
    orders.alter_queue("orders", buckets=3, buckets_per_range=1, guard="seq")
    moved = orders.compact("orders", older_layouts=True)
    for file in moved.files:
        Path(file).unlink()
    given_up = 0
    for file in moved.files:
        try:
            given_up += orders.dead_letters.fall_back("orders", file).given_up
        except InvalidArgument:  # rows alone were moved into it
            given_up += orders.dead_letters.give_up_file("orders", file)
    # The row was in the lost file alone: it is counted, and no older value of its key stands in for it.
    assert given_up == 1
    assert deliver(orders) == (1, {"other": b"1"})


def test_of_random_adds_of_the_same_keys_the_last_one_counts(orders: Store) -> None:
    """The wider walk, next to compactions, moves and lost files, is in ``test_queue_world.py``."""
    seed = int(SEED) if SEED else random.randrange(1 << 32)
    print("EXPORT_QUEUE_SEED", seed)
    chance, sink, expected = random.Random(seed), MemorySink(), dict[str, Value]()
    for number in range(8):
        context, added = begin(orders, kind=chance.choice(["long", "long", "long", "short"])), dict[str, Value]()
        opened = opened_by(context)
        for step in range(chance.randrange(1, 7)):
            keys = chance.sample(range(8), chance.randrange(1, 6))
            entries = {f"k{n}": chance.choice([None, b"%d.%d" % (number, step)]) for n in keys}
            if opened.kind == "long" and chance.random() < 0.2:
                with orders.resume(opened.value.to_json()) as other:
                    opened.flush()
                    FORMS[chance.choice(["table", "row"])](other, entries)
            else:
                FORMS[chance.choice(["table", "row"])](context, entries)
            added |= entries
            if opened.kind == "long" and chance.random() < 0.3:
                context.flush()
        if chance.random() < 0.3:
            opened.known_keys.clear()
        opened.commit()
        expected |= added
        assert books(orders) == (len(added), len(added))
        assert drain(orders, "orders", sink, sink_name="sink").read == len(added)
        records = {key.decode(): value for (_, key), value in sink.records().items()}
        assert records == without_gone(expected)
