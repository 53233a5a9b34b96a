"""The floor that a store lets its sinks be swept to, and sweeps from the store to the sink."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_line import run_cli

from export_queue import (
    ApplyResult,
    InvalidArgument,
    MemorySink,
    Operations,
    SinkBelongsToAnother,
    SinkConfigurationError,
    SinkSpec,
    Store,
    drain,
)
from export_queue.core import maintenance
from export_queue.core.maintenance import safe_floor, tombstones
from export_queue.core.sinks import CompositeSink
from export_queue.core.store.queries import cleanup


@pytest.fixture
def orders(store: Store) -> Store:
    store.configure_queue("orders", buckets=8, buckets_per_range=4)
    store.configure_queue("others", buckets=4, buckets_per_range=4)
    return store


def add(store: Store, queue: str = "orders", **values: Any) -> int:
    with store.transaction() as tx:
        for key, value in values.items():
            tx.queue(queue).add(key, value)
        return tx.id


def held(store: Store) -> tuple[int, str | None]:
    found = safe_floor(store.database)
    return found.floor, found.held_by


def test_of_a_store_at_rest_all_that_was_committed_may_be_forgotten(orders: Store) -> None:
    assert safe_floor(orders.database).held_by is None
    seq = add(orders, anna=1)
    drain(orders, "orders", MemorySink())
    floor, held_by = held(orders)
    assert floor >= seq
    assert held_by is None


@pytest.mark.parametrize("queue", ["orders", "others"])
def test_the_floor_stays_below_what_is_queued_in_any_queue(orders: Store, queue: str) -> None:
    first = add(orders, queue, anna=1)
    add(orders, queue, ben=1)
    add(orders, "orders", carl=1)
    assert held(orders) == (first - 1, "queued")


def test_the_floor_stays_below_what_is_in_progress_staged_or_not(orders: Store) -> None:
    tx = orders.begin()
    running = int(tx["id"])
    add(orders, anna=1)
    drain(orders, "orders", MemorySink())
    assert held(orders) == (running - 1, "in progress")
    with orders.resume(tx) as context:
        context.queue("orders").add("ben", 1)
        context.flush()
    assert held(orders)[0] == running - 1
    orders.commit(tx)
    assert held(orders) == (running - 1, "queued")


def test_the_floor_stays_below_what_is_invalid_and_not_pruned(orders: Store) -> None:
    with orders.transaction() as tx:
        seq = tx.id
    with orders.database.connect() as connection:
        orders.database.dialect.steps.abort(connection, kind="long", transaction=seq, kept=[seq], left_to="somebody")
    add(orders, anna=1)
    drain(orders, "orders", MemorySink())
    assert held(orders) == (seq - 1, "in progress")


def test_the_floor_stays_below_a_dead_letter_until_it_is_dropped(orders: Store) -> None:
    seq, sink = add(orders, anna=1), MemorySink()
    report = drain(orders, "orders", sink, exporter=lambda entry: [entry])
    assert report.dead == 1
    assert held(orders) == (seq - 1, "a dead letter")
    orders.dead_letters.retry("orders")
    assert held(orders) == (seq - 1, "queued")
    drain(orders, "orders", sink, exporter=lambda entry: [entry])
    orders.dead_letters.drop("orders")
    assert held(orders)[0] >= seq


def test_what_commits_between_the_two_looks_is_seen(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever look comes first, right before the second one a transaction commits that was in progress."""
    tx = orders.begin()
    with orders.resume(tx) as context:
        context.queue("orders").add("anna", 1)
        context.flush()
    moved = commit_between(orders, monkeypatch, lambda: orders.commit(tx))
    floor = safe_floor(orders.database).floor
    assert moved == ["looked", "committed", "looked"]
    assert floor < int(tx["id"])


def test_a_short_transaction_that_commits_between_the_two_looks_is_seen(
    orders: Store, open_store: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store() as other:
        context = other.transaction()
        tx = context.__enter__()
        seq = tx.id
        tx.queue("orders").add("anna", 1)
        moved = commit_between(orders, monkeypatch, lambda: context.__exit__(None, None, None))
        floor = safe_floor(orders.database).floor
    assert moved == ["looked", "committed", "looked"]
    assert floor < seq


def commit_between(store: Store, monkeypatch: pytest.MonkeyPatch, commit: Callable[[], Any]) -> list[str]:
    """Commit after the first of the two looks, whichever it is; returns what happened."""
    happened: list[str] = []

    def after(look: Callable[..., Any]) -> Callable[..., Any]:
        def looked(*arguments: Any) -> Any:
            found = look(*arguments)
            happened.append("looked")
            if len(happened) == 1:
                commit()
                happened.append("committed")
            return found

        return looked

    monkeypatch.setattr(
        store.database.dialect.steps, "take_snapshot", after(store.database.dialect.steps.take_snapshot)
    )
    monkeypatch.setattr(cleanup, "lowest_pending", after(cleanup.lowest_pending))
    return happened


def test_a_letter_that_goes_back_into_its_queue_is_seen(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries and letters are looked at in one statement: between two, what moves could be in neither."""
    seq = add(orders, anna=1)
    drain(orders, "orders", MemorySink(), exporter=lambda entry: [entry])
    statements: list[str] = []
    with orders.database.read() as work:
        execute = work.connection.execute
        monkeypatch.setattr(work.connection, "execute", lambda one: statements.append(str(one)) or execute(one))
        assert cleanup.lowest_pending(work) == (None, seq)
    assert len(statements) == 1


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_the_floor_stays_below_a_bound_transaction_that_was_left_open_for_days(orders: Store) -> None:
    """Its id is so old that no snapshot lists it any more, but it may commit."""
    add(orders, anna=1)
    drain(orders, "orders", MemorySink())
    floor = held(orders)[0]
    old = floor - 3 * 24 * 3600 * 1000 * 1_000_000
    with orders.database.begin() as theirs:
        mask = theirs.connection.exec_driver_sql("select mask from export_queue.xq_store").scalar_one()
        theirs.connection.exec_driver_sql("select pg_advisory_xact_lock(%s)", (old ^ mask,))
        assert held(orders) == (old - 1, "in progress")
        theirs.connection.exec_driver_sql("select pg_advisory_xact_lock(%s)", ((old // 2) ^ mask,))
        assert held(orders) == (old - 1, "in progress"), "an id so old is none: a lock of some application"
    assert held(orders)[0] >= floor


def test_late_batches_of_a_drain_that_was_given_up_are_stale(orders: Store) -> None:
    sink = MemorySink()
    put = add(orders, anna=1)
    drain(orders, "orders", sink)
    zombie = Operations(["orders"], [b"anna"], [b"1"], [put], [0])
    add(orders, anna=None)
    drain(orders, "orders", sink)
    assert [key for key, rank in sink.ranks().items() if rank % 2 == 0] == [("orders", b"anna")]
    swept = orders.sweep_sink(sink)
    assert (swept.removed, swept.held_by, sink.ranks()) == (1, None, {})
    assert sink.apply(zombie).stale == 1
    assert sink.records() == {}
    add(orders, anna=2)
    assert drain(orders, "orders", sink).written == 1
    assert sink.records() == {("orders", b"anna"): b"2"}


def test_a_transaction_that_was_in_progress_as_the_sink_was_swept_still_arrives(orders: Store) -> None:
    sink = MemorySink()
    tx = orders.begin()
    add(orders, ben=None)
    drain(orders, "orders", sink)
    assert orders.sweep_sink(sink).removed == 0, "its tombstone is younger than what is in progress"
    with orders.resume(tx) as context:
        context.queue("orders").add("anna", 1)
    orders.commit(tx)
    assert drain(orders, "orders", sink).written == 1
    assert orders.sweep_sink(sink).removed == 1
    assert sink.records() == {("orders", b"anna"): b"1"}


class Watchful(MemorySink):
    """A sink that is never sent what is at or below its floor, since nobody repeats anything here."""

    def apply(self, operations: Operations) -> ApplyResult:
        assert min(operations.seqs) > self._contents.floor.floor
        return super().apply(operations)


def test_drains_and_sweeps_beside_writers_lose_nothing(orders: Store, open_store: Callable[[], Store]) -> None:
    generator = random.Random(os.environ.get("EXPORT_QUEUE_SEED", "sweeps"))
    last: dict[bytes, bytes] = {}
    sweeps: list[int] = []

    def wait_for_a_sweep() -> None:
        """Stay in progress while everything else is drained and the sink is swept."""
        enough, limit = len(sweeps) + 2, time.monotonic() + 60
        while len(sweeps) < enough and time.monotonic() < limit:
            time.sleep(0.001)

    def write(writer: int) -> None:
        with open_store() as store:
            for n in range(15):
                key, value = f"{writer}-{n % 3}", None if generator.random() < 0.5 else n
                if n % 5 == 4:
                    tx = store.begin()
                    with store.resume(tx) as context:
                        context.queue("orders").add(key, value)
                        if n % 2:
                            context.flush()
                    wait_for_a_sweep()
                    store.commit(tx)
                else:
                    with store.transaction() as context:
                        if n % 5:
                            _ = context.id
                            wait_for_a_sweep()
                        context.queue("orders").add(key, value)
                if value is None:
                    last.pop(key.encode(), None)
                else:
                    last[key.encode()] = str(value).encode()

    sink = Watchful()
    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(write, writer) for writer in range(3)]
        while not all(one.done() for one in running):
            drain(orders, "orders", sink, sink_name="MemorySink")
            sweeps.append(orders.sweep_sink(sink).removed)
        for one in running:
            one.result()
    drain(orders, "orders", sink, sink_name="MemorySink")
    assert orders.sweep_sink(sink).held_by is None
    assert sink.records() == {("orders", key): value for key, value in last.items()}
    assert len(sink.ranks()) == len(last)


class Keeper:
    """A sink of a user's own that was written before there were sweeps."""

    def __init__(self) -> None:
        inner = MemorySink()
        self.capabilities, self.admit, self.apply, self.close = (
            inner.capabilities,
            inner.admit,
            inner.apply,
            inner.close,
        )


def test_a_sink_without_the_method_is_named(orders: Store) -> None:
    for sink in (Keeper(), CompositeSink([("mine", Keeper())])):
        with pytest.raises(SinkConfigurationError, match="method sweep"):
            orders.sweep_sink(sink)


def test_of_a_composite_the_parts_that_can_be_swept_are(orders: Store, caplog: pytest.LogCaptureFixture) -> None:
    parts = [MemorySink(), MemorySink(), Keeper()]
    sink = CompositeSink([(name, part) for name, part in zip("abc", parts, strict=True)])
    add(orders, anna=None)
    drain(orders, "orders", sink)
    assert orders.sweep_sink(sink, sink_name="all").removed == 1
    assert [part.ranks() for part in parts[:2]] == [{}, {}]
    assert "not swept" in caplog.text


def test_another_stores_sink_is_refused(orders: Store) -> None:
    sink = MemorySink()
    sink.admit(queue_id="q", store_id="another", fence=1)
    with pytest.raises(SinkBelongsToAnother, match="another"):
        orders.sweep_sink(sink)


def test_a_report_says_what_was_done(orders: Store) -> None:
    add(orders, anna=None)
    spec = SinkSpec("memory", {"name": f"report {orders.id}"})
    drain(orders, "orders", spec)
    waiting = add(orders, anna=1)
    report = orders.sweep_sink(spec)
    assert (report.sink, report.floor, report.held_by, report.removed) == (spec.name, waiting - 1, "queued", 1)
    assert "1 tombstones removed up to 20" in report.line()
    assert "held by what is queued" in report.line()
    assert report.to_json()["floor"] == str(waiting - 1)
    assert {maintenance.sweep_sink, maintenance.safe_floor} == {tombstones.sweep_sink, tombstones.safe_floor}


def test_the_command_sweeps_sinks_that_files_describe(sqlite_url: str, tmp_path: Path) -> None:
    copies = f"sqlite:///{tmp_path}/copies.db"
    described = tmp_path / "copies.json"
    described.write_text(json.dumps({"kind": "sql", "options": {"url": copies}}))
    with Store.open(sqlite_url) as store:
        store.create()
        store.configure_queue("orders")
        add(store, anna=1, ben=None)
        drain(store, "orders", SinkSpec("sql", {"url": copies}))
    shown = run_cli("sweep", str(described), url=sqlite_url)
    assert f"{copies}: 1 tombstones removed up to 20" in shown
    (again,) = [json.loads(line) for line in run_cli("sweep", str(described), "--json", url=sqlite_url).splitlines()]
    assert (again["sink"], again["removed"], again["held_by"]) == (copies, 0, None)
    for wrong in ("{}", "not json", '{"kind": "sql", "password": "hunter"}'):
        described.write_text(wrong)
        message = run_cli("sweep", str(described), url=sqlite_url, status=1)
        assert "expected" in message
        assert "hunter" not in message
    assert "No such file" in run_cli("sweep", "nowhere.json", url=sqlite_url, status=1)


def test_a_file_that_is_no_sink_is_refused(tmp_path: Path) -> None:
    from export_queue.core.cli.naming import read_description

    with pytest.raises(InvalidArgument):
        read_description(tmp_path / "nowhere.json")


@pytest.mark.parametrize("name", ["", "a\nb", "redis://:hunter2@h"])
def test_a_sweep_under_a_name_that_no_sink_can_have_is_refused(orders: Store, name: str) -> None:
    with pytest.raises(InvalidArgument, match="name of a sink") as refused:
        orders.sweep_sink(MemorySink(), sink_name=name)
    assert "hunter2" not in str(refused.value)
