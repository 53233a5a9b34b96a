"""Descriptions of sinks: what travels, what is refused, and that secrets stay out of it."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import types
from collections.abc import Sequence

import pytest

from export_queue import InvalidArgument, MemorySink, SecretNotFound, SinkConfigurationError, SinkSpec
from export_queue.core import sinks, testing
from export_queue.core.references import has_password
from export_queue.core.sinks.spec import read_options

REDIS = SinkSpec("redis", {"host": "cache.example", "key": "customer:$id"}, {"password": "env:XQ_TEST"})


def test_a_description_survives_json():
    assert SinkSpec.from_json(REDIS.to_json()) == REDIS
    assert json.loads(REDIS.to_json())["secrets"] == {"password": "env:XQ_TEST"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "{}",
        '{"kind": "redis", "options": {}, "secrets": 3, "name": ""}',
        '{"kind": 1, "options": 2, "secrets": 3, "name": 4}',
    ],
)
def test_other_json_is_refused(text):
    with pytest.raises((InvalidArgument, SinkConfigurationError)):
        SinkSpec.from_json(text)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (SinkSpec("memory", {"name": "m"}), "memory:m"),
        (SinkSpec("redis"), "redis://localhost:6379/0"),
        (REDIS, "redis://cache.example:6379/0"),
        (SinkSpec("sql", {"url": "postgresql://me@db/x"}), "postgresql://me@db/x"),
        (SinkSpec("sql", {}, {"url": "env:URL"}), "env:URL"),
        (SinkSpec("my.module:Sink"), "my.module:Sink"),
        (SinkSpec("redis", name="redis_default"), "redis_default"),
    ],
)
def test_a_sink_is_named_after_its_target(spec, name):
    assert spec.name == name


@pytest.mark.parametrize("name", [" ", "a\nb", "\x1b[31m", "redis://:hunter2@h", 5, ["a"], 0])
def test_names_that_nobody_should_be_shown_are_refused(name):
    with pytest.raises(SinkConfigurationError, match="name of a sink: expected") as refused:
        SinkSpec("memory", name=name)
    assert "hunter2" not in str(refused.value)
    with pytest.raises(SinkConfigurationError):
        SinkSpec.from_dict({"kind": "memory", "name": name})


def test_a_name_that_is_made_of_a_target_is_checked_too():
    with pytest.raises(SinkConfigurationError, match="control characters"):
        SinkSpec("redis", {"host": "a\nb"})


def test_own_sinks_with_other_options_have_other_names():
    names = {SinkSpec("my.module:Sink", {"folder": folder}).name for folder in "ab"}
    assert len(names) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"password": "hunter2"},
        {"auth_token": "hunter2"},
        {"ssl_options": {"ssl_password": "hunter2"}},
        {"url": "postgresql://me:hunter2@db/x"},
        {"url": "postgresql://me:hunt/er2@db/x"},
        {"url": "postgresql://me@db/x?password=hunter2"},
        {"hosts": ["redis://:hunter2@a"]},
    ],
)
def test_a_password_among_the_options_is_refused_and_not_shown(options):
    with pytest.raises(SinkConfigurationError) as caught:
        SinkSpec("sql", options)
    assert "hunter" not in str(caught.value)
    assert "secrets=" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("postgresql://db/x", False),
        ("postgresql://me@db:5432/x", False),
        ("postgresql://me@db/x?sslmode=require", False),
        ("sqlite:////tmp/a:b@c.db", False),
        ("redis://[::1]:6379/0", False),
        ("$collection:$id", False),
        ("redis://:x@db", True),
        ("postgresql://me:x@db", True),
    ],
)
def test_passwords_in_urls_are_seen(text, answer):
    assert has_password(text) == answer


def test_a_secret_that_is_no_reference_is_refused_and_not_shown():
    with pytest.raises(SinkConfigurationError) as caught:
        SinkSpec("redis", {}, {"password": "hunter2"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "build",
    [
        lambda: SinkSpec("mongo"),
        lambda: SinkSpec("redis", {"when": object()}),
        lambda: SinkSpec("redis", {"host": "a"}, {"host": "env:A"}),
        lambda: SinkSpec("memory", {"nmae": "m"}).open(),
        lambda: SinkSpec("no_such_module:Sink").open(),
        lambda: SinkSpec("json:no_such_name").open(),
        lambda: SinkSpec("json:JSONDecoder").open(),
    ],
)
def test_a_description_of_no_sink_is_refused(build):
    with pytest.raises(SinkConfigurationError):
        build()


@pytest.mark.parametrize(
    ("kind", "option", "value", "expected"),
    [
        ("memory", "name", 5.5, "text"),
        ("redis", "host", True, "text"),
        ("redis", "port", "http", "a whole number"),
        ("redis", "db", True, "a whole number"),
        ("redis", "ssl", "no", "true or false"),
        ("redis", "ssl_options", "ca.pem", "names and values"),
        ("redis", "target", "list", "'string' or 'hash' or 'set'"),
        ("redis", "target", ["hash"], "'string' or 'hash' or 'set'"),
        ("redis", "shards", 1.5, "a whole number"),
        ("redis", "socket_timeout", "soon", "a number"),
        ("elasticsearch", "hosts", 5.5, "text, or a list of texts"),
        ("elasticsearch", "hosts", ["http://a:9200", 5], "text, or a list of texts"),
        ("elasticsearch", "create_indices", 0, "true or false"),
        ("elasticsearch", "timeout", "[1]", "a number"),
        ("opensearch", "timeout", "soon", "a number"),
        ("sql", "columns", 5, "a list of texts, or names and texts"),
        ("sql", "columns", "total", "a list of texts, or names and texts"),
        ("sql", "columns", {"total": 5}, "a list of texts, or names and texts"),
        ("sql", "create_tables", "no", "true or false"),
        ("sql", "timeout", [60], "a number"),
        ("sql", "guard", 1, "'seq' or 'fence'"),
    ],
)
def test_an_option_of_another_type_is_refused_before_anything_is_reached(kind, option, value, expected):
    required = {"url": "sqlite:////none/o.db"} if kind == "sql" else {}
    with pytest.raises(SinkConfigurationError) as refused:
        SinkSpec(kind, required | {option: value}).open()
    assert str(refused.value).startswith(f"option {option!r} of sink {kind}: expected {expected}, found {value!r}")


def test_options_of_right_types_are_taken():
    redis = {"socket_timeout": 5, "shards": None, "ssl_options": {"ssl_check_hostname": False}, "target": "hash"}
    SinkSpec("redis", redis | {"ssl": True}).open().close()
    SinkSpec("elasticsearch", {"hosts": ["http://a:9200"], "timeout": 5}).open().close()
    spec = SinkSpec("opensearch", {"hosts": ["https://a"], "client_options": {"verify_certs": True, "opaque_id": "x"}})
    assert spec.name == "https://a"
    spec.open().close()


@pytest.mark.parametrize("kind", ["elasticsearch", "opensearch"])
@pytest.mark.parametrize("host", ["htpps://a:9200", "a:9200", "https://u@a", "https://a?x=1"])
def test_a_node_is_a_url_that_says_whether_tls_is_used(kind, host):
    with pytest.raises(SinkConfigurationError, match="hosts: expected https://host:port"):
        SinkSpec(kind, {"hosts": [host]}).open()


def test_the_host_of_a_redis_sink_holds_no_user():
    with pytest.raises(SinkConfigurationError, match="sink redis: host: expected the name") as caught:
        SinkSpec("redis", {"host": "u:kept-secret@h"})
    assert "kept-secret" not in str(caught.value)


@pytest.mark.parametrize("kind", ["elasticsearch", "opensearch"])
def test_a_user_of_a_search_server_has_no_colon(kind):
    """Everything after it would be taken for a part of the password."""
    with pytest.raises(SinkConfigurationError, match="username: expected one without a colon"):
        SinkSpec(kind, {"hosts": ["https://a:9200"], "username": "a:b"}).open()


def test_the_port_of_a_redis_sink_exists():
    with pytest.raises(SinkConfigurationError, match="port: expected a number from 1 to 65535"):
        SinkSpec("redis", {"host": "h", "port": 65536}).open()


def test_opensearch_takes_no_api_key(monkeypatch):
    monkeypatch.setenv("XQ_TEST", "key")
    with pytest.raises(SinkConfigurationError, match="api_key"):
        SinkSpec("opensearch", {}, {"api_key": "env:XQ_TEST"}).open()


def test_options_that_templates_made_texts_of_are_read():
    class Sink:
        def __init__(
            self, name: str = "", size: int = 1, key: str | Sequence[str] = "id", is_new: bool = False
        ) -> None: ...

    def read(**options):
        return read_options(Sink, options, kind="sink")

    assert read(name=2024, size="7", key='["a", "b"]', is_new="True") == {
        "name": "2024", "size": 7, "key": ["a", "b"], "is_new": True
    }  # fmt: skip
    assert read(name='"quoted"', key="a", is_new="false") == {"name": "quoted", "key": "a", "is_new": False}
    assert read(name="None", size=None, key="null") == {}
    assert read(name="12", key="") == {"name": "12", "key": ""}


def test_an_unknown_option_is_answered_with_the_known_ones():
    with pytest.raises(SinkConfigurationError, match="it takes: name"):
        SinkSpec("memory", {"nmae": "m"}).open()


def test_memory_sinks_are_opened_by_name():
    sink = SinkSpec("memory", {"name": "opened by name"}).open()
    assert isinstance(sink, MemorySink)
    assert sink.name == "opened by name"


def test_an_own_sink_gets_options_and_resolved_secrets(monkeypatch):
    module = types.ModuleType("own_sinks")
    given = {}

    def make(**arguments):
        given.update(arguments)
        return MemorySink()

    module.make = make
    monkeypatch.setitem(sys.modules, "own_sinks", module)
    monkeypatch.setenv("XQ_TEST", "hunter2")
    spec = SinkSpec("own_sinks:make", {"folder": "x"}, {"key": "env:XQ_TEST"})
    spec.open()
    assert given == {"folder": "x", "key": "hunter2"}


def test_a_missing_secret_is_named_when_the_sink_is_opened(monkeypatch):
    monkeypatch.delenv("XQ_TEST", raising=False)
    with pytest.raises(SecretNotFound, match="env:XQ_TEST"):
        REDIS.open()


def test_nothing_shows_a_resolved_secret(monkeypatch):
    monkeypatch.setenv("XQ_TEST", "hunter2")
    sink = REDIS.open()
    assert "hunter2" not in repr(sink) + str(sink) + repr(vars(sink))
    assert pickle.loads(pickle.dumps(REDIS)) == REDIS


def test_a_changed_secret_is_followed_again(monkeypatch):
    monkeypatch.setenv("XQ_TEST", "before")
    credentials = REDIS.open()._connection._connection.credential_provider
    monkeypatch.setenv("XQ_TEST", "after")
    assert credentials.get_credentials() == ("after",)


def test_describing_a_sink_loads_no_client():
    code = """
import sys
from export_queue.core.sinks import SinkSpec
SinkSpec("redis", {"host": "a"}); SinkSpec("sql", {"url": "postgresql://db/x"})
SinkSpec("elasticsearch", {"hosts": "http://a:9200"})
clients = {"redis", "hiredis", "elasticsearch", "elastic_transport", "psycopg", "pyarrow", "pyspark", "airflow"}
assert not clients & set(sys.modules), sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_doors_export_what_they_always_did():
    """What is taken away here breaks somebody's exporter, sink or test."""
    assert set(sinks.__all__) == set(
        "MAX_SEQ ApplyResult BoundSink Capabilities Claim ClaimedSink CompositeSink ContinuingSink ControlRecord "
        "Dataset Delete ElasticsearchSink ErrorRow ErrorTable Fate FencedSink FloorRecord MemorySink OpenSearchSink "
        "Operations OperationsBuilder PointingSink PreparableSink ProbedSink "
        "Put RedisSink Rejection RepairableSink Round ScannableSink SearchableSink Sink SinkSpec SqlNames SqlSink "
        "StoredRecords SweepableSink "
        "apply_batch binding_of call_sink check_owner check_template collapse datasets_of document_bytes fill "
        "first_collection is_kind isolate register_store next_round opened_sink raise_floor refuse_seqs "
        "sql_names stale_rank".split()
    )
    assert set(testing.__all__) == {"FencedConformance", "MemorySink", "SinkConformance", "assert_converges"}
    assert all(getattr(module, name) for module in (sinks, testing) for name in module.__all__)
    for module in (sinks, testing):
        with pytest.raises(AttributeError, match="no_such_name"):
            _ = module.no_such_name
