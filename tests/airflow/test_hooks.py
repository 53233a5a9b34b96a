"""The hooks on the connections that users have."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from sqlalchemy import make_url
from tests.support.elasticsearch import VERSIONS
from tests.support.servers import free_port

from export_queue import (
    ConfigurationError,
    InvalidArgument,
    SinkConfigurationError,
    SinkSpec,
    StoreNotCreated,
    StoreUnavailable,
)
from export_queue.core.drivers import postgresql_arguments
from export_queue.hooks import (
    Described,
    ElasticsearchSinkHook,
    ExportQueueHook,
    OpenSearchSinkHook,
    RedisSinkHook,
    SqlSinkHook,
    environment,
    open_store,
    resolve_sink,
    sink_hook,
)
from export_queue.hooks.connections import MissingConnection
from export_queue.hooks.export_queue import STORE

PASSWORD = "kept-secret-4711"


# -- the store ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({"conn_type": "export_queue", "host": "sqlite:////data/x.db"}, "sqlite:////data/x.db"),
        ({"conn_type": "sqlite", "host": "/data/x.db"}, "sqlite:////data/x.db"),
        ({"conn_type": "sqlite", "host": "sqlite:////data/x.db"}, "sqlite:////data/x.db"),
        (
            {"conn_type": "export_queue", "host": f"postgres://u:{PASSWORD}@h:5433/d"},
            "postgresql+psycopg://u@h:5433/d",
        ),
        (
            {"conn_type": "export_queue", "host": "postgresql://h/d", "login": "u", "password": PASSWORD},
            "postgresql+psycopg://u@h/d",
        ),
        (
            {"conn_type": "export_queue", "host": f"postgresql+psycopg://u@h/d?password={PASSWORD}&sslmode=require"},
            "postgresql+psycopg://u@h/d?sslmode=require",
        ),
        (
            {
                "conn_type": "postgres",
                "host": "h",
                "port": 5433,
                "schema": "d",
                "login": "u",
                "password": PASSWORD,
                "extra": {"sslmode": "require", "sslrootcert": None},
            },
            "postgresql+psycopg://u@h:5433/d?sslmode=require",
        ),
    ],
)
def test_a_store_is_found_through_its_connection(connect: Any, fields: dict[str, Any], url: str) -> None:
    connect("store", **fields)
    described = ExportQueueHook("store").describe()
    assert described.spec.url == url
    assert described.spec.schema == "export_queue"
    assert list(described.variables.values()) == ([PASSWORD] if "postgres" in url else [])
    assert PASSWORD not in f"{described!r} {described!s} {described.spec.url}"


@pytest.mark.parametrize("way", ["store", "linked store", "sink"])
@pytest.mark.parametrize("folder", ["/var/run/postgresql", "/cloudsql/project:region:name"])
def test_the_folder_of_a_socket_is_a_host(connect: Any, way: str, folder: str) -> None:
    connect("db", conn_type="postgres", host=folder, schema="d", login="u", extra={"require_auth": "none"})
    connect("store", conn_type="export_queue", extra={"sql_conn_id": "db"})
    if way == "sink":
        url = sink_hook("db").describe().spec.options["url"]
    else:
        url = ExportQueueHook("db" if way == "store" else "store").describe().spec.url
    found = postgresql_arguments(make_url(url), where="the URL")
    assert found == {"host": folder, "dbname": "d", "user": "u", "require_auth": "none"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"host": "a,b", "port": 5433}, {"host": "a,b", "port": "5433"}),
        ({"host": "a:1,b:2"}, {"host": "a,b", "port": "1,2"}),
        ({"host": "a:1"}, {"host": "a", "port": "1"}),
        ({"host": "::1", "port": 5433}, {"host": "::1", "port": "5433"}),
        ({"host": "[::1]", "port": 5433}, {"host": "::1", "port": "5433"}),
        ({"extra": {"host": "/var/run/postgresql", "port": "5433"}}, {"host": "/var/run/postgresql", "port": "5433"}),
        ({"host": "h", "extra": {"options": "-c x=a,b&c"}}, {"host": "h", "options": "-c x=a,b&c"}),
    ],
)
def test_the_hosts_of_a_postgres_connection_are_those_of_the_driver(
    connect: Any, fields: dict[str, Any], expected: dict[str, str]
) -> None:
    connect("db", conn_type="postgres", schema="d", **fields)
    for url in (ExportQueueHook("db").describe().spec.url, sink_hook("db").describe().spec.options["url"]):
        assert postgresql_arguments(make_url(url), where="the URL") == {"dbname": "d", **expected}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"conn_type": "postgres", "host": "h?sslmode=disable", "schema": "d"}, "a host, without options"),
        ({"conn_type": "postgres", "host": "a:1", "port": 2, "schema": "d"}, "port is given twice"),
        ({"conn_type": "postgres", "host": "h", "schema": "d", "extra": {"host": "g"}}, "'host'"),
        ({"conn_type": "postgres", "host": "h", "schema": "d", "extra": {"sslmode": {"a": PASSWORD}}}, "found dict"),
        ({"conn_type": "sqlite", "host": "/x.db?mode=ro"}, "behind a"),
        ({"conn_type": "postgres", "host": "h", "schema": "d", "extra": {"cursor": "dictcursor"}}, "cursor"),
        ({"conn_type": "postgres", "host": "h", "schema": "d", "extra": {"nonsense": PASSWORD}}, "nonsense"),
        ({"conn_type": "sqlite", "host": "/x.db", "extra": {"mode": "ro"}}, "mode"),
        ({"conn_type": "sqlite", "host": "/x.db", "password": PASSWORD}, "password"),
        ({"conn_type": "export_queue", "host": "postgresql://h/d", "extra": {"sslmode": "require"}}, "sslmode"),
        ({"conn_type": "export_queue", "host": "postgresql://h/d", "schema": "other"}, "schema"),
        ({"conn_type": "export_queue", "host": "postgresql://a@h/d", "login": "b"}, "another user"),
        ({"conn_type": "postgres", "host": f"u:{PASSWORD}@h", "schema": "d"}, "host holds a user and a password"),
        ({"conn_type": "postgres", "schema": "d", "extra": {"host": f"u:{PASSWORD}@h"}}, "host holds a user"),
        ({"conn_type": "postgres", "host": "h", "schema": f"postgres://u:{PASSWORD}@h/d"}, "dbname holds a user"),
        ({"conn_type": "postgres", "host": "h", "schema": "d", "extra": {"user": {"a": PASSWORD}}}, "found dict"),
        ({"conn_type": "postgres", "host": "h", "schema": "d", "extra": {"port": 5433.0}}, "'port': expected text"),
        ({"conn_type": "postgres", "host": "h", "schema": "d", "extra": {"port": "5432,5433"}}, "as many as hosts"),
        ({"conn_type": "sqlite", "host": "/x.db", "extra": {"behind_pooler": f"x://u:{PASSWORD}@h"}}, "found str"),
        ({"conn_type": "export_queue", "host": f"postgresql://realm/u:{PASSWORD}@h/d"}, "holds a user"),
        ({"conn_type": "export_queue", "host": f"postgresql://u:x?{PASSWORD}@h/d"}, "not a database URL"),
    ],
)
def test_nothing_that_a_store_s_connection_says_is_ignored(connect: Any, fields: dict[str, Any], named: str) -> None:
    connect("store", **fields)
    with pytest.raises(InvalidArgument, match=named) as caught:
        ExportQueueHook("store").describe()
    assert PASSWORD not in str(caught.value)


def test_the_database_of_a_redis_uri_is_the_one_that_is_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_CACHE", "redis://h:6379/5")
    assert sink_hook("cache").describe().spec.options["db"] == 5


@pytest.mark.parametrize(
    ("uri", "url"),
    [
        ("sqlite:////data/x.db", "sqlite:////data/x.db"),
        (f"postgres://u:{PASSWORD}@h:5433/d", "postgresql+psycopg://u@h:5433/d"),
        ("export-queue://?sql_conn_id=other&store_schema=mine", "sqlite:////data/other.db"),
    ],
)
def test_connections_given_as_uris_work(connect: Any, monkeypatch: pytest.MonkeyPatch, uri: str, url: str) -> None:
    connect("other", conn_type="sqlite", host="/data/other.db")
    monkeypatch.setenv("AIRFLOW_CONN_STORE", uri)
    spec = ExportQueueHook("store").describe().spec
    assert spec.url == url
    assert spec.schema == ("mine" if "mine" in uri else "export_queue")


def test_a_store_is_found_through_another_sql_connection(connect: Any) -> None:
    connect("db", conn_type="postgres", host="h", schema="d", login="u", password=PASSWORD)
    connect("store", conn_type="export_queue", extra={"sql_conn_id": "db", "store_schema": "mine"})
    described = ExportQueueHook("store").describe()
    assert (described.spec.url, described.spec.schema) == ("postgresql+psycopg://u@h/d", "mine")
    assert list(described.variables.values()) == [PASSWORD]
    assert asyncio.run(ExportQueueHook("store").adescribe()) == described


def test_a_store_behind_a_pooler_is_described_as_such(connect: Any) -> None:
    connect("db", conn_type="postgres", host="h", schema="d", extra={"sslmode": "require"})
    connect("store", conn_type="export_queue", extra={"sql_conn_id": "db", "behind_pooler": True})
    described = ExportQueueHook("store").describe()
    assert described.spec.behind_pooler
    with open_store(described) as store:
        assert "behind_pooler" not in store.database.engine.url.query


@pytest.mark.parametrize("option", ["behind_pooler", "store_schema"])
def test_an_option_of_servers_is_refused_for_a_store_in_a_file(connect: Any, store_path: Path, option: str) -> None:
    connect("store", conn_type="sqlite", host=str(store_path), extra={option: "true"})
    with pytest.raises(InvalidArgument, match=option.removeprefix("store_")):
        ExportQueueHook("store").get_store()


def test_untouched_form_fields_mean_the_defaults(connect: Any) -> None:
    connect(
        "store", conn_type="export_queue", host="sqlite:////x.db", extra={"sql_conn_id": None, "store_schema": None}
    )
    assert ExportQueueHook("store").describe().spec.schema == "export_queue"


def test_the_password_travels_as_a_reference(connect: Any) -> None:
    connect("store", conn_type="export_queue", host="postgresql://u@h/d", password=PASSWORD)
    described = ExportQueueHook("store").describe()
    assert described.spec.secret == "env:XQ_STORE_PASSWORD"
    assert described.variables == {"XQ_STORE_PASSWORD": PASSWORD}
    connect("store", conn_type="export_queue", host="sqlite:////x.db")
    described = ExportQueueHook("store").describe()
    assert (described.spec.secret, described.variables) == (None, {})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"conn_type": "export_queue"}, "names no store"),
        ({"conn_type": "export_queue", "host": f"nonsense {PASSWORD}"}, "not a database URL"),
        ({"conn_type": "export_queue", "host": f"oracle://u:{PASSWORD}@h/d"}, "expected a postgresql or sqlite URL"),
        ({"conn_type": "export_queue", "host": "sqlite:///relative.db"}, "absolute path"),
        ({"conn_type": "export_queue", "host": "sqlite://"}, "absolute path"),
        ({"conn_type": "export_queue", "host": "sqlite:////x.db", "extra": {"sql_conn_id": "a"}}, "both a store URL"),
        ({"conn_type": "export_queue", "extra": {"sql_conn_id": "store"}}, "names itself"),
        ({"conn_type": "sqlite", "host": "relative.db"}, "absolute path"),
        ({"conn_type": "postgres", "host": "h", "password": PASSWORD}, "names no database"),
        ({"conn_type": "postgres", "host": "h", "schema": "d", "extra": {"iam": True}}, "IAM"),
        ({"conn_type": "http", "host": "h", "password": PASSWORD}, "has the type 'http'; expected one of export_queue"),
    ],
)
def test_a_connection_that_leads_to_no_store_says_why(connect: Any, fields: dict[str, Any], expected: str) -> None:
    connect("store", **fields)
    with pytest.raises(InvalidArgument, match=expected) as caught:
        ExportQueueHook("store").describe()
    assert PASSWORD not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_missing_connection_prints_the_variable_to_set(way: str) -> None:
    hook = ExportQueueHook("my_store")
    with pytest.raises(MissingConnection, match='AIRFLOW_CONN_MY_STORE=\'{"conn_type": "export_queue"'):
        hook.describe() if way == "sync" else asyncio.run(hook.adescribe())


def test_a_connection_that_cannot_be_read_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_STORE", "{not json " + PASSWORD)
    with pytest.raises(MissingConnection, match="cannot be read") as caught:
        ExportQueueHook("store").describe()
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("extra", [f"{{'sslmode': 'verify-full', 'x': '{PASSWORD}'}}", "sslmode=require", "[1]", '"x"'])
@pytest.mark.parametrize(
    "conn_type", ["export_queue", "postgres", "sqlite", "redis", "mysql", "elasticsearch", "opensearch"]
)
def test_an_extra_that_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch, conn_type: str, extra: str) -> None:
    fields = {"conn_type": conn_type, "host": "/h" if conn_type == "sqlite" else "h", "schema": "d", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_ODD", json.dumps(fields))
    store = ExportQueueHook("odd")
    reads = [store.describe, lambda: asyncio.run(store.adescribe()), lambda: sink_hook("odd").describe()]
    for read in reads:
        with pytest.raises(InvalidArgument, match="'odd': its extra is no JSON object") as caught:
            read()
        assert PASSWORD not in str(caught.value)


def test_the_test_button_tells_of_a_store(airflow_store: Any) -> None:
    done, message = ExportQueueHook().test_connection()
    assert done
    assert airflow_store.id in message
    assert "1 queues" in message


def test_the_test_button_tells_what_is_wrong(connect: Any, store_path: Path) -> None:
    assert ExportQueueHook("no_such_store").test_connection()[0] is False
    done, message = ExportQueueHook().test_connection()
    assert not done
    assert "no store" in message
    connect("mistyped", conn_type="export_queue", host=f"sqlite:///{store_path.parent}/no/such/store.db")
    assert ExportQueueHook("mistyped").test_connection()[0] is False
    assert not (store_path.parent / "no").exists()
    connect("store", conn_type="export_queue", host=f"postgresql://u:{PASSWORD}@127.0.0.1:{free_port()}/d")
    done, message = ExportQueueHook("store").test_connection()
    assert not done
    assert PASSWORD not in message


def test_the_form_tests_a_connection_that_is_not_saved(airflow_store: Any, store_path: Path) -> None:
    from airflow.sdk import Connection

    done, _ = Connection(conn_id="typed", conn_type="export_queue", host=f"sqlite:///{store_path}").test_connection()
    assert done


def test_a_store_that_was_not_created_says_so(store_path: Path) -> None:
    with ExportQueueHook().get_store() as store, pytest.raises(StoreNotCreated):
        store.queues()


@pytest.mark.postgres
def test_a_store_in_postgresql_opens_with_its_password(connect: Any, postgres_server: Any, postgres_url: str) -> None:
    connect("store", conn_type="export_queue", host=postgres_url, extra={"store_schema": "mine"})
    with ExportQueueHook("store").get_store() as store:
        store.create()
        assert postgres_server.password not in store.url_safe
    done, message = ExportQueueHook("store").test_connection()
    assert done, message
    assert postgres_server.password not in message


@pytest.mark.postgres
def test_a_wrong_password_is_not_shown(connect: Any, postgres_server: Any, postgres_url: str) -> None:
    connect("store", conn_type="export_queue", host=postgres_url, password=PASSWORD)
    with ExportQueueHook("store").get_store() as store, pytest.raises(StoreUnavailable) as caught:
        store.queues()
    assert PASSWORD not in str(caught.value)


def test_the_extra_sql_conn_id_leads_to_the_store(connect: Any, store_path: Path) -> None:
    connect("db", conn_type="sqlite", host=str(store_path))
    connect("store", conn_type="export_queue", extra={"sql_conn_id": "db"})
    with ExportQueueHook("store").get_store() as store:
        store.create()
    with ExportQueueHook().get_store() as same:
        assert same.id == store.id


def test_the_extra_segments_says_where_bulk_entries_are(connect: Any, store_path: Path, tmp_path: Path) -> None:
    import pyarrow as pa

    folder = tmp_path / "bulk"
    extra = {"segments": str(folder)}
    connect("store", conn_type="export_queue", host=f"sqlite:///{store_path}", extra=extra)
    with ExportQueueHook("store").get_store() as store:
        store.create()
        store.configure_queue("orders", value="str")
        with store.transaction(long=True) as tx:
            tx.queue("orders").add_batch(pa.table({"key": ["a"], "value": ["b"]}))
    assert list(folder.rglob("*.parquet"))


@pytest.mark.postgres
def test_the_extra_store_schema_names_the_schema_of_the_tables(connect: Any, postgres_url: str) -> None:
    import psycopg

    connect("store", conn_type="export_queue", host=postgres_url, extra={"store_schema": "mine"})
    with ExportQueueHook("store").get_store() as store:
        store.create()
    with psycopg.connect(postgres_url.replace("+psycopg", "")) as connection:
        found = connection.execute("SELECT DISTINCT schemaname FROM pg_tables WHERE tablename LIKE 'xq%'").fetchall()
    assert found == [("mine",)]


ROWS_OF_STORES = {
    "behind_pooler": test_a_store_behind_a_pooler_is_described_as_such,
    "segments": test_the_extra_segments_says_where_bulk_entries_are,
    "sql_conn_id": test_the_extra_sql_conn_id_leads_to_the_store,
    "store_schema": test_the_extra_store_schema_names_the_schema_of_the_tables,
}
"""The tests of the extras of an Export Queue connection. Those of the other tables are in
``tests/integration/test_connection_rows.py``."""


def test_every_extra_of_a_store_is_on_the_page_and_has_a_test() -> None:
    page = (Path(__file__).parents[2] / "docs" / "connections.md").read_text("utf-8")
    section = page.partition("\n## Export Queue\n")[2].partition("\n## ")[0]
    (row,) = re.findall(r"^\| (`.*) \| honoured \|$", section, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == STORE.takes.keys() == ROWS_OF_STORES.keys()


# -- sinks -------------------------------------------------------------------------------------------------------------


def test_a_redis_connection_is_a_redis_sink(connect: Any) -> None:
    connect(
        "cache", conn_type="redis", host="h", port=6380, login="u", password=PASSWORD, extra={"db": "3", "ssl": "true"}
    )
    described = sink_hook("cache").describe({"key": "customer:$id"})
    spec, variables = described.spec, described.variables
    assert spec.kind == "redis"
    assert spec.name == "cache"
    assert spec.options == {
        "host": "h", "port": 6380, "db": 3, "username": "u", "ssl": True, "key": "customer:$id"
    }  # fmt: skip
    assert spec.secrets == {"password": "env:XQ_SINK_CACHE_PASSWORD"}
    assert variables == {"XQ_SINK_CACHE_PASSWORD": PASSWORD}
    assert PASSWORD not in spec.to_json()


def test_tls_fields_of_a_redis_connection_reach_the_sink(connect: Any) -> None:
    extra = {"ssl": True, "ssl_cert_reqs": "required", "ssl_ca_certs": certifi_file(), "ssl_check_hostname": "false"}
    connect("cache", conn_type="redis", host="h", extra=extra)
    spec = RedisSinkHook("cache").describe().spec
    assert spec.options["ssl_options"] == {
        "ssl_cert_reqs": "required",
        "ssl_ca_certs": extra["ssl_ca_certs"],
        "ssl_check_hostname": False,
    }
    with environment({}):
        spec.open().close()  # the sink takes them


@pytest.mark.parametrize("host", [f"u:{PASSWORD}@h", f"redis://:{PASSWORD}@h", "a,b", "h:6380", "h/3"])
def test_the_host_of_a_redis_connection_is_only_a_host(connect: Any, host: str) -> None:
    connect("cache", conn_type="redis", host=host)
    with pytest.raises(SinkConfigurationError, match="connection 'cache': host: expected the name") as caught:
        sink_hook("cache").describe()
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("password", ["None", "false", ""])
def test_texts_that_airflow_reads_as_no_password_are_none(connect: Any, password: str) -> None:
    connect("cache", conn_type="redis", host="h", password=password)
    assert RedisSinkHook("cache").describe().spec.secrets == {}


@pytest.mark.parametrize("conn_type", ["sqlite", "postgres"])
def test_sql_connections_are_sql_sinks(connect: Any, conn_type: str) -> None:
    if conn_type == "sqlite":
        connect("copies", conn_type="sqlite", host="/data/copies.db")
    else:
        connect("copies", conn_type="postgres", host="h", schema="d", login="u", password=PASSWORD)
    described = sink_hook("copies").describe({"table": "t"})
    spec, variables = described.spec, described.variables
    assert (spec.kind, spec.name, spec.options["table"]) == ("sql", "copies", "t")
    assert variables == ({} if conn_type == "sqlite" else {"XQ_SINK_COPIES_PASSWORD": PASSWORD})
    assert PASSWORD not in spec.to_json()


def test_an_elasticsearch_connection_is_an_elasticsearch_sink(connect: Any) -> None:
    extra = {"ca_certs": certifi_file(), "verify_certs": "true"}
    connect("search", conn_type="elasticsearch", host="a, b", schema="https", login="u", password=PASSWORD, extra=extra)
    described = sink_hook("search").describe({"index": "customers"})
    spec, variables = described.spec, described.variables
    assert (spec.kind, spec.name) == ("elasticsearch", "search")
    assert spec.options == {
        "hosts": ["https://a:9200", "https://b:9200"],
        "username": "u",
        "client_options": {"ca_certs": extra["ca_certs"], "verify_certs": True},
        "index": "customers",
    }
    assert spec.secrets == {"password": "env:XQ_SINK_SEARCH_PASSWORD"}
    assert variables == {"XQ_SINK_SEARCH_PASSWORD": PASSWORD}
    assert PASSWORD not in spec.to_json()
    with environment(variables):
        spec.open().close()  # the sink takes them


@pytest.mark.parametrize(
    ("host", "fields", "expected"),
    [
        ("h", {"extra": {"use_ssl": True}}, "https://h:9200"),
        ("h", {"extra": {"use_ssl": "true", "verify_certs": False}}, "https://h:9200"),
        ("h", {"extra": {"scheme": "HTTPS"}}, "https://h:9200"),
        ("h", {"schema": "HTTPS", "port": 443, "extra": {"use_ssl": True}}, "https://h:443"),
        ("https://h:9243", {"extra": {"use_ssl": True}}, "https://h:9243"),
        ("h", {"extra": {"use_ssl": False}}, "http://h:9200"),
        ("::1", {"schema": "https"}, "https://[::1]:9200"),
    ],
)
def test_tls_of_elasticsearch_is_demanded_in_several_ways(
    connect: Any, host: str, fields: dict[str, Any], expected: str
) -> None:
    connect("search", conn_type="elasticsearch", host=host, **fields)
    assert sink_hook("search").describe().spec.options["hosts"] == [expected]


def certifi_file() -> str:
    import certifi

    return certifi.where()


@pytest.mark.parametrize("name", ["timeout", "request_timeout"])
def test_the_time_limit_of_elasticsearchs_client_becomes_that_of_the_sink(connect: Any, name: str) -> None:
    connect("search", conn_type="elasticsearch", host="h", extra={name: "7.5"})
    assert ElasticsearchSinkHook("search").describe().spec.options["timeout"] == 7.5


def test_an_api_key_takes_the_place_of_user_and_password(connect: Any) -> None:
    connect("search", conn_type="elasticsearch", host="h", port=1, extra={"api_key": PASSWORD})
    described = ElasticsearchSinkHook("search").describe()
    spec, variables = described.spec, described.variables
    assert spec.options == {"hosts": ["http://h:1"]}
    assert spec.secrets == {"api_key": "env:XQ_SINK_SEARCH_API_KEY"}
    assert variables == {"XQ_SINK_SEARCH_API_KEY": PASSWORD}
    with environment(variables):
        spec.open().close()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "names no host"),
        ({"host": "h", "password": PASSWORD}, "no login"),
        ({"host": "h", "extra": {"cloud_id": "x"}}, "cloud_id"),
        ({"host": "h", "schema": "http", "extra": {"use_ssl": True}}, "use_ssl means https"),
        ({"host": "h", "schema": "https", "extra": {"use_ssl": "false"}}, "use_ssl means http"),
        ({"host": "http://h:9200", "extra": {"use_ssl": True}}, "the connection says https"),
        ({"host": "h", "extra": {"use_ssl": "perhaps"}}, "use_ssl"),
        ({"host": "h", "extra": {"api_key": {"id": "i", "api_key": PASSWORD}}}, "'api_key': expected text, found dict"),
        ({"host": "h", "extra": {"verify_certs": True}}, "without TLS"),
        ({"host": "h", "extra": {"bearer_auth": PASSWORD}}, "bearer_auth"),
        ({"host": "h", "schema": "http", "extra": {"scheme": "https"}}, "scheme is named twice"),
        ({"host": "h", "schema": "ftp"}, "schema http or https"),
        ({"host": "h", "schema": f"https://u:{PASSWORD}@h"}, "found something else"),
        ({"host": "htpps://h", "login": "u", "password": PASSWORD}, "with http or https, found htpps"),
        ({"host": "h", "login": "u", "password": PASSWORD, "extra": {"api_key": PASSWORD}}, "either api_key"),
        ({"host": f"https://u:{PASSWORD}@h:9200"}, "without user, password"),
    ],
)
def test_an_elasticsearch_connection_that_cannot_be_used_says_why(
    connect: Any, fields: dict[str, Any], why: str
) -> None:
    connect("search", conn_type="elasticsearch", **fields)
    with pytest.raises(SinkConfigurationError, match=why) as caught:
        sink_hook("search").describe()
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("elasticsearch_server", [*VERSIONS][:1], indirect=True)
def test_the_test_of_an_elasticsearch_connection_names_what_is_wrong(connect: Any, elasticsearch_server: Any) -> None:
    server = elasticsearch_server
    fields = {"conn_type": "elasticsearch", "host": server.host, "port": server.port}
    connect("search", **fields, login=server.user, password=server.password)
    assert ElasticsearchSinkHook("search").test_connection()[0]
    connect("writer", **fields, login="writer", password=server.password)
    done, message = sink_hook("writer").test_connection()
    assert done
    assert "need not" in message
    connect("wrong", **fields, login=server.user, password=PASSWORD)
    done, message = sink_hook("wrong").test_connection()
    assert not done
    assert "unable to authenticate" in message
    connect("nowhere", **{**fields, "port": free_port()}, login=server.user, password=PASSWORD)
    done, unreachable = sink_hook("nowhere").test_connection()
    assert not done
    assert "refused" in unreachable
    assert PASSWORD not in message + unreachable


OPENSEARCH_EXTRA = {
    "use_ssl": "true",
    "verify_certs": True,
    "url_prefix": "/search/",
    "timeout": 7,
    "http_compress": True,
    "opaque_id": "airflow",
    "scheme": "https",
}
"""All that Airflow's own hook reads, but for headers."""


def test_an_opensearch_connection_is_an_opensearch_sink(connect: Any) -> None:
    connect("search", conn_type="opensearch", host="a, b", login="u", password=PASSWORD, extra=OPENSEARCH_EXTRA)
    described = sink_hook("search").describe({"index": "customers"})
    spec, variables = described.spec, described.variables
    assert (spec.kind, spec.name) == ("opensearch", "search")
    assert spec.options == {
        "hosts": ["https://a:9200/search", "https://b:9200/search"],
        "username": "u",
        "timeout": 7.0,
        "client_options": {"verify_certs": True, "http_compress": True, "opaque_id": "airflow"},
        "index": "customers",
    }
    assert variables == {"XQ_SINK_SEARCH_PASSWORD": PASSWORD}
    assert PASSWORD not in spec.to_json()
    with environment(variables):
        spec.open().close()  # the sink takes them


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"host": "h", "extra": {"headers": {"authorization": PASSWORD}}}, "'headers' cannot be honoured"),
        ({"host": "h", "extra": {"api_key": PASSWORD}}, "'api_key' cannot be honoured"),
        ({"host": "h", "extra": {"verify_certs": True}}, "without TLS"),
        ({"host": "h", "schema": "http", "extra": {"use_ssl": True}}, "use_ssl means https"),
        ({"host": "https://h/a", "extra": {"url_prefix": "b"}}, "two prefixes"),
        ({"host": "h", "extra": {"url_prefix": f"a?{PASSWORD}"}}, "without user, password and options"),
        ({"host": "h", "extra": {"url_prefix": f"u:{PASSWORD}@h/a"}}, "without user, password and options"),
        ({"host": "h", "extra": {"verify_cert": PASSWORD}}, "unknown option 'verify_cert'; OpenSearch takes"),
        ({"host": "h", "password": PASSWORD}, "no login"),
    ],
)
def test_an_opensearch_connection_that_cannot_be_used_says_why(connect: Any, fields: dict[str, Any], why: str) -> None:
    connect("search", conn_type="opensearch", **fields)
    with pytest.raises(SinkConfigurationError, match=why) as caught:
        sink_hook("search").describe()
    assert PASSWORD not in str(caught.value)


def test_the_client_of_an_opensearch_connection_has_its_login_and_tls(connect: Any) -> None:
    connect("search", conn_type="opensearch", host="h", login="u", password=PASSWORD, extra=OPENSEARCH_EXTRA)
    with closing(OpenSearchSinkHook("search").get_conn()) as client:
        (connection,) = client.transport.connection_pool.connections
        assert (connection.host, connection.url_prefix) == ("https://h:9200", "/search")
        assert connection.pool.cert_reqs == "CERT_REQUIRED"
        assert connection.headers["x-opaque-id"] == "airflow"
        assert "authorization" in connection.headers


def test_the_test_of_an_opensearch_connection_names_what_is_wrong(connect: Any, opensearch_server: Any) -> None:
    server = opensearch_server
    fields = {"host": server.host, "port": server.port, "login": server.user, "password": server.password}
    connect("search", conn_type="opensearch", **fields)
    assert OpenSearchSinkHook("search").test_connection() == (True, ANY)
    connect("wrong", conn_type="opensearch", **{**fields, "password": PASSWORD})
    done, message = sink_hook("wrong").test_connection()
    assert not done
    assert "401" in message
    connect("other", conn_type="elasticsearch", **fields)
    done, mistaken = sink_hook("other").test_connection()
    assert not done
    assert "use a sink of the kind opensearch" in mistaken
    assert PASSWORD not in message + mistaken


def test_clients_keep_the_time_limits_of_their_connections(connect: Any) -> None:
    connect("cache", conn_type="redis", host="h", extra={"socket_timeout": 30})
    with closing(RedisSinkHook("cache").get_conn()) as client:
        limits = client.connection_pool.connection_kwargs
        assert (limits["socket_timeout"], limits["socket_connect_timeout"]) == (30, 5)
    connect("search", conn_type="elasticsearch", host="h", extra={"timeout": 30})
    with closing(ElasticsearchSinkHook("search").get_conn()) as client:
        assert client._request_timeout == 30
    connect("search", conn_type="opensearch", host="h", extra={"timeout": 30})
    with closing(OpenSearchSinkHook("search").get_conn()) as client:
        assert client.transport.kwargs["timeout"] == 30


@pytest.mark.parametrize("way", ["store", "linked store", "store in an event loop", "sink"])
def test_a_url_in_the_place_of_an_id_shows_no_password(connect: Any, way: str) -> None:
    url = f"postgresql://u:{PASSWORD}@h/d"
    connect("linked", conn_type="export_queue", extra={"sql_conn_id": url})
    with pytest.raises(InvalidArgument, match="expected an id, found a URL") as caught:
        if way == "sink":
            sink_hook(url)
        elif way == "store in an event loop":
            asyncio.run(ExportQueueHook(url).adescribe())
        else:
            ExportQueueHook("linked" if way == "linked store" else url).describe()
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("conn_type", ["redis", "mysql"])
def test_an_address_of_ipv6_may_stand_in_brackets(connect: Any, conn_type: str) -> None:
    connect("six", conn_type=conn_type, host="[::1]", schema="d" if conn_type == "mysql" else None)
    options = sink_hook("six").describe().spec.options
    assert options.get("host") == "::1" or make_url(options["url"]).host == "::1"


def test_another_type_of_connection_names_those_that_are_supported(connect: Any) -> None:
    connect("mail", conn_type="smtp", host="h", password=PASSWORD)
    with pytest.raises(
        SinkConfigurationError,
        match="'smtp', which leads to no sink; supported are redis, sqlite, postgres, mysql, elastic",
    ):
        sink_hook("mail")
    with pytest.raises(SinkConfigurationError, match="RedisSinkHook takes redis"):
        RedisSinkHook("mail").describe()


def test_a_missing_sink_connection_prints_the_variable_to_set() -> None:
    with pytest.raises(MissingConnection, match="AIRFLOW_CONN_CACHE="):
        sink_hook("cache")


@pytest.mark.parametrize("option", ["password", "host", "url"])
def test_what_belongs_in_the_connection_is_refused_as_an_option(connect: Any, option: str) -> None:
    connect("sink", conn_type="sqlite" if option == "url" else "redis", host="/h")
    with pytest.raises(SinkConfigurationError, match=f"{option} belongs in connection") as caught:
        if option == "host":
            sink_hook("sink").describe({"host": "other"})
        else:
            sink_hook("sink").describe({option: PASSWORD})
    assert PASSWORD not in str(caught.value)


def test_a_connection_to_a_redis_cluster_leads_to_a_sink(connect: Any, redis_cluster: Any) -> None:
    address = {"host": redis_cluster.host, "port": redis_cluster.port, "password": redis_cluster.password}
    connect("cache", conn_type="redis", **address, extra={"cluster": True})
    done, message = sink_hook("cache").test_connection()
    assert (done, message.startswith("Redis Cluster ")) == (True, True), message
    described = sink_hook("cache").describe()
    spec, variables = described.spec, described.variables
    with environment(variables):
        sink = spec.open()
        sink.admit(queue_id="q", store_id="s", fence=1)
        sink.close()


def test_the_test_of_sinks_reaches_them(connect: Any, redis_connection: Any, tmp_path: Path) -> None:
    done, message = sink_hook("redis_default").test_connection()
    assert done, message
    connect("copies", conn_type="sqlite", host=str(tmp_path / "copies.db"))
    done, message = SqlSinkHook("copies").test_connection()
    assert done, message


def test_the_test_of_sinks_tells_what_is_wrong(connect: Any) -> None:
    connect("cache", conn_type="redis", host="127.0.0.1", port=free_port(), password=PASSWORD)
    connect("copies", conn_type="postgres", host="127.0.0.1", port=free_port(), schema="d", password=PASSWORD)
    for conn_id in ("cache", "copies"):
        done, message = sink_hook(conn_id).test_connection()
        assert not done
        assert PASSWORD not in message


def test_a_mysql_connection_leads_to_a_sink(connect: Any, mariadb_server: Any) -> None:
    database = mariadb_server.create_database()
    fields = {
        "conn_type": "mysql",
        "host": mariadb_server.host,
        "port": mariadb_server.port,
        "login": mariadb_server.user,
        "password": mariadb_server.password,
        "schema": database,
    }
    connect("copies", **fields)
    hook = sink_hook("copies")
    assert isinstance(hook, SqlSinkHook)
    done, message = hook.test_connection()
    assert (done, "MySQL at 127.0.0.1" in message) == (True, True), message
    described = hook.describe()
    spec, variables = described.spec, described.variables
    assert mariadb_server.password not in spec.to_json()
    with environment(variables):
        sink = spec.open()
        sink.admit(queue_id="q", store_id="s", fence=1)
        sink.close()
    connect("wrong", **{**fields, "password": PASSWORD})
    done, message = sink_hook("wrong").test_connection()
    assert not done
    assert "1045" in message
    assert PASSWORD not in message
    connect("elsewhere", **{**fields, "schema": "nowhere"})
    done, message = sink_hook("elsewhere").test_connection()
    assert (done, "1049" in message) == (False, True), message
    mariadb_server.drop_database(database)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "names no database"),
        ({"schema": "d", "extra": {"iam": True}}, "IAM"),
        ({"schema": "d", "extra": {"ssl": {"verify_mode": "none"}}}, "extra ssl"),
        ({"schema": "d", "extra": {"ssl": "no json"}}, "extra ssl"),
        ({"schema": "d", "host": "h?ssl_mode=DISABLED"}, "a host, without options"),
        ({"schema": "d", "host": "a,b"}, "one host"),
        ({"schema": "d", "host": "h:3307"}, "one host"),
        ({"schema": f"mysql://u:{PASSWORD}@h/d"}, "database holds a user"),
        *(({"schema": "d", "extra": {"ssl": off}}, "extra ssl") for off in (False, 0, [])),
    ],
)
def test_a_mysql_connection_that_is_no_sink_is_refused(connect: Any, fields: dict, problem: str) -> None:
    connect("copies", **{"conn_type": "mysql", "host": "h", "password": PASSWORD, **fields})
    with pytest.raises(SinkConfigurationError, match=problem) as caught:
        SqlSinkHook("copies").describe()
    assert PASSWORD not in str(caught.value)


def test_tls_of_a_mysql_connection_is_kept(connect: Any) -> None:
    connect("copies", conn_type="mysql", host="h", schema="d", login="u", extra={"ssl": {"ca": "/ca.pem"}})
    spec = SqlSinkHook("copies").describe().spec
    assert spec.options["url"] == "mysql+pymysql://u@h:3306/d?ssl_ca=%2Fca.pem"


def test_a_sink_of_ones_own_needs_no_connection() -> None:
    assert resolve_sink(sink_conn_id=None, sink_options={"size": 3}, sink="mine.sinks:make") == Described(
        SinkSpec("mine.sinks:make", {"size": 3})
    )
    described = {"kind": "redis", "options": {"host": "h"}, "secrets": {"password": "env:P"}, "name": "cache"}
    for given in (described, json.dumps(described), SinkSpec(**described)):
        assert resolve_sink(sink_conn_id=None, sink_options=None, sink=given).spec == SinkSpec(**described)


def composite(*parts: Any) -> dict[str, Any]:
    return {"kind": "composite", "options": {"parts": [*parts]}}


def test_parts_of_a_composite_sink_may_be_connections(connect: Any) -> None:
    connect("cache", conn_type="redis", host="h", password=PASSWORD)
    connect("copies", conn_type="sqlite", host="/copies.db")
    own = {"kind": "redis", "options": {"host": "other"}, "name": "other"}
    sink = composite({"conn_id": "copies"}, composite({"conn_id": "cache", "options": {"key": "k:$id"}}, own))
    of_tuples = {**sink, "options": {"parts": tuple(sink["options"]["parts"])}}
    for given in (sink, of_tuples, json.dumps(sink)):
        found = resolve_sink(sink_conn_id=None, sink_options=None, sink=given)
        assert found.spec.name == "copies + cache + other"
        assert [leaf.name for leaf in found.spec.leaves()] == ["copies", "cache", "other"]
        cache = found.spec.leaves()[1]
        assert (cache.options["key"], cache.secrets) == ("k:$id", {"password": "env:XQ_SINK_CACHE_PASSWORD"})
        assert found.variables == {"XQ_SINK_CACHE_PASSWORD": PASSWORD}
        assert PASSWORD not in f"{found} {found.spec.to_json()}"


def test_parts_with_similar_ids_of_connections_keep_their_own_secrets(connect: Any) -> None:
    ids = ("cache_eu", "cache-eu", "cache.eu", "cache__eu")
    for one in ids:
        connect(one, conn_type="redis", host="h", password=f"of {one}")
    found = resolve_sink(sink_conn_id=None, sink_options=None, sink=composite(*({"conn_id": one} for one in ids)))
    secrets = {leaf.name: leaf.secrets["password"].removeprefix("env:") for leaf in found.spec.leaves()}
    assert {name: found.variables[variable] for name, variable in secrets.items()} == {one: f"of {one}" for one in ids}


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"conn_id": "nowhere"}, "nowhere"),
        ({"conn_id": ""}, "conn_id of a part: expected text"),
        ({"conn_id": "cache", "kind": "redis"}, "expected options besides it, found kind"),
        ({"conn_id": "cache", "options": ["key"]}, "options of part 'cache': expected names and values"),
        ({"conn_id": "cache", "options": {"password": PASSWORD}}, "password belongs in connection 'cache'"),
        ({"conn_id": "cache", "options": {"guard": "fence"}}, "needs the guard seq"),
        ("cache", "a part of a composite sink: the description of a sink"),
    ],
)
def test_a_part_of_a_composite_sink_that_is_not_described_well_is_refused(
    connect: Any, part: Any, expected: str
) -> None:
    connect("cache", conn_type="redis", host="h")
    with pytest.raises(ConfigurationError, match=expected) as caught:
        resolve_sink(sink_conn_id=None, sink_options=None, sink=composite(part))
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "either sink_conn_id or sink"),
        ({"sink_conn_id": "a", "sink": "b:c"}, "either sink_conn_id or sink"),
        ({"sink": {"options": {}}}, "the description of a sink"),
        ({"sink": {"kind": "redis", "option": {}}}, "the description of a sink"),
        ({"sink": "{broken"}, "not valid JSON"),
        ({"sink": {"kind": "redis"}, "sink_options": {"db": 1}}, "describes its own"),
        ({"sink": "b:c", "sink_options": [1]}, "expected names and values, as a mapping or JSON, found list"),
    ],
)
def test_a_sink_that_is_not_described_well_is_refused(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        resolve_sink(**{"sink_conn_id": None, "sink_options": None, "sink": None, **arguments})


def test_variables_are_set_for_a_block_only(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("XQ_TEST_KEPT", "before")
    monkeypatch.delenv("XQ_TEST_NEW", raising=False)
    with pytest.raises(ValueError, match="inside"), environment({"XQ_TEST_NEW": "x", "XQ_TEST_KEPT": None}):
        assert os.environ["XQ_TEST_NEW"] == "x"
        assert "XQ_TEST_KEPT" not in os.environ
        raise ValueError("inside")
    assert "XQ_TEST_NEW" not in os.environ
    assert os.environ["XQ_TEST_KEPT"] == "before"
