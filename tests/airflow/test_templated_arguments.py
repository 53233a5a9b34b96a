"""Templated arguments: each takes its type, its JSON and None, whichever way Airflow renders templates."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, Param

from export_queue import InvalidArgument, operators, sensors
from export_queue.decorators import ExportTransactionOperator
from export_queue.get_provider_info import get_provider_info
from export_queue.hooks.rendered import untouched
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
    ExportQueueSparkVerifyOperator,
    ExportQueueVerifyOperator,
)
from export_queue.sensors import ExportQueueDrainedSensor, ExportQueueNotificationSensor, ExportQueueSensor
from export_queue.transaction_group import (
    ExportTransactionAbortOperator,
    ExportTransactionBeginOperator,
    ExportTransactionCommitOperator,
)

REQUIRED = object()
STORE = {"export_queue_conn_id": ("store", "export_queue_default")}
SPARK = {
    "conf": ({"spark.a": "1", "spark.b": "2"}, None),
    "env_vars": ({"A": "b"}, None),
    "name": ("mine", "export-queue"),
    "spark_conn_id": ("spark", "spark_default"),
    "spark_home": ("/opt/spark", None),
    "spark_python": ("/opt/python", None),
    "start_timeout": (30, 600.0),
}
DRAIN = STORE | {
    "queue_id": ("orders", REQUIRED),
    "sink_conn_id": ("copies", None),
    "sink_options": ({"key": "customer:{$id}", "shards": 4}, None),
    "sink": ({"kind": "redis", "options": {"db": 1}}, None),
    "exporter": ("module:export", None),
    "ranges": ([[0, 101], [202, 303]], None),
    "if_locked": ("skip", None),
    "time_limit": (60, None),
    "on_error": ("fail", None),
    "max_dead": (5, None),
    "dead_letters": (3, 0),
}
COMPACT = STORE | {
    "queue_id": ("orders", REQUIRED),
    "small_bytes": (100, 8 << 20),
    "least": (2, 8),
    "age_seconds": (60, 0),
}
VERIFY = (
    STORE
    | {name: DRAIN[name] for name in ("queue_id", "sink_conn_id", "sink_options", "sink", "exporter")}
    | {
        "source": ("module:orders", "state"),
        "records": ("module:totals", None),
        "max_deletes": (0.5, 0.2),
        "collections": (["orders", "customers"], None),
    }
)
EXPECTED: Mapping[type[Any], Mapping[str, tuple[Any, Any]]] = {
    ExportQueueConfigureOperator: STORE
    | {
        "queue_id": ("2024", REQUIRED),
        "buckets": (10, 1009),
        "buckets_per_range": (2, None),
        "key": ("int", "str"),
        "value": ("str", "json"),
        "max_value_bytes": (100, 1 << 20),
        "coalesce": ("latest", None),
        "subscriptions": (["cache", "search"], None),
        "first_load": ("state", None),
        "history": (60, None),
        "tables": ({"visits": {"row": "str", "ttl": 60}}, None),
    },
    ExportQueueDrainOperator: DRAIN,
    ExportQueueSparkDrainOperator: SPARK | DRAIN | {"max_parallel": (3, None)},
    ExportQueueCompactOperator: COMPACT,
    ExportQueueMirrorOperator: STORE
    | {
        "queue_id": ("customers", REQUIRED),
        "sql": ("select 1", None),
        "sql_conn_id": ("warehouse", None),
        "file": ("file:///data/x.csv", None),
        "key": (["country", "id"], REQUIRED),
        "value": (["name"], None),
        "scope": ("ch-", None),
        "max_deletes": (0.5, 0.2),
    },
    ExportQueueSparkCompactOperator: SPARK | COMPACT,
    ExportQueueSparkLoadOperator: SPARK
    | STORE
    | {
        "frame": ("frames:orders", REQUIRED),
        "frame_arguments": ({"day": "2026-01-01", "top": 3, "none": None}, None),
        "queue_id": ("orders", None),
        "queue_column": ("queue", None),
        "key": ("customer", "key"),
        "value": ("document", "value"),
        "latest_by": ("at", None),
        "mode": ("mirror", "append"),
        "scope": ("ch-", None),
        "max_deletes": (0.5, None),
    },
    ExportQueueReplayOperator: STORE
    | {
        "queue_id": ("orders", REQUIRED),
        "keys": (["77", "78"], None),
        "prefix": ("77", None),
        "key_range": (["70", "80"], None),
        "source": ("module:orders", "state"),
    },
    ExportQueueMaintainOperator: STORE
    | {name: DRAIN[name] for name in ("sink_conn_id", "sink_options", "sink")}
    | {
        "keep_outcomes": (7200, 24 * 3600),
        "keep_idempotency_keys": (90 * 24 * 3600, 30 * 24 * 3600),
        "keep_reports": (7200, 30 * 24 * 3600),
    },
    ExportQueueObserveOperator: STORE | {"register": ("module:function", None), "limit": (5, None)},
    ExportQueueRetryDeadLettersOperator: STORE
    | {
        "queue_id": ("orders", REQUIRED),
        "key": ("77", None),
        "error_class": ("ValueError", None),
        "drain_id": ("nightly-1", None),
        "limit": (5, None),
    },
    ExportQueueVerifyOperator: VERIFY,
    ExportQueueSparkVerifyOperator: SPARK | VERIFY,
    ExportQueueRebuildOperator: STORE
    | {name: DRAIN[name] for name in ("queue_id", "sink_conn_id", "sink_options", "sink", "exporter")}
    | {
        "step": ("switch", REQUIRED),
        "pointer": ("orders-now", None),
        "new_options": ({"index": "$collection-2"}, None),
        "new_name": ("search-2", None),
        "source": ("module:orders", "state"),
        "collections": (["orders", "customers"], None),
    },
    ExportTransactionOperator: STORE | {"transaction": ({"kind": "long", "queues": None}, None)},
    ExportTransactionBeginOperator: STORE | {"queues": (["orders", "2024"], None)},
    ExportTransactionCommitOperator: STORE,
    ExportTransactionAbortOperator: STORE,
    ExportQueueSensor: STORE | {"queue_id": ("orders", REQUIRED), "ranges": ([[0, 101]], None), "groups": (4, None)},
    ExportQueueNotificationSensor: STORE
    | {"table": ("2024", ""), "column": ("name", ""), "queue_id": ("orders", ""), "limit": (7, 100)},
    ExportQueueDrainedSensor: STORE
    | {
        "queue_id": ("orders", REQUIRED),
        "token": ("xq1_1_000", ""),
        "sink_conn_id": ("redis", None),
        "sink_options": ({"a": 1}, None),
        "sink": ({"kind": "redis"}, None),
    },
}
"""Each argument's value, and what None stands for."""
GROUP = (ExportTransactionBeginOperator, ExportTransactionCommitOperator, ExportTransactionAbortOperator)
"""Tasks that a transaction's group adds by itself."""
USERS = frozenset(("templates_dict", "op_args", "op_kwargs"))
"""Arguments of a function, which gets them as they were rendered."""


def make(kind: type[Any], name: str, template: Any, **arguments: Any) -> Any:
    """Make a task with one templated argument, and what else it needs."""
    others = {n: "x" for n, (_, none) in EXPECTED[kind].items() if none is REQUIRED}
    if kind is ExportQueueNotificationSensor:
        others = {"table": "x", "column": "x"} if name in ("table", "column") else {"queue_id": "x"}
    if kind is ExportTransactionOperator:
        others = {"python_callable": print}
    if kind is ExportQueueObserveOperator:
        others = {"register": "module:function"}
    if kind in GROUP:
        others = {"transaction_group": "g"}
        others |= {"begin_task": "g.begin"} if kind is ExportTransactionCommitOperator else {}
        others |= {"abort_task": "g.abort"} if kind is ExportTransactionBeginOperator else {}
    return kind(**{**others, "task_id": "it", name: template, **arguments})


def read(kind: type[Any], name: str, value: Any, *, native: bool, template: Any = "{{ params.x }}") -> Any:
    """Render an argument, and read it as the task does."""
    with DAG("d", schedule=None, render_template_as_native_obj=native) as dag:
        task = make(kind, name, template)
    return rendered(task, name, {"params": {"x": value}}, dag)


def rendered(task: Any, name: str, context: dict[str, Any], dag: Any) -> Any:
    task.render_template_fields(context, dag.get_template_env())
    task.readers = {name: task.readers[name]}
    task.read_arguments()
    once = getattr(task, name)
    task.read_arguments()
    assert getattr(task, name) == once, "reading again changes nothing"
    return once


def test_every_task_and_every_templated_argument_is_here() -> None:
    tasks = {getattr(room, name) for room in (operators, sensors) for name in room.__all__}
    assert tasks | {ExportTransactionOperator, *GROUP} == EXPECTED.keys(), (
        "a new operator or sensor has its arguments here"
    )
    for kind, expected in EXPECTED.items():
        ours = {name for name in kind.template_fields if kind.readers.get(name) is not untouched}
        assert ours - USERS == expected.keys(), f"arguments of {kind.__name__}"


def test_every_decorator_is_here() -> None:
    decorators = [one["class-name"].rpartition(".")[2] for one in get_provider_info()["task-decorators"]]
    assert decorators == ["export_transaction_task"]


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("kind", EXPECTED)
def test_an_argument_is_its_value_or_json_or_none(kind: type[Any], native: bool) -> None:
    for name, (value, none) in EXPECTED[kind].items():
        assert read(kind, name, value, native=native) == value, name
        assert read(kind, name, json.dumps(value), native=native) == value, name
        assert read(kind, name, value, native=native, template="{{ params.x | tojson }}") == value, name
        assert read(kind, name, None, native=native, template=value) == value, name
        for nothing in (None, "", "None", "null"):
            if none is REQUIRED:
                with pytest.raises(InvalidArgument, match=name):
                    read(kind, name, nothing, native=native)
            else:
                assert read(kind, name, nothing, native=native) == none, name


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("kind", EXPECTED)
def test_a_text_that_looks_like_a_number_stays_text(kind: type[Any], native: bool) -> None:
    for name, (value, _) in EXPECTED[kind].items():
        if isinstance(value, str):
            for text in ("2024", "1_000", "1.10", "007", "True", "0x10"):
                assert read(kind, name, text, native=native) == text, name


def attributes(task: Any) -> dict[str, Any]:
    """Return the arguments that templates set, and all other attributes that are plain values."""
    plain = {name for name, value in vars(task).items() if value is None or isinstance(value, str | int | float)}
    return {name: getattr(task, name) for name in plain | set(task.template_fields)}


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_pickled_task_has_the_same_arguments(kind: type[Any]) -> None:
    for name, (value, _) in EXPECTED[kind].items():
        with DAG("d", schedule=None) as dag:
            task = make(kind, name, value, retries=2, retry_delay=timedelta(seconds=7))
        (again,) = pickle.loads(pickle.dumps(dag)).tasks
        alone = pickle.loads(pickle.dumps(task))
        for found in (again, alone):
            assert type(found) is kind
            assert (found.task_id, found.retries, found.retry_delay) == ("it", 2, timedelta(seconds=7))
            assert attributes(found) == attributes(task)
            found.read_arguments()
        task.read_arguments()
        assert getattr(alone, name) == getattr(again, name) == getattr(task, name), name


@pytest.mark.parametrize("native", [False, True])
def test_templates_inside_of_lists_and_mappings_are_read_too(native: bool) -> None:
    def inner(kind: type[Any], name: str, template: Any, value: Any = None) -> Any:
        return read(kind, name, value, native=native, template=template)

    drain, load, configure = ExportQueueDrainOperator, ExportQueueSparkLoadOperator, ExportQueueConfigureOperator
    assert inner(drain, "ranges", [["{{ params.x }}", "{{ params.x + 9 }}"]], 1) == [[1, 10]]
    assert inner(drain, "ranges", ["{{ params.x }}", "[4, 5]"], [1, 2]) == [[1, 2], [4, 5]]
    assert inner(drain, "sink_options", {"shards": "{{ params.x }}"}) == {"shards": None}
    assert inner(load, "frame_arguments", {"day": "{{ params.x }}"}) == {"day": None}
    assert inner(load, "conf", {"a": "{{ params.x }}", "b": "{{ 2 }}"}) == {"b": "2"}
    assert inner(load, "env_vars", {"A": "{{ params.x }}"}, 7) == {"A": "7"}
    assert inner(configure, "subscriptions", ["{{ params.x }}", "search"]) == ["search"]
    assert inner(configure, "subscriptions", ["{{ params.x }}"], "2024") == ["2024"]
    assert inner(drain, "sink_options", {"key": "{{ params.x }}:{$id}:${id}s"}, "a") == {"key": "a:{$id}:${id}s"}
    assert inner(drain, "sink_options", '{"key": "{{ params.x }}:{$id}"}', "a") == {"key": "a:{$id}"}


@pytest.mark.parametrize("native", [False, True])
def test_whole_numbers_and_times_are_read_however_they_are_written(native: bool) -> None:
    for value in (7, 7.0, "7", "7.0", '"7"', " 7 "):
        assert read(ExportQueueDrainOperator, "max_dead", value, native=native) == 7
        assert read(ExportQueueDrainOperator, "time_limit", value, native=native) == 7.0
    assert read(ExportQueueDrainOperator, "time_limit", None, native=native, template=timedelta(minutes=2)) == 120.0
    for value in (True, "True", 7.5, "7.5", "soon", [7], "inf"):
        with pytest.raises(InvalidArgument, match="^max_dead: expected"):
            read(ExportQueueDrainOperator, "max_dead", value, native=native)
    for value in (True, "True", "soon", [7], "inf", -1, 0):
        with pytest.raises(InvalidArgument, match="^time_limit: expected"):
            read(ExportQueueDrainOperator, "time_limit", value, native=native)


@pytest.mark.parametrize("native", [False, True])
def test_a_mapped_task_reads_its_arguments(airflow_store: Any, run_dag: Any, native: bool) -> None:
    with DAG("mapped", schedule=None, params={"none": None}, render_template_as_native_obj=native) as dag:
        ExportQueueConfigureOperator.partial(
            task_id="set_up", coalesce="{{ params.none }}", subscriptions="{{ ['search', 'cache'] }}"
        ).expand_kwargs(
            [
                {"queue_id": "2024", "tables": '{"a": {"row": "str"}}', "buckets": None},
                {"queue_id": "{{ '2025' }}", "tables": None},
                {"queue_id": "{{ '2026' }}", "tables": {"b": {"value": "{{ 'int' }}"}}, "buckets": "20"},
            ]
        )
    run = run_dag(dag)
    assert run.state == "success", run.errors
    assert [run.result("set_up", index)["queue"] for index in range(3)] == ["2024", "2025", "2026"]
    assert [run.result("set_up", index)["buckets"] for index in range(3)] == [1009, 1009, 20]
    assert {reader.id for reader in airflow_store.subscriptions("2025")} == {"2025/cache", "2025/search"}


@pytest.mark.parametrize("native", [False, True])
def test_an_argument_of_airflows_own_may_be_none(native: bool) -> None:
    for name in ("files", "jars", "packages", "properties_file", "proxy_user"):
        assert read(ExportQueueSparkDrainOperator, name, None, native=native) is None
        assert read(ExportQueueSparkDrainOperator, name, "a", native=native) == "a"


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (ExportQueueConfigureOperator, "buckets", "ten"),
        (ExportQueueConfigureOperator, "buckets", True),
        (ExportQueueConfigureOperator, "subscriptions", "search"),
        (ExportQueueConfigureOperator, "subscriptions", {"search": 1}),
        (ExportQueueConfigureOperator, "tables", "[1]"),
        (ExportQueueDrainOperator, "sink_options", "{broken"),
        (ExportQueueDrainOperator, "ranges", "[[0]]"),
        (ExportQueueDrainOperator, "exporter", [1]),
        (ExportQueueDrainOperator, "time_limit", -1),
        (ExportQueueSparkLoadOperator, "frame_arguments", "no"),
        (ExportQueueSensor, "groups", 0),
    ],
)
def test_another_thing_is_refused_by_name(kind: type[Any], name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"^{name}: expected"):
        read(kind, name, None, native=True, template=value)


@pytest.mark.parametrize("native", [False, True])
def test_a_dag_of_templates_runs(airflow_store: Any, run_dag: Any, connect: Any, tmp_path: Any, native: bool) -> None:
    connect("copies", conn_type="sqlite", host=str(tmp_path / "copies.db"))
    params: dict[str, Any] = {
        "queue": "visits",
        "tables": json.dumps({"2024": {"row": "str", "value": "int"}}),
        "readers": ["search"],
        "buckets": "10",
        "none": Param(None, type=["null", "string"]),
        "create": True,
        "columns": {"city": "text"},
    }
    with DAG("templates", schedule=None, params=params, render_template_as_native_obj=native) as dag:
        set_up = ExportQueueConfigureOperator(
            task_id="set_up",
            queue_id="{{ params.queue }}",
            tables="{{ params.tables }}",
            subscriptions="{{ params.readers }}",
            buckets="{{ params.buckets }}",
            buckets_per_range="{{ params.none }}",
            coalesce="{{ params.none }}",
        )
        drain = ExportQueueDrainOperator(
            task_id="drain",
            queue_id="{{ params.queue }}/search",
            sink_conn_id="copies",
            sink_options={
                "table": "{{ params.none }}",
                "create_tables": "{{ params.create }}",
                "columns": "{{ params.columns }}",
            },
            exporter="{{ params.none }}",
            ranges="{{ ti.xcom_pull(task_ids='set_up')['units'] }}",
            time_limit="{{ params.none }}",
        )
        set_up >> drain
    run = run_dag(dag)
    assert run.state == "success", run.errors
    assert run.result("set_up")["buckets"] == 10
    with airflow_store.transaction() as tx:
        tx.table("2024").set("anna", "n", 3)
        assert tx.table("2024").get("anna", "n") == 3


def test_a_notification_sensor_may_get_a_queue_or_a_column_by_templates(airflow_store: Any, run_dag: Any) -> None:
    with airflow_store.transaction() as tx:
        tx.queue("orders").add("anna", {})
    with DAG("either", schedule=None, params={"queue": "orders", "none": Param(None, type=["null", "string"])}) as dag:
        ExportQueueNotificationSensor(
            task_id="it", table="{{ params.none }}", column="{{ params.none }}", queue_id="{{ params.queue }}"
        )
    run = run_dag(dag)
    assert run.state == "success", run.errors
