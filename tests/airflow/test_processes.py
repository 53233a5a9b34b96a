"""Example DAGs in Airflow's own processes: scheduler, API server, DAG processor, triggerer, a process for each task."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.airflow_processes import RUN_SECONDS, AirflowProcesses
from tests.support.fake_spark import DETACHED, FakeSpark, is_alive
from tests.support.waiting import wait_until

from export_queue import MemorySink, SinkSpec, Store, drain, follow

EXAMPLES = Path(__file__).parents[2] / "dags_examples"
DEFERRED = """
from airflow.sdk import DAG
from export_queue.operators import ExportQueueSparkDrainOperator

with DAG("deferred_drain", schedule=None):
    ExportQueueSparkDrainOperator(
        task_id="drain", queue_id="visits", sink_conn_id="reports_default", deferrable=True
    )
"""
TOLD = """
from airflow.sdk import DAG
from export_queue.operators import ExportQueueDrainOperator

with DAG("told", schedule=None):
    ExportQueueDrainOperator(task_id="drain", queue_id="told", sink_conn_id="in_airflow")
"""
DAGS = ("mirror_a_query", "one_transaction", "rebuild_an_index", "sales_by_day", "wait_for_export")

pytestmark = [
    pytest.mark.full("Airflow's four processes; test_examples runs the same DAGs in one process"),
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("airflow_processes"),
]


class Site:
    """A machine with Airflow, a store and the files of the databases that the examples use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store_url = f"sqlite:///{folder / 'store.db'}"
        (folder / "dags").mkdir()
        for name in DAGS:
            # no runs but those of the tests, which would wait for others
            program = re.sub(r'schedule="@\w+"', "schedule=None", (EXAMPLES / f"{name}.py").read_text())
            (folder / "dags" / f"{name}.py").write_text(program)
        (folder / "dags" / "deferred_drain.py").write_text(DEFERRED)
        (folder / "dags" / "told.py").write_text(TOLD)
        self.spark = FakeSpark(folder / "fake-spark", DETACHED, "wait")

    def database(self, name: str) -> sqlite3.Connection:
        return sqlite3.connect(self.folder / f"{name}.db", isolation_level=None, timeout=30)

    def sink(self, name: str) -> SinkSpec:
        return SinkSpec("sql", {"url": f"sqlite:///{self.folder / f'{name}.db'}"}, name=f"{name}_default")

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        connections: dict[str, dict[str, Any]] = {
            "export_queue": {"conn_type": "export_queue", "host": self.store_url},
            "spark": {"conn_type": "spark", "host": "local[2]"},
            **{
                name: {"conn_type": "sqlite", "host": str(self.folder / f"{name}.db")}
                for name in ("reports", "search", "warehouse")
            },
        }
        home = self.folder / "airflow"
        return {
            **kept,
            **{f"AIRFLOW_CONN_{name.upper()}_DEFAULT": json.dumps(value) for name, value in connections.items()},
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.folder / "dags"),
            "AIRFLOW__CORE__PARALLELISM": "2",
            "AIRFLOW__EXPORT_QUEUE__SPARK_HOME": str(self.spark.folder),
            "AIRFLOW__EXPORT_QUEUE__UI_CONN_IDS": "export_queue_default",
            "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(
                {"type": "file", "log_file_path": str(self.folder / "lineage.ndjson"), "append": True}
            ),
            "AIRFLOW__API_AUTH__JWT_SECRET": "only-for-tests-" * 5,
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def airflow(site: Site) -> Iterator[AirflowProcesses]:
    environment = site.environment()
    migrate = [Path(sys.executable).with_name("airflow"), "db", "migrate"]
    subprocess.run(migrate, env=environment, check=True, capture_output=True, timeout=300)
    with AirflowProcesses(site.folder, environment) as running:
        yield running


@pytest.fixture
def store(site: Site) -> Iterator[Store]:
    with Store.open(site.store_url) as store:
        store.create()
        yield store


def test_a_task_has_links_and_tells_its_lineage(airflow: AirflowProcesses, site: Site, store: Store) -> None:
    store.configure_queue("told")
    store.run(lambda tx: tx.queue("told").add("anna", {"n": 1}))
    copies = str(site.folder / "told.db")
    airflow.ask(
        "/connections", method="POST", body={"connection_id": "in_airflow", "conn_type": "sqlite", "host": copies}
    )
    run = airflow.trigger("told")
    airflow.wait_for("told", run)
    links = airflow.ask(f"/dags/told/dagRuns/{run}/taskInstances/drain/links")["extra_links"]
    page = "/export-queue/connections/export_queue_default"
    assert links == {
        "Dead letters": f"{page}/letters?reader=told",
        "Export Queue page": f"{page}/reader?reader=told",
    }
    with urllib.request.urlopen(f"{airflow.url}/auth/token", timeout=30) as answer:
        token = json.load(answer)["access_token"]
    for link in links.values():
        request = urllib.request.Request(f"{airflow.url}{link}", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert "told" in answer.read().decode()
    pytest.importorskip("airflow.providers.openlineage")
    lines = (site.folder / "lineage.ndjson").read_text().splitlines()
    events = {one["eventType"]: one for one in map(json.loads, lines) if one["job"]["name"] == "told.drain"}
    assert [one["name"] for one in events["START"]["inputs"]] == ["told"]
    (output,) = events["COMPLETE"]["outputs"]
    assert (output["namespace"], output["name"]) == (f"sqlite://{copies}", "told")
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 1


def test_a_sink_follows_a_query_and_then_an_index_is_rebuilt(
    airflow: AirflowProcesses, site: Site, store: Store
) -> None:
    warehouse, reports, search = map(site.database, ("warehouse", "reports", "search"))
    warehouse.execute("create table products (id integer, name text, price numeric)")
    warehouse.executemany("insert into products values (?, ?, ?)", [(i, f"product {i}", i / 3) for i in range(20)])

    def mirrored() -> dict[str, Any]:
        run = airflow.trigger("mirror_a_query")
        assert airflow.wait_for("mirror_a_query", run) == dict.fromkeys(
            ("set_up", "mirror", "drain", "verify"), "success"
        )
        assert airflow.result("mirror_a_query", run, "verify")["differences"] == 0
        rows = reports.execute("SELECT document FROM products_live").fetchall()
        return {found["id"]: found["name"] for found in (json.loads(document) for (document,) in rows)}

    everything = {i: f"product {i}" for i in range(20)}
    assert mirrored() == everything
    warehouse.execute("delete from products where id = 3")
    warehouse.execute("update products set name = 'pear' where id = 7")
    expected = {key: name for key, name in (everything | {7: "pear"}).items() if key != 3}
    assert mirrored() == expected
    airflow.ask("/dags/mirror_a_query", method="PATCH", body={"is_paused": True})

    store.subscribe("products", "search")
    store.first_load("products/search", source="state")
    drain(store, "products/search", site.sink("search"))
    new = {"table": "$collection-2", "columns": {"name": "text"}}
    run = airflow.trigger("rebuild_an_index", new_options=new)
    states = airflow.wait_for("rebuild_an_index", run)
    assert states.pop("back") == "skipped"
    assert set(states.values()) == {"success"}
    assert [reader.id for reader in store.subscriptions("products")] == ["products/search-2"]
    rows = search.execute("SELECT id, name FROM products_now").fetchall()
    assert {int(key): name for key, name in rows} == expected


def test_a_sensor_waits_on_the_triggerer_until_the_sink_has_the_change(airflow: AirflowProcesses, store: Store) -> None:
    copy = MemorySink()
    run = airflow.trigger("wait_for_export")
    seen: set[str] = set()

    def is_deferred() -> bool:
        seen.add(airflow.states("wait_for_export", run).get("wait", ""))
        return "deferred" in seen

    wait_until(is_deferred, "the sensor does not wait on the triggerer", seconds=RUN_SECONDS, pause=0.2)
    stopped = threading.Event()
    drains = threading.Thread(
        target=follow, args=(store, "prices", copy), kwargs={"sink_name": "copy", "stop": stopped.is_set}
    )
    drains.start()
    try:
        states = airflow.wait_for("wait_for_export", run)
    finally:
        stopped.set()
        drains.join()
    assert set(states.values()) == {"success"}
    assert [json.loads(document) for document in copy.records().values()] == [{"cents": 250}]


def test_a_partition_passes_from_the_queue_to_the_report(airflow: AirflowProcesses, site: Site, store: Store) -> None:
    airflow.unpause("publish_sales")
    days = {"2026-05-17", "2026-05-18"}
    for day in sorted(days):
        airflow.wait_for("count_sales", airflow.trigger("count_sales", partition_key=day))

    def published() -> set[str]:
        runs = airflow.ask("/dags/publish_sales/dagRuns")["dag_runs"]
        return {run["partition_key"] for run in runs if run["state"] == "success"}

    # Airflow has also counted yesterday, since the DAG is due.
    wait_until(lambda: published() >= days, "not each day is published", seconds=RUN_SECONDS, pause=0.5)
    events = airflow.ask("/assets/events?source_dag_id=publish_sales")["asset_events"]
    assert {event["partition_key"] for event in events} >= days
    assert sum(event["extra"]["acknowledged"] for event in events) == 2 * len(events)
    rows = site.database("reports").execute("select id from sales_by_day_live where id like '2026-05-%' order by id")
    assert [name for (name,) in rows] == [f"{day} {article}" for day in sorted(days) for article in ("apple", "pear")]


def test_one_transaction_spans_the_processes_of_its_tasks(airflow: AirflowProcesses, store: Store) -> None:
    run = airflow.trigger("one_transaction")
    states = airflow.wait_for("one_transaction", run)
    assert "nightly.load[2]" in states
    assert airflow.result("one_transaction", run, "nightly.sum_up") == 14
    with store.transaction() as tx:
        assert {row: value for row, _, value in tx.table("sales").scan()} == {"north": 5, "south": 5, "west": 4}
    assert store.transactions_in_progress() == []


def test_a_deferred_drain_outlives_its_task_and_ends_with_the_act_of_a_person(
    airflow: AirflowProcesses, site: Site, store: Store
) -> None:
    store.configure_queue("visits")
    with store.transaction() as tx:
        tx.queue("visits").add("anna", {})
    states: list[str] = []

    def triggers() -> int:
        logs = (site.folder / "airflow" / "logs").rglob("*.trigger.*")
        return sum("starting" in log.read_text() for log in logs if "deferred_drain" in str(log))

    def deferred() -> tuple[str, int]:
        run = airflow.trigger("deferred_drain")

        def is_deferred() -> bool:
            states.append(airflow.states("deferred_drain", run).get("drain", ""))
            assert states[-1] not in ("failed", "up_for_retry")
            return states[-1] == "deferred"

        wait_until(is_deferred, "the drain is not deferred", seconds=RUN_SECONDS, pause=0.2)
        # a task that is marked before its trigger runs ends no driver: Airflow has nobody to call
        wait_until(lambda: triggers() == len(site.spark.calls()), "no trigger", seconds=RUN_SECONDS, pause=0.2)
        pid: int = site.spark.calls()[-1]["pid"]
        assert is_alive(pid)
        return run, pid

    run, pid = deferred()
    path = f"/dags/deferred_drain/dagRuns/{run}/taskInstances/drain"
    airflow.ask(path, method="PATCH", body={"new_state": "failed"})
    wait_until(lambda: not is_alive(pid), "the driver continues", pause=0.1)
    assert store.reports(queue_id="visits") == []

    run, pid = deferred()
    (site.spark.folder / "go").touch()
    assert airflow.wait_for("deferred_drain", run) == {"drain": "success"}
    assert airflow.result("deferred_drain", run, "drain")["acknowledged"] == 1
    wait_until(lambda: not is_alive(pid), "the driver has not ended", pause=0.1)


def test_a_browser_shows_the_page_in_the_ui(airflow: AirflowProcesses, store: Store, tmp_path: Path) -> None:
    """With ``EXPORT_QUEUE_SCREENSHOTS``, a folder, the pictures of docs/ui.md are written there."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Chromium is missing: apt-get install chromium")
    _fill_for_pictures(store)
    pictures = Path(os.environ.get("EXPORT_QUEUE_SCREENSHOTS") or tmp_path)

    def opened(path: str, *flags: str) -> str:
        always = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--hide-scrollbars")
        command = [chromium, *always, *flags, f"--user-data-dir={tmp_path / 'profile'}", f"{airflow.url}{path}"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        # what the policy of the page refuses, its style sheet or the frame, is an error in the console
        assert "Content Security Policy" not in done.stderr, done.stderr
        return done.stdout

    letters = "/export-queue/connections/export_queue_default/letters?reader=parcels"
    for path, name, size in (("/export-queue/", "ui-overview", "1100,360"), (letters, "ui-letters", "1100,400")):
        picture = pictures / f"{name}.png"
        opened(path, f"--screenshot={picture}", f"--window-size={size}")
        assert 2_000 < picture.stat().st_size < 150_000
    assert ">parcels<" in opened("/export-queue/", "--dump-dom")
    in_the_ui = opened("/plugin/export-queue", "--dump-dom", "--virtual-time-budget=20000")
    assert re.search(r'<iframe[^>]* src="/export-queue/"', in_the_ui), in_the_ui


def _fill_for_pictures(store: Store) -> None:
    store.configure_queue("parcels")

    def export(entry: Any) -> Any:
        if entry.value["weight"] < 0:
            raise ValueError(f"weight: expected a number above 0, found {entry.value['weight']}")
        return []

    sink = MemorySink()
    for weights in ((3, -1, 5, 8), (2, 7, -4)):
        store.run(lambda tx, given=weights: [tx.queue("parcels").add(f"parcel-{n}", {"weight": n}) for n in given])
        drain(store, "parcels", sink, sink_name="search", exporter=export)
    store.run(lambda tx: tx.queue("parcels").add("parcel-9", {"weight": 9}))
