"""The operator with a real Spark, PostgreSQL and Redis: what secrets leave behind, and what a kill does."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import secrets
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskDeferred
from tests.support.waiting import PATIENCE, wait_until

from export_queue import Store
from export_queue.core.locks import holders
from export_queue.operators import ExportQueueDrainOperator, ExportQueueSparkDrainOperator
from export_queue.triggers import ExportQueueDriverTrigger

WRONG = secrets.token_hex(16)  # drawn, since Airflow stores this file as the source of its DAG


def command_lines() -> Iterator[tuple[int, bytes]]:
    """Every process of this machine, with its command line."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                yield int(folder.name), (folder / "cmdline").read_bytes()


class CommandLines:
    """Reads the command lines of all processes again and again while a block runs."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> CommandLines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.03):
            self.seen |= {line for _, line in command_lines()}


@pytest.fixture
def stores(connect: Any, postgres_server: Any, postgres_url: str, redis_server: Any, redis_connection: Any) -> Any:
    """A store in PostgreSQL and a sink in Redis, both with passwords, behind the default connections."""
    connect("export_queue_default", conn_type="export_queue", host=postgres_url)
    with Store.open(postgres_url) as store:
        store.create()
        store.configure_queue("orders")
        passwords = [postgres_server.password, redis_server.password]
        yield SimpleNamespace(store=store, redis=redis_connection, passwords=passwords)


@pytest.mark.full("several submissions of Spark")
def test_passwords_are_in_no_command_line_template_log_or_error(
    stores: Any,
    spark_connection: None,
    run_dag: Any,
    connect: Any,
    redis_server: Any,
    airflow_home: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    examples = importlib.import_module("export_queue.dags_examples.recount_and_publish")
    connect("wrong", conn_type="redis", host=redis_server.host, port=redis_server.port, password=WRONG)
    with DAG("wrong_password", schedule=None) as wrong:
        stores.store.configure_queue("others")
        arguments = {"queue_id": "others", "sink_conn_id": "wrong"}
        ExportQueueDrainOperator(task_id="local", **arguments)
        ExportQueueSparkDrainOperator(task_id="spark", **arguments)
    with CommandLines() as watched:
        assert run_dag(examples.recount()).state == "success"
        published = run_dag(examples.publish())
        with stores.store.transaction() as tx:
            tx.queue("others").add("anna", {})
        failed = run_dag(wrong)

    assert published.result("drain")["acknowledged"] == 3
    assert json.loads(stores.redis.get("customer:carla")) == {"total": 5}
    assert set(failed.errors) == {"local", "spark"}

    places = {
        "command lines": b"\n".join(watched.seen),
        "output and logs on the terminal": "".join(capfd.readouterr()).encode(),
        "errors": repr([(error, str(error), vars(error)) for error in failed.errors.values()]).encode(),
        "reports": repr(stores.store.reports()).encode(),
    }
    # Rendered templates, results and logs; connections from the environment are not stored here.
    files = [path for path in airflow_home.rglob("*") if path.is_file()]
    places |= {str(path.relative_to(airflow_home)): path.read_bytes() for path in files}
    assert any(b"spark-submit" in line or b"SparkSubmit" in line for line in watched.seen)
    database = b"".join(content for name, content in places.items() if name.startswith("airflow.db"))
    assert b"customer:$id" in database  # where rendered templates are
    for secret in [*stores.passwords, WRONG]:
        found = [name for name, content in places.items() if secret.encode() in content]
        assert found == []


@pytest.mark.full("several submissions of Spark")
def test_a_killed_task_leaves_no_process_and_loses_nothing(
    stores: Any, spark_connection: None, airflow_database: Path, tmp_path: Path
) -> None:
    operator = held_drain(stores.store, tmp_path)
    context = {"ti": SimpleNamespace(dag_id="killed", run_id="r", task_id="it", map_index=-1)}
    outcome: list[BaseException | dict[str, Any]] = []

    def execute(task: Any) -> None:
        try:
            outcome.append(task.execute(context))
        except BaseException as error:
            outcome.append(error)

    first = operator()
    thread = threading.Thread(target=execute, args=(first,))
    thread.start()
    started = tmp_path / "started"
    wait_until(lambda: started.exists() or bool(outcome), "the task does not start", seconds=3 * PATIENCE)
    assert not outcome
    assert owned_processes()
    first.on_kill()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert isinstance(outcome[0], Exception)
    wait_until(lambda: not owned_processes(), "a process is left")
    queue = stores.store.queue("orders")
    with stores.store.database.read() as work:
        assert holders(work, queue, queue.units()) == []
    assert sum(unit.entries for unit in stores.store.backlog("orders")) == 20

    (tmp_path / "go").touch()
    execute(operator())
    assert outcome[1]["acknowledged"] == 20  # type: ignore[index,call-overload]
    assert stores.redis.get("orders:customer 7") == b'{"total":7}'


@pytest.mark.full("two submissions of Spark")
def test_a_deferred_drain_ends_from_the_triggerer_and_its_retry_delivers_everything(
    stores: Any, spark_connection: None, airflow_database: Path, tmp_path: Path
) -> None:
    operator = partial(held_drain(stores.store, tmp_path), deferrable=True)
    context: Any = {"ti": SimpleNamespace(dag_id="killed", run_id="r", task_id="it", map_index=-1)}

    def deferred() -> ExportQueueDriverTrigger:
        with pytest.raises(TaskDeferred) as caught:
            operator().execute(context)
        _, arguments = caught.value.trigger.serialize()
        assert not any(password in json.dumps(arguments) for password in stores.passwords)
        return ExportQueueDriverTrigger(**arguments)

    async def event_of(trigger: ExportQueueDriverTrigger) -> dict[str, Any]:
        (event,) = [event.payload async for event in trigger.run()]
        return event

    trigger = deferred()
    wait_until((tmp_path / "started").exists, "the driver does not drain", seconds=3 * PATIENCE)
    assert owned_processes()
    asyncio.run(trigger.on_kill())
    wait_until(lambda: not owned_processes(), "a process is left", seconds=3 * PATIENCE)
    assert sum(unit.entries for unit in stores.store.backlog("orders")) == 20

    trigger = deferred()
    (tmp_path / "go").touch()
    event = asyncio.run(asyncio.wait_for(event_of(trigger), 3 * PATIENCE))
    assert event["state"] == "reported"
    assert operator().execute_complete(context, event)["acknowledged"] == 20
    assert stores.redis.get("orders:customer 7") == b'{"total":7}'
    wait_until(lambda: not owned_processes(), "a process is left")


def held_drain(store: Store, folder: Path) -> Callable[..., ExportQueueSparkDrainOperator]:
    """Add 20 entries; return the operator of a drain whose exporter waits for the file ``go``."""
    exporter = folder / "held_exporter.py"
    exporter.write_text(
        "import os, time\n"
        "from pathlib import Path\n"
        "from export_queue.core.sinks import Put\n"
        f"HERE = Path({str(folder)!r})\n"
        "def export(entry):\n"
        "    (HERE / 'started').touch()\n"
        "    while not (HERE / 'go').exists(): time.sleep(0.05)\n"
        "    yield Put('orders', entry.key, entry.value)\n"
    )
    with store.transaction() as tx:
        for i in range(20):
            tx.queue("orders").add(f"customer {i}", {"total": i})

    return partial(
        ExportQueueSparkDrainOperator,
        task_id="it",
        queue_id="orders",
        sink_conn_id="redis_default",
        exporter="held_exporter:export",
        py_files=str(exporter),
    )


def owned_processes() -> list[int]:
    return [pid for pid, line in command_lines() if b"killed/r/it" in line]
