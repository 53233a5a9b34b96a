"""``@task.export_transaction``: once per unit of work, whatever Airflow does."""

from __future__ import annotations

import functools
import logging
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, task
from tests.support.task_timeouts import end_the_time_of_airflow
from tests.support.waiting import wait_until

from export_queue import TransactionTimeout
from export_queue.assets import queue_asset

NOON = {"logical_date": datetime(2026, 1, 1, 12, tzinfo=UTC), "run_after": datetime(2026, 1, 1, 12, tzinfo=UTC)}
"""The same arguments name the same run: running it again is what clearing its tasks does."""


def entries(store: Any) -> int:
    return sum(unit.entries for unit in store.backlog("orders"))


def total_of(store: Any, customer: str) -> int:
    with store.transaction() as tx:
        return int(tx.table("totals").get(customer, "n", b"0"))


def add_one(tx: Any, customer: str = "anna") -> int:
    table = tx.table("totals")
    total = int(table.get(customer, "n", b"0")) + 1
    table.set(customer, "n", str(total).encode())
    tx.queue("orders").add(customer, {"total": total})
    return total


class FailsOnce:
    """Called after a task has executed; it fails the first time, as a crash at this point would."""

    def __init__(self, times: int = 1) -> None:
        self.times = times

    def __call__(self, context: Any, result: Any = None) -> None:
        if self.times:
            self.times -= 1
            raise RuntimeError("crashed after the commit")


def test_cells_entries_and_result_are_committed(airflow_store: Any, run_dag: Any) -> None:
    with DAG("transaction_commits", schedule=None) as dag:

        @task.export_transaction
        def totals(factor: int, *, tx: Any) -> dict[str, int]:
            return {"total": add_one(tx) * factor}

        totals(10)

    run = run_dag(dag)
    assert run.state == "success"
    assert run.result("totals") == {"total": 10}
    assert total_of(airflow_store, "anna") == 1
    assert entries(airflow_store) == 1


def test_an_exception_leaves_nothing(airflow_store: Any, run_dag: Any) -> None:
    with DAG("transaction_aborts", schedule=None) as dag:

        @task.export_transaction
        def totals(*, tx: Any) -> None:
            add_one(tx)
            raise ValueError("bad data")

        totals()

    run = run_dag(dag)
    assert run.state == "failed"
    assert isinstance(run.errors["totals"], ValueError)
    assert total_of(airflow_store, "anna") == 0
    assert entries(airflow_store) == 0


def test_a_result_that_is_not_json_leaves_nothing(airflow_store: Any, run_dag: Any) -> None:
    with DAG("transaction_returns_bytes", schedule=None) as dag:

        @task.export_transaction
        def totals(*, tx: Any) -> bytes:
            add_one(tx)
            return b"\xff"

        totals()

    assert run_dag(dag).state == "failed"
    assert entries(airflow_store) == 0


def test_a_retry_after_the_commit_returns_the_stored_result_and_says_so(
    airflow_store: Any, run_dag: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with DAG("transaction_retried", schedule=None) as dag:

        @task.export_transaction(retries=1, retry_delay=timedelta(0), post_execute=FailsOnce())
        def totals(*, tx: Any) -> int:
            return add_one(tx)

        totals()

    run = run_dag(dag)
    assert run.state == "success"
    assert run.result("totals") == 1
    assert total_of(airflow_store, "anna") == 1
    assert entries(airflow_store) == 1
    assert "committed in an earlier try" in "".join(capfd.readouterr())


def test_clearing_a_task_that_succeeded_is_new_work(airflow_store: Any, run_dag: Any) -> None:
    with DAG("transaction_cleared", schedule=None) as dag:

        @task.export_transaction
        def totals(*, tx: Any) -> int:
            return add_one(tx)

        totals()

    first, second = run_dag(dag, **NOON), run_dag(dag, **NOON)
    assert first.run_id == second.run_id
    assert second.result("totals") == 2
    assert total_of(airflow_store, "anna") == 2


def test_clearing_a_task_whose_success_never_arrived_counts_as_a_retry(airflow_store: Any, run_dag: Any) -> None:
    with DAG("transaction_cleared_after_crash", schedule=None) as dag:

        @task.export_transaction(post_execute=FailsOnce())
        def totals(*, tx: Any) -> int:
            return add_one(tx)

        totals()

    assert run_dag(dag, **NOON).state == "failed"
    assert run_dag(dag, **NOON).result("totals") == 1
    assert total_of(airflow_store, "anna") == 1


def test_each_mapped_task_is_a_unit_of_its_own(airflow_store: Any, run_dag: Any) -> None:
    with DAG("transaction_mapped", schedule=None) as dag:

        @task.export_transaction
        def totals(customer: str, *, tx: Any) -> int:
            return add_one(tx, customer)

        totals.expand(customer=["anna", "ben", "anna"])

    run = run_dag(dag, **NOON)
    assert run.state == "success"
    first, ben, second = (run.result("totals", index) for index in range(3))
    assert ben == 1
    assert sorted([first, second]) == [1, 2], "Airflow runs mapped tasks in any order"
    again = run_dag(dag, **NOON)
    assert again.state == "success"
    assert (total_of(airflow_store, "anna"), total_of(airflow_store, "ben")) == (4, 2)


def test_context_arguments_and_other_tasks_results_reach_the_function(airflow_store: Any, run_dag: Any) -> None:
    with DAG("transaction_arguments", schedule=None) as dag:

        @task
        def customer() -> str:
            return "ben"

        @task.export_transaction(multiple_outputs=True)
        def totals(name: str, ti: Any = None, *, tx: Any) -> dict[str, Any]:
            return {"total": add_one(tx, name), "task": ti.task_id}

        totals(customer())

    assert run_dag(dag).result("totals") == {"total": 1, "task": "totals"}


def test_the_success_makes_an_event_of_the_queues_asset(airflow_store: Any, run_dag: Any) -> None:
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with DAG("transaction_asset", schedule=None) as dag:

        @task.export_transaction(outlets=[queue_asset("orders")])
        def totals(*, tx: Any) -> None:
            add_one(tx)

        totals()

    run = run_dag(dag)
    with create_session() as session:
        statement = select(AssetModel.uri).join(AssetEvent, AssetEvent.asset_id == AssetModel.id)
        uris = session.scalars(statement.where(AssetEvent.source_run_id == run.run_id)).all()
    assert uris == ["export-queue://export_queue_default/orders"]


@pytest.mark.parametrize(("recorded", "closed"), [("success", True), ("failed", False), (None, False)])
def test_a_generation_is_closed_only_if_airflow_recorded_the_success(
    airflow_store: Any, recorded: str | None, closed: bool
) -> None:
    with DAG("transaction_listener", schedule=None):

        @task.export_transaction
        def totals(*, tx: Any) -> int:
            return add_one(tx)

        operator = totals().operator

    instance = SimpleNamespace(
        dag_id="transaction_listener",
        run_id="r",
        task_id="totals",
        map_index=-1,
        get_task_states=lambda **_: {"r": {"totals": recorded}},
    )
    operator.execute({"ti": instance, "outlet_events": {}})
    operator.accept_success(instance)
    assert airflow_store.idempotency("transaction_listener/r/totals").committed is not closed


def test_the_listener_survives_a_store_that_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    from export_queue.plugin import SuccessListener

    def fail(_: Any) -> None:
        raise ConnectionError("gone")

    instance = SimpleNamespace(task=SimpleNamespace(accept_success=fail), task_id="totals")
    with caplog.at_level(logging.ERROR, logger="export_queue.plugin"):
        SuccessListener().on_task_instance_success(None, instance)
    assert "could not be closed" in caplog.text


def test_airflow_loads_the_listener_by_default() -> None:
    from airflow.sdk.plugins_manager import _get_plugins

    assert "export_queue" in [plugin.name for plugin in _get_plugins()[0]]


def test_a_function_without_tx_is_refused_when_the_dag_is_written() -> None:
    with pytest.raises(TypeError, match="keyword parameter tx"):

        @task.export_transaction
        def totals(amount: int) -> None: ...


def test_generators_and_coroutines_are_refused_when_the_dag_is_written() -> None:
    with pytest.raises(TypeError, match="plain function"):

        @task.export_transaction
        def generator(*, tx: Any) -> Any:
            yield 1

    with pytest.raises(TypeError, match="plain function"):

        @task.export_transaction
        async def coroutine(*, tx: Any) -> None: ...


def test_a_function_that_only_its_result_betrays_commits_nothing_and_is_not_tried_again(
    airflow_store: Any, run_dag: Any
) -> None:
    calls: list[int] = []

    async def later(tx: Any) -> None: ...

    with DAG("lazy", schedule=None) as dag:

        @task.export_transaction(retries=2, retry_delay=0)
        def lazy(*, tx: Any) -> Any:
            calls.append(1)
            tx.queue("orders").add("anna", {})
            return later(tx)

        lazy()

        class Work:
            async def __call__(self, *, tx: Any) -> None: ...

        for function in (Work(), functools.partial(later)):
            with pytest.raises(TypeError, match="plain function"):
                task.export_transaction(function, task_id="refused")
    run = run_dag(dag)
    assert run.state == "failed"
    assert "returned a coroutine, which has not run" in str(run.errors["lazy"])
    assert calls == [1]
    assert sum(unit.entries for unit in airflow_store.backlog("orders")) == 0


def test_the_function_cannot_be_run_outside_of_its_transaction() -> None:
    from export_queue.decorators import _without_transaction

    def totals(*, tx: Any) -> None: ...

    with pytest.raises(RuntimeError, match="only as a task"):
        _without_transaction(totals)()


def test_a_function_that_takes_longer_than_its_time_out_fails_the_task_at_once(
    airflow_store: Any, run_dag: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    runs = []
    with DAG("transaction_too_slow", schedule=None) as dag:

        @task.export_transaction(transaction_timeout=0.2, retries=2, retry_delay=timedelta(0))
        def totals(*, tx: Any) -> None:
            runs.append(1)
            add_one(tx)
            end = time.monotonic() + 0.4
            wait_until(lambda: time.monotonic() > end, "the clock stands")

        totals()

    run = run_dag(dag)
    assert run.state == "failed"
    assert len(runs) == 1
    assert isinstance(run.errors["totals"], TransactionTimeout)
    assert "s from its first read, and may take 0.2 s (its time-out)" in str(run.errors["totals"])
    assert "transaction_timeout= of @task.export_transaction" in str(run.errors["totals"].hint)
    assert entries(airflow_store) == 0


def test_a_task_that_exceeds_airflows_time_out_leaves_nothing_and_its_retry_runs_the_function(
    airflow_store: Any, run_dag: Any
) -> None:
    runs = []
    with DAG("transaction_timed_out", schedule=None) as dag:

        @task.export_transaction(execution_timeout=timedelta(hours=1), retries=1, retry_delay=timedelta(0))
        def totals(*, tx: Any) -> int:
            runs.append(1)
            total = add_one(tx)
            if len(runs) == 1:
                end_the_time_of_airflow()
            return total

        totals()

    run = run_dag(dag)
    assert run.state == "success"
    assert (len(runs), run.result("totals")) == (2, 1)
    assert total_of(airflow_store, "anna") == 1
    assert entries(airflow_store) == 1


def test_a_value_that_no_run_can_add_fails_the_task_at_once(airflow_store: Any, run_dag: Any) -> None:
    runs = []
    with DAG("transaction_adds_nan", schedule=None) as dag:

        @task.export_transaction(retries=2, retry_delay=timedelta(0))
        def rows(*, tx: Any) -> None:
            runs.append("rows")
            tx.queue("orders").add_many([("anna", {"total": 1.0}), ("ben", {"total": float("nan")})])

        @task.export_transaction(retries=2, retry_delay=timedelta(0))
        def result(*, tx: Any) -> float:
            runs.append("result")
            return float("nan")

        rows()
        result()

    run = run_dag(dag)
    assert run.state == "failed"
    assert sorted(runs) == ["result", "rows"]
    assert "key 'ben': expected a JSON value, but field total is nan" in str(run.errors["rows"])
    assert "nan would come back as None" in str(run.errors["result"])
    assert entries(airflow_store) == 0
