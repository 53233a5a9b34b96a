"""The options of each kind of connection: what is honoured, what is refused, and why.

``docs/connections.md`` shows the same tables; a test compares them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

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
from export_queue.core.errors import ExportQueueError, InvalidArgument

_ADDRESS = "it belongs in the address: a field of the connection, or the part of the URL in front of the ?"
_SECRET = "it is a secret, for which there is no place; use the password, or a key file that only its owner can read"
_IAM = "authentication by IAM is not supported; use a password or a client certificate"
_OF_AIRFLOWS_HOOK = "it is for queries through Airflow's own hook; remove it, or use a connection without it"
_TLS_VERSIONS = one_of("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3")

POSTGRESQL = Driver(
    "PostgreSQL",
    {
        "application_name": text,
        "channel_binding": one_of("disable", "prefer", "require"),
        "connect_timeout": digits(whole),
        "fallback_application_name": text,
        "gssdelegation": digits(flag),
        "gssencmode": one_of("disable", "prefer", "require"),
        "gsslib": text,
        "hostaddr": text,
        "keepalives": digits(flag),
        "keepalives_count": digits(whole),
        "keepalives_idle": digits(whole),
        "keepalives_interval": digits(whole),
        "krbsrvname": text,
        "load_balance_hosts": one_of("disable", "random"),
        "max_protocol_version": text,
        "min_protocol_version": text,
        "options": text,
        "passfile": text,
        "require_auth": text,
        "requirepeer": text,
        "service": text,
        "servicefile": text,
        "ssl_max_protocol_version": _TLS_VERSIONS,
        "ssl_min_protocol_version": _TLS_VERSIONS,
        "sslcert": text,
        "sslcertmode": one_of("disable", "allow", "require"),
        "sslcompression": digits(flag),
        "sslcrl": text,
        "sslcrldir": text,
        "sslkey": text,
        "sslkeylogfile": text,
        "sslmode": one_of("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
        "sslnegotiation": one_of("postgres", "direct"),
        "sslrootcert": text,
        "sslsni": digits(flag),
        "target_session_attrs": one_of("any", "read-write", "read-only", "primary", "standby", "prefer-standby"),
        "tcp_user_timeout": digits(whole),
    },
    fixed={
        "client_encoding": always("utf8", "utf-8", why="text travels in no other encoding here"),
        "iam": must_be(False, _IAM),
        "redshift": must_be(False, _IAM),
        "redshift-serverless": must_be(False, _IAM),
    },
    refuses={
        **dict.fromkeys(("dbname", "host", "password", "port", "user"), _ADDRESS),
        **dict.fromkeys(
            ("oauth_client_id", "oauth_client_secret", "oauth_issuer", "oauth_scope"),
            "authentication by OAuth is not supported; use a password or a client certificate",
        ),
        **dict.fromkeys(("scram_client_key", "scram_server_key", "sslpassword"), _SECRET),
        "replication": "sessions of replication run no statements",
        "prepare_threshold": "say behind_pooler instead",
        **dict.fromkeys(("aws_conn_id", "azure_conn_id", "cluster-identifier", "workgroup-name"), _IAM),
        "cursor": _OF_AIRFLOWS_HOOK,
        "sqlalchemy_scheme": "the driver is always psycopg; remove it",
        "sqlalchemy_query": "give each of its options as an extra of its own",
    },
)
"""Parameters of libpq, and what Airflow's PostgresHook reads."""

MYSQL = Driver(
    "MySQL",
    {
        "bind_address": text,
        "connect_timeout": between(1, 31_536_000),
        "init_command": text,
        "program_name": text,
        "ssl_ca": text,
        "ssl_capath": text,
        "ssl_cert": text,
        "ssl_check_hostname": flag,
        "ssl_cipher": text,
        "ssl_disabled": flag,
        "ssl_key": text,
        "ssl_mode": one_of("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"),
        "ssl_verify_cert": flag,
        "ssl_verify_identity": flag,
        "unix_socket": text,
    },
    fixed={
        "charset": always("utf8mb4", "utf8", why="text travels in no other encoding here"),
        "iam": must_be(False, _IAM),
        "local_infile": must_be(False, "no files are loaded"),
        "use_unicode": must_be(True, "text is always text here"),
    },
    refuses={
        **dict.fromkeys(("database", "db", "host", "passwd", "password", "port", "user"), _ADDRESS),
        **dict.fromkeys(("ssl_key_password", "server_public_key"), _SECRET),
        **dict.fromkeys(("read_timeout", "write_timeout"), "give the sink's own option timeout"),
        **dict.fromkeys(
            ("autocommit", "client_flag", "collation", "cursorclass", "isolation_level", "sql_mode"),
            "the sink sets it itself",
        ),
        **dict.fromkeys(
            ("read_default_file", "read_default_group"), "the driver reads such files in part; give the options here"
        ),
        **dict.fromkeys(
            ("ssl_crl", "ssl_crlpath", "tls_version", "tls_versions", "tls_ciphersuites"), "PyMySQL has none"
        ),
        "aws_conn_id": _IAM,
        "client": "the driver is always PyMySQL; remove it",
        "cursor": _OF_AIRFLOWS_HOOK,
    },
)
"""Arguments of PyMySQL, those of other drivers that say the same, and what Airflow's MySqlHook reads."""
_MYSQL_FILES = ("ca", "capath", "cert", "check_hostname", "cipher", "key")

SQLITE = Driver(
    "SQLite",
    {},
    refuses={
        "timeout": "the file's locks are waited for as long as the store or the sink's own option timeout says",
        "uri": "give the path of the file, without file: and options",
    },
)

REDIS_TLS = Driver(
    "Redis with TLS",
    {
        "ssl_ca_certs": text,
        "ssl_ca_data": lambda value: value if isinstance(value, str) else text(value),
        "ssl_ca_path": text,
        "ssl_cert_reqs": one_of("required", "optional", "none"),
        "ssl_certfile": text,
        "ssl_check_hostname": flag,
        "ssl_ciphers": text,
        "ssl_keyfile": text,
        "ssl_min_version": one_of("TLSv1.2", "TLSv1.3"),
    },
    refuses={"ssl_password": _SECRET},
)
"""Options of TLS of redis-py."""

REDIS_CONNECTION = Driver(
    "Redis",
    {
        **REDIS_TLS.takes,
        "cluster": flag,
        "db": whole,
        "socket_connect_timeout": seconds,
        "socket_timeout": seconds,
        "ssl": flag,
    },
    refuses={
        **REDIS_TLS.refuses,
        **dict.fromkeys(("host", "password", "port", "username"), _ADDRESS),
        "startup_nodes": "name one node as the host; the sink learns the others from it",
        **dict.fromkeys(
            ("sentinels", "sentinel_kwargs", "service_name", "master_name"),
            "Sentinel is not supported; name the primary as the host",
        ),
        "unix_socket_path": "sockets of one machine are not supported; name host and port",
    },
)
"""What a connection or URL of Redis takes beside its address."""

ELASTICSEARCH = Driver(
    "Elasticsearch",
    {
        "ca_certs": text,
        "client_cert": text,
        "client_key": text,
        "http_compress": flag,
        "ssl_assert_fingerprint": text,
        "ssl_assert_hostname": lambda value: False if str(value).lower() == "false" else text(value),
        "ssl_show_warn": flag,
        "verify_certs": flag,
    },
    refuses=dict.fromkeys(("request_timeout", "timeout"), "give the sink's own option timeout"),
)
"""Arguments of the client of Elasticsearch that users may give; the others are ours, or secrets."""

ELASTICSEARCH_CONNECTION = Driver(
    "Elasticsearch",
    {
        **ELASTICSEARCH.takes,
        "api_key": text,
        "request_timeout": seconds,
        "scheme": one_of("http", "https"),
        "timeout": seconds,
        "use_ssl": flag,
    },
    refuses={
        **dict.fromkeys(("hosts", "host", "password", "port", "user"), _ADDRESS),
        **dict.fromkeys(("max_retries", "retry_on_status", "retry_on_timeout"), "only the drain decides to repeat"),
        **dict.fromkeys(("field_multi_value_leniency", "fetch_size"), _OF_AIRFLOWS_HOOK),
        **dict.fromkeys(("basic_auth", "bearer_auth", "http_auth"), "give login and password, or the extra api_key"),
        "cloud_id": "give the host that it names, and the schema https",
        "headers": "they may hold secrets; give login and password, or the extra api_key",
    },
)
"""What a connection to Elasticsearch takes beside its address."""


def mysql_options(
    given: Mapping[str, Any], *, where: str, error: type[ExportQueueError] = InvalidArgument
) -> dict[str, Any]:
    """Read the options of MySQL; ``ssl`` may hold those of TLS, as an object or its JSON text.

    :raises ExportQueueError: as of :meth:`Driver.read`.
    """
    given = dict(given)
    files = given.pop("ssl", None) or {}
    if isinstance(files, str):
        try:
            files = json.loads(files)
        except ValueError:
            files = None
    if not isinstance(files, dict) or set(files) - set(_MYSQL_FILES):
        raise error(
            f"{where}: extra ssl: expected an object with some of {', '.join(_MYSQL_FILES)}",
            hint="to demand TLS without them, give ssl_mode the value REQUIRED, VERIFY_CA or VERIFY_IDENTITY",
        )
    for name, value in files.items():
        if given.get(f"ssl_{name}") is not None:
            raise error(f"{where}: option {name!r} of ssl is given a second time as 'ssl_{name}'")
        given[f"ssl_{name}"] = value
    return MYSQL.read(given, where=where, error=error)
