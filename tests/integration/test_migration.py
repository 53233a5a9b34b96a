"""Stores of an older schema, brought to this one while clients of both are at work (I1, I2, I6)."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from tests.conftest import VARIANT
from tests.support.command_line import run_cli
from tests.support.patience import AT_ONCE
from tests.support.waiting import PATIENCE, wait_until

from export_queue.core.client import Store, TransactionContext
from export_queue.core.drain import drain
from export_queue.core.errors import ConflictError, SchemaVersionError
from export_queue.core.maintenance import maintain
from export_queue.core.sinks import MemorySink
from export_queue.core.store import schema
from export_queue.core.store.creation import create
from export_queue.core.store.database import schema_of

CLIENT = Path(__file__).parents[1] / "support" / "schema_1_client.py"
CODE = Path(__file__).parents[1] / "data" / "schema_1.zip"

pytestmark = pytest.mark.full("stores of schema 1; those of the last one are brought on in ten minutes, too")
BY_CLOCK = pytest.param("postgresql by clock", marks=VARIANT)


@pytest.fixture(params=["sqlite", "postgresql", BY_CLOCK])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a store of schema 1, with rows of every kind in it."""
    found = str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))
    run(found, "create", *(["clock"] if request.param.endswith("clock") else []))
    run(found, "write")
    return found


def start(url: str, *words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(CODE), "EXPORT_QUEUE_STORE": url}
    command = [sys.executable, "-P", str(CLIENT), *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(url: str, *words: str) -> str:
    with start(url, *words) as client:
        told, _ = client.communicate(timeout=PATIENCE)
    assert client.returncode == 0, told
    return told


def test_a_store_of_schema_1_keeps_what_it_holds(url: str) -> None:
    with Store.open(url) as store:
        with pytest.raises(SchemaVersionError, match="export-queue init"):
            store.queues()
        run_cli("init", url=url)
        assert read(store, "stock") == {"apple": "4", "row1": "1", "row2": "2", "row3": "3", "row4": "4"}
        # Old versions and markers of deleted cells are found by the conflict keys, whose form has changed.
        assert maintain(store.database, patience=AT_ONCE).versions == 4 + 2
        assert read(store, "stock")["apple"] == "4"
        assert drain(store, "orders", MemorySink(), sink_name="memory").acknowledged == 5
        count_up(store)
        assert read(store, "counts") == {"all": "1"}
    assert "upgrade" in ended(start(url, "count", "old"))


def test_the_tables_of_schema_1_become_those_of_a_new_store(url: str, tmp_path: Path, postgres_server: Any) -> None:
    other = postgres_server.create_database()
    fresh = f"sqlite:///{tmp_path / 'fresh.db'}" if url.startswith("sqlite") else postgres_server.url(other)
    try:
        with Store.open(url) as store, Store.open(fresh) as new:
            source = "clock" if not url.startswith("sqlite") and "clock" in id_source(store) else None
            store.create()
            create(new.database, id_source=source)  # type: ignore[arg-type]
            assert described(store) == described(new)
    finally:
        postgres_server.drop_database(other)


def test_clients_of_schema_1_that_are_at_work_end_and_lose_nothing(url: str) -> None:
    clients = [start(url, "count", f"old{number}") for number in range(3)]
    try:
        for client in clients:
            assert client.stdout is not None
            assert client.stdout.readline() == "counted\n"
        with Store.open(url) as store, ThreadPoolExecutor() as threads:

            def go_on() -> int:
                wait_until(lambda: can_open(url), "the store was not brought to this schema")
                for _ in range(20):
                    count_up(store)
                return 20

            others = [threads.submit(go_on) for _ in range(2)]
            # Two at once, as two deployments may be.
            for created in [threads.submit(run_cli, "init", url=url), threads.submit(create_again, url)]:
                created.result(PATIENCE)
            counted = sum(other.result(PATIENCE) for other in others)
            told = [ended(client) for client in clients]
            counted += len(told) + sum(text.count("counted\n") for text in told)
            for text in told:
                assert "\nended " in text, text
            # What a client was doing as it ended may have been done.
            (found,) = map(int, read(store, "counts").values())
            assert counted <= found <= counted + len(clients)
            assert sum(unit.entries for unit in store.backlog("orders")) == found + 5
    finally:
        for client in clients:
            client.kill()
            client.wait()


@pytest.mark.parametrize("url", ["postgresql", BY_CLOCK], indirect=True)
def test_a_commit_of_schema_1_that_waits_for_the_migration_does_not_take_effect(url: str) -> None:
    """Its function runs on when the locks are free, in tables that are not those it was written for."""
    name = url.replace("+psycopg", "")
    with psycopg.connect(name) as holder, Store.open(url) as store, ThreadPoolExecutor() as threads:
        client = start(url, "push")
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == "counted\n"
            holder.execute("lock table export_queue.xq_table in share mode")
            migrated = threads.submit(store.create)
            wait_until(lambda: "xq_table" in awaited(name), "the migration does not come to its last lock")
            wait_until(lambda: awaited(name) & {"xq_outcome", "xq_clock"}, "no commit waits")
            holder.rollback()
            migrated.result(PATIENCE)
            told = ended(client)
        finally:
            client.kill()
            client.wait()
        assert read(store, "counts") == {"all": str(1 + told.count("counted\n"))}
        with store.database.read() as work:
            keys = work.connection.scalars(sa.select(schema.conflict_key.c.key)).all()
        assert {bytes(key)[1:5] for key in keys} == {bytes(4)}


def awaited(name: str) -> set[str]:
    """The tables that sessions wait for."""
    with psycopg.connect(name) as looking:
        found = looking.execute(
            "select relation::regclass::text from pg_locks where not granted and relation is not null"
        )
        return {str(row[0]).removeprefix("export_queue.") for row in found}


def test_a_conflict_names_its_table_where_a_queue_has_the_same_number(url: str) -> None:
    with Store.open(url) as store:
        store.create()
        with pytest.raises(ConflictError, match="stock"), store.transaction() as late:
            late.table("stock").get("apple", "n")
            with store.transaction() as between:
                between.table("stock").set("apple", "n", b"between")
            late.table("stock").set("apple", "n", b"late")


def test_a_creation_beside_a_bound_transaction_keeps_nobody_waiting(store: Store, store_url: str) -> None:
    if store_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer")
    engine = sa.create_engine(store_url, poolclass=sa.NullPool)
    with engine.connect() as connection, connection.begin():
        with store.transaction(connection=connection) as tx:
            tx.table("stock").set("a", "b", b"1")
        with psycopg.connect(store_url.replace("+psycopg", "")) as impatient:
            impatient.execute("alter role current_user set lock_timeout = '1s'")
        try:
            create_again(store_url)
        finally:
            with psycopg.connect(store_url.replace("+psycopg", "")) as again:
                again.execute("alter role current_user reset lock_timeout")


def test_a_long_transaction_of_schema_1_is_not_ended(url: str) -> None:
    client = start(url, "long")
    try:
        assert client.stdout is not None
        assert client.stdout.readline() == "holding\n"
        with Store.open(url) as store:
            with pytest.raises(SchemaVersionError, match=r"no long transaction is in progress, found 1(.|\n)*init"):
                store.create()
            with store.database.begin() as work:
                work.connection.execute(schema.active.update().values(deadline_ms=1))
            store.create()
            assert "pear" not in read(store, "stock")
            assert maintain(store.database, patience=AT_ONCE).pruned == 1
            with store.database.read() as work:
                assert work.connection.scalar(sa.select(sa.func.count()).select_from(schema.staged_cell)) == 0
    finally:
        client.kill()
        client.wait()


def test_rights_on_views_stay(postgres_url: str) -> None:
    run(postgres_url, "create")
    with Store.open(postgres_url) as store:
        with store.database.begin() as work:
            for statement in (
                "grant usage on schema export_queue to pg_monitor",
                "grant select on export_queue.queue_lag, export_queue.xq_lock to pg_monitor with grant option",
                "grant select on export_queue.locks to public",
            ):
                work.connection.exec_driver_sql(statement)
        store.create()
        with store.database.read() as work:
            for name, role, option in (
                ("queue_lag", "pg_monitor", " with grant option"),
                ("xq_lock", "pg_monitor", " with grant option"),
                ("locks", "public", ""),
            ):
                has = f"select has_table_privilege('{role}', 'export_queue.{name}', 'select{option}')"
                assert work.connection.exec_driver_sql(has).scalar_one(), name


# -- what the tests ask ----------------------------------------------------------------------------------------------


def read(store: Store, table: str) -> dict[str, str]:
    with store.transaction(read_only=True) as tx:
        return {row.decode(): value.decode() for row, _, value in tx.table(table).scan()}


def count_up(store: Store) -> None:
    def step(tx: TransactionContext) -> None:
        table = tx.table("counts")
        number = int(table.get("all", "n") or b"0") + 1
        table.set("all", "n", b"%d" % number)
        tx.queue("orders").add(f"new-{number}", number)

    store.run(step)


def can_open(url: str) -> bool:
    try:
        with Store.open(url) as store:
            store.queues()
    except SchemaVersionError:
        return False
    return True


def create_again(url: str) -> None:
    with Store.open(url) as store:
        store.create()


def ended(client: subprocess.Popen[str]) -> str:
    assert client.stdout is not None
    told = client.stdout.read()
    assert client.wait(PATIENCE) == 3, told
    return told


def id_source(store: Store) -> str:
    with store.database.read() as work:
        return str(work.connection.scalar(sa.select(schema.store.c.id_source)))


def described(store: Store) -> dict[str, Any]:
    """Tables with columns, keys and indexes; views, triggers and functions."""
    with store.database.read() as work:
        connection, found = work.connection, dict[str, Any]()
        place = schema_of(connection) if connection.dialect.name == "postgresql" else None
        inspector = sa.inspect(connection)
        for name in inspector.get_table_names(schema=place):
            columns = {column["name"]: column for column in inspector.get_columns(name, schema=place)}
            found[name] = {
                "columns": {name: kind_of(column, is_sqlite=place is None) for name, column in columns.items()},
                "key": inspector.get_pk_constraint(name, schema=place)["constrained_columns"],
                "indexes": sorted(
                    one["column_names"] for one in inspector.get_indexes(name, schema=place) if not one["unique"]
                ),
                "unique": sorted(
                    {
                        tuple(one["column_names"])
                        for one in (
                            *inspector.get_unique_constraints(name, schema=place),
                            *(one for one in inspector.get_indexes(name, schema=place) if one["unique"]),
                        )
                    }
                ),
            }
        found["views"] = sorted(inspector.get_view_names(schema=place))
        if connection.dialect.name == "postgresql":
            for what in (
                "select relname, reloptions from pg_class where relnamespace = 'export_queue'::regnamespace",
                "select oid::regprocedure from pg_proc where pronamespace = 'export_queue'::regnamespace",
                "select tgname, pg_get_triggerdef(oid) from pg_trigger where not tgisinternal",
                "select indexdef from pg_indexes where schemaname = 'export_queue' and indexdef like '%%coalesce%%'",
            ):
                found[what] = sorted(map(str, connection.exec_driver_sql(what)))
        else:
            of_file = "select name, lower(sql) from sqlite_master where {} order by name"
            for what in ("type = 'trigger'", "type = 'index' and sql like '%coalesce%'"):
                found[what] = [tuple(row) for row in connection.exec_driver_sql(of_file.format(what))]
        return found


def kind_of(column: Any, *, is_sqlite: bool) -> tuple[str, bool, str | None]:
    # SQLite has one kind of integer, and adds no column that needs a value but with a default.
    kind = "integer" if is_sqlite and isinstance(column["type"], sa.Integer) else str(column["type"]).lower()
    return kind, column["nullable"], None if is_sqlite else str(column["default"])
