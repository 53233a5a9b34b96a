"""What the drivers take: each option is handed over as its driver wants it, or refused by its name."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from export_queue import ConfigurationError, InvalidArgument, SinkConfigurationError, SinkSpec, StoreSpec
from export_queue.core.drivers import (
    Driver,
    client_arguments,
    mysql_options,
    parse_url,
    postgresql_arguments,
    postgresql_url,
    redis_target,
    redis_tls,
)
from export_queue.core.drivers.mysql import tls_demand
from export_queue.core.drivers.tables import (
    ELASTICSEARCH,
    ELASTICSEARCH_CONNECTION,
    MYSQL,
    OPENSEARCH,
    OPENSEARCH_CONNECTION,
    POSTGRESQL,
    REDIS_CONNECTION,
    REDIS_TLS,
    SQLITE,
)

SECRET = "hunter-4711"
PAGE = Path(__file__).parents[2] / "docs" / "connections.md"


# -- PostgreSQL --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u@h:5433/d", {"user": "u", "host": "h", "port": "5433", "dbname": "d"}),
        ("postgresql://u@%2Fvar%2Frun/d", {"user": "u", "host": "/var/run", "dbname": "d"}),
        ("postgresql:///d?host=/var/run&port=5433", {"host": "/var/run", "port": "5433", "dbname": "d"}),
        ("postgresql:///d?host=/cloudsql/p:r:i", {"host": "/cloudsql/p:r:i", "dbname": "d"}),
        ("postgresql://[::1]:5433/d", {"host": "::1", "port": "5433", "dbname": "d"}),
        ("postgresql:///d?host=[::1]:5433", {"host": "::1", "port": "5433", "dbname": "d"}),
        ("postgresql:///d?host=a:1&host=b:2", {"host": "a,b", "port": "1,2", "dbname": "d"}),
        ("postgresql:///d?host=a:1&host=b", {"host": "a,b", "port": "1,", "dbname": "d"}),
        ("postgresql:///d?host=a,b&port=1", {"host": "a,b", "port": "1", "dbname": "d"}),
        ("postgresql:///d?host=a:1,b:2", {"host": "a,b", "port": "1,2", "dbname": "d"}),
        ("postgresql:///?service=s", {"service": "s"}),
        ("postgresql:///d?user=u&host=h", {"user": "u", "host": "h", "dbname": "d"}),
        ("postgresql://h/d?options=-c%20x%3Dy", {"host": "h", "dbname": "d", "options": "-c x=y"}),
        ("postgresql://h/d?keepalives=false&connect_timeout=3", {"keepalives": "0", "connect_timeout": "3"}),
        (
            "postgresql://h/d?sslmode=VERIFY-FULL&sslrootcert=system",
            {"sslmode": "verify-full", "sslrootcert": "system"},
        ),
        ("postgresql:///?service=s&sslrootcert=/ca", {"service": "s", "sslrootcert": "/ca"}),
        ("postgresql://h/d?sslrootcert=system", {"host": "h", "dbname": "d", "sslrootcert": "system"}),
        ("postgresql://h/d?client_encoding=UTF8&iam=false", {"host": "h", "dbname": "d"}),
        (f"postgresql://u:{SECRET}@h/d?password={SECRET}", {"user": "u", "host": "h", "dbname": "d"}),
    ],
)
def test_a_postgresql_url_becomes_parameters_of_libpq(url: str, expected: dict[str, str]) -> None:
    found = postgresql_arguments(parse_url(url, where="the URL"), where="the URL")
    assert found | expected == found
    if "host" in expected or "service" in expected:
        assert found == expected
    again = make_url(postgresql_url(found).render_as_string())
    assert postgresql_arguments(again, where="the URL") == found


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("nonsense=1", "unknown option 'nonsense'; PostgreSQL takes .*require_auth"),
        ("SSLMODE=require", "unknown option 'SSLMODE'"),
        ("sslmode=strict", "'sslmode': expected disable or allow"),
        ("sslmode=", "'sslmode' has no value"),
        ("sslmode", "'sslmode' has no value"),
        ("sslmode=require&sslmode=disable", "'sslmode' is given 2 times"),
        ("ssl_min_protocol_version=1.3", "'ssl_min_protocol_version': expected TLSv1 or"),
        ("keepalives=perhaps", "expected true or false"),
        ("connect_timeout=soon", "expected a whole number"),
        ("client_encoding=latin1", "client_encoding"),
        ("iam=true", "iam.*IAM"),
        ("ssl=true", "unknown option 'ssl'"),
        ("host=other", "host is given twice"),
        ("port=70000", "one port from 1 to 65535"),
        ("port=1,2", "one port from 1 to 65535, or as many as hosts"),
        (f"sslpassword={SECRET}", "'sslpassword' cannot be honoured"),
        (f"scram_client_key={SECRET}", "'scram_client_key' cannot be honoured"),
        (f"oauth_client_secret={SECRET}", "'oauth_client_secret' cannot be honoured"),
        (f"passwort={SECRET}", "unknown option 'passwort'"),
        ("sslrootcert=/ca", "sslmode prefer does not enforce sslrootcert"),
        ("sslmode=allow&sslcrl=/crl", "sslmode allow does not enforce sslcrl"),
        ("sslmode=require&sslcrl=/crl", "sslmode require does not enforce sslcrl"),
        ("ssl_min_protocol_version=TLSv1.3", "does not enforce ssl_min_protocol_version"),
        ("requirepeer=postgres", "requirepeer is only enforced"),
        ("options=-c%20client_encoding%3Dlatin1", "'options'"),
        ("host=x:1&port=2", "port is given twice"),
        ("replication=database", "'replication' cannot be honoured"),
        ("prepare_threshold=0", "'prepare_threshold' cannot be honoured"),
    ],
)
def test_a_postgresql_option_that_would_not_be_kept_is_refused_by_name(query: str, expected: str) -> None:
    where = {"where": "the URL"}
    with pytest.raises(InvalidArgument, match=expected) as caught:
        postgresql_arguments(parse_url(f"postgresql://h/d?{query}", **where), **where)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("hosts", ["a,b:5433", "a:1,b:2", f"u:{SECRET}@a:1,b:2", "[::1]:1,b:2"])
def test_several_hosts_before_the_path_are_refused_with_the_way_to_name_them(hosts: str) -> None:
    with pytest.raises(InvalidArgument, match="several hosts") as caught:
        postgresql_arguments(parse_url(f"postgresql://{hosts}/d", where="the URL"), where="the URL")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "setting", ["-c search_path=x", "-csearch_path=x", "--search-path=x", "-c synchronous_commit=off"]
)
def test_settings_that_a_store_pins_are_refused(setting: str) -> None:
    url = make_url("postgresql://h/d").update_query_dict({"options": setting}).render_as_string()
    with pytest.raises(InvalidArgument, match="the store sets it itself"):
        StoreSpec(url=url).open()


# -- MySQL -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ({}, "PREFERRED"),
        ({"ssl_mode": "required"}, "REQUIRED"),
        ({"ssl_mode": "VERIFY_IDENTITY"}, "VERIFY_IDENTITY"),
        ({"ssl_mode": "REQUIRED", "ssl_ca": "ca"}, "VERIFY_CA"),
        ({"ssl_mode": "VERIFY_CA", "ssl_ca": "ca"}, "VERIFY_CA"),
        ({"ssl_ca": "ca"}, "VERIFY_IDENTITY"),
        ({"ssl": {"ca": "ca"}}, "VERIFY_IDENTITY"),
        ({"ssl": '{"ca": "ca", "check_hostname": false}'}, "VERIFY_CA"),
        ({"ssl_ca": "ca", "ssl_check_hostname": "false"}, "VERIFY_CA"),
        ({"ssl": {"cert": "c", "key": "k"}}, "REQUIRED"),
        ({"ssl_disabled": "true"}, "DISABLED"),
        ({"ssl_disabled": "false"}, "PREFERRED"),
        ({"ssl_verify_cert": True}, "VERIFY_CA"),
        ({"ssl_verify_cert": "false"}, "REQUIRED"),
        ({"ssl_verify_identity": "1"}, "VERIFY_IDENTITY"),
    ],
)
def test_what_a_mysql_connection_demands_of_tls_is_one_of_its_modes(given: dict[str, Any], mode: str) -> None:
    assert tls_demand(mysql_options(given, where="x"), where="x").mode == mode


@pytest.mark.parametrize(
    "given",
    [
        {"ssl_mode": "VERIFY_EVERYTHING"},
        {"ssl_mode": "DISABLED", "ssl_ca": "ca"},
        {"ssl_mode": "PREFERRED", "ssl_ca": "ca"},
        {"ssl_mode": "REQUIRED", "ssl_disabled": True},
        {"ssl_disabled": True, "ssl_ca": "ca"},
        {"ssl_disabled": True, "ssl_verify_identity": True},
        {"ssl_check_hostname": True, "ssl_verify_identity": False},
        {"ssl_verify_cert": False, "ssl_ca": "ca"},
        {"ssl_verify_cert": False, "ssl_verify_identity": True},
        {"ssl_key": "k"},
        {"ssl": True},
        {"ssl": "true"},
        {"ssl": {"verify_mode": "none"}},
        {"ssl": {"ca": "a"}, "ssl_ca": "b"},
        {"ssl_key_password": SECRET},
        {"ssl_crl": "x"},
        {"use_unicode": "0"},
        {"charset": "latin1"},
        {"read_default_file": "/etc/my.cnf"},
        {"local_infile": True},
        {"nonsense": SECRET},
        {"cursor": "sscursor"},
        {"connect_timeout": 0},
    ],
)
def test_a_mysql_option_that_would_not_be_kept_is_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        tls_demand(mysql_options(given, where="x"), where="x")
    assert any(name in str(caught.value) for name in given)
    assert SECRET not in str(caught.value)


# -- Redis -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "path", "expected"),
    [
        ({}, None, {"db": 0}),
        ({}, "5", {"db": 5}),
        ({"db": "5"}, "/5", {"db": 5}),
        ({"db": 3.0, "cluster": "false"}, "", {"db": 3}),
        ({"ssl": "yes"}, None, {"db": 0, "ssl": True}),
        (
            {"ssl": True, "ssl_cert_reqs": "Required", "ssl_check_hostname": "False", "ssl_min_version": "TLSv1.3"},
            None,
            {
                "db": 0,
                "ssl": True,
                "ssl_options": {
                    "ssl_cert_reqs": "required",
                    "ssl_check_hostname": False,
                    "ssl_min_version": "TLSv1.3",
                },
            },
        ),
        (
            # what Airflow's form writes where nobody has touched it
            {"db": 0, "cluster": False, "ssl": False, "ssl_cert_reqs": "required", "ssl_check_hostname": False},
            None,
            {"db": 0},
        ),
        ({"socket_timeout": "2.5", "db": None, "ssl": ""}, None, {"db": 0, "socket_timeout": 2.5}),
    ],
)
def test_a_redis_connection_becomes_options_of_the_sink(
    given: dict[str, Any], path: str | None, expected: dict[str, Any]
) -> None:
    found = redis_target(given, path=path, where="x")
    assert found == expected
    redis_tls(found.get("ssl_options", {}), ssl=found.get("ssl", False), where="x")


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"db": 1}, "5"),
        ({}, "five"),
        ({"db": "one"}, None),
        ({"db": 1, "cluster": True}, None),
        ({"ssl": "enabled"}, None),
        ({"ssl_ca_certs": "ca"}, None),
        ({"ssl_cert_reqs": "required"}, None),
        ({"ssl": False, "ssl_cert_reqs": "none"}, None),
        ({"ssl": False, "ssl_check_hostname": True}, None),
        ({"ssl": True, "ssl_cert_reqs": "require"}, None),
        ({"ssl": True, "ssl_cert_reqs": "none", "ssl_check_hostname": True}, None),
        ({"ssl": True, "ssl_cert_reqs": "none", "ssl_ca_certs": "ca"}, None),
        ({"ssl": True, "ssl_min_version": "1.2"}, None),
        ({"ssl": True, "ssl_keyfile": "k"}, None),
        ({"ssl": True, "ssl_password": SECRET}, None),
        ({"ssl": True, "ssl_validate_ocsp": True}, None),
        ({"unix_socket_path": "/x"}, None),
        ({"sentinels": [["a", 1]]}, None),
        ({"startup_nodes": "a:1,b:2"}, None),
        ({"password": SECRET}, None),
        ({"nonsense": SECRET}, None),
    ],
)
def test_a_redis_option_that_would_not_be_kept_is_refused(given: dict[str, Any], path: str | None) -> None:
    with pytest.raises(InvalidArgument) as caught:
        redis_target(given, path=path, where="x")
    assert SECRET not in str(caught.value)


# -- Elasticsearch -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "hosts"),
    [
        ({"verify_certs": True}, ["http://h:9200"]),
        ({"ca_certs": "ca"}, ["https://a:9200", "http://b:9200"]),
        ({"verify_certs": False, "ca_certs": "ca"}, ["https://h:9200"]),
        ({"ssl_assert_fingerprint": "aa", "ca_certs": "ca"}, ["https://h:9200"]),
        ({"ssl_assert_fingerprint": "aa", "verify_certs": True}, ["https://h:9200"]),
        ({"client_key": "k"}, ["https://h:9200"]),
        ({"verify_certs": "perhaps"}, ["https://h:9200"]),
        ({"nonsense": SECRET}, ["https://h:9200"]),
        ({}, ["https://h:9200?verify_certs=false"]),
        ({}, ["https://me@h:9200"]),
        ([1], ["https://h:9200"]),
    ],
)
@pytest.mark.parametrize("kind", ["elasticsearch", "opensearch"])
def test_an_option_that_the_client_of_a_search_server_would_drop_is_refused(
    given: dict[str, Any], hosts: list[str], kind: str
) -> None:
    with pytest.raises(SinkConfigurationError) as caught:
        client_arguments(given, hosts, kind=kind)
    assert SECRET not in str(caught.value)


# -- all ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda url: StoreSpec(url=url),
        lambda url: StoreSpec.from_json(f'{{"url": "{url}"}}'),
        lambda url: StoreSpec(url=url).open(),
        lambda url: SinkSpec("sql", {"url": url}),
        lambda url: SinkSpec("composite", {"parts": [{"kind": "sql", "options": {"url": url}}]}),
    ],
    ids=["store", "travelled store", "opened store", "sink", "part of a sink"],
)
@pytest.mark.parametrize("url", ["sqlite:////tmp/x.db?nonsense=1", "postgresql://h/d?nonsense=1"])
def test_every_description_refuses_what_its_driver_does_not_take(make: Any, url: str) -> None:
    with pytest.raises(ConfigurationError, match="unknown option 'nonsense'"):
        make(url)


@pytest.mark.parametrize(
    "options",
    [
        {"ssl_options": {"host": "elsewhere"}, "ssl": True},
        *({"host": host} for host in ("/run/redis.sock", "redis://h:6379/5", "a,b", "h:6379", f"u:{SECRET}@h", "")),
    ],
)
def test_a_redis_sink_takes_no_address_in_disguise(options: dict[str, Any]) -> None:
    with pytest.raises(SinkConfigurationError, match="host|password") as caught:
        SinkSpec("redis", options).open()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "open_it",
    [
        lambda path: StoreSpec(url=f"postgresql://h/d?sslmode=verify-full&sslrootcert={path}").open(),
        lambda path: StoreSpec(url=f"postgresql://h/d?passfile={path}").open(),
        lambda path: SinkSpec("sql", {"url": f"postgresql://h/d?sslmode=require&sslcert={path}"}).open(),
        lambda path: SinkSpec("sql", {"url": f"postgresql://h/d?sslmode=verify-ca&sslcrl={path}"}).open(),
        lambda path: SinkSpec("sql", {"url": f"mysql://h/d?ssl_ca={path}"}).open(),
        lambda path: SinkSpec("redis", {"ssl": True, "ssl_options": {"ssl_ca_certs": path}}).open(),
        lambda path: SinkSpec("elasticsearch", {"hosts": "https://h", "client_options": {"ca_certs": path}}).open(),
        lambda path: SinkSpec("opensearch", {"hosts": "https://h", "client_options": {"client_cert": path}}).open(),
    ],
)
def test_a_file_that_cannot_be_read_is_named_before_anything_is_sent(open_it: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"{tmp_path}/missing cannot be read: No such file"):
        open_it(f"{tmp_path}/missing")


def test_every_parameter_of_the_installed_libpq_is_honoured_or_refused_by_name() -> None:
    import psycopg

    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    assert known - {*POSTGRESQL.takes, *POSTGRESQL.fixed, *POSTGRESQL.refuses} == set()


def test_every_argument_of_the_installed_redis_client_for_tls_is_known() -> None:
    import redis

    for name in REDIS_TLS.takes:
        assert name in inspect.signature(redis.SSLConnection).parameters


def test_every_option_of_elasticsearch_is_one_of_its_client_and_of_the_transport() -> None:
    import elastic_transport
    import elasticsearch

    for client in (elasticsearch.Elasticsearch, elastic_transport.NodeConfig):
        assert ELASTICSEARCH.takes.keys() <= inspect.signature(client).parameters.keys()


def test_every_option_of_opensearch_is_one_of_its_client() -> None:
    opensearchpy = pytest.importorskip("opensearchpy")
    taken = inspect.signature(opensearchpy.Urllib3HttpConnection).parameters
    assert OPENSEARCH.takes.keys() <= taken.keys()


def test_every_extra_that_airflows_opensearch_hook_reads_is_honoured_or_refused_by_name() -> None:
    hook = pytest.importorskip("airflow.providers.opensearch.hooks.opensearch").OpenSearchHook
    read = set(re.findall(r"extra(?:\.get\(|\[)\"(\w+)\"", inspect.getsource(hook)))
    assert {"use_ssl", "verify_certs", "headers", "opaque_id"} <= read
    assert read <= OPENSEARCH_CONNECTION.takes.keys() | OPENSEARCH_CONNECTION.refuses.keys()


@pytest.mark.parametrize(
    ("title", "driver"),
    [
        ("PostgreSQL", POSTGRESQL),
        ("MySQL and MariaDB", MYSQL),
        ("SQLite", SQLITE),
        ("Redis", REDIS_CONNECTION),
        ("Elasticsearch", ELASTICSEARCH_CONNECTION),
        ("OpenSearch", OPENSEARCH_CONNECTION),
    ],
)
def test_the_page_lists_what_each_driver_takes_and_refuses(title: str, driver: Driver) -> None:
    section = PAGE.read_text("utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    shown = {"honoured": set[str](), "only": set[str](), "refused": set[str]()}
    for names, what in re.findall(r"^\| (`[^|]*) \| (honoured|only|refused)\b", section, re.MULTILINE):
        shown[what] |= set(re.findall(r"`([\w-]+)`", names))
    if title == "MySQL and MariaDB":
        shown["honoured"].discard("ssl")
    assert shown["honoured"] == {*driver.takes}
    assert shown["only"] == {*driver.fixed}
    assert shown["refused"] == {*driver.refuses}
