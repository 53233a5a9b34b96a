"""The options of each kind of connection: those that are honoured, those that are refused, and why.

``docs/connections.md`` shows the same tables; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from export_queue.core.drivers.options import (
    Driver,
    always,
    between,
    digits,
    flag,
    must_be,
    one_of,
    seconds,
    text,
    whole,
)

_Same = TypeVar("_Same")


def _each(names: str, same: _Same) -> Mapping[str, _Same]:
    """Give several options the same reader or reason."""
    return dict.fromkeys(names.split(), same)


_ADDRESS = "it belongs in the address: a field of the connection, or the part of the URL before the ?"
_SECRET = "it is a secret, and no field holds it; use the password, or a key file that only its owner can read"
_IAM = "authentication by IAM is not supported; use a password or a client certificate"
_OF_AIRFLOWS_HOOK = "it is for queries through Airflow's own hook; remove it, or use a connection without it"
_NO_ENCODING = "no other encoding is used here"

POSTGRESQL = Driver(
    "PostgreSQL",
    {
        **_each("application_name fallback_application_name gsslib hostaddr krbsrvname options passfile", text),
        **_each("max_protocol_version min_protocol_version require_auth requirepeer service servicefile", text),
        **_each("sslcert sslcrl sslcrldir sslkey sslkeylogfile sslrootcert", text),
        **_each("gssdelegation keepalives sslcompression sslsni", digits(flag)),
        **_each("connect_timeout keepalives_count keepalives_idle keepalives_interval", digits(whole)),
        "tcp_user_timeout": digits(whole),
        **_each("channel_binding gssencmode", one_of("disable", "prefer", "require")),
        "load_balance_hosts": one_of("disable", "random"),
        **_each("ssl_max_protocol_version ssl_min_protocol_version", one_of("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3")),
        "sslcertmode": one_of("disable", "allow", "require"),
        "sslmode": one_of("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
        "sslnegotiation": one_of("postgres", "direct"),
        "target_session_attrs": one_of("any", "read-write", "read-only", "primary", "standby", "prefer-standby"),
    },
    fixed={
        "client_encoding": always("utf8", "utf-8", why=_NO_ENCODING),
        **_each("iam redshift redshift-serverless", must_be(False, _IAM)),
    },
    refuses={
        **_each("dbname host password port user", _ADDRESS),
        **_each(
            "oauth_client_id oauth_client_secret oauth_issuer oauth_scope",
            "authentication by OAuth is not supported; use a password or a client certificate",
        ),
        **_each("scram_client_key scram_server_key sslpassword", _SECRET),
        "replication": "replication sessions run no statements",
        "prepare_threshold": "use behind_pooler instead",
        **_each("aws_conn_id azure_conn_id cluster-identifier workgroup-name", _IAM),
        "cursor": _OF_AIRFLOWS_HOOK,
        "sqlalchemy_scheme": "the driver is always psycopg; remove it",
        "sqlalchemy_query": "make each of its options an extra",
    },
)
"""Parameters of libpq, and what Airflow's PostgresHook reads."""
POSTGRESQL_ADDRESS = Driver("the address of PostgreSQL", _each("dbname host port user", text))
"""Extras of a connection that stand for empty fields."""

MYSQL = Driver(
    "MySQL",
    {
        **_each("bind_address init_command program_name unix_socket", text),
        **_each("ssl_ca ssl_capath ssl_cert ssl_cipher ssl_key", text),
        **_each("ssl_check_hostname ssl_disabled ssl_verify_cert ssl_verify_identity", flag),
        "connect_timeout": between(1, 31_536_000),
        "ssl_mode": one_of("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"),
    },
    fixed={
        "charset": always("utf8mb4", "utf8", why=_NO_ENCODING),
        "iam": must_be(False, _IAM),
        "local_infile": must_be(False, "no files are loaded"),
        "use_unicode": must_be(True, "text is always text here"),
    },
    refuses={
        **_each("database db host passwd password port user", _ADDRESS),
        **_each("ssl_key_password server_public_key", _SECRET),
        **_each("read_timeout write_timeout", "use the sink's option timeout"),
        **_each("autocommit client_flag collation cursorclass isolation_level sql_mode", "the sink sets it itself"),
        **_each(
            "read_default_file read_default_group", "the driver reads such files only in part; give the options here"
        ),
        **_each("ssl_crl ssl_crlpath tls_version tls_versions tls_ciphersuites", "PyMySQL has no such option"),
        "aws_conn_id": _IAM,
        "client": "the driver is always PyMySQL; remove it",
        "cursor": _OF_AIRFLOWS_HOOK,
    },
)
"""Arguments of PyMySQL, other drivers' names for them, and what Airflow's MySqlHook reads."""

SQLITE = Driver(
    "SQLite",
    {},
    refuses={
        "timeout": "how long to wait for the file's locks is an option of the store or the sink, timeout",
        "uri": "give the path of the file, without file: and options",
    },
)

REDIS_TLS = Driver(
    "Redis with TLS",
    {
        **_each("ssl_ca_certs ssl_ca_path ssl_certfile ssl_ciphers ssl_keyfile", text),
        "ssl_ca_data": lambda value: value if isinstance(value, str) else text(value),
        "ssl_cert_reqs": one_of("required", "optional", "none"),
        "ssl_check_hostname": flag,
        "ssl_min_version": one_of("TLSv1.2", "TLSv1.3"),
    },
    refuses={"ssl_password": _SECRET},
)
"""TLS options of redis-py."""

REDIS_CONNECTION = Driver(
    "Redis",
    {
        **REDIS_TLS.takes,
        **_each("cluster ssl", flag),
        "db": whole,
        **_each("socket_connect_timeout socket_timeout", seconds),
    },
    refuses={
        **REDIS_TLS.refuses,
        **_each("host password port username", _ADDRESS),
        "startup_nodes": "name one node as the host; the sink learns the others from it",
        **_each(
            "sentinels sentinel_kwargs service_name master_name",
            "Sentinel is not supported; name the primary as the host",
        ),
        "unix_socket_path": "Unix sockets are not supported; name host and port",
    },
)
"""What a connection or URL of Redis takes besides its address."""

ELASTICSEARCH = Driver(
    "Elasticsearch",
    {
        **_each("ca_certs client_cert client_key ssl_assert_fingerprint", text),
        **_each("http_compress ssl_show_warn verify_certs", flag),
        "ssl_assert_hostname": lambda value: False if str(value).lower() == "false" else text(value),
    },
    refuses=_each("request_timeout timeout", "use the sink's option timeout"),
)
"""The client's arguments that users may give. The library sets the others, or they are secrets."""

ELASTICSEARCH_CONNECTION = Driver(
    "Elasticsearch",
    {
        **ELASTICSEARCH.takes,
        "api_key": text,
        "scheme": one_of("http", "https"),
        **_each("request_timeout timeout", seconds),
        "use_ssl": flag,
    },
    refuses={
        **_each("hosts host password port user", _ADDRESS),
        **_each("max_retries retry_on_status retry_on_timeout", "only the drain decides when to retry"),
        **_each("field_multi_value_leniency fetch_size", _OF_AIRFLOWS_HOOK),
        **_each("basic_auth bearer_auth http_auth", "give login and password, or the extra api_key"),
        "cloud_id": "give the host that it names, and the schema https",
        "headers": "they may hold secrets; give login and password, or the extra api_key",
    },
)
"""What a connection to Elasticsearch takes besides its address."""

OPENSEARCH = Driver("OpenSearch", {**ELASTICSEARCH.takes, "opaque_id": text}, refuses=ELASTICSEARCH.refuses)
"""The client's arguments that users may give. The library sets the others, or they are secrets."""

OPENSEARCH_CONNECTION = Driver(
    "OpenSearch",
    {
        **OPENSEARCH.takes,
        "scheme": one_of("http", "https"),
        **_each("request_timeout timeout", seconds),
        "url_prefix": text,
        "use_ssl": flag,
    },
    refuses={
        **_each("hosts host password port user", _ADDRESS),
        **_each("max_retries retry_on_status retry_on_timeout", "only the drain decides when to retry"),
        **_each("api_key basic_auth bearer_auth http_auth", "give login and password"),
        **_each("aws_conn_id region region_name service", _IAM),
        "connection_class": "the library has its own connections; remove it",
        "headers": "they may hold secrets; give login and password",
        "log_query": _OF_AIRFLOWS_HOOK,
    },
)
"""What a connection to OpenSearch takes besides its address: what Airflow's OpenSearchHook reads, and TLS."""
