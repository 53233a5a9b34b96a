"""``export_transaction``: one transaction across the tasks of a group, whatever Airflow does."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, TaskGroup, get_current_context, task, task_group
from airflow.sdk.exceptions import AirflowSkipException

from export_queue import AlreadyCommitted, ConflictError, RegistrationLost, TransactionError, export_transaction
from export_queue.hooks import ExportQueueHook
from export_queue.transaction_group import ExportTransactionBeginOperator

NOON = {"logical_date": datetime(2026, 1, 1, 12, tzinfo=UTC), "run_after": datetime(2026, 1, 1, 12, tzinfo=UTC)}
"""The same arguments name the same run: running it again is what clearing all of its tasks does."""
ONE = datetime(2026, 1, 1, 13, tzinfo=UTC)
NOW = {"retries": 1, "retry_delay": timedelta(0)}


class FailsOnce:
    """Called after a task has executed; it fails the first time, as a crash at this point would."""

    def __init__(self) -> None:
        self.times = 1

    def __call__(self, context: Any, result: Any = None) -> None:
        if self.times:
            self.times -= 1
            raise RuntimeError("crashed after the work")


def add_one(tx: Any, customer: str) -> int:
    table = tx.table("totals")
    total = int(table.get(customer, "n", b"0")) + 1
    table.set(customer, "n", str(total).encode())
    tx.queue("orders").add(customer, {"total": total})
    return total


def total_of(store: Any, customer: str) -> int:
    with store.transaction(read_only=True) as tx:
        return int(tx.table("totals").get(customer, "n", b"0"))


def entries(store: Any) -> int:
    return sum(unit.entries for unit in store.backlog("orders"))


def is_clean(store: Any) -> bool:
    """Whether nothing is left of a group: no open transaction, no note about a task."""
    with store.transaction(read_only=True) as tx:
        return not store.transactions_in_progress() and not list(tx.table("airflow_tasks").scan())


def two_tasks(dag_id: str, second: Any = None, *, commit: dict[str, Any] | None = None, **first: Any) -> Any:
    """A group of two tasks, one for anna and then one for ben."""
    with DAG(dag_id, schedule=None) as dag, export_transaction("nightly", queues=["orders"]) as tx:

        @task.export_transaction(transaction=tx.handle, **first)
        def anna(*, tx: Any) -> int:
            return add_one(tx, "anna")

        @task.export_transaction(transaction=tx.handle)
        def ben(*, tx: Any) -> int:
            total = add_one(tx, "ben")
            if second is not None:
                second()
            return total

        anna() >> ben()
    for name, value in (commit or {}).items():
        setattr(dag.get_task("nightly.commit"), name, value)
    return dag


def test_all_tasks_commit_together(airflow_store: Any, run_dag: Any) -> None:
    seen: list[tuple[int, int]] = []
    dag = two_tasks("group_commits", lambda: seen.append((total_of(airflow_store, "anna"), entries(airflow_store))))
    run = run_dag(dag)
    assert run.errors == {}
    assert run.state == "success"
    assert seen == [(0, 0)], "nobody sees a part"
    assert (total_of(airflow_store, "anna"), total_of(airflow_store, "ben"), entries(airflow_store)) == (1, 1, 2)
    assert set(run.states().values()) == {"success"}
    assert str(run.result("nightly.commit")) == run.result("nightly.begin")["id"]
    assert is_clean(airflow_store)


def fail() -> None:
    raise ValueError("bad data")


def test_a_task_that_fails_leaves_nothing_and_the_run_is_red(airflow_store: Any, run_dag: Any) -> None:
    run = run_dag(two_tasks("group_aborts", fail))
    assert run.state == "failed"
    assert run.states() == {
        "nightly.begin": "success",
        "nightly.anna": "success",
        "nightly.ben": "failed",
        "nightly.commit": "upstream_failed",
        "nightly.abort": "success",
    }
    assert (total_of(airflow_store, "anna"), entries(airflow_store)) == (0, 0)
    assert is_clean(airflow_store)


def test_a_failure_that_a_later_task_ignores_still_aborts(airflow_store: Any, run_dag: Any) -> None:
    with DAG("group_ignored_failure", schedule=None) as dag, export_transaction("nightly") as tx:

        @task.export_transaction(transaction=tx.handle)
        def anna(*, tx: Any) -> None:
            add_one(tx, "anna")
            fail()

        @task(trigger_rule="all_done")
        def ben() -> None: ...

        anna() >> ben()

    run = run_dag(dag)
    assert run.state == "failed"
    assert run.states()["nightly.ben"] == "success"
    assert entries(airflow_store) == 0
    assert is_clean(airflow_store)


def test_a_retry_before_the_writes_runs_the_function(airflow_store: Any, run_dag: Any) -> None:
    calls: list[int] = []

    def fail_once() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("gone")

    dag = two_tasks("group_retried", fail_once)
    dag.get_task("nightly.ben").retries, dag.get_task("nightly.ben").retry_delay = 1, timedelta(0)
    run = run_dag(dag)
    assert run.state == "success"
    assert (len(calls), total_of(airflow_store, "ben"), entries(airflow_store)) == (2, 1, 2)


def test_a_retry_after_the_writes_does_not_write_twice(airflow_store: Any, run_dag: Any) -> None:
    run = run_dag(two_tasks("group_crashed", post_execute=FailsOnce(), **NOW))
    assert run.state == "success"
    assert run.result("nightly.anna") == 1
    assert (total_of(airflow_store, "anna"), total_of(airflow_store, "ben"), entries(airflow_store)) == (1, 1, 2)


def test_a_retried_begin_leaves_no_transaction_open(airflow_store: Any, run_dag: Any) -> None:
    dag = two_tasks("group_begins_again")
    begin = dag.get_task("nightly.begin")
    begin.retries, begin.retry_delay, begin._post_execute_hook = 1, timedelta(0), FailsOnce()
    seen: list[int] = []
    dag.get_task("nightly.anna")._pre_execute_hook = lambda _: seen.append(
        len(airflow_store.transactions_in_progress())
    )
    assert run_dag(dag).state == "success"
    assert seen == [1]
    assert is_clean(airflow_store)


def test_a_commit_whose_success_is_lost_is_repeated_without_effect(airflow_store: Any, run_dag: Any) -> None:
    dag = two_tasks(
        "group_commit_lost", commit={"_post_execute_hook": FailsOnce(), "retries": 1, "retry_delay": timedelta(0)}
    )
    run = run_dag(dag)
    assert run.state == "success"
    assert str(run.result("nightly.commit")) == run.result("nightly.begin")["id"]
    assert (total_of(airflow_store, "anna"), entries(airflow_store)) == (1, 2)
    assert is_clean(airflow_store)


def test_clearing_the_group_after_a_lost_success_is_refused(airflow_store: Any, run_dag: Any) -> None:
    assert run_dag(two_tasks("group_lost", commit={"_post_execute_hook": FailsOnce()}), **NOON).state == "failed"
    run = run_dag(two_tasks("group_lost"), **NOON)
    assert run.state == "failed"
    error = run.errors["nightly.begin"]
    assert isinstance(error, AlreadyCommitted)
    assert "--close` and clear the group" in str(error.hint)
    assert (total_of(airflow_store, "anna"), entries(airflow_store)) == (1, 2)
    assert is_clean(airflow_store)


def test_clearing_the_group_after_its_success_is_new_work(airflow_store: Any, run_dag: Any) -> None:
    for expected in (1, 2):
        run = run_dag(two_tasks("group_cleared"), **NOON)
        assert run.state == "success", run.errors
        assert (total_of(airflow_store, "anna"), total_of(airflow_store, "ben")) == (expected, expected)


def test_clearing_the_group_after_a_failure_begins_anew(airflow_store: Any, run_dag: Any) -> None:
    assert run_dag(two_tasks("group_failed_first", fail), **NOON).state == "failed"
    assert run_dag(two_tasks("group_failed_first"), **NOON).state == "success"
    assert (total_of(airflow_store, "anna"), entries(airflow_store)) == (1, 2)


def without_prefix() -> Any:
    with DAG("group_without_prefix", schedule=None) as dag, export_transaction("nightly", prefix_group_id=False) as tx:

        @task.export_transaction(transaction=tx.handle)
        def anna(*, tx: Any) -> int:
            return add_one(tx, "anna")

        anna()
    return dag


def inner_without_prefix() -> Any:
    with (
        DAG("group_inner_without_prefix", schedule=None) as dag,
        export_transaction("nightly") as tx,
        TaskGroup("inner", prefix_group_id=False),
    ):

        @task.export_transaction(transaction=tx.handle)
        def anna(*, tx: Any) -> int:
            return add_one(tx, "anna")

        anna()
    return dag


def in_a_mapped_group() -> Any:
    with DAG("group_in_a_mapped_one", schedule=None) as dag:

        @task_group
        def customer(name: str) -> None:
            with export_transaction("nightly") as tx:

                @task.export_transaction(transaction=tx.handle)
                def one(name: str, *, tx: Any) -> int:
                    return add_one(tx, name)

                one(name)

        customer.expand(name=["anna", "ben"])
    return dag


@pytest.mark.parametrize("make", [without_prefix, inner_without_prefix, in_a_mapped_group])
def test_it_is_new_work_after_its_success_whatever_its_tasks_are_called(
    airflow_store: Any, run_dag: Any, make: Any
) -> None:
    for expected in (1, 2):
        run = run_dag(make(), **NOON)
        assert run.state == "success", run.errors
        assert set(run.states().values()) == {"success"}
        assert total_of(airflow_store, "anna") == expected
        assert is_clean(airflow_store)


def test_a_task_in_a_transaction_of_its_dag_is_new_work_in_the_next_one(airflow_store: Any, run_dag: Any) -> None:
    with DAG("own_transaction", schedule=None) as dag:

        @task
        def begin() -> dict[str, Any]:
            with ExportQueueHook().get_store() as store:
                return store.begin()

        @task
        def end(transaction: dict[str, Any]) -> None:
            with ExportQueueHook().get_store() as store:
                store.commit(transaction)

        begun = begin()

        @task.export_transaction(transaction=begun)
        def anna(*, tx: Any) -> int:
            return add_one(tx, "anna")

        anna() >> end(begun)

    for expected in (1, 2):
        assert run_dag(dag, **NOON).state == "success"
        assert total_of(airflow_store, "anna") == expected


def test_a_commit_that_does_not_find_its_transaction_fails(airflow_store: Any, run_dag: Any) -> None:
    dag = two_tasks("group_without_xcom")
    dag.get_task("nightly.commit").begin_task = "nightly.ben"  # its XCom is not the transaction, as if that were lost
    dag.get_task("nightly.ben").do_xcom_push = False
    run = run_dag(dag)
    assert run.state == "failed"
    assert re.search(r"expected the XCom of nightly\.ben", str(run.errors["nightly.commit"]))
    assert total_of(airflow_store, "anna") == 0
    assert is_clean(airflow_store)


def begin(states: dict[str, str | None]) -> Any:
    """Run the begin of a group whose tasks have these states, as after clearing some of them."""
    operator = ExportTransactionBeginOperator(
        task_id="nightly.begin", transaction_group="nightly", abort_task="nightly.abort"
    )
    instance = SimpleNamespace(
        dag_id="d", run_id="r", task_id="nightly.begin", map_index=-1, get_task_states=lambda **_: {"r": states}
    )
    return operator.execute({"ti": instance})  # type: ignore[typeddict-item]


@pytest.mark.parametrize("state", ["success", "running", "deferred"])
def test_clearing_a_part_of_the_group_is_refused_and_aborts(airflow_store: Any, state: str) -> None:
    value = begin({"nightly.begin": "running", "nightly.anna": None})
    with airflow_store.resume(value) as tx:
        add_one(tx, "anna")
    with pytest.raises(TransactionError, match=rf"found nightly\.anna \({state}\), whose writes") as caught:
        begin({"nightly.begin": "running", "nightly.anna": state, "nightly.ben": None, "nightly.abort": "success"})
    assert caught.value.hint == "clear the whole group"
    with pytest.raises(RegistrationLost):
        airflow_store.commit(value)
    assert is_clean(airflow_store)


def test_clearing_the_whole_group_while_it_runs_shuts_out_the_old_transaction(airflow_store: Any) -> None:
    old = begin({"nightly.begin": "running", "nightly.anna": None})
    new = begin({"nightly.begin": "running", "nightly.anna": "restarting", "nightly.ben": None})
    with pytest.raises(RegistrationLost), airflow_store.resume(old) as tx:
        add_one(tx, "anna")
    with airflow_store.resume(new) as tx:
        assert add_one(tx, "anna") == 1
    airflow_store.commit(new)


def test_a_conflict_fails_the_commit_at_once(airflow_store: Any, run_dag: Any) -> None:
    def disturb() -> None:
        airflow_store.run(lambda tx: add_one(tx, "anna"))

    run = run_dag(two_tasks("group_conflict", disturb, commit={"retries": 3}))
    assert run.state == "failed"
    assert isinstance(run.errors["nightly.commit"], ConflictError)
    assert "clear the whole group" in str(run.errors["nightly.commit"].hint)
    assert (total_of(airflow_store, "anna"), total_of(airflow_store, "ben")) == (1, 0)
    assert is_clean(airflow_store)


def test_mapped_and_plain_tasks_write_in_it(airflow_store: Any, run_dag: Any) -> None:
    with DAG("group_mapped", schedule=None) as dag, export_transaction("nightly") as tx:

        @task.export_transaction(transaction=tx.handle)
        def one(customer: str, *, tx: Any) -> int:
            return add_one(tx, customer)

        @task
        def plain(transaction: dict[str, Any]) -> None:
            with ExportQueueHook().get_store() as store, store.resume(transaction) as tx:
                add_one(tx, "carla")

        one.expand(customer=["anna", "ben", "anna"])
        plain(tx.handle)

    run = run_dag(dag)
    assert run.state == "success", run.errors
    assert [total_of(airflow_store, name) for name in ("anna", "ben", "carla")] == [2, 1, 1]
    assert is_clean(airflow_store)


def test_a_skipped_task_writes_nothing_and_the_others_commit(airflow_store: Any, run_dag: Any) -> None:
    def skip() -> None:
        raise AirflowSkipException("not today")

    run = run_dag(two_tasks("group_skips", skip))
    assert run.state == "success"
    assert (run.states()["nightly.ben"], run.states()["nightly.commit"]) == ("skipped", "success")
    assert (total_of(airflow_store, "anna"), total_of(airflow_store, "ben")) == (1, 0)


def test_a_group_that_is_skipped_commits_nothing(airflow_store: Any, run_dag: Any) -> None:
    with DAG("group_skipped", schedule=None) as dag:

        @task
        def skip() -> None:
            raise AirflowSkipException("not today")

        with export_transaction("nightly") as tx:

            @task.export_transaction(transaction=tx.handle)
            def anna(*, tx: Any) -> int:
                return add_one(tx, "anna")

            anna()
        skip() >> tx

    run = run_dag(dag)
    assert run.states()["nightly.commit"] == "skipped"
    assert entries(airflow_store) == 0
    assert is_clean(airflow_store)


def test_a_task_after_the_group_waits_for_the_commit(airflow_store: Any, run_dag: Any) -> None:
    for dag_id, second, state in (("group_then", None, "success"), ("group_not_then", fail, "upstream_failed")):
        dag = two_tasks(dag_id, second)
        with dag:

            @task
            def after() -> int:
                return entries(airflow_store)

            dag.task_group.children["nightly"] >> after()
        run = run_dag(dag)
        assert run.states()["after"] == state
    assert run.state == "failed"


def test_two_runs_at_once_have_a_transaction_each(airflow_store: Any, run_dag: Any) -> None:
    inner: list[str] = []

    def other_run() -> None:
        if not inner:
            inner.append(get_current_context()["run_id"])
            other = begin({"nightly.begin": "running"})
            assert len(airflow_store.transactions_in_progress()) == 2
            with airflow_store.resume(other) as tx:
                tx.queue("orders").add("other", {})

    run = run_dag(two_tasks("group_twice", other_run))
    assert run.state == "success"
    assert [one.client for one in airflow_store.transactions_in_progress()] == ["d/r/nightly"], "not this run's to end"
    assert entries(airflow_store) == 2


def test_a_handle_is_for_the_block(airflow_database: Any) -> None:
    with DAG("group_handle", schedule=None), pytest.raises(TypeError, match="inside of its with block"):
        _ = export_transaction("nightly").handle


def test_a_group_without_tasks_is_refused(airflow_database: Any) -> None:
    with DAG("group_empty", schedule=None), pytest.raises(TypeError, match="found none"), export_transaction("nightly"):
        pass


def test_the_teardown_is_one(airflow_database: Any) -> None:
    dag = two_tasks("group_shape")
    assert dag.get_task("nightly.begin").is_setup
    assert dag.get_task("nightly.abort").is_teardown
