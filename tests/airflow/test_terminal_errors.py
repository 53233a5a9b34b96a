"""A task fails at once where another try would fail the same way, and is tried again where it may not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from tests.support.waiting import wait_until

from export_queue import ExporterError, ExportQueueError, LockNotAvailable, Owner, SinkBindingError, UnknownQueue
from export_queue.core import errors
from export_queue.core.drain import Problem
from export_queue.core.locks import claim, holders
from export_queue.hooks.connections import MissingConnection
from export_queue.operators import ExportQueueDrainOperator
from export_queue.operators.terminal import terminal_errors_fail_at_once


def kinds(kind: type[ExportQueueError] = ExportQueueError) -> Iterator[type[ExportQueueError]]:
    yield kind
    for inner in kind.__subclasses__():
        if inner.__module__ == errors.__name__:
            yield from kinds(inner)


@pytest.mark.parametrize("kind", sorted(set(kinds()), key=lambda kind: kind.__name__))
def test_only_transient_errors_are_left_to_retries(kind: type[ExportQueueError]) -> None:
    error = kind("key", "result") if kind is errors.AlreadyCommitted else kind("what happened", hint="what to do")  # type: ignore[call-arg,arg-type]
    error.add_note("a note")
    with pytest.raises(kind) as caught, terminal_errors_fail_at_once():
        raise error
    is_tried_again = kind.transient or kind in (errors.AfterCommitFailed, errors.CommitOutcomeUnknown)
    assert isinstance(caught.value, AirflowFailException) is not is_tried_again
    assert type(caught.value).__name__ == kind.__name__
    assert (str(caught.value), vars(caught.value)) == (str(error), vars(error))


@pytest.mark.parametrize("transient", [True, False])
def test_a_foreign_error_of_an_executor_keeps_its_kind(transient: bool) -> None:
    with pytest.raises(ExportQueueError) as caught, terminal_errors_fail_at_once():
        raise Problem("OtherError", "message", transient).to_error()
    assert isinstance(caught.value, AirflowFailException) is not transient


def add(store: Any) -> None:
    """Add an entry to each unit."""
    with store.transaction() as tx:
        for i in range(200):
            tx.queue("orders").add(f"customer {i}", {})


@pytest.mark.parametrize(
    ("arguments", "error", "tries"),
    [
        ({"queue_id": "order"}, UnknownQueue, 1),
        ({"sink_conn_id": "missing"}, MissingConnection, 1),
        ({"sink_conn_id": "others"}, SinkBindingError, 1),
        ({"exporter": "no_such_module:export"}, ExporterError, 1),
        ({"if_locked": "fail", "ranges": [[0, 101]]}, LockNotAvailable, 2),
    ],
)
def test_a_task_is_tried_again_only_where_it_may_help(
    airflow_store: Any,
    run_dag: Any,
    connect: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: dict[str, str],
    error: type[Exception],
    tries: int,
) -> None:
    connect("copies", conn_type="sqlite", host=str(tmp_path / "copies.db"))
    connect("others", conn_type="sqlite", host=str(tmp_path / "others.db"))
    airflow_store.rebind("orders", "copies")
    add(airflow_store)
    queue = airflow_store.queue("orders")
    claim(airflow_store.database, queue, queue.units()[:1], owner=Owner("somebody", "1"), lease_seconds=600)
    begun: list[int] = []
    inner = ExportQueueDrainOperator.execute

    def execute(operator: Any, context: Any) -> Any:
        begun.append(1)
        return inner(operator, context)

    monkeypatch.setattr(ExportQueueDrainOperator, "execute", execute)
    with DAG("tries", schedule=None) as dag:
        ExportQueueDrainOperator(
            **{
                "task_id": "it",
                "queue_id": "orders",
                "sink_conn_id": "copies",
                "retries": 1,
                "retry_delay": 0,
                **arguments,
            }
        )
    finished = run_dag(dag)
    assert isinstance(finished.errors["it"], error)
    assert len(begun) == tries


TASK = """
import signal, sys
from pathlib import Path
from types import SimpleNamespace
from export_queue.operators import ExportQueueDrainOperator
operator = ExportQueueDrainOperator(
    task_id="it", queue_id="orders", sink_conn_id="copies", exporter="endless_exporter:export"
)
signal.signal(signal.SIGTERM, lambda *_: operator.on_kill())  # as Airflow does
operator.execute({"ti": SimpleNamespace(dag_id="d", run_id="r", task_id="it", map_index=-1)})
"""


def test_a_killed_drain_gives_its_leases_back_inside_a_chunk(airflow_store: Any, connect: Any, tmp_path: Path) -> None:
    connect("copies", conn_type="sqlite", host=str(tmp_path / "copies.db"))
    (tmp_path / "endless_exporter.py").write_text(
        "import time\nfrom pathlib import Path\n"
        "def export(entry):\n"
        f"    Path({str(tmp_path / 'begun')!r}).touch()\n"
        "    while True: time.sleep(0.05)\n"
    )
    add(airflow_store)
    queue = airflow_store.queue("orders")

    def held() -> bool:
        with airflow_store.database.read() as work:
            return bool(holders(work, queue, queue.units()))

    paths = [*filter(None, [os.environ.get("PYTHONPATH")]), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    with subprocess.Popen([sys.executable, "-P", "-c", TASK], env=environment) as process:
        try:
            wait_until(lambda: (tmp_path / "begun").exists() or process.poll() is not None, "the task does not begin")
            assert held()
            process.send_signal(signal.SIGTERM)
            wait_until(lambda: not held(), "the leases are kept")
            assert process.wait(60) != 0
        finally:
            process.kill()
    (report,) = airflow_store.reports()
    assert report["problem"]["error_class"] == "AirflowTaskTerminated"
