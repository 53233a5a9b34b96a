"""The notifier adds an entry when a task or a DAG succeeds or fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from airflow.sdk import DAG, task

from export_queue import ExportQueueNotifier, MemorySink, Store, UnknownQueue, drain


@pytest.fixture
def store(store_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{store_path}") as store:
        store.create()
        store.configure_queue("incidents")
        yield store


def incidents(store: Store, sink: MemorySink) -> dict[bytes, bytes]:
    """Drain, and return the records of the sink."""
    drain(store, "incidents", sink, sink_name="memory")
    return {record: document for (_, record), document in sink.records().items()}


def test_a_failed_task_adds_an_incident_and_a_success_deletes_it(store: Store, run_dag: Any) -> None:
    is_broken = True

    with DAG("nightly", schedule=None) as dag:

        @task(
            on_failure_callback=[
                ExportQueueNotifier(
                    queue_id="incidents",
                    key="{{ dag.dag_id }}/{{ ti.task_id }}",
                    value={"run": "{{ run_id }}", "tries": ["{{ ti.try_number }}"], "open": True},
                )
            ],
            on_success_callback=[
                ExportQueueNotifier(queue_id="incidents", key="{{ dag.dag_id }}/{{ ti.task_id }}", value=None)
            ],
        )
        def publish() -> None:
            if is_broken:
                raise ValueError("no")

        publish()

    sink = MemorySink()
    assert set(run_dag(dag).errors) == {"publish"}
    ((key, found),) = incidents(store, sink).items()
    value = orjson.loads(found)
    assert key == b"nightly/publish"
    assert value == {"run": value["run"], "tries": ["1"], "open": True}
    assert value["run"].startswith("manual__")
    is_broken = False
    assert not run_dag(dag).errors
    assert incidents(store, sink) == {}


def test_a_triggerer_can_send_it(store: Store) -> None:
    notifier = ExportQueueNotifier(queue_id="incidents", key="{{ what }}", value={"late": "{{ what }}"})
    notifier.context = {"what": "nightly"}  # type: ignore[typeddict-unknown-key]

    async def send() -> None:
        await notifier

    asyncio.run(send())
    assert incidents(store, MemorySink()) == {b"nightly": b'{"late":"nightly"}'}


def test_a_notification_that_fails_says_why(store: Store) -> None:
    with pytest.raises(UnknownQueue, match="incident"):
        ExportQueueNotifier(queue_id="incident", key="a", value=1)({})
    assert incidents(store, MemorySink()) == {}
