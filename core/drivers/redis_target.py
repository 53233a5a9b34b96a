"""What a connection or URL of Redis says beside its address, as options of the sink and arguments of redis-py."""

from __future__ import annotations

from collections.abc import Mapping
from ssl import PROTOCOL_TLS_CLIENT, SSLContext, TLSVersion
from typing import Any

from export_queue.core.drivers.options import check_files
from export_queue.core.drivers.tables import REDIS_CONNECTION, REDIS_TLS
from export_queue.core.errors import ExportQueueError, InvalidArgument

_CA = ("ssl_ca_certs", "ssl_ca_path", "ssl_ca_data")
"""In the order of ``SSLContext.load_verify_locations``."""


def redis_target(
    given: Mapping[str, Any], *, path: str | None = None, where: str, error: type[ExportQueueError] = InvalidArgument
) -> dict[str, Any]:
    """Read options as those of the sink.

    :param given: extras of a connection, or the options of a URL.
    :param path: what stands behind host and port: the number of the database.
    :raises ExportQueueError: an option is unknown or has a wrong value, or they contradict each other.
    """
    options = REDIS_CONNECTION.read(given, where=where, error=error)
    if options.get("ssl") is False:  # Airflow's form writes these, too, where nobody has touched them
        untouched = {"ssl_cert_reqs": "required", "ssl_check_hostname": False}
        options = {name: value for name, value in options.items() if (name, value) not in untouched.items()}
    is_cluster, ssl = options.pop("cluster", False), options.pop("ssl", False)
    if number := (path or "").strip("/"):
        if not number.isdecimal():
            raise error(f"{where}: expected the number of a Redis database behind host:port/, found something else")
        if options.setdefault("db", int(number)) != int(number):
            raise error(f"{where}: two databases are named, {int(number)} and {options['db']}")
    if is_cluster and options.get("db"):
        raise error(f"{where}: a Redis Cluster has the database 0 only, found {options['db']}")
    tls = {name: options.pop(name) for name in REDIS_TLS.takes if name in options}
    redis_tls(tls, ssl=ssl, where=where, error=error)
    return {"db": 0, **options, **({"ssl": True} if ssl else {}), **({"ssl_options": tls} if tls else {})}


def redis_tls(
    given: Mapping[str, Any], *, ssl: bool, where: str, error: type[ExportQueueError] = InvalidArgument
) -> dict[str, Any]:
    """Read options of TLS as redis-py takes them.

    :param ssl: whether the connection uses TLS.
    :raises ExportQueueError: one is unknown or has a wrong value, or would not be kept.
    """
    options = REDIS_TLS.read(given, where=where, error=error)
    if options and not ssl:
        raise error(
            f"{where}: {', '.join(options)} without ssl",
            hint="give the option ssl the value true as well, or begin with rediss://",
        )
    if options.get("ssl_cert_reqs") == "none":
        unkept = [name for name in _CA if name in options]
        if options.get("ssl_check_hostname"):
            unkept.append("ssl_check_hostname")
        if unkept:
            raise error(f"{where}: with ssl_cert_reqs none nothing keeps {', '.join(unkept)}")
    if ("ssl_keyfile" in options) > ("ssl_certfile" in options):
        raise error(f"{where}: ssl_keyfile goes with ssl_certfile")
    if "ssl_min_version" in options:
        options["ssl_min_version"] = TLSVersion[options["ssl_min_version"].replace(".", "_")]
    return options


def check_redis_tls(options: Mapping[str, Any], *, where: str, error: type[ExportQueueError] = InvalidArgument) -> None:
    """Make sure that files and ciphers can be used; redis-py would fail at each connection only.

    :param options: as :func:`redis_tls` returns them.
    :raises ExportQueueError: a file cannot be read, or OpenSSL does not take one of them or the ciphers.
    """
    check_files(options, "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", where=where, error=error)
    if not any(name in options for name in (*_CA, "ssl_certfile", "ssl_ciphers")):
        return
    context = SSLContext(PROTOCOL_TLS_CLIENT)
    try:
        if any(name in options for name in _CA):
            context.load_verify_locations(*map(options.get, _CA))
        if "ssl_certfile" in options:
            context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"))
        if "ssl_ciphers" in options:
            context.set_ciphers(options["ssl_ciphers"])
    except (OSError, ValueError) as problem:  # the first is ssl.SSLError, too
        raise error(f"{where}: the files or ciphers of TLS: {problem}") from None
