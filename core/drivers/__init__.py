"""Options of database drivers and clients: each option is passed to its driver or refused by name."""

from export_queue.core.drivers.clients import (
    basic_auth,
    check_hosts,
    check_redis_host,
    check_redis_tls,
    client_arguments,
    redis_target,
    redis_tls,
)
from export_queue.core.drivers.mysql import mysql_options
from export_queue.core.drivers.options import Driver, check_files, flag, seconds, text
from export_queue.core.drivers.tables import (
    ELASTICSEARCH_CONNECTION,
    OPENSEARCH_CONNECTION,
    POSTGRESQL,
    POSTGRESQL_ADDRESS,
    SQLITE,
)
from export_queue.core.drivers.urls import (
    bare_url,
    check_postgresql_files,
    check_sql_url,
    driver_arguments,
    mysql_arguments,
    parse_url,
    password_of,
    postgresql_arguments,
    postgresql_url,
    query_of,
)

__all__ = [
    "ELASTICSEARCH_CONNECTION",
    "OPENSEARCH_CONNECTION",
    "POSTGRESQL",
    "POSTGRESQL_ADDRESS",
    "SQLITE",
    "Driver",
    "bare_url",
    "basic_auth",
    "check_files",
    "check_hosts",
    "check_postgresql_files",
    "check_redis_host",
    "check_redis_tls",
    "check_sql_url",
    "client_arguments",
    "driver_arguments",
    "flag",
    "mysql_arguments",
    "mysql_options",
    "parse_url",
    "password_of",
    "postgresql_arguments",
    "postgresql_url",
    "query_of",
    "redis_target",
    "redis_tls",
    "seconds",
    "text",
]
