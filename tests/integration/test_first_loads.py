"""First loads from a source: the sink of the new reader equals what was committed, whatever happens meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from export_queue import (
    InvalidArgument,
    MemorySink,
    RegistrationLost,
    StateIncomplete,
    Store,
    drain,
)
from export_queue.core.sources import first_load


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
