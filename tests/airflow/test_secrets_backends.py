"""Connections that a secrets backend keeps: Airflow's own, which reads a file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from export_queue import ExportQueueTrigger, Store
from export_queue.hooks import ExportQueueHook, sink_hook
from export_queue.hooks.connections import MissingConnection
from export_queue.operators import ExportQueueDrainOperator

PASSWORD = "kept-secret-4711"


@pytest.fixture
def kept(tmp_path: Path, keep_in_secrets_backend: Callable[..., None]) -> Iterator[Store]:
    """A store and a sink behind connections of the backend; an entry is pending."""
    keep_in_secrets_backend(
        exports={"conn_type": "export_queue", "host": f"sqlite:///{tmp_path}/exports.db"},
        copies={"conn_type": "sqlite", "host": f"{tmp_path}/copies.db"},
        server={"conn_type": "export_queue", "host": "postgresql://u@h/d", "password": PASSWORD},
        cache={"conn_type": "redis", "host": "cache.example", "password": PASSWORD},
    )
    with ExportQueueHook("exports").get_store() as store:
        store.create()
        store.configure_queue("orders")
        store.run(lambda tx: tx.queue("orders").add("anna", {"n": 1}))
        yield store


def test_hooks_find_connections_and_passwords_of_a_secrets_backend(kept: Store) -> None:
    for described in (ExportQueueHook("server").describe(), asyncio.run(ExportQueueHook("server").adescribe())):
        assert described.spec.url == "postgresql+psycopg://u@h/d"
        assert list(described.variables.values()) == [PASSWORD]
    sink = sink_hook("cache").describe()
    assert (sink.spec.options["host"], list(sink.variables.values())) == ("cache.example", [PASSWORD])
    with pytest.raises(MissingConnection, match="'nowhere' is not defined"):
        ExportQueueHook("nowhere").describe()


def test_a_trigger_finds_its_store_in_a_secrets_backend(kept: Store) -> None:
    async def first_event() -> Any:
        trigger = ExportQueueTrigger(queue_id="orders", poll_interval=0.1, export_queue_conn_id="exports")
        async with asyncio.timeout(60):
            return await anext(trigger.run())

    assert asyncio.run(first_event()).payload["queue"] == "orders"


def test_a_task_finds_store_and_sink_in_a_secrets_backend(kept: Store, run_dag: Any) -> None:
    with DAG("kept", schedule=None) as dag:
        ExportQueueDrainOperator(
            task_id="drain", queue_id="orders", sink_conn_id="copies", export_queue_conn_id="exports"
        )
    run = run_dag(dag)
    assert run.state == "success", run.errors
    assert (run.result("drain")["sink"], run.result("drain")["acknowledged"]) == ("copies", 1)
    assert kept.backlog("orders") == []


def test_a_command_through_airflow_finds_store_and_sink_in_a_secrets_backend(
    kept: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from airflow.cli import cli_parser

    monkeypatch.setenv("EXPORT_QUEUE_STORE", "")  # restored after the test
    monkeypatch.setenv("EXPORT_QUEUE_SINK", "")
    words = ["drain", "orders", "--conn-id", "exports", "--sink-conn-id", "copies", "--json"]
    monkeypatch.delenv("EXPORT_QUEUE_STORE")
    monkeypatch.delenv("EXPORT_QUEUE_SINK")
    parsed = cli_parser.get_parser().parse_args(["export-queue", *words])
    with pytest.raises(SystemExit) as end:
        parsed.func(parsed)
    report = json.loads(capsys.readouterr().out)
    assert (end.value.code or 0, report["sink"], report["acknowledged"]) == (0, "copies", 1)
