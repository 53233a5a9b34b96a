"""URLs of SQL databases, and the driver arguments that they stand for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from export_queue.core.drivers.mysql import mysql_options, tls_demand
from export_queue.core.drivers.options import check_files
from export_queue.core.drivers.tables import POSTGRESQL, SQLITE
from export_queue.core.errors import ExportQueueError, InvalidArgument

Refusal = type[ExportQueueError]
_SEVERAL_HOSTS = re.compile(r"postgres[^:/]*://([^/?#]*@)?[^/?#@]*,")
_HOSTS_HINT = "name them in the options host and port after the ? of the URL, separated by commas"
_DEMANDS = ("ssl_max_protocol_version", "ssl_min_protocol_version", "sslcrl", "sslcrldir", "sslrootcert")
_WITH_PASSWORD = re.compile(r":.*@", re.DOTALL)
_HOST_AND_PORT = re.compile(r"(\[[^\]]+\]|[^/:@\[\]]*):(\d+)")


def parse_url(text: str, *, where: str, error: Refusal = InvalidArgument, hint: str | None = None) -> URL:
    """Parse a URL. Errors do not show it, since it may hold a password."""
    try:
        url = make_url(text.strip())
    except (ArgumentError, ValueError):  # ValueError: the port is not a number
        if _SEVERAL_HOSTS.match(text.strip()):
            raise error(f"{where}: several hosts must be options of the URL", hint=_HOSTS_HINT) from None
        raise error(f"{where} is not a database URL", hint=hint) from None
    if url.port is not None and not _is_port(str(url.port)):
        raise error(f"{where}: expected a port from 1 to 65535, found {url.port}")
    for name, value in parse_qsl(text.strip().partition("?")[2], keep_blank_values=True):
        if not value and "@" in name:
            raise error(f"{where} is not a database URL", hint="in a password write %3F for a question mark")
        if not value:  # SQLAlchemy leaves it out
            raise error(f"{where}: option {name!r} has no value")
    return url


def bare_url(url: URL, drivername: str | None = None) -> URL:
    """Return a URL without password and options."""
    # url.set(password=None) would keep the password
    return url.set(drivername=drivername or url.drivername, query={})._replace(password=None)


def password_of(url: URL) -> str | None:
    """Return the password of a URL, from its first part or its options."""
    found = url.password or url.query.get("password")
    return found[-1] if isinstance(found, tuple) else found


def query_of(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options as the query of a URL."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


def check_sql_url(url: URL, *, where: str, error: Refusal = InvalidArgument) -> None:
    """Refuse options that the driver does not take. Options of other databases are checked at the first connection."""
    backend = url.get_backend_name()
    if backend == "sqlite":
        SQLITE.read(url.query, where=where, error=error)
    elif backend in ("postgresql", "postgres"):
        postgresql_arguments(url, where=where, error=error)
    elif backend in ("mysql", "mariadb"):
        tls_demand(_mysql_options(url, where, error), where=where, error=error)


def driver_arguments(url: URL, *, where: str, error: Refusal = InvalidArgument) -> dict[str, Any]:
    """Return the URL of a SQLite, PostgreSQL or MySQL database as arguments of its driver."""
    backend = url.get_backend_name()
    if backend == "sqlite":
        return SQLITE.read(url.query, where=where, error=error)
    read = postgresql_arguments if backend == "postgresql" else mysql_arguments
    return read(url, where=where, error=error)


def postgresql_arguments(url: URL, *, where: str, error: Refusal = InvalidArgument) -> dict[str, str]:
    """Return a URL as parameters of libpq, without the password.

    Hosts may precede the path or be options, as ``host=a,b&port=1,2`` or ``host=a:1&host=b:2``. A host that begins with
    a slash is the folder of a socket. Options that would not be enforced are refused.
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
            raise error(f"{where}: several hosts must be options of the URL", hint=_HOSTS_HINT)
    found = {name: value for name, first, second in address if (value := first or second)}
    _refuse_passwords(found, where, error)
    ports, hosts = found.get("port", "").split(","), found.get("host", "").split(",")
    if len(ports) not in (1, len(hosts)) or not all(_is_port(one) for one in ports):
        raise error(f"{where}: expected one port from 1 to 65535, or as many as hosts")
    read = POSTGRESQL.read(options, where=where, error=error)
    if re.search(r"client[-_]encoding\s*=", read.get("options", ""), re.IGNORECASE):
        raise error(f"{where}: option 'options': no other encoding than UTF8 is used here")
    _refuse_clear(read, where, error)
    if "requirepeer" in read and ("hostaddr" in read or any(one[:1] not in ("", "/", "@") for one in hosts)):
        raise error(f"{where}: requirepeer is only enforced for a socket of this machine")
    return found | read


def _refuse_passwords(address: Mapping[str, str | None], where: str, error: Refusal) -> None:
    """Refuse parts of an address that hold a user with a password. They would be shown, since they are no secret."""
    for name, value in address.items():
        parts = (value or "").split(",") if name == "host" else [value or ""]
        if any(_WITH_PASSWORD.search(one) and not one.startswith("/") for one in parts):
            raise error(
                f"{where}: {name} holds a user and a password (what was found is not shown)",
                hint="give them in the fields or parts for user and password; in a URL write %2F for a slash in them",
            )


def _refuse_clear(options: Mapping[str, str], where: str, error: Refusal) -> None:
    """Refuse a TLS demand if libpq would connect without TLS, or without the demand."""
    mode = options.get("sslmode")
    if mode is None and "service" in options:
        return  # the service may set the mode
    demands = [name for name in _DEMANDS if options.get(name, "system") != "system"]
    if mode == "require":
        demands = [] if "sslrootcert" in options else [name for name in demands if name.startswith("sslcrl")]
    if demands and mode not in ("verify-ca", "verify-full"):
        raise error(
            f"{where}: sslmode {mode or 'prefer'} does not enforce {', '.join(demands)}",
            hint="give sslmode the value verify-full, verify-ca or, for a protocol version alone, require",
        )


def check_postgresql_files(arguments: Mapping[str, str], *, where: str, error: Refusal = InvalidArgument) -> None:
    """Make sure that the files named by parameters of libpq can be read: it connects without most of them."""
    files = {name: path for name, path in arguments.items() if path != "system" and not path.startswith("pkcs11:")}
    names = ("passfile", "servicefile", "sslcert", "sslcrl", "sslcrldir", "sslkey", "sslrootcert")
    check_files(files, *names, where=where, error=error)


def _host_and_port(
    hosts: str | tuple[str, ...], ports: str | tuple[str, ...], where: str, error: Refusal
) -> tuple[str, str]:
    """Return the hosts and ports among a URL's options in the notation of libpq."""
    names = tuple(name for some in _tuple(hosts) for name in some.split(","))
    pairs = [_HOST_AND_PORT.fullmatch(name) for name in names]
    if any(pairs):
        if ports:
            raise error(f"{where}: port is given twice")
        names = tuple(pair[1] if pair else name for pair, name in zip(pairs, names, strict=True))
        ports = tuple(pair[2] if pair else "" for pair in pairs)
    return ",".join(name.strip("[]") for name in names), ",".join(_tuple(ports))


def postgresql_url(arguments: Mapping[str, Any]) -> URL:
    """Return parameters of libpq as a URL that :func:`postgresql_arguments` reads."""
    rest = dict(arguments)
    user, database, host = rest.pop("user", None), rest.pop("dbname", None), rest.pop("host", None)
    port = rest.pop("port", None)
    # The first part of a URL cannot hold these characters, and host:port would look like an IPv6 address.
    is_plain = host and not re.search(r"[/,@%\[\]]", host) and host.count(":") != 1
    if not is_plain or (port and not _is_port(str(port))):
        rest = {name: value for name, value in (("host", host), ("port", port)) if value} | rest
        host = port = None
    return URL.create("postgresql+psycopg", user, None, host, int(port) if port else None, database, query_of(rest))


def mysql_arguments(url: URL, *, where: str, error: Refusal = InvalidArgument) -> dict[str, Any]:
    """Return a URL as arguments of PyMySQL, without the password. TLS files are read."""
    import pymysql

    options = _mysql_options(url, where, error)
    demand = tls_demand(options, where=where, error=error)
    check_files(demand.files, "ssl_ca", "ssl_capath", "ssl_cert", "ssl_key", where=where, error=error)
    try:
        tls = demand.arguments()
    except (OSError, ValueError) as problem:  # ssl.SSLError is an OSError
        raise error(f"{where}: the files or ciphers of TLS: {problem}") from None
    if "ssl" in tls and pymysql.VERSION[:2] < (1, 2):  # older ones continue unencrypted if the server has no TLS
        raise error(f"{where}: TLS is demanded, which needs PyMySQL 1.2", hint="pip install 'pymysql>=1.2'")
    rest = {name: value for name, value in options.items() if not name.startswith("ssl_")}
    host = unquote(url.host) if url.host else None
    address = {"user": url.username, "database": url.database, "host": host, "port": url.port}
    return {name: value for name, value in address.items() if value is not None} | rest | tls


def _mysql_options(url: URL, where: str, error: Refusal) -> dict[str, Any]:
    address = {"user": url.username, "host": unquote(url.host or ""), "database": url.database}
    _refuse_passwords(address, where, error)
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
