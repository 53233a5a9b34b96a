"""Stores of schema 3 brought to schema 4, where entries may wait in files, while older clients go on (I3, I6)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.integration import test_migration_to_3 as to_3
from tests.integration.test_migration import BY_CLOCK, described, id_source
from tests.integration.test_migration_to_3 import client, go_on, hear, rest, told_by
from tests.support import bulk
from tests.support.waiting import PATIENCE

from export_queue.core.client import Store
from export_queue.core.drain import drain
from export_queue.core.errors import SchemaVersionError
from export_queue.core.segments import begin_load, vacuum_segments
from export_queue.core.sinks import MemorySink
from export_queue.core.store import queries
from export_queue.core.store.creation import create

TESTS = Path(__file__).parents[1]
pytestmark = pytest.mark.full("stores of schema 3; those of the last one are brought on in ten minutes, too")


@pytest.fixture(autouse=True)
def _older_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(to_3, "CLIENT", TESTS / "support" / "schema_3_client.py")
    monkeypatch.setattr(to_3, "CODE", TESTS / "data" / "schema_3.zip")


@pytest.fixture(params=["sqlite", "postgresql", BY_CLOCK])
def url(request: pytest.FixtureRequest, _older_code: None) -> str:
    """The URL of a store of schema 3 with a queue."""
    found = str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))
    assert told_by(found, "create", *(["clock"] if request.param.endswith("clock") else [])) == "done\n"
    return found


def opened(url: str, tmp_path: Path) -> Store:
    return Store.open(url, segments=str(tmp_path / "segments"))


def waiting(store: Store) -> int:
    return sum(unit.entries for unit in store.backlog("orders"))


def test_the_tables_of_schema_3_become_those_of_a_new_store(url: str, tmp_path: Path, postgres_server: Any) -> None:
    other = postgres_server.create_database()
    fresh = f"sqlite:///{tmp_path / 'fresh.db'}" if url.startswith("sqlite") else postgres_server.url(other)
    try:
        with Store.open(url) as store, Store.open(fresh) as new:
            source = "clock" if not url.startswith("sqlite") and "clock" in id_source(store) else None
            with pytest.raises(SchemaVersionError, match="export-queue init"):
                store.queues()
            store.create()
            create(new.database, id_source=source)  # type: ignore[arg-type]
            assert described(store) == described(new)
            assert store.identity.oldest_code == new.identity.oldest_code == 2
            views = [_view(one) for one in (store, new)]
            assert views[0] == views[1]
    finally:
        postgres_server.drop_database(other)


def _view(store: Store) -> str:
    asked = "select pg_get_viewdef('export_queue.queue_lag'::regclass)"
    if store.database.dialect.name == "sqlite":
        asked = "select sql from sqlite_schema where name = 'queue_lag'"
    with store.database.read() as work:
        return str(work.connection.exec_driver_sql(asked).scalar())


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_rights_and_views_of_users_stay(url: str) -> None:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as own:
        own.execute("grant select on export_queue.queue_lag to pg_monitor")
        own.execute("create view public.my_lag as select sum(entries) from export_queue.queue_lag")
        with Store.open(url) as store:
            store.create()
        granted = own.execute("select has_table_privilege('pg_monitor', 'export_queue.queue_lag', 'select')").fetchone()
        assert granted == (True,)


def test_clients_of_schema_3_go_on_and_lose_nothing(url: str, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    with client(url, "count", "one", "orders", stop=stop) as one, opened(url, tmp_path) as store:
        hear(one, "counted")
        store.create()
        hear(one, "counted")
        bulk.load(store, bulk.many(10))
        hear(one, "counted")
        stop.touch()
        told = rest(one)
        assert told.endswith("done\n"), told
        with store.transaction(read_only=True) as tx:
            assert waiting(store) == int(tx.table("counts").get("all", "n") or b"0") + 10


def test_a_long_transaction_of_schema_3_loses_nothing(url: str, tmp_path: Path) -> None:
    with client(url, "long", "orders") as older, opened(url, tmp_path) as store:
        hear(older, "ready")
        go_on(older)
        hear(older, "staged")
        store.create()
        go_on(older)
        assert older.communicate(timeout=PATIENCE)[0] == "done\n"
        assert waiting(store) == 2


def test_a_commit_by_a_client_of_schema_3_publishes_what_is_in_files(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path) as store:
        store.create()
        begun = store.begin()
        with client(url, "commit", json.dumps(begun)) as older:
            hear(older, "ready")
            with store.resume(begun) as tx:
                bulk.add(tx, store, bulk.many(10))
            go_on(older)
            assert older.communicate(timeout=PATIENCE)[0] == "done\n"
        assert waiting(store) == 10
        sink = MemorySink()
        assert drain(store, "orders", sink, sink_name="sink").acknowledged == 10


def test_an_abort_by_a_client_of_schema_3_leaves_nothing(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path) as store:
        store.create()
        begun = store.begin()
        with client(url, "abort", json.dumps(begun)) as older:
            hear(older, "ready")
            with store.resume(begun) as tx:
                (report,) = bulk.add(tx, store, bulk.many(10))
            go_on(older)
            assert older.communicate(timeout=PATIENCE)[0] == "done\n"
        assert waiting(store) == 0
        assert vacuum_segments(store.database, grace_seconds=0).files == 1
        assert not Path(report.file).exists()


def test_a_client_of_schema_3_does_not_open_a_store_with_entries_in_files(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path) as store:
        store.create()
        bulk.load(store, bulk.many(10))
        assert "needs code of schema 4" in told_by(url, "long", "orders")
        assert "needs code of schema 4" in told_by(url, "create")


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_files_wait_until_an_older_release_has_not_its_own_functions_in_the_store(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path) as store:
        store.create()
        assert told_by(url, "create") == "done\n"  # an older `export-queue init`
        with store.transaction(long=True) as tx:
            with pytest.raises(SchemaVersionError, match="export-queue init"):
                begin_load(store.database, tx.id)
            store.create()
            bulk.add(tx, store, bulk.many(10))
        assert waiting(store) == 10
        with store.database.read() as work:
            assert queries.segments.count_left(work, store.queue("orders").number) == 10
