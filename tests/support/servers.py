"""Private PostgreSQL and Redis servers for tests, the demo and benchmarks.

Each lives in a temporary folder and listens on a free port of 127.0.0.1 with a generated password. It is stopped, and
its folder removed, when its ``with`` block ends; should the thread that started it die before, the kernel stops it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import quote

from tests.support.postgresql_versions import chosen_programs

if TYPE_CHECKING:
    import psycopg

HOST = "127.0.0.1"
MEMORY = "EXPORT_QUEUE_TEST_MEMORY"
"""The environment variable that names a folder in memory, for servers whose files need not outlive the machine."""
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Server(ABC):
    """One server process of ours: its folder, port, password and pid."""

    product: ClassVar[str]
    stop_signals: ClassVar[tuple[signal.Signals, ...]]
    """From polite to final; each is given some seconds."""
    start_seconds: ClassVar[float] = 30

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.host = HOST
        self.port = 0
        self.password = secrets.token_hex(16)
        self.settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="export-queue-", dir=self._parent()))
        try:
            self._prepare()
            self.start()
        except BaseException:
            self._discard()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._discard()

    @classmethod
    def attached(cls, facts: Mapping[str, Any]) -> Self:
        """Return a server that another process runs: it can be used here, but neither started nor stopped.

        :param facts: as the server's own :meth:`facts` gave them.
        """
        server = cls.__new__(cls)
        vars(server).update(facts, _process=None, _folder=None)
        return server

    def facts(self) -> dict[str, Any]:
        """Return what a client must know of a running server, as JSON takes it."""
        return {"host": self.host, "port": self.port, "password": self.password}

    @property
    def folder(self) -> Path:
        """The temporary folder with the server's data, socket and log."""
        if self._folder is None:
            raise RuntimeError(f"{self.product} is used outside of its with block")
        return self._folder

    @property
    def pid(self) -> int:
        """The server's process id."""
        if self._process is None:
            raise RuntimeError(f"{self.product} does not run")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the server's process is there."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server on the data of its folder; after :meth:`stop` it comes back on the same port.

        :raises RuntimeError: when it does not get ready.
        """
        kept = self.port
        for attempt in range(3):
            # A free port may be taken before the server binds it; another one is tried then.
            self.port = kept or free_port()
            self._launch()
            if self._wait_until(self._is_ready, self.start_seconds):
                return
            self.stop()
            if kept and attempt:
                break
        raise RuntimeError(f"{self.product} did not start on {HOST}:{self.port}:\n{self.log()}")

    def stop(self) -> None:
        """Stop the server and keep its data; does nothing when it does not run."""
        process, self._process = self._process, None
        if process is None:
            return
        for number in (*self.stop_signals, signal.SIGKILL):
            if process.poll() is None:
                process.send_signal(number)
            try:
                process.wait(timeout=10)
                return
            except subprocess.TimeoutExpired:
                continue

    def log(self) -> str:
        """Return the last lines of the server's log."""
        path = self.folder / "server.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-20:]) if path.exists() else ""

    def _discard(self) -> None:
        self.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        self.port = 0

    def _launch(self) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C is for us; we stop the server when its last user has gone
                preexec_fn=_die_with_parent(self.stop_signals[-1]),
                **self._identity(),
            )
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(self._standard_input())
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended already; the log says why

    def _wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            if self._process is None or self._process.poll() is not None:
                return False
            if condition():
                return True
            time.sleep(0.02)
        return False

    def _parent(self) -> str | None:
        return os.environ.get(MEMORY)

    @abstractmethod
    def _prepare(self) -> None:
        """Fill the new folder."""

    def _identity(self) -> dict[str, Any]:
        """Say as whom the process runs, as arguments of Popen."""
        return {}

    def _standard_input(self) -> bytes:
        return b""

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def _is_ready(self) -> bool: ...


class PostgresServer(Server):
    """A PostgreSQL cluster of its own, with full durability and password authentication.

    :param settings: server parameters beside the defaults, such as ``{"max_connections": "300"}``.
    :raises FileNotFoundError: when PostgreSQL's server programs are not installed.
    """

    product = "PostgreSQL"
    stop_signals = (signal.SIGINT, signal.SIGQUIT)  # fast, then immediate
    user = "export_queue"

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        super().__init__({"max_connections": "200", **(settings or {})})
        self._programs = find_postgres_programs()

    def url(self, database: str = "postgres") -> str:
        """Return SQLAlchemy's URL of a database, with user and password.

        :param database: name of the database.
        """
        return f"postgresql+psycopg://{quote(self.user)}:{quote(self.password)}@{self.host}:{self.port}/{database}"

    def create_database(self, template: str = "template1") -> str:
        """Create a database and return its name.

        :param template: name of the database that it is a copy of; by default it is empty.
        """
        name = f"test_{secrets.token_hex(6)}"  # other processes create databases on the same server
        # Copying files takes half the time of copying through the log, where nothing is flushed.
        self._execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy')
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database together with the sessions that still use it.

        :param name: as :meth:`create_database` returned it.
        """
        self._execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _execute(self, statement: str) -> None:
        """Run a statement on one connection, which stays open: most tests have a database of their own."""
        import psycopg

        kept = self._admin.get(os.getpid())
        if kept is not None:
            try:
                kept.execute(b"SELECT 1")
            except psycopg.OperationalError:  # a test has killed the server's processes
                kept = None
        if kept is None:
            address = {"host": self.host, "port": self.port, "user": self.user, "password": self.password}
            kept = psycopg.connect(dbname="postgres", autocommit=True, connect_timeout=10, **address)  # type: ignore[arg-type]
            self._admin[os.getpid()] = kept
        kept.execute(statement.encode())

    def stop(self) -> None:
        """Stop the server and keep its data."""
        kept = self._admin.pop(os.getpid(), None)
        if kept is not None:
            kept.close()
        super().stop()

    @functools.cached_property
    def _admin(self) -> dict[int, psycopg.Connection[Any]]:
        """The connection of each process: a forked one has a copy that is not its own."""
        return {}

    def _prepare(self) -> None:
        secret = self.folder / "password"
        secret.touch(mode=0o600)
        secret.write_text(self.password)
        account = unprivileged_account()
        if account is not None:
            for path in (self.folder, secret):
                os.chown(path, account.pw_uid, account.pw_gid)
        done = subprocess.run(
            [
                str(self._programs / "initdb"),
                f"--pgdata={self.folder / 'data'}",
                f"--username={self.user}",
                f"--pwfile={secret}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C.UTF-8",
                "--no-sync",
            ],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            text=True,
            timeout=120,
            **self._identity(),
        )
        if done.returncode:
            raise RuntimeError(f"initdb failed:\n{done.stdout}{done.stderr}")
        secret.unlink()

    def _identity(self) -> dict[str, Any]:
        account = unprivileged_account()
        return {} if account is None else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}

    def _command(self) -> list[str]:
        settings = {"listen_addresses": HOST, "unix_socket_directories": str(self.folder), **self.settings}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [str(self._programs / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port), *options]

    def _is_ready(self) -> bool:
        # The last line of this file is the state that pg_ctl waits for, too.
        status = self.folder / "data" / "postmaster.pid"
        try:
            lines = status.read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0].strip() == str(self.pid) and lines[7].strip() in ("ready", "standby")


class PostgresStandby(PostgresServer):
    """A hot standby that follows a running server."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__()
        self.password = primary.password
        self._primary = primary

    def promote(self) -> None:
        """Make it a primary."""
        self._execute("SELECT pg_promote()")

    def _prepare(self) -> None:
        account = unprivileged_account()
        if account is not None:
            os.chown(self.folder, account.pw_uid, account.pw_gid)
        address = ["-h", self._primary.host, "-p", str(self._primary.port), "-U", self.user]
        subprocess.run(
            [str(self._programs / "pg_basebackup"), *address, "-D", "data", "-R", "-X", "stream", "-c", "fast"],
            cwd=self.folder,
            env={**os.environ, "PGPASSWORD": self.password},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=120,
            **self._identity(),
        )


class RedisServer(Server):
    """A Redis server without persistence and with a password.

    :param settings: lines of its configuration beside the defaults, such as ``{"maxmemory-policy": "allkeys-lru"}``.
    :raises FileNotFoundError: when ``redis-server`` is not installed.
    """

    product = "Redis"
    stop_signals = (signal.SIGTERM,)

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(settings)
        program = shutil.which("redis-server")
        if program is None:
            raise FileNotFoundError("Redis is missing: no redis-server on PATH (Debian package redis-server)")
        self._program = program

    def url(self, database: int = 0) -> str:
        """Return the server's ``redis://`` URL with the password.

        :param database: number of the database.
        """
        return f"redis://:{quote(self.password)}@{self.host}:{self.port}/{database}"

    def _prepare(self) -> None:
        """Nothing: the server begins empty."""

    def _command(self) -> list[str]:
        return [self._program, "-"]

    def _standard_input(self) -> bytes:
        # Everything comes this way, because a command line can be read by everybody on the machine.
        settings = {
            "bind": HOST,
            "port": str(self.port),
            "requirepass": self.password,
            "save": '""',
            "appendonly": "no",
            "dir": str(self.folder),
            **self.settings,
        }
        return "".join(f"{name} {value}\n" for name, value in settings.items()).encode()

    def _is_ready(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), timeout=2) as connection:
                connection.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
                with connection.makefile("rb") as answers:
                    return answers.readline().startswith(b"+OK") and answers.readline().startswith(b"+PONG")
        except OSError:
            return False


def find_postgres_programs() -> Path:
    """Return the folder of ``postgres`` and ``initdb``: those that the environment chooses, or the machine's newest.

    :raises FileNotFoundError: when there is none.
    """
    chosen = chosen_programs()
    if chosen is not None:
        return chosen
    candidates = [Path(found).resolve().parent for found in [shutil.which("initdb")] if found]
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: _version(path.parent.name))[::-1]
    for folder in candidates:
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    raise FileNotFoundError(
        "PostgreSQL is missing: no initdb on PATH or in /usr/lib/postgresql/*/bin (Debian package postgresql)"
    )


def _version(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split(".") if part.isdigit())


def unprivileged_account() -> pwd.struct_passwd | None:
    """Return whom PostgreSQL runs as when we are root, which it refuses; None when we are not."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("PostgreSQL refuses to run as root, and this machine has neither a user postgres nor nobody")


def _die_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    libc = _LIBC
    if libc is None:
        return None

    def ask_kernel() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(number))

    return ask_kernel
