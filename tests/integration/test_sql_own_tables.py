"""Tables of users as sinks: keys of several columns, types of their own, schemas, ranks that came later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import orjson
import pytest
from tests.support.sql_targets import (
    Documents,
    Make,
    OnMariadb,
    OnPostgresql,
    OnSqlite,
    admit,
    execute,
    opened_sinks,
    puts,
    read_views,
    url_of,
)

from export_queue import Operations, SinkConfigurationError


class SeveralColumns(Documents):
    """Ids that are JSON arrays, whose elements are columns of the key."""

    options: ClassVar[Mapping[str, Any]] = {"key": {"part": "integer", "name": "text"}, "document": {"body": "text"}}

    def record_id(self, name: bytes) -> bytes:
        try:
            return orjson.dumps([len(name), name.decode()])
        except UnicodeDecodeError:
            return b'[1,"%s"]' % name

    def read_all(self) -> Mapping[tuple[str, bytes], bytes]:
        return {(name, orjson.dumps([row.part, row.name])): row.body.encode() for name, row in read_views(self.readers)}


@pytest.mark.full("the same statements as of other tables")
class TestSqliteKeys(OnSqlite, SeveralColumns):
    pass


@pytest.mark.full("the same statements as of other tables")
class TestPostgresqlKeys(OnPostgresql, SeveralColumns):
    pass


@pytest.mark.full("the same statements as of other tables")
class TestMariadbKeys(OnMariadb, SeveralColumns):
    pass


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path) -> str:
    return url_of(request, tmp_path)


@pytest.fixture
def make() -> Iterator[Make]:
    yield from opened_sinks()


def test_an_id_of_several_columns_has_one_form(url, make):
    sink = admit(make(url, key={"customer": "text", "day": "date", "n": "integer"}))
    good = [b'["acme","2026-11-21",7]', '["é","2026-11-21",-7]'.encode()]
    bad = [
        b'["acme", "2026-11-21",7]',  # another way to write the first one
        b'["acme","20261121",7]',
        b'["acme","2026-11-21","7"]',
        b'["acme","2026-11-21",true]',
        b'["acme","2026-11-21",7.0]',
        b'["acme","2026-11-21"]',
        b'["ac\\u006de","2026-11-21",7]',
        b'["a\\u0000","2026-11-21",7]',
        b'["acme","2026-11-21",9223372036854775808]',
        b'{"customer":"acme"}',
        b"acme",
    ]
    result = sink.apply(puts(*good, *bad))
    assert (result.written, [one.position for one in result.rejected]) == (2, list(range(2, 13)))
    assert "expected a JSON array [customer, day, n]" in result.rejected[-1].reason
    assert [tuple(map(str, row)) for row in execute(url, "SELECT customer, day, n FROM orders_live ORDER BY n")] == [
        ("é", "2026-11-21", "-7"),
        ("acme", "2026-11-21", "7"),
    ]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("integer", b"77", [b"077", b"+77", b"7_7", b" 77", "７７".encode(), b"77.0", b"", b"9223372036854775808"]),
        (
            "uuid",
            b"6ba7b810-9dad-41d1-80b4-00c04fd430c8",
            [b"6BA7B810-9dad-41d1-80b4-00c04fd430c8", b"6ba7b8109dad41d180b400c04fd430c8", b"x"],
        ),
    ],
)
def test_a_key_that_is_no_text_takes_one_form_of_each_value(url, make, kind, good, bad):
    sink = admit(make(url, key={"number": kind}))
    result = sink.apply(puts(good, *bad))
    assert (result.written, [one.position for one in result.rejected]) == (1, list(range(1, len(bad) + 1)))
    assert sink.apply(puts(good, seq=4)).stale == 1
    assert [str(row[0]).encode() for row in execute(url, "SELECT number FROM orders_live")] == [good]


def test_a_table_that_is_there_becomes_a_sink_by_the_printed_ddl(url, make):
    columns = "tenant varchar(40) {}, number integer, total numeric(9, 2), note varchar(20) {}, more integer DEFAULT 7"
    character_set = "CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin" if url.startswith("mysql") else ""
    execute(
        url,
        f"CREATE TABLE bills ({columns.format(character_set, character_set)}, PRIMARY KEY (tenant, number))",
        "INSERT INTO bills (tenant, number, total) VALUES ('acme', 1, 5), ('acme', 2, 5)",
    )
    options = {
        "key": {"tenant": "text", "number": "integer"},
        "columns": {"total": "numeric", "note": "text"},
        "table": "bills",
    }
    with pytest.raises(SinkConfigurationError, match="missing columns: _rank, _deleted") as caught:
        admit(make(url, **options))
    sink = make(url, create_tables=False, **options)
    printed = sink.ddl("any")
    assert printed in caught.value.hint
    execute(url, *printed.split(";\n")[:-1])
    admit(sink)
    documents = [b'{"total":7.25,"note":"paid"}', None, b'{"total":1}', b'{"note":"%s"}' % (b"x" * 21)]
    ids = [b'["acme",1]', b'["acme",2]', b'["acme",3]', b'["acme",4]']
    result = sink.apply(Operations(["c"] * 4, ids, documents, [0] * 4, range(4)))
    if url.startswith("sqlite"):  # where a length is a comment
        assert result.written == 4
        execute(url, "DELETE FROM bills WHERE number = 4")
    else:
        assert (result.written, [one.position for one in result.rejected]) == (3, [3])
    rows = execute(url, "SELECT number, CAST(total * 100 AS int), note FROM bills_live ORDER BY number")
    assert [(int(a), int(b), c) for a, b, c in rows] == [(1, 725, "paid"), (3, 100, None)]
    assert [more for (more,) in execute(url, "SELECT more FROM bills WHERE _rank <= 1")] == [7, 7, 7]
    assert make(url, **options).ddl("any") == "", "what is there is not printed again"


def test_columns_that_a_table_lacks_are_added_by_the_printed_ddl(url, make):
    admit(make(url, columns={"a": "text", "c": "text"})).apply(puts(b"1", document=b'{"a":"x","c":"y"}'))
    options = {"columns": {"a": "text", "b": "numeric", "c": "text"}}
    with pytest.raises(SinkConfigurationError, match="missing columns: b") as caught:
        make(url, **options).create("orders")
    printed = make(url, **options).ddl("orders")
    assert "CREATE TABLE" not in printed
    assert printed in caught.value.hint
    execute(url, *printed.split(";\n")[:-1])
    sink = admit(make(url, **options))
    assert sink.apply(puts(b"1", seq=6, document=b'{"a":"x","b":7.5,"c":"y"}')).written == 1
    assert execute(url, "SELECT id, a, b + 0.0, c FROM orders_live") == [("1", "x", 7.5, "y")]


def test_rows_whose_rank_is_null_are_older_than_anything(url, make):
    sink = make(url)
    sink.create("orders")
    if url.startswith("sqlite"):
        execute(url, "DROP VIEW orders_live", "DROP TABLE orders", "DELETE FROM xq_target")
        execute(url, 'CREATE TABLE orders ("id" text PRIMARY KEY, "document" text, _rank bigint, _deleted boolean)')
    elif url.startswith("mysql"):
        execute(url, "ALTER TABLE orders MODIFY _rank bigint NULL, MODIFY _deleted boolean NULL")
    else:
        execute(url, "ALTER TABLE orders ALTER _rank DROP NOT NULL, ALTER _deleted DROP NOT NULL")
    execute(url, "INSERT INTO orders VALUES ('1', 'before', NULL, NULL), ('2', 'before', NULL, NULL)")
    sink = admit(make(url))
    sink.create("orders")
    assert execute(url, "SELECT id FROM orders_live ORDER BY id") == [("1",), ("2",)]
    assert sink.apply(puts(b"1", seq=0)).written == 1
    assert sink.apply(puts(b"2", seq=0, document=None)).written == 1
    assert sink.apply(puts(b"1", b"2", seq=0, document=None)).stale == 2
    assert execute(url, "SELECT * FROM orders_live") == [("1", "x")]


def test_a_missing_view_is_created_with_the_next_sink(url, make):
    make(url).create("orders")
    execute(url, "DROP VIEW orders_live")
    assert admit(make(url)).apply(puts(b"1")).written == 1
    assert execute(url, "SELECT id FROM orders_live") == [("1",)]


def test_a_schema_stands_before_the_template(postgres_url, make):
    execute(postgres_url, 'CREATE SCHEMA "Sales"', "CREATE TABLE orders (id integer)")
    sink = admit(make(postgres_url, table="Sales.$collection"))
    assert sink.apply(puts(b"1", b"2", collection="orders")).written == 2
    assert sink.apply(puts(b"1", collection="a.b")).written == 1
    assert sink.apply(puts(b"1", seq=4)).stale == 1
    assert execute(postgres_url, 'SELECT id FROM "Sales".orders_live') == [("1",), ("2",)]
    assert execute(postgres_url, 'SELECT id FROM "Sales"."a.b_live"') == [("1",)]
    assert execute(postgres_url, 'SELECT queue_id FROM "Sales".xq_control') == [("q",)]
    assert execute(postgres_url, 'SELECT table_name FROM "Sales".xq_target ORDER BY table_name') == [
        ("a.b",),
        ("orders",),
    ]
    assert execute(postgres_url, "SELECT * FROM orders") == []


def test_an_sqlite_table_has_no_schema(tmp_path, make):
    with pytest.raises(SinkConfigurationError, match="no schema"):
        make(f"sqlite:///{tmp_path}/sink.db", table="main.$collection").create("orders")


def test_types_of_users_take_what_their_database_reads(postgres_url, make):
    execute(
        postgres_url,
        "CREATE TYPE mood AS ENUM ('glad', 'sad')",
        "CREATE TABLE people (id uuid PRIMARY KEY, mood mood, born date, tags jsonb, _rank bigint, _deleted boolean)",
    )
    sink = admit(make(postgres_url, table="people", key={"id": "uuid"}, columns=["mood", "born", "tags"]))
    ids = [b"6ba7b810-9dad-41d1-80b4-00c04fd430c%d" % n for n in range(3)]
    documents = [b'{"mood":"glad","born":"1999-01-01","tags":["a"]}', b'{"mood":"odd"}', b"{}"]
    result = sink.apply(Operations(["c"] * 3, ids, documents, [5] * 3, range(3)))
    assert (result.written, [one.position for one in result.rejected]) == (2, [1])
    assert "mood" in result.rejected[0].reason
    assert execute(postgres_url, "SELECT mood::text, born::text, tags::text FROM people_live WHERE mood = 'glad'") == [
        ("glad", "1999-01-01", '["a"]')
    ]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"key": []}, "at least one name"),
        ({"key": ["a", "a"]}, "each of them once"),
        ({"key": "_rank"}, "key '_rank'"),
        ({"key": {"a": "real"}}, "has type 'real'"),
        ({"key": "a", "columns": ["A"]}, "column 'A'"),
        ({"key": "document"}, "document='text'"),
        ({"document": {"a": "json", "b": "json"}}, "expected 'text' or 'json'"),
        ({"document": {"a": "integer"}}, "expected 'text' or 'json'"),
    ],
)
def test_options_that_name_no_table_are_refused(tmp_path, make, options, problem):
    with pytest.raises(SinkConfigurationError, match=problem):
        make(f"sqlite:///{tmp_path}/sink.db", **options)


def test_a_key_of_another_shape_or_type_is_refused(url, make):
    make(url, key={"a": "integer", "b": "integer"}).create("orders")
    for key, problem in (("a", "column a is"), ({"a": "integer"}, "need a value but get none: b|primary key")):
        with pytest.raises(SinkConfigurationError, match=problem):
            make(url, key=key).create("orders")
