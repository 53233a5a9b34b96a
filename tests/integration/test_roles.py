"""The roles of a store on PostgreSQL: what each may do, what none may do, and how a missing right is reported."""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from tests.support.command_line import run_cli
from tests.support.servers import PostgresServer

from export_queue import MemorySink, Put, Store, StoreError, drain, verify
from export_queue.core.maintenance import Patience, maintain
from export_queue.core.store import RIGHTS, ROLES, Role, nearest, quoted
from export_queue.core.store.roles import DEFINERS, FUNCTIONS, TABLES

SCHEMA = 'our "exports"'
PLACE = quoted(SCHEMA)


@pytest.fixture(scope="module")
def owner_url(postgres_server: PostgresServer) -> Iterator[str]:
    name = postgres_server.create_database()
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture(scope="module")
def owner(owner_url: str) -> Iterator[Store]:
    """A store as its owner opens it, in a schema whose name must be quoted. The tests share it."""
    with opened(owner_url) as store:
        store.create()
        store.configure_queue("orders")
        yield store


@pytest.fixture(scope="module")
def admin(owner_url: str) -> Iterator[psycopg.Connection[Any]]:
    with session_of(owner_url) as connection:
        yield connection


@pytest.fixture(scope="module")
def urls(owner: Store, admin: psycopg.Connection[Any], owner_url: str) -> Iterator[dict[Role, str]]:
    """By role the URL of one that has the rights which the command line prints."""
    names: dict[Role, str] = {role: f'Test "{role}" {secrets.token_hex(4)}' for role in ROLES}
    for role, name in names.items():
        admin.execute(f"create role {quoted(name)} login password 'a'".encode())
        admin.execute(run_cli("grants", role, name, "--schema", SCHEMA, url=owner_url).encode())
    url = sa.make_url(owner_url)
    yield {role: url.set(username=name, password="a").render_as_string(False) for role, name in names.items()}
    for name in names.values():
        admin.execute(f"drop owned by {quoted(name)} cascade; drop role {quoted(name)}".encode())


def opened(url: str) -> Store:
    return Store.open(url, schema=SCHEMA)


def session_of(url: str) -> psycopg.Connection[Any]:
    named = sa.make_url(url)
    place = {"host": named.host, "port": named.port, "dbname": named.database}
    return psycopg.connect(**place, user=named.username, password=named.password, autocommit=True)  # type: ignore[arg-type]


def add(store: Store, **values: int | str) -> None:
    with store.transaction() as tx:
        for key, value in values.items():
            tx.table("totals").set(key, "n", str(value).encode())
            tx.queue("orders").add(key, value)


def export(entry: Any) -> list[Put]:
    if entry.value == "poison":
        raise ValueError("not eaten")
    return [Put("orders", entry.key, entry.value)]


def test_each_role_does_its_part_and_a_reader_watches(urls: dict[Role, str]) -> None:
    sink = MemorySink()
    with opened(urls["writer"]) as writer:
        add(writer, a=1, b=2)
        with writer.transaction(long=True) as tx:
            tx.queue("orders").add("c", 3)
            tx.flush()
            tx.queue("orders").add("d", "poison")
        with pytest.raises(ZeroDivisionError), writer.transaction(long=True) as tx:
            tx.queue("orders").add("e", 5)
            tx.flush()
            raise ZeroDivisionError
        writer.run(lambda tx: tx.queue("orders").add("f", 6), idempotency_key="once")
        token = writer.token(idempotency_key="once")
    with opened(urls["drainer"]) as drainer:
        report = drain(drainer, "orders", sink, sink_name="s", exporter=export)
        assert (report.acknowledged, report.dead) == (4, 1)
        for _ in range(2):  # the first run only notes the time, the second one finds what is old
            maintain(drainer.database, patience=Patience(between_calls=0))
        assert drainer.dead_letters.count("orders") == 1
        verify(drainer, "orders", sink, sink_name="s", exporter=export, source=lambda: [("a", 1)])
        assert [one.report.extra for one in drainer.finished_comparisons("orders")] == [3]
    with opened(urls["writer"]) as writer:
        writer.wait_exported(token, "orders", timeout=60)
        assert "export_queue_dead_letters" in drainer.metrics()
    with opened(urls["application"]) as application:
        assert application.dead_letters.retry("orders") == 1
        assert application.is_exported(token, "orders")
        assert drain(application, "orders", sink, sink_name="s").dead == 1
        assert application.dead_letters.drop("orders") == 1
    with session_of(urls["reader"]) as reader:
        for right in RIGHTS["reader"]:
            if right.kind == "view":
                reader.execute(f"select * from {PLACE}.{right.name}".encode()).fetchall()


OF_NOBODY = [
    "insert into {s}.xq_entry values (1, 1, 1, 'k', 1, 'v')",
    "update {s}.xq_entry set value = 'v'",
    "update {s}.xq_cell set value = 'v'",
    "insert into {s}.xq_cell values (1, 'r', 'c', 1, 'v')",
    "update {s}.xq_queue set buckets = 7",
    "insert into {s}.xq_queue select * from {s}.xq_queue",
    "delete from {s}.xq_queue",
    "insert into {s}.xq_staged_entry values (1, 1, 1, 1, 'k', 1)",
    "insert into {s}.xq_active select * from {s}.xq_active",
    "delete from {s}.xq_active",
    "insert into {s}.xq_segment_reader values (1, 1, 1)",
    "insert into {s}.xq_compacted values (1, 1, 1, 1, 1)",
    "select setval('{s}.xq_id', 1)",
    "select nextval('{s}.xq_id')",
    "select {s}.xq_rollback_v1(1), 1 / (select count(*) from {s}.xq_cell)",
    "delete from {s}.xq_change",
    "create table {s}.mine (id bigint)",
    "create temp table mine (id int); create trigger t after insert on mine execute function {s}.xq_record_change_v1()",
]
OF_OTHERS: dict[str, list[str]] = {
    "writer": [
        "delete from {s}.xq_entry",
        "delete from {s}.xq_cell",
        "update {s}.xq_segment set entries = 0",
        "delete from {s}.xq_segment",
        "delete from {s}.xq_segment_reader",
        "select value from {s}.xq_dead_letter",
        "delete from {s}.xq_dead_letter",
        "insert into {s}.xq_dead_letter_audit select * from {s}.xq_dead_letter_audit",
        "select * from {s}.xq_lock",
        "insert into {s}.xq_lock select * from {s}.xq_lock",
        "select * from {s}.xq_drain_report",
        "select * from {s}.drain_reports",
        "update {s}.xq_queue set sink = 'other'",
        "update {s}.xq_store set horizon = 1",
        "update {s}.xq_conflict_key set writer = 0",
        "select {s}.xq_prune_v1(1)",
    ],
    "drainer": [
        "select {s}.xq_start_v1('long', 'rows', false, gen_random_uuid(), 1, 'me', null, null, null)",
        "select {s}.xq_abort_v1('rows', 1, null, null)",
        "select {s}.xq_lock_keys_v1('{}')",
        "insert into {s}.xq_conflict_key values ('k', 1)",
        "update {s}.xq_conflict_key set writer = 0",
        "update {s}.xq_store set store_id = 'x'",
        "update {s}.xq_store set mask = 1",
        "update {s}.xq_layout set buckets = 7",
        "update {s}.xq_load set checked = stagings",
        "update {s}.xq_segment set entries = 0",
        "insert into {s}.xq_outcome values (gen_random_uuid(), 'committed', 1, 1)",
        "insert into {s}.xq_table select * from {s}.xq_table",
    ],
    "reader": [
        "select * from {s}.xq_entry",
        "select {s}.xq_draw_v1(true, false)",
        "select {s}.xq_expire_v1()",
        "select {s}.xq_start_v1('long', 'rows', false, gen_random_uuid(), 1, 'me', null, null, null)",
    ],
}


@pytest.mark.parametrize("role", OF_OTHERS)
def test_a_role_may_not_do_what_is_for_others(role: Role, urls: dict[Role, str]) -> None:
    with session_of(urls[role]) as session:
        for statement in (*OF_NOBODY, *OF_OTHERS[role]):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                for part in statement.replace("{s}", PLACE).split("; "):
                    session.execute(part.encode())
                pytest.fail(f"a {role} may: {statement}")


def test_a_writer_that_drains_and_a_drainer_that_adds_are_told_the_right_and_lose_nothing(
    owner: Store, urls: dict[Role, str]
) -> None:
    owner.configure_queue("other")
    sink = MemorySink()
    with opened(urls["writer"]) as writer, opened(urls["drainer"]) as drainer:
        writer.run(lambda tx: tx.queue("other").add("a", 1))
        with pytest.raises(StoreError) as refused:
            drain(writer, "other", sink, sink_name="s")
        told(refused.value, "xq_", "as drainer: grant ")
        with pytest.raises(StoreError) as refused:
            drainer.run(lambda tx: tx.queue("other").add("b", 2))
        told(refused.value, "function xq_commit_v1", f"as writer: grant execute on function {PLACE}.xq_commit_v1 to")
        with pytest.raises(StoreError) as refused:
            drainer.configure_queue("more")
        told(refused.value, "table xq_queue", "as application: grant select, insert, update, delete")
        assert drain(drainer, "other", sink, sink_name="s").acknowledged == 1
        writer.run(lambda tx: tx.queue("other").add("c", 3))
        assert drain(drainer, "other", sink, sink_name="s").acknowledged == 1
    assert [unit.entries for unit in owner.backlog("other") if unit.entries] == []


def test_a_writer_cannot_hide_what_others_have_committed_or_will_commit(owner: Store, urls: dict[Role, str]) -> None:
    owner.configure_queue("hidden")
    with opened(urls["writer"]) as writer, session_of(urls["writer"]) as session:
        writer.run(lambda tx: tx.queue("hidden").add("short", 1))
        with writer.transaction(long=True) as tx:
            tx.queue("hidden").add("long", 2)
            tx.table("totals").set("hidden", "n", b"1")
            tx.flush()
            tx.checkpoint()
            tx.table("totals").set("hidden", "n", b"2")
            tx.flush()
        seqs = session.execute(
            f"select e.seq from {PLACE}.xq_entry e join {PLACE}.xq_queue q on q.number = e.queue_number "
            "where q.id = 'hidden' union select version from "
            f"{PLACE}.xq_cell order by 1".encode()
        ).fetchall()
        other = writer.begin()
        try:
            wanted = [(seq, by) for (seq,) in seqs for by in (seq, 0)] + [
                (int(other["id"]) + 10**15, 0),
                (other["id"], 0),
            ]
            for registration, (number, by) in itertools.product(("row", "rows", "none"), wanted):
                with pytest.raises(psycopg.Error, match="of another transaction, or has committed") as refused:
                    hide = f"select {PLACE}.xq_abort_v1(%s, %s, %s::bigint[], 'me')"
                    session.execute(hide.encode(), (registration, by, [number]))
                assert refused.value.sqlstate == "XQ002"
        finally:
            writer.abort(other)
    assert drain(owner, "hidden", MemorySink(), sink_name="s").acknowledged == 2


def test_what_a_sweep_has_ended_becomes_invalid_nevertheless(owner: Store, urls: dict[Role, str]) -> None:
    with session_of(urls["writer"]) as session:
        (number,) = session.execute(f"select id from {PLACE}.xq_draw_v1(true, false)".encode()).fetchone() or (0,)
        session.execute(f"select {PLACE}.xq_abort_v1('row', %s, %s::bigint[], 'me')".encode(), (number, [number]))
        assert session.execute(f"select left_to from {PLACE}.xq_invalid where id = {number}".encode()).fetchall()
    with session_of(urls["application"]) as session:
        session.execute(f"delete from {PLACE}.xq_invalid where id = {number}".encode())


def test_a_writer_cannot_commit_under_an_id_of_the_future(owner: Store, urls: dict[Role, str]) -> None:
    with session_of(urls["writer"]) as session:
        store, mask, last = session.execute(
            f"select s.store_id, s.mask, i.last_value from {PLACE}.xq_store s, {PLACE}.xq_id i".encode()
        ).fetchone() or ("", 0, 0)
        number = last + 10**15
        arguments = ["%s", "'transaction'", "gen_random_uuid()", "%s", "'{}'", *["null"] * 7, *["'{}'"] * 15]
        session.execute(b"begin")
        session.execute(b"select pg_try_advisory_xact_lock(%s::bigint # %s::bigint)", (number, mask))
        with pytest.raises(psycopg.Error, match="was never drawn") as refused:
            commit = f"select {PLACE}.xq_commit_v1({', '.join(arguments)}, %s, null)"
            session.execute(commit.encode(), (store, number, number))
        assert refused.value.sqlstate == "XQ002"


def test_what_a_superuser_or_a_member_adds_belongs_to_the_owner(postgres_server: PostgresServer) -> None:
    name = postgres_server.create_database()
    url = sa.make_url(postgres_server.url(name))
    boss, member = (f'100% "{role}" {secrets.token_hex(4)}' for role in ("boss", "member"))
    as_boss, as_member = (url.set(username=one, password="a").render_as_string(False) for one in (boss, member))
    with session_of(postgres_server.url(name)) as session:
        try:
            for one in (boss, member):
                session.execute(f"create role {quoted(one)} login password 'a'".encode())
            session.execute(f"grant {quoted(boss)} to {quoted(member)}".encode())
            session.execute(f'grant create on database "{name}" to {quoted(boss)}'.encode())
            with opened(as_boss) as store:
                store.create()
                store.configure_queue("orders")
            for url_of_another in (postgres_server.url(name), as_member):
                # as before an upgrade that adds them
                session.execute(
                    f"drop table {PLACE}.xq_change cascade; drop function {PLACE}.xq_lock_keys_v1(bytea[])".encode()
                )
                with opened(url_of_another) as store:
                    store.create()
                with opened(as_boss) as store:
                    store.create()
                    with store.transaction(long=True) as tx:
                        tx.queue("orders").add("a", 1)
        finally:
            for one in (member, boss):
                session.execute(f"drop owned by {quoted(one)} cascade; drop role {quoted(one)}".encode())
    postgres_server.drop_database(name)


def told(error: StoreError, denied: str, hint: str) -> None:
    """Check that an error is final and names what was denied, the statement that grants it, and the role."""
    assert not error.transient
    assert "permission denied for" in error.message
    assert denied in error.message
    assert hint in (error.hint or "")
    assert 'to "Test ""' in (error.hint or "")


def test_the_list_of_rights_knows_every_table_and_function(owner: Store, admin: psycopg.Connection[Any]) -> None:
    place = f"from pg_class c where c.relnamespace = '{PLACE}'::regnamespace"
    tables = {name for (name,) in admin.execute(f"select c.relname {place} and c.relkind = 'r'".encode())}
    assert tables == {*TABLES}
    found = admin.execute(
        f"select p.proname, p.prosecdef, has_function_privilege('public', p.oid, 'execute') from pg_proc p "
        f"where p.pronamespace = '{PLACE}'::regnamespace".encode()
    ).fetchall()
    everybodys = {name for names in FUNCTIONS.values() for name in names}
    assert {name for name, _, _ in found} == {*DEFINERS, *everybodys, "xq_record_change_v1"}
    assert {name for name, is_definer, _ in found if is_definer} == {
        *DEFINERS,
        "xq_record_change_v1",
        "xq_server_life_v1",
    }
    assert {name for name, _, is_public in found if is_public} == everybodys
    assert len({name for name, _, _ in found}) == len(found), "a statement names a function without its arguments"
    assert nearest(RIGHTS["application"]) == (("application",), frozenset())


def test_the_doctor_knows_what_a_role_is_for_and_finds_what_it_lacks(
    owner: Store, urls: dict[Role, str], admin: psycopg.Connection[Any]
) -> None:
    for role, url in urls.items():
        told = "may only read views" if role == "reader" else f"has the rights of: {role};"
        assert told in examined(url)["rights"]["found"]
    drainer = sa.make_url(urls["drainer"]).username or ""
    admin.execute(f"revoke delete on {PLACE}.xq_entry from {quoted(drainer)}".encode())
    rights = examined(urls["drainer"], status=1)["rights"]
    assert "lacks rights of: drainer: delete on table xq_entry" in rights["found"]
    statement = f"grant delete on table {PLACE}.xq_entry to {quoted(drainer)}"
    assert rights["fix"].partition(": ")[2] == statement
    admin.execute(statement.encode())
    writer = sa.make_url(urls["writer"]).username or ""
    admin.execute(f"grant {quoted(writer)} to {quoted(drainer)}".encode())
    assert "has the rights of: writer and drainer;" in examined(urls["drainer"])["rights"]["found"]
    admin.execute(f"revoke {quoted(writer)} from {quoted(drainer)}".encode())
    admin.execute(f"grant execute on function {PLACE}.xq_commit_v1 to public".encode())
    found = examined(urls["reader"], status=1)["public rights"]
    assert found["fix"].endswith(f": revoke execute on function {PLACE}.xq_commit_v1 from public")
    owner.create()
    assert "public rights" not in examined(urls["reader"])
    admin.execute(f"grant create on schema {PLACE} to public".encode())
    found = examined(urls["writer"], status=1)["public rights"]
    admin.execute(found["fix"].partition(": ")[2].encode())
    assert "public rights" not in examined(urls["writer"])


def examined(url: str, *, status: int = 0) -> dict[str, dict[str, Any]]:
    told = run_cli("doctor", "--schema", SCHEMA, "--json", url=url, status=status, complaint=False)
    return {one["subject"]: one for one in json.loads(told)}


def test_a_store_in_sqlite_has_no_roles(sqlite_url: str) -> None:
    assert "expected application, writer, drainer or reader" in run_cli(
        "grants", "web", "app", url=sqlite_url, status=1
    )
    for name in ("", "public", "none", "n" * 64):
        assert "expected the name of one role of the database" in run_cli(
            "grants", "writer", name, url=sqlite_url, status=1
        )
    assert "expected PostgreSQL, found SQLite" in run_cli("grants", "writer", "app", url=sqlite_url, status=1)
