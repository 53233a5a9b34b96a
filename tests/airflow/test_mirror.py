"""The operator that mirrors a query or a file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from export_queue import EntryError, InvalidArgument, MirrorRefused, Store
from export_queue.operators import ExportQueueMirrorOperator

Run = Callable[..., Any]


@pytest.fixture
def mirror(run_dag: Any) -> Run:
    """Run the operator in a DAG of its own; returns its result, or raises its error."""

    def run(**arguments: Any) -> Any:
        with DAG("one_task", schedule=None, render_template_as_native_obj=False) as dag:
            ExportQueueMirrorOperator(task_id="it", **{"queue_id": "customers", "key": "id", **arguments})
        finished = run_dag(dag)
        if finished.errors:
            raise finished.errors["it"]
        return finished.result("it")

    return run


@pytest.fixture
def customers(store_path: Path) -> Any:
    with Store.open(f"sqlite:///{store_path}") as store:
        store.create()
        store.configure_queue("customers", state=True)
        yield store


@pytest.fixture
def warehouse(connect: Any, tmp_path: Path) -> Any:
    connect("warehouse", conn_type="sqlite", host=str(tmp_path / "warehouse.db"))
    found = sqlite3.connect(tmp_path / "warehouse.db", isolation_level=None)
    found.execute("create table customers (id integer, country text, name text)")
    found.executemany("insert into customers values (?, 'ch', ?)", [(i, f"name {i}") for i in range(10)])
    return found


def test_a_query_with_parameters_is_mirrored(customers: Store, mirror: Run, warehouse: Any) -> None:
    query = {
        "sql": "select * from customers where id >= ?",
        "sql_conn_id": "warehouse",
        "parameters": ("{{ 5 }}",),
        "key": '["country", "id"]',
        "value": "name",
    }
    assert mirror(**query)["new"] == 5
    assert customers.state("customers").get('["ch",7]') == "name 7"
    assert mirror(**query)["unchanged"] == 5


def test_a_dry_run_only_says_what_would_change(customers: Store, mirror: Run, warehouse: Any) -> None:
    found = mirror(sql="select * from customers", sql_conn_id="warehouse", dry_run=True)
    assert (found["new"], found["dry_run"], found["samples"]["new"]) == (10, True, ["0", "1", "2", "3", "4"])
    assert customers.state("customers").count() == 0


def test_a_file_is_mirrored(customers: Store, mirror: Run, tmp_path: Path) -> None:
    file = tmp_path / "customers.ndjson"
    file.write_text('{"id":"a","n":1}\n{"id":"b","n":2}\n')
    assert mirror(file=f"file://{file}")["new"] == 2
    assert customers.state("customers").get("b") == {"id": "b", "n": 2}
    file.write_text('{"id":"a","n":1}\n{"id":')
    with pytest.raises(EntryError, match="line 2"):
        mirror(file=f"file://{file}")


def test_too_many_deletes_fail_at_once(customers: Store, mirror: Run, warehouse: Any) -> None:
    query = {"sql": "select * from customers", "sql_conn_id": "warehouse"}
    mirror(**query)
    warehouse.execute("delete from customers")
    with pytest.raises(MirrorRefused, match="10 of 10") as raised:
        mirror(**query)
    assert isinstance(raised.value, AirflowFailException)
    assert customers.state("customers").count() == 10
    assert mirror(**query, max_deletes="{{ 1.0 }}")["deleted"] == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either sql or file, found neither"),
        ({"sql": "select 1", "file": "x.csv"}, "either sql or file, found both"),
        ({"sql": "select 1"}, "sql_conn_id"),
        ({"file": "file:///tmp/x.xlsx"}, "ends with .parquet"),
        ({"file": "file:///nowhere/x.csv"}, "expected a file, found none"),
        ({"file": "x.csv", "key": ""}, "key: expected the name of a column"),
        ({"file": "x.csv", "max_deletes": "many"}, "max_deletes"),
    ],
)
def test_wrong_arguments_fail_at_once(customers: Store, mirror: Run, arguments: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as raised:
        mirror(**arguments)
    assert isinstance(raised.value, AirflowFailException)
