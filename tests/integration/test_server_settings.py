"""What an administrator sets for a role, a database or a server: stores and SQL sinks work, or say what to change."""

from __future__ import annotations

import contextlib
import secrets
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.engine.default import DefaultExecutionContext
from tests.support.mariadb import MariaDbServer
from tests.support.servers import PostgresServer
from tests.support.sql_targets import Make, admit, execute, opened_sinks, puts, url_of
from tests.support.waiting import wait_until

from export_queue import ConfigurationError, MemorySink, Put, SinkConfigurationError, SqlSink, Store, drain

DOCUMENT = {"a": "é'\\%", "n": 1.5, "t": "2026-01-02T03:04:05+05:30", "b": True, "i": 7}
FIELDS = {"a": "text", "n": "numeric", "t": "timestamp", "b": "boolean", "i": "integer"}
SETTINGS_OF_POSTGRESQL = (
    "quote_all_identifiers=on",
    "standard_conforming_strings=off",
    "backslash_quote=off",
    "DateStyle='German, DMY'",
    "IntervalStyle=sql_standard",
    "bytea_output=escape",
    "extra_float_digits=-15",
    "TimeZone='Asia/Kolkata'",
    "default_transaction_deferrable=on",
    "row_security=off",
    "client_encoding=LATIN1",
    "synchronous_commit=off",
    "array_nulls=off",
    "transform_null_equals=on",
    "session_replication_role=replica",
)
SETTINGS_OF_MARIADB: Mapping[str, Any] = {
    "innodb_default_row_format": "compact",
    "sql_quote_show_create": 0,
    "sql_safe_updates": 1,
    "innodb_force_primary_key": 1,
    "innodb_strict_mode": 1,
    "autocommit": 0,
    "time_zone": "+05:30",
    "tx_isolation": "SERIALIZABLE",
    "completion_type": "RELEASE",
    "max_join_size": 1,
    "character_set_server": "latin1",
}
MODES = ("ANSI,TRADITIONAL", "ORACLE,NO_BACKSLASH_ESCAPES")


@pytest.fixture
def make() -> Iterator[Make]:
    yield from opened_sinks()


def set_for_database(url: str, *settings: str) -> None:
    for setting in settings:
        execute(url, f'ALTER DATABASE "{make_url(url).database}" SET {setting.replace("%", "%%")}')


def use_store(url: str) -> None:
    with Store.open(url) as store:
        store.create()
        store.create()
        store.configure_table("t")
        store.configure_queue("q", buckets=4)
        for turn in range(8):  # the driver prepares what is run six times
            with store.transaction() as tx:
                assert (tx.table("t").get("r", "n") is None) == (turn == 0)
                tx.table("t").set("r", "n", b"%d'\\\xff" % turn)
                tx.queue("q").add(f"k'\\{turn}", DOCUMENT)
        with store.transaction(long=True) as tx:
            tx.table("t").set("r", "m", b"1")
            tx.flush()
            tx.queue("q").add("long", None)
        with contextlib.suppress(InterruptedError), store.transaction(long=True) as tx:
            tx.table("t").set("r", "m", b"2")
            tx.flush()
            raise InterruptedError
        assert drain(store, "q", MemorySink()).acknowledged == 9
        store.maintain()
        store.adopt()
        with store.transaction() as tx:
            assert tx.table("t").get("r", "n") == b"7'\\\xff"


def use_sinks(url: str, folder: Any) -> None:
    """Write by both guards, as documents and as fields, update, delete and sweep."""
    with Store.open(f"sqlite:///{folder}/{secrets.token_hex(4)}.db") as store:
        store.create()
        for guard in ("seq", "fence"):
            for columns in (None, FIELDS):
                queue = f"{guard}_{'documents' if columns is None else 'fields'}"
                store.configure_queue(queue)
                sink = SqlSink(url, table="T_$collection", columns=columns, guard=guard, timeout=10)  # type: ignore[arg-type]
                for value in (DOCUMENT, {**DOCUMENT, "i": 8}):
                    with store.transaction() as tx:
                        for number in range(3):
                            tx.queue(queue).add(f"k'\\%{number}", value)
                    report = drain(store, queue, sink, on_error="fail")
                    assert (report.acknowledged, report.dead) == (3, 0)
                with store.transaction() as tx:
                    tx.queue(queue).add("k'\\%0", None)
                assert drain(store, queue, sink, on_error="fail").acknowledged == 1
                if guard == "seq" and columns is not None:
                    store.sweep_sink(sink)
                sink.close()


def test_settings_of_a_postgresql_database_change_nothing_in_a_store(postgres_url: str) -> None:
    set_for_database(postgres_url, *SETTINGS_OF_POSTGRESQL)
    use_store(postgres_url)


def test_settings_of_a_postgresql_database_change_nothing_in_sinks(postgres_url: str, tmp_path: Any) -> None:
    set_for_database(postgres_url, *SETTINGS_OF_POSTGRESQL)
    use_sinks(postgres_url, tmp_path)
    read = """SELECT id, a, n, t = '2026-01-01 21:34:05+00', b, i FROM "{}" ORDER BY id"""
    for table in ("T_seq_fields_live", "T_fence_fields"):
        found = execute(postgres_url, read.format(table))
        assert [(*row[:2], float(row[2]), *row[3:]) for row in found] == [
            (f"k'\\%{number}", "é'\\%", 1.5, True, True, 8) for number in (1, 2)
        ]


@pytest.mark.parametrize("schema", ["elsewhere", ""])
def test_a_search_path_that_leads_nowhere_needs_the_name_of_a_schema(postgres_url, make, schema):
    set_for_database(postgres_url, f"search_path='{schema}'")
    use_store(postgres_url)
    sink = admit(make(postgres_url, table="public.$collection"))
    assert sink.apply(puts(b"1")).written == 1


@pytest.fixture(scope="module")
def set_mariadb() -> Iterator[MariaDbServer]:
    """A server whose administrator has set everything."""
    try:
        server = MariaDbServer({"lower-case-table-names": "1"})
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    with server:
        address = {"host": server.host, "port": server.port, "user": server.user, "password": server.password}
        with pymysql.connect(**address, ssl_disabled=True) as connection, connection.cursor() as cursor:
            for name, value in SETTINGS_OF_MARIADB.items():
                cursor.execute(f"SET GLOBAL {name} = %s", (value,))
        yield server


@pytest.mark.parametrize("mode", MODES)
def test_settings_of_a_mariadb_server_change_nothing(set_mariadb: MariaDbServer, tmp_path: Any, mode: str) -> None:
    server = set_mariadb
    url = server.url(server.create_database())
    address = {"host": server.host, "port": server.port, "user": server.user, "password": server.password}
    with pymysql.connect(**address, ssl_disabled=True) as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL sql_mode = %s", (mode,))
    use_sinks(url, tmp_path)
    address["database"] = make_url(url).database
    with pymysql.connect(**address, ssl_disabled=True) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_big_selects = 1")
        cursor.execute("SELECT id, a, n, t, b, i FROM T_fence_fields ORDER BY id")
        found = [(*row[:2], float(row[2]), str(row[3]), *row[4:]) for row in cursor.fetchall()]
    assert found == [(f"k'\\%{number}", "é'\\%", 1.5, "2026-01-01 21:34:05", 1, 8) for number in (1, 2)]


# --- publications -----------------------------------------------------------------------------------------------------


def test_a_publication_of_all_tables_forbids_nothing(postgres_url: str, tmp_path: Any) -> None:
    execute(postgres_url, "CREATE PUBLICATION everything FOR ALL TABLES")
    use_store(postgres_url)
    use_sinks(postgres_url, tmp_path)
    without_identity = """
        SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.relkind IN ('r', 'p') AND n.nspname IN ('public', 'export_queue') AND NOT EXISTS (
             SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate AND i.indisvalid)"""
    assert execute(postgres_url, without_identity) == []


# --- encodings --------------------------------------------------------------------------------------------------------


@pytest.fixture
def database_of(postgres_server: PostgresServer) -> Iterator[Any]:
    """Makes databases of an encoding."""
    made: list[str] = []

    def create(encoding: str) -> str:
        made.append(f"test_{secrets.token_hex(6)}")
        url = postgres_server.url()
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(
                f"CREATE DATABASE {made[-1]} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'".encode()
            )
        return postgres_server.url(made[-1])

    yield create
    for name in made:
        postgres_server.drop_database(name)


@pytest.mark.parametrize("encoding", ["LATIN1", "EUC_JP", "SQL_ASCII", "WIN1252"])
def test_a_store_refuses_a_database_that_does_not_hold_every_text(database_of: Any, encoding: str) -> None:
    url = database_of(encoding)
    with Store.open(url) as store:
        with pytest.raises(ConfigurationError, match=f"expected the encoding UTF8.*found {encoding}") as caught:
            store.create()
        assert "ENCODING 'UTF8'" in caught.value.hint
        with pytest.raises(ConfigurationError, match="expected the encoding UTF8"):
            store.configure_queue("q")
    with psycopg.connect(url.replace("+psycopg", ""), client_encoding="UTF8") as connection:
        found = connection.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'export_queue'").fetchone()
    assert found == (0,)


def test_a_text_that_a_sinks_database_does_not_have_is_rejected_with_the_reason(database_of, make):
    sink = admit(make(database_of("LATIN1")))
    result = sink.apply(puts("é".encode(), "€".encode()))
    assert (result.written, [one.position for one in result.rejected]) == (1, [1])
    assert "LATIN1" in result.rejected[0].reason
    ((document),) = sink.apply(puts(b"other", document="€".encode())).rejected
    assert "LATIN1" in document.reason


def test_texts_of_a_sink_whose_database_has_no_encoding_stay_as_they_are(database_of, make):
    url = database_of("SQL_ASCII")
    sink = admit(make(url))
    assert sink.apply(puts("€".encode(), document="日本".encode())).written == 1
    assert execute(f"{url}?client_encoding=UTF8", "SELECT id, document FROM orders_live") == [("€", "日本")]


def test_a_sink_refuses_an_encoding_in_which_two_ids_are_one(database_of, make):
    sink = admit(make(database_of("EUC_JP")))
    with pytest.raises(SinkConfigurationError, match="encoding EUC_JP, which treats different characters as one"):
        sink.apply(puts("¦".encode(), "￤".encode()))


@pytest.mark.parametrize("kind", ["environment", "role"])
def test_the_encoding_of_a_client_changes_no_text(postgres_url, make, monkeypatch, kind):
    url = postgres_url
    if kind == "environment":
        monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    else:
        set_for_database(url, "client_encoding=SQL_ASCII")
    with Store.open(url) as store:
        store.create()
        store.configure_queue("q")
        assert store.run(lambda tx: "naïve €", idempotency_key="café €") == "naïve €"
        assert store.idempotency("café €").result == "naïve €"
    assert admit(make(url)).apply(puts("€".encode())).written == 1
    monkeypatch.delenv("PGCLIENTENCODING", raising=False)
    assert execute(f"{postgres_url}?client_encoding=UTF8", "SELECT id FROM orders_live") == [("€",)]


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path) -> str:
    return url_of(request, tmp_path)


# --- tables that cannot be sinks --------------------------------------------------------------------------------------

PART = "CREATE UNLOGGED TABLE part PARTITION OF orders FOR VALUES WITH (MODULUS 1, REMAINDER 0)"
RANKS = '"_rank" bigint NOT NULL DEFAULT -1, "_deleted" boolean NOT NULL DEFAULT false'


@pytest.mark.parametrize(
    ("kind", "table", "problem"),
    [
        (
            "postgresql",
            f'CREATE TABLE orders ("id" text PRIMARY KEY, "document" text GENERATED ALWAYS AS (\'x\') STORED, {RANKS})',
            "column document is generated from other columns",
        ),
        (
            "mariadb",
            f'CREATE TABLE orders ("id" text PRIMARY KEY, "document" text AS (\'x\') STORED, {RANKS})',
            "column document is generated from other columns",
        ),
        (
            "sqlite",
            f'CREATE TABLE orders ("id" text PRIMARY KEY, "document" text AS (\'x\') STORED, {RANKS})',
            "column document is generated from other columns",
        ),
        (
            "sqlite",
            f'CREATE TABLE orders ("id" text PRIMARY KEY, "document" text AS (\'x\') VIRTUAL, {RANKS})',
            "column document is generated from other columns",
        ),
        (
            "postgresql",
            f'CREATE TABLE orders ("id" text PRIMARY KEY DEFERRABLE, "document" text, {RANKS})',
            "primary key of orders is DEFERRABLE",
        ),
        (
            "postgresql",
            f'CREATE TABLE orders ("id" text PRIMARY KEY, "document" text, {RANKS}, EXCLUDE ("document" WITH =))',
            r"exclusion constraints \(orders_document_excl\)",
        ),
        (
            "postgresql",
            f'CREATE UNLOGGED TABLE orders ("id" text PRIMARY KEY, "document" text, {RANKS})',
            "orders is UNLOGGED or temporary",
        ),
        (
            "postgresql",
            f'CREATE TABLE orders ("id" text PRIMARY KEY, "document" text, {RANKS}) PARTITION BY HASH ("id");{PART}',
            "part is UNLOGGED or temporary",
        ),
    ],
)
def test_a_table_that_cannot_be_written_is_refused_before_the_first_batch(
    request, tmp_path, make, kind, table, problem
):
    request.param = kind
    url = url_of(request, tmp_path)
    execute(url, *table.split(";"))
    sink = make(url, table="orders")
    with pytest.raises(SinkConfigurationError, match=problem):
        admit(sink)


def test_an_identity_that_takes_no_value_is_refused_and_one_that_does_is_written(postgres_url, make):
    for kind in ("ALWAYS", "BY DEFAULT"):
        name = kind.split()[0].lower()
        execute(
            postgres_url,
            f'CREATE TABLE {name} ("id" bigint GENERATED {kind} AS IDENTITY PRIMARY KEY, "document" text, {RANKS})',
        )
    refused = make(postgres_url, key={"id": "integer"}, table="always")
    with pytest.raises(SinkConfigurationError, match="column id is GENERATED ALWAYS AS IDENTITY"):
        admit(refused)
    assert admit(make(postgres_url, key={"id": "integer"}, table="by")).apply(puts(b"1")).written == 1


def test_a_column_in_another_case_is_named_as_the_table_has_it(url, make):
    execute(url, f'CREATE TABLE orders ("id" text PRIMARY KEY, "name" text, {RANKS})')
    with pytest.raises(SinkConfigurationError, match="columns in another case: Name exists as name"):
        admit(make(url, table="orders", columns=["Name"]))
    with pytest.raises(SinkConfigurationError, match="each of them once, whatever its case"):
        make(url, columns=["name", "Name"])


@pytest.mark.parametrize("queue", ["q" * 59, "q" * 64])
def test_a_queue_whose_id_no_table_can_have_leaves_no_dead_letters(url, make, tmp_path, queue):
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        store.create()
        store.configure_queue(queue)
        with store.transaction() as tx:
            tx.queue(queue).add("k", {"a": 1})
        with pytest.raises(SinkConfigurationError, match="expected 1 to 58 of letters") as caught:
            drain(store, queue, make(url))
        assert "table=" in caught.value.hint
        assert sum(part.entries for part in store.backlog(queue)) == 1
        assert drain(store, queue, make(url, table="short")).acknowledged == 1


def test_a_name_of_digits_that_became_a_number_is_explained(url, make):
    with pytest.raises(SinkConfigurationError, match="found 2026") as caught:
        make(url, table=2026)
    assert "native objects" in caught.value.hint
    assert admit(make(url, table="2026")).apply(puts(b"1")).written == 1


# --- alarms -----------------------------------------------------------------------------------------------------------


class TimeIsUp(Exception):
    """What the handler of a user's alarm raises."""


@pytest.fixture
def strike(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Make an alarm go off while SQLAlchemy prepares a statement, the given number of statements from now."""

    def handler(number: int, frame: Any) -> None:
        raise TimeIsUp("time is up")

    before = signal.signal(signal.SIGALRM, handler)
    left = [-1]

    def prepared(name: str) -> Any:
        made = getattr(DefaultExecutionContext, name).__func__

        def prepare(cls: type, *arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                signal.raise_signal(signal.SIGALRM)
            return made(cls, *arguments, **options)

        return classmethod(prepare)

    for name in ("_init_compiled", "_init_statement", "_init_ddl"):
        monkeypatch.setattr(DefaultExecutionContext, name, prepared(name))
    yield lambda statements: left.__setitem__(0, statements)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("url", ["postgresql", "mariadb"], indirect=True)
def test_an_alarm_that_a_driver_takes_for_a_lost_connection_ends_the_drain(url: str, make: Make, tmp_path: Any) -> None:
    """Python drops what a handler raises in a callback of a weak reference: the alarm strikes in the wait."""
    of_the_sink = (
        "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        if url.startswith("postgresql")
        else "SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    )

    def handler(number: int, frame: Any) -> None:
        raise TimeoutError("of the alarm")

    def strike_when_the_sink_waits() -> None:
        # MariaDB shows an old state to whoever asks again within a tenth of a second.
        wait_until(lambda: execute(url, of_the_sink), "the sink does not wait for the row", pause=0.3)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        store.create()
        store.configure_queue("orders")
        sink, other = make(url), create_engine(url)
        for value in ({"a": 1}, {"a": 2}):
            with store.transaction() as tx:
                tx.queue("orders").add("k", value)
            if value == {"a": 1}:
                assert drain(store, "orders", sink).acknowledged == 1
        before = signal.signal(signal.SIGALRM, handler)
        try:
            with other.begin() as connection:
                connection.exec_driver_sql("SELECT id FROM orders FOR UPDATE")
                striker = threading.Thread(target=strike_when_the_sink_waits)
                striker.start()
                with pytest.raises(TimeoutError, match="of the alarm"):
                    drain(store, "orders", sink)
                striker.join()
        finally:
            signal.signal(signal.SIGALRM, before)
            other.dispose()
        assert drain(store, "orders", sink).acknowledged == 1


def test_an_alarm_that_strikes_in_an_exporter_or_a_sink_leaves_no_dead_letter(store: Store, strike: Any) -> None:
    class Slow(MemorySink):
        def apply(self, operations: Any) -> Any:
            if "sink" in struck:
                signal.raise_signal(signal.SIGALRM)
            return super().apply(operations)

    def export(entry: Any) -> Any:
        if "exporter" in struck:
            signal.raise_signal(signal.SIGALRM)
        return [Put("q", entry.key, {"a": 1})]

    store.configure_queue("q")
    with store.transaction() as tx:
        tx.queue("q").add("k", 1)
    sink, struck = Slow(), [""]
    for struck[0] in ("exporter", "sink"):
        with pytest.raises(TimeIsUp):
            drain(store, "q", sink, exporter=export)
    struck.clear()
    report = drain(store, "q", sink, exporter=export)
    assert (report.acknowledged, report.dead) == (1, 0)


@pytest.mark.parametrize("statements", [1, 2, 4])
def test_the_exception_of_an_alarm_arrives_as_it_was_raised(url: str, make: Make, strike: Any, statements: int) -> None:
    sink = admit(make(url))
    strike(statements)
    with pytest.raises(TimeIsUp):
        sink.apply(puts(b"1"))
    assert sink.apply(puts(b"1")).written == 1


def test_the_exception_of_an_alarm_leaves_a_store_as_it_was_raised(store: Store, strike: Any) -> None:
    store.configure_queue("q")
    calls = {
        "configure": lambda: store.configure_queue("r"),
        "run": lambda: store.run(lambda tx: tx.queue("q").add("k", "v")),
        "backlog": lambda: store.backlog("q"),
        "drain": lambda: drain(store, "q", MemorySink()),
    }
    for name, call in calls.items():
        strike(1)
        with pytest.raises(TimeIsUp):
            call()
        strike(0)
        assert call() is not None or name == "run"
    assert store.backlog("q") == []
