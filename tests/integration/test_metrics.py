"""What there is to watch: the views, the metrics, and the commands that print them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.command_line import run_cli
from tests.support.contexts import context_of
from tests.support.patience import AT_ONCE
from tests.support.waiting import wait_until

from export_queue import (
    ApplyResult,
    DeadLetter,
    MemorySink,
    Operations,
    Owner,
    SinkConfigurationError,
    Store,
    drain,
    verify,
)
from export_queue.core.locks import claim
from export_queue.core.maintenance import maintain, read_metrics, render
from export_queue.core.queue import Position, dead_letter
from export_queue.core.store import schema
from export_queue.core.transactions import OpenTransaction, expire

LINE = re.compile(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? -?[0-9.e+-]+')


def values(store: Store) -> dict[str, float]:
    """The metrics by what stands before the figure; the text is checked on the way."""
    lines = render(read_metrics(store.database)).splitlines()
    assert lines[-1] == "# EOF"
    found = {}
    for line in lines[:-1]:
        if not line.startswith("# "):
            assert LINE.fullmatch(line), line
            name, value = line.rsplit(" ", 1)
            found[name.removeprefix("export_queue_")] = float(value)
    return found


def view(store: Store, name: str, *columns: str) -> list[Any]:
    with store.database.read() as work:
        return list(work.connection.execute(sa.select(sa.Table(name, sa.MetaData(), *map(sa.Column, columns)))))


def wait_for_growth(store: Store, name: str) -> None:
    """Wait until an age has grown: a constant never does, and an age in other units reaches a minute at once."""
    first = values(store)[name]
    assert 0 <= first < 60
    wait_until(lambda: values(store)[name] > first, f"{name} does not grow")


def test_an_empty_store_has_metrics(store: Store) -> None:
    found = values(store)
    assert found['active_transactions{kind="short"}'] == found["oldest_active_seconds"] == 0
    # Nothing has been cleaned up or drained yet: ages are those of the store and of the queue, so that alerts fire.
    with store.database.begin() as work:  # a copy of a store that the tests made earlier
        work.connection.execute(schema.store.update().values(created_ms=work.now()))
    wait_for_growth(store, "horizon_seconds")
    age(store, schema.store, "created_ms")
    assert values(store)["maintenance_seconds"] > 3600
    assert values(store)["horizon_seconds"] > 3600
    maintain(store.database)
    wait_for_growth(store, "maintenance_seconds")


def age(store: Store, table: sa.Table, column: str) -> None:
    """Set a time of all rows back by two hours."""
    with store.database.begin() as work:
        work.connection.execute(table.update().values({column: table.c[column] - 7_200_000}))


def test_the_last_drain_of_each_reader_is_told(store: Store) -> None:
    class Breaking(MemorySink):
        is_broken = True

        def apply(self, operations: Operations) -> ApplyResult:
            if self.is_broken:
                raise SinkConfigurationError("the index is gone")
            return super().apply(operations)

    cache = Breaking()
    store.configure_queue("orders", subscriptions=["search", "cache"], state=True)
    store.configure_queue("idle")
    age(store, schema.queue, "created_ms")
    store.run(lambda tx: tx.queue("orders").add("anna", 1))
    found = values(store)
    readers = ["idle", "orders/cache", "orders/search"]
    assert [name for name in found if "last_drain_failed" in name] == [
        f'last_drain_failed{{queue="{reader}"}}' for reader in readers
    ]
    assert all(found[f'last_drain_seconds{{queue="{reader}"}}'] >= 7_200 for reader in readers)

    drain(store, "idle", MemorySink(), sink_name="idle")
    drain(store, "orders/search", MemorySink(), sink_name="search")
    with pytest.raises(SinkConfigurationError):
        drain(store, "orders/cache", cache, sink_name="cache")
    found = values(store)
    assert all(found[f'last_drain_seconds{{queue="{reader}"}}'] < 60 for reader in readers)
    assert [found[f'last_drain_failed{{queue="{reader}"}}'] for reader in readers] == [0, 1, 0]

    cache.is_broken = False
    drain(store, "orders/cache", cache, sink_name="cache")
    assert values(store)['last_drain_failed{queue="orders/cache"}'] == 0
    store.unsubscribe("orders", "cache")
    store.subscribe("orders", "cache")
    age(store, schema.queue, "created_ms")
    assert values(store)['last_drain_seconds{queue="orders/cache"}'] >= 7_200  # the report is that of its namesake


def test_the_last_comparison_of_each_reader_is_told(store: Store) -> None:
    store.configure_queue("orders", subscriptions=["search", "cache"], state=True)
    age(store, schema.queue, "created_ms")
    found = values(store)
    readers = ["orders/cache", "orders/search"]
    assert [found[f'last_comparison_differences{{queue="{reader}"}}'] for reader in readers] == [0, 0]
    assert all(found[f'last_comparison_seconds{{queue="{reader}"}}'] >= 7_200 for reader in readers)

    store.run(lambda tx: tx.queue("orders").add("anna", 1))
    sinks = {reader: MemorySink() for reader in readers}
    for reader, sink in sinks.items():
        drain(store, reader, sink)
    verify(store, "orders/search", MemorySink())
    verify(store, "orders/cache", sinks["orders/cache"])
    found = values(store)
    assert [found[f'last_comparison_differences{{queue="{reader}"}}'] for reader in readers] == [0, 1]
    assert all(found[f'last_comparison_seconds{{queue="{reader}"}}'] < 60 for reader in readers)


def test_queues_dead_letters_and_locks_are_counted(store: Store) -> None:
    queue = store.configure_queue("orders", buckets=16, buckets_per_range=4)
    store.configure_queue("idle")
    for i in range(3):
        store.run(lambda tx, i=i: tx.queue("orders").add(f"k{i}", i))  # type: ignore[misc]
    hidden = OpenTransaction(store.database, kind="long")
    tx = context_of(store, hidden)
    tx.queue("orders").add("hidden", 1)
    tx.flush()
    claim(store.database, queue, queue.units()[:1], owner=Owner("somebody", "1"), lease_seconds=600)
    with store.database.begin() as work:
        dead_letter(work, queue, [DeadLetter(Position(0, b"ben", 7), b"1", "ValueError", "not today", "drain-1")])
    found = values(store)
    wait_for_growth(store, 'queue_oldest_seconds{queue="orders"}')
    hidden.abort()
    assert (found['queue_entries{queue="orders"}'], found['queue_entries{queue="idle"}']) == (3, 0)
    assert (found['dead_letters{queue="orders"}'], found['dead_letters{queue="idle"}']) == (1, 0)
    assert (found['locks{queue="orders"}'], found['locks{queue="idle"}']) == (1, 0)
    assert found['decided_last_day{status="committed"}'] == 3
    assert found['active_transactions{kind="long"}'] == 1


def test_it_is_said_who_holds_the_horizon_back(store: Store) -> None:
    with store.transaction() as first:
        assert first.id
        with store.transaction(long=True) as second:
            second.table("t").get("a", "n")
            found = values(store)
            assert found['active_transactions{kind="short"}'] == 1
            assert found['active_transactions{kind="long"}'] == 1
            (holder,) = [name for name in found if name.startswith("horizon_holder_seconds")]
            assert holder == 'horizon_holder_seconds{kind="short"}'
            rows = sorted(view(store, "horizon_holders", "low", "id", "kind", "started_ms", "session"))
            assert [row.id for row in rows] == [first.id, second.id]
            assert rows[1].low == first.id  # what its snapshot does not see
            assert all(abs(row.started_ms - row.id // 1_000_000) < 60_000 for row in rows)
    assert view(store, "horizon_holders", "id") == []
    assert not any("holder" in name for name in values(store))


def test_an_invalid_transaction_is_told_as_such(store: Store) -> None:
    opened = OpenTransaction(store.database, kind="long", timeout=0.01)
    own = opened.value.id
    wait_until(lambda: expire(store.database), "the transaction does not expire")
    found = values(store)
    assert found["invalid_transactions"] == 1
    assert found['active_transactions{kind="long"}'] == 0
    assert [(row.id, row.kind) for row in view(store, "horizon_holders", "id", "kind")] == [(own, "invalid")]


def test_the_horizon_is_a_view(store: Store) -> None:
    with store.transaction() as tx:
        tx.table("t").set("a", "n", b"1")
    maintain(store.database, patience=AT_ONCE)
    (row,) = view(store, "horizon", "horizon", "horizon_ms", "marked_ms")
    assert row.horizon // 1_000_000 == row.horizon_ms
    assert abs(row.marked_ms - row.horizon_ms) < 60_000
    assert values(store)["horizon_seconds"] < 60


def test_locks_of_other_applications_hold_nothing(postgres_url: str) -> None:
    with Store.open(postgres_url) as store, Store.open(postgres_url, schema="other") as other:
        store.create()
        other.create()
        with (
            store.database.connect() as connection,
            sa.create_engine(postgres_url).begin() as bound_to,
            other.transaction(connection=bound_to) as foreign,
        ):
            connection.execute(sa.text("select pg_advisory_lock(17), pg_advisory_lock(1, 2)"))
            foreign.table("t").get("a", "n")
            assert view(store, "horizon_holders", "id") == []
            (holder,) = view(other, "horizon_holders", "id", "session")
            assert (holder.id, holder.session is None) == (foreign.id, False)
            connection.execute(sa.text("select pg_advisory_unlock(17), pg_advisory_unlock(1, 2)"))


@pytest.fixture
def old_store(store: Store) -> Store:
    """A store whose marks are old enough and in which there is something to delete."""
    for value in (b"1", b"2", b"3"):
        with store.transaction() as tx:
            for i in range(5):
                tx.table("t").set(f"row{i}", "n", value)
    maintain(store.database)
    with store.database.begin() as work:
        marks = schema.low_watermark
        low = work.connection.execute(sa.select(marks.c.low)).scalar_one()
        work.connection.execute(marks.update().values(at_ms=work.now() - 8_000_000))
        work.connection.execute(marks.insert().values(at_ms=work.now() - 4_000_000, low=low))
    return store


def test_the_command_line_cleans_up_until_nothing_is_left(old_store: Store, store_url: str) -> None:
    told = run_cli("maintain", "--limit", "2", url=store_url).splitlines()
    assert len(told) > 1
    assert all("more is left" in line for line in told[:-1])
    assert "more is left" not in told[-1]
    assert maintain(old_store.database).versions == 0
    with old_store.database.read() as work:
        assert len(work.connection.execute(sa.select(schema.cell)).all()) == 5


def test_the_command_line_tells_what_it_did_as_json(old_store: Store, store_url: str) -> None:
    (line,) = run_cli("maintain", "--json", url=store_url).splitlines()
    report = json.loads(line)
    assert (report["versions"], report["conflict_keys"], report["more"]) == (10, 5, False)
    assert int(report["horizon"]) > 0


def test_the_command_line_stops_at_the_limit_if_asked_to(old_store: Store, store_url: str) -> None:
    (line,) = run_cli("maintain", "--once", "--limit", "2", url=store_url).splitlines()
    assert "more is left" in line


def test_the_command_line_prints_metrics(store: Store, store_url: str) -> None:
    assert "# TYPE export_queue_active_transactions gauge" in run_cli("metrics", url=store_url)
    names = {metric["name"] for metric in json.loads(run_cli("metrics", "--json", url=store_url))}
    assert "export_queue_horizon_seconds" in names
