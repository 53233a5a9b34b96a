"""``export-queue doctor`` on real stores: each fault is found, and its fix repairs it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
from tests.support.command_line import run_cli
from tests.support.servers import PostgresServer, RedisServer
from tests.support.store_urls import whole_url

from export_queue import Store
from export_queue.core.doctor import store as examination


def examined(url: str, *arguments: str, status: int = 0) -> dict[str, dict[str, Any]]:
    """Run the command, and return its checks by subject."""
    told = run_cli("doctor", *arguments, "--json", url=url, status=status, complaint=False)
    found = json.loads(told)
    assert all(one["level"] in ("ok", "warning", "error") for one in found)
    assert all((one["fix"] is None) is (one["level"] == "ok") for one in found), "each fault has its fix"
    assert status == int(any(one["level"] == "error" for one in found))
    return {one["subject"]: one for one in found}


def levels(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {subject: one["level"] for subject, one in found.items() if one["level"] != "ok"}


def test_a_store_in_order_has_no_faults(store: Store) -> None:
    store.configure_queue("orders", state=store.database.segments is not None)
    url = whole_url(store).render_as_string(hide_password=False)
    found = examined(url)
    assert levels({name: one for name, one in found.items() if name != "server"}) == {}
    assert store.id in found["store"]["found"]
    assert run_cli("doctor", url=url).splitlines()[-1].startswith(f"{len(found)} checks: 0 errors")


def test_nothing_is_changed(sqlite_url: str, tmp_path: Path) -> None:
    with Store.open(sqlite_url) as store:
        store.create()
        store.configure_queue("orders")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    sink = f"sqlite:///{tmp_path}/new.db"
    assert "the first drain creates it" in examined(sqlite_url, "--sink", sink)[f"sink {sink}"]["found"]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_missing_store_names_the_command_that_creates_it(sqlite_url: str) -> None:
    found = examined(sqlite_url, status=1)
    assert levels(found) == {"store": "error"}
    assert "export-queue init" in found["store"]["fix"]


def test_what_cannot_be_opened_is_an_error_and_the_rest_is_examined(sqlite_url: str) -> None:
    found = examined("env:NOWHERE", "--sink", "no such sink", status=1)
    assert levels(found) == {"store": "error", "sink": "error"}
    assert "NOWHERE" in found["store"]["found"]
    assert found["python"]["level"] == "ok"
    assert "1 error" in run_cli("doctor", url=sqlite_url, status=1, complaint=False)


def test_a_codec_that_cannot_be_imported_is_an_error(sqlite_url: str) -> None:
    with Store.open(sqlite_url) as store:
        store.create()
        store.configure_queue("orders")
        with store.database.begin() as work:
            work.connection.execute(sa.text("update xq_queue set value_codec = 'gone:codec'"))
    found = examined(sqlite_url, status=1)
    assert levels(found) == {"queue orders": "error"}
    assert "gone" in found["queue orders"]["found"]


def test_lost_files_and_a_clock_that_was_wrong_are_found(sqlite_url: str, tmp_path: Path) -> None:
    with Store.open(sqlite_url) as store:
        store.create()
        store.configure_queue("orders", value="str")
        with store.transaction(long=True) as tx:
            tx.queue("orders").add_batch(pa.table({"key": ["a"], "value": ["1"]}))
        assert levels(examined(sqlite_url)) == {}
        (file,) = store.bulk_files()
        Path(file).unlink()
        found = examined(sqlite_url, status=1)
        assert levels(found) == {"pending files": "error"}
        assert file in found["pending files"]["found"]
        newest = store.database.dialect.administration
        with store.database.begin() as work:
            newest.set_floor(work.connection, newest.last_id(work.connection) + 3600 * 10**9)
        assert levels(examined(sqlite_url, status=1)) == {"pending files": "error", "ids": "warning"}


@pytest.fixture
def role(postgres_url: str) -> Iterator[str]:
    """The URL of a role that may connect to a store, and no more."""
    name = f"app_{secrets.token_hex(6)}"
    with Store.open(postgres_url) as store:
        store.create()
        store.configure_queue("orders")
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as admin:
        admin.execute(f"create role {name} login password 'a'".encode())
        yield sa.make_url(postgres_url).set(username=name, password="a").render_as_string(hide_password=False)
        admin.execute(f"drop owned by {name} cascade; drop role {name}".encode())


def test_the_fix_of_missing_rights_repairs_them(role: str, postgres_url: str) -> None:
    found = examined(role, status=1)
    assert levels({name: one for name, one in found.items() if name != "server"}) == {"rights": "error"}
    told = run_cli("status", url=role, status=1)
    assert "permission denied" in told
    assert "the statements that grant them: export-queue doctor" in told
    owner, _, statements = found["rights"]["fix"].partition(": ")
    assert owner.startswith("as ")
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as admin:
        admin.execute(statements.encode())
    found = examined(role)
    assert "init and adopt need its owner" in found["rights"]["found"]
    with Store.open(role) as store:
        store.run(lambda tx: tx.queue("orders").add("a", 1))
    limited = sa.make_url(role).username
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as admin:
        admin.execute(f"alter role {limited} connection limit 5".encode())
    found = examined(role, status=1)
    assert levels({name: one for name, one in found.items() if name != "server"}) == {"connections": "error"}
    assert f"role {limited}" in found["connections"]["found"]


@pytest.mark.postgres
def test_a_store_on_postgresql_is_only_read(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(postgres_url) as store:
        store.create()
        store.configure_queue("orders")
        _ = store.id
    read_only = sa.make_url(postgres_url).update_query_dict({"options": "-c default_transaction_read_only=on"})
    found = examined(read_only.render_as_string(hide_password=False), status=1)
    assert levels({name: one for name, one in found.items() if name != "server"}) == {"writes": "error"}
    monkeypatch.setattr(examination.time, "time", lambda: 0.0)
    found = examined(postgres_url)
    assert levels({name: one for name, one in found.items() if name != "server"}) == {"clock": "warning"}


@pytest.mark.postgres
def test_the_fix_of_transactions_that_may_not_write_repairs_them(role: str, postgres_url: str) -> None:
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as admin:
        name = sa.make_url(role).username
        admin.execute(f"grant all on all tables in schema export_queue to {name}".encode())
        admin.execute(f"alter role {name} set default_transaction_read_only = on".encode())
        assert examined(role, status=1)["writes"]["level"] == "error"
        admin.execute(f"alter role {name} reset default_transaction_read_only".encode())
        assert "writes" not in examined(role, status=1)  # other rights are missing
        admin.execute(f"alter role {name} connection limit 0".encode())
        assert "CONNECTION LIMIT" in examined(role, status=1)["server"]["fix"]


def test_a_store_that_lacks_tables_is_to_be_restored_and_not_created_again(sqlite_url: str) -> None:
    with Store.open(sqlite_url) as store:
        store.create()
        with store.database.begin() as work:
            work.connection.execute(sa.text("alter table xq_queue rename to lost"))
    found = examined(sqlite_url, status=1)
    assert levels(found) == {"queues": "error", "files": "error"}
    assert "restore" in found["queues"]["fix"]


@pytest.mark.postgres
def test_a_server_that_refuses_says_why(postgres_server: PostgresServer) -> None:
    wrong = postgres_server.url("no_such_database")
    found = examined(wrong, status=1)
    assert levels(found) == {"server": "error"}
    assert "no_such_database" in found["server"]["found"]
    assert postgres_server.password not in json.dumps(found)


def test_a_redis_sink_is_asked_and_left_unchanged(
    sqlite_url: str, redis_server: RedisServer, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(sqlite_url) as store:
        store.create()
    monkeypatch.setenv("CACHE", redis_server.url())
    found = examined(sqlite_url, "--sink", "env:CACHE")
    (sink,) = [one for subject, one in found.items() if subject.startswith("sink ")]
    assert "version" in sink["found"]
    assert redis_client.dbsize() == 0
    monkeypatch.setenv("CACHE", redis_server.url().replace(redis_server.password, "wrong"))
    found = examined(sqlite_url, "--sink", "env:CACHE", status=1)
    assert "error" in levels(found).values()
    assert redis_server.password not in json.dumps(found)
