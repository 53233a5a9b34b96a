"""First loads from a source: the sink of the new reader equals what was committed, whatever happens meanwhile."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.command_line import run_cli
from tests.support.waiting import wait_until

from export_queue import (
    Candidates,
    Delete,
    Entry,
    EntryRejected,
    InvalidArgument,
    MemorySink,
    Put,
    RegistrationLost,
    StateIncomplete,
    Store,
    drain,
    verify,
)
from export_queue.core.segments import compact, vacuum_segments
from export_queue.core.sources import begun_first_load, first_load, load_from
from export_queue.core.state import trim
from export_queue.core.transactions import OpenTransaction


@pytest.fixture
def orders(store: Store, tmp_path: Path) -> Store:
    store.database.segments = str(tmp_path / "segments")
    store.configure_queue("orders", buckets=8, buckets_per_range=4, subscriptions=["cache"], state=True)
    return store


class Orders:
    """What producers have committed, by key; the table that a function reads."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.content: dict[str, Any] = {}

    def add(self, changes: dict[str, Any], *, as_file: bool = False) -> None:
        with self.store.transaction(long=as_file) as tx:
            if as_file:
                tx.queue("orders").add_batch(pa.table({"key": [*changes], "value": pa.array([*changes.values()])}))
            else:
                tx.queue("orders").add_many(changes.items())
        self.content |= changes

    @property
    def now(self) -> dict[str, Any]:
        return {key: value for key, value in self.content.items() if value is not None}


def drained(store: Store, reader: str, sink: MemorySink) -> dict[str, Any]:
    drain(store, reader, sink, sink_name="memory")
    return {key.decode(): int(document) for (_, key), document in sink.records().items()}


def some_rows(orders: Orders) -> None:
    orders.add({f"r{n}": n for n in range(20)})
    orders.add({"r1": None, "r2": 200})


def some_files(orders: Orders) -> None:
    orders.add({f"f{n}": n for n in range(20)}, as_file=True)
    orders.add({"f1": None, "f2": 200}, as_file=True)


def both(orders: Orders) -> None:
    some_rows(orders)
    some_files(orders)
    orders.add({"f3": None, "r3": 300, "f4": 400})
    orders.add({"r4": 400, "r5": None}, as_file=True)


@pytest.mark.parametrize("fill", [some_rows, some_files, both])
@pytest.mark.parametrize("kind", ["state", "function"])
def test_a_new_reader_equals_what_was_committed(orders: Store, fill: Callable[[Orders], None], kind: str) -> None:
    made = Orders(orders)
    fill(made)
    orders.subscribe("orders", "search")
    made.add({"r6": 600, "f6": None})  # also an entry of the reader
    seen: list[int] = []
    source: Any = "state" if kind == "state" else lambda: made.now.items()
    report = orders.first_load("orders/search", source=source, on_progress=seen.append)
    assert orders.queue("orders/search").first_load == "made"
    assert report.entries == seen[-1] >= len(made.now)
    made.add({"r7": 700, "f7": None})
    assert drained(orders, "orders/search", MemorySink()) == made.now


def test_many_entries_are_added_as_files(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_load, "_FILES_FROM", 50)
    monkeypatch.setattr(first_load, "_IN_A_FILE", 100)
    made = Orders(orders)
    made.add({f"k{n}": n for n in range(270)})
    orders.subscribe("orders", "search")
    report = orders.first_load("orders/search", source=lambda: made.now.items())
    assert report.entries == 270
    assert len(set(orders.bulk_files())) == 4
    assert drained(orders, "orders/search", MemorySink()) == made.now


def test_what_is_committed_during_a_load_is_neither_lost_nor_undone(orders: Store) -> None:
    made = Orders(orders)
    both(made)
    orders.subscribe("orders", "search")

    def rows() -> Iterator[tuple[str, Any]]:
        for number, (key, value) in enumerate(made.now.items()):
            yield key, value
            if number == 5:
                made.add({"r6": 666, "r7": None, "new": 1})
                made.add({"f6": 666, "f7": None}, as_file=True)

    orders.first_load("orders/search", source=rows)
    assert drained(orders, "orders/search", MemorySink()) == made.now


def test_writers_go_on_during_a_load_from_the_state(orders: Store) -> None:
    made = Orders(orders)
    both(made)
    orders.subscribe("orders", "search")
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            made.add({f"r{number % 20}": None if number % 3 == 0 else number}, as_file=number % 7 == 0)
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        orders.first_load("orders/search", source="state")
    finally:
        stop.set()
        writer.join()
    assert drained(orders, "orders/search", MemorySink()) == made.now


def test_a_load_from_a_source_replaces_one_that_was_killed(orders: Store) -> None:
    made = Orders(orders)
    both(made)
    orders.subscribe("orders", "search")
    killed = orders.first_load("orders/search")
    load = killed.__enter__()
    load.add("r1", 1)
    load.flush()
    orders.first_load("orders/search", source="state")
    with pytest.raises(RegistrationLost):
        killed.__exit__(None, None, None)
    assert drained(orders, "orders/search", MemorySink()) == made.now


def test_a_load_that_was_replaced_before_it_shares_files_is_refused_as_replaced(orders: Store) -> None:
    made = Orders(orders)
    both(made)
    orders.subscribe("orders", "search")
    newer = functools.cache(lambda: orders.first_load("orders/search", source="state"))
    with (
        pytest.raises(RegistrationLost),
        begun_first_load(orders.database, "orders/search") as (opened, subscription),
    ):
        load_from(opened, subscription, "state", lambda _: newer())
    assert drained(orders, "orders/search", MemorySink()) == made.now


def test_a_load_that_fails_adds_nothing(orders: Store) -> None:
    made = Orders(orders)
    some_rows(made)
    orders.subscribe("orders", "search")

    def broken() -> Iterator[tuple[str, Any]]:
        yield "r3", 3
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        orders.first_load("orders/search", source=broken)
    assert orders.queue("orders/search").first_load == "missing"
    assert orders.backlog("orders/search") == []
    orders.first_load("orders/search", source="state")
    with pytest.raises(InvalidArgument, match="found that it was made"):
        orders.first_load("orders/search", source="state")


def test_a_wrong_source_is_refused_before_anything_begins(orders: Store) -> None:
    orders.subscribe("orders", "search")
    with pytest.raises(InvalidArgument, match="nowhere"):
        orders.first_load("orders/search", source="nowhere:rows")
    orders.alter_queue("orders", state=False)
    with pytest.raises(InvalidArgument, match="has no state"):
        orders.first_load("orders/search", source="state")
    orders.alter_queue("orders", state=True)
    with pytest.raises(StateIncomplete):
        orders.first_load("orders/search", source="state")
    with pytest.raises(InvalidArgument, match="expected another source, found the state itself"):
        orders.first_load(orders.state("orders").id, source="state")


def test_a_state_is_loaded_from_a_function(orders: Store) -> None:
    orders.alter_queue("orders", state=False)
    made = Orders(orders)
    both(made)
    orders.alter_queue("orders", state=True)
    orders.first_load(orders.state("orders").id, source=lambda: made.now.items())
    assert dict(orders.state("orders").scan()) == made.now


def compacted(store: Store, reader: str) -> None:
    compact(store.database, reader, wanted=Candidates(least=2))


def test_files_of_the_state_are_shared_and_sequences_stay(orders: Store) -> None:
    made = Orders(orders)
    both(made)
    compacted(orders, "orders/@state")
    made.add({"r8": 800, "f8": None})  # rows on top of the files
    orders.subscribe("orders", "search")
    files = set(orders.bulk_files())
    report = orders.first_load("orders/search", source="state")
    assert report.shared > 40
    assert report.entries == report.shared + 2
    assert len(set(orders.bulk_files()) - files) == 1  # the rows
    sink = MemorySink()
    assert drained(orders, "orders/search", sink) == made.now
    checked = verify(orders, "orders/search", sink, sink_name="memory")
    assert checked.differences == 0, checked.lines()
    assert checked.compared >= len(made.now)


@pytest.mark.parametrize("was_dead", [False, True])
def test_an_entry_in_a_row_and_a_shared_file_is_counted_twice_and_delivered_once(orders: Store, was_dead: bool) -> None:
    is_refused = was_dead

    def exporter(entry: Entry) -> Iterator[Put | Delete]:
        if is_refused:
            raise EntryRejected("not now")
        yield Delete("orders", entry.key) if entry.value is None else Put("orders", entry.key, entry.value)

    made = Orders(orders)
    some_files(made)
    orders.subscribe("orders", "search")
    made.add({f"y{n}": n for n in range(6)})  # rows of the reader, and of the state
    sink = MemorySink()
    if was_dead:
        assert drain(orders, "orders/search", sink, sink_name="memory", exporter=exporter).dead == 6
    compacted(orders, "orders/@state")
    pending = orders.first_load("orders/search", source="state").shared
    if was_dead:
        assert orders.dead_letters.retry("orders/search") == 6
        is_refused = False
    counted = sum(unit.entries for unit in orders.backlog("orders/search"))
    assert counted == pending + 6
    assert f'queue_entries{{queue="orders/search"}} {counted}' in orders.metrics()
    report = drain(orders, "orders/search", sink, sink_name="memory", exporter=exporter)
    assert (report.read, report.acknowledged, report.dead, report.left) == (pending, pending, 0, 0)
    assert orders.backlog("orders/search") == []
    assert {key.decode(): int(document) for (_, key), document in sink.records().items()} == made.now


@pytest.mark.parametrize("has_rows", [False, True])
def test_a_file_stays_while_a_reader_still_names_it(orders: Store, *, has_rows: bool) -> None:
    made = Orders(orders)
    some_files(made)
    compacted(orders, "orders/@state")
    if has_rows:
        made.add({f"r{n}": n for n in range(10)})
    orders.subscribe("orders", "search")
    orders.first_load("orders/search", source="state")
    drained(orders, "orders/cache", MemorySink())
    for value in (900, 901):
        made.add({f"f{n}": value for n in range(9, 19)}, as_file=True)  # in both units
    compact(orders.database, "orders/@state", wanted=Candidates(least=2))
    none = {"grace_seconds": 0.0, "zombie_seconds": 0.0, "hidden_seconds": 0.0}
    foretold = vacuum_segments(orders.database, **none, dry_run=True).deleted
    for _ in range(2):
        vacuum_segments(orders.database, **none)
    assert {file for file in orders.bulk_files() if not Path(file).exists()} == set()
    assert not [file for file in foretold if file in orders.bulk_files()]
    assert drained(orders, "orders/search", MemorySink()) == made.now
    for _ in range(2):
        vacuum_segments(orders.database, **none)
    left = {str(one) for one in Path(str(orders.database.segments)).rglob("*.parquet")}
    assert left == set(orders.bulk_files())  # those of the state and of the other reader


@pytest.mark.parametrize(("shares", "merges"), [(False, False), (True, False), (True, True)])
def test_a_wait_for_a_replaced_entry_knows_that_the_load_is_pending(orders: Store, shares: bool, merges: bool) -> None:
    orders.alter_queue("orders", history=0.001)
    made = Orders(orders)
    with orders.transaction() as tx:
        tx.queue("orders").add("old", 1)
    token = tx.token
    made.add({"old": 2})
    wait_until(lambda: trim(orders.database, limit=100) > 0, what="the replaced entry is deleted")
    if shares:
        in_both_units = dict.fromkeys((f"o{n}" for n in range(10)), 1)
        for _ in range(2):
            made.add(in_both_units, as_file=True)
        compacted(orders, "orders/@state")
        made.add(in_both_units, as_file=True)
    orders.subscribe("orders", "search")
    report = orders.first_load("orders/search", source="state")
    assert report.entries - report.shared == (0 if shares else 1)
    if merges:
        compacted(orders, "orders/search")
    assert not orders.is_exported(token, "orders/search")
    assert drained(orders, "orders/search", MemorySink()) == made.now
    assert orders.is_exported(token, "orders/search")


def test_an_aborted_load_leaves_the_files_of_the_state_alone(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Orders(orders)
    both(made)
    compacted(orders, "orders/@state")
    orders.subscribe("orders", "search")

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(OpenTransaction, "commit", broken)
        with pytest.raises(ZeroDivisionError):
            orders.first_load("orders/search", source="state")
    for _ in range(2):
        vacuum_segments(orders.database, grace_seconds=0.0, zombie_seconds=0.0)
    assert dict(orders.state("orders").scan()) == made.now
    orders.first_load("orders/search", source="state")
    assert drained(orders, "orders/search", MemorySink()) == made.now


def test_other_buckets_than_those_of_the_state_are_copied(orders: Store) -> None:
    made = Orders(orders)
    both(made)
    orders.alter_queue("orders", buckets=6, buckets_per_range=3, guard="seq")
    made.add({"r9": 900, "f9": None})
    orders.subscribe("orders", "search")
    report = orders.first_load("orders/search", source="state")
    assert report.shared == 0
    assert drained(orders, "orders/search", MemorySink()) == made.now


def test_the_command_line_loads_from_tables_and_queries(store: Store, store_url: str) -> None:
    store.configure_queue("q", buckets=4, buckets_per_range=2, subscriptions=["cache"], state=True)
    store.configure_table("t", row="str", value="json")
    with store.transaction() as tx:
        tx.table("t").set("a", "n", 1)
    sources = {
        "table": ("--source", "table:t"),
        "query": ("--query", "select 1 as id, 2 as n", "--key", "id", "--value", "n"),
        "state": (),
    }
    assert "1 new" in run_cli("mirror", "q", "--query", "select 'k' as key, 3 as value", url=store_url)
    for name, options in sources.items():
        store.subscribe("q", name)
        assert "1 entries" in run_cli("first-load", f"q/{name}", *options, url=store_url)
    found = {}
    for name in sources:
        sink = MemorySink()
        drain(store, f"q/{name}", sink, sink_name="memory")
        found[name] = {key: document for (_, key), document in sink.records().items()}
    assert found == {"table": {b"a": b'{"n":1}'}, "query": {b"1": b"2"}, "state": {b"k": b"3"}}
    assert "give either" in run_cli(
        "first-load", "q/table", "--query", "select 1", "--source", "t", url=store_url, status=2
    )
