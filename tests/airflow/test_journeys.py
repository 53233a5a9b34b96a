"""Journeys: each page is followed word by word, with the wheel in a new environment and with real servers.

Journey 3, and all example DAGs, run in Airflow's own processes: ``test_processes.py``. Journey 5, into production:
``test_production.py``.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.alerts import fired_alerts
from tests.support.elasticsearch import VERSIONS, ElasticsearchServer
from tests.support.environments import Environment
from tests.support.fixtures import private_or_skip
from tests.support.pages import DOCS, Shell, assert_shown, assert_tested, blocks_of, rows_of
from tests.support.servers import PostgresServer, RedisServer, free_port

from export_queue import Store

ROOT = DOCS.parent
PROJECT = "airflow-provider-export-queue"
ONE_SERVER = pytest.mark.parametrize("elasticsearch_server", [*VERSIONS][:1], indirect=True)


@pytest.fixture
def search(elasticsearch_server: ElasticsearchServer) -> Iterator[ElasticsearchServer]:
    """A server of Elasticsearch without the indices of these pages."""
    yield elasticsearch_server
    for name in ("customers", "products"):
        elasticsearch_server.request("DELETE", f"/{name}-000001")
    for name in ("customers", "products", "products%2Fsearch", "%2A"):
        elasticsearch_server.request("DELETE", f"/xq_control/_doc/{name}")


def documents(server: ElasticsearchServer, index: str) -> dict[str, Any]:
    """Read what searches find."""
    server.request("POST", f"/{index}/_refresh")
    status, found = server.request("GET", f"/{index}/_search?size=100")
    assert status == 200, found
    return {hit["_id"]: hit["_source"] for hit in found["hits"]["hits"]}


# -- the environment ---------------------------------------------------------------------------------------------------


def test_the_package_of_the_journeys_is_the_wheels(wheel_environment: Environment, wheel: Path, shell: Shell) -> None:
    (shell.folder / "where.py").write_text(
        "import importlib.metadata, json, sys, export_queue\n"
        f"found = [d for d in importlib.metadata.distributions() if d.name == {PROJECT!r}]\n"
        "print(json.dumps([export_queue.__file__, sys.path, [str(d.locate_file('')) for d in found]]))\n"
    )
    file, path, found = json.loads(shell.run("python where.py"))
    packages = next(wheel_environment.folder.glob("lib/python*/site-packages"))
    assert Path(file) == packages / "export_queue" / "__init__.py"
    assert Path(file).resolve().is_relative_to(wheel_environment.folder.resolve()), "it is a copy, and no link"
    assert found == [str(packages)], "no other installation of the project can be seen"
    checkout = [one for one in path if one and (Path(one, "export_queue").exists() or Path(one) == ROOT)]
    assert checkout == [str(packages)]


# -- 1. a verified export in ten minutes -------------------------------------------------------------------------------


@pytest.mark.full("Airflow's command line starts ten times; test_docs runs the same DAG in one process")
@pytest.mark.timeout(900)
@ONE_SERVER
def test_a_first_dag_is_verified_from_the_install_to_the_second_run(
    shell: Shell,
    postgres_server: PostgresServer,
    postgres_url: str,
    search: ElasticsearchServer,
    redis_server: RedisServer,
    redis_client: Any,
) -> None:
    install, connections, check, table, dag, run, first, change, again, second = blocks_of("first-dag.md")
    assert install.text.splitlines()[0] == "pip install '.[airflow,postgres,elasticsearch,redis]'"
    told = shell.run("\n".join(install.text.splitlines()[1:]))
    assert PROJECT in told

    database = postgres_url.rpartition("/")[2]
    shell.run("airflow db migrate >migrate.log")
    warehouse, index, cache, store = connections.text.splitlines()
    shell.run(
        warehouse,
        instead={
            '"host": "db.example", "port": 5432, "schema": "shop", "login": "exports", "password": "…"': (
                f'"host": "{postgres_server.host}", "port": {postgres_server.port}, "schema": "{database}", '
                f'"login": "{postgres_server.user}", "password": "{postgres_server.password}"'
            )
        },
    )
    _the_mistakes_end_in_one_line_that_says_what_to_do(shell, index, store, search)
    shell.run(index, instead=_search_fields(search))
    there = f'"host": "{redis_server.host}", "port": {redis_server.port}, "password": "{redis_server.password}"'
    shell.run(cache, instead={'"host": "cache.example", "port": 6379, "password": "…"': there})
    shell.run(store)
    told = shell.run(check.text)
    assert "Connection success!" in told
    for sink in ("elasticsearch_default", "redis_default"):
        assert re.search(rf"ok +sink {sink}", told)
    assert told.count(" 0 errors") == 2

    told = shell.run("export-queue drain customers --store export_queue_default --sink elasticsearch_default", status=1)
    _has_row("the task `set_up`", told)

    with psycopg.connect(postgres_url.replace("postgresql+psycopg", "postgresql"), autocommit=True) as shop:
        shop.execute(table.text.encode())
        (shell.folder / "airflow" / "dags" / "customers_to_copies.py").write_text(dag.text)
        errors, test = run.text.splitlines()
        assert "No data found" in shell.run(errors)
        assert_shown(first.text, shell.run(test))
        assert documents(search, "customers")["7"].items() >= {"name": "customer 7", "city": "Oslo"}.items()
        shop.execute(change.text.encode())
        told = shell.run(again.text)
        assert_shown(second.text, told)
        assert told.count("no differences") == 2
    found = documents(search, "customers")
    assert sorted(found, key=int) == [str(n) for n in range(1, 11) if n != 3]
    assert found["7"]["city"] == "Bern"
    cached = {key.decode(): json.loads(redis_client.get(key)) for key in redis_client.scan_iter("customers:*")}
    assert {int(key.removeprefix("customers:")) for key in cached} == {n for n in range(1, 11) if n != 3}
    assert cached["customers:7"]["city"] == "Bern"


def _search_fields(search: ElasticsearchServer, *, port: int | None = None) -> dict[str, str]:
    return {
        '"host": "search.example", "port": 9200, "schema": "https", "login": "exports", "password": "…"': (
            f'"host": "{search.host}", "port": {port or search.port}, "schema": "http", '
            f'"login": "{search.user}", "password": "{search.password}"'
        )
    }


def _has_row(mistake: str, told: str) -> None:
    """Check that an error has what the page's row about a mistake promises, next to a hint."""
    (promise,) = [row[1] for row in rows_of("first-dag.md", "If something is wrong") if row[0] == mistake]
    for text in re.findall(r"`([^`]+)`", promise):
        assert text in told, f"the page promises {text!r}: {told}"
    assert re.search(r"^ +(hint|fix): ", told, re.MULTILINE), told
    assert "Traceback" not in told


def _the_mistakes_end_in_one_line_that_says_what_to_do(
    shell: Shell, index: str, store: str, search: ElasticsearchServer
) -> None:
    doctor = "export-queue doctor --store export_queue_default --sink elasticsearch_default"
    told = shell.run(f"({store}; {doctor})", status=1)
    _has_row("a connection", told)
    assert "AIRFLOW_CONN_ELASTICSEARCH_DEFAULT='{" in told
    shell.run(index, instead=_search_fields(search, port=free_port()))
    told = shell.run(f"({store}; {doctor})", status=1)
    _has_row("the right host", told)
    assert search.password not in told


def test_an_extra_that_is_missing_is_named_with_the_command_that_installs_it(
    wheel_environment: Environment, shell: Shell
) -> None:
    doctor = f"export-queue doctor --store sqlite:///{shell.folder}/store.db --sink http://127.0.0.1:{free_port()}"
    wheel_environment.uninstall("elastic-transport")
    try:
        told = shell.run(doctor, status=1)
    finally:
        wheel_environment.install("elastic-transport")
    _has_row("the extra of a sink", told)


def test_the_readme_and_the_first_page_show_one_dag() -> None:
    (dag,) = blocks_of("first-dag.md", "python")
    assert f"```python\n{dag.text}```" in (ROOT / "README.md").read_text("utf-8")


# -- 2. retried, killed, deferred, timed out, marked, cleared ----------------------------------------------------------

GROUP, ONE, DRAIN, DEFERRED, PROCESSES = (
    "test_transaction_group",
    "test_export_transaction",
    "test_operators",
    "test_deferred_drains",
    "test_processes",
)
INTERFERED = (PROCESSES, "a_task_that_is_killed_cleared_or_marked_while_it_runs_takes_effect_once_or_not_at_all")
CONTINUED = "a_drain_that_fails_or_exceeds_airflows_time_out_is_continued_by_its_retry"
LOST = "a_drain_whose_success_is_lost_delivers_what_is_pending_when_it_runs_again"
TESTS = {
    "One transaction across tasks": {
        "a task fails": (GROUP, "a_task_that_fails_leaves_nothing_and_the_run_is_red"),
        "a task is retried before its function has returned": (GROUP, "a_retry_before_the_writes_runs_the_function"),
        "a task is retried after its function has returned": (GROUP, "a_retry_after_the_writes_does_not_write_twice"),
        "a mapped task": (GROUP, "mapped_and_plain_tasks_write_in_it"),
        "a task is skipped": (GROUP, "a_skipped_task_writes_nothing_and_the_others_commit"),
        "`begin` is retried": (GROUP, "a_retried_begin_leaves_no_transaction_open"),
        "the success of `commit` is lost": (GROUP, "a_commit_whose_success_is_lost_is_repeated_without_effect"),
        "`commit` meets a conflict": (GROUP, "a_conflict_fails_the_commit_at_once"),
        "the whole group is cleared after its success": (GROUP, "clearing_the_group_after_its_success_is_new_work"),
        "the whole group is cleared after a failure, or while it runs": (
            GROUP,
            "clearing_the_whole_group_while_it_runs_shuts_out_the_old_transaction",
        ),
        "the whole group is cleared after a lost success": (
            GROUP,
            "clearing_the_group_after_a_lost_success_is_refused",
        ),
        "a part of the group is cleared": (GROUP, "clearing_a_part_of_the_group_is_refused_and_aborts"),
        "two runs at the same time": (GROUP, "two_runs_at_once_have_a_transaction_each"),
    },
    "One task": {
        "it fails before its commit": (ONE, "an_exception_leaves_nothing"),
        "its process or its worker is killed": INTERFERED,
        "it takes longer than `execution_timeout`": (
            ONE,
            "a_task_that_exceeds_airflows_time_out_leaves_nothing_and_its_retry_runs_the_function",
        ),
        "it is marked as success or failed while it runs": INTERFERED,
        "it is cleared while it runs": INTERFERED,
        "it is retried after its commit": (ONE, "a_retry_after_the_commit_returns_the_stored_result_and_says_so"),
        "it is cleared after its success": (ONE, "clearing_a_task_that_succeeded_is_new_work"),
        "it is cleared after a lost success": (
            ONE,
            "clearing_a_task_whose_success_never_arrived_counts_as_a_retry",
        ),
        "it takes longer than its own time-out": (
            ONE,
            "a_function_that_takes_longer_than_its_time_out_fails_the_task_at_once",
        ),
    },
    "One task: a drain": {
        "it fails before its commit": (DRAIN, CONTINUED),
        "its process or its worker is killed": (DRAIN, "a_retry_takes_over_the_leases_of_the_attempt_before"),
        "it takes longer than `execution_timeout`": (DRAIN, CONTINUED),
        "it is marked as success or failed while it runs": (
            DRAIN,
            "a_killed_drain_stops_and_what_was_acknowledged_stays_removed",
        ),
        "it is cleared while it runs": (PROCESSES, "a_drain_that_is_cleared_while_it_runs_is_continued"),
        "it is retried after its commit": (DRAIN, LOST),
        "it is cleared after its success": (
            DRAIN,
            "a_drain_that_is_cleared_after_its_success_delivers_what_is_pending_then",
        ),
        "it is cleared after a lost success": (DRAIN, LOST),
        "it takes longer than its own time-out": (DRAIN, "a_drain_whose_time_is_over_is_retried"),
    },
    "A deferred drain": {
        "the triggerer stops, restarts or loses the task to another one": (
            DEFERRED,
            "the_end_of_a_triggerer_stops_no_driver_and_its_successor_finds_the_report",
        ),
        "the task is marked while it is deferred": (DEFERRED, "a_person_who_ends_a_deferred_task_ends_its_driver"),
        "the task is cleared while it is deferred": (
            "test_real_spark",
            "a_deferred_drain_ends_from_the_triggerer_and_its_retry_delivers_everything",
        ),
        "it is marked before a triggerer has taken it, or while none runs": (
            PROCESSES,
            "a_drain_that_is_marked_while_no_triggerer_runs_continues_to_its_end",
        ),
        "it is cleared before a triggerer has taken it, or while none runs": (
            DEFERRED,
            "a_retry_next_to_a_running_driver_ends_it_and_delivers_everything_once",
        ),
        "the worker is killed after it has submitted, before the task is deferred": (
            DEFERRED,
            "a_retry_next_to_a_running_driver_ends_it_and_delivers_everything_once",
        ),
        "the driver or its machine dies": (
            DEFERRED,
            "a_silent_driver_fails_the_task_for_a_retry_and_is_stopped_if_it_lives",
        ),
        "the deferral takes longer than `execution_timeout`": (
            DEFERRED,
            "a_deferral_that_takes_too_long_stops_the_driver",
        ),
        "Airflow's scheduler takes more than ten seconds to note the deferral": (
            DEFERRED,
            "a_retry_after_a_report_that_no_attempt_has_read_delivers_only_what_is_left",
        ),
        "the store does not answer": (DEFERRED, "an_outage_of_the_store_is_no_silence_of_its_drivers"),
    },
}
"""The test of each row of docs/airflow-retries.md. A colon separates a heading from a column of its table."""


@pytest.mark.parametrize("heading", TESTS)
def test_each_row_about_retries_has_a_test(heading: str) -> None:
    expected = TESTS[heading]
    assert [row[0] for row in rows_of("airflow-retries.md", heading.partition(":")[0])] == list(expected)
    assert_tested((f"airflow/{module}.py", name) for module, name in expected.values())


# -- 4. an index is stale; tests/integration/test_stale_page.py follows the other rows of the page ---------------------


SET_UP = """
import sys
from pathlib import Path
from export_queue import SinkSpec, Store, drain

name = sys.argv[1]
with Store.open("sqlite:///store.db") as store:
    store.create()
    store.configure_queue("products", state=True, subscriptions=[name])
    store.run(lambda tx: tx.queue("products").add("1", {"price": 5}))
    drain(store, f"products/{name}", SinkSpec.from_json(Path(f"{name}.json").read_text()))
"""


def _on_call(shell: Shell, name: str, kind: str, options: dict[str, Any], password: str) -> None:
    """Prepare a queue with one reader, whose sink has one record; the store and the sink are named as the page does."""
    shell.variables |= {f"{name.upper()}_PASSWORD": password}
    _describe(shell, name, kind, options)
    (shell.folder / "set_up.py").write_text(SET_UP)
    shell.run(f"python set_up.py {name}")
    store, sink = blocks_of("stale.md")[0].text.splitlines()
    shell.run(store, instead={"export_queue_default": f"sqlite:///{shell.folder}/store.db"})
    shell.run(sink, instead={"elasticsearch_default": f"{name}.json"})


def _describe(shell: Shell, name: str, kind: str, options: dict[str, Any]) -> None:
    secrets = {"password": f"env:{name.upper()}_PASSWORD"}
    description = {"kind": kind, "options": options, "secrets": secrets, "name": f"{name}_default"}
    (shell.folder / f"{name}.json").write_text(json.dumps(description))


def _alerts(shell: Shell) -> dict[str, dict[str, str]]:
    """Return the texts of each alert whose limit is passed, by its name."""
    return fired_alerts(shell.run("export-queue metrics"))


@pytest.fixture
def cache() -> Iterator[RedisServer]:
    """A server that the test may stop, and that then has what it had."""
    yield from private_or_skip(lambda: RedisServer({"appendonly": "yes", "appendfsync": "always"}))


@pytest.mark.full("the command line starts ten times")
def test_a_stopped_sink_is_found_from_the_alert_with_two_commands(shell: Shell, cache: RedisServer) -> None:
    _on_call(shell, "cache", "redis", {"host": cache.host, "port": cache.port}, cache.password)
    status, doctor = (block.text for block in blocks_of("stale.md", "console")[1:3])
    cache.stop()
    add = """export-queue add products 3 '{"price": 8}'"""
    shell.run(f"{add}; export-queue drain products/cache --time-limit 1", status=75)

    alert = _alerts(shell)["ExportQueueDrainFails"]
    assert alert["page"] == "docs/stale.md"
    told = shell.run(status)  # the cause ...
    (line,) = [line for line in told.splitlines() if "│ products/cache" in line]
    assert "DrainTimedOut" in line
    assert f"Redis at {cache.host}:{cache.port} does not answer" in told
    assert "hint: " in told
    told = shell.run(doctor, status=1)  # ... and the cure
    assert re.search(r"error +sink cache_default: .*does not answer", told)
    assert "fix: " in told
    assert cache.password not in told

    cache.start()
    assert "1 acknowledged" in shell.run("export-queue drain products/cache")
    assert "ExportQueueDrainFails" not in _alerts(shell)


@pytest.mark.full("the command line starts ten times")
def test_a_copy_that_nobody_feeds_is_found_from_the_alert_with_one_command(shell: Shell, cache: RedisServer) -> None:
    _on_call(shell, "cache", "redis", {"host": cache.host, "port": cache.port}, cache.password)
    shell.run("""export-queue add products 3 '{"price": 8}'""")
    assert "ExportQueueStale" not in _alerts(shell)
    with Store.open(f"sqlite:///{shell.folder}/store.db") as store:
        number = store.queue("products/cache").number
    with sqlite3.connect(shell.folder / "store.db") as database:
        hour = 3600 * 10**9  # sequences begin with the time
        older = "update xq_entry set seq = seq - ? where queue_number = ?"
        assert database.execute(older, (hour, number)).rowcount == 1

    alert = _alerts(shell)["ExportQueueStale"]
    assert alert["page"] == "docs/stale.md"
    assert "products/cache" in shell.run(alert["command"])
    (line,) = [line for line in shell.run("export-queue status").splitlines() if "│ products/cache" in line]
    assert re.search(r"│ 1 +│.* ok ", line), "the last drain ended well, and none came since"
    (row,) = [row for row in rows_of("stale.md", "1. Find the reader and its problem") if "long ago" in row[0]]
    (cure,) = re.findall(r"`(export-queue drain QUEUE)`", row[2])
    assert "1 acknowledged" in shell.run(cure.replace("QUEUE", "products/cache"))
    assert "ExportQueueStale" not in _alerts(shell)


@pytest.mark.full("the command line starts fifteen times")
@pytest.mark.timeout(600)
@ONE_SERVER
def test_a_refused_entry_is_found_mended_and_proven_in_the_order_of_the_page(
    shell: Shell, search: ElasticsearchServer
) -> None:
    _on_call(shell, "search", "elasticsearch", {"hosts": [search.url], "username": search.user}, search.password)
    _, status, _, letters, mend, why, prove = (block.text for block in blocks_of("stale.md", "console"))
    (reason,) = blocks_of("stale.md", "text")
    shell.run("""export-queue add products 2 '{"price": "about 7"}'""")
    shell.run("export-queue drain products/search", status=1)

    alert = _alerts(shell)["ExportQueueDeadLetters"]
    assert alert["page"] == "docs/stale.md#3-look-at-refused-entries"
    assert alert["command"] == letters.strip()
    (line,) = [line for line in shell.run(status).splitlines() if "│ products/search" in line]
    assert "1 dead" in line
    assert reason.text.strip() in " ".join(shell.run(letters).split())
    told = shell.run(why)
    assert "exported: no" in told
    assert "dead letters: 1" in told

    shell.run(mend)
    assert "ExportQueueSinkIncomplete" in _alerts(shell)
    assert "exported: yes" in shell.run(why)
    assert "no differences" in shell.run(prove)
    assert _alerts(shell).keys() <= {"ExportQueueNotCleanedUp"}
    assert documents(search, "products")["2"]["price"] == 7
