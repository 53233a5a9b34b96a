"""Stores and sinks that the command line names by the id of an Airflow connection."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.command_line import run_cli

from export_queue.hooks import ExportQueueHook


@pytest.fixture
def connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store behind the connection ``exports``, and a SQL sink behind ``copies``; returns the sink's file."""
    store = {"conn_type": "export_queue", "host": f"sqlite:///{tmp_path}/exports.db"}
    sink = {"conn_type": "sqlite", "host": f"{tmp_path}/copies.db"}
    monkeypatch.setenv("AIRFLOW_CONN_EXPORTS", json.dumps(store))
    monkeypatch.setenv("AIRFLOW_CONN_COPIES", json.dumps(sink))
    return tmp_path / "copies.db"


def test_a_store_and_a_sink_are_named_by_their_connections(connections: Path) -> None:
    for store in ("exports", "airflow:exports"):
        assert "is ready" in run_cli("init", "--store", store, url="")
    run_cli("configure", "orders", url="airflow:exports")
    options = ["--sink-option", 'columns={"n": "integer"}']
    for sink in ("copies", "airflow:copies"):
        report = json.loads(run_cli("drain", "orders", "--sink", sink, *options, "--json", url="exports"))
        assert (report["sink"], report["problem"]) == ("copies", None)
    run_cli("ddl", "orders", "--sink", "copies", *options, "--run", url="")
    with sqlite3.connect(connections) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(orders)")]
    connection.close()
    assert columns == ["id", "n", "_rank", "_deleted"]


def test_lines_of_the_log_are_no_output_and_come_once(connections: Path) -> None:
    run_cli("init", url="exports")
    run_cli("configure", "orders", url="exports")
    with ExportQueueHook("exports").get_store() as store, store.transaction() as tx:
        tx.queue("orders").add("a", {"n": "no number"})
    options = ["--store", "exports", "--sink", "copies", "--sink-option", 'columns={"n": "integer"}', "--json"]
    program = [sys.executable, "-P", "-c", "from export_queue.core.cli import main; main()"]
    done = subprocess.run([*program, "drain", "orders", *options], capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)["dead"]) == (1, 1)
    assert done.stderr.count("dead letters: 1") == 1


def test_what_belongs_in_a_connection_is_refused_beside_it(connections: Path) -> None:
    complaint = run_cli("status", "--store", "exports", "--schema", "other", url="", status=1)
    assert "connection 'exports' sets its own password, schema and pooler" in complaint
    run_cli("init", url="exports")
    for option, expected in (
        (["--sink-option", "url=sqlite:///x"], "url belongs in connection 'copies'"),
        (["--sink-secret", "password=env:PW"], "secrets belong in connection 'copies'"),
    ):
        assert expected in run_cli("drain", "orders", "--sink", "copies", *option, url="exports", status=1)


def through_airflow(*words: str) -> None:
    """Run a command as the program ``airflow`` does."""
    from airflow.cli import cli_parser

    parsed = cli_parser.get_parser().parse_args(["export-queue", *words])
    parsed.func(parsed)


def airflow_says(capsys: pytest.CaptureFixture[str], *words: str, status: int | str = 0) -> str:
    with pytest.raises(SystemExit) as end:
        through_airflow(*words)
    assert (end.value.code or 0) == status
    told = capsys.readouterr()
    return told.err if status else told.out


def test_commands_run_through_airflow_on_its_connections(
    connections: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EXPORT_QUEUE_STORE", "")  # restored after the test
    monkeypatch.setenv("EXPORT_QUEUE_SINK", "")
    monkeypatch.delenv("EXPORT_QUEUE_STORE")
    assert "is ready" in airflow_says(capsys, "--conn-id", "exports", "init")
    assert "AIRFLOW_CONN_NOWHERE" in airflow_says(capsys, "status", "--conn-id=nowhere", status=1)
    airflow_says(capsys, "configure", "orders", "--conn-id", "exports", "--json")
    report = json.loads(
        airflow_says(capsys, "drain", "orders", "--json", "--sink-conn-id", "copies", "--conn-id", "exports")
    )
    assert (report["sink"], report["problem"]) == ("copies", None)
    airflow_says(capsys, "add", "orders", "a", "--conn-id", "exports", "--", '"--conn-id"')
    monkeypatch.delenv("EXPORT_QUEUE_STORE")
    monkeypatch.setenv("AIRFLOW_CONN_EXPORT_QUEUE_DEFAULT", os.environ["AIRFLOW_CONN_EXPORTS"])
    (entry,) = json.loads(airflow_says(capsys, "peek", "orders", "--values", "--json"))
    assert entry["value"] == '"--conn-id"'


def test_mistakes_with_connections_through_airflow_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EXPORT_QUEUE_STORE", "")
    both = "expected one of --conn-id and --store, found both: leave one out"
    airflow_says(capsys, "--conn-id", "exports", "status", "--store", "other", status=both)
    airflow_says(capsys, "status", "--conn-id", status="--conn-id: expected the id of a connection, found nothing")
    assert "Usage: airflow export-queue status" in airflow_says(capsys, "status", "--help")


def test_a_missing_connection_is_told_with_the_variable_to_set(connections: Path) -> None:
    complaint = run_cli("status", "--store", "airflow:nowhere", url="", status=1)
    assert "AIRFLOW_CONN_NOWHERE" in complaint


@pytest.mark.full("programs of Airflow")
def test_connections_of_airflows_database_are_found_by_commands_and_scripts(
    airflow_database: Path, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(airflow_database)) as database:
        database.execute("vacuum into ?", (str(tmp_path / "airflow.db"),))
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path)}
    environment |= {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db"}

    def run(*command: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == status, done.stdout + done.stderr
        return done

    connections = {
        "cache": {"conn_type": "redis", "host": "cache.example"},
        "exports": {"conn_type": "export_queue", "host": f"sqlite:///{tmp_path}/exports.db"},
    }
    (tmp_path / "connections.json").write_text(json.dumps(connections))
    run("-m", "airflow", "connections", "import", str(tmp_path / "connections.json"))
    program = "from export_queue.core.cli import main; main()"
    assert "has nothing to prepare" in run("-c", program, "ddl", "orders", "--sink", "cache", status=1).stderr
    made = run("-c", program, "init", "--store", "exports")
    assert "is ready" in made.stdout
    assert "RFC3986" not in made.stdout + made.stderr
    listed = run("-c", program, "status", "--store", "exports", "--json")
    assert json.loads(listed.stdout) == []
    script = "from export_queue.hooks import *; store = ExportQueueHook('exports').get_store(); print(store.queues())"
    script += "; print(RedisSinkHook('cache').describe().spec.options['host'])"
    shown = run("-c", script).stdout
    assert "[]" in shown
    assert "cache.example" in shown
