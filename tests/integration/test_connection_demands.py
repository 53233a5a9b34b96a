"""What a connection demands is kept: against servers with and without TLS, of stores and of sinks."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.support.certificates import lend, make_certificate
from tests.support.mariadb import MariaDbServer
from tests.support.servers import PostgresServer, free_port, unprivileged_account

from export_queue import SinkConfigurationError, SinkError, SinkSpec, SqlSink, Store, StoreUnavailable


@pytest.fixture(scope="module")
def certificates() -> Iterator[dict[str, str]]:
    """Paths: the servers' certificate, and one that nobody vouches for."""
    folder = Path(tempfile.mkdtemp(prefix="export-queue-tls-"))
    folder.chmod(0o755)  # servers do not run as root
    (folder / "own").mkdir()
    known = lend(make_certificate(folder / "own"), folder)
    other = make_certificate(folder / "own", "other")
    yield {"known": str(known), "key": str(known.with_suffix(".key")), "other": str(other)}
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def tls_postgres(certificates: dict[str, str]) -> Iterator[PostgresServer]:
    """A server with TLS of at most 1.2."""
    settings = {
        "ssl": "on",
        "ssl_cert_file": certificates["known"],
        "ssl_key_file": certificates["key"],
        "ssl_max_protocol_version": "TLSv1.2",
    }
    try:
        server = PostgresServer(settings)
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    with server:
        yield server


@pytest.fixture(scope="module")
def tls_mariadb(certificates: dict[str, str]) -> Iterator[MariaDbServer]:
    settings = {"ssl-cert": certificates["known"], "ssl-key": certificates["key"], "ssl-ca": certificates["known"]}
    try:
        server = MariaDbServer(settings)
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    with server:
        yield server


# -- PostgreSQL --------------------------------------------------------------------------------------------------------

ACCOUNT = account.pw_name if (account := unprivileged_account()) is not None else "root"
POSTGRES = [
    ("plain", "sslmode=require", "does not support SSL"),
    ("plain", "sslmode=verify-full&sslrootcert={known}", "does not support SSL"),
    ("plain", "require_auth=none", "none"),
    ("plain", "require_auth=password", "password"),
    ("plain", "require_auth=scram-sha-256", None),
    ("plain", "channel_binding=require", "channel binding"),
    ("tls", "sslmode=require&channel_binding=require", None),
    ("tls", "sslmode=verify-full&sslrootcert={known}", None),
    ("tls", "sslmode=verify-full&sslrootcert={other}", "certificate"),
    ("tls", "sslmode=verify-full&sslrootcert=system", "certificate"),
    ("tls", "sslmode=require&sslrootcert={other}", "certificate"),
    ("tls", "sslmode=require&ssl_min_protocol_version=TLSv1.3", "SSL"),
    ("tls", "sslmode=require&ssl_min_protocol_version=TLSv1.2", None),
    ("socket", "requirepeer=somebody-else", "requirepeer"),
    ("socket", f"requirepeer={ACCOUNT}", None),
]


@pytest.mark.parametrize(("way", "query", "complaint"), POSTGRES)
def test_what_a_url_of_postgresql_demands_is_kept_by_store_and_sink(
    way: str,
    query: str,
    complaint: str | None,
    postgres_server: PostgresServer,
    tls_postgres: PostgresServer,
    certificates: dict[str, str],
) -> None:
    server = postgres_server if way == "plain" else tls_postgres
    place = f"{server.host}:{server.port}"
    if way == "socket":
        place, query = "", f"host={quote(str(server.folder), safe='')}&port={server.port}&{query}"
    url = f"postgresql://{server.user}@{place}/postgres?{query.format(**certificates)}"
    with Store.open(url, password=server.password) as store, closing(SqlSink(url, server.password)) as sink:
        if complaint is None:
            assert "version" in sink.probe()
            store.create()
            return
        with pytest.raises(SinkError, match=complaint) as refused:
            sink.probe()
        with pytest.raises(StoreUnavailable, match=complaint):
            store.queues()
    assert server.password not in str(refused.value)


def test_the_first_of_several_hosts_that_fits_is_taken(postgres_server: PostgresServer) -> None:
    hosts = f"host=127.0.0.1,127.0.0.1&port={free_port()},{postgres_server.port}&target_session_attrs=read-write"
    url = f"postgresql://{postgres_server.user}@/postgres?{hosts}"
    with closing(SqlSink(url, postgres_server.password)) as sink:
        assert "version" in sink.probe()


def test_a_service_names_the_database(
    postgres_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = {"host": postgres_server.host, "port": postgres_server.port, "dbname": "postgres", "user": "nobody"}
    services = tmp_path / "services"
    services.write_text("[exports]\n" + "".join(f"{name}={value}\n" for name, value in lines.items()))
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    url = f"postgresql://{postgres_server.user}@/?service=exports"
    with closing(SqlSink(url, postgres_server.password)) as sink:
        assert "version" in sink.probe()


# -- MariaDB -----------------------------------------------------------------------------------------------------------

MARIADB = [
    ("plain", "127.0.0.1", "", None, False),
    ("plain", "127.0.0.1", "ssl_mode=PREFERRED", None, False),
    ("plain", "127.0.0.1", "ssl_mode=DISABLED&charset=utf8mb4&use_unicode=1", None, False),
    ("plain", "127.0.0.1", "ssl_mode=REQUIRED", "SSL is required", None),
    ("plain", "127.0.0.1", "ssl_mode=VERIFY_IDENTITY", "SSL is required", None),
    ("plain", "127.0.0.1", "ssl_ca={known}", "SSL is required", None),
    ("plain", "127.0.0.1", "ssl_verify_cert=false", "SSL is required", None),
    ("tls", "127.0.0.1", "", None, True),
    ("tls", "127.0.0.1", "ssl_disabled=false", None, True),
    ("tls", "127.0.0.1", "ssl_disabled=true", None, False),
    ("tls", "127.0.0.1", "ssl_mode=REQUIRED", None, True),
    ("tls", "127.0.0.1", "ssl_mode=VERIFY_IDENTITY", "certificate", None),
    ("tls", "127.0.0.1", "ssl_mode=VERIFY_CA&ssl_ca={other}", "certificate", None),
    ("tls", "127.0.0.1", "ssl_mode=VERIFY_IDENTITY&ssl_ca={known}", None, True),
    ("tls", "localhost", "ssl_ca={known}", "Hostname mismatch", None),
    ("tls", "localhost", "ssl_ca={known}&ssl_check_hostname=false", None, True),
    ("tls", "localhost", "ssl_mode=VERIFY_CA&ssl_ca={known}", None, True),
    ("tls", "nowhere.invalid", "unix_socket={socket}&ssl_mode=REQUIRED", None, True),
]


@pytest.mark.parametrize(("way", "host", "query", "complaint", "is_encrypted"), MARIADB)
def test_what_a_url_of_mariadb_demands_is_kept(
    way: str,
    host: str,
    query: str,
    complaint: str | None,
    is_encrypted: bool | None,
    mariadb_server: MariaDbServer,
    tls_mariadb: MariaDbServer,
    certificates: dict[str, str],
) -> None:
    server = mariadb_server if way == "plain" else tls_mariadb
    known: dict[str, Any] = {**certificates, "socket": tls_mariadb.folder / "socket"}
    url = f"mysql://{server.user}@{host}:{server.port}/mysql?{query.format(**known)}"
    with closing(SqlSink(url, server.password)) as sink:
        if complaint is not None:
            with pytest.raises(SinkError, match=complaint) as refused:
                sink.probe()
            assert server.password not in str(refused.value)
            return
        with sink._database.engine.connect() as connection:
            (_, cipher) = connection.exec_driver_sql("SHOW STATUS LIKE 'Ssl_cipher'").one()
        assert bool(cipher) is is_encrypted


def test_a_statement_at_each_connection_runs_beside_those_of_the_sink(mariadb_server: MariaDbServer) -> None:
    query = "ssl_disabled=true&init_command=" + quote("SET SESSION sql_mode = 'ANSI_QUOTES', @own = 7")
    with (
        closing(
            SqlSink(
                f"mysql://{mariadb_server.user}@127.0.0.1:{mariadb_server.port}/mysql?{query}", mariadb_server.password
            )
        ) as sink,
        sink._database.engine.connect() as connection,
    ):
        own, mode = connection.exec_driver_sql("SELECT @own, @@sql_mode").one()
        assert own == 7
        assert "ANSI_QUOTES" not in mode
        assert sink._database.engine.dialect.identifier_preparer.initial_quote == "`"


@pytest.mark.parametrize("password", ["p\xe9", "p€ & \U0001f511"])
def test_a_password_of_mariadb_may_be_any_text(password: str, mariadb_server: MariaDbServer) -> None:
    user = f"user_{secrets.token_hex(4)}"  # other processes run this test on the same server
    mariadb_server._execute(f"CREATE USER {user} IDENTIFIED BY '{password}'")
    url = f"mysql://{user}@127.0.0.1:{mariadb_server.port}/?ssl_disabled=true"
    with closing(SqlSink(url.replace("/?", "/information_schema?"), password)) as sink:
        assert "version" in sink.probe()


def test_a_socket_of_mariadb_is_named_when_it_does_not_answer() -> None:
    url = "mysql://u@db.example/d?unix_socket=/no/such/socket"
    with closing(SqlSink(url)) as sink, pytest.raises(SinkError, match="MySQL at /no/such/socket, database d"):
        sink.probe()


@pytest.mark.parametrize("query", ["ssl_ca=/no/such/file", "ssl_mode=REQUIRED&ssl_cipher=none-such"])
def test_files_and_ciphers_that_cannot_be_used_are_told_before_anything_is_sent(query: str) -> None:
    with pytest.raises(SinkConfigurationError, match="cannot be read|files or ciphers of TLS"):
        SqlSink(f"mysql://u@127.0.0.1:1/d?{query}")


# -- others ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("sqlite:///{folder}/x.db?nonsense=1", "unknown option 'nonsense'; SQLite takes none"),
        ("sqlite:///{folder}/x.db?timeout=5", "'timeout' cannot be honoured"),
        ("sqlite:///file:{folder}/x.db?mode=ro&uri=true", "option 'mode'"),
        ("nonsense://h/d?x=1", "dialect"),
        ("mssql+pymssql://h/d?x=1", "dialect"),
    ],
)
def test_an_option_of_another_database_is_not_dropped(url: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(SinkConfigurationError, match=complaint):
        SinkSpec("sql", {"url": url.format(folder=tmp_path)}).open()
    assert list(tmp_path.iterdir()) == []
