"""URLs of SQL databases, as people write them, and the arguments of the drivers that they name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from export_queue.core.drivers.mysql_tls import tls_demand
from export_queue.core.drivers.options import check_files
from export_queue.core.drivers.tables import POSTGRESQL, SQLITE, mysql_options
from export_queue.core.errors import ExportQueueError, InvalidArgument

Refusal = type[ExportQueueError]
_SEVERAL_HOSTS = re.compile(r"postgres[^:/]*://([^/?#]*@)?[^/?#@]*,")
_HOSTS_HINT = "name them in the options host and port behind the ? of the URL, separated by commas"
_DEMANDS = ("ssl_max_protocol_version", "ssl_min_protocol_version", "sslcrl", "sslcrldir", "sslrootcert")
_HOST_AND_PORT = re.compile(r"(\[[^\]]+\]|[^/:@\[\]]*):(\d+)")


def parse_url(text: str, *, where: str, error: Refusal = InvalidArgument, hint: str | None = None) -> URL:
    """Parse a URL, which the error does not repeat: it may hold a password.

    :param where: the place of the URL, for errors.
    :param hint: what the error advises.
    """
    try:
        url = make_url(text.strip())
    except (ArgumentError, ValueError):  # ValueError: of a port that is no number
        if _SEVERAL_HOSTS.match(text.strip()):
            raise error(f"{where}: several hosts are options of the URL", hint=_HOSTS_HINT) from None
        raise error(f"{where} is not a database URL", hint=hint) from None
    if url.port is not None and not _is_port(str(url.port)):
        raise error(f"{where}: expected a port from 1 to 65535, found {url.port}")
    for name, value in parse_qsl(text.strip().partition("?")[2], keep_blank_values=True):
        if not value:  # which SQLAlchemy leaves out
            raise error(f"{where}: option {name!r} has no value")
    return url


def bare_url(url: URL, drivername: str | None = None) -> URL:
    """Return a URL without password and options."""
    # set() would keep the password
    return url.set(drivername=drivername or url.drivername, query={})._replace(password=None)


def password_of(url: URL) -> str | None:
    """Return the password that a URL holds, in its first part or among its options."""
    found = url.password or url.query.get("password")
    if isinstance(found, tuple):
        found = found[-1]
    return None if found is None else str(found)


def query_of(options: Mapping[str, Any]) -> dict[str, str]:
    """Write options for the query of a URL."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


def check_sql_url(url: URL, *, where: str, error: Refusal = InvalidArgument) -> None:
    """Refuse options that the database's driver does not take; those of other databases are checked at the opening.

    :raises ExportQueueError: the option is named; its value is not shown where it is unknown.
    """
    backend = url.get_backend_name()
    if backend == "sqlite":
        SQLITE.read(url.query, where=where, error=error)
    elif backend in ("postgresql", "postgres"):
        postgresql_arguments(url, where=where, error=error)
    elif backend in ("mysql", "mariadb"):
        tls_demand(_mysql_options(url, where, error), where=where, error=error)


def driver_arguments(url: URL, *, where: str, error: Refusal = InvalidArgument) -> dict[str, Any]:
    """Return what the URL of a SQLite, PostgreSQL or MySQL database says as arguments of its driver.

    :raises ExportQueueError: as of :func:`check_sql_url`.
    """
    backend = url.get_backend_name()
    if backend == "sqlite":
        check_sql_url(url, where=where, error=error)
        return {}
    read = postgresql_arguments if backend == "postgresql" else mysql_arguments
    return read(url, where=where, error=error)


def postgresql_arguments(url: URL, *, where: str, error: Refusal = InvalidArgument) -> dict[str, str]:
    """Return what a URL says as parameters of libpq, without the password.

    Hosts may stand in front of the path or in the options, as ``host=a,b&port=1,2`` or ``host=a:1&host=b:2``. One that
    begins with a slash is the folder of a socket.

    :raises ExportQueueError: an option is unknown, has a wrong value, or is given twice.
    """
    query = {name: value for name, value in url.query.items() if name != "password"}
    host, port = _host_and_port(query.pop("host", ()), query.pop("port", ()), where, error)
    options = {name: _single(name, value, where, error) for name, value in query.items()}
    address = [
        ("user", url.username, options.pop("user", None)),
        ("dbname", url.database, options.pop("dbname", None)),
        ("host", unquote(url.host) if url.host else None, host),
        ("port", None if url.port is None else str(url.port), port),
    ]
    for name, first, second in address:
        if first and second:
            raise error(f"{where}: {name} is given twice")
        if name == "host" and "," in (first or ""):
            raise error(f"{where}: several hosts are options of the URL", hint=_HOSTS_HINT)
    found = {name: value for name, first, second in address if (value := first or second)}
    ports, hosts = found.get("port", "").split(","), found.get("host", "").split(",")
    if len(ports) not in (1, len(hosts)) or not all(_is_port(one) for one in ports):
        raise error(f"{where}: expected one port from 1 to 65535, or as many as hosts")
    read = POSTGRESQL.read(options, where=where, error=error)
    if re.search(r"client[-_]encoding\s*=", read.get("options", ""), re.IGNORECASE):
        raise error(f"{where}: option 'options': text travels in no other encoding than UTF8 here")
    _refuse_clear(read, where, error)
    if "requirepeer" in read and ("hostaddr" in read or any(one[:1] not in ("", "/", "@") for one in hosts)):
        raise error(f"{where}: nothing keeps requirepeer on a way that is no socket of this machine")
    return found | read


def _refuse_clear(options: Mapping[str, str], where: str, error: Refusal) -> None:
    """Refuse what is demanded of TLS where libpq would go on without TLS, or without the demand."""
    mode = options.get("sslmode")
    if mode is None and "service" in options:
        return  # which may say it
    demands = [name for name in _DEMANDS if options.get(name, "system") != "system"]
    if mode == "require":
        demands = [] if "sslrootcert" in options else [name for name in demands if name.startswith("sslcrl")]
    if demands and mode not in ("verify-ca", "verify-full"):
        raise error(
            f"{where}: with sslmode {mode or 'prefer'} nothing keeps {', '.join(demands)}",
            hint="give sslmode the value verify-full, verify-ca or, for a protocol version alone, require",
        )


def check_postgresql_files(arguments: Mapping[str, str], *, where: str, error: Refusal = InvalidArgument) -> None:
    """Make sure that the files which parameters of libpq name can be read: it goes on without most of them.

    :raises ExportQueueError: one cannot be read.
    """
    files = {name: path for name, path in arguments.items() if path != "system" and not path.startswith("pkcs11:")}
    names = ("passfile", "servicefile", "sslcert", "sslcrl", "sslcrldir", "sslkey", "sslrootcert")
    check_files(files, *names, where=where, error=error)


def _host_and_port(
    hosts: str | tuple[str, ...], ports: str | tuple[str, ...], where: str, error: Refusal
) -> tuple[str, str]:
    """Read the hosts and ports among the options of a URL, as libpq writes them."""
    names = tuple(name for some in _tuple(hosts) for name in some.split(","))
    pairs = [_HOST_AND_PORT.fullmatch(name) for name in names]
    if any(pairs):
        if ports:
            raise error(f"{where}: port is given twice")
        names = tuple(pair[1] if pair else name for pair, name in zip(pairs, names, strict=True))
        ports = tuple(pair[2] if pair else "" for pair in pairs)
    return ",".join(name.strip("[]") for name in names), ",".join(_tuple(ports))


def postgresql_url(arguments: Mapping[str, Any]) -> URL:
    """Write parameters of libpq as a URL, which :func:`postgresql_arguments` reads."""
    rest = dict(arguments)
    user, database, host = rest.pop("user", None), rest.pop("dbname", None), rest.pop("host", None)
    port = rest.pop("port", None)
    # The first part of a URL does not hold these, and cannot tell host:port from an address of IPv6.
    if not host or re.search(r"[/,@%\[\]]", host) or host.count(":") == 1:
        rest = {name: value for name, value in (("host", host), ("port", port)) if value} | rest
        host = port = None
    return URL.create("postgresql+psycopg", user, None, host, int(port) if port else None, database, query_of(rest))


def mysql_arguments(url: URL, *, where: str, error: Refusal = InvalidArgument) -> dict[str, Any]:
    """Return what a URL says as arguments of PyMySQL, without the password; files of TLS are read.

    :raises ExportQueueError: an option is unknown, has a wrong value, or its file cannot be read.
    """
    import pymysql

    options = _mysql_options(url, where, error)
    demand = tls_demand(options, where=where, error=error)
    check_files(demand.files, "ssl_ca", "ssl_capath", "ssl_cert", "ssl_key", where=where, error=error)
    try:
        tls = demand.arguments()
    except (OSError, ValueError) as problem:  # the first is ssl.SSLError, too
        raise error(f"{where}: the files or ciphers of TLS: {problem}") from None
    if "ssl" in tls and pymysql.VERSION[:2] < (1, 2):  # which go on in clear with a server that has no TLS
        raise error(f"{where}: TLS is demanded, for which PyMySQL 1.2 is needed", hint="pip install 'pymysql>=1.2'")
    rest = {name: value for name, value in options.items() if not name.startswith("ssl_")}
    address = {
        "user": url.username,
        "database": url.database,
        "host": unquote(url.host) if url.host else None,
        "port": url.port,
    }
    return {name: value for name, value in address.items() if value is not None} | rest | tls


def _mysql_options(url: URL, where: str, error: Refusal) -> dict[str, Any]:
    query = {name: value for name, value in url.query.items() if name != "password"}
    single = {name: _single(name, value, where, error) for name, value in query.items()}
    return mysql_options(single, where=where, error=error)


def _is_port(text: str) -> bool:
    return not text or (text.isdecimal() and 0 < int(text) < 1 << 16)


def _single(name: str, value: str | tuple[str, ...], where: str, error: Refusal) -> str:
    if isinstance(value, str):
        return value
    raise error(f"{where}: option {name!r} is given {len(value)} times")


def _tuple(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
