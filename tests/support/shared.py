"""One set of servers for a whole run of tests, whatever number of processes its tests run in.

A run has a folder, which ``EXPORT_QUEUE_TEST_RUN`` names: ``./run`` makes it, or pytest where it was started alone. The
first test that needs a server starts the keeper, a process that starts a server of each kind when it is first asked for
one, and stops all of them when the run ends. The run holds a lock on a file of the folder for as long as it lives, so
that the keeper sees the end even of a run that is killed.
"""

from __future__ import annotations

import base64
import fcntl
import functools
import hashlib
import hmac
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, TypeVar

from tests.support.elasticsearch import ElasticsearchServer
from tests.support.mariadb import MariaDbServer
from tests.support.opensearch import OpenSearchServer
from tests.support.pgbouncer import PgBouncer
from tests.support.servers import PostgresServer, Server
from tests.support.waiting import wait_until

VARIABLE = "EXPORT_QUEUE_TEST_RUN"
SECONDS = 240
"""Longest time that a server may take to start while the machine is busy."""
Kept = TypeVar("Kept", bound=Server)

_WRITES = ["index", "read", "view_index_metadata"]
ELASTICSEARCH_ROLES = {
    "reader": {"indices": [{"names": ["*"], "privileges": ["read", "view_index_metadata"]}]},
    "writer": {"indices": [{"names": ["least*", "xq_control"], "privileges": _WRITES}]},
    "sweeper": {"indices": [{"names": ["least*", "xq_control"], "privileges": [*_WRITES, "delete", "maintenance"]}]},
    "creator": {"indices": [{"names": ["least*", "xq_control"], "privileges": [*_WRITES, "manage"]}]},
}
"""Privileges that the page about sinks names: without and with ``create_indices``, for sweeps, and for reading."""

# Tests kill processes, never the machine: what the operating system has is safe, and a flush costs 3 ms.
_POSTGRES = {"max_connections": "400", "fsync": "off", "full_page_writes": "off"}
_MARIADB = {"max-connections": "400", "innodb-flush-method": "nosync"}
_ELASTICSEARCH = {"http.max_content_length": "5mb", "action.auto_create_index": "true"}


def shared(kind: type[Kept], name: str = "") -> Kept:
    """Return the run's server of a kind; it is started if it does not run yet.

    :param name: tells several of a kind apart: the version of Elasticsearch.
    :raises FileNotFoundError: its programs are missing on this machine.
    """
    return kind.attached(_facts(f"{kind.__name__}:{name}"))


@contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Keep the run's other processes out of what they share and cannot divide, as long as the block lasts."""
    with (_run_folder() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Run:
    """A run of tests that nobody outside has begun: its folder, and the end of its servers with :meth:`end`."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="export-queue-run-"))
        self._alive: TextIO = (self._folder / "alive").open("w")
        fcntl.flock(self._alive, fcntl.LOCK_EX)
        os.environ[VARIABLE] = str(self._folder)

    def end(self) -> None:
        """Let the keeper stop its servers, and wait for that."""
        del os.environ[VARIABLE]
        self._alive.close()
        if (self._folder / "socket").exists():
            with suppress(AssertionError):  # a server that does not stop is the keeper's affair
                wait_until(lambda: not self._folder.exists(), "servers do not stop")
        shutil.rmtree(self._folder, ignore_errors=True)


class SharedPostgresServer(PostgresServer):
    """The run's PostgreSQL server. Tests log in often: their password takes 1 round of hashing, not 4096."""

    def start(self) -> None:
        """Start the server, and store the password anew."""
        super().start()
        salt = secrets.token_bytes(16)
        salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), salt, 1)
        stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
        proof = ":".join(
            base64.b64encode(part).decode() for part in (stored, hmac.digest(salted, b"Server Key", "sha256"))
        )
        verifier = f"SCRAM-SHA-256$1:{base64.b64encode(salt).decode()}${proof}"
        self._execute(f"ALTER ROLE {self.user} PASSWORD '{verifier}'")


def _run_folder() -> Path:
    found = os.environ.get(VARIABLE)
    if not found:
        raise RuntimeError(f"{VARIABLE} is not set: servers are shared within a run of ./run or pytest only")
    return Path(found)


@functools.cache
def _facts(request: str) -> dict[str, Any]:
    folder = _run_folder()
    if not folder.is_dir():  # without this, all tests of servers would be skipped, as if no server were installed
        raise RuntimeError(f"the servers of this run have been stopped: its folder {folder} is gone")
    with _connected(folder) as connection:
        connection.settimeout(SECONDS + 30)
        connection.sendall(request.encode() + b"\n")
        with connection.makefile("rb") as lines:
            answer = json.loads(lines.readline() or "{}")
    if "missing" in answer:
        raise FileNotFoundError(answer["missing"])
    if "facts" not in answer:
        raise RuntimeError(f"the keeper of servers failed:\n{answer.get('error') or _log(folder)}")
    facts: dict[str, Any] = answer["facts"]
    return facts


def _connected(folder: Path) -> socket.socket:
    with (folder / "starting").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(FileNotFoundError, ConnectionRefusedError):
            return _connect(folder)
        with (folder / "keeper.log").open("ab") as log:
            keeper = subprocess.Popen(
                [sys.executable, "-m", "tests.support.shared", str(folder)],
                cwd=Path(__file__).parents[2],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the run, whose end the keeper waits for
            )
        ready = folder / "ready"
        wait_until(lambda: ready.exists() or keeper.poll() is not None, "the keeper of servers does not start")
        if keeper.poll() is not None:
            raise RuntimeError(f"the keeper of servers did not start:\n{_log(folder)}")
        _keepers.append(keeper)
        return _connect(folder)


_keepers: list[subprocess.Popen[bytes]] = []
"""Held, since Popen complains of a process that runs longer than its object."""


def _connect(folder: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(folder / "socket"))
    except BaseException:
        connection.close()
        raise
    return connection


def _log(folder: Path) -> str:
    return (folder / "keeper.log").read_text(errors="replace")[-4000:]


class Keeper:
    """Starts each server when it is first asked for, and keeps it until the end."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._holders: dict[str, Holder] = {}

    def facts(self, request: str) -> dict[str, Any]:
        """Return what a client must know of a server, once it runs."""
        with self._lock:
            holder = self._holders.get(request)
            if holder is None:
                holder = self._holders[request] = Holder(self._make(request), self._over)
                holder.start()
        if not holder.known.wait(SECONDS):
            return {"error": f"{request} did not start in {SECONDS} s"}
        return holder.answer

    def stop(self) -> None:
        """Stop all servers: those that stand on others first."""
        self._over.set()
        for holder in reversed(list(self._holders.values())):
            holder.join()

    def _make(self, request: str) -> Callable[[], Server]:
        kind, _, name = request.partition(":")
        if kind == "PgBouncer":
            return lambda: PgBouncer(PostgresServer.attached(self._needed("PostgresServer:")))
        makers: dict[str, Callable[[], Server]] = {
            "PostgresServer": lambda: SharedPostgresServer(_POSTGRES),
            "MariaDbServer": lambda: MariaDbServer(_MARIADB),
            "OpenSearchServer": lambda: OpenSearchServer(_ELASTICSEARCH),
            "ElasticsearchServer": lambda: ElasticsearchServer(_ELASTICSEARCH, version=name, roles=ELASTICSEARCH_ROLES),
        }
        return makers[kind]

    def _needed(self, request: str) -> dict[str, Any]:
        answer = self.facts(request)
        if "missing" in answer:
            raise FileNotFoundError(answer["missing"])
        facts: dict[str, Any] = answer["facts"]
        return facts


class Holder(threading.Thread):
    """Holds one server open: the kernel stops a server when the thread that started it has ended."""

    def __init__(self, make: Callable[[], Server], over: threading.Event) -> None:
        super().__init__()
        self._make = make
        self._over = over
        self.known = threading.Event()
        self.answer: dict[str, Any] = {}

    def run(self) -> None:
        """Start the server, tell of it, and stop it when all is over."""
        with ExitStack() as opened:
            try:
                try:
                    server = self._make()
                except FileNotFoundError as missing:
                    self.answer = {"missing": str(missing)}
                else:
                    self.answer = {"facts": opened.enter_context(server).facts()}
            except Exception as error:
                self.answer = {"error": f"{type(error).__name__}: {error}"}
            finally:
                self.known.set()
            self._over.wait()


def keep(folder: Path) -> None:
    """Serve the run of a folder until it ends or SIGTERM comes."""
    keeper = Keeper()
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())

    def watch() -> None:
        with (folder / "alive").open("w") as alive:
            fcntl.flock(alive, fcntl.LOCK_EX)  # had when the run has ended, in whatever way
        over.set()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError), connection.makefile("rb") as lines:
            connection.sendall(json.dumps(keeper.facts(lines.readline().decode().strip())).encode() + b"\n")

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen(64)
        (folder / "ready").touch()
        threading.Thread(target=watch, daemon=True).start()
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        while not over.wait(1):
            pass  # a signal is handled between two waits
        keeper.stop()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
