"""What the drivers of databases and servers take: each option is handed to its driver or refused by name."""

from export_queue.core.drivers.elasticsearch_client import basic_auth, client_arguments
from export_queue.core.drivers.mysql_tls import TlsDemand, tls_demand
from export_queue.core.drivers.options import Driver, check_files, flag, text
from export_queue.core.drivers.redis_target import check_redis_tls, redis_target, redis_tls
from export_queue.core.drivers.tables import (
    ELASTICSEARCH,
    ELASTICSEARCH_CONNECTION,
    MYSQL,
    POSTGRESQL,
    REDIS_CONNECTION,
    REDIS_TLS,
    SQLITE,
    mysql_options,
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
    "ELASTICSEARCH",
    "ELASTICSEARCH_CONNECTION",
    "MYSQL",
    "POSTGRESQL",
    "REDIS_CONNECTION",
    "REDIS_TLS",
    "SQLITE",
    "Driver",
    "TlsDemand",
    "bare_url",
    "basic_auth",
    "check_files",
    "check_postgresql_files",
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
    "text",
    "tls_demand",
]
