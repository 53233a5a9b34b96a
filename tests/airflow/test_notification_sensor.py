"""The sensor and the trigger of notifications: they announce every change, and consume none; on both stores."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, AssetWatcher
from airflow.sdk.exceptions import AirflowSensorTimeout
from tests.support.store_urls import whole_url
from tests.support.triggers import Looks, Watch, pollers, run, sharing, store_held

from export_queue import (
    ColumnNotObserved,
    ExportQueueNotificationTrigger,
    ExportQueueTrigger,
    InvalidArgument,
    Store,
    UnknownQueue,
    polling,
)
from export_queue.core.store import schema
from export_queue.sensors import ExportQueueNotificationSensor


@pytest.fixture
def watched(store: Store, store_url: str, connect: Callable[..., None]) -> Store:
    """A store that ``export_queue_default`` leads to, whose column ``meta/updates`` is declared."""
    connect("export_queue_default", conn_type="export_queue", host=store_url)
    store.watch("meta", "updates")
    return store


def write(store: Store, *rows: str | bytes) -> None:
    with store.transaction() as tx:
        for row in rows:
            tx.table("meta").set(row, "updates", b"1")


def write_long(store: Store, row: str) -> dict[str, Any]:
    """Stage a write of a transaction that stays open."""
    transaction = store.begin()
    with store.resume(transaction) as tx:
        tx.table("meta").set(row, "updates", b"1")
    return transaction


def write_and_abort(store: Store, row: str) -> None:
    with pytest.raises(ZeroDivisionError), store.transaction() as tx:
        tx.table("meta").set(row, "updates", b"1")
        _ = 1 / 0
    store.abort(write_long(store, f"long {row}"))


def work_off(store: Store) -> list[bytes]:
    """Call an observer for all that is due; returns the rows that it was called for."""
    calls: list[bytes] = []

    def observer(tx: Any, row: bytes, column: bytes) -> None:
        calls.append(row)

    with Store.open(whole_url(store).render_as_string(hide_password=False)) as other:
        other.observe("meta", "updates", observer)
        assert other.process_notifications().done == len(calls)
    return sorted(calls)


def listed(*rows: Any, more: int = 0, is_all: bool = True) -> dict[str, Any]:
    return {"table": "meta", "column": "updates", "rows": list(rows), "more": more, "is_all": is_all}


# -- the sensor --------------------------------------------------------------------------------------------------------


def run_sensor(run_dag: Any, **arguments: Any) -> Any:
    column = {} if "queue_id" in arguments else {"table": "meta", "column": "updates"}
    with DAG("notification_sensor", schedule=None) as dag:
        ExportQueueNotificationSensor(**{"task_id": "wait", "poke_interval": 0.05, **column, **arguments})
    found = run_dag(dag)
    if found.errors:
        raise found.errors["wait"]
    return found.result("wait")


@pytest.mark.parametrize("deferrable", [False, True])
def test_it_returns_the_rows_and_consumes_none(watched: Store, run_dag: Any, deferrable: bool) -> None:
    write(watched, "ben")
    write(watched, "anna", b"\xff\x00")
    write_and_abort(watched, "aborted")
    write_long(watched, "open")
    assert run_sensor(run_dag, deferrable=deferrable) == listed("ben", "anna", {"base64": "/wA="})
    assert work_off(watched) == [b"anna", b"ben", b"\xff\x00"]


@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize(
    ("codec", "rows"), [("int", [7, -((1 << 63) - 1), (1 << 63) - 1]), ("str", ["zo\u00eb", "AAAAAAAA", "7"])]
)
def test_rows_of_a_typed_table_are_those_of_the_table(
    watched: Store, run_dag: Any, monkeypatch: pytest.MonkeyPatch, codec: str, rows: list[Any], deferrable: bool
) -> None:
    watched.configure_table("typed", row=codec)
    watched.watch("typed", "n")
    transaction = watched.begin()
    with watched.resume(transaction) as tx:
        for row in rows:
            tx.table("typed").set(row, "n", b"1")
    if deferrable:
        commit_at_look(watched, transaction, monkeypatch)
    else:
        watched.commit(transaction)
    found = run_sensor(run_dag, table="typed", column="n", deferrable=deferrable)["rows"]
    assert sorted(found) == sorted(rows)
    with watched.transaction() as tx:
        assert [tx.table("typed").get(row, "n") for row in found] == [b"1"] * len(rows)


@pytest.mark.parametrize("deferrable", [False, True])
def test_changes_that_are_not_committed_let_it_wait(
    watched: Store, run_dag: Any, monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    write_and_abort(watched, "aborted")
    transaction = write_long(watched, "late")
    if deferrable:
        seen = commit_at_look(watched, transaction, monkeypatch)
        assert run_sensor(run_dag, deferrable=True) == listed("late")
        assert seen[:2] == [[()], [()]], "it waited on the trigger"
        assert seen[2] == [(b"late",)]
    else:
        with pytest.raises(AirflowSensorTimeout):
            run_sensor(run_dag, timeout=0)
        watched.commit(transaction)
        assert run_sensor(run_dag) == listed("late")
    assert work_off(watched) == [b"late"]


def commit_at_look(store: Store, transaction: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Commit a transaction when the trigger has looked twice; returns the rows of each look."""
    seen: list[Any] = []
    answer = polling.Poller._answer

    def look(poller: polling.Poller, questions: Any) -> Any:
        found = answer(poller, questions)
        seen.append([sighting.waiting.rows for sighting in found.values()])
        if len(seen) == 2:
            store.commit(transaction)
        return found

    monkeypatch.setattr(polling.Poller, "_answer", look)
    return seen


def test_it_lists_as_many_rows_as_it_is_told_and_counts_the_others(watched: Store, run_dag: Any) -> None:
    for i in range(5):
        write(watched, f"row {i}")
    found = run_sensor(run_dag, table="{{ 'meta' }}", column="{{ 'updates' }}", limit="{{ 2 }}")
    assert found == listed("row 0", "row 1", more=3)


def test_deferred_it_watches_what_it_was_asked_for() -> None:
    common = {"task_id": "wait", "poke_interval": 7, "export_queue_conn_id": "other"}
    column = ExportQueueNotificationSensor(table="meta", column="updates", limit="5", **common).trigger()
    assert column.serialize() == (
        "export_queue.triggers.ExportQueueNotificationTrigger",
        {
            "table": "meta",
            "column": "updates",
            "limit": 5,
            "poll_interval": 7,
            "min_interval": None,
            "export_queue_conn_id": "other",
        },
    )
    path, arguments = ExportQueueNotificationSensor(queue_id="orders", **common).trigger().serialize()
    assert path == "export_queue.triggers.ExportQueueTrigger"
    assert (arguments["queue_id"], arguments["poll_interval"], arguments["export_queue_conn_id"]) == (
        "orders",
        7,
        "other",
    )


@pytest.mark.parametrize("deferrable", [False, True])
def test_of_a_queue_it_returns_the_ranges_that_have_entries(watched: Store, run_dag: Any, deferrable: bool) -> None:
    watched.configure_queue("orders")
    with watched.transaction() as tx:
        tx.queue("orders").add("anna", {})
    waiting = [[unit.range.first, unit.range.end] for unit in watched.backlog("orders")]
    assert run_sensor(run_dag, queue_id="{{ 'orders' }}", deferrable=deferrable) == waiting
    assert sum(unit.entries for unit in watched.backlog("orders")) == 1


@pytest.mark.parametrize("deferrable", [False, True])
def test_what_the_store_does_not_have_is_an_error_at_once(watched: Store, run_dag: Any, deferrable: bool) -> None:
    with pytest.raises(ColumnNotObserved, match="column meta/counter is not observed; the store has: meta/updates"):
        run_sensor(run_dag, column="counter", deferrable=deferrable)
    with pytest.raises(UnknownQueue, match="no queue 'airports/search'"):
        run_sensor(run_dag, queue_id="airports/search", deferrable=deferrable)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({}, "none of them"),
        ({"table": "meta"}, "found table"),
        ({"column": "updates"}, "found column"),
        ({"table": "meta", "queue_id": "orders"}, "found table and queue_id"),
        ({"table": "meta", "column": "updates", "queue_id": "orders"}, "found table and column and queue_id"),
    ],
)
def test_a_column_or_a_queue_is_asked_for_when_the_dag_is_written(arguments: Any, found: str) -> None:
    with pytest.raises(InvalidArgument, match=found):
        ExportQueueNotificationSensor(task_id="wait", **arguments)


def test_a_deferrable_sensor_without_a_pause_is_refused_when_the_dag_is_written() -> None:
    with pytest.raises(InvalidArgument, match="poke_interval: expected seconds above 0, found 0"):
        ExportQueueNotificationSensor(task_id="wait", queue_id="orders", deferrable=True, poke_interval=0)


# -- the trigger -------------------------------------------------------------------------------------------------------


def watch_updates(**arguments: Any) -> Watch:
    # Without an interval between events: how fast the looks follow each other depends on the machine.
    wanted = {"table": "meta", "column": "updates", "poll_interval": 0.02, "min_interval": 0, **arguments}
    return Watch(ExportQueueNotificationTrigger(**wanted))


def test_it_fires_each_time_notifications_come_after_none(watched: Store, looks: Looks) -> None:
    async def watch() -> None:
        updates = watch_updates(min_interval=3600)
        await looks.another(2)
        assert updates.events == []
        write(watched, "anna")
        await looks.another(2)
        assert updates.events == [listed("anna")]
        write(watched, "ben")
        await looks.another(2)
        assert len(updates.events) == 1, "the least interval has not passed"
        assert work_off(watched) == [b"anna", b"ben"]
        await looks.another(2)
        write(watched, "anna")
        await looks.another(2)
        assert updates.events == [listed("anna"), listed("anna")]
        await updates.stop()

    run(watch())


def test_while_notifications_wait_only_newer_commits_make_it_fire(watched: Store, looks: Looks) -> None:
    async def watch() -> None:
        transaction = write_long(watched, "older")
        write(watched, "younger")
        updates = watch_updates()
        await looks.another(3)
        assert updates.events == [listed("younger")]
        write_and_abort(watched, "aborted")
        await looks.another(3)
        assert len(updates.events) == 1
        watched.commit(transaction)
        await looks.another(3)
        assert [set(event["rows"]) for event in updates.events] == [{"younger"}, {"younger", "older"}]
        await updates.stop()

    run(watch())


def test_a_change_between_the_work_and_the_next_look_is_announced(watched: Store, looks: Looks) -> None:
    async def watch() -> None:
        write(watched, "anna")
        updates = watch_updates()
        await looks.another(2)
        with store_held(looks):
            assert work_off(watched) == [b"anna"]
            write(watched, "anna")
        await looks.another(3)
        assert updates.events == [listed("anna"), listed("anna")]
        await updates.stop()

    run(watch())


def test_a_row_whose_observer_failed_is_announced_when_it_is_due_again(watched: Store, looks: Looks) -> None:
    def fail(tx: Any, row: bytes, column: bytes) -> None:
        raise ValueError("no")

    async def watch() -> None:
        write(watched, "anna")
        updates = watch_updates()
        await looks.another(2)
        with store_held(looks):
            watched.observe("meta", "updates", fail)
            assert watched.process_notifications().failed == 1
            wait_for_half_an_hour(watched)
            write(watched, "ben")
        await looks.another(2)
        assert updates.events == [listed("anna"), listed("ben")]
        # no look may fall between the reading of the clock and the commit: a delay never ends before it is stored
        with store_held(looks), watched.database.begin() as work:
            in_a_moment = work.now() + 1
            work.connection.execute(schema.observer_failure.update().values(next_ms=in_a_moment))
        while len(updates.events) < 3:
            await looks.another()
        assert updates.events[2] == listed("anna", "ben")
        await updates.stop()

    run(watch())


def wait_for_half_an_hour(store: Store) -> None:
    with store.database.begin() as work:
        work.connection.execute(schema.observer_failure.update().values(next_ms=work.now() + 1_800_000))


def test_triggers_of_columns_and_queues_share_a_poller(watched: Store, looks: Looks) -> None:
    async def watch() -> None:
        watched.configure_queue("orders")
        updates = [watch_updates(), watch_updates()]
        orders = Watch(ExportQueueTrigger(queue_id="orders", poll_interval=0.02))
        await sharing(3)
        await looks.another()
        with watched.transaction() as tx:
            tx.table("meta").set("anna", "updates", b"1")
            tx.queue("orders").add("anna", {})
        await looks.another(2)
        assert [one.events for one in updates] == [[listed("anna")]] * 2
        assert len(orders.events) == 1
        for one in (*updates, orders):
            await one.stop()
        assert pollers() == []

    run(watch())


def test_an_unknown_column_fails_its_own_trigger_alone(watched: Store, looks: Looks) -> None:
    async def watch() -> None:
        updates = watch_updates()
        stream = ExportQueueNotificationTrigger(table="meta", column="counter", poll_interval=0.02).run()
        with pytest.raises(ColumnNotObserved, match="the store has: meta/updates"):
            await anext(stream)
        write(watched, "anna")
        await looks.another(2)
        assert updates.events == [listed("anna")]
        await updates.stop()

    run(watch())


def test_observers_that_only_its_events_wake_work_everything_off(watched: Store) -> None:
    """Writers go on meanwhile, two observers run at once, one row fails at its first call."""
    rows = [f"row {i}".encode() for i in range(12)]
    failed: set[bytes] = set()

    def count(tx: Any, row: bytes, column: bytes) -> None:
        if row == rows[3] and row not in failed:
            failed.add(row)
            raise ValueError("not yet")
        table = tx.table("counts")
        table.set(row, "n", b"%d" % (int(table.get(row, "n", b"0")) + int(tx.table("meta").get(row, "updates"))))
        tx.table("meta").delete(row, "updates")

    def add_one(row: bytes) -> None:
        def add(tx: Any) -> None:
            table = tx.table("meta")
            table.set(row, "updates", b"%d" % (int(table.get(row, "updates", b"0")) + 1))

        watched.run(add)

    def write_all(part: int) -> None:
        for i in range(60):
            add_one(rows[(i * 5 + part) % len(rows)])

    async def watch() -> None:
        url = whole_url(watched).render_as_string(hide_password=False)
        with Store.open(url) as one, Store.open(url) as two:
            for observing in (one, two):
                observing.observe("meta", "updates", count)
            updates = watch_updates(min_interval=0)
            writing = asyncio.gather(*(asyncio.to_thread(write_all, part) for part in range(2)))
            handled = 0
            while not (writing.done() and totals(watched) == 120):
                if handled == len(updates.events):
                    await asyncio.sleep(0.005)
                    continue
                handled = len(updates.events)
                await asyncio.gather(*(asyncio.to_thread(each.process_notifications) for each in (one, two)))
            await writing
            await updates.stop()
        assert failed == {rows[3]}
        known = {row.decode() for row in rows}
        assert all(event["rows"] and set(event["rows"]) <= known for event in updates.events)
        assert not watched.waiting_rows("meta", "updates")

    def totals(store: Store) -> int:
        with store.transaction(read_only=True) as tx:
            return sum(int(value) for _, _, value in tx.table("counts").scan())

    run(watch())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"table": ["meta"]}, "table: expected text, found list"),
        ({"column": None}, "column: expected text, found NoneType"),
        ({"limit": float("inf")}, "limit: expected a whole number from 1, found inf"),
        ({"limit": -1}, "limit: expected a whole number from 1, found -1"),
        ({"limit": "many"}, "limit: expected a whole number from 1, found 'many'"),
        ({"poll_interval": "soon"}, "poll_interval: expected seconds above 0, found 'soon'"),
    ],
)
def test_a_bad_argument_is_an_error_that_the_triggerer_outlives(arguments: Any, told: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(told)) as refusal:
        ExportQueueNotificationTrigger(**{"table": "meta", "column": "updates", **arguments})
    assert isinstance(refusal.value, TypeError), "Airflow's triggerer ends with any other error of a constructor"


def test_it_survives_being_stored() -> None:
    from airflow.sdk._shared.module_loading import import_string

    trigger = ExportQueueNotificationTrigger(
        table="meta", column="updates", limit=7, poll_interval=5, min_interval=9, export_queue_conn_id="other"
    )
    path, arguments = trigger.serialize()
    assert path == "export_queue.triggers.ExportQueueNotificationTrigger"
    assert import_string(path)(**arguments).serialize() == (path, json.loads(json.dumps(arguments)))


def test_a_dag_that_an_asset_with_its_watcher_schedules_can_be_stored(airflow_database: Path) -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    trigger = ExportQueueNotificationTrigger(table="meta", column="updates", poll_interval=10)
    changed = Asset("meta-updates", watchers=[AssetWatcher(name="updates", trigger=trigger)])
    stored = json.dumps(DagSerialization.to_dict(DAG("on_updates", schedule=[changed])))
    assert "export_queue.triggers.ExportQueueNotificationTrigger" in stored
    assert Counter(stored.split('"'))["updates"] >= 2
