"""DAGs in Airflow's own processes: scheduler, API server, DAG processor, triggerer, a process for each task.

They run from the wheel, in an environment of its own, as ``test_journeys.py`` does. The DAGs are the examples, and
those of the page about waiting; ``test_examples.py`` runs them in one process, and looks at more cases.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright
from tests.support.airflow_processes import ANSWER_SECONDS, RUN_SECONDS, AirflowProcesses
from tests.support.environments import Environment
from tests.support.fake_spark import DETACHED, FakeSpark, is_alive
from tests.support.pages import Shell, blocks_of
from tests.support.servers import PostgresServer, RedisServer
from tests.support.waiting import wait_until

from export_queue import MemorySink, SinkSpec, Store, __version__, drain, follow

EXAMPLES = Path(__file__).parents[2] / "dags_examples"
DEFERRED = """
from airflow.sdk import DAG
from export_queue.operators import ExportQueueSparkDrainOperator

with DAG("deferred_drain", schedule=None):
    ExportQueueSparkDrainOperator(
        task_id="drain", queue_id="deferred", sink_conn_id="reports_default", spark_home={home!r}, deferrable=True
    )
"""
MAPPED = """
from airflow.sdk import DAG
from export_queue.operators import ExportQueueSparkDrainOperator

with DAG("mapped", schedule=None):
    ExportQueueSparkDrainOperator.partial(
        task_id="drain", queue_id="parts", sink_conn_id="reports_default", spark_home={home!r}, deferrable=True,
        retries=2, retry_delay=1,
    ).expand(ranges=[[[0, 2]], [[2, 4]]])
"""
TOLD = """
from airflow.sdk import DAG
from export_queue.operators import ExportQueueDrainOperator

with DAG("told", schedule=None):
    ExportQueueDrainOperator(task_id="drain", queue_id="told", sink_conn_id="in_airflow")
"""
COUNTED = """
from datetime import timedelta
from pathlib import Path
from airflow.sdk import DAG, task
from export_queue.operators import ExportQueueConfigureOperator

def crash_once(context, result=None):
    path = Path({path!r})
    if not path.exists():
        path.touch()
        raise RuntimeError("crashed after the commit")

with DAG("counted", schedule=None):
    tables = {{"counted": {{"row": "str", "value": "int"}}}}
    set_up = ExportQueueConfigureOperator(task_id="set_up", queue_id="counted", tables=tables)

    @task.export_transaction(retries=1, retry_delay=timedelta(0), post_execute=crash_once)
    def count(*, tx):
        total = tx.table("counted").get("home", "n", 0) + 1
        tx.table("counted").set("home", "n", total)
        tx.queue("counted").add("home", total)
        return total

    set_up >> count()
"""
INTERFERED = """
import os, time
from datetime import timedelta
from pathlib import Path
from airflow.sdk import DAG, task

folder = Path({folder!r})

with DAG("interfered", schedule=None):
    @task.export_transaction(retries=1, retry_delay=timedelta(0), transaction_timeout=600)
    def work(*, tx, ti=None):
        tx.queue("interfered").add(ti.run_id, ti.try_number)
        begun = folder / f"{{ti.run_id}}.{{ti.try_number}}"
        begun.with_suffix(".new").write_text(str(os.getpid()))
        begun.with_suffix(".new").rename(begun)
        end = time.monotonic() + 300
        while not (folder / f"{{ti.run_id}}.go").exists() and time.monotonic() < end:
            time.sleep(0.05)
        return ti.try_number

    work()
"""
SLOW_EXPORTER = """
import os, time
from pathlib import Path
from export_queue import Put

folder = Path({folder!r})

def export(entry):
    begun = folder / str(os.getpid())
    if begun.exists():
        end = time.monotonic() + 300
        while not (folder / "go").exists() and time.monotonic() < end:
            time.sleep(0.05)
    begun.touch()
    return [Put("slow", entry.key, entry.value)]
"""
"""The first entry of each process passes, and the next one waits for the file ``go``."""
SLOW = """
from airflow.sdk import DAG
from export_queue.operators import ExportQueueDrainOperator

with DAG("slow", schedule=None):
    ExportQueueDrainOperator(
        task_id="drain", queue_id="slow", sink_conn_id="reports_default", exporter="slow_exporter:export"
    )
"""
QUEUES_OF_THEIR_OWN = {
    "add_a_reader": ("products", "catalogue"),
    "business_tables": ("orders", "shop_orders"),
    "nightly_verify": ("prices", "listed_prices"),
    "two_copies_as_one": ("prices", "shown_prices"),
    "verify_on_spark": ("products", "live_totals"),
}
"""Examples whose queue another example uses in another way, and the names by which they share one store."""
SPARK_HOME = os.environ.get("EXPORT_QUEUE_SPARK_HOME", str(EXAMPLES.parent / ".venv-spark"))
NO_DAGS = ("__init__", "exporters", "frames")
ON_SPARK = ("bulk_load", "compact_on_spark", "mapped_drain", "mirror_a_dataframe", "verify_on_spark")

pytestmark = [
    pytest.mark.full("Airflow's four processes; test_examples runs the same DAGs in one process"),
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("airflow_processes"),
]


class Site:
    """A machine with Airflow, a store and the files of the databases that the examples use."""

    def __init__(self, folder: Path, environment: Environment, cache: RedisServer, metadata: str) -> None:
        self.folder = folder
        self.metadata = metadata.replace("+psycopg", "+psycopg2")
        self.python = environment.python
        self.cache = cache
        self.store_url = f"sqlite:///{folder / 'store.db'}"
        self.spark = FakeSpark(folder / "fake-spark", DETACHED, "wait")
        dags = folder / "dags"
        dags.mkdir()
        for example in EXAMPLES.glob("*.py"):
            if example.stem not in NO_DAGS:
                # no runs but those of the tests, which would wait for others
                program = re.sub(r'schedule="[^"]+"', "schedule=None", example.read_text())
                queue, other = QUEUES_OF_THEIR_OWN.get(example.stem, ("", ""))
                if queue:
                    program, times = re.subn(rf'(queue_id=|queue\()"{queue}(["/])', rf'\1"{other}\2', program)
                    assert times, example
                (dags / example.name).write_text(program)
        shutil.copy(EXAMPLES / "frames.py", dags)
        for number, block in enumerate(blocks_of("waiting.md", "python")):
            (dags / f"waiting_{number}.py").write_text(block.text)
        (dags / "deferred_drain.py").write_text(DEFERRED.format(home=str(self.spark.folder)))
        (dags / "mapped.py").write_text(MAPPED.format(home=str(self.spark.folder)))
        (dags / "counted.py").write_text(COUNTED.format(path=str(folder / "crashed")))
        (dags / "told.py").write_text(TOLD)
        self.attempts = folder / "attempts"
        self.attempts.mkdir()
        (dags / "interfered.py").write_text(INTERFERED.format(folder=str(self.attempts)))
        (dags / "slow.py").write_text(SLOW)
        (dags / "slow_exporter.py").write_text(SLOW_EXPORTER.format(folder=str(self.attempts)))
        self.shell = Shell(environment, folder, {"EXPORT_QUEUE_STORE": self.store_url})

    def database(self, name: str) -> sqlite3.Connection:
        return sqlite3.connect(self.folder / f"{name}.db", isolation_level=None, timeout=30)

    def sink(self, name: str) -> SinkSpec:
        return SinkSpec("sql", {"url": f"sqlite:///{self.folder / f'{name}.db'}"}, name=f"{name}_default")

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        cache = {
            "conn_type": "redis",
            "host": self.cache.host,
            "port": self.cache.port,
            "password": self.cache.password,
        }
        connections: dict[str, dict[str, Any]] = {
            "export_queue": {"conn_type": "export_queue", "host": self.store_url},
            "spark": {"conn_type": "spark", "host": "local[2]"},
            "redis": cache,
            "cache": cache,
            "shop": {"conn_type": "sqlite", "host": str(self.folder / "store.db")},
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
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
            "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
            "AIRFLOW__EXPORT_QUEUE__SPARK_HOME": SPARK_HOME,
            "AIRFLOW__EXPORT_QUEUE__UI_CONN_IDS": "export_queue_default",
            "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(
                {"type": "file", "log_file_path": str(self.folder / "lineage.ndjson"), "append": True}
            ),
            "AIRFLOW__API_AUTH__JWT_SECRET": "only-for-tests-" * 5,
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self.metadata,
        }


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory,
    wheel_environment: Environment,
    postgres_server: PostgresServer,
    redis_server: RedisServer,
) -> Iterator[Site]:
    metadata = postgres_server.create_database()
    wheel_environment.install_with_needs("vega_datasets")  # for the airports
    folder = tmp_path_factory.mktemp("site")
    site = Site(folder, wheel_environment, redis_server, postgres_server.url(metadata))
    set_up = [block.text for block in blocks_of("waiting.md", "console") if "configure" in block.text]
    site.shell.run("\n".join(["export-queue init", *set_up, "export-queue configure clicks"]))
    yield site
    postgres_server.drop_database(metadata)


@pytest.fixture(scope="module")
def airflow(site: Site) -> Iterator[AirflowProcesses]:
    environment = site.environment()
    migrate = [site.python.with_name("airflow"), "db", "migrate"]
    subprocess.run(migrate, env=environment, check=True, capture_output=True, timeout=300)
    users = {"head": "admin", "guest": "viewer"}
    with AirflowProcesses(site.folder, environment, site.python, users) as running:
        yield running


@pytest.fixture
def store(site: Site) -> Iterator[Store]:
    with Store.open(site.store_url) as store:
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
    for link in links.values():
        for user, status in ((None, 401), ("guest", 403), ("head", 200)):
            found, text = _page(airflow, link, user)
            assert found == status
            assert ("told" in text) is (status == 200)
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

    run = airflow.trigger("replay_a_part", prefix="1")
    assert set(airflow.wait_for("replay_a_part", run).values()) == {"success"}
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


def test_examples_that_need_nothing_else_run_next_to_each_other(
    airflow: AirflowProcesses, site: Site, store: Store
) -> None:
    """All at once, in two slots of the executor."""
    alone = (
        "compact_and_drain",
        "index_by_city",
        "local_drain",
        "maintenance",
        "react_to_changes",
        "set_up_orders",
    )
    runs = {dag_id: airflow.trigger(dag_id) for dag_id in alone}

    def is_deferred() -> bool:
        return airflow.states("react_to_changes", runs["react_to_changes"]).get("wait") == "deferred"

    wait_until(is_deferred, "react_to_changes does not wait", seconds=RUN_SECONDS, pause=0.5)
    store.run(lambda tx: tx.table("goods").set("salt", "stock", 3))
    for dag_id, run in runs.items():
        assert set(airflow.wait_for(dag_id, run).values()) == {"success"}, dag_id
    store.run(lambda tx: tx.queue("visits").add("home", {"visits": 9}))
    run = airflow.trigger("retry_dead_letters")
    assert airflow.wait_for("retry_dead_letters", run) == {"retry": "success", "drain": "success"}
    rows = site.database("reports").execute("SELECT page, visits FROM pages_live ORDER BY page").fetchall()
    assert rows == [("home", 9), ("search", 1)]


def test_examples_whose_queues_others_have_too_run_next_to_each_other(
    airflow: AirflowProcesses, site: Site, store: Store
) -> None:
    from redis import Redis

    pytest.importorskip("vega_datasets", reason="vega_datasets is missing: ./run setup installs it")
    store.configure_queue("catalogue", state=True, subscriptions=["search"])
    store.run(lambda tx: tx.queue("catalogue").add("pear", {"name": "Conference"}))
    shop, reports = site.database("store"), site.database("reports")
    shop.execute("create table orders (number integer primary key, customer text, cents integer)")
    others = ("add_a_reader", "airports", "business_tables", "nightly_verify", "two_copies_as_one")
    runs = {dag_id: airflow.trigger(dag_id) for dag_id in others}
    for dag_id, run in runs.items():
        assert set(airflow.wait_for(dag_id, run).values()) == {"success"}, dag_id

    for dag_id in ("add_a_reader", "nightly_verify"):
        assert airflow.result(dag_id, runs[dag_id], "verify")["differences"] == 0
    assert reports.execute("SELECT id FROM catalogue_live").fetchall() == [("pear",)]
    assert reports.execute("SELECT id FROM listed_prices_live ORDER BY id").fetchall() == [("apple",), ("pear",)]
    assert reports.execute("SELECT id FROM shop_orders_live ORDER BY id").fetchall() == [("1",), ("2",)]
    assert reports.execute("SELECT id, cents FROM shown_prices_live ORDER BY id").fetchall() == [
        ("apple", 50),
        ("pear", 70),
    ]
    assert reports.execute("SELECT count(*) FROM airports_live").fetchone() == (3376,)
    with Redis.from_url(site.cache.url()) as cache:
        assert json.loads(cache.get("price:apple")) == {"cents": 50}
        assert json.loads(cache.get("airports:JFK"))["city"] == "New York"


def test_the_dag_processor_stores_every_example(airflow: AirflowProcesses) -> None:
    files = {path.stem for path in EXAMPLES.glob("*.py")} - set(NO_DAGS)
    assert len(files) > 20

    def stored() -> set[str]:
        found = airflow.ask("/dags?limit=100")["dags"]
        return {Path(dag["relative_fileloc"]).stem for dag in found} & files

    wait_until(lambda: stored() == files, "the DAG processor does not store all", seconds=RUN_SECONDS, pause=0.5)
    assert airflow.ask("/importErrors")["import_errors"] == []


def test_the_api_shows_the_provider(airflow: AirflowProcesses) -> None:
    found = {one["package_name"]: one for one in airflow.ask("/providers?limit=100")["providers"]}
    shown = found["airflow-provider-export-queue"]
    assert shown["version"] == __version__
    assert shown["description"].startswith("Transactional exports")


def test_an_asset_starts_the_example_that_drains_on_spark(airflow: AirflowProcesses, site: Site, store: Store) -> None:
    from redis import Redis

    if not Path(SPARK_HOME, "bin", "spark-submit").exists():
        pytest.skip("Spark is missing: ./run setup builds .venv-spark")
    airflow.unpause("publish")
    run = airflow.trigger("recount")
    assert set(airflow.wait_for("recount", run).values()) == {"success"}
    assert airflow.wait_for("publish", airflow.first_run("publish")) == {"drain": "success"}
    with Redis.from_url(site.cache.url()) as cache:
        assert cache.get("customer:carla") == b'{"total":5}'
    assert store.backlog("orders") == []


def test_the_other_examples_run_on_spark(airflow: AirflowProcesses, site: Site, store: Store) -> None:
    from redis import Redis

    if not Path(SPARK_HOME, "bin", "spark-submit").exists():
        pytest.skip("Spark is missing: ./run setup builds .venv-spark")
    airflow.ask("/dags/publish", method="PATCH", body={"is_paused": True})
    store.configure_queue("orders")
    store.run(lambda tx: tx.queue("orders").add_many((name, {"total": 7}) for name in ("anna", "ben", "dora")))
    runs = {dag_id: airflow.trigger(dag_id) for dag_id in ON_SPARK if dag_id != "verify_on_spark"}
    for dag_id, run in runs.items():
        assert set(airflow.wait_for(dag_id, run).values()) == {"success"}, dag_id
    assert airflow.result("mirror_a_dataframe", runs["mirror_a_dataframe"], "verify")["differences"] == 0
    instances = airflow.ask(f"/dags/mapped_drain/dagRuns/{runs['mapped_drain']}/taskInstances")["task_instances"]
    labels = {one["rendered_map_index"] for one in instances if one["task_id"] == "drain"}
    assert all(label.startswith("ranges [[") for label in labels), labels
    reports = site.database("reports")
    assert reports.execute("SELECT count(*) FROM live_totals_live").fetchone() == (50,)
    reports.execute("DELETE FROM live_totals WHERE id = 'customer-7'")  # somebody's mistake
    run = airflow.trigger("verify_on_spark")
    assert airflow.wait_for("verify_on_spark", run) == {"verify": "success"}
    assert airflow.result("verify_on_spark", run, "verify")["repaired"] == 1
    assert reports.execute("SELECT count(*) FROM live_totals_live").fetchone() == (50,)
    with Redis.from_url(site.cache.url()) as cache:
        assert json.loads(cache.get("total:customer-7"))["orders"] == 20
        assert json.loads(cache.get("customer:dora")) == {"total": 7}


def test_the_dags_of_the_page_about_waiting_start_and_continue_when_there_is_something(
    airflow: AirflowProcesses, site: Site, store: Store
) -> None:
    from redis import Redis

    (add,) = [block.text for block in blocks_of("waiting.md", "console") if "add" in block.text]
    site.shell.run(add)
    report = airflow.trigger("report_of_the_day")

    def is_deferred() -> bool:
        return airflow.states("report_of_the_day", report).get("fresh") == "deferred"

    wait_until(is_deferred, "the sensor does not wait on the triggerer", seconds=RUN_SECONDS, pause=0.2)
    for dag_id in ("warm_caches", "publish_when_carts_wait", "publish_waiting_clicks"):
        airflow.unpause(dag_id)
    for file in (site.folder / "dags").glob("waiting_*.py"):
        file.touch()  # Airflow starts the watchers of a DAG when it has parsed it once more
    store.run(lambda tx: tx.queue("clicks").add("home", {"n": 1}))

    assert airflow.wait_for("publish_when_carts_wait", airflow.first_run("publish_when_carts_wait"))
    warmed = airflow.first_run("warm_caches")
    assert airflow.wait_for("warm_caches", warmed) == {"warm": "success"}
    assert airflow.result("warm_caches", warmed, "warm") == 1
    assert airflow.wait_for("report_of_the_day", report) == {"fresh": "success", "report": "success"}
    assert airflow.wait_for("publish_waiting_clicks", airflow.first_run("publish_waiting_clicks"))
    with Redis.from_url(site.cache.url()) as cache:
        assert json.loads(cache.get("carts:anna")) == {"items": 3}
        assert cache.get("clicks:home") == b'{"n":1}'


def test_the_restart_of_a_triggerer_loses_no_entry_and_delivers_none_twice(
    airflow: AirflowProcesses, site: Site, store: Store
) -> None:
    from redis import Redis

    def acknowledged() -> int:
        return sum(report["acknowledged"] for report in store.reports(queue_id="carts", limit=1000))

    def publish(name: str) -> None:
        store.run(lambda tx: tx.queue("carts").add(name, {"items": 1}))

    def wait_for(name: str) -> None:
        with Redis.from_url(site.cache.url()) as cache:
            wait_until(lambda: cache.get(f"carts:{name}"), f"{name} is lost", seconds=RUN_SECONDS, pause=0.5)

    airflow.unpause("publish_when_carts_wait")
    for file in (site.folder / "dags").glob("waiting_*.py"):
        file.touch()
    before = acknowledged() + sum(unit.entries for unit in store.backlog("carts"))
    publish("before")
    wait_for("before")
    airflow.kill("triggerer")
    try:
        publish("meanwhile")
    finally:
        airflow.restart("triggerer")
    wait_for("meanwhile")
    publish("afterwards")
    wait_for("afterwards")
    runs = airflow.ask("/dags/publish_when_carts_wait/dagRuns?order_by=id&limit=100")["dag_runs"]
    for run in runs:
        airflow.wait_for("publish_when_carts_wait", run["dag_run_id"])
    assert acknowledged() == before + 3


def test_a_retried_task_takes_effect_once_and_a_cleared_one_again(airflow: AirflowProcesses, store: Store) -> None:
    """Two rows of docs/airflow-retries.md."""
    run = airflow.trigger("counted")
    assert set(airflow.wait_for("counted", run).values()) == {"success"}
    assert airflow.ask(f"/dags/counted/dagRuns/{run}/taskInstances/count")["try_number"] == 2
    assert airflow.result("counted", run, "count") == 1
    clear = {"dry_run": False, "dag_run_id": run, "task_ids": ["count"], "only_failed": False}
    airflow.ask("/dags/counted/clearTaskInstances", method="POST", body=clear)
    assert set(airflow.wait_for("counted", run).values()) == {"success"}
    assert airflow.result("counted", run, "count") == 2
    assert sum(unit.entries for unit in store.backlog("counted")) == 2


def test_a_task_that_is_killed_cleared_or_marked_while_it_runs_takes_effect_once_or_not_at_all(
    airflow: AirflowProcesses, site: Site, store: Store
) -> None:
    """Three rows of docs/airflow-retries.md."""
    store.configure_queue("interfered")

    def process_of(run: str, attempt: int) -> int:
        file = site.attempts / f"{run}.{attempt}"
        wait_until(file.exists, f"attempt {attempt} has not begun", seconds=RUN_SECONDS, pause=0.1)
        return int(file.read_text())

    def mark(run: str, state: str) -> None:
        path = f"/dags/interfered/dagRuns/{run}/taskInstances/work"
        airflow.ask(path, method="PATCH", body={"new_state": state})

    def clear(run: str) -> None:
        body = {"dry_run": False, "dag_run_id": run, "task_ids": ["work"], "only_failed": False}
        airflow.ask("/dags/interfered/clearTaskInstances", method="POST", body=body)

    def wait_for_end(pid: int) -> None:
        wait_until(lambda: not is_alive(pid), "the old attempt continues", pause=0.1)

    def effects(run: str) -> list[int]:
        return [int(entry.value) for entry in store.peek("interfered", key=run, values=True)]

    killed, failed = (airflow.trigger("interfered") for _ in range(2))
    pids = [process_of(run, 1) for run in (killed, failed)]
    os.kill(pids[0], signal.SIGKILL)
    mark(failed, "failed")
    process_of(killed, 2)
    (site.attempts / f"{killed}.go").touch()
    airflow.wait_for("interfered", killed)

    overtaken = airflow.trigger("interfered")
    process_of(overtaken, 1)
    clear(overtaken)
    (site.attempts / f"{overtaken}.go").touch()
    airflow.wait_for("interfered", overtaken)
    # the old attempt has some seconds: it commits, and the new one returns its result, or it is killed before
    assert effects(overtaken) == [airflow.result("interfered", overtaken, "work")]
    wait_for_end(pids[1])

    cleared, succeeded = (airflow.trigger("interfered") for _ in range(2))
    pids = [process_of(run, 1) for run in (cleared, succeeded)]
    clear(cleared)
    mark(succeeded, "success")
    wait_for_end(pids[0])
    process_of(cleared, 2)
    (site.attempts / f"{cleared}.go").touch()
    airflow.wait_for("interfered", cleared)
    wait_for_end(pids[1])

    assert [effects(run) for run in (killed, cleared, failed, succeeded)] == [[2], [2], [], []]
    assert airflow.result("interfered", cleared, "work") == 2
    states = [airflow.states("interfered", run)["work"] for run in (killed, cleared, failed, succeeded)]
    assert states == ["success", "success", "failed", "success"]
    assert store.transactions_in_progress() == []


def test_a_drain_that_is_cleared_while_it_runs_is_continued(
    airflow: AirflowProcesses, site: Site, store: Store
) -> None:
    store.configure_queue("slow", buckets=20, buckets_per_range=1)
    store.run(lambda tx: tx.queue("slow").add_many((f"key {n}", {"n": n}) for n in range(20)))

    def processes() -> list[int]:
        return [int(file.name) for file in site.attempts.iterdir() if file.name.isdigit()]

    run = airflow.trigger("slow")
    wait_until(processes, "the drain does not begin", seconds=RUN_SECONDS, pause=0.1)
    (old,) = processes()
    clear = {"dry_run": False, "dag_run_id": run, "task_ids": ["drain"], "only_failed": False}
    airflow.ask("/dags/slow/clearTaskInstances", method="POST", body=clear)
    wait_until(lambda: not is_alive(old), "the old attempt continues", pause=0.1)
    assert sum(unit.entries for unit in store.backlog("slow")) > 0
    (site.attempts / "go").touch()
    assert airflow.wait_for("slow", run) == {"drain": "success"}
    assert len(processes()) == 2
    assert 0 < airflow.result("slow", run, "drain")["acknowledged"] <= 20
    assert sum(report["acknowledged"] for report in store.reports(queue_id="slow")) == 20
    assert site.database("reports").execute("SELECT count(*) FROM slow_live").fetchone() == (20,)
    assert store.backlog("slow") == []


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
    assert "nightly.count[2]" in states
    assert airflow.result("one_transaction", run, "nightly.sum_up") == 14
    with store.transaction() as tx:
        assert {row: value for row, _, value in tx.table("sales").scan()} == {"north": 5, "south": 5, "west": 4}
    assert store.transactions_in_progress() == []


def test_a_deferred_drain_outlives_its_task_and_ends_with_the_act_of_a_person(
    airflow: AirflowProcesses, site: Site, store: Store
) -> None:
    store.configure_queue("deferred")
    with store.transaction() as tx:
        tx.queue("deferred").add("anna", {})
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
    assert store.reports(queue_id="deferred") == []

    run, pid = deferred()
    (site.spark.folder / "go").touch()
    assert airflow.wait_for("deferred_drain", run) == {"drain": "success"}
    assert airflow.result("deferred_drain", run, "drain")["acknowledged"] == 1
    wait_until(lambda: not is_alive(pid), "the driver has not ended", pause=0.1)


def test_a_drain_that_is_marked_while_no_triggerer_runs_continues_to_its_end(
    airflow: AirflowProcesses, site: Site, store: Store
) -> None:
    """A triggerer that starts later is not told of it."""
    store.configure_queue("deferred")
    (site.spark.folder / "go").unlink(missing_ok=True)
    before = len(site.spark.calls())
    with store.transaction() as tx:
        tx.queue("deferred").add("marked", {})

    def last_sign() -> Any:
        return airflow.ask("/monitor/health")["triggerer"]["latest_triggerer_heartbeat"]

    airflow.kill("triggerer")
    try:
        run = airflow.trigger("deferred_drain")
        wait_until(
            lambda: airflow.states("deferred_drain", run).get("drain") == "deferred",
            "the drain is not deferred",
            seconds=RUN_SECONDS,
            pause=0.2,
        )
        path = f"/dags/deferred_drain/dagRuns/{run}/taskInstances/drain"
        airflow.ask(path, method="PATCH", body={"new_state": "failed"})
        sign = last_sign()
    finally:
        airflow.restart("triggerer")
    wait_until(lambda: last_sign() != sign, "the triggerer does not start", seconds=RUN_SECONDS, pause=0.2)
    (call,) = site.spark.calls()[before:]
    assert is_alive(call["pid"])
    reports = len(store.reports(queue_id="deferred"))
    (site.spark.folder / "go").touch()
    wait_until(lambda: len(store.reports(queue_id="deferred")) > reports, "the driver does not end", pause=0.1)
    assert store.backlog("deferred") == []
    assert airflow.states("deferred_drain", run) == {"drain": "failed"}


def test_a_mapped_deferred_drain_ends_right_whichever_process_of_airflow_is_killed(
    airflow: AirflowProcesses, site: Site, store: Store
) -> None:
    store.configure_queue("parts", buckets=4, buckets_per_range=2)
    go = site.spark.folder / "go"
    go.unlink(missing_ok=True)
    before = len(site.spark.calls())
    with store.transaction() as tx:
        tx.queue("parts").add_many((f"key {n}", {"n": n}) for n in range(40))
    run = airflow.trigger("mapped")
    wait_until(
        lambda: [*airflow.states("mapped", run).values()] == ["deferred"] * 2,
        "the drains are not deferred",
        seconds=RUN_SECONDS,
        pause=0.2,
    )
    drivers = [call["pid"] for call in site.spark.calls()[before:]]
    assert len(drivers) == 2
    for name, *_ in airflow.programs:
        airflow.kill(name)
        airflow.restart(name)
    assert all(map(is_alive, drivers))
    go.touch()
    assert airflow.wait_for("mapped", run) == {"drain[0]": "success", "drain[1]": "success"}
    assert len(site.spark.calls()) == before + 2  # if Airflow repeats an attempt, nothing is left to submit
    assert sum(report["acknowledged"] for report in store.reports(queue_id="parts")) == 40
    assert store.backlog("parts") == []


def _page(airflow: AirflowProcesses, path: str, user: str | None) -> tuple[int, str]:
    """Ask for a page as a user, or as nobody; returns the status and the text."""
    headers = {} if user is None else {"Authorization": f"Bearer {airflow.token(user)}"}
    request = urllib.request.Request(f"{airflow.url}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture
def browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Chromium is missing: apt-get install chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


def test_a_browser_shows_the_page_and_retries_and_drops_what_somebody_clicks(
    airflow: AirflowProcesses, store: Store, browser: Browser, tmp_path: Path
) -> None:
    """With ``EXPORT_QUEUE_SCREENSHOTS``, a folder, the pictures of docs/ui.md are written there."""
    _fill_for_pictures(store)
    refused = store.dead_letters.count("parcels")
    assert refused == 2
    pictures = Path(os.environ.get("EXPORT_QUEUE_SCREENSHOTS") or tmp_path)
    context = browser.new_context(base_url=airflow.url)
    context.set_default_timeout(ANSWER_SECONDS * 1000)
    page = context.new_page()
    console: list[str] = []  # what the policy of the page refuses, its style sheet or the frame, is an error here
    page.on("console", lambda message: console.append(message.text))
    page.on("pageerror", lambda error: console.append(str(error)))

    def keep_pictures(name: str, height: int) -> None:
        page.set_viewport_size({"width": 1100, "height": height})
        for scheme, suffix in (("light", ""), ("dark", "-dark")):
            page.emulate_media(color_scheme=scheme)
            back, text = page.evaluate(
                "(style => [style.backgroundColor, style.color])(getComputedStyle(document.body))"
            )
            assert (_light_of(back) > _light_of(text)) is (scheme == "light")
            picture = pictures / f"ui-{name}{suffix}.png"
            page.screenshot(path=picture)
            assert 2_000 < picture.stat().st_size < 150_000

    page.goto("/auth/login?next=/export-queue/")
    page.get_by_label("Username").fill("head")
    page.get_by_label("Password").fill(airflow.passwords["head"])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/export-queue/")
    parcels = page.get_by_role("link", name="parcels", exact=True)
    parcels.wait_for()
    keep_pictures("overview", 360)
    parcels.click()
    page.get_by_role("heading", name="parcels").wait_for()
    keep_pictures("reader", 760)
    page.get_by_role("link", name="see them").click()
    page.get_by_role("link", name="Retry …").wait_for()
    keep_pictures("letters", 400)

    page.get_by_role("link", name="Retry …").click()
    page.get_by_role("link", name="Cancel").click()
    assert store.dead_letters.count("parcels") == refused
    page.get_by_label("Key").fill("parcel--1")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("link", name="Drop …").click()
    page.get_by_role("button", name="Drop").click()
    page.wait_for_load_state()
    assert [letter.key for letter in store.dead_letters.list("parcels")] == ["parcel--4"]
    page.goto("/export-queue/connections/export_queue_default/letters?reader=parcels")
    page.get_by_role("link", name="Retry …").click()
    page.get_by_role("button", name="Retry").click()
    page.wait_for_load_state()
    assert store.dead_letters.count("parcels") == 0
    assert {act.who for act in store.dead_letters.audit("parcels")} == {"head"}

    page.goto("/plugin/export-queue")
    page.frame_locator("iframe").get_by_role("link", name="parcels", exact=True).wait_for()
    assert not [line for line in console if "Content Security Policy" in line], console
    context.close()


def _light_of(color: str) -> int:
    """The light of ``rgb(red, green, blue)``."""
    return sum(map(int, re.findall(r"\d+", color)[:3]))


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
