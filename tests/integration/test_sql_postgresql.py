"""How the SQL sink writes to PostgreSQL: plans and locks, writers of one key, types, tables that know no MERGE."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import make_url
from tests.support.sql_targets import Documents, Make, OnPostgresql, admit, execute, opened_sinks, puts
from tests.support.waiting import wait_until

from export_queue import ApplyResult, Claim, Operations, SqlSink
from export_queue.core.postgresql_arrays import PLAIN, BigintArray, BooleanArray, TextArray
from export_queue.core.sinks.sql import statements
from export_queue.core.sinks.sql.dialects import postgresql
from export_queue.core.sinks.sql.tables import Contents, Table

FIELDS = 'CREATE TABLE orders ("id" text COLLATE "C" PRIMARY KEY, _rank bigint, _deleted boolean'
WAITING = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
def make() -> Iterator[Make]:
    yield from opened_sinks()


@pytest.fixture
def plain_url(postgres_url: str) -> str:
    return postgres_url.replace("+psycopg", "")


@pytest.mark.full("servers of today have MERGE")
class TestBeforeMerge(OnPostgresql, Documents):
    """A server that knows no MERGE."""

    @pytest.fixture(autouse=True)
    def _old(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(postgresql, "_FIRST_MERGE", 1 << 30)


# Plans and locks


@pytest.mark.parametrize("rows", [0, 3, 20_000])
def test_rows_are_looked_up_and_locked_in_the_order_of_the_batch(postgres_url, plain_url, make, rows):
    admit(make(postgres_url)).create("orders")
    execute(
        postgres_url,
        f"INSERT INTO orders SELECT lpad(n::text, 9, '0'), 'x', 1, false FROM generate_series(1, {rows}) n",
        "ANALYZE orders",
    )
    ids = [b"%09d" % n for n in range(5_000)]
    count = len(ids)
    arrays = [TextArray.of(ids), TextArray.of([b"new"] * count), BigintArray.of([9] * count)]
    merge = statements.merge_arrays(Table("orders", Contents.of(None, "text")), {})
    with psycopg.connect(plain_url, context=PLAIN) as connection:
        connection.execute(statements.BY_ARRAY + statements.SAVE)
        found = connection.execute(b"EXPLAIN " + merge.encode(), [*arrays, BooleanArray.of([False] * count)])
        plan = [line for (line,) in found]
    nodes = [line.partition("->")[2].strip() for line in plan if "->" in line]
    assert plan[0].startswith("Merge on orders t"), plan
    assert [node.partition("  ")[0] for node in nodes] == [
        "Nested Loop Left Join",
        "Function Scan on s",
        "Index Scan using orders_pkey on orders t",
    ], plan


def test_a_transaction_of_the_sink_leaves_the_planner_as_it_was(postgres_url, make):
    sink = admit(make(postgres_url))
    assert sink.apply(puts(b"1")).written == 1
    with sink._database.engine.connect() as connection:
        settings = [connection.exec_driver_sql(f"SHOW enable_{name}").scalar() for name in ("hashjoin", "seqscan")]
    assert settings == ["on", "on"]


def test_a_table_keeps_room_for_the_next_versions_of_its_rows(postgres_url, make):
    admit(make(postgres_url)).create("orders")
    assert execute(postgres_url, "SELECT reloptions FROM pg_class WHERE relname = 'orders'") == [(["fillfactor=70"],)]


# Text


def test_text_arrives_as_it_is_whatever_encoding_the_database_asks_for(postgres_url, make):
    execute(postgres_url, f'ALTER DATABASE "{make_url(postgres_url).database}" SET client_encoding = latin1')
    sink = admit(make(postgres_url))
    assert sink.apply(puts("café €".encode(), document="naïve €".encode())).written == 1
    utf8 = f"{postgres_url}?client_encoding=UTF8"
    assert execute(utf8, "SELECT id, document FROM orders_live WHERE id <> 'xq_mark'") == [("café €", "naïve €")]


# Several writers


@pytest.mark.parametrize(("rank", "written", "document"), [(3, 3, "new"), (99, 2, "theirs")])
def test_a_key_that_another_writer_inserts_between_look_and_insert_is_compared(
    postgres_url, plain_url, make, rank, written, document
):
    """The MERGE has found no such row, and waits for the other insert of its key."""
    sink = admit(make(postgres_url))
    sink.create("orders")
    sink.apply(puts(b"first"))
    results: list[ApplyResult] = []
    batch = puts(b"a", b"b", b"c", seq=5, document=b"new")
    with psycopg.connect(plain_url) as other, psycopg.connect(plain_url, autocommit=True) as watcher:
        other.execute("INSERT INTO orders VALUES ('b', 'theirs', %s, false)", [rank])
        thread = threading.Thread(target=lambda: results.append(sink.apply(batch)))
        thread.start()
        wait_until(lambda: watcher.execute(WAITING).fetchone(), "the sink does not wait for the key")
        other.commit()
        thread.join(30)
    assert results == [ApplyResult(written, 3 - written)]
    rows = execute(postgres_url, "SELECT id, document FROM orders_live WHERE id <> 'first' ORDER BY id")
    assert rows == [("a", "new"), ("b", document), ("c", "new")]


def test_a_row_that_is_changed_while_a_batch_waits_for_it_is_compared_anew(postgres_url, plain_url, make):
    sink = admit(make(postgres_url))
    sink.apply(puts(b"a", b"b", b"c", seq=1))
    results: list[ApplyResult] = []
    with psycopg.connect(plain_url) as other, psycopg.connect(plain_url, autocommit=True) as watcher:
        other.execute("UPDATE orders SET _rank = 99, document = 'newest' WHERE id = 'b'")
        other.execute("UPDATE orders SET _rank = 4 WHERE id = 'c'")
        thread = threading.Thread(target=lambda: results.append(sink.apply(puts(b"a", b"b", b"c", seq=5))))
        thread.start()
        wait_until(lambda: watcher.execute(WAITING).fetchone(), "the sink does not wait for the row")
        other.commit()
        thread.join(30)
    assert results == [ApplyResult(2, 1)]
    assert execute(postgres_url, "SELECT id, _rank FROM orders WHERE id <> 'xq_mark' ORDER BY id") == [
        ("a", 11),
        ("b", 99),
        ("c", 11),
    ]


@pytest.mark.parametrize("columns", [None, {"n": "integer"}])
def test_four_writers_of_the_same_records_end_at_the_highest_ranks(postgres_url, make, columns):
    make(postgres_url, columns=columns).create("orders")
    ids, failures = [b"%03d" % n for n in range(300)], list[BaseException]()
    written = [0] * 4
    highest: dict[bytes, int] = {}
    batches = []
    for writer in range(4):
        generator = random.Random(writer)
        for _ in range(6):
            chosen = generator.sample(ids, 150)
            seqs = [generator.randrange(1, 10_000) * 4 + writer for _ in chosen]  # no two writers share one
            documents = [None if generator.random() < 0.25 else b'{"n":%d}' % seq for seq in seqs]
            batches.append((writer, Operations(["orders"] * 150, chosen, documents, seqs, range(150))))
            for record, rank in zip(chosen, batches[-1][1].ranks(), strict=True):
                highest[record] = max(rank, highest.get(record, 0))

    def work(writer: int) -> None:
        try:
            sink = make(postgres_url, columns=columns)
            for owner, batch in batches:
                if owner == writer:
                    written[writer] += sink.apply(batch).written
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    shown = "document" if columns is None else "'{\"n\":' || n || '}'"
    rows = execute(postgres_url, f"SELECT id, _rank, _deleted, {shown} FROM orders WHERE id <> 'xq_mark'")
    assert {record.encode(): rank for record, rank, *_ in rows} == highest
    for _, rank, deleted, document in rows:
        assert (deleted, document) == (rank % 2 == 0, f'{{"n":{rank // 2}}}' if rank % 2 else None)
    assert sum(written) >= len(rows)


# Types


@pytest.mark.parametrize(
    "kind", ["varchar(3)", "char(3)", "bit(3)", "short", "shorter", "varchar(3)[]", "numeric(3, 0)", "label"]
)
def test_no_value_is_cut_to_fit_its_column(postgres_url, make, kind):
    execute(
        postgres_url,
        "CREATE DOMAIN short AS varchar(3)",
        "CREATE DOMAIN shorter AS short CHECK (VALUE <> 'no')",
        "CREATE TYPE label AS ENUM ('abc', '101')",
        f"{FIELDS}, v {kind})",
    )
    fits, longer = ("{101}", "{1011}") if kind.endswith("]") else ("101", "1011")
    sink = admit(make(postgres_url, columns={"v": "text"}))
    documents = [b'{"v":"%s"}' % value.encode() for value in (fits, longer)]
    result = sink.apply(Operations(["orders"] * 2, [b"1", b"2"], documents, [5, 5], [0, 1]))
    assert (result.written, [one.position for one in result.rejected]) == (1, [1])
    assert execute(postgres_url, "SELECT id, CAST(v AS text) FROM orders_live") == [("1", fits)]


@pytest.mark.parametrize(("before", "after"), [("integer", "text"), ("text", "integer"), ("varchar(3)", "label")])
def test_a_column_that_gets_another_type_during_a_drain_is_no_fault_of_rows(postgres_url, make, before, after):
    execute(postgres_url, "CREATE TYPE label AS ENUM ('7', '12')", f"{FIELDS}, v {before})")
    sink = admit(make(postgres_url, columns={"v": "text"}))
    assert sink.apply(puts(b"1", document=b'{"v":"7"}')) == ApplyResult(1, 0)
    execute(postgres_url, "DROP VIEW orders_live", f"ALTER TABLE orders ALTER v TYPE {after} USING v::text::{after}")
    assert sink.apply(puts(b"1", b"2", seq=6, document=b'{"v":"12"}')) == ApplyResult(2, 0)
    rows = execute(postgres_url, "SELECT CAST(v AS text) FROM orders WHERE v IS NOT NULL")
    assert rows == [("12",), ("12",)]


# Tables that are written in the other way


WHEN_BAD = "FOR EACH ROW WHEN (NEW.id ~ '^bad') EXECUTE FUNCTION keep_out()"
TRIGGER = (
    "CREATE FUNCTION keep_out() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
    f"CREATE TRIGGER keep_out BEFORE INSERT OR UPDATE ON {{}} {WHEN_BAD}",
)


def trigger_on(table: str) -> list[str]:
    return [one.format(table) for one in TRIGGER]


def partitioned(url: str) -> None:
    execute(
        url,
        'CREATE TABLE orders ("id" text COLLATE "C" PRIMARY KEY, "document" text, _rank bigint, _deleted boolean)'
        " PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF orders FOR VALUES FROM (MINVALUE) TO ('m')",
        "CREATE TABLE high PARTITION OF orders FOR VALUES FROM ('m') TO (MAXVALUE)",
    )


def test_a_row_that_a_trigger_of_a_partition_keeps_out_is_rejected(postgres_url, make):
    partitioned(postgres_url)
    sink = admit(make(postgres_url))
    assert sink.apply(puts(b"bad", b"low", b"z", seq=1)) == ApplyResult(3, 0)
    execute(postgres_url, *trigger_on("low"))
    result = sink.apply(puts(b"bad", b"bad too", b"low", b"z", seq=5))
    assert (result.written, result.stale, [one.position for one in result.rejected]) == (2, 0, [0, 1])


def test_a_trigger_that_is_made_during_a_drain_is_noticed(postgres_url, make):
    sink = admit(make(postgres_url))
    assert sink.apply(puts(b"bad", b"good", seq=1)) == ApplyResult(2, 0)
    execute(postgres_url, *trigger_on("orders"))
    result = sink.apply(puts(b"bad", b"bad too", b"good", seq=5))
    assert (result.written, result.stale, [one.position for one in result.rejected]) == (1, 0, [0, 1])


@pytest.mark.parametrize(
    ("kind", "when"),
    [
        ("TRIGGER", "FOR EACH ROW"),
        ("TRIGGER", "FOR EACH STATEMENT"),
        ("CONSTRAINT TRIGGER", "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"),
    ],
)
def test_a_trigger_of_the_users_runs_under_the_planners_own_settings(postgres_url, make, kind, when):
    sink = make(postgres_url, guard="fence")
    sink.create("orders")
    execute(
        postgres_url,
        "CREATE TABLE seen (setting text)",
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO seen VALUES (current_setting('enable_hashjoin')); RETURN NULL; END $$",
        f"CREATE {kind} note AFTER INSERT OR UPDATE OR DELETE ON orders {when} EXECUTE FUNCTION note()",
    )
    (claimed,) = admit(sink).claim([Claim("q/1/0", 1)])
    for batch in (puts(b"1", b"2"), puts(b"1", b"2", seq=6, document=b"y"), puts(b"1", b"2", seq=7, document=None)):
        assert claimed.apply(batch) == ApplyResult(2, 0)
    settings = [setting for (setting,) in execute(postgres_url, "SELECT setting FROM seen")]
    assert len(settings) >= 3
    assert set(settings) == {"on"}


def test_a_foreign_key_leaves_a_table_to_the_quicker_way(postgres_url, make):
    execute(postgres_url, "CREATE TABLE customer (name text PRIMARY KEY)", "INSERT INTO customer VALUES ('x')")
    sink = admit(make(postgres_url))
    sink.create("orders")
    execute(postgres_url, "ALTER TABLE orders ADD FOREIGN KEY (document) REFERENCES customer")
    assert sink.apply(puts(b"1")) == ApplyResult(1, 0)
    assert sink._prepared.prepare("orders").shape.is_plain


def test_a_table_with_rules_on_deletes_and_children_takes_records(postgres_url, make):
    """MERGE refuses the one and would find the rows of the other."""
    sink: SqlSink = admit(make(postgres_url))
    sink.create("orders")
    execute(
        postgres_url,
        "CREATE TABLE child () INHERITS (orders)",
        "INSERT INTO child VALUES ('1', 'theirs', 1, false)",
        "CREATE RULE kept AS ON DELETE TO orders DO INSTEAD NOTHING",
    )
    assert sink.apply(puts(b"1", b"2", seq=5)) == ApplyResult(2, 0)
    assert execute(postgres_url, "SELECT id, document FROM ONLY orders WHERE NOT _deleted ORDER BY id") == [
        ("1", "x"),
        ("2", "x"),
    ]
    assert execute(postgres_url, "SELECT document FROM child") == [("theirs",)]
