"""The operator that calls observers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTerminated

from export_queue import InvalidArgument, Store
from export_queue.operators import ExportQueueObserveOperator, observe

Run = Callable[..., Any]


def double(tx: Any, row: Any, column: Any) -> None:
    n = tx.table("numbers").get(row, column)
    if n == 13:
        raise ValueError("thirteen is refused")
    tx.table("doubles").set(row, column, 2 * n)


def register(store: Store) -> None:
    store.observe("numbers", "n", double)


async def register_later(store: Store) -> None: ...


@pytest.fixture
def store(store_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{store_path}") as store:
        store.create()
        for table in ("numbers", "doubles"):
            store.configure_table(table, row="int", value="int")
        store.watch("numbers", "n")
        yield store


def write(store: Store, *numbers: int) -> None:
    with store.transaction() as tx:
        for n in numbers:
            tx.table("numbers").set(n, "n", n)


def doubles(store: Store) -> dict[int, int]:
    with store.transaction() as tx:
        return {row: value for row, _, value in tx.table("doubles").scan()}


@pytest.fixture
def run(run_dag: Any) -> Run:
    """Run the operator in a DAG of its own; returns its result, or raises its error."""

    def run(**arguments: Any) -> Any:
        with DAG("one_task", schedule=None) as dag:
            ExportQueueObserveOperator(task_id="it", **arguments)
        finished = run_dag(dag)
        if finished.errors:
            raise finished.errors["it"]
        return finished.result("it")

    return run


def test_all_that_is_due_is_worked_off_in_rounds(store: Store, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe, "_ROUND", 2)
    write(store, *range(5))
    told = run(register=register)
    assert (told["done"], told["failed"], told["left"]) == (5, 0, 0)
    assert doubles(store) == {n: 2 * n for n in range(5)}
    assert run(register=register)["done"] == 0, "nothing is due"


def test_a_limit_leaves_the_rest_to_later_runs(store: Store, run: Run) -> None:
    write(store, *range(5))
    assert run(register=f"{__name__}:register", limit="{{ 2 }}")["done"] == 2
    assert run(register=register)["done"] == 3


def test_failures_fail_the_task_after_the_others(store: Store, run: Run) -> None:
    write(store, 1, 13, 2)
    with pytest.raises(
        Exception, match="1 observers failed and are called again later; the first: .*thirteen"
    ) as caught:
        run(register=register)
    assert not isinstance(caught.value, AirflowFailException), "a retry calls them again"
    assert doubles(store) == {1: 2, 2: 4}


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [(register_later, "async"), (lambda: None, "takes the store"), (7, "found int"), ("no.module:here", "imported")],
)
def test_what_registers_nothing_is_refused_at_once(store: Store, run: Run, wrong: Any, expected: str) -> None:
    with pytest.raises(InvalidArgument, match=expected) as caught:
        run(register=wrong)
    assert isinstance(caught.value, AirflowFailException)


def test_a_task_that_is_told_to_stop_calls_no_more(store: Store) -> None:
    task = ExportQueueObserveOperator(task_id="it", register=register)
    write(store, 1)
    task.on_kill()
    with pytest.raises(AirflowTaskTerminated):
        task._call(store)
    assert doubles(store) == {}
