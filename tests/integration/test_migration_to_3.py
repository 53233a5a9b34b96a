"""Stores of schema 2 brought to schema 3, whose queues may have subscriptions, while older clients go on (I3, I6)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.integration.test_migration import BY_CLOCK, described, id_source
from tests.support.waiting import PATIENCE, wait_until

from export_queue.core.client import Store
from export_queue.core.drain import drain
from export_queue.core.errors import EntriesWait, QueueBusy, SchemaVersionError
from export_queue.core.queue import Range, bucket, read_entries, subscribe
from export_queue.core.retry import Retry
from export_queue.core.sinks import MemorySink
from export_queue.core.store import migration, queries
from export_queue.core.store.creation import create
from export_queue.core.transactions import take_snapshot

CLIENT = Path(__file__).parents[1] / "support" / "schema_2_client.py"
CODE = Path(__file__).parents[1] / "data" / "schema_2.zip"
AT_ONCE = Retry(attempts=1)
pytestmark = pytest.mark.full("stores of schema 2; those of the last one are brought on in ten minutes, too")


@pytest.fixture(params=["sqlite", "postgresql", BY_CLOCK])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a store of schema 2 with a queue."""
    found = str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))
    assert told_by(found, "create", *(["clock"] if request.param.endswith("clock") else [])) == "done\n"
    return found


@contextmanager
def client(url: str, *words: str, stop: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(CODE), "EXPORT_QUEUE_STORE": url, "EXPORT_QUEUE_STOP": str(stop)}
    command = [sys.executable, "-P", str(CLIENT), *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def told_by(url: str, *words: str) -> str:
    with client(url, *words) as started:
        return started.communicate("\n", timeout=PATIENCE)[0]


def hear(started: subprocess.Popen[str], word: str) -> None:
    assert started.stdout is not None
    heard = started.stdout.readline()
    assert heard == f"{word}\n", heard + started.stdout.read()


def rest(started: subprocess.Popen[str]) -> str:
    """What is told to the end, behind what was heard."""
    assert started.stdout is not None
    told = started.stdout.read()
    started.wait(PATIENCE)
    return told


def go_on(started: subprocess.Popen[str]) -> None:
    assert started.stdin is not None
    started.stdin.write("\n")
    started.stdin.flush()


def keys(store: Store, queue_id: str) -> list[str]:
    queue = store.queue(queue_id)
    with store.database.read() as work:
        found = read_entries(
            work, queue, take_snapshot(store.database), Range(0, queue.buckets), rows=100_000, size=1 << 30
        )
    assert found.buckets == [bucket(key, queue.buckets) for key in found.keys]
    return sorted(key.decode() for key in found.keys)


def waiting(store: Store, queue_id: str) -> int:
    with store.database.read() as work:
        return queries.readers.count_rows(work, store.queue(queue_id).number, locked_at=0)[0]


def test_the_tables_of_schema_2_become_those_of_a_new_store(url: str, tmp_path: Path, postgres_server: Any) -> None:
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
    finally:
        postgres_server.drop_database(other)


def test_clients_of_schema_2_go_on_and_lose_nothing(url: str, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    with (
        client(url, "count", "one", "orders", stop=stop) as one,
        client(url, "count", "two", "orders", stop=stop) as two,
    ):
        hear(one, "counted")
        hear(two, "counted")
        with Store.open(url) as store:
            store.create()
            hear(one, "counted")
            hear(two, "counted")
            stop.touch()
            told = [rest(one), rest(two)]
            assert all(text.endswith("done\n") for text in told), told
            with store.transaction(read_only=True) as tx:
                assert len(keys(store, "orders")) == int(tx.table("counts").get("all", "n") or b"0")


def test_a_client_of_schema_2_that_is_at_work_reaches_every_subscription(url: str) -> None:
    with client(url, "step", "orders") as older, Store.open(url) as store:
        hear(older, "ready")
        store.create()
        go_on(older)
        hear(older, "added")
        assert drain(store, "orders", MemorySink(), sink_name="memory").acknowledged == 1
        store.subscribe("orders", "search")
        store.subscribe("orders", "cache")
        go_on(older)
        if url.startswith("sqlite"):
            assert "too old" in older.communicate(timeout=PATIENCE)[0]
            assert keys(store, "orders/search") == keys(store, "orders/cache") == []
        else:
            hear(older, "added")
            assert keys(store, "orders/search") == keys(store, "orders/cache") == ["step-1"]
            with store.database.begin() as work:
                work.connection.exec_driver_sql("update export_queue.xq_queue set buckets = 5 where id like '%%/cache'")
            go_on(older)
            told = older.communicate(timeout=PATIENCE)[0]
            assert "too old" in told, told
            assert keys(store, "orders/search") == ["step-1"]
        assert waiting(store, "orders") == 0


def test_a_client_of_schema_2_does_not_open_a_store_with_subscriptions(url: str) -> None:
    with Store.open(url) as store:
        store.create()
        assert "ready\nadded" in told_by(url, "step", "orders")
        store.configure_queue("airports", subscriptions=["search"])
        assert "needs code of schema 3" in told_by(url, "step", "orders")
        assert "needs code of schema 3" in told_by(url, "create")
        assert keys(store, "orders") == ["step-0"]


def test_a_long_transaction_of_schema_2_loses_nothing(url: str) -> None:
    with client(url, "long", "orders") as older, Store.open(url) as store:
        hear(older, "ready")
        go_on(older)
        hear(older, "staged")
        store.create()
        with pytest.raises(EntriesWait, match="found 1 entries"):
            store.subscribe("orders", "search")
        go_on(older)
        assert older.communicate(timeout=PATIENCE)[0] == "done\n"
        assert keys(store, "orders") == ["later", "staged"]


def test_what_a_client_of_schema_2_stages_for_subscriptions_is_refused(url: str) -> None:
    with client(url, "long", "orders") as older, Store.open(url) as store:
        hear(older, "ready")
        store.create()
        store.subscribe("orders", "search")
        go_on(older)
        told = older.communicate(timeout=PATIENCE)[0]
        assert "older client" in told or "too old" in told, told
        assert waiting(store, "orders") == waiting(store, "orders/search") == 0


@pytest.mark.parametrize("url", ["postgresql", BY_CLOCK], indirect=True)
def test_a_commit_of_schema_2_that_waits_for_the_migration_holds_the_readers(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its function runs on when the locks are free, in the body that it had before."""
    monkeypatch.setitem(migration._LOCK_SECONDS, 2, PATIENCE)
    name = url.replace("+psycopg", "")
    with (
        psycopg.connect(name) as holder,
        Store.open(url) as store,
        ThreadPoolExecutor() as threads,
        client(url, "bound", "orders") as older,
    ):
        hear(older, "ready")
        holder.execute("lock table export_queue.xq_table in share mode")
        migrated = threads.submit(store.create)
        wait_until(lambda: "xq_table" in awaited(name), "the migration does not come to its last lock")
        go_on(older)
        wait_until(lambda: awaited(name) & {"xq_active", "xq_outcome"}, "no commit waits")
        holder.rollback()
        migrated.result(PATIENCE)
        hear(older, "left")
        with pytest.raises(QueueBusy):
            subscribe(store.database, "orders", "search", retry=AT_ONCE)
        go_on(older)
        assert older.communicate(timeout=PATIENCE)[0] == "done\n"
        with pytest.raises(EntriesWait):
            store.subscribe("orders", "search")
        assert keys(store, "orders") == ["bound"]


def awaited(name: str) -> set[str]:
    """The tables that sessions wait for."""
    with psycopg.connect(name) as looking:
        found = looking.execute(
            "select relation::regclass::text from pg_locks where not granted and relation is not null"
        )
        return {str(row[0]).removeprefix("export_queue.") for row in found}


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_subscriptions_wait_until_an_older_release_has_not_its_own_functions_in_the_store(url: str) -> None:
    with Store.open(url) as store:
        store.create()
        assert told_by(url, "create") == "done\n"  # an older `export-queue init`
        with pytest.raises(SchemaVersionError, match="export-queue init"):
            store.configure_queue("airports", subscriptions=["search"])
        store.create()
        store.configure_queue("airports", subscriptions=["search"])
