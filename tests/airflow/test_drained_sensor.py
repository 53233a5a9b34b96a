"""The sensor that waits for exports, in the worker and on the triggerer."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowSensorTimeout

from export_queue import InvalidArgument, MemorySink, NotExported, Store, drain, polling
from export_queue.sensors import ExportQueueDrainedSensor


def put(store: Store, key: str) -> str:
    with store.transaction() as tx:
        tx.queue("orders").add(key, 1)
    return tx.token


def run_sensor(run_dag: Any, **arguments: Any) -> Any:
    with DAG("drained", schedule=None) as dag:
        ExportQueueDrainedSensor(**{"task_id": "wait", "queue_id": "orders", "poke_interval": 0.05, **arguments})
    run = run_dag(dag)
    if run.errors:
        raise run.errors["wait"]
    return run.result("wait")["token"]


def nothing(entry: Any) -> list[Any]:
    return []


def refused(entry: Any) -> list[Any]:
    raise ValueError("not this one")


def deliver(store: Store, sink: MemorySink, *, refuse: bool = False) -> None:
    drain(store, "orders", sink, sink_name="sink", exporter=refused if refuse else nothing)


@pytest.mark.parametrize("deferrable", [False, True])
def test_it_returns_a_token_that_is_exported(airflow_store: Any, run_dag: Any, deferrable: bool) -> None:
    token = put(airflow_store, "anna")
    with pytest.raises(AirflowSensorTimeout):
        run_sensor(run_dag, token=token, timeout=0)
    deliver(airflow_store, MemorySink())
    put(airflow_store, "ben")
    assert run_sensor(run_dag, token="{{ '" + token + "' }}", deferrable=deferrable) == token


def test_without_a_token_it_waits_for_what_is_committed_when_it_begins(
    airflow_store: Any, run_dag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(airflow_store, "anna")
    looks = []
    answer = polling.Poller._answer

    def look(poller: polling.Poller, questions: Any) -> Any:
        found = answer(poller, questions)
        looks.extend(bool(one.waiting) for one in found.values())
        if len(looks) == 1:
            deliver(airflow_store, MemorySink())
            put(airflow_store, "ben")
        return found

    monkeypatch.setattr(polling.Poller, "_answer", look)
    token = run_sensor(run_dag, deferrable=True)
    assert looks == [False, True]
    assert airflow_store.is_exported(token, "orders")
    assert airflow_store.waiting_ranges("orders"), "what was committed later is not waited for"


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_dead_letter_fails_the_task(
    airflow_store: Any, run_dag: Any, monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    token = put(airflow_store, "anna")
    if not deferrable:
        deliver(airflow_store, MemorySink(), refuse=True)
    answer = polling.Poller._answer

    def look(poller: polling.Poller, questions: Any) -> Any:
        if not airflow_store.dead_letters.count("orders"):
            deliver(airflow_store, MemorySink(), refuse=True)
        return answer(poller, questions)

    monkeypatch.setattr(polling.Poller, "_answer", look)
    with pytest.raises(NotExported, match="ValueError: not this one"):
        run_sensor(run_dag, token=token, deferrable=deferrable)


def test_a_cut_that_would_move_is_refused(airflow_store: Any, run_dag: Any) -> None:
    with pytest.raises(InvalidArgument, match="reschedule"):
        run_sensor(run_dag, mode="reschedule")
    with pytest.raises(InvalidArgument, match="token"):
        run_sensor(run_dag, token="nonsense")


REFRESHED: list[str] = []


def refreshable(**options: Any) -> MemorySink:
    """A sink by import path, which notes that it was refreshed."""

    class Noted(MemorySink):
        def refresh(self) -> None:
            REFRESHED.append(options["name"])

    return Noted()


@pytest.mark.parametrize("deferrable", [False, True])
def test_searches_are_refreshed_after_the_wait(
    airflow_store: Any, run_dag: Any, monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    token = put(airflow_store, "anna")
    REFRESHED.clear()
    searchable: dict[str, Any] = {"token": token, "searchable": True, "deferrable": deferrable}
    with pytest.raises(InvalidArgument, match="sink_conn_id or sink"):
        run_sensor(run_dag, **searchable)
    searchable |= {"sink": f"{__name__}:refreshable", "sink_options": {"name": "{{ 'index' }}"}}
    if not deferrable:
        with pytest.raises(AirflowSensorTimeout):
            run_sensor(run_dag, timeout=0, **searchable)
    assert REFRESHED == []
    answer = polling.Poller._answer

    def look(poller: polling.Poller, questions: Any) -> Any:
        deliver(airflow_store, MemorySink())
        return answer(poller, questions)

    monkeypatch.setattr(polling.Poller, "_answer", look)
    if not deferrable:
        deliver(airflow_store, MemorySink())
    assert run_sensor(run_dag, **searchable) == token
    assert REFRESHED == ["index"]
