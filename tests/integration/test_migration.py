"""The framework of migrations, by a made-up one: a store of the schema before, and programs that go on beside it."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest
import sqlalchemy as sa
from tests.support.store_urls import whole_url

from export_queue import MemorySink, SchemaVersionError, Store, drain
from export_queue.core.store import creation, migration, schema, views

fork = multiprocessing.get_context("fork")
NEXT = schema.SCHEMA_VERSION + 1
ADD_COLUMN = "alter table {s}xq_queue add column note text"
EXPAND = migration.Migration(
    to_schema=NEXT,
    oldest_code=schema.OLDEST_CODE,
    tables=("xq_queue",),
    statements={"sqlite": (ADD_COLUMN,), "postgresql": (ADD_COLUMN,)},
    views=("queue_lag",),
)
CONTRACT = migration.Migration(to_schema=NEXT, oldest_code=NEXT)


@pytest.fixture
def next_release(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let this process run the code of the next schema, with some migrations; without any, that of today again."""

    def run(*steps: migration.Migration) -> None:
        monkeypatch.setattr(migration, "MIGRATIONS", steps)
        monkeypatch.setattr(schema, "SCHEMA_VERSION", NEXT if steps else NEXT - 1)
        body = views.VIEWS["queue_lag"].removesuffix(" -- noted") + (" -- noted" if steps else "")
        monkeypatch.setitem(views.VIEWS, "queue_lag", body)

    return run


def in_store(store: Store) -> tuple[int, int]:
    found = sa.select(schema.store.c.schema_version, schema.store.c.oldest_code)
    with store.database.read() as work:
        version, oldest = work.connection.execute(found).one()
    return version, oldest


def columns(store: Store) -> set[str]:
    inspected = sa.inspect(store.database.engine)
    where = None if store.database.engine.dialect.name == "sqlite" else store.database.dialect.steps._schema  # type: ignore[attr-defined]
    return {column["name"] for column in inspected.get_columns("xq_queue", schema=where)}


def test_creating_again_applies_what_is_missing_and_keeps_all_entries(
    store: Store, open_store: Callable[[], Store], next_release: Callable[..., None]
) -> None:
    store.configure_queue("q")
    store.run(lambda tx: tx.queue("q").add("before", 1))
    next_release(EXPAND)
    with open_store() as newer:
        for _ in range(2):
            newer.create()
            assert in_store(newer) == (NEXT, schema.OLDEST_CODE)
            assert "note" in columns(newer)
        newer.run(lambda tx: tx.queue("q").add("newer", 2))
    next_release()
    store.run(lambda tx: tx.queue("q").add("older", 3))  # a program of the version before goes on
    with open_store() as older:
        older.create()
        assert in_store(older) == (NEXT, schema.OLDEST_CODE)
        sink = MemorySink()
        assert drain(older, "q", sink, sink_name="memory").acknowledged == 3
        with older.database.read() as work:
            prefix = creation.prefix_of(work.connection)
            assert work.connection.exec_driver_sql(f"select count(*) from {prefix}queue_lag").scalar() == 0


def test_a_contracted_store_is_closed_to_the_version_before(
    store: Store, open_store: Callable[[], Store], next_release: Callable[..., None]
) -> None:
    next_release(CONTRACT)
    with open_store() as newer:
        newer.create()
    next_release()
    with open_store() as older, pytest.raises(SchemaVersionError, match=f"needs code of schema {NEXT}"):
        older.queues()


def test_a_new_store_needs_no_migration(
    store_url: str, open_store: Callable[[], Store], next_release: Callable[..., None]
) -> None:
    next_release(EXPAND)
    with open_store() as newer:
        newer.create()
        assert in_store(newer) == (NEXT, schema.OLDEST_CODE)


def test_a_killed_migration_leaves_the_store_as_it_was(
    store: Store, open_store: Callable[[], Store], next_release: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    next_release(EXPAND)

    def work() -> None:
        monkeypatch.setattr(creation, "check", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        with open_store() as newer:
            newer.create()

    process = fork.Process(target=work)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert in_store(store) == (NEXT - 1, schema.OLDEST_CODE)
    assert "note" not in columns(store)
    with open_store() as newer:
        newer.create()
        assert in_store(newer)[0] == NEXT


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_migration_waits_for_whoever_uses_a_table(
    store: Store, open_store: Callable[[], Store], next_release: Callable[..., None]
) -> None:
    next_release(EXPAND)
    user = psycopg.connect(whole_url(store).set(drivername="postgresql").render_as_string(hide_password=False))
    user.execute("select * from export_queue.xq_queue")
    waits = []

    def until_free(seconds: float) -> None:
        waits.append(seconds)
        user.rollback()

    with open_store() as newer:
        meeting = creation._MEETING
        try:
            creation._MEETING = replace(meeting, sleep=until_free)
            newer.create()
        finally:
            creation._MEETING = meeting
        assert in_store(newer)[0] == NEXT
    assert len(waits) == 1
    user.close()
