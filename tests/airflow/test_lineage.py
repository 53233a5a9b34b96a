"""Data lineage: assets of queues, what OpenLineage's listener writes about tasks, and Airflow's hook lineage."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, Asset
from airflow.sdk.lineage import HookLineageCollector, HookLineageReader

from export_queue import Put, Store, drain, operators, queue_asset
from export_queue.hooks import sink_hook
from export_queue.lineage import LineageTask, file_data, query_data, queue_data
from export_queue.operators import (
    ExportQueueCompactOperator,
    ExportQueueConfigureOperator,
    ExportQueueDrainOperator,
    ExportQueueMaintainOperator,
    ExportQueueMirrorOperator,
    ExportQueueObserveOperator,
    ExportQueueRebuildOperator,
    ExportQueueReplayOperator,
    ExportQueueRetryDeadLettersOperator,
    ExportQueueSparkCompactOperator,
    ExportQueueSparkDrainOperator,
    ExportQueueSparkLoadOperator,
    ExportQueueVerifyOperator,
)

PASSWORD = "kept-secret-4711"
QUEUE = ("export-queue://export_queue_default", "orders")


@pytest.fixture
def copies(connect: Any, tmp_path: Path) -> tuple[str, str]:
    """The connection ``copies`` to an SQLite file; the dataset that drains write to."""
    connect("copies", conn_type="sqlite", host=str(tmp_path / "copies.db"))
    return f"sqlite://{tmp_path / 'copies.db'}", "orders"


@pytest.fixture
def warehouse(connect: Any, tmp_path: Path) -> tuple[str, str]:
    """The connection ``warehouse`` with a table of two customers; its dataset."""
    path = tmp_path / "warehouse.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE customers AS SELECT 'anna' AS id, 1 AS n UNION SELECT 'ben', 2")
    connect("warehouse", conn_type="sqlite", host=str(path))
    return f"sqlite://{path}", "customers"


def names(found: Any) -> list[tuple[str, str]]:
    return [(one.dataset.namespace, one.dataset.name) for one in found]


def datasets(event: dict[str, Any], side: str) -> dict[tuple[str, str], int | None]:
    """The datasets of an event, with their numbers of rows."""
    facets, statistics = {
        "inputs": ("inputFacets", "inputStatistics"),
        "outputs": ("outputFacets", "outputStatistics"),
    }[side]
    return {
        (one["namespace"], one["name"]): one.get(facets, {}).get(statistics, {}).get("rowCount") for one in event[side]
    }


# -- assets ------------------------------------------------------------------------------------------------------------


def test_airflow_makes_the_asset_of_a_queue_by_its_scheme() -> None:
    made = HookLineageCollector().create_asset(
        scheme="export-queue", asset_kwargs={"queue_id": "orders"}, asset_extra={"by": "me"}
    )
    assert made is not None
    assert (made.uri, made.extra) == (queue_asset("orders").uri, {"by": "me"})
    refused = HookLineageCollector().create_asset(scheme="export-queue", asset_kwargs={"queue_id": "a/b/c"})
    assert refused is None


def test_airflow_translates_the_asset_of_a_queue_or_a_subscription_to_the_dataset_of_operators() -> None:
    pytest.importorskip("airflow.providers.openlineage")
    from airflow.providers.common.compat.openlineage.utils.utils import translate_airflow_asset

    for reader in ("orders", "orders/search"):
        found = translate_airflow_asset(queue_asset(reader), None)
        assert found is not None
        assert (found.namespace, found.name) == QUEUE
        assert names([queue_data("export_queue_default", reader)]) == [QUEUE]


# -- what the listener of OpenLineage writes ---------------------------------------------------------------------------


def test_a_mirror_and_a_drain_report_where_data_comes_from_and_goes_to(
    airflow_store: Store, copies: Any, warehouse: Any, run_dag: Any, lineage_events: Any
) -> None:
    airflow_store.configure_queue("customers", state=True)
    queue, copy = (QUEUE[0], "customers"), (copies[0], "customers")
    with DAG("moves", schedule=None) as dag:
        sql = "select id, n from customers where n > {{ 0 }}"
        mirror = ExportQueueMirrorOperator(
            task_id="mirror",
            queue_id="customers",
            sql=sql,
            sql_conn_id="warehouse",
            key="id",
            outlets=[queue_asset("customers")],
        )
        declared = [Asset("postgres://db/e/public/t")]
        mirror >> ExportQueueDrainOperator(
            task_id="drain", queue_id="{{ 'customers' }}", sink_conn_id="copies", outlets=declared
        )
    assert run_dag(dag).state == "success"
    events = {
        (one["job"]["name"].rpartition(".")[2], one["eventType"]): one for one in lineage_events() if one.get("inputs")
    }
    assert datasets(events["mirror", "START"], "inputs") == {warehouse: None}
    assert datasets(events["mirror", "START"], "outputs") == {queue: None}
    assert datasets(events["mirror", "COMPLETE"], "outputs") == {queue: 2}
    assert events["mirror", "COMPLETE"]["job"]["facets"]["sql"]["query"] == "select id, n from customers where n > 0"
    also = ("postgres://db:5432", "e.public.t")
    assert datasets(events["drain", "START"], "outputs") == {copy: None, also: None}
    assert datasets(events["drain", "COMPLETE"], "inputs") == {queue: 2}
    assert datasets(events["drain", "COMPLETE"], "outputs") == {copy: 2, also: None}
    assert len(events["mirror", "COMPLETE"]["outputs"]) == 1


def test_a_drain_that_leaves_dead_letters_reports_what_it_has_moved(
    airflow_store: Store, copies: Any, run_dag: Any, lineage_events: Any
) -> None:
    with airflow_store.transaction() as tx:
        tx.queue("orders").add("anna", {"n": 1})
        tx.queue("orders").add("x" * 200, {"n": 2})
    with DAG("fails", schedule=None) as dag:
        ExportQueueDrainOperator(task_id="it", queue_id="orders", sink_conn_id="copies", exporter=f"{__name__}:picky")
    assert run_dag(dag).state == "failed"
    (event,) = [one for one in lineage_events() if one["eventType"] == "FAIL" and one.get("inputs")]
    assert datasets(event, "inputs") == {QUEUE: 2}
    assert datasets(event, "outputs") == {(copies[0], "*"): 1}


def picky(entry: Any) -> Any:
    """An exporter that refuses long keys."""
    if len(entry.key) > 100:
        raise ValueError("too long")
    yield Put("orders", entry.key, entry.value)


# -- what each operator says -------------------------------------------------------------------------------------------


def lineage(kind: type[LineageTask], report: dict[str, Any] | None = None, **arguments: Any) -> Any:
    task = kind(task_id="it", **{"queue_id": "orders", **arguments})
    task.report = report or {}
    task.read_arguments()
    return task.lineage()


def test_a_subscription_has_the_data_of_its_queue_and_the_stored_options_decide(
    airflow_store: Store, copies: Any
) -> None:
    airflow_store.configure_queue("airports", subscriptions=["search"])
    sink = ExportQueueDrainOperator(
        task_id="x", queue_id="x", sink_conn_id="copies", sink_options={"table": "all_$collection"}
    )
    airflow_store.run(lambda tx: tx.queue("airports").add("OSL", "Oslo"))
    drain(airflow_store, "airports/search", sink.describe_sink().spec)
    found = lineage(ExportQueueDrainOperator, queue_id="airports/search", sink_conn_id="copies")
    assert names(found.inputs) == [(QUEUE[0], "airports")]
    assert names(found.outputs) == [(copies[0], "all_airports")]


def test_drains_on_spark_say_the_same(airflow_store: Store, copies: Any) -> None:
    report = {"read": 5, "written": 4}
    local = lineage(ExportQueueDrainOperator, report, sink_conn_id="copies")
    assert lineage(ExportQueueSparkDrainOperator, report, sink_conn_id="copies") == local
    assert [one.rows for one in (*local.inputs, *local.outputs)] == [5, 4]


def test_a_comparison_reads_both_sides_and_a_repair_writes(airflow_store: Store, copies: Any) -> None:
    report = {"scanned": 9, "repaired": 2}
    found = lineage(ExportQueueVerifyOperator, report, sink_conn_id="copies")
    assert (names(found.inputs), found.outputs) == ([QUEUE, copies], [])
    found = lineage(ExportQueueVerifyOperator, report, sink_conn_id="copies", repair=True)
    assert [(one.rows, names([one])) for one in found.outputs] == [(2, [copies])]


def test_loads_name_the_queues_that_their_rows_went_to() -> None:
    found = lineage(
        ExportQueueSparkLoadOperator, {"queues": {"a": 2, "b": 3}}, queue_id=None, frame="m:f", queue_column="q"
    )
    assert [(names([one])[0][1], one.rows) for one in found.outputs] == [("a", 2), ("b", 3)]
    mirror = {"new": 1, "changed": 2, "deleted": 3, "unchanged": 4}
    found = lineage(ExportQueueSparkLoadOperator, mirror, frame="m:f", mode="mirror")
    assert (names(found.outputs), found.outputs[0].rows) == ([QUEUE], 6)
    assert lineage(ExportQueueSparkLoadOperator, frame="m:f", mode="mirror", dry_run=True).outputs == ()


def test_replays_and_retries_write_to_the_queue() -> None:
    found = lineage(ExportQueueReplayOperator, {"replayed": 2, "deleted": 1}, all_keys=True)
    assert (names(found.inputs), names(found.outputs), found.outputs[0].rows) == ([QUEUE], [QUEUE], 3)
    assert lineage(ExportQueueReplayOperator, all_keys=True, source="module:name").inputs == []
    assert lineage(ExportQueueRetryDeadLettersOperator, {"requeued": 7, "left": 0}).outputs[0].rows == 7


def test_every_operator_reports_what_it_moves(airflow_store: Store) -> None:
    for name in operators.__all__:
        made = getattr(operators, name)
        assert {"start", "complete", "failure"} <= {
            one.removeprefix("get_openlineage_facets_on_") for one in dir(made)
        }, name
    found = lineage(ExportQueueConfigureOperator)
    assert (found.inputs, names(found.outputs)) == ((), [QUEUE])
    for operator in (ExportQueueCompactOperator, ExportQueueSparkCompactOperator):
        found = lineage(operator, {"read": 7, "written": 4})
        assert (names(found.inputs), names(found.outputs)) == ([QUEUE], [QUEUE])
        assert (found.inputs[0].rows, found.outputs[0].rows) == (7, 4)
        assert lineage(operator, {"read": 7, "written": 0}, dry_run=True).inputs[0].rows is None
        assert lineage(operator, dry_run=True).outputs == ()
    airflow_store.run(lambda tx: tx.queue("orders").add("anna", {}))
    task = ExportQueueCompactOperator(task_id="it", queue_id="orders")
    assert (
        task.execute({"ti": SimpleNamespace(dag_id="d", run_id="r", task_id="it", map_index=-1)})["read"]
        == task.lineage().inputs[0].rows
        == 0
    )
    for made in (
        ExportQueueMaintainOperator(task_id="it", outlets=[Asset("file:///a")]),
        ExportQueueObserveOperator(task_id="it", register="a:b", outlets=[Asset("file:///a")]),
    ):
        (output,) = made.get_openlineage_facets_on_start().outputs
        assert (output.namespace, output.name) == ("file", "/a")


def test_a_switch_writes_to_the_new_target_and_other_steps_move_nothing(airflow_store: Store, copies: Any) -> None:
    airflow_store.configure_queue("airports", subscriptions=["a"], state=True)
    sink = sink_hook("copies").describe().spec
    drain(airflow_store, "airports/a", sink)
    started = airflow_store.rebuilds.start("airports/a", sink, new_options={"table": "new_$collection"})
    arguments = {"queue_id": "airports/a", "sink_conn_id": "copies"}
    found = lineage(ExportQueueRebuildOperator, started.to_dict(), step="switch", **arguments)
    assert names(found.inputs) == [(QUEUE[0], "airports")]
    assert names(found.outputs) == [(copies[0], "new_airports")]
    found = lineage(ExportQueueRebuildOperator, step="finish", **arguments)
    assert (found.inputs, found.outputs) == ((), ())


# -- names of sources --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "namespace", "name", "uri"),
    [
        ("/data/a b.csv", "file", "/data/a b.csv", "file:///data/a%20b.csv"),
        ("file:///data/a.csv", "file", "/data/a.csv", "file:///data/a.csv"),
        ("s3://aws:secret@bucket/in/a.parquet", "s3://bucket", "in/a.parquet", "s3://bucket/in/a.parquet"),
    ],
)
def test_a_file_is_named_without_the_user_of_its_url(file: str, namespace: str, name: str, uri: str) -> None:
    found = file_data(file)
    assert (*names([found])[0], found.uri) == (namespace, name, uri)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"conn_type": "postgres", "host": "db", "schema": "e"}, ("postgres://db:5432", ["e.mart.a", "e.public.b"])),
        ({"conn_type": "mysql", "host": "db", "schema": "e"}, ("mysql://db:3306", ["mart.a", "e.b"])),
    ],
)
def test_the_tables_of_a_query_are_named_by_their_database(
    connect: Any, fields: dict[str, Any], expected: tuple[str, list[str]]
) -> None:
    pytest.importorskip("airflow.providers.openlineage")
    connect("warehouse", login="anna", password=PASSWORD, **fields)
    sql = "with c as (select * from mart.a where n = %s or m = %(m)s) select * from c join b using (id)"
    found = query_data("warehouse", sql)
    assert {one.dataset.namespace for one in found} == {expected[0]}
    assert sorted(one.dataset.name for one in found) == sorted(expected[1])
    assert not any(word in repr(found) for word in ("anna", PASSWORD))


@pytest.mark.parametrize("known", [True, False])
def test_a_database_without_a_sink_is_named_as_its_hook_of_airflow_says(
    monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    parser = pytest.importorskip("airflow.providers.openlineage.sqlparser")
    info = parser.DatabaseInfo(scheme="trino", authority="t:8080", database="lake") if known else None
    hook = SimpleNamespace(
        get_openlineage_database_info=lambda connection: info,
        get_openlineage_database_dialect=lambda connection: "trino",
        get_openlineage_default_schema=lambda: "mart",
    )
    connection = SimpleNamespace(conn_type="trino", schema=None, get_hook=lambda: hook)
    monkeypatch.setattr("airflow.sdk.BaseHook.get_connection", lambda conn_id: connection)
    assert names(query_data("lake", "select * from a")) == ([("trino://t:8080", "lake.mart.a")] if known else [])


def test_what_the_parser_does_not_understand_has_no_tables(warehouse: Any) -> None:
    pytest.importorskip("airflow.providers.openlineage")
    assert query_data("warehouse", "selct frm") == []


def test_without_openlineage_the_tables_of_a_query_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage.sqlparser", None)
    assert query_data("warehouse", "select 1 from customers") == []


# -- hook lineage ------------------------------------------------------------------------------------------------------


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> HookLineageCollector:
    """The collector of an Airflow with a reader of hook lineage."""
    made, reader = HookLineageCollector(), type("Reader", (HookLineageReader,), {})
    monkeypatch.setattr("airflow.sdk.lineage.get_hook_lineage_collector", lambda: made)
    monkeypatch.setattr("airflow.sdk.plugins_manager.get_hook_lineage_readers_plugins", lambda: [reader])
    return made


def test_a_task_that_succeeds_tells_the_collector_of_hook_lineage(
    airflow_store: Store, copies: Any, run_dag: Any, collector: HookLineageCollector
) -> None:
    with DAG("collected", schedule=None) as dag:
        ExportQueueDrainOperator(task_id="it", queue_id="orders", sink_conn_id="copies")
    assert run_dag(dag).state == "success"
    found = collector.collected_assets
    assert [one.asset for one in found.inputs] == [queue_asset("orders")]
    assert [one.asset.uri for one in found.outputs] == [Asset("/".join(copies)).uri]


def test_the_events_of_assets_have_the_numbers_of_the_report(
    airflow_store: Store, copies: Any, run_dag: Any, events_of: Any
) -> None:
    airflow_store.configure_queue("parcels", state=True)
    airflow_store.run(lambda tx: tx.queue("parcels").add_many((str(n), {"n": n}) for n in range(3)))
    fresh = Asset("search-is-fresh", extra={"owner": "search"})
    with DAG("publish", schedule=None) as dag:
        drains = ExportQueueDrainOperator(
            task_id="drain", queue_id="parcels", sink_conn_id="copies", outlets=[fresh, queue_asset("parcels")]
        )
        drains >> ExportQueueVerifyOperator(
            task_id="verify", queue_id="parcels", sink_conn_id="copies", outlets=[Asset("search-is-equal")]
        )
    run = run_dag(dag)
    assert run.errors == {}
    found = events_of(run)
    for name in ("search-is-fresh", "parcels"):
        told = next(extra for uri, extra in found.items() if name in uri)
        assert (told["acknowledged"], told["dead"], told["queue"], told["sink"]) == (3, 0, "parcels", "copies")
        assert "first_rejection" not in told
    told = next(extra for uri, extra in found.items() if "equal" in uri)
    assert (told["compared"], told["differences"]) == (3, 0)


def test_lineage_that_is_not_known_does_not_stop_the_task(collector: HookLineageCollector) -> None:
    task = ExportQueueDrainOperator(task_id="it", queue_id="orders", sink_conn_id="missing")
    task.post_execute({"ti": None})
    assert not collector.has_collected


@pytest.mark.parametrize("readers", [[], [HookLineageReader]])
def test_without_a_reader_of_hook_lineage_but_openlineage_nothing_is_asked(
    monkeypatch: pytest.MonkeyPatch, readers: list[Any]
) -> None:
    task = ExportQueueDrainOperator(task_id="it", queue_id="orders", sink_conn_id="missing")
    monkeypatch.setattr("airflow.sdk.plugins_manager.get_hook_lineage_readers_plugins", lambda: readers)
    asked: list[str] = []
    monkeypatch.setattr("export_queue.lineage._lineage_of", lambda task: asked.append(task.task_id))
    task.post_execute({"ti": None})
    assert asked == []
