"""The operators that clean up, and that put dead letters back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTerminated

from export_queue import HasSubscriptions, InvalidArgument, MemorySink, Store, UnknownQueue, drain
from export_queue.operators import ExportQueueMaintainOperator, ExportQueueRetryDeadLettersOperator

Run = Callable[..., Any]


@pytest.fixture
def run(run_dag: Any) -> Run:
    """Run an operator in a DAG of its own; returns its result, or raises its error."""

    def run(kind: type[Any], **arguments: Any) -> Any:
        with DAG("one_task", schedule=None) as dag:
            kind(task_id="it", **arguments)
        finished = run_dag(dag)
        if finished.errors:
            raise finished.errors["it"]
        return finished.result("it")

    return run


@pytest.fixture
def store(store_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{store_path}") as store:
        store.create()
        yield store


def refuse(entry: Any) -> Any:
    raise (KeyError if entry.key == "odd" else ValueError)(entry.key)


@pytest.fixture
def letters(store: Store) -> Store:
    """A queue with five dead letters, one of them with another error."""
    store.configure_queue("q")
    with store.transaction() as tx:
        for key in ("a", "b", "c", "d", "odd"):
            tx.queue("q").add(key, 1)
    assert drain(store, "q", MemorySink(), exporter=refuse).dead == 5
    return store


def test_dead_letters_are_chosen_by_error_key_and_number(letters: Store, run: Run) -> None:
    def retry(**which: Any) -> Any:
        return run(ExportQueueRetryDeadLettersOperator, queue_id="q", **which)

    assert retry(error_class="KeyError") == {"requeued": 1, "left": 4}
    assert retry(key="b") == {"requeued": 1, "left": 3}
    assert retry(key="nobody") == {"requeued": 0, "left": 3}
    assert retry(limit=2) == {"requeued": 2, "left": 1}
    assert retry() == {"requeued": 1, "left": 0}
    assert retry() == {"requeued": 0, "left": 0}, "a repetition finds nothing more"
    assert drain(letters, "q", MemorySink(), exporter=lambda entry: refuse(entry)).dead == 5
    (*_, last) = letters.dead_letters.audit("q")
    assert last.who.startswith("one_task/")


def test_more_letters_than_a_page_are_put_back(letters: Store, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export_queue.operators.retry_dead_letters._PAGE", 2)
    assert run(ExportQueueRetryDeadLettersOperator, queue_id="q", limit=3) == {"requeued": 3, "left": 2}
    assert run(ExportQueueRetryDeadLettersOperator, queue_id="q") == {"requeued": 2, "left": 0}


def test_an_unknown_queue_or_one_with_subscriptions_fails_at_once(store: Store, run: Run) -> None:
    store.configure_queue("many", subscriptions=["one", "two"])
    for queue_id, expected in (("nobody", UnknownQueue), ("many", HasSubscriptions)):
        with pytest.raises(expected) as caught:
            run(ExportQueueRetryDeadLettersOperator, queue_id=queue_id)
        assert isinstance(caught.value, AirflowFailException), "a retry would not help"


def test_clean_up_goes_on_until_nothing_is_left(store: Store, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from export_queue.core import maintenance

    reports = []
    original = maintenance.maintain

    def counted(database: Any, **options: Any) -> Any:
        report = original(database, **options)
        reports.append(options)
        import dataclasses

        return dataclasses.replace(report, versions=7, more=len(reports) < 3)

    monkeypatch.setattr(maintenance, "maintain", counted)
    told = run(ExportQueueMaintainOperator, keep_reports="2d")
    assert (told["versions"], told["more"], len(reports)) == (21, False, 3)
    assert {one["keep_reports"] for one in reports} == {2 * 24 * 3600}


def test_ages_that_are_too_short_and_sinks_that_cannot_be_swept_are_refused(store: Store, run: Run) -> None:
    with pytest.raises(InvalidArgument, match="keep_outcomes: expected at least 3600 seconds"):
        run(ExportQueueMaintainOperator, keep_outcomes=60)
    with pytest.raises(InvalidArgument, match="either sink_conn_id or sink"):
        run(ExportQueueMaintainOperator, sink_conn_id="a", sink="module:b")


def test_a_task_that_is_told_to_stop_ends_between_two_rounds(store: Store) -> None:
    task = ExportQueueMaintainOperator(task_id="it")
    task.read_arguments()
    task.on_kill()
    with pytest.raises(AirflowTaskTerminated):
        task._clean_up(store)
