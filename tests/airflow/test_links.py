"""Extra links of tasks, as the API server finds them: from the stored DAG and XCom, without the operators' classes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from airflow.sdk import DAG
from tests.support.fake_spark import FakeSpark

from export_queue import operators, sensors
from export_queue.get_provider_info import get_provider_info
from export_queue.links import DeadLettersLink, QueuePageLink, SparkUiLink, address
from export_queue.operators import (
    ExportQueueConfigureOperator,
    ExportQueueDrainOperator,
    ExportQueueMaintainOperator,
    ExportQueueObserveOperator,
    ExportQueueSparkDrainOperator,
    ExportQueueSparkLoadOperator,
)

CONNECTION = "export_queue_default"
READER = f"/team/export-queue/connections/{CONNECTION}/reader?reader=orders"
LETTERS = f"/team/export-queue/connections/{CONNECTION}/letters?reader=orders"
SUBMIT = """#!{python}
import sys
from pathlib import Path
for line in (Path({folder!r}) / "mode").read_text().splitlines():
    print(line, flush=True)
from contextlib import closing
from export_queue.core.client import Store
from export_queue.core.drain import drain_as_requested
from export_queue.core.spark import DrainArguments
job = DrainArguments.from_json(sys.argv[-1])
with closing(Store(job.store.open())) as store:
    drain_as_requested(store, job.sink, job.request.another_attempt())
"""


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration names the connection, and Airflow has a base path."""
    monkeypatch.setenv("AIRFLOW__EXPORT_QUEUE__UI_CONN_IDS", f"other, {CONNECTION}")
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/team/")


@pytest.fixture
def copies(connect: Any, tmp_path: Path) -> None:
    connect("copies", conn_type="sqlite", host=str(tmp_path / "copies.db"))


@pytest.fixture
def links_of(run_dag: Any) -> Callable[..., dict[str, str]]:
    """Run a task, and ask for its links as the route of Airflow's REST API does."""

    def ask(operator: type[Any], **arguments: Any) -> dict[str, str]:
        from airflow.serialization.serialized_objects import DagSerialization

        with DAG("linked", schedule=None) as dag:
            operator(task_id="it", **arguments)
        finished = run_dag(dag)
        stored = json.loads(json.dumps(DagSerialization.to_dict(dag)))
        task = DagSerialization.from_dict(stored).get_task("it")
        assert type(task).__module__.startswith("airflow.")
        key = SimpleNamespace(dag_id="linked", task_id="it", run_id=finished.run_id, map_index=-1, try_number=1)
        return {name: task.get_extra_links(SimpleNamespace(key=key), name) or "" for name in task.extra_links}

    return ask


@pytest.fixture
def spark(tmp_path: Path, connect: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSpark]:
    """A ``spark-submit`` that prints its mode, and drains."""
    fake = FakeSpark(tmp_path / "fake-spark", SUBMIT, "")
    monkeypatch.setenv("AIRFLOW__EXPORT_QUEUE__SPARK_HOME", str(fake.folder))
    connect("spark_default", conn_type="spark", host="local[2]")
    return fake


def add(store: Any) -> None:
    with store.transaction() as tx:
        tx.queue("orders").add("anna", {"total": 1})


def test_a_task_leads_to_the_page_of_its_queue_and_to_its_dead_letters(
    airflow_store: Any, page: None, copies: None, links_of: Any
) -> None:
    arguments = {"queue_id": "{{ 'orders' }}", "sink_conn_id": "copies"}
    assert links_of(ExportQueueDrainOperator, **arguments) == {"Export Queue page": READER, "Dead letters": LETTERS}


def test_a_task_that_fails_has_its_links(airflow_store: Any, page: None, links_of: Any) -> None:
    assert links_of(ExportQueueDrainOperator, queue_id="orders", sink_conn_id="missing")["Dead letters"] == LETTERS


def test_a_task_without_a_queue_leads_to_its_store(airflow_store: Any, page: None, links_of: Any) -> None:
    assert links_of(ExportQueueMaintainOperator) == {
        "Export Queue page": f"/team/export-queue/connections/{CONNECTION}"
    }


@pytest.mark.parametrize("named", ["", "other"])
def test_there_is_no_link_to_a_page_that_the_configuration_does_not_name(
    airflow_store: Any, page: None, links_of: Any, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("AIRFLOW__EXPORT_QUEUE__UI_CONN_IDS", named)
    assert links_of(ExportQueueConfigureOperator, queue_id="orders") == {"Export Queue page": ""}


@pytest.mark.parametrize("queue_id", ["airports/search", "a&reader=b#c", "ä \n\"'<>%2f", "../../letters?x=1"])
def test_any_queue_id_stays_one_value_of_the_query(page: None, queue_id: str) -> None:
    task = ExportQueueDrainOperator(task_id="it", queue_id=queue_id, sink_conn_id="copies")
    url = urlsplit(DeadLettersLink().get_link(task, ti_key=None))
    assert url.path == f"/team/export-queue/connections/{CONNECTION}/letters"
    assert parse_qs(url.query, strict_parsing=True) == {"reader": [queue_id]}
    assert not url.fragment


def test_any_connection_id_stays_one_part_of_the_path() -> None:
    assert address("/root", "connections", "a/../b?c#d") == "/root/connections/a%2F..%2Fb%3Fc%23d"


def test_links_are_stored_before_the_task_works(page: None) -> None:
    pushed: dict[str, str] = {}
    context = {"ti": SimpleNamespace(xcom_push=pushed.__setitem__)}
    ExportQueueConfigureOperator(task_id="it", queue_id="orders").pre_execute(context)
    assert pushed == {QueuePageLink().xcom_key: READER}


def test_a_link_that_cannot_be_stored_does_not_stop_the_task(page: None) -> None:
    def refuse(key: str, value: str) -> None:
        raise RuntimeError("no server")

    context = {"ti": SimpleNamespace(xcom_push=refuse)}
    ExportQueueConfigureOperator(task_id="it", queue_id="orders").pre_execute(context)


def test_the_address_of_sparks_ui_is_taken_from_the_output_of_the_submission(
    airflow_store: Any, copies: None, links_of: Any, spark: FakeSpark
) -> None:
    add(airflow_store)
    spark.mode("Spark UI: http://10.0.0.7:4040\nSpark UI: http://10.0.0.8:4040")
    found = links_of(ExportQueueSparkDrainOperator, queue_id="orders", sink_conn_id="copies")
    assert found == {"Export Queue page": "", "Dead letters": "", "Spark UI": "http://10.0.0.7:4040"}


def pushed_by(*lines: str) -> list[str]:
    pushed: list[str] = []
    task = ExportQueueSparkLoadOperator(task_id="it", frame="module:function", queue_id="orders")
    task._instance = SimpleNamespace(xcom_push=lambda key, value: pushed.append(value))
    assert list(task._watched(lines)) == list(lines)
    return pushed


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("Spark UI: http://driver:4040\n", ["http://driver:4040"]),
        ("\t tracking URL: http://rm:8088/proxy/application_17_0001/\n", ["http://rm:8088/proxy/application_17_0001/"]),
        ("\t tracking URL: N/A\n", []),
        ("an entry says Spark UI: http://other\n", []),
        ("Spark UI: javascript:alert(1)\n", []),
        ("Spark UI: http://user:kept-secret@driver:4040\n", []),
    ],
)
def test_only_an_address_without_a_user_counts_as_sparks_ui(line: str, found: list[str]) -> None:
    assert pushed_by("Spark starts\n", line) == found


def test_every_operator_and_sensor_has_the_links_that_its_arguments_allow() -> None:
    for room in (operators, sensors):
        for name in room.__all__:
            kind = getattr(room, name)
            links = {type(link) for link in kind.operator_extra_links}
            assert QueuePageLink in links, name
            assert (SparkUiLink in links) == ("Spark" in name), name
    assert QueuePageLink in {type(link) for link in ExportQueueObserveOperator.operator_extra_links}


def test_airflow_lists_the_links_of_the_provider() -> None:
    from airflow.providers_manager import ProvidersManager

    named = {f"{kind.__module__}.{kind.__qualname__}" for kind in (QueuePageLink, DeadLettersLink, SparkUiLink)}
    assert set(get_provider_info()["extra-links"]) == named
    assert named <= set(ProvidersManager().extra_links_class_names)
