"""Stores of schema 4 brought to schema 5, where locks may cover parts of units, while older clients go on (I6, I10)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.integration import test_migration_to_3 as to_3
from tests.integration.test_migration import BY_CLOCK, described, id_source
from tests.integration.test_migration_to_3 import client, go_on, hear, rest, told_by, waiting
from tests.support import bulk
from tests.support.waiting import PATIENCE, wait_until

from export_queue.core.client import Store
from export_queue.core.drain import drain
from export_queue.core.errors import LeaseLost, LockNotAvailable, SchemaVersionError
from export_queue.core.locks import ROWS, Area, Lease, Owner, acquire, claim, hold, release
from export_queue.core.queue import Queue
from export_queue.core.segments import vacuum_segments
from export_queue.core.sinks import MemorySink, SinkSpec
from export_queue.core.store import schema
from export_queue.core.store.creation import create

TESTS = Path(__file__).parents[1]
PART = Area(0, 5, frozenset({ROWS}))


@pytest.fixture(autouse=True)
def _older_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(to_3, "CLIENT", TESTS / "support" / "schema_4_client.py")
    monkeypatch.setattr(to_3, "CODE", TESTS / "data" / "schema_4.zip")


@pytest.fixture(params=["sqlite", "postgresql", BY_CLOCK])
def url(request: pytest.FixtureRequest, _older_code: None) -> str:
    """The URL of a store of schema 4 with a queue of four units."""
    found = str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))
    assert told_by(found, "create", *(["clock"] if request.param.endswith("clock") else [])) == "done\n"
    return found


@pytest.fixture
def store(url: str, tmp_path: Path) -> Any:
    """The store, brought to schema 5."""
    with Store.open(url, segments=str(tmp_path / "segments")) as opened:
        opened.create()
        yield opened


@pytest.fixture
def queue(store: Store) -> Queue:
    return store.queue("orders")


def take(store: Store, queue: Queue, area: Area, **options: Any) -> list[Lease]:
    return acquire(store.database, queue, [area], owner=Owner("newer", "1"), lease_seconds=600, **options)


def copied(sink: Path) -> set[str]:
    engine = sa.create_engine(f"sqlite:///{sink}", poolclass=sa.NullPool)
    with engine.connect() as connection:
        return set(connection.scalars(sa.text("select id from orders_live")))


def test_the_tables_of_schema_4_become_those_of_a_new_store(url: str, tmp_path: Path, postgres_server: Any) -> None:
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


def test_clients_of_schema_4_go_on_and_lose_nothing(url: str, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    with client(url, "count", "one", "orders", stop=stop) as one, Store.open(url) as store:
        hear(one, "counted")
        store.create()
        hear(one, "counted")
        take(store, store.queue("orders"), PART)
        hear(one, "counted")
        stop.touch()
        told = rest(one)
        assert told.endswith("done\n"), told
        with store.transaction(read_only=True) as tx:
            assert waiting(store, "orders") == int(tx.table("counts").get("all", "n") or b"0")


def test_a_claim_by_a_client_of_schema_4_is_an_interval_lock(store: Store, url: str, queue: Queue) -> None:
    """It keeps out every part of its units, until it is given back, of which no hint tells."""
    taken: list[Lease] = []
    with client(url, "claim", "orders", "older", "1") as older:
        hear(older, "[0, 5) [5, 10) [10, 15) [15, 20)")
        assert claim(store.database, queue, queue.units(), owner=Owner.unique(), lease_seconds=60) == []
        with pytest.raises(LockNotAvailable, match=r"\[0, 5\) is held by older"):
            take(store, queue, PART)
        waiter = threading.Thread(target=lambda: taken.extend(take(store, queue, PART, wait_seconds=PATIENCE)))
        waiter.start()
        wait_until(lambda: requests(store) == 1, "nobody waits")
        go_on(older)
        hear(older, "held")
        assert taken == []
        go_on(older)
        assert rest(older) == "done\n"
        waiter.join(PATIENCE)
    assert [lease.members for lease in taken] == [frozenset({ROWS})]


def requests(store: Store) -> int:
    with store.database.read() as work:
        return int(work.connection.scalar(sa.select(sa.func.count()).select_from(schema.lock_request)) or 0)


def test_a_lock_on_a_part_keeps_clients_of_schema_4_out_of_the_unit(
    store: Store, url: str, queue: Queue, tmp_path: Path
) -> None:
    transaction, _ = bulk.load(store, bulk.many(30))
    bulk.put(store, [f"row-{number}" for number in range(30)], b"row")
    leases = take(store, queue, Area(0, 5, frozenset({f"{transaction}.99"})), priority=0)
    sink = tmp_path / "copies.db"
    told = told_by(url, "drain", "orders", str(sink))
    brought = 60 - waiting_in(store, queue, 0)
    assert 0 < brought < 60
    assert told == f"{brought} [0, 5)\ndone\n"
    with store.database.begin() as work:
        hold(work, *leases)
    release(store.database, leases)
    assert told_by(url, "drain", "orders", str(sink)) == f"{60 - brought}\ndone\n"
    assert len(copied(sink)) == 60


def waiting_in(store: Store, queue: Queue, first: int) -> int:
    return sum(unit.entries for unit in store.backlog(queue.id) if unit.range.first == first)


@pytest.mark.parametrize("older_is_first", [True, False])
def test_a_retry_takes_over_across_versions(store: Store, url: str, queue: Queue, older_is_first: bool) -> None:
    if older_is_first:
        with client(url, "claim", "orders", "task", "1") as older:
            hear(older, "[0, 5) [5, 10) [10, 15) [15, 20)")
            assert len(claim(store.database, queue, queue.units(), owner=Owner("task", "2"), lease_seconds=60)) == 4
            go_on(older)
            hear(older, "lost")
        return
    own = Owner("task", "1")
    leases = acquire(store.database, queue, [PART], owner=own, lease_seconds=600)
    with client(url, "claim", "orders", "task", "2") as older:
        hear(older, "[0, 5) [5, 10) [10, 15) [15, 20)")
        with pytest.raises(LeaseLost), store.database.begin() as work:
            hold(work, *leases)
        with pytest.raises(LeaseLost):
            acquire(store.database, queue, [PART], owner=own, lease_seconds=600)


def test_drains_of_both_versions_at_once_bring_each_entry_once(store: Store, url: str, tmp_path: Path) -> None:
    stop, sink = tmp_path / "stop", tmp_path / "copies.db"
    spec = SinkSpec("sql", {"url": f"sqlite:///{sink}"}, name="copies")
    brought = added = 0
    with client(url, "drain-on", "orders", str(sink), stop=stop) as older:
        for turn in range(8):
            bulk.put(store, [f"row-{turn}-{number}" for number in range(40)], b"row")
            bulk.load(store, {f"bulk-{turn}-{number}": b"bulk" for number in range(20)})
            added += 60
            brought += drain(store, "orders", spec, if_locked="skip").acknowledged
        wait_until(
            lambda: waiting(store, "orders") == 0 and store.backlog("orders") == [], "the older one stands still"
        )
        stop.touch()
        told, word = rest(older).split()
    assert word == "done", told
    assert brought + int(told) == added
    assert len(copied(sink)) == added


def test_an_older_release_that_runs_its_init_changes_no_lock(store: Store, url: str, queue: Queue) -> None:
    leases = take(store, queue, PART)
    assert told_by(url, "create") == "done\n"
    with Store.open(url) as again:
        with again.database.begin() as work:
            hold(work, *leases)
        with pytest.raises(LockNotAvailable, match="is held by newer"):
            acquire(again.database, queue, [PART], owner=Owner.unique(), lease_seconds=60)


def test_clean_up_by_a_client_of_schema_4_knows_no_grace_time_and_does_no_harm(store: Store, url: str) -> None:
    sink = MemorySink()
    bulk.load(store, bulk.many(30), tasks=2)
    assert drain(store, "orders", sink, sink_name="sink").acknowledged == 30
    assert len(vacuum_segments(store.database).waiting) == 2
    _, needed = bulk.load(store, bulk.many(10))
    assert told_by(url, "clean-up") == "2\ndone\n"
    found = vacuum_segments(store.database)
    assert (found.deleted, found.waiting) == ((), ())
    assert all(Path(report.file).exists() for report in needed)
    assert drain(store, "orders", sink, sink_name="sink").acknowledged == 10
