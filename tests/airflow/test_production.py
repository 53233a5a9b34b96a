"""The fifth journey, into production: each step of ``docs/production.md`` is followed or measured by a test."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.certificates import Authority, lend
from tests.support.environments import Environment
from tests.support.fixtures import private_or_skip
from tests.support.pages import DOCS, Shell, assert_tested, blocks_of, rows_of
from tests.support.servers import PostgresServer, find_postgres_programs
from tests.support.sessions import sessions_counted
from tests.support.waiting import wait_until

from export_queue import ApplyResult, MemorySink, Operations, SinkSpec, Store, StoreUnavailable, drain

Tests = dict[str, list[tuple[str, str]]]

HERE = "airflow/test_production.py"
JOURNEY = (HERE, "a_store_goes_into_production_in_the_order_of_the_page")
CONNECTIONS: Tests = {
    "web service, producer": [(HERE, "a_producer_keeps_some_connections_and_waits_at_the_limit")],
    "drain in an Airflow worker": [(HERE, "a_drain_keeps_a_few_connections")],
    "triggerer with any number of sensors and triggers": [
        ("airflow/test_trigger.py", "a_hundred_sensors_take_one_look_an_interval_and_two_connections"),
        ("airflow/test_deferred_drains.py", "a_person_who_ends_a_deferred_task_ends_its_driver"),
    ],
    "the page in the UI": [
        ("airflow/test_page.py", "pages_take_a_limited_number_of_connections_and_keep_none_of_them")
    ],
    "Spark: driver, and each running task": [
        ("spark/test_drain_job.py", "driver_and_tasks_keep_a_few_connections_to_the_store")
    ],
}
"""The tests of each row of the table "Connections of the database"."""
STEPS: Tests = {
    "size": [(HERE, "each_figure_about_sizes_is_one_of_its_benchmark")],
    "create the store": [JOURNEY],
    "give roles their rights": [JOURNEY, ("integration/test_roles.py", "a_role_may_not_do_what_is_for_others")],
    "choose the place of files": [
        (
            "integration/test_segments_on_s3.py",
            "bulk_entries_in_an_object_store_are_added_shown_drained_and_cleaned_up",
        ),
        ("unit/test_doctor.py", "a_place_of_segments_is_a_folder_that_can_be_used"),
    ],
    "count connections": [
        *(test for tests in CONNECTIONS.values() for test in tests),
        ("integration/test_registration.py", "eight_clients_share_three_sessions_behind_pgbouncer"),
    ],
    "define connections": [JOURNEY],
    "prepare Spark": [
        ("spark/test_clusters.py", "the_page_leads_from_an_empty_worker_to_the_first_drain"),
        (
            "spark/test_cluster_submissions.py",
            "yarn_is_given_the_archive_the_shipped_library_and_the_python_of_the_nodes",
        ),
        ("spark/test_cluster_submissions.py", "kubernetes_is_given_a_driver_whose_secrets_are_references"),
        ("airflow/test_spark_on_clusters.py", "a_cluster_mode_gets_no_path_of_this_machine_and_no_password"),
    ],
    "check": [JOURNEY],
    "watch": [
        ("unit/test_monitoring_files.py", "prometheus_accepts_the_rules_and_fires_them"),
        ("unit/test_monitoring_files.py", "the_dashboard_asks_for_what_exists"),
        ("airflow/test_page.py", "airflow_mounts_the_page_and_lists_it_in_the_menu"),
    ],
    "back up": [JOURNEY],
    "prove": [("airflow/test_examples.py", "nightly_verify")],
}
"""The tests of each step of the first table."""


def _steps() -> dict[str, str]:
    """The first table of docs/production.md: what each step says to do."""
    rows = rows_of("production.md", "Take it to production")
    return {row[0].partition(" ")[2]: " ".join(row[1:]) for row in rows}


def _numbers(process: str) -> list[int]:
    """How many connections a process keeps, and how many it takes at most: the first numbers in cells of its row."""
    (row,) = [row for row in rows_of("production.md", "Connections of the database") if row[0] == process]
    return [int(re.findall(r"\d+", cell)[0]) for cell in row[1:]]


# -- every step has a test ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heading", "expected"), [("Take it to production", STEPS), ("Connections of the database", CONNECTIONS)]
)
def test_each_step_and_each_kind_of_process_has_a_test(heading: str, expected: Tests) -> None:
    rows = [row[0] for row in rows_of("production.md", heading)]
    assert [re.sub(r"^\d+\. ", "", row) for row in rows] == list(expected)
    assert_tested(test for tests in expected.values() for test in tests)


def test_the_steps_into_production_are_in_an_order_that_works() -> None:
    steps = [*_steps()]
    for earlier, later in (
        ("create the store", "give roles their rights"),
        ("give roles their rights", "define connections"),
        ("define connections", "check"),
        ("check", "watch"),
        ("watch", "back up"),
        ("back up", "prove"),
    ):
        assert steps.index(earlier) < steps.index(later)


# -- sizes -------------------------------------------------------------------------------------------------------------


def _rates(text: str) -> list[float]:
    """Find rates such as ``5,000 commits/s``, ``582 k entries/s`` and ``3,124/s``."""
    found = re.findall(r"([\d,.]+)(?: or ([\d,.]+))?( k)?(?: \w+)?/s\b| with \d+ client", text)
    return [
        float(number.replace(",", "")) * (1000 if thousands else 1)
        for *numbers, thousands in found
        for number in numbers
        if number
    ]


def test_each_figure_about_sizes_is_one_of_its_benchmark() -> None:
    """A rate on the page may be rounded. That each benchmark can be run, ``test_benchmarks.py`` shows."""
    page = (DOCS / "performance.md").read_text("utf-8")
    figures = dict(re.findall(r"<!-- figures of (\w+) -->(.*?)<!-- end -->", page, re.DOTALL))
    for heading in ("What an entry costs", "How it grows"):
        rows = rows_of("scale.md", heading)
        assert rows
        for row in rows:
            names = re.findall(r"`(\w+)`", row[-1])
            assert names, f"{row[0]}: no benchmark"
            assert set(names) <= figures.keys(), f"{row[0]}: an unknown benchmark"
            measured = [rate for name in names for rate in _rates(figures[name])]
            for rate in _rates(" ".join(row[1:-1])):
                assert any(abs(rate - one) <= 0.03 * one for one in measured), f"{row[0]}: {rate:g}/s is not in {names}"


# -- connections of the database ---------------------------------------------------------------------------------------


def test_a_producer_keeps_some_connections_and_waits_at_the_limit(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeps, most = _numbers("web service, producer")
    more = 5

    def add(number: int) -> None:
        store.run(lambda tx: tx.queue("orders").add(str(number), number))

    with sessions_counted(postgres_url) as sessions:
        with (
            Store.open(postgres_url) as store,
            ThreadPoolExecutor(most + more) as threads,
            psycopg.connect(postgres_url.replace("+psycopg", "")) as other,
        ):
            store.create()
            store.configure_queue("orders")
            other.execute("lock table export_queue.xq_entry in access exclusive mode")
            work = [threads.submit(add, number) for number in range(most)]
            wait_until(lambda: sessions() == most, "not every thread has taken a connection")
            with monkeypatch.context() as patch:
                patch.setattr(store.database.engine.pool, "_timeout", 0.05)  # instead of half a minute
                refused = threads.submit(add, most)
                wait_until(refused.done, "more connections are taken")
                with pytest.raises(StoreUnavailable, match="all connections of this process are taken"):
                    refused.result()
            assert sessions() == most
            work += [threads.submit(add, number) for number in range(most, most + more)]
            other.rollback()
            for one in work:
                one.result()
            wait_until(lambda: sessions() == keeps, "more connections are kept, or fewer")
            assert sum(unit.entries for unit in store.backlog("orders")) == most + more
        wait_until(lambda: sessions() == 0, "a closed store has kept connections")


def test_a_drain_keeps_a_few_connections(postgres_url: str) -> None:
    keeps, _ = _numbers("drain in an Airflow worker")
    seen = []

    class Watched(MemorySink):
        def apply(self, operations: Operations) -> ApplyResult:
            seen.append(sessions())
            return super().apply(operations)

    with Store.open(postgres_url) as producer:
        producer.create()
        producer.configure_queue("orders", buckets=20, buckets_per_range=1)
        producer.run(lambda tx: [tx.queue("orders").add(str(key), key) for key in range(30_000)])
    with sessions_counted(postgres_url) as sessions, Store.open(postgres_url) as store:
        wait_until(lambda: sessions() == 0, "the producer has kept connections")
        assert drain(store, "orders", Watched(name="memory")).acknowledged == 30_000
        seen.append(sessions())
    assert 1 <= max(seen) <= keeps


# -- the journey -------------------------------------------------------------------------------------------------------

USE = "--password env:STORE_PASSWORD"


@dataclass(frozen=True)
class Certified:
    """A server that accepts no session without TLS, and files of certificate authorities."""

    server: PostgresServer
    authority: Path
    foreign: Path
    """An authority that did not issue the server's certificate."""


@pytest.fixture
def certified() -> Iterator[Certified]:
    """A PostgreSQL server with TLS of one test alone."""
    with tempfile.TemporaryDirectory(prefix="export-queue-tls-") as made:
        folder = Path(made)
        folder.chmod(0o755)  # the server does not run as root
        for name in ("own", "foreign"):
            (folder / name).mkdir()
        own, foreign = Authority(folder / "own"), Authority(folder / "foreign")
        certificate = lend(own.issue("server"), folder)
        rules = folder / "rules"
        rules.write_text("local all all scram-sha-256\nhostssl all all all scram-sha-256\n")
        rules.chmod(0o644)
        settings = {
            "ssl": "on",
            "ssl_cert_file": str(certificate),
            "ssl_key_file": str(certificate.with_suffix(".key")),
            "hba_file": str(rules),
        }
        for server in private_or_skip(lambda: PostgresServer(settings)):
            yield Certified(server, own.certificate, foreign.certificate)


def _administer(server: PostgresServer, database: str, *statements: str) -> None:
    with psycopg.connect(server.url(database).replace("+psycopg", ""), autocommit=True) as owner:
        for statement in statements:
            owner.execute(statement.encode())


def _grants() -> str:
    """The statements of docs/operations.md that give an application its rights."""
    (block,) = [
        block
        for block in blocks_of("operations.md")
        if block.heading == "Give roles their rights" and re.search(r"^grant ", block.text, re.MULTILINE)
    ]
    return block.text


def _dump_and_restore() -> tuple[str, str]:
    """The two commands of docs/backups.md for PostgreSQL."""
    (block,) = [block for block in blocks_of("backups.md", "text") if "pg_dump" in block.text]
    dump, restore = block.text.splitlines()
    return dump, restore


def _use_programs_of(server: PostgresServer, shell: Shell) -> None:
    """Let ``psql`` and its siblings reach a server."""
    shell.variables |= {
        "PGHOST": server.host,
        "PGPORT": str(server.port),
        "PGUSER": server.user,
        "PGPASSWORD": server.password,
        "PATH": f"{find_postgres_programs()}{os.pathsep}{shell.variables['PATH']}",
    }


@pytest.mark.full("the command line starts twenty times, and a server of PostgreSQL")
@pytest.mark.timeout(600)
def test_a_store_goes_into_production_in_the_order_of_the_page(shell: Shell, certified: Certified) -> None:
    steps = _steps()
    server = certified.server
    (demand,) = re.findall(
        r"'postgresql://exports@db.example/dwh(\?\S+)'", blocks_of("connections.md", "console")[0].text
    )
    assert "sslmode=verify-full" in demand
    tls = demand.replace("sslrootcert=system", f"sslrootcert={certified.authority}")
    address = f"{server.host}:{server.port}/app{tls}"

    def as_role(role: str) -> None:
        shell.variables["EXPORT_QUEUE_STORE"] = f"postgresql://{role}@{address}"

    def run(step: str, command: str, more: str = "", **options: Any) -> str:
        assert f"`{command}`" in steps[step] or command in steps[step], f"step {step} no longer says {command}"
        return shell.run(f"{command} {USE} {more}", **options)

    roles = ("app", "shop", "carrier", "exports")
    _administer(
        server,
        "postgres",
        *(f"create role {role} login password '{server.password}'" for role in roles),
        "create database app",
        "create database dwh owner exports",
    )
    shell.variables |= {"STORE_PASSWORD": server.password}
    target = f"postgresql+psycopg://exports@{server.host}:{server.port}/dwh{tls}"
    description = {"kind": "sql", "options": {"url": target}, "secrets": {"password": "env:STORE_PASSWORD"}}
    (shell.folder / "copies.json").write_text(json.dumps(description | {"name": "warehouse"}))

    as_role(server.user)
    assert "is ready" in run("create the store", "export-queue init")
    as_role("app")
    told = run("check", "export-queue doctor", status=1)
    assert "grant " in told, "the doctor names the statements"
    _administer(server, "app", _grants())
    told = run("check", "export-queue doctor", "--sink copies.json")
    assert "0 errors" in told
    assert re.search(r"ok +sink warehouse", told)

    shell.run(f"export-queue configure products --state {USE}")
    as_role(server.user)
    for kind, role in (("writer", "shop"), ("drainer", "carrier")):
        assert "`export-queue grants`" in steps["give roles their rights"]
        _administer(server, "app", shell.run(f"export-queue grants {kind} {role} {USE}"))
    as_role("shop")
    shell.run(f"""export-queue add products 1 '{{"price": 5}}' {USE}""")
    assert "permission" in shell.run(f"export-queue drain products --sink copies.json {USE}", status=1)
    as_role("carrier")
    _connections_of_a_secrets_backend_reach_store_and_sink(shell, certified, f"postgresql://carrier@{address}")
    as_role("app")
    shell.run(f"""export-queue add products 2 '{{"price": 6}}' {USE}""")
    assert 'export_queue_queue_entries{queue="products"} 1' in shell.run(f"export-queue metrics {USE}")

    _a_backup_is_restored(shell, server, as_role)

    told = shell.run(f"export-queue drain products --sink copies.json {USE}")
    assert "1 acknowledged" in told
    assert "no differences" in shell.run(f"export-queue verify products --sink copies.json {USE}")
    with psycopg.connect(server.url("dwh").replace("+psycopg", "")) as copies:
        assert copies.execute("select id from products_live order by id").fetchall() == [("1",), ("2",)]


def _connections_of_a_secrets_backend_reach_store_and_sink(shell: Shell, certified: Certified, store: str) -> None:
    """Define connections as the pages show them, in a file of a backend; a demand for TLS is obeyed."""
    server = certified.server
    (shown,) = re.findall(
        r"^AIRFLOW_CONN_WAREHOUSE='(.*?)'$", blocks_of("connections.md")[0].text, re.DOTALL | re.MULTILINE
    )
    warehouse = json.loads(shown)
    assert warehouse["extra"]["sslmode"] == "verify-full"
    warehouse |= {"host": server.host, "port": server.port, "password": server.password}

    def trusting(authority: Path) -> dict[str, Any]:
        return warehouse | {"extra": warehouse["extra"] | {"sslrootcert": str(authority)}}

    (block,) = [block for block in blocks_of("airflow.md", "bash") if block.heading == "Connections"]
    (shown, *_) = re.findall(r"^AIRFLOW_CONN_EXPORT_QUEUE_DEFAULT='(.*)'$", block.text, re.MULTILINE)
    kept = {
        "export_queue_default": json.loads(shown) | {"host": store, "password": server.password},
        "warehouse": trusting(certified.authority),
        "stranger": trusting(certified.foreign),
    }
    (shell.folder / "connections.json").write_text(json.dumps(kept))
    shell.variables |= {
        "AIRFLOW__SECRETS__BACKEND": "airflow.secrets.local_filesystem.LocalFilesystemBackend",
        "AIRFLOW__SECRETS__BACKEND_KWARGS": json.dumps(
            {"connections_file_path": str(shell.folder / "connections.json")}
        ),
    }
    password = shell.variables.pop("STORE_PASSWORD")
    doctor = "export-queue doctor --store export_queue_default --sink"
    told = shell.run(f"{doctor} warehouse")
    assert "0 errors" in told
    assert re.search(r"ok +sink warehouse", told)
    refused = shell.run(f"{doctor} stranger", status=1)
    assert re.search(r"error +sink stranger: .*certificate verify failed", refused, re.DOTALL)
    drained = shell.run("export-queue drain products --store export_queue_default --sink warehouse")
    assert "1 acknowledged" in drained
    assert server.password not in told + refused + drained
    shell.variables["STORE_PASSWORD"] = password


def _a_backup_is_restored(shell: Shell, server: PostgresServer, as_role: Callable[[str], None]) -> None:
    """Follow docs/backups.md for PostgreSQL: dump, lose the schema, restore, adopt, and grant again."""
    dump, restore = _dump_and_restore()
    _use_programs_of(server, shell)
    shell.run(dump)
    shell.run('psql --quiet --dbname=app --command="drop schema export_queue cascade"')
    shell.run(restore)
    as_role(server.user)
    shell.run(f"export-queue adopt {USE}")
    as_role("app")


# -- an upgrade --------------------------------------------------------------------------------------------------------

TABLE = 'note = _table("xq_note", _int("number", primary_key=True))\n'
EXPANDS = """MIGRATIONS: tuple[Migration, ...] = (
    Migration(
        to_schema=2,
        oldest_code=1,
        tables=("xq_queue",),
        statements={"postgresql": ("alter table {s}xq_queue add column note text",)},
    ),
)
"""
NEXT_RELEASE = {
    "schema": [
        ("SCHEMA_VERSION = 1\n", "SCHEMA_VERSION = 2\n"),
        ("OLDEST_SCHEMA = 1\n", "OLDEST_SCHEMA = 2\n"),
        ("cleanup = _table(\n", f"{TABLE}cleanup = _table(\n"),
    ],
    "migration": [("MIGRATIONS: tuple[Migration, ...] = ()\n", EXPANDS)],
    "roles": [("_DRAINER: dict[str, str] = {\n", '_DRAINER: dict[str, str] = {\n    "xq_note": "select",\n')],
}
"""What a release that expands the schema changes in modules of ``core/store``. It cannot use a store of schema 1."""


@pytest.fixture
def next_release(wheel_environment: Environment, tmp_path: Path) -> Path:
    """A folder with the library of a made-up next release, which a program imports if it is on ``PYTHONPATH``."""
    (source,) = wheel_environment.folder.glob("lib/python*/site-packages/export_queue")
    folder = tmp_path / "next-release"
    shutil.copytree(source, folder / "export_queue")
    for module, changes in NEXT_RELEASE.items():
        path = folder / "export_queue" / "core" / "store" / f"{module}.py"
        text = path.read_text("utf-8")
        for old, new in changes:
            assert text.count(old) == 1, f"{module} no longer has {old!r}"
            text = text.replace(old, new)
        path.write_text(text, "utf-8")
    return folder


@pytest.mark.full("the command line starts ten times, and a server of PostgreSQL")
@pytest.mark.timeout(600)
def test_an_upgrade_in_the_order_of_the_page_works_while_old_programs_continue(
    shell: Shell, own_server: PostgresServer, next_release: Path, tmp_path: Path
) -> None:
    """This process is a program of the version before; the shell runs the next one."""
    server = own_server
    page = (DOCS / "production.md").read_text("utf-8").partition("## Upgrade\n")[2]
    read, back_up, init, grants, programs, check = re.findall(
        r"^\d\. (.*?)(?=^\d\. |\Z)", page, re.DOTALL | re.MULTILINE
    )
    for step, text in (
        (read, "changelog"),
        (back_up, "Back up"),
        (init, "`export-queue init`"),
        (grants, "`export-queue grants`"),
        (programs, "Upgrade the programs"),
        (check, "`export-queue doctor`, then one drain and one verify"),
    ):
        assert text in step

    roles = ("app", "carrier")
    _administer(
        server,
        "postgres",
        *(f"create role {role} login password '{server.password}'" for role in roles),
        "create database app",
    )
    sink = SinkSpec("sql", {"url": f"sqlite:///{tmp_path}/copies.db"}, name="copies")
    (shell.folder / "copies.json").write_text(sink.to_json())

    def url(role: str) -> str:
        return f"postgresql://{role}:{server.password}@{server.host}:{server.port}/app"

    def new(command: str, role: str, **options: Any) -> str:
        shell.variables |= {"EXPORT_QUEUE_STORE": url(role).replace(f":{server.password}", "")}
        return shell.run(f"{command} {USE}", **options)

    def add(key: str) -> None:
        old.run(lambda tx: tx.queue("products").add(key, {"price": 5}))

    with Store.open(server.url("app")) as owner:
        owner.create()
        owner.configure_queue("products", state=True)
    _administer(server, "app", _grants())
    _use_programs_of(server, shell)
    shell.variables |= {"STORE_PASSWORD": server.password, "PYTHONPATH": str(next_release)}
    with Store.open(url("app")) as old:
        add("1")
        assert drain(old, "products", sink).acknowledged == 1
        add("2")
        told = new("export-queue doctor", "app", status=1)
        assert "export-queue init" in told, "a program of the next release does not start before the store is upgraded"

        shell.run(_dump_and_restore()[0])
        assert "schema version 2" in new("export-queue init", server.user)
        add("3")
        lacking = new("export-queue doctor", "app", status=1)
        assert "xq_note" in lacking
        for kind, role in (("application", "app"), ("drainer", "carrier")):
            _administer(server, "app", new(f"export-queue grants {kind} {role}", server.user))

        for role in roles:
            assert "0 errors" in new("export-queue doctor --sink copies.json", role)
        new("""export-queue add products 4 '{"price": 6}'""", "app")
        assert "3 acknowledged" in new("export-queue drain products --sink copies.json", "carrier")
        add("5")
        with Store.open(url("carrier")) as started_later:
            assert drain(started_later, "products", sink).acknowledged == 1
        assert "no differences" in new("export-queue verify products --sink copies.json", "app")
