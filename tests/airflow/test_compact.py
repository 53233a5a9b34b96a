"""The operator that merges segments in the worker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTerminated
from tests.support import bulk
from tests.support.bulk import many

from export_queue import InvalidArgument, MemorySink, Store, UnknownQueue, drain
from export_queue.core.drain import DrainRequest
from export_queue.core.segments import watched_steps
from export_queue.operators import ExportQueueCompactOperator
from export_queue.operators.submissions import Submissions

Run = Callable[..., Any]


@pytest.fixture
def compact(run_dag: Any) -> Run:
    """Run the operator in a DAG of its own; returns its result, or raises its error."""

    def run(**arguments: Any) -> Any:
        with DAG("one_task", schedule=None, render_template_as_native_obj=False) as dag:
            ExportQueueCompactOperator(task_id="it", **arguments)
        finished = run_dag(dag)
        if finished.errors:
            raise finished.errors["it"]
        return finished.result("it")

    return run


@pytest.fixture
def orders(store_path: Path) -> Any:
    with Store.open(f"sqlite:///{store_path}") as store:
        store.create()
        store.configure_queue("orders", buckets=10, buckets_per_range=5, value="bytes")
        for _ in range(5):
            bulk.load(store, many(20, b"load"))
        yield store


def test_a_dry_run_says_what_the_task_then_does(orders: Store, compact: Run) -> None:
    arguments = {"queue_id": "orders", "least": "{{ 2 }}"}
    foretold = compact(**arguments, dry_run=True)
    assert (foretold["dry_run"], foretold["inputs"], foretold["units"], foretold["files"]) == (True, 10, 2, [])
    done = compact(**arguments)
    assert (done["inputs"], done["outputs"], done["units"], done["read"], done["written"]) == (10, 2, 2, 100, 100)
    assert compact(**arguments)["inputs"] == 0


def test_what_waits_in_older_layouts_is_moved(orders: Store, compact: Run) -> None:
    orders.alter_queue("orders", buckets=8, buckets_per_range=2, guard="seq")
    done = compact(queue_id="orders", older_layouts=True)
    assert (done["inputs"], done["outputs"], done["read"], done["written"]) == (10, 4, 100, 100)
    assert done["still_open"] == []
    with pytest.raises(AirflowFailException, match="takes everything that is pending there"):
        compact(queue_id="orders", older_layouts=True, least=2)


def test_what_is_moved_while_a_drain_on_spark_waits_is_left_for_it(orders: Store) -> None:
    submissions = Submissions.begin(orders, DrainRequest.of("orders", "sink", {}))
    orders.alter_queue("orders", buckets=8, buckets_per_range=2, guard="seq")
    orders.compact("orders", older_layouts=True)
    requests = submissions.requests(lambda: None)
    assert next(requests)
    assert {unit.layout for unit in submissions.promise.left} == {2}
    assert drain(orders, "orders", MemorySink(), sink_name="sink").acknowledged == 100
    assert list(requests) == []
    assert submissions.report([]).skipped == ()


def test_few_segments_are_left_alone_by_default(orders: Store, compact: Run) -> None:
    assert compact(queue_id="orders")["inputs"] == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [({"queue_id": "nobodys"}, UnknownQueue), ({"queue_id": "orders", "least": "many"}, InvalidArgument)],
)
def test_a_wrong_set_up_fails_at_once(orders: Store, compact: Run, arguments: Any, error: Any) -> None:
    with pytest.raises(error) as raised:
        compact(**arguments)
    assert isinstance(raised.value, AirflowFailException)


def test_a_task_that_is_killed_gives_its_locks_back(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's signal handler calls ``on_kill`` in the thread that merges."""
    operator = ExportQueueCompactOperator(task_id="it", queue_id="orders", least=2)

    def kill(step: str) -> None:
        if step == "written":
            operator.on_kill()

    monkeypatch.setattr(watched_steps, "WATCHERS", [kill])
    monkeypatch.setattr("export_queue.operators.compact.task_name", lambda context: "task")
    with pytest.raises(AirflowTaskTerminated):
        operator.execute({})
    monkeypatch.setattr(watched_steps, "WATCHERS", [])
    assert operator.execute({})["inputs"] == 0, "a task that was told to stop begins nothing new"
    again = ExportQueueCompactOperator(task_id="it", queue_id="orders", least=2)
    assert again.execute({})["inputs"] == 10
