"""Airflow in a folder of its own, and a fixture that runs a DAG in this process.

What is internal to Airflow's core, and may change with its next version, stands here and nowhere else in the tests.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.support.environments import Environment
from tests.support.pages import Shell

ROOT = Path(__file__).parents[2]
HOME = Path(tempfile.mkdtemp(prefix="export-queue-airflow-"))
atexit.register(shutil.rmtree, HOME, ignore_errors=True)

# Airflow reads these when it is imported, and then never again.
if "airflow.settings" in sys.modules:
    raise RuntimeError(
        "Airflow was imported before tests/airflow could set it up; run tests/airflow in a process of its own"
    )
os.environ.update(
    {
        "AIRFLOW_HOME": str(HOME),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(HOME / "dags"),
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        "AIRFLOW__API_AUTH__JWT_SECRET": "only-for-tests-" * 5,
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME / 'airflow.db'}",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(HOME / "logs"),
        "AIRFLOW__EXPORT_QUEUE__SPARK_HOME": os.environ.get("EXPORT_QUEUE_SPARK_HOME", str(ROOT / ".venv-spark")),
    }
)
for name in [name for name in os.environ if name.startswith("AIRFLOW_CONN_")]:
    del os.environ[name]


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    """The folder of Airflow's metadata database and logs."""
    return HOME


@pytest.fixture(scope="session")
def airflow_database(airflow_home: Path) -> Path:
    """Airflow's metadata database, created once."""
    from airflow.utils.db import initdb

    initdb()
    return airflow_home / "airflow.db"


@dataclass
class FinishedRun:
    """What became of a DAG's run."""

    dag_id: str
    run_id: str
    state: str
    errors: dict[str, BaseException] = field(default_factory=dict)
    """The last exception of each task that raised one."""

    def states(self) -> dict[str, str]:
        """State of each task; of a mapped one under ``task[index]``."""
        return {_label(ti.task_id, ti.map_index): str(ti.state) for ti in self._instances()}

    def result(self, task_id: str, map_index: int = -1) -> Any:
        """What a task returned."""
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            found = session.scalars(
                select(XComModel.value).where(
                    XComModel.dag_id == self.dag_id,
                    XComModel.run_id == self.run_id,
                    XComModel.task_id == task_id,
                    XComModel.map_index == map_index,
                    XComModel.key == "return_value",
                )
            ).one()
        return json.loads(found) if isinstance(found, str) else found

    def _instances(self) -> list[Any]:
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            wanted = TaskInstance.dag_id == self.dag_id, TaskInstance.run_id == self.run_id
            return list(session.scalars(select(TaskInstance).where(*wanted)).all())


def _label(task_id: str, map_index: int) -> str:
    return task_id if map_index < 0 else f"{task_id}[{map_index}]"


RunDag = Callable[..., FinishedRun]


@pytest.fixture
def run_dag(airflow_database: Path, monkeypatch: pytest.MonkeyPatch) -> RunDag:
    """Run all tasks of a DAG, one after the other, in this process; its retries and deferrals too."""
    # no scheduler that a task could resume too early for
    monkeypatch.setattr("export_queue.triggers.RESUME_SECONDS", 0.0)

    def run(dag: Any, **arguments: Any) -> FinishedRun:
        errors: dict[str, BaseException] = {}

        def remember(context: Any) -> None:
            errors[_label(context["ti"].task_id, context["ti"].map_index)] = context["exception"]

        for task in dag.tasks:
            if not task.is_mapped:
                task.on_failure_callback = [*task.on_failure_callback, remember]
        _register(dag)
        finished = dag.test(**arguments)
        return FinishedRun(dag.dag_id, finished.run_id, str(finished.state), errors)

    return run


@pytest.fixture
def events_of() -> Callable[[FinishedRun], dict[str, Any]]:
    """Return what the events of assets that a run has made carry, by the assets' addresses."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    def found(run: FinishedRun) -> dict[str, Any]:
        statement = select(AssetModel.uri, AssetEvent.extra).join(AssetEvent, AssetEvent.asset_id == AssetModel.id)
        with create_session() as session:
            rows = session.execute(statement.where(AssetEvent.source_run_id == run.run_id)).all()
        return {uri: extra for uri, extra in rows}  # noqa: C416 - rows are no pairs

    return found


def _register(dag: Any) -> None:
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    DagBundlesManager().sync_bundles_to_db()
    bag = DagBag(dag_folder=os.devnull, bundle_path=None, bundle_name="dags-folder")
    bag.bag_dag(dag)
    sync_bag_to_db(bag, "dags-folder", None)


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Define a connection: ``connect("redis_default", conn_type="redis", host=…)``."""

    def define(conn_id: str, **fields: Any) -> None:
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))

    return define


@pytest.fixture
def keep_in_secrets_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Define connections in a file that Airflow's secrets backend reads, and nowhere else."""

    def define(**connections: dict[str, Any]) -> None:
        path = tmp_path / "connections.json"
        path.write_text(json.dumps(connections))
        monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND", "airflow.secrets.local_filesystem.LocalFilesystemBackend")
        monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND_KWARGS", json.dumps({"connections_file_path": str(path)}))
        # Airflow keeps the backends of a process; an older one has no such dictionary and makes them anew.
        monkeypatch.setattr("airflow.sdk.configuration._secrets_backend_cache", {}, raising=False)

    return define


@pytest.fixture
def shell(wheel_environment: Environment, tmp_path: Path) -> Shell:
    """A shell in an empty folder, with Airflow's home in it."""
    home = tmp_path / "airflow"
    (home / "dags").mkdir(parents=True)
    settings = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__API_AUTH__JWT_SECRET": "only-for-tests-" * 5,
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
    }
    return Shell(wheel_environment, tmp_path, settings)


@pytest.fixture
def store_path(tmp_path: Path, connect: Callable[..., None]) -> Path:
    """The file of an embedded store that ``export_queue_default`` leads to; nothing is in it yet."""
    path = tmp_path / "store.db"
    connect("export_queue_default", conn_type="export_queue", host=f"sqlite:///{path}")
    return path


@pytest.fixture
def airflow_store(store_path: Path) -> Iterator[Any]:
    """A created store that ``export_queue_default`` leads to, with the queue ``orders`` in it."""
    from export_queue.core.client import Store

    with closing(Store.open(f"sqlite:///{store_path}")) as store:
        store.create()
        store.configure_queue("orders")
        yield store


@pytest.fixture
def redis_connection(redis_server: Any, redis_client: Any, connect: Callable[..., None]) -> Any:
    """The connection ``redis_default``; returns a client of the server, which holds nothing."""
    connect(
        "redis_default",
        conn_type="redis",
        host=redis_server.host,
        port=redis_server.port,
        password=redis_server.password,
    )
    return redis_client


@pytest.fixture
def spark_connection(connect: Callable[..., None]) -> None:
    """The connection ``spark_default``: two cores of this machine."""
    if not Path(os.environ["AIRFLOW__EXPORT_QUEUE__SPARK_HOME"], "bin", "spark-submit").exists():
        pytest.skip("Spark is missing: ./run setup builds .venv-spark")
    connect("spark_default", conn_type="spark", host="local[2]")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The looks of triggers at their store, which the test counts and waits for."""
    from tests.support.triggers import Looks

    return Looks(monkeypatch)


@pytest.fixture
def lineage_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Let OpenLineage's own listener write the events of tasks to a file; returns a function that reads them."""
    # Its plugin decides at its import whether it is on; it stays off, and ends with no test.
    pytest.importorskip("airflow.providers.openlineage.plugins.openlineage")
    from airflow.providers.openlineage import conf
    from airflow.providers.openlineage.plugins.listener import OpenLineageListener
    from airflow.sdk.listener import get_listener_manager

    path = tmp_path / "lineage.ndjson"
    transport = {"type": "file", "log_file_path": str(path), "append": True}
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", json.dumps(transport))
    # The server of DAG.test() is a thread of this process, which a fork would not have.
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__EXECUTE_IN_THREAD", "True")

    def forget() -> None:
        for name in dir(conf):
            getattr(getattr(conf, name), "cache_clear", lambda: None)()

    forget()
    listener, manager = OpenLineageListener(), get_listener_manager()
    manager.add_listener(listener)
    try:
        yield lambda: [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    finally:
        manager.pm.unregister(listener)
        monkeypatch.undo()
        forget()
