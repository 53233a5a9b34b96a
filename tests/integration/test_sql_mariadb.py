"""What only MySQL and MariaDB do: sessions, character sets, packets, locks. Real server: MariaDB."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pymysql
import pytest
from sqlalchemy import make_url
from tests.support.mariadb import MariaDbServer
from tests.support.servers import free_port
from tests.support.sql_targets import Make, admit, execute, opened_sinks, puts
from tests.support.waiting import wait_until

from export_queue import (
    ApplyResult,
    Claim,
    ExportQueueError,
    Operations,
    Retry,
    SinkConfigurationError,
    SinkRefused,
    SinkUnavailable,
    SqlSink,
)
from export_queue.core.sinks.sql.dialects.mysql import MySqlDialect, _written

TABLE = (
    "CREATE TABLE orders (id varchar(99) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin PRIMARY KEY, "
    "document longtext CHARACTER SET utf8mb4, _rank bigint, _deleted boolean)"
)
SECRET = "hunter" + str(2)


@pytest.fixture
def make() -> Iterator[Make]:
    yield from opened_sinks()


@pytest.fixture
def own_url() -> Iterator[str]:
    """An empty database of a server of its own, for tests that change what is global."""
    with MariaDbServer() as server:
        yield server.url(server.create_database())


def connect(url: str) -> pymysql.Connection:
    parsed = make_url(url)
    return pymysql.connect(
        host=parsed.host, port=parsed.port, user=parsed.username, password=parsed.password, database=parsed.database
    )


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("utf8mb4_nopad_bin", "utf8mb4_bin", "utf8mb4_bin, which treats different ids as equal"),
        ("utf8mb4_nopad_bin", "utf8mb4_general_ci", "treats different ids as equal"),
        ("CHARACTER SET utf8mb4,", "CHARACTER SET latin1,", "character set latin1"),
        ("_deleted boolean)", "_deleted boolean) ENGINE = Aria", "engine is Aria"),
        ("PRIMARY KEY", "", "primary key"),
        ("_rank bigint", "_rank bigint unsigned", "expected bigint"),
        ("PRIMARY KEY,", ", PRIMARY KEY (id(9)),", "only the beginning of id"),
    ],
)
def test_a_table_that_cannot_hold_the_guarantees_is_refused(mariadb_url, make, old, new, problem):
    assert old in TABLE
    execute(mariadb_url, TABLE.replace(old, new))
    with pytest.raises(SinkConfigurationError, match=problem):
        admit(make(mariadb_url, table="orders"))


def test_a_binary_key_takes_ids_as_they_are(mariadb_url, make):
    execute(mariadb_url, TABLE.replace("varchar(99) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin", "varbinary(99)"))
    sink = admit(make(mariadb_url))
    assert sink.apply(puts("é".encode(), b"a", b"A", b"a ")).written == 4


def test_a_server_that_is_lenient_by_itself_is_strict_for_the_sink(own_url, make):
    execute(own_url, TABLE.replace("longtext", "varchar(3)"), "SET GLOBAL sql_mode = 'NO_BACKSLASH_ESCAPES'")
    try:
        sink = admit(make(own_url))
        batch = Operations(["orders"] * 2, [b"1", b"2"], [b"longer", b"\\'"], [5, 5], [0, 1])
        result = sink.apply(batch)
        assert (result.written, [one.position for one in result.rejected]) == (1, [0])
        assert "1406" in result.rejected[0].reason
        assert execute(own_url, "SELECT id, document FROM orders WHERE id <> 'xq_mark'") == [("2", "\\'")]
    finally:
        execute(own_url, "SET GLOBAL sql_mode = DEFAULT")


def test_an_id_that_is_too_long_for_the_index_is_rejected_alone(mariadb_url, make):
    result = admit(make(mariadb_url)).apply(puts(b"a" * 768, b"b" * 769, "🛫".encode() * 768, b"c" * 4000))
    assert (result.written, [rejection.position for rejection in result.rejected]) == (2, [1, 3])


def test_a_row_that_the_server_takes_in_no_packet_is_rejected_alone(make):
    with MariaDbServer({"max-allowed-packet": "1M"}) as server:
        url = server.url(server.create_database())
        sink = admit(make(url))
        documents = [b"x" * 400_000, b"y" * (1 << 20), b"'" * 400_000, b"z" * 900_000, b"w"]
        result = sink.apply(Operations(["orders"] * 5, [b"%d" % n for n in range(5)], documents, [5] * 5, range(5)))
        assert (result.written, [rejection.position for rejection in result.rejected]) == (4, [1])
        assert "max_allowed_packet" in result.rejected[0].reason
        assert execute(url, "SELECT sum(length(document)) FROM orders_live") == [(1_700_001,)]
        server.stop()
        with pytest.raises(SinkUnavailable):
            sink.apply(puts(b"1", seq=6))
        server.start()
        assert sink.apply(puts(b"1", seq=7)).written == 1


def test_rows_in_one_statement_are_counted_exactly(mariadb_url, make):
    sink = admit(make(mariadb_url))
    assert sink.apply(puts(b"a", b"b", b"c", seq=5)) == ApplyResult(3, 0)
    mixed = Operations(["orders"] * 4, [b"a", b"b", b"c", b"d"], [b"x", b"y", None, b"x"], [6, 5, 4, 1], range(4))
    assert sink.apply(mixed) == ApplyResult(2, 2)
    assert sink.apply(puts(b"a", seq=7)) == ApplyResult(1, 0)
    assert sink.apply(puts(b"a", seq=7, document=b"at one sequence")) == ApplyResult(0, 1)
    assert execute(mariadb_url, "SELECT document FROM orders WHERE id = 'a'") == [("x",)]


def test_a_server_that_does_not_say_what_it_did_is_refused():
    assert _written(5, b"&Enregistrements: 3  Doublons: 2  Avertissements: 0", 3) == 3
    with pytest.raises(SinkConfigurationError):
        _written(5, b"", 3)


def test_many_rows_go_in_several_statements(mariadb_url, make):
    sink = admit(make(mariadb_url))
    assert sink.apply(puts(*(b"%04d" % n for n in range(3000)), document=b"x" * 2000)).written == 3000
    assert sink.apply(puts(*(b"%04d" % n for n in range(3001)), document=b"y" * 2000)) == ApplyResult(1, 3000)


def test_writers_of_the_same_rows_do_not_lock_each_other_out(mariadb_url, make, monkeypatch):
    """Each batch is in another order; the sink takes the rows' locks in one."""
    monkeypatch.setattr(
        "export_queue.core.sinks.sql.database.RETRY", Retry(attempts=1)
    )  # what is repeated would not be seen
    first = make(mariadb_url)
    first.create("orders")
    ids = [b"%03d" % n for n in range(300)]
    admit(first).apply(puts(*ids, seq=0))
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            generator = random.Random(seed)
            sink = make(mariadb_url)
            for seq in range(1, 15):
                generator.shuffle(mine := list(ids))
                sink.apply(puts(*mine, seq=seq))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures


def test_a_deadlock_is_repeated_until_it_is_gone(mariadb_url, make):
    """Another writer takes the rows the other way round, and has changed more: the server gives the sink up."""
    sink = admit(make(mariadb_url))
    sink.apply(puts(*(b"%03d" % n for n in range(50)), b"a", b"z", seq=1))
    results: list[ApplyResult] = []
    counted = "SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'"
    before = execute(mariadb_url, counted)
    with connect(mariadb_url) as other, connect(mariadb_url) as watcher:
        cursor, looking = other.cursor(), watcher.cursor()
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")  # else it locks what it only scans
        cursor.execute("UPDATE orders SET document = 'other' WHERE id < '050'")
        cursor.execute("UPDATE orders SET document = 'other' WHERE id = 'z'")
        thread = threading.Thread(target=lambda: results.append(sink.apply(puts(b"a", b"z", seq=2, document=b"new"))))
        thread.start()
        waiting = (
            "SELECT 1 FROM information_schema.innodb_lock_waits w "
            "JOIN information_schema.innodb_locks l ON l.lock_id = w.requested_lock_id "
            "WHERE l.lock_table LIKE CONCAT('`', DATABASE(), '`%')"
        )
        # The server makes these tables anew only for a client that has not looked for a tenth of a second.
        wait_until(lambda: looking.execute(waiting), "the sink does not wait for the row", pause=0.2)
        cursor.execute("UPDATE orders SET document = 'other' WHERE id = 'a'")
        other.commit()
        thread.join(30)
    assert results == [ApplyResult(2, 0)]
    assert execute(mariadb_url, "SELECT document FROM orders_live WHERE id IN ('a', 'z')") == [("new",)] * 2
    assert execute(mariadb_url, counted) != before


def test_a_lock_that_somebody_keeps_ends_in_a_transient_error(mariadb_url, make):
    sink = admit(make(mariadb_url, timeout=3))
    sink.apply(puts(b"1"))
    with connect(mariadb_url) as other:
        other.cursor().execute("SELECT * FROM orders FOR UPDATE")
        with pytest.raises(SinkUnavailable, match="1205"):
            sink.apply(puts(b"1", seq=6))
    assert sink.apply(puts(b"1", seq=6)).written == 1


def test_a_session_that_the_server_ends_is_replaced(mariadb_url, make):
    sink = admit(make(mariadb_url))
    sink.apply(puts(b"1"))
    with connect(mariadb_url) as other:
        cursor = other.cursor()
        cursor.execute("SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()")
        for (number,) in cursor.fetchall():
            cursor.execute(f"KILL {number}")
    with pytest.raises(SinkUnavailable):
        sink.apply(puts(b"1", seq=6))
    assert sink.apply(puts(b"1", seq=7)).written == 1


def test_a_server_that_takes_no_writes_for_now_is_unavailable(own_url, make):
    sink = admit(make(own_url))
    sink.create("orders")
    execute(own_url, "DROP USER IF EXISTS writer", f"CREATE USER writer IDENTIFIED BY '{SECRET}'")
    database = make_url(own_url).database
    execute(own_url, f"GRANT SELECT, INSERT, UPDATE ON {database}.* TO writer")
    as_writer = make_url(own_url).set(username="writer", password=SECRET).render_as_string(hide_password=False)
    assert admit(make(as_writer)).apply(puts(b"1")).written == 1, "these are the least privileges"
    execute(own_url, "SET GLOBAL read_only = ON")
    try:
        with pytest.raises(SinkUnavailable, match="1290") as refused:
            make(as_writer).apply(puts(b"1", seq=6))
        assert "read_only" in refused.value.hint
        with pytest.raises(SinkUnavailable, match="1290"):
            make(as_writer).admit(queue_id="q", store_id="s", fence=2)
    finally:
        execute(own_url, "SET GLOBAL read_only = OFF")
    with pytest.raises(SinkRefused, match="1142") as caught:
        make(as_writer).apply(puts(b"1", collection="others"))
    assert "CREATE TABLE" in caught.value.hint


@pytest.mark.parametrize(("reason", "kind"), [(28, SinkUnavailable), (135, SinkUnavailable), (150, SinkRefused)])
def test_a_table_that_is_not_created_for_want_of_room_may_be_later(make, mariadb_url, reason, kind):
    error = pymysql.OperationalError(1005, f'Can\'t create table `x`.`orders` (errno: {reason} "because")')
    assert isinstance(make(mariadb_url)._database.dialect.explain(error), kind)


@pytest.mark.full("a server of its own, whose table space is filled")
def test_a_full_table_is_unavailable_until_it_has_room(make):
    limits = {"innodb-file-per-table": "0", "innodb-data-file-path": "ibdata1:12M:autoextend:max:16M"}
    with MariaDbServer(limits) as server:
        url = server.url(server.create_database())
        sink = admit(make(url))
        execute(url, "CREATE TABLE ballast (n int PRIMARY KEY, t longtext)")
        rows = iter(range(1000))
        with pytest.raises(pymysql.Error, match="is full"), connect(url) as other, other.cursor() as cursor:
            while True:
                cursor.execute("INSERT INTO ballast VALUES (%s, repeat('x', 100000))", (next(rows),))
                other.commit()
        with pytest.raises(SinkUnavailable, match="1114|1005"):  # there may be no room for the table itself
            for n in range(100):  # the last pages of a table may have some room
                sink.apply(puts(b"%d" % n, document=b"x" * 100_000))
        server.stop()
        server.settings["innodb-data-file-path"] = "ibdata1:12M:autoextend:max:64M"
        server.start()
        assert sink.apply(puts(b"%d" % n, document=b"x" * 100_000)).written == 1


def test_a_server_that_is_not_there_and_a_wrong_password_are_told_without_it(mariadb_url, make):
    wrong = make_url(mariadb_url).set(password=SECRET).render_as_string(hide_password=False)
    away = f"mysql://me:{SECRET}@127.0.0.1:{free_port()}/x"
    for target, kind in ((wrong, SinkRefused), (away, SinkUnavailable)):
        sink = make(target)
        with pytest.raises(kind, match=r"127\.0\.0\.1") as caught:
            admit(sink)
        assert isinstance(caught.value, ExportQueueError)
        assert SECRET not in str(caught.value) + repr(sink) + repr(sink._database.engine)


@pytest.mark.parametrize("scheme", ["mysql", "mariadb", "mysql+mysqldb", "mysql+pymysql"])
def test_any_driver_may_be_named(mariadb_url, make, scheme):
    admit(make(mariadb_url.replace("mysql+pymysql", scheme, 1)))


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (1213, "TryAgain"),
        (1412, "TryAgain"),
        (1062, "Poison"),
        *(
            (code, "SinkUnavailable")
            for code in (1036, 1040, 1114, 1135, 1203, 1205, 1223, 1290, 1836, 2013, 3572, 3989)
        ),
        (1146, "SinkRefused"),
    ],
)
def test_errors_are_told_apart_by_their_number(number, kind):
    dialect = MySqlDialect(make_url("mysql+pymysql://db/x"), password=None, timeout=1)
    assert type(dialect.explain(pymysql.OperationalError(number, "words"))).__name__ == kind


def test_tables_of_another_database_are_named_by_a_schema(mariadb_url, mariadb_server, make):
    other = mariadb_server.create_database()
    sink: SqlSink = admit(make(mariadb_url, table=f"{other}.t_$collection"))
    assert sink.apply(puts(b"1")).written == 1
    assert execute(mariadb_server.url(other), "SELECT id FROM t_orders_live") == [("1",)]
    assert execute(mariadb_url, "SHOW TABLES") == []
    mariadb_server.drop_database(other)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("ADD UNIQUE KEY one (document(9))", "other unique columns"),
        ("MODIFY id varchar(99) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", "treats different ids as equal"),
    ],
)
@pytest.mark.parametrize("guard", ["seq", "fence"])
def test_a_table_that_is_altered_during_a_drain_is_looked_at_again(mariadb_url, make, change, problem, guard):
    sink = admit(make(mariadb_url, guard=guard))
    sink.create("orders")
    writer = sink if guard == "seq" else sink.claim([Claim("u", 7)])[0]
    assert writer.apply(puts(b"a", seq=9)).written == 1
    execute(mariadb_url, f"ALTER TABLE orders {change}")
    for _ in range(2):
        with pytest.raises(SinkConfigurationError, match=problem):
            writer.apply(puts(b"A", seq=5))
    assert execute(mariadb_url, "SELECT id FROM orders WHERE id <> 'xq_mark'") == [("a",)]
    forget = "DELETE FROM xq_target WHERE table_name = 'orders'"
    execute(mariadb_url, "DROP TABLE orders", "DROP VIEW IF EXISTS orders_live", forget)
    make(mariadb_url, guard=guard).create("orders")
    assert writer.apply(puts(b"a", b"A", seq=5)).written == 2


def test_a_column_that_is_added_during_a_drain_disturbs_nothing(mariadb_url, make):
    sink = admit(make(mariadb_url))
    sink.apply(puts(b"a"))
    execute(mariadb_url, "ALTER TABLE orders ADD COLUMN more int DEFAULT 7")
    assert sink.apply(puts(b"a", b"b", seq=6)) == ApplyResult(2, 0)


def test_a_row_that_a_trigger_refuses_or_no_partition_takes_is_isolated(mariadb_url, make):
    execute(mariadb_url, TABLE + " PARTITION BY RANGE COLUMNS (id) (PARTITION p VALUES LESS THAN ('n'))")
    execute(
        mariadb_url,
        "CREATE TRIGGER picky BEFORE INSERT ON orders FOR EACH ROW "
        "IF NEW.id = 'bad' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF",
    )
    result = admit(make(mariadb_url)).apply(puts(b"a", b"bad", b"m", b"z"))
    assert (result.written, [one.position for one in result.rejected]) == (2, [1, 3])
    assert "1644: not this one" in result.rejected[0].reason


def test_names_of_tables_fold_as_the_server_folds_them(mariadb_url, make):
    sink = admit(make(mariadb_url))
    assert sink._database.ask(sink._database.dialect.folds_names) is False
    sink.apply(puts(b"1", collection="Orders"))
    assert execute(mariadb_url, "SELECT document FROM `Orders` WHERE id = '1'") == [("x",)]
    with MariaDbServer({"lower-case-table-names": "1"}) as server:
        url = server.url(server.create_database())
        sink = admit(make(url))
        result = sink.apply(puts(b"1", seq=7, collection="Orders")), sink.apply(puts(b"1", seq=5, collection="ORDERS"))
        assert result == (ApplyResult(1, 0), ApplyResult(0, 1))
        batch = Operations(["Orders", "orders"], [b"2", b"2"], [b"old", b"new"], [5, 7], [0, 1])
        assert sink.apply(batch) == ApplyResult(1, 1)
        assert execute(url, "SELECT * FROM orders_live") == [("1", "x"), ("2", "new")]
