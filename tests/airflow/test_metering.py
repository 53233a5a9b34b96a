"""What tasks tell Airflow's metrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.observability import stats

from export_queue import Store
from export_queue.operators import (
    ExportQueueDrainOperator,
    ExportQueueMaintainOperator,
    ExportQueueMirrorOperator,
    ExportQueueVerifyOperator,
)

TAGS = (("queue", "customers"), ("sink", "copy"))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, ...], Any]:
    """What was told, by the kind, the name and the tags."""
    found: dict[tuple[Any, ...], Any] = {}
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")

    def keep(kind: str) -> Any:
        def told(name: str, value: Any = 1, *_: Any, tags: dict[str, str] | None = None, **__: Any) -> None:
            if name.startswith("export_queue."):
                found[(kind, name.removeprefix("export_queue."), *sorted((tags or {}).items()))] = value

        return told

    for kind in ("incr", "gauge", "timing"):
        monkeypatch.setattr(stats, kind, keep(kind))
    return found


@pytest.fixture
def store(store_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{store_path}") as store:
        store.create()
        store.configure_queue("customers", state=True)
        yield store


def test_tasks_tell_what_they_did(
    store: Store, told: dict[Any, Any], run_dag: Any, connect: Any, tmp_path: Path
) -> None:
    connect("copy", conn_type="sqlite", host=str(tmp_path / "copy.db"))
    (tmp_path / "data.ndjson").write_text('{"id":"a","n":1}\n{"id":"b","n":2}\n')
    file = {"key": "id", "file": f"file://{tmp_path}/data.ndjson"}
    with DAG("nightly", schedule=None) as dag:
        (
            ExportQueueMirrorOperator(task_id="would", queue_id="customers", dry_run=True, **file)
            >> ExportQueueMirrorOperator(task_id="mirror", queue_id="customers", **file)
            >> ExportQueueDrainOperator(task_id="drain", queue_id="customers", sink_conn_id="copy")
            >> ExportQueueVerifyOperator(task_id="verify", queue_id="customers", sink_conn_id="copy")
            >> ExportQueueMaintainOperator(task_id="maintain")
        )
    assert not run_dag(dag).errors
    queue = TAGS[0]
    assert told[("incr", "mirror.new", queue)] == 2
    assert told[("incr", "mirror.deleted", queue)] == 0
    assert told[("incr", "drain.acknowledged", *TAGS)] == 2
    assert told[("incr", "drain.dead", *TAGS)] == 0
    assert told[("gauge", "drain.left", *TAGS)] == 0
    assert told[("timing", "drain.duration", *TAGS)].total_seconds() > 0
    assert told[("gauge", "verify.differences", queue)] == 0
    assert told[("gauge", "queue_entries", queue)] == 0
    assert told[("gauge", "maintenance_seconds")] < 600


def test_differences_and_dead_letters_are_told_although_the_tasks_fail(
    store: Store, told: dict[Any, Any], run_dag: Any, connect: Any, tmp_path: Path
) -> None:
    connect("copy", conn_type="sqlite", host=str(tmp_path / "copy.db"))
    store.mirror("customers", [{"id": "a", "n": 1}], key="id")
    with DAG("nightly", schedule=None) as dag:
        exporter = "tests.airflow.test_metering:refuse"
        ExportQueueDrainOperator(task_id="drain", queue_id="customers", sink_conn_id="copy", exporter=exporter)
    assert set(run_dag(dag).errors) == {"drain"}
    assert told[("incr", "drain.dead", *TAGS)] == 1


def refuse(entry: Any) -> Any:
    raise ValueError(entry.key)


def test_a_store_is_not_counted_for_nobody(
    store: Store, told: dict[Any, Any], run_dag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW__METRICS__STATSD_ON")
    with DAG("nightly", schedule=None) as dag:
        ExportQueueMaintainOperator(task_id="maintain")
    assert not run_dag(dag).errors
    assert told == {}


def test_a_tag_is_one_word(told: dict[Any, Any]) -> None:
    from export_queue.operators.metering import tell_differences

    tell_differences("a|b,c:d#e\n" + 300 * "x", 1)
    ((_, _, (_, queue)),) = told
    assert queue.startswith("a_b_c_d_e_xxx")
    assert len(queue) == 200
