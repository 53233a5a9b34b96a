"""The command line on a real store."""

from __future__ import annotations

import json
import sys

import pytest
from tests.support.command_line import run_cli

from export_queue import DeadLetter, MemorySink, Owner, Store, drain
from export_queue.core.locks import claim
from export_queue.core.queue import Position, dead_letter


def test_a_store_is_set_up_and_looked_at(sqlite_url: str) -> None:
    assert "no store" in run_cli("status", url=sqlite_url, status=1)
    assert "is ready" in run_cli("init", url=sqlite_url)
    assert "is ready" in run_cli("init", url=sqlite_url)
    assert "nothing to show" in run_cli("status", url=sqlite_url)
    with Store.open(sqlite_url) as store:
        queue = store.configure_queue("orders", buckets=16, buckets_per_range=4)
        store.run(lambda tx: tx.queue("orders").add("anna", {"secret value": 1}), idempotency_key="dag/run/task")
        claim(store.database, queue, queue.units()[:1], owner=Owner("somebody", "1"), lease_seconds=600)
        with store.database.begin() as work:
            dead_letter(
                work,
                queue,
                [DeadLetter(Position(0, b"ben", 7), b'"secret value"', "ValueError", "not today", "drain-1")],
            )
    (status,) = json.loads(run_cli("status", "--json", url=sqlite_url))
    assert (status["queue"], status["entries"], status["dead"], status["sink"]) == ("orders", 1, 1, None)
    assert "orders" in run_cli("status", url=sqlite_url)
    (lock,) = json.loads(run_cli("locks", "--json", url=sqlite_url))
    assert (lock["task"], lock["range"]) == ("somebody", [0, 4])
    dead = run_cli("dead", "list", "orders", url=sqlite_url)
    assert "not today" in dead
    assert "secret value" not in dead
    (idempotency_key,) = json.loads(run_cli("idempotency", "dag/run/task", "--json", url=sqlite_url))
    assert (idempotency_key["committed"], idempotency_key["generation"]) == (True, 1)
    (closed,) = json.loads(run_cli("idempotency", "dag/run/task", "--close", "--json", url=sqlite_url))
    assert (closed["committed"], closed["closed"], closed["generation"]) == (True, True, 1)
    assert "already closed" in run_cli("idempotency", "dag/run/task", "--close", url=sqlite_url, status=1)


def test_an_error_is_one_message_with_a_hint(sqlite_url: str) -> None:
    run_cli("init", url=sqlite_url)
    message = run_cli("dead", "list", "missing", url=sqlite_url, status=1)
    assert "UnknownQueue" in message
    assert "hint:" in message
    assert "Traceback" not in message


def test_a_password_comes_by_reference_only(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    user, _, rest = postgres_url.partition("://")[2].partition(":")
    password, _, place = rest.partition("@")
    monkeypatch.setenv("THE_PASSWORD", password)
    url = f"postgresql+psycopg://{user}@{place}"
    shown = run_cli("init", "--password", "env:THE_PASSWORD", url=url)
    assert "is ready" in shown
    assert password not in shown
    assert "SecretNotFound" in run_cli("init", "--password", "env:NOT_THERE", url=url, status=1)


def test_a_missing_driver_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("export_queue.core.store.postgresql")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    message = run_cli("status", url="postgresql+psycopg://me@127.0.0.1:1/d", status=1)
    assert "Traceback" not in message
    assert "airflow-provider-export-queue[postgres]" in message
    assert len(message.splitlines()) == 2


def test_a_store_behind_a_pooler_is_named_by_an_option(postgres_url: str) -> None:
    assert "is ready" in run_cli("init", "--behind-pooler", url=postgres_url)
    assert "nothing to show" in run_cli("status", "--behind-pooler", url=postgres_url)


def test_letters_on_the_command_line(sqlite_url: str) -> None:
    sink = MemorySink()
    with Store.open(sqlite_url) as store:
        store.create()
        store.configure_queue("orders", key="bytes", value="str")
        with store.transaction() as tx:
            tx.queue("orders").add(b"anna", "confidential")
            tx.queue("orders").add(b"\xff\x00", "confidential")
            seq = tx.id
        drain(store, "orders", sink, exporter=lambda entry: [entry])
    listed = json.loads(run_cli("dead", "list", "orders", "--json", url=sqlite_url))
    assert [(row["key"], row["key_hex"], row["seq"]) for row in listed] == [
        ("anna", "616e6e61", str(seq)),
        ("\\xff\x00", "ff00", str(seq)),
    ]
    assert all("Put or Delete" in row["reason"] and row["value_bytes"] == 12 for row in listed)
    after = f"{listed[0]['seq']}:{listed[0]['key_hex']}"
    assert json.loads(run_cli("dead", "list", "orders", "--after", after, "--json", url=sqlite_url)) == listed[1:]
    assert "confidential" not in run_cli("dead", "show", "orders", "--key", "anna", url=sqlite_url)
    assert "confidential" in run_cli("dead", "show", "orders", "--key", "anna", "--value", url=sqlite_url)
    (shown,) = json.loads(run_cli("dead", "show", "orders", "--key-hex", "ff00", "--value", "--json", url=sqlite_url))
    assert shown["value"] == "confidential"
    assert "which letter" in run_cli("dead", "show", "orders", url=sqlite_url, status=2)
    for wrong in (["drop", "orders"], ["drop", "orders", "--all", "--key", "anna"]):
        assert "which letters" in run_cli("dead", *wrong, url=sqlite_url, status=2)
    assert "hexadecimal" in run_cli("dead", "show", "orders", "--key-hex", "xyz", url=sqlite_url, status=1)
    retried = json.loads(run_cli("dead", "retry", "orders", "--key", "anna", "--who", "eve", "--json", url=sqlite_url))
    assert retried == [{"queue": "orders", "requeued": 1, "left": 0}]
    dropped = json.loads(run_cli("dead", "drop", "orders", "--all", "--who", "adam", "--json", url=sqlite_url))
    assert dropped == [{"queue": "orders", "dropped": 1, "left": 0}]
    assert "nothing to show" in run_cli("dead", "list", "orders", url=sqlite_url)
    with Store.open(sqlite_url) as store:
        assert [act.who for act in store.dead_letters.audit("orders")] == ["adam", "eve"]
        assert drain(store, "orders", sink, sink_name="MemorySink").acknowledged == 1
        assert sink.records() == {("orders", b"anna"): b"confidential"}
