"""Values of every type on their way through a codec and a queue into every sink: the tables of `docs/values.md`."""

from __future__ import annotations

import base64
import itertools
import os
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
import sqlalchemy as sa
from tests.support.elasticsearch import ElasticsearchServer
from tests.support.servers import RedisServer
from tests.support.sql_targets import execute, url_of
from tests.support.values import DEAD, FIELDS, KEYS, NONE, REFUSALS, VALUES, Field, Key, Refusal, Value

from export_queue import RedisSink, SqlSink, Store, drain
from export_queue.core.json_text import NotJson, json_bytes
from export_queue.core.store import schema

_names = itertools.count()


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Store]:
    """A store with one entry for each row of the table; its value has one field."""
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        store.create()
        store.configure_queue("fields", key="int", value="json", buckets=1)
        with store.transaction() as tx:
            for number, field in enumerate(FIELDS):
                tx.queue("fields").add(number, {f"f{number}": field.make()})
        yield store


def dead(store: Store, queue_id: str) -> set[Any]:
    return {letter.key for letter in store.dead_letters.list(queue_id)}


def compare(column: str, found: Mapping[int, str]) -> None:
    expected = {number: getattr(field, column) for number, field in enumerate(FIELDS)}
    assert {n: (FIELDS[n].type, cell) for n, cell in found.items()} == {
        n: (FIELDS[n].type, cell) for n, cell in expected.items()
    }


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: f"{field.type} {field.column}")
def test_json_stores_what_the_table_says_and_gives_back_what_it_says(tmp_path: Path, field: Field) -> None:
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        store.create()
        store.configure_table("typed", row="int", value="json")
        queue = store.configure_queue("q")
        with store.transaction() as tx:
            tx.table("typed").set(1, "v", field.make())
        with store.transaction(read_only=True) as tx:
            assert repr(tx.table("typed").get(1, "v")) == field.back
    assert queue.encode_value([field.make()], key="k") == f"[{field.text}]".encode()


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.shown)
def test_json_refuses_what_the_table_says_with_the_field_and_the_remedy(refusal: Refusal) -> None:
    with pytest.raises(NotJson) as raised:
        json_bytes({"a": [1.5], "v": refusal.make()})
    assert (str(raised.value), raised.value.misfit.remedy) == (f"field v {refusal.found}", refusal.remedy)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{value.codec} {value.value!r}")
def test_a_codec_stores_what_the_table_says_in_cells_and_entries(tmp_path: Path, value: Value) -> None:
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        store.create()
        store.configure_table("t", value=value.codec)
        queue = store.configure_queue("q", value=value.codec)
        with store.transaction() as tx:
            tx.table("t").set("r", "c", value.value)
        with store.transaction(read_only=True) as tx:
            assert tx.table("t").get("r", "c") == value.value
        with store.database.read() as work:
            assert work.connection.execute(sa.select(schema.cell.c.value)).scalar() == value.stored
    assert queue.encode_value(value.value, key="k") == value.stored
    assert queue.decode_value(value.stored) == value.value


@pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{key.codec} {key.key!r}")
def test_a_row_of_a_table_is_stored_as_the_table_says(tmp_path: Path, key: Key) -> None:
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        store.create()
        store.configure_table("t", row=key.codec)
        with store.transaction() as tx:
            tx.table("t").set(key.key, "c", b"1")
            assert [row for row, _, _ in tx.table("t").scan()] == [key.key]
        with store.database.read() as work:
            assert work.connection.execute(sa.select(schema.cell.c.row_key)).scalar() == bytes.fromhex(key.row)


@pytest.fixture
def others(tmp_path: Path) -> Iterator[Store]:
    """A store with a queue for each codec of the other tables, and an entry for each row; all ids differ."""
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        store.create()
        for value in VALUES:
            store.configure_queue(f"values-{value.codec}", value=value.codec, buckets=1)
        for key in KEYS:
            store.configure_queue(f"keys-{key.codec}", key=key.codec, buckets=1)
        with store.transaction() as tx:
            for n, value in enumerate(VALUES):
                tx.queue(f"values-{value.codec}").add(f"v{n}", value.value)
            for key in KEYS:
                tx.queue(f"keys-{key.codec}").add(key.key, {"n": 1})
        yield store


def refused(store: Store, sink: Any) -> set[Any]:
    """Drain all queues; returns the keys that the sink refuses."""
    queues = [queue.id for queue in store.queues()]
    for queue_id in queues:
        assert drain(store, queue_id, sink, sink_name="s").left == 0
    return set[Any]().union(*(dead(store, queue_id) for queue_id in queues))


@pytest.mark.parametrize("target", ["string", "hash"])
def test_redis_makes_of_every_codec_what_the_tables_say(
    others: Store, redis_server: RedisServer, redis_client: redis.Redis, target: str
) -> None:
    options = {"password": redis_server.password, "key": "r:$id", "target": target}
    with closing(RedisSink(redis_server.host, redis_server.port, **options)) as sink:
        gone = refused(others, sink)
    for n, value in enumerate(VALUES):
        expected = value.redis if target == "string" else value.hash
        assert (f"v{n}" in gone) == (expected == DEAD), value
        if expected != DEAD:
            found = redis_client.get(f"r:v{n}") if target == "string" else redis_client.hget(f"r:v{n}", "n")
            assert found == (value.stored if expected == "the bytes" else expected.encode()), value
    for key in KEYS:
        record = key.key if key.redis == "the byte" else key.redis.encode()
        assert redis_client.exists(b"r:" + record), key


@pytest.mark.timeout(240)
def test_elasticsearch_makes_of_every_codec_what_the_tables_say(
    others: Store, elasticsearch_server: ElasticsearchServer, index: str
) -> None:
    server = elasticsearch_server
    with closing(server.sink(server.url, server.user, server.password, index=index)) as sink:
        gone = refused(others, sink)
    for n, value in enumerate(VALUES):
        assert (DEAD if f"v{n}" in gone else source(server, index, f"v{n}")) == value.elastic, value
    for key in KEYS:
        assert (key.key in gone) == (key.elastic == DEAD), key
        assert key.key in gone or source(server, index, key.elastic) == '{"n":1}', key


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
def test_sql_makes_of_every_codec_what_the_tables_say(
    others: Store, request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    request.param = kind
    url = url_of(request, tmp_path)
    with closing(SqlSink(url, table="t")) as sink:
        gone = refused(others, sink)
    found = dict(execute(url, "SELECT id, document FROM t_live"))
    expected = {f"v{n}": value.sql for n, value in enumerate(VALUES)} | {key.sql: '{"n":1}' for key in KEYS}
    assert found == {record: cell for record, cell in expected.items() if DEAD not in (record, cell)}
    assert gone == {f"v{n}" for n, value in enumerate(VALUES) if value.sql == DEAD} | {
        key.key for key in KEYS if key.sql == DEAD
    }


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
def test_sql_takes_numbers_as_keys_of_numbers(
    others: Store, request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    request.param = kind
    url = url_of(request, tmp_path)
    with closing(SqlSink(url, table="t", key={"id": "integer"})) as sink:
        assert drain(others, "keys-int", sink).acknowledged == 2
    assert sorted(execute(url, "SELECT id FROM t_live")) == [(-77,), (77,)]


def test_strings_of_redis_hold_the_stored_text(
    filled: Store, redis_server: RedisServer, redis_client: redis.Redis
) -> None:
    with closing(RedisSink(redis_server.host, redis_server.port, password=redis_server.password, key="v:$id")) as sink:
        drain(filled, "fields", sink)
    for number, field in enumerate(FIELDS):
        assert redis_client.get(f"v:{number}") == f'{{"f{number}":{field.text}}}'.encode(), field.type


def test_hashes_of_redis_hold_what_the_table_says(
    filled: Store, redis_server: RedisServer, redis_client: redis.Redis
) -> None:
    options = {"password": redis_server.password, "key": "v:$id", "target": "hash"}
    with closing(RedisSink(redis_server.host, redis_server.port, **options)) as sink:
        drain(filled, "fields", sink)
    compare("redis", {n: (redis_client.hget(f"v:{n}", f"f{n}") or NONE.encode()).decode() for n in range(len(FIELDS))})


@pytest.fixture
def index(elasticsearch_server: ElasticsearchServer) -> Iterator[str]:
    name = f"values{os.getpid()}x{next(_names)}"
    yield name
    for found in elasticsearch_server.request("GET", f"/{name}*?expand_wildcards=all")[1]:
        elasticsearch_server.request("DELETE", f"/{found}")
    queues = {"fields", *(f"values-{value.codec}" for value in VALUES), *(f"keys-{key.codec}" for key in KEYS)}
    for queue_id in queues:  # each test has a store of its own
        elasticsearch_server.request("DELETE", f"/xq_control/_doc/{queue_id}")


@pytest.mark.timeout(240)  # the first test of a version waits for its server
def test_elasticsearch_holds_the_stored_text_and_indexes_it_as_the_table_says(
    filled: Store, elasticsearch_server: ElasticsearchServer, index: str
) -> None:
    server = elasticsearch_server
    with closing(server.sink(server.url, server.user, server.password, index=index)) as sink:
        drain(filled, "fields", sink)
    gone = dead(filled, "fields")
    mappings = server.request("GET", f"/{index}/_mapping")[1]
    (properties,) = [one["mappings"]["properties"] for one in mappings.values()]
    found = {}
    for number, field in enumerate(FIELDS):
        if number in gone:
            found[number] = DEAD
            continue
        assert source(server, index, number) == f'{{"f{number}":{field.text}}}', field.type
        mapping = properties.get(f"f{number}")
        found[number] = "not indexed" if mapping is None else mapping.get("type", "object")
    compare("elastic", found)


@pytest.mark.timeout(240)
def test_elasticsearch_takes_a_large_number_where_the_mapping_does(
    filled: Store, elasticsearch_server: ElasticsearchServer, index: str
) -> None:
    number, server = next(n for n, field in enumerate(FIELDS) if field.text == str(2**64)), elasticsearch_server
    mappings = {"properties": {f"f{number}": {"type": "keyword"}}}
    server.request(
        "PUT", f"/_index_template/{index}", {"index_patterns": [f"{index}*"], "template": {"mappings": mappings}}
    )
    try:
        with closing(server.sink(server.url, server.user, server.password, index=index)) as sink:
            drain(filled, "fields", sink)
    finally:
        server.request("DELETE", f"/_index_template/{index}")
    assert dead(filled, "fields") == set()
    assert source(server, index, number) == f'{{"f{number}":18446744073709551616}}'


def source(server: ElasticsearchServer, index: str, record: object) -> str:
    """Read a document as the server holds it, no digit lost."""
    request = urllib.request.Request(f"{server.url}/{index}/_source/{quote(str(record))}")
    request.add_header(
        "authorization", "Basic " + base64.b64encode(f"{server.user}:{server.password}".encode()).decode()
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
def test_columns_of_sql_hold_what_the_table_says(
    filled: Store, request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    request.param = kind
    url = url_of(request, tmp_path)
    columns = {f"f{number}": field.column for number, field in enumerate(FIELDS)}
    with closing(SqlSink(url, columns=columns)) as sink:
        drain(filled, "fields", sink)
    gone = dead(filled, "fields")
    cast = {"sqlite": "{}", "postgresql": "CAST({} AS text)", "mariadb": "CAST({} AS char)"}[kind]
    zone = "SET TimeZone = 'UTC'" if kind == "postgresql" else "SELECT 1"
    found = {}
    for number in range(len(FIELDS)):
        rows = execute(url, zone, f"SELECT {cast.format(f'f{number}')} FROM fields_live WHERE id = '{number}'")
        assert bool(rows) == (number not in gone)
        found[number] = DEAD if not rows else NONE if rows[0][0] is None else str(rows[0][0])
    compare(kind, found)
