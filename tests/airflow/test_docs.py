"""What the page about Airflow says is true: its DAGs run, its connections work; DAGs of other pages can be written."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from export_queue import MirrorRefused, Store
from export_queue.hooks import ExportQueueHook, sink_hook

DOCS = Path(__file__).parents[2] / "docs"
README = DOCS.parent / "README.md"
NAMES = ("airflow", "mirror", "airflow-secrets", "airflow-reference", "waiting")
PAGE = "".join((DOCS / f"{name}.md").read_text("utf-8") for name in NAMES)


def blocks(language: str, page: str = PAGE) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


DAGS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in (README, *sorted(DOCS.glob("**/*.md")))
    for number, block in enumerate(blocks("python", page.read_text("utf-8")))
    if re.search(r"^from airflow\b", block, re.MULTILINE)
]


@pytest.mark.parametrize("block", DAGS)
def test_dags_of_pages_can_be_written(block: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(block, "docs/airflow.md", "exec"), names)
    functions = re.findall(r"^@dag.*\ndef (\w+)\(\):", block, re.MULTILINE)
    assert functions
    assert all(isinstance(names[name](), DAG) for name in functions)
    uncalled = [name for name in functions if not re.search(rf"^{name}\(\)$", block, re.MULTILINE)]
    assert not uncalled, "Airflow finds no DAG in a file that does not call the function"


def test_its_smallest_dags_run(store_path: Path, redis_connection: Any, run_dag: Any) -> None:
    names: dict[str, Any] = {}
    exec(compile(blocks("python")[0], "docs/airflow.md", "exec"), names)
    for _ in range(2):
        assert run_dag(names["count_visits"]()).state == "success"
        assert run_dag(names["publish_visits"]()).state == "success"
    assert redis_connection.get("visits:home") == b'{"visits":2}'


def test_the_smallest_dag_of_the_readme_mirrors_a_query_and_proves_it(
    store_path: Path, run_dag: Any, connect: Any, tmp_path: Path
) -> None:
    names: dict[str, Any] = {}
    exec(compile(blocks("python", README.read_text("utf-8"))[0], "README.md", "exec"), names)
    connect("warehouse_default", conn_type="sqlite", host=str(tmp_path / "warehouse.db"))
    for name in ("elasticsearch", "redis"):  # a sink is found by its type
        connect(f"{name}_default", conn_type="sqlite", host=str(tmp_path / f"{name}.db"))
    warehouse = sqlite3.connect(tmp_path / "warehouse.db", isolation_level=None)
    warehouse.execute("create table customers (id integer, name text, city text)")
    warehouse.executemany("insert into customers values (?, ?, 'Oslo')", enumerate("abcdefghij"))
    first = run_dag(names["customers_to_copies"]())
    assert (first.state, first.result("mirror")["new"]) == ("success", 10)
    assert [first.result(f"verify_{name}")["differences"] for name in ("search", "cache")] == [0, 0]
    warehouse.execute("delete from customers where id = 3")
    warehouse.execute("update customers set city = 'Rome' where id = 4")
    second = run_dag(names["customers_to_copies"]())
    told = second.result("mirror")
    assert (second.state, told["changed"], told["deleted"]) == ("success", 1, 1)
    assert [second.result(f"drain_{name}")["acknowledged"] for name in ("search", "cache")] == [2, 2]
    warehouse.execute("delete from customers")
    refused = run_dag(names["customers_to_copies"]())
    assert isinstance(refused.errors["mirror"], MirrorRefused)


def test_the_mirror_of_a_query_sends_changes_and_deletes(
    store_path: Path, redis_connection: Any, run_dag: Any, connect: Any, tmp_path: Path
) -> None:
    (block,) = [block for block in blocks("python") if "def mirror_customers()" in block]
    names: dict[str, Any] = {}
    exec(compile(block, "docs/mirror.md", "exec"), names)
    connect("warehouse", conn_type="sqlite", host=str(tmp_path / "warehouse.db"))
    warehouse = sqlite3.connect(tmp_path / "warehouse.db", isolation_level=None)
    warehouse.execute("create table customers (id integer, name text, city text)")
    warehouse.executemany("insert into customers values (?, ?, ?)", [(i, f"name {i}", "Bern") for i in range(10)])
    assert run_dag(names["mirror_customers"]()).state == "success"
    assert redis_connection.get("customers:1") == b'{"id":1,"name":"name 1","city":"Bern"}'
    warehouse.execute("delete from customers where id = 1")
    warehouse.execute("update customers set city = 'Chur' where id = 2")
    run = run_dag(names["mirror_customers"]())
    assert run.state == "success"
    report = run.result("mirror")
    assert [report[name] for name in ("new", "changed", "deleted", "unchanged")] == [0, 1, 1, 8]
    assert (run.result("verify")["differences"], run.result("verify")["ranked"]) == (0, True)
    assert redis_connection.get("customers:1") is None
    assert redis_connection.get("customers:2") == b'{"id":2,"name":"name 2","city":"Chur"}'
    warehouse.execute("delete from customers")
    failed = run_dag(names["mirror_customers"]())
    assert failed.state == "failed"
    assert isinstance(failed.errors["mirror"], MirrorRefused)
    assert redis_connection.get("customers:2") is not None


def test_its_connections_are_understood(monkeypatch: pytest.MonkeyPatch, connect: Any) -> None:
    connect("warehouse", conn_type="postgres", host="h", schema="d")
    lines = blocks("bash")[0].strip().splitlines()
    assert len(lines) == 7
    found = []
    for line in lines:
        name, value = re.fullmatch(r"(AIRFLOW_CONN_\w+)='(.*)'", line).groups()  # type: ignore[union-attr]
        monkeypatch.setenv(name, value)
        if "EXPORT_QUEUE" in name:
            spec = ExportQueueHook().describe().spec
            found.append((spec.url, spec.schema))
    assert found == [
        ("postgresql+psycopg://exports@db.example/exports", "export_queue"),
        ("postgresql+psycopg://h/d", "exports"),
        ("sqlite:////var/lib/exports.db", "export_queue"),
    ]
    assert sink_hook("redis_default").describe().spec.options["host"] == "redis.example"
    for conn_id in ("elasticsearch_default", "opensearch_default"):
        assert sink_hook(conn_id).describe().spec.options["hosts"] == ["https://search.example:9200"]


@pytest.mark.parametrize("name", ["greet_customers", "greet_renamed_customers"])
def test_its_dags_about_notifications_work_off_what_has_changed(
    store_path: Path, run_dag: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (block,) = [block for block in blocks("python") if f"def {name}()" in block]
    names: dict[str, Any] = {}
    exec(compile(block, "docs/airflow.md", "exec"), names)
    with Store.open(f"sqlite:///{store_path}") as store:
        store.create()
        store.watch("customers", "name")
        with store.transaction() as tx:
            tx.table("customers").set("anna", "name", b"Anna")
            tx.table("customers").set(b"\xff\x00", "name", b"Ben")
        dag = names[name]()
        run = run_dag(dag)
        assert run.state == "success"
        if dag.has_task("wait"):
            (shown,) = blocks("json")
            assert run.result("wait") == json.loads(shown)
        with store.transaction() as tx:
            assert tx.table("letters").get("anna", "text") == b"Dear anna"
        assert not store.waiting_rows("customers", "name")


@pytest.mark.parametrize(
    "operator",
    [
        "ExportQueueCompactOperator",
        "ExportQueueDrainOperator",
        "ExportQueueSparkCompactOperator",
        "ExportQueueSparkDrainOperator",
        "ExportQueueSensor",
        "ExportQueueNotificationSensor",
        "ExportQueueTrigger",
        "ExportQueueNotificationTrigger",
    ],
)
def test_every_argument_in_its_tables_exists(operator: str) -> None:
    import inspect

    from export_queue import operators, sensors, triggers

    found = next(getattr(room, operator) for room in (operators, sensors, triggers) if hasattr(room, operator))
    known = {name for base in found.mro() if base is not object for name in inspect.signature(base).parameters}
    shared = {"queue_id", "sink_conn_id", "sink_options", "sink", "exporter", "ranges", "if_locked", "lock_timeout"}
    drains = shared | {"time_limit", "on_error", "max_dead", "dead_letters"}
    expected = {
        "ExportQueueCompactOperator": {"queue_id", "dry_run", "small_bytes", "least", "age_seconds"},
        "ExportQueueDrainOperator": drains,
        "ExportQueueSparkCompactOperator": {"dry_run", "least", "spark_conn_id", "spark_home", "start_timeout"},
        "ExportQueueSparkDrainOperator": drains
        | {
            "spark_conn_id",
            "spark_home",
            "spark_python",
            "start_timeout",
            "max_parallel",
            "store_secret",
            "sink_secrets",
        },
        "ExportQueueSensor": {"queue_id", "groups", "deferrable"},
        "ExportQueueNotificationSensor": {
            "table",
            "column",
            "queue_id",
            "limit",
            "deferrable",
            "export_queue_conn_id",
            "poke_interval",
            "timeout",
        },
        "ExportQueueTrigger": {"queue_id", "ranges", "poll_interval", "min_interval", "export_queue_conn_id"},
        "ExportQueueNotificationTrigger": {"table", "column", "limit"},
    }[operator]
    assert expected <= known
    assert all(f"`{name}`" in PAGE or f"`{name}=" in PAGE for name in expected)
