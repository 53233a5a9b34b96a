"""Each row of ``docs/connections.md`` on a real server with TLS: an honoured option has its effect, a refused one none.

An option that shows something has a row in one of the tables here, or a test with the mark ``shows``. What cannot be
seen on these servers is in ``UNSEEN``, with the reason. ``test_every_option_has_a_row`` compares them with the options
of ``core/drivers/tables.py``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import psycopg
import pytest
import redis
from tests.support.certificates import Authority, hashed_folder, lend
from tests.support.elasticsearch import VERSIONS, ElasticsearchServer
from tests.support.mariadb import MariaDbServer
from tests.support.redis_records import admit, puts
from tests.support.servers import HOST, PostgresServer, RedisServer, free_port, unprivileged_account
from tests.support.tls_proxy import TlsProxy
from tests.support.waiting import PATIENCE

from export_queue import (
    ApplyResult,
    ConfigurationError,
    ElasticsearchSink,
    OpenSearchSink,
    Operations,
    RedisSink,
    SinkConfigurationError,
    SinkError,
    SinkSpec,
    SqlSink,
    Store,
    StoreUnavailable,
)
from export_queue.core.drivers import Driver, redis_target
from export_queue.core.drivers.tables import (
    ELASTICSEARCH_CONNECTION,
    MYSQL,
    OPENSEARCH_CONNECTION,
    POSTGRESQL,
    REDIS_CONNECTION,
)

Test = TypeVar("Test", bound=Callable[..., Any])
DRIVERS = (POSTGRESQL, MYSQL, REDIS_CONNECTION, ELASTICSEARCH_CONNECTION, OPENSEARCH_CONNECTION)
SHOWN: dict[str, set[str]] = {driver.name: set() for driver in DRIVERS}
_OF_SEARCH_HOOKS = {
    "scheme": "becomes the beginning of the hosts' URLs: tests/airflow/test_hooks.py",
    "use_ssl": "becomes the beginning of the hosts' URLs: tests/airflow/test_hooks.py",
    "request_timeout": "becomes the sink's timeout, which has a test here: tests/airflow/test_hooks.py",
}
UNSEEN: Mapping[str, Mapping[str, str]] = {
    POSTGRESQL.name: {
        "gsslib": "libpq reads it on Windows only",
        "krbsrvname": "needs a server with Kerberos",
        "gssdelegation": "needs a server with Kerberos",
        "sslcompression": "OpenSSL has no compression any more, so both values do the same",
    },
    MYSQL.name: {},
    REDIS_CONNECTION.name: {"cluster": "the sink detects a cluster by itself; with a database it is refused below"},
    ELASTICSEARCH_CONNECTION.name: _OF_SEARCH_HOOKS,
    OPENSEARCH_CONNECTION.name: _OF_SEARCH_HOOKS,
}


def shows(driver: Driver, options: str) -> Callable[[Test], Test]:
    """Note that a test shows the effect of some options."""
    SHOWN[driver.name] |= set(options.split())
    return lambda test: test


@dataclass(frozen=True)
class Fails:
    """The connection is refused, with this in the message."""

    complaint: str


@dataclass(frozen=True)
class Finds:
    """A statement on the connection returns this."""

    statement: str
    value: object


@dataclass(frozen=True)
class Sets:
    """The connection's socket has this setting."""

    level: int
    option: int
    value: int


Outcome = Fails | Finds | Sets


class Listener:
    """A port of this machine that takes connections, counts them, and answers what it is told to.

    :param answers: what is sent after each read; nothing at its end.
    """

    def __init__(self, *answers: bytes) -> None:
        self._answers = answers
        self._socket = socket.create_server((HOST, 0))
        self._socket.settimeout(0.05)
        self.port: int = self._socket.getsockname()[1]
        self.connections = 0
        self.heard: list[bytes] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Listener:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(PATIENCE)
        self._socket.close()

    def _run(self) -> None:
        taken = []
        while not self._ends.is_set():
            with contextlib.suppress(TimeoutError):
                client, _ = self._socket.accept()
                self.connections += 1
                taken.append(client)  # stays open, so that a client without a time-out would wait
                client.settimeout(PATIENCE)
                for answer in self._answers:
                    self.heard.append(client.recv(4096))
                    if answer:
                        client.sendall(answer)
                    else:
                        client.close()
        for client in taken:
            client.close()


@pytest.fixture
def deaf_port() -> Iterator[int]:
    """A port whose queue of connections is full, so that a further one is never answered."""
    with contextlib.ExitStack() as kept:
        listener = kept.enter_context(socket.socket())
        listener.bind((HOST, 0))
        listener.listen(0)
        for _ in range(10):
            client = kept.enter_context(socket.socket())
            client.settimeout(0.3)
            try:
                client.connect(listener.getsockname())
            except TimeoutError:
                break
        else:
            pytest.skip("this system answers connections that nobody takes")
        yield listener.getsockname()[1]


@pytest.fixture(scope="module")
def files() -> Iterator[dict[str, str]]:
    """Paths of an authority, of what it issued and revoked, and of another authority."""
    folder = Path(tempfile.mkdtemp(prefix="export-queue-tls-"))
    folder.chmod(0o755)  # servers do not run as root
    for name in ("own", "foreign", "lent"):
        (folder / name).mkdir()
    own, foreign = Authority(folder / "own"), Authority(folder / "foreign")
    server, client = own.issue("server"), own.issue("client", common_name="certified")
    lent = lend(server, folder / "lent")
    authority = shutil.copyfile(own.certificate, folder / "lent" / "authority.pem")
    hba = folder / "lent" / "hba"
    hba.write_text(
        f"local all all scram-sha-256\nhostssl all certified {HOST}/32 cert\nhost all all {HOST}/32 scram-sha-256\n"
    )
    found = {
        "known": own.certificate,
        "other": foreign.certificate,
        "server": lent,
        "server_key": lent.with_suffix(".key"),
        "authority": authority,
        "hba": hba,
        "client": client,
        "client_key": client.with_suffix(".key"),
        "foreign_client": foreign.issue("client", common_name="certified"),
        "foreign_client_key": folder / "foreign" / "client.key",
        "revoked": own.revoke("revoked", server),
        "none_revoked": own.revoke("none"),
        "folder": folder / "own",
    }
    try:
        found["known_folder"] = hashed_folder(folder / "cas", own.certificate, ".0")
        found["other_folder"] = hashed_folder(folder / "others", foreign.certificate, ".0")
        found["revoked_folder"] = hashed_folder(folder / "revoked", found["revoked"], ".r0")
        found["none_revoked_folder"] = hashed_folder(folder / "none", found["none_revoked"], ".r0")
    except FileNotFoundError:
        pytest.skip("no openssl on PATH, which names the files of a folder")
    for path in (folder / "lent").iterdir():
        if path.suffix != ".key":
            path.chmod(0o644)
    (folder / "lent").chmod(0o755)
    yield {name: str(path) for name, path in found.items()}
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def tls_postgres(files: dict[str, str], postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A server with TLS of at most 1.2 that knows clients by their certificates; its password is the plain one's."""
    settings = {
        "ssl": "on",
        "ssl_cert_file": files["server"],
        "ssl_key_file": files["server_key"],
        "ssl_ca_file": files["authority"],
        "ssl_max_protocol_version": "TLSv1.2",
        "hba_file": files["hba"],
    }
    try:
        server = PostgresServer(settings)
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    server.password = postgres_server.password
    with server:
        server._execute("CREATE ROLE certified LOGIN")
        yield server


@pytest.fixture(scope="module")
def tls_mariadb(files: dict[str, str]) -> Iterator[MariaDbServer]:
    """A server with TLS 1.2 and a user who needs a certificate."""
    settings = {
        "ssl-cert": files["server"],
        "ssl-key": files["server_key"],
        "ssl-ca": files["authority"],
        "tls-version": "TLSv1.2",
        "performance-schema": "ON",
    }
    try:
        server = MariaDbServer(settings)
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    with server:
        server._execute(f"CREATE USER certified IDENTIFIED BY '{server.password}' REQUIRE X509")
        server._execute("GRANT ALL ON *.* TO certified")
        yield server


def check(sink: SqlSink, expected: Outcome, password: str) -> None:
    """Check what comes of the connection of a SQL sink."""
    if isinstance(expected, Fails):
        with pytest.raises(SinkError, match=expected.complaint) as refused:
            sink.probe()
        assert password not in str(refused.value)
        return
    with sink._database.engine.connect() as connection:
        if isinstance(expected, Finds):
            assert connection.exec_driver_sql(expected.statement).one()[-1] == expected.value
            return
        raw: Any = connection.connection.driver_connection
        number = raw.pgconn.socket
        with socket.socket(fileno=os.dup(number)) as found:
            assert found.getsockopt(expected.level, expected.option) == expected.value


# -- PostgreSQL --------------------------------------------------------------------------------------------------------

ACCOUNT = account.pw_name if (account := unprivileged_account()) is not None else "root"
TLS = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
USER = "SELECT current_user"
WORKS = Finds("SELECT 1", 1)
BY_CERTIFICATE = "sslmode=require&sslcert={client}&sslkey={client_key}"
BY_FOREIGN_CERTIFICATE = "sslmode=require&sslcert={foreign_client}&sslkey={foreign_client_key}"
POSTGRESQL_ROWS: list[tuple[str, str, str, Outcome]] = [
    # the options; where: plain, tls, a wrong name, as a user with a certificate, by a socket
    ("sslmode", "plain", "sslmode=require", Fails("does not support SSL")),
    ("sslmode", "plain", "sslmode=verify-full&sslrootcert={known}", Fails("does not support SSL")),
    ("sslmode", "tls", "sslmode=disable", Finds(TLS, False)),
    ("sslmode", "tls", "sslmode=allow", Finds(TLS, False)),
    ("sslmode", "tls", "sslmode=prefer", Finds(TLS, True)),
    ("sslmode", "misnamed", "sslmode=verify-full&sslrootcert={known}", Fails("does not match host name")),
    ("sslmode", "misnamed", "sslmode=verify-ca&sslrootcert={known}", Finds(TLS, True)),
    ("sslrootcert", "tls", "sslmode=verify-full&sslrootcert={known}", Finds(TLS, True)),
    ("sslrootcert", "tls", "sslmode=verify-full&sslrootcert={other}", Fails("certificate")),
    ("sslrootcert", "tls", "sslmode=verify-full&sslrootcert=system", Fails("certificate")),
    ("sslrootcert", "tls", "sslmode=require&sslrootcert={other}", Fails("certificate")),
    ("sslcert sslkey", "certified", BY_CERTIFICATE, Finds(USER, "certified")),
    ("sslcert", "certified", "sslmode=require", Fails("requires a valid client certificate")),
    (
        "sslcert",
        "certified",
        "sslmode=require&sslcert={foreign_client}&sslkey={foreign_client_key}",
        Fails("SSL|alert"),
    ),
    ("sslkey", "certified", "sslmode=require&sslcert={client}&sslkey={foreign_client_key}", Fails("private key")),
    ("sslcertmode", "certified", f"{BY_CERTIFICATE}&sslcertmode=disable", Fails("requires a valid client certificate")),
    ("sslcertmode", "tls", "sslmode=require&sslcertmode=require", Fails("certificate")),
    ("sslcrl", "tls", "sslmode=verify-ca&sslrootcert={known}&sslcrl={revoked}", Fails("verify failed")),
    ("sslcrl", "tls", "sslmode=verify-ca&sslrootcert={known}&sslcrl={none_revoked}", WORKS),
    (
        "sslcrldir",
        "tls",
        "sslmode=verify-ca&sslrootcert={known}&sslcrldir={revoked_folder}",
        Fails("verify failed"),
    ),
    ("sslcrldir", "tls", "sslmode=verify-ca&sslrootcert={known}&sslcrldir={none_revoked_folder}", WORKS),
    ("ssl_min_protocol_version", "tls", "sslmode=require&ssl_min_protocol_version=TLSv1.3", Fails("SSL")),
    ("ssl_min_protocol_version", "tls", "sslmode=require&ssl_min_protocol_version=TLSv1.2", WORKS),
    (
        "ssl_max_protocol_version",
        "tls",
        "sslmode=require&ssl_min_protocol_version=TLSv1&ssl_max_protocol_version=TLSv1.1",
        Fails("SSL"),
    ),
    ("ssl_max_protocol_version", "tls", "sslmode=require&ssl_max_protocol_version=TLSv1.2", WORKS),
    ("require_auth", "plain", "require_auth=none", Fails("none")),
    ("require_auth", "plain", "require_auth=password", Fails("password")),
    ("require_auth", "plain", "require_auth=scram-sha-256", WORKS),
    ("channel_binding", "plain", "channel_binding=require", Fails("channel binding")),
    ("channel_binding", "tls", "sslmode=require&channel_binding=require", WORKS),
    ("gssencmode", "plain", "gssencmode=require", Fails("GSS")),
    ("gssencmode", "plain", "gssencmode=disable", WORKS),
    ("requirepeer", "socket", "requirepeer=somebody-else", Fails("requirepeer")),
    ("requirepeer", "socket", f"requirepeer={ACCOUNT}", WORKS),
    ("hostaddr", "nowhere", "hostaddr=127.0.0.1", WORKS),
    ("hostaddr", "nowhere", "", Fails("nowhere")),
    ("hostaddr", "nowhere", "hostaddr=127.0.0.1&sslmode=verify-full&sslrootcert={known}", Fails("nowhere.invalid")),
    ("target_session_attrs", "plain", "target_session_attrs=primary", WORKS),
    ("target_session_attrs", "plain", "target_session_attrs=standby", Fails("standby")),
    ("target_session_attrs", "plain", "target_session_attrs=read-only", Fails("read-only|writable")),
    ("options", "plain", "options=-c%20work_mem%3D7MB", Finds("SHOW work_mem", "7MB")),
    ("application_name", "plain", "application_name=mine", Finds("SHOW application_name", "mine")),
    ("fallback_application_name", "plain", "fallback_application_name=mine", Finds("SHOW application_name", "mine")),
    (
        "fallback_application_name",
        "plain",
        "fallback_application_name=mine&application_name=first",
        Finds("SHOW application_name", "first"),
    ),
    ("max_protocol_version", "plain", "max_protocol_version=3.0", WORKS),
    (
        "max_protocol_version min_protocol_version",
        "plain",
        "max_protocol_version=3.0&min_protocol_version=3.2",
        Fails("protocol"),
    ),
    ("keepalives", "plain", "keepalives=0", Sets(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0)),
    ("keepalives", "plain", "keepalives=1", Sets(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)),
    ("keepalives_idle", "plain", "keepalives_idle=17", Sets(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 17)),
    ("keepalives_interval", "plain", "keepalives_interval=18", Sets(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 18)),
    ("keepalives_count", "plain", "keepalives_count=6", Sets(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6)),
    ("tcp_user_timeout", "plain", "tcp_user_timeout=19000", Sets(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 19000)),
]
SHOWN[POSTGRESQL.name] |= {name for names, *_ in POSTGRESQL_ROWS for name in names.split()}


@pytest.mark.parametrize(("names", "way", "query", "expected"), POSTGRESQL_ROWS)
def test_an_option_of_postgresql_has_its_effect_in_store_and_sink(
    names: str,
    way: str,
    query: str,
    expected: Outcome,
    postgres_server: PostgresServer,
    tls_postgres: PostgresServer,
    files: dict[str, str],
) -> None:
    server = postgres_server if way == "plain" else tls_postgres
    host = {"misnamed": "localhost", "nowhere": "nowhere.invalid"}.get(way, server.host)
    place, query = f"{host}:{server.port}", query.format(**files)
    if way == "socket":
        place, query = "", f"host={quote(str(server.folder), safe='')}&port={server.port}&{query}"
    user, password = ("certified", None) if way == "certified" else (server.user, server.password)
    url = f"postgresql://{user}@{place}/postgres" + (f"?{query}" if query else "")
    with closing(SqlSink(url, password)) as sink:
        check(sink, expected, server.password)
    with Store.open(url, password=password) as store:
        if isinstance(expected, Fails):
            with pytest.raises(StoreUnavailable, match=expected.complaint) as refused:
                store.queues()
            assert server.password not in str(refused.value)
        elif isinstance(expected, Finds):
            with store.database.connect() as connection:
                assert connection.exec_driver_sql(expected.statement).one()[-1] == expected.value


@shows(POSTGRESQL, "sslkeylogfile")
def test_keys_of_tls_are_logged_for_postgresql(
    tls_postgres: PostgresServer, files: dict[str, str], tmp_path: Path
) -> None:
    url = f"postgresql://{tls_postgres.user}@{HOST}:{tls_postgres.port}/postgres?sslmode=require"
    with closing(SqlSink(f"{url}&sslkeylogfile={tmp_path}/keys", tls_postgres.password)) as sink:
        sink.probe()
    assert "CLIENT_RANDOM" in (tmp_path / "keys").read_text()


@shows(POSTGRESQL, "sslsni")
@pytest.mark.parametrize("is_told", [True, False])
def test_the_name_of_the_server_is_sent_to_it_or_not(is_told: bool) -> None:
    with Listener(b"S", b"") as listener:
        url = f"postgresql://u@localhost:{listener.port}/d?sslmode=require&sslsni={int(is_told)}"
        with closing(SqlSink(url, "p")) as sink, pytest.raises(SinkError):
            sink.probe()
    assert (b"localhost" in listener.heard[1]) is is_told


@shows(POSTGRESQL, "sslnegotiation")
@pytest.mark.parametrize(("negotiation", "begins"), [("direct", b"\x16\x03"), ("postgres", b"\x00\x00\x00\x08")])
def test_tls_begins_at_once_or_after_a_question(negotiation: str, begins: bytes) -> None:
    with Listener(b"") as listener:
        url = f"postgresql://u@{HOST}:{listener.port}/d?sslmode=require&sslnegotiation={negotiation}"
        with closing(SqlSink(url, "p")) as sink, pytest.raises(SinkError):
            sink.probe()
    assert listener.heard[0].startswith(begins)


@shows(POSTGRESQL, "connect_timeout")
def test_a_server_of_postgresql_that_does_not_answer_is_given_up() -> None:
    with Listener() as listener:
        url = f"postgresql://u@{HOST}:{listener.port}/d?connect_timeout=2"
        with closing(SqlSink(url, "p")) as sink, pytest.raises(SinkError, match="timeout"):
            sink.probe()


@shows(POSTGRESQL, "passfile")
def test_a_password_of_postgresql_may_be_in_a_file(postgres_server: PostgresServer, tmp_path: Path) -> None:
    server = postgres_server
    for password, expected in ((server.password, WORKS), ("wrong", Fails("password"))):
        (tmp_path / "passwords").write_text(f"*:*:*:{server.user}:{password}\n")
        (tmp_path / "passwords").chmod(0o600)
        url = f"postgresql://{server.user}@{HOST}:{server.port}/postgres?passfile={tmp_path}/passwords"
        with closing(SqlSink(url)) as sink:
            check(sink, expected, server.password)


@shows(POSTGRESQL, "load_balance_hosts")
def test_hosts_of_postgresql_are_taken_at_random_or_in_order(
    postgres_server: PostgresServer, tls_postgres: PostgresServer
) -> None:
    hosts = f"host={HOST},{HOST}&port={postgres_server.port},{tls_postgres.port}"
    for choice, expected in (
        ("random", {postgres_server.port, tls_postgres.port}),
        ("disable", {postgres_server.port}),
    ):
        found = set[int]()
        for _ in range(40):  # by chance one of the two forty times: never
            url = f"postgresql://{postgres_server.user}@/postgres?{hosts}&load_balance_hosts={choice}"
            with (
                closing(SqlSink(url, postgres_server.password)) as sink,
                sink._database.engine.connect() as connection,
            ):
                found.add(int(connection.exec_driver_sql("SHOW port").one()[0]))
            if len(found) == 2:
                break
        assert found == expected


def test_the_first_of_several_hosts_that_fits_is_taken(postgres_server: PostgresServer) -> None:
    hosts = f"host=127.0.0.1,127.0.0.1&port={free_port()},{postgres_server.port}&target_session_attrs=read-write"
    url = f"postgresql://{postgres_server.user}@/postgres?{hosts}"
    with closing(SqlSink(url, postgres_server.password)) as sink:
        assert "version" in sink.probe()


@shows(POSTGRESQL, "service servicefile")
@pytest.mark.parametrize("by", ["variable", "option"])
def test_a_service_names_the_database(
    postgres_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    lines = {"host": postgres_server.host, "port": postgres_server.port, "dbname": "postgres", "user": "nobody"}
    services = tmp_path / "services"
    services.write_text("[exports]\n" + "".join(f"{name}={value}\n" for name, value in lines.items()))
    url = f"postgresql://{postgres_server.user}@/?service=exports"
    if by == "variable":
        monkeypatch.setenv("PGSERVICEFILE", str(services))
    else:
        url += f"&servicefile={services}"
    with closing(SqlSink(url, postgres_server.password)) as sink:
        if by == "option" and b"servicefile" not in {one.keyword for one in psycopg.pq.Conninfo.get_defaults()}:
            with pytest.raises(SinkError, match='invalid connection option "servicefile"'):  # libpq before 19
                sink.probe()
            return
        assert "version" in sink.probe()


# -- MySQL -------------------------------------------------------------------------------------------------------------

CIPHER = "SHOW STATUS LIKE 'Ssl_cipher'"
PLAIN = Finds(CIPHER, "")
ENCRYPTED = Finds(
    "SELECT variable_value <> '' FROM information_schema.session_status WHERE variable_name = 'SSL_CIPHER'", 1
)
AES128 = "ECDHE-ECDSA-AES128-GCM-SHA256"
NAME = """SELECT attr_value FROM performance_schema.session_connect_attrs
    WHERE processlist_id = connection_id() AND attr_name = 'program_name'"""
CLIENT = "SELECT substring_index(host, ':', 1) FROM information_schema.processlist WHERE id = connection_id()"
UNHEARD = Fails("SSL|EOF|Lost connection|[Hh]andshake")
"""The server has ended the handshake."""
MYSQL_ROWS: list[tuple[str, str, str, Outcome]] = [
    ("ssl_mode", "plain", "", PLAIN),
    ("ssl_mode", "plain", "ssl_mode=PREFERRED", PLAIN),
    ("ssl_mode", "plain", "ssl_mode=DISABLED&charset=utf8mb4&use_unicode=1", PLAIN),
    ("ssl_mode", "plain", "ssl_mode=REQUIRED", Fails("SSL is required")),
    ("ssl_mode", "plain", "ssl_mode=VERIFY_IDENTITY", Fails("SSL is required")),
    ("ssl_mode", "tls", "", ENCRYPTED),
    ("ssl_mode", "tls", "ssl_mode=DISABLED", PLAIN),
    ("ssl_mode", "tls", "ssl_mode=REQUIRED", ENCRYPTED),
    ("ssl_mode", "tls", "ssl_mode=VERIFY_IDENTITY", Fails("certificate")),
    ("ssl_mode", "misnamed", "ssl_mode=VERIFY_CA&ssl_ca={known}", ENCRYPTED),
    ("ssl_mode", "misnamed", "ssl_mode=VERIFY_IDENTITY&ssl_ca={known}", Fails("Hostname mismatch")),
    ("ssl_ca", "plain", "ssl_ca={known}", Fails("SSL is required")),
    ("ssl_ca", "tls", "ssl_ca={known}", ENCRYPTED),
    ("ssl_ca", "tls", "ssl_mode=VERIFY_CA&ssl_ca={other}", Fails("certificate")),
    ("ssl_ca", "misnamed", "ssl_ca={known}", Fails("Hostname mismatch")),
    ("ssl_capath", "tls", "ssl_capath={known_folder}", ENCRYPTED),
    ("ssl_capath", "tls", "ssl_capath={other_folder}", Fails("certificate")),
    ("ssl_cert ssl_key", "certified", "ssl_cert={client}&ssl_key={client_key}", ENCRYPTED),
    ("ssl_cert ssl_key", "certified", "ssl_mode=REQUIRED", Fails("Access denied")),
    (
        "ssl_cert",
        "certified",
        "ssl_cert={foreign_client}&ssl_key={foreign_client_key}",
        Fails("TLS|SSL|Lost|EOF|certificate"),
    ),
    ("ssl_cipher", "tls", f"ssl_mode=REQUIRED&ssl_cipher={AES128}", Finds(CIPHER, AES128)),
    (
        "ssl_cipher",
        "tls",
        "ssl_mode=REQUIRED&ssl_cipher=ECDHE-RSA-AES128-GCM-SHA256",
        Fails("HANDSHAKE|handshake|EOF|SSL"),
    ),
    ("ssl_disabled", "tls", "ssl_disabled=true", PLAIN),
    ("ssl_disabled", "tls", "ssl_disabled=false", ENCRYPTED),
    ("ssl_verify_cert", "plain", "ssl_verify_cert=false", Fails("SSL is required")),
    ("ssl_verify_cert", "tls", "ssl_verify_cert=false", ENCRYPTED),
    ("ssl_verify_cert", "tls", "ssl_verify_cert=true", Fails("certificate")),
    ("ssl_check_hostname", "misnamed", "ssl_ca={known}&ssl_check_hostname=false", ENCRYPTED),
    ("ssl_check_hostname", "misnamed", "ssl_ca={known}&ssl_check_hostname=true", Fails("Hostname mismatch")),
    ("ssl_verify_identity", "misnamed", "ssl_ca={known}&ssl_verify_identity=false", ENCRYPTED),
    ("ssl_verify_identity", "misnamed", "ssl_ca={known}&ssl_verify_identity=true", Fails("Hostname mismatch")),
    ("unix_socket", "nowhere", "unix_socket={socket}&ssl_mode=REQUIRED", ENCRYPTED),
    ("unix_socket", "nowhere", "", Fails("nowhere.invalid")),
    ("bind_address", "tls", "bind_address=127.0.0.2&ssl_disabled=1", Finds(CLIENT, "127.0.0.2")),
    ("bind_address", "tls", "ssl_disabled=1", Finds(CLIENT, "127.0.0.1")),
    ("program_name", "tls", "program_name=mine&ssl_disabled=1", Finds(NAME, "mine")),
]
SHOWN[MYSQL.name] |= {name for names, *_ in MYSQL_ROWS for name in names.split()}


@pytest.mark.parametrize(("names", "way", "query", "expected"), MYSQL_ROWS)
def test_an_option_of_mysql_has_its_effect(
    names: str,
    way: str,
    query: str,
    expected: Outcome,
    mariadb_server: MariaDbServer,
    tls_mariadb: MariaDbServer,
    files: dict[str, str],
) -> None:
    server = mariadb_server if way == "plain" else tls_mariadb
    host = {"misnamed": "localhost", "nowhere": "nowhere.invalid"}.get(way, HOST)
    user = "certified" if way == "certified" else server.user
    url = f"mysql://{user}@{host}:{server.port}/mysql?{query.format(**files, socket=tls_mariadb.folder / 'socket')}"
    with closing(SqlSink(url.rstrip("?"), server.password)) as sink:
        check(sink, expected, server.password)


@shows(MYSQL, "connect_timeout")
def test_a_server_of_mysql_that_does_not_answer_is_given_up(deaf_port: int) -> None:
    url = f"mysql://u@{HOST}:{deaf_port}/d?connect_timeout=1"
    with closing(SqlSink(url, "p")) as sink, pytest.raises(SinkError, match="timed out"):
        sink.probe()


@shows(MYSQL, "init_command")
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


# -- Redis -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tls_redis(files: dict[str, str]) -> Iterator[RedisServer]:
    """A server with TLS 1.2 and one cipher, next to its port without TLS."""
    settings = {
        "tls-port": str(free_port()),
        "tls-cert-file": files["server"],
        "tls-key-file": files["server_key"],
        "tls-ca-cert-file": files["authority"],
        "tls-auth-clients": "no",
        "tls-protocols": "TLSv1.2",
        "tls-ciphers": AES128,
    }
    try:
        server = RedisServer(settings)
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    with server:
        yield server


REDIS_ROWS: list[tuple[str, str, dict[str, Any], str | None]] = [
    # the options; where: plain (no TLS), tls, a wrong name, or a server that asks for certificates; what is refused
    ("ssl", "plain", {}, None),
    ("ssl", "tls", {}, "Connection|closed"),
    ("ssl", "plain", {"ssl": True, "socket_timeout": 0.5}, "[Tt]imed? ?out|SSL|closed"),
    ("ssl_ca_certs", "tls", {"ssl": True, "ssl_ca_certs": "{known}"}, None),
    ("ssl_ca_certs", "tls", {"ssl": True, "ssl_ca_certs": "{other}"}, "certificate"),
    ("ssl_ca_certs", "tls", {"ssl": True}, "certificate"),
    ("ssl_ca_path", "tls", {"ssl": True, "ssl_ca_path": "{known_folder}"}, None),
    ("ssl_ca_path", "tls", {"ssl": True, "ssl_ca_path": "{other_folder}"}, "certificate"),
    ("ssl_ca_data", "tls", {"ssl": True, "ssl_ca_data": "{known_text}"}, None),
    ("ssl_ca_data", "tls", {"ssl": True, "ssl_ca_data": "{other_text}"}, "certificate"),
    ("ssl_cert_reqs", "tls", {"ssl": True, "ssl_cert_reqs": "none", "ssl_check_hostname": False}, None),
    ("ssl_cert_reqs", "tls", {"ssl": True, "ssl_cert_reqs": "required"}, "certificate"),
    ("ssl_cert_reqs", "tls", {"ssl": True, "ssl_cert_reqs": "optional"}, "certificate"),
    ("ssl_check_hostname", "misnamed", {"ssl": True, "ssl_ca_certs": "{known}", "ssl_check_hostname": False}, None),
    (
        "ssl_check_hostname",
        "misnamed",
        {"ssl": True, "ssl_ca_certs": "{known}", "ssl_check_hostname": True},
        "[Hh]ostname",
    ),
    (
        "ssl_certfile ssl_keyfile",
        "certified",
        {"ssl": True, "ssl_ca_certs": "{known}", "ssl_certfile": "{client}", "ssl_keyfile": "{client_key}"},
        None,
    ),
    ("ssl_certfile ssl_keyfile", "certified", {"ssl": True, "ssl_ca_certs": "{known}"}, "SSL|closed|reset|Broken"),
    ("ssl_ciphers", "tls", {"ssl": True, "ssl_ca_certs": "{known}", "ssl_ciphers": AES128}, None),
    (
        "ssl_ciphers",
        "tls",
        {"ssl": True, "ssl_ca_certs": "{known}", "ssl_ciphers": "ECDHE-ECDSA-AES256-GCM-SHA384"},
        "SSL|handshake|HANDSHAKE|closed",
    ),
    ("ssl_min_version", "tls", {"ssl": True, "ssl_ca_certs": "{known}", "ssl_min_version": "TLSv1.2"}, None),
    ("ssl_min_version", "tls", {"ssl": True, "ssl_ca_certs": "{known}", "ssl_min_version": "TLSv1.3"}, "SSL|protocol"),
]
SHOWN[REDIS_CONNECTION.name] |= {name for names, *_ in REDIS_ROWS for name in names.split()}


def redis_sink(given: Mapping[str, Any], host: str, port: int, password: str, path: str | None = None) -> RedisSink:
    """Open the sink of a connection's extras."""
    return RedisSink(host, port, password=password, **redis_target(given, path=path, where="the connection"))


@pytest.mark.parametrize(("names", "way", "given", "complaint"), REDIS_ROWS)
def test_an_option_of_redis_has_its_effect(
    names: str, way: str, given: dict[str, Any], complaint: str | None, tls_redis: RedisServer, files: dict[str, str]
) -> None:
    texts = {**files, "known_text": Path(files["known"]).read_text(), "other_text": Path(files["other"]).read_text()}
    read_in = {name: value.format(**texts) if isinstance(value, str) else value for name, value in given.items()}
    port = tls_redis.port if way == "plain" else int(tls_redis.settings["tls-port"])
    with redis.Redis(HOST, tls_redis.port, password=tls_redis.password) as reader:
        reader.config_set("tls-auth-clients", "yes" if way == "certified" else "no")
    sink = redis_sink(read_in, "localhost" if way == "misnamed" else HOST, port, tls_redis.password)
    with closing(sink):
        if complaint is None:
            assert "version" in sink.probe()
            return
        with pytest.raises(SinkError, match=complaint) as refused:
            sink.probe()
    assert tls_redis.password not in str(refused.value)


@shows(REDIS_CONNECTION, "db")
@pytest.mark.parametrize(("given", "path"), [({"db": 5}, None), ({}, "5")])
def test_the_database_of_redis_is_the_one_that_is_named(
    given: dict[str, Any], path: str | None, tls_redis: RedisServer
) -> None:
    with redis.Redis(HOST, tls_redis.port, password=tls_redis.password, db=5) as reader:
        reader.flushall()
        with closing(redis_sink(given, HOST, tls_redis.port, tls_redis.password, path)) as sink:
            admit(sink).apply(puts(b"1"))
        assert reader.get("orders:1") == b"x"
        with redis.Redis(HOST, tls_redis.port, password=tls_redis.password) as other:
            assert other.dbsize() == 0


@shows(REDIS_CONNECTION, "socket_timeout")
def test_a_server_of_redis_that_does_not_answer_is_given_up() -> None:
    given = {"socket_timeout": "0.3"}
    with Listener() as listener, closing(redis_sink(given, HOST, listener.port, "p")) as sink:
        with pytest.raises(SinkError, match="Timeout reading"):
            sink.probe()
        assert listener.connections > 0


@shows(REDIS_CONNECTION, "socket_connect_timeout")
def test_a_server_of_redis_that_takes_no_connection_is_given_up(deaf_port: int) -> None:
    given = {"socket_connect_timeout": "0.3"}
    with closing(redis_sink(given, HOST, deaf_port, "p")) as sink, pytest.raises(SinkError, match="[Tt]imed? ?out"):
        sink.probe()


# -- Elasticsearch -----------------------------------------------------------------------------------------------------

ELASTICSEARCH_ROWS: list[tuple[str, str, dict[str, Any], str | None]] = [
    ("ca_certs", "tls", {"ca_certs": "{known}"}, None),
    ("ca_certs", "tls", {"ca_certs": "{other}"}, "certificate"),
    ("ca_certs", "tls", {}, "certificate"),
    ("ca_certs", "misnamed", {"ca_certs": "{known}"}, "[Hh]ostname"),
    ("verify_certs", "tls", {"verify_certs": False, "ssl_show_warn": False}, None),
    ("verify_certs", "tls", {"verify_certs": True}, "certificate"),
    ("verify_certs", "tls", {"ca_certs": "{known}", "verify_certs": True}, None),
    ("ssl_assert_fingerprint", "tls", {"ssl_assert_fingerprint": "{fingerprint}"}, None),
    ("ssl_assert_fingerprint", "tls", {"ssl_assert_fingerprint": "00" * 32}, "[Ff]ingerprint"),
    ("ssl_assert_hostname", "misnamed", {"ca_certs": "{known}", "ssl_assert_hostname": "127.0.0.1"}, None),
    ("ssl_assert_hostname", "misnamed", {"ca_certs": "{known}", "ssl_assert_hostname": False}, None),
    ("ssl_assert_hostname", "tls", {"ca_certs": "{known}", "ssl_assert_hostname": "other.example"}, "[Hh]ostname"),
    (
        "client_cert client_key",
        "certified",
        {"ca_certs": "{known}", "client_cert": "{client}", "client_key": "{client_key}"},
        None,
    ),
    ("client_cert client_key", "certified", {"ca_certs": "{known}"}, "SSL|TLS|Connection|certificate"),
]
for search in (ELASTICSEARCH_CONNECTION, OPENSEARCH_CONNECTION):  # both are servers of the fixture, and one client
    SHOWN[search.name] |= {name for names, *_ in ELASTICSEARCH_ROWS for name in names.split()}


def elasticsearch_sink(port: int, *, host: str = HOST, server: ElasticsearchServer, **given: Any) -> Any:
    login = {} if "api_key" in given else {"username": server.user, "password": server.password}
    return server.sink(f"https://{host}:{port}", **login, **given)


@pytest.mark.parametrize(("names", "way", "given", "complaint"), ELASTICSEARCH_ROWS)
def test_an_option_of_elasticsearch_has_its_effect(
    names: str,
    way: str,
    given: dict[str, Any],
    complaint: str | None,
    elasticsearch_server: ElasticsearchServer,
    files: dict[str, str],
) -> None:
    server = elasticsearch_server
    asks = Path(files["known"]) if way == "certified" else None
    with TlsProxy(server.port, Path(files["server"]), clients=asks) as proxy:
        known = {**files, "fingerprint": proxy.fingerprint}
        read_in = {name: value.format(**known) if isinstance(value, str) else value for name, value in given.items()}
        host = "localhost" if way == "misnamed" else HOST
        sink = elasticsearch_sink(proxy.port, host=host, server=server, client_options=read_in)
        with closing(sink):
            if complaint is None:
                assert "status" in sink.probe()
                return
            with pytest.raises(SinkError, match=complaint) as refused:
                sink.probe()
    assert server.password not in str(refused.value)


@shows(ELASTICSEARCH_CONNECTION, "ssl_show_warn")
@shows(OPENSEARCH_CONNECTION, "ssl_show_warn")
@pytest.mark.parametrize("is_shown", [True, False])
def test_a_warning_about_unverified_certificates_is_shown_or_not(
    is_shown: bool, elasticsearch_server: ElasticsearchServer, files: dict[str, str]
) -> None:
    given = {"verify_certs": False, "ssl_show_warn": is_shown}
    with (
        TlsProxy(elasticsearch_server.port, Path(files["server"])) as proxy,
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always")
        with closing(elasticsearch_sink(proxy.port, server=elasticsearch_server, client_options=given)) as sink:
            sink.probe()
    assert any("verify_certs=False is insecure" in str(one.message) for one in told) is is_shown


@shows(ELASTICSEARCH_CONNECTION, "http_compress")
@shows(OPENSEARCH_CONNECTION, "http_compress")
@pytest.mark.parametrize("is_compressed", [True, False])
def test_requests_are_compressed_or_not(
    is_compressed: bool, elasticsearch_server: ElasticsearchServer, files: dict[str, str]
) -> None:
    server, given = elasticsearch_server, {"ca_certs": files["known"], "http_compress": is_compressed}
    index = f"rows-{secrets.token_hex(6)}-$collection"
    with TlsProxy(server.port, Path(files["server"])) as proxy:
        with closing(elasticsearch_sink(proxy.port, server=server, client_options=given, index=index)) as sink:
            admit(sink).apply(puts(b"1"))
        assert (b"content-encoding: gzip" in b"".join(proxy.heard).lower()) is is_compressed


@shows(ELASTICSEARCH_CONNECTION, "api_key")
@pytest.mark.parametrize("elasticsearch_server", [next(iter(VERSIONS))], indirect=True)
def test_a_key_replaces_the_login(elasticsearch_server: ElasticsearchServer, files: dict[str, str]) -> None:
    """The distribution for tests cannot create keys, so the server refuses the one that it is sent."""
    given: dict[str, Any] = {"server": elasticsearch_server, "client_options": {"ca_certs": files["known"]}}
    with TlsProxy(elasticsearch_server.port, Path(files["server"])) as proxy:
        with closing(elasticsearch_sink(proxy.port, api_key="bm86bm8=", **given)) as sink, pytest.raises(SinkError):
            sink.probe()
        sent = b"".join(proxy.heard).lower()
        assert b"authorization: apikey bm86bm8=" in sent
        assert b"authorization: basic" not in sent
        with closing(elasticsearch_sink(proxy.port, **given)) as sink:
            sink.probe()
        assert b"authorization: basic" in b"".join(proxy.heard).lower()


@shows(ELASTICSEARCH_CONNECTION, "timeout")
@shows(OPENSEARCH_CONNECTION, "timeout")
@pytest.mark.parametrize("kind", [ElasticsearchSink, OpenSearchSink])
def test_a_search_server_that_does_not_answer_is_given_up(kind: type[ElasticsearchSink]) -> None:
    with (
        Listener() as listener,
        closing(kind(f"http://{HOST}:{listener.port}", timeout=0.3)) as sink,
        pytest.raises(SinkError, match="[Tt]ime"),
    ):
        sink.probe()


# -- OpenSearch --------------------------------------------------------------------------------------------------------


class PrefixProxy:
    """Serves a server under a prefix of the path, and nothing beside it; notes the requests that it forwards."""

    def __init__(self, port: int, prefix: str) -> None:
        self.refused = 0
        self.opaque_ids: list[str | None] = []
        """The header ``X-Opaque-Id`` of each forwarded request."""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline(65537)
                if self.raw_requestline and self.parse_request():
                    self.answer()
                else:
                    self.close_connection = True

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                status, headers, answer = 404, {}, b"{}"
                if self.path.startswith(f"{prefix}/"):
                    proxy.opaque_ids.append(self.headers["x-opaque-id"])
                    with closing(HTTPConnection(HOST, port, timeout=PATIENCE)) as server:
                        server.request(self.command, self.path.removeprefix(prefix), body, dict(self.headers))
                        got = server.getresponse()
                        status, headers, answer = got.status, dict(got.getheaders()), got.read()
                else:
                    proxy.refused += 1
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(name, value)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> PrefixProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join(PATIENCE)
        self._server.server_close()


@shows(OPENSEARCH_CONNECTION, "opaque_id url_prefix")
@pytest.mark.timeout(240)  # the first test waits for the server
@pytest.mark.parametrize(("given", "opaque_id"), [({"opaque_id": "airflow"}, "airflow"), ({}, None)])
def test_each_request_has_the_prefix_and_the_opaque_id(
    given: dict[str, Any], opaque_id: str | None, opensearch_server: ElasticsearchServer
) -> None:
    """A prefix in a connection becomes the path of the hosts (``tests/airflow/test_hooks.py``)."""
    server = opensearch_server
    index = f"rows-{secrets.token_hex(6)}"
    login = {"username": server.user, "password": server.password}
    with PrefixProxy(server.port, "/search") as proxy:
        at = f"http://{HOST}:{proxy.port}"
        with closing(
            OpenSearchSink(f"{at}/search", **login, client_options=given, index=f"{index}-$collection")
        ) as sink:
            written = Operations(["orders"], [b"1"], [b'{"n":1}'], [5], range(1))
            assert admit(sink).apply(written) == ApplyResult(1, 0)
        assert set(proxy.opaque_ids) == {opaque_id}
        assert proxy.refused == 0
        found = server.request("GET", f"/{index}-*?expand_wildcards=all")[1]
        assert found, "the requests reached the server"
        with closing(OpenSearchSink(at, **login)) as sink, pytest.raises(SinkConfigurationError, match="neither"):
            sink.probe()
        assert proxy.refused > 0
    for name in found:
        server.request("DELETE", f"/{name}")


# -- refused -----------------------------------------------------------------------------------------------------------


def refused_by_sql(scheme: str, port: int, name: str) -> None:
    SqlSink(f"{scheme}://u@{HOST}:{port}/d?{name}=latin1", "p").probe()


def refused_by_store(port: int, name: str) -> None:
    with Store.open(f"postgresql://u@{HOST}:{port}/d?{name}=latin1", password="p") as store:
        store.queues()


def refused_by_redis(port: int, name: str) -> None:
    redis_sink({"ssl": True, name: "x"}, HOST, port, "p").probe()


def refused_by_search(kind: type[ElasticsearchSink], port: int, name: str) -> None:
    given = {name: "x"} if name not in ("request_timeout", "timeout") else {name: 5}
    kind(f"https://{HOST}:{port}", client_options=given).probe()


def refused_names(driver: Driver) -> list[str]:
    """The options that a URL refuses; it may hold the password, which only an extra may not be."""
    sql = driver in (POSTGRESQL, MYSQL)
    return [name for name in (*driver.refuses, *driver.fixed) if not (sql and name == "password")]


REFUSED: list[tuple[str, Callable[[int, str], None]]] = [
    *((name, partial(refused_by_sql, "postgresql")) for name in refused_names(POSTGRESQL)),
    *((name, refused_by_store) for name in refused_names(POSTGRESQL)),
    *((name, partial(refused_by_sql, "mysql")) for name in refused_names(MYSQL)),
    *((name, refused_by_redis) for name in refused_names(REDIS_CONNECTION)),
    *((name, partial(refused_by_search, ElasticsearchSink)) for name in refused_names(ELASTICSEARCH_CONNECTION)),
    *((name, partial(refused_by_search, OpenSearchSink)) for name in refused_names(OPENSEARCH_CONNECTION)),
]


@pytest.mark.parametrize("driver", [POSTGRESQL, MYSQL], ids=lambda driver: driver.name)
def test_a_password_is_no_extra_of_a_sql_connection(driver: Driver) -> None:
    with pytest.raises(ConfigurationError, match="'password' cannot be honoured"):
        driver.read({"password": "p"}, where="the connection")


@pytest.mark.parametrize(("name", "opens"), REFUSED)
def test_a_refused_option_is_named_before_anything_is_sent(name: str, opens: Callable[[int, str], None]) -> None:
    with Listener() as listener:
        with pytest.raises(ConfigurationError, match=name):
            opens(listener.port, name)
        assert listener.connections == 0


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.name)
def test_every_option_has_a_row(driver: Driver) -> None:
    unseen = UNSEEN[driver.name].keys()
    assert SHOWN[driver.name] | unseen == driver.takes.keys()
    assert not SHOWN[driver.name] & unseen


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
