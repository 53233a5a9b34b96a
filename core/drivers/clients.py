"""Options of a Redis, Elasticsearch or OpenSearch connection besides its address, as arguments of the client."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from ssl import PROTOCOL_TLS_CLIENT, SSLContext, TLSVersion
from typing import Any

from export_queue.core.drivers.options import check_files
from export_queue.core.drivers.tables import ELASTICSEARCH, OPENSEARCH, REDIS_CONNECTION, REDIS_TLS
from export_queue.core.errors import ExportQueueError, InvalidArgument, SinkConfigurationError

_CA = ("ssl_ca_certs", "ssl_ca_path", "ssl_ca_data")
"""In the order of ``SSLContext.load_verify_locations``."""


def redis_target(
    given: Mapping[str, Any], *, path: str | None = None, where: str, error: type[ExportQueueError] = InvalidArgument
) -> dict[str, Any]:
    """Return a connection's options as options of the Redis sink.

    :param given: extras of a connection, or the options of a URL.
    :param path: what follows host and port: the number of the database.
    """
    options = REDIS_CONNECTION.read(given, where=where, error=error)
    if options.get("ssl") is False:  # Airflow's form writes these even where nobody has touched them
        untouched = {"ssl_cert_reqs": "required", "ssl_check_hostname": False}
        options = {name: value for name, value in options.items() if (name, value) not in untouched.items()}
    is_cluster, ssl = options.pop("cluster", False), options.pop("ssl", False)
    if number := (path or "").strip("/"):
        if not number.isdecimal():
            raise error(f"{where}: expected the number of a Redis database after host:port/, found something else")
        if options.setdefault("db", int(number)) != int(number):
            raise error(f"{where}: two databases are named, {int(number)} and {options['db']}")
    if is_cluster and options.get("db"):
        raise error(f"{where}: a Redis Cluster has only the database 0, found {options['db']}")
    tls = {name: options.pop(name) for name in REDIS_TLS.takes if name in options}
    redis_tls(tls, ssl=ssl, where=where, error=error)
    return {"db": 0, **options, **({"ssl": True} if ssl else {}), **({"ssl_options": tls} if tls else {})}


def redis_tls(
    given: Mapping[str, Any], *, ssl: bool, where: str, error: type[ExportQueueError] = InvalidArgument
) -> dict[str, Any]:
    """Return TLS options as arguments of redis-py, or refuse options that would not be enforced."""
    options = REDIS_TLS.read(given, where=where, error=error)
    if options and not ssl:
        raise error(
            f"{where}: {', '.join(options)} without ssl",
            hint="also give the option ssl the value true, or begin with rediss://",
        )
    if options.get("ssl_cert_reqs") == "none":
        unkept = [name for name in _CA if name in options]
        if options.get("ssl_check_hostname"):
            unkept.append("ssl_check_hostname")
        if unkept:
            raise error(f"{where}: ssl_cert_reqs none does not enforce {', '.join(unkept)}")
    if ("ssl_keyfile" in options) > ("ssl_certfile" in options):
        raise error(f"{where}: ssl_keyfile needs ssl_certfile")
    if "ssl_min_version" in options:
        options["ssl_min_version"] = TLSVersion[options["ssl_min_version"].replace(".", "_")]
    return options


def check_redis_host(host: str, *, where: str, error: type[ExportQueueError] = InvalidArgument) -> None:
    """Make sure that a host is a name or an address. It is not shown, because it may hold a password."""
    if not host or any(sign in host for sign in "/@,?# ") or host.count(":") == 1:
        raise error(f"{where}: host: expected the name or the address of one host, without port and options")


def check_redis_tls(options: Mapping[str, Any], *, where: str, error: type[ExportQueueError] = InvalidArgument) -> None:
    """Make sure that files and ciphers can be used; otherwise redis-py would fail at each connection."""
    check_files(options, "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", where=where, error=error)
    context = SSLContext(PROTOCOL_TLS_CLIENT)
    try:
        if any(name in options for name in _CA):
            context.load_verify_locations(*map(options.get, _CA))
        if "ssl_certfile" in options:
            context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"))
        if "ssl_ciphers" in options:
            context.set_ciphers(options["ssl_ciphers"])
    except (OSError, ValueError) as problem:  # ssl.SSLError is an OSError
        raise error(f"{where}: the files or ciphers of TLS: {problem}") from None


def check_hosts(hosts: Sequence[str]) -> None:
    """Make sure that hosts are URLs with ``http`` or ``https``. The client would use any other scheme without TLS."""
    if not hosts or not all(re.fullmatch(r"https?://[^?#@]+", host, re.IGNORECASE) for host in hosts):
        raise SinkConfigurationError("hosts: expected https://host:port, without a user and options")


def client_arguments(given: Mapping[str, Any], hosts: Sequence[str], *, kind: str) -> dict[str, Any]:
    """Read options of a client, or refuse demands that the client would silently drop.

    :param kind: ``elasticsearch`` or ``opensearch``.
    """
    driver = OPENSEARCH if kind == "opensearch" else ELASTICSEARCH
    options = driver.read(given, where="client_options", error=SinkConfigurationError)
    for host in hosts:
        if "?" in host or "#" in host or "@" in host:
            raise SinkConfigurationError("hosts: expected https://host:port, without a user and options")
    tls = options.keys() - {"http_compress", "opaque_id"}
    if tls and not all(host.lower().startswith("https://") for host in hosts):
        raise SinkConfigurationError(
            f"client_options: {', '.join(sorted(tls))} with a host that is used without TLS",
            hint="begin hosts with https:// (in an Airflow connection: the field Schema)",
        )
    unkept, cause = set[str](), ""
    if "ssl_assert_fingerprint" in options:  # the client then compares nothing else
        unkept, cause = {"ca_certs", "ssl_assert_hostname"}, "ssl_assert_fingerprint"
        unkept |= {"verify_certs"} if options.get("verify_certs") else set()
    elif options.get("verify_certs") is False:
        unkept, cause = {"ca_certs", "ssl_assert_hostname"}, "verify_certs false"
    if dropped := sorted(unkept & options.keys()):
        raise SinkConfigurationError(f"client_options: with {cause} the client ignores {', '.join(dropped)}")
    if ("client_key" in options) > ("client_cert" in options):
        raise SinkConfigurationError("client_options: client_key needs client_cert")
    return options


def basic_auth(username: str, password: str) -> str:
    """Encode user and password for the client's argument ``basic_auth``; the client itself would use ASCII."""
    return base64.b64encode(f"{username}:{password}".encode()).decode()
