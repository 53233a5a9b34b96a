"""A private PgBouncer in transaction mode, in front of a :class:`~tests.support.servers.PostgresServer`."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from tests.support.servers import HOST, PostgresServer, Server, unprivileged_account


class PgBouncer(Server):
    """A pooler whose clients share a few sessions of the server, from one SQL transaction to the next.

    :param server: a running server, all of whose databases can be reached.
    :param sessions: how many sessions of the server the clients of one database share.
    :param settings: lines of its configuration beside the defaults.
    :raises FileNotFoundError: when PgBouncer is not installed.
    """

    product = "PgBouncer"
    stop_signals = (signal.SIGTERM,)
    user = PostgresServer.user

    def __init__(self, server: PostgresServer, *, sessions: int = 3, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(settings)
        self.password = server.password
        self._server = server
        self._sessions = sessions
        program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
        if program is None:
            raise FileNotFoundError("PgBouncer is missing: no pgbouncer on PATH (Debian package pgbouncer)")
        self._program = program

    def url(self, database: str) -> str:
        """Return SQLAlchemy's URL of a database, through the pooler.

        :param database: its name on the server.
        """
        return f"postgresql+psycopg://{quote(self.user)}:{quote(self.password)}@{self.host}:{self.port}/{database}"

    def _prepare(self) -> None:
        account = unprivileged_account()
        if account is not None:
            os.chown(self.folder, account.pw_uid, account.pw_gid)

    def _identity(self) -> dict[str, Any]:
        account = unprivileged_account()  # PgBouncer, as PostgreSQL, refuses to run as root
        return {} if account is None else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}

    def _launch(self) -> None:
        settings = {
            "listen_addr": HOST,
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "auth_type": "scram-sha-256",
            "auth_file": str(self.folder / "users"),
            "pool_mode": "transaction",
            "default_pool_size": str(self._sessions),
            "server_round_robin": "1",  # so that a client hardly ever meets the session it had before
            **self.settings,
        }
        lines = ["[databases]", f"* = host={self._server.host} port={self._server.port}", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in settings.items()]
        self._write("pgbouncer.ini", "\n".join(lines) + "\n")
        self._write("users", f'"{self.user}" "{self.password}"\n')
        super()._launch()

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(text)
        account = unprivileged_account()
        if account is not None:
            os.chown(path, account.pw_uid, account.pw_gid)

    def _command(self) -> list[str]:
        return [self._program, str(self.folder / "pgbouncer.ini")]

    def _is_ready(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=2):
                return True
        except OSError:
            return False
