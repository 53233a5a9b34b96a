"""The sensor waits for work, in the worker and on the triggerer."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowSensorTimeout

from export_queue import HasSubscriptions, InvalidArgument, UnknownQueue, polling
from export_queue.sensors import ExportQueueSensor
from export_queue.sensors.export_queue import group_ranges


def add(store: Any, *customers: str) -> None:
    with store.transaction() as tx:
        for customer in customers:
            tx.queue("orders").add(customer, {})


def run_sensor(run_dag: Any, **arguments: Any) -> Any:
    with DAG("sensor", schedule=None) as dag:
        ExportQueueSensor(**{"task_id": "wait", "queue_id": "orders", "poke_interval": 0.05, **arguments})
    run = run_dag(dag)
    if run.errors:
        raise run.errors["wait"]
    return run.result("wait")


@pytest.mark.parametrize("deferrable", [False, True])
def test_it_returns_the_units_that_have_work(airflow_store: Any, run_dag: Any, deferrable: bool) -> None:
    add(airflow_store, "anna", "ben", "carla")
    waiting = [[unit.range.first, unit.range.end] for unit in airflow_store.backlog("orders")]
    assert run_sensor(run_dag, deferrable=deferrable) == waiting
    assert sum(unit.entries for unit in airflow_store.backlog("orders")) == 3  # it consumes nothing


@pytest.mark.parametrize("deferrable", [False, True])
def test_it_waits_for_a_subscription(airflow_store: Any, run_dag: Any, deferrable: bool) -> None:
    airflow_store.configure_queue("airports", subscriptions=["search", "cache"])
    with airflow_store.transaction() as tx:
        tx.queue("airports").add("BRS", {})
    waiting = [unit.range.to_json() for unit in airflow_store.backlog("airports/search")]
    assert run_sensor(run_dag, queue_id="airports/search", deferrable=deferrable) == waiting
    with pytest.raises(HasSubscriptions, match="airports/cache, airports/search"):
        run_sensor(run_dag, queue_id="airports", deferrable=deferrable)


def test_it_returns_groups_to_map_over(airflow_store: Any, run_dag: Any) -> None:
    add(airflow_store, *(f"customer {i}" for i in range(200)))
    with DAG("sensor_groups", schedule=None) as dag:
        waiting = ExportQueueSensor(task_id="wait", queue_id="orders", groups=3)

        @task
        def count(ranges: list[list[int]]) -> int:
            return sum(end - first for first, end in ranges)

        count.expand(ranges=waiting.output)

    run = run_dag(dag)
    assert sum(run.result("count", index) for index in range(3)) == 1009


def test_it_watches_only_the_ranges_it_is_given(airflow_store: Any, run_dag: Any) -> None:
    add(airflow_store, "anna")
    (unit,) = airflow_store.backlog("orders")
    others = [[other.first, other.end] for other in airflow_store.queue("orders").units() if other != unit.range]
    with pytest.raises(AirflowSensorTimeout):
        run_sensor(run_dag, ranges=others, timeout=0)
    own = f"[[{unit.range.first}, {unit.range.end}]]"
    assert run_sensor(run_dag, ranges="{{ '" + own + "' }}") == [[unit.range.first, unit.range.end]]


def test_deferred_it_goes_on_when_work_comes(airflow_store: Any, run_dag: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def look(poller: polling.Poller, questions: Any) -> Any:
        found = answer(poller, questions)
        looks.append([sighting.waiting for sighting in found.values()])
        if len(looks) == 2:
            add(airflow_store, "anna")
        return found

    answer = polling.Poller._answer
    monkeypatch.setattr(polling.Poller, "_answer", look)
    result = run_sensor(run_dag, deferrable=True, groups=5)
    (unit,) = airflow_store.backlog("orders")
    assert result == [[[unit.range.first, unit.range.end]]]
    assert looks[:2] == [[()], [()]]


def test_an_unknown_queue_is_an_error_at_once(airflow_store: Any, run_dag: Any) -> None:
    for deferrable in (False, True):
        with pytest.raises(UnknownQueue, match="it has: orders"):
            run_sensor(run_dag, queue_id="order", deferrable=deferrable)


def test_less_than_one_group_is_refused_when_the_dag_is_written() -> None:
    with pytest.raises(InvalidArgument, match="groups"):
        ExportQueueSensor(task_id="wait", queue_id="orders", groups=0)


@pytest.mark.parametrize(
    ("waiting", "groups", "expected"),
    [
        ([], 3, []),
        ([[0, 5, 1]], 3, [[[0, 5]]]),
        ([[0, 5, 1], [5, 10, 1], [10, 15, 1], [15, 20, 1]], 1, [[[0, 20]]]),
        ([[0, 5, 100], [5, 10, 1], [10, 15, 1]], 2, [[[0, 5]], [[5, 15]]]),
        ([[0, 5, 2], [5, 10, 2], [20, 25, 2], [25, 30, 2]], 2, [[[0, 5], [20, 25]], [[5, 10], [25, 30]]]),
    ],
)
def test_groups_have_about_the_same_work(waiting: Any, groups: int, expected: Any) -> None:
    assert group_ranges(waiting, groups) == expected
