"""A private MariaDB server for tests and benchmarks, as those of :mod:`tests.support.servers`."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.support.servers import HOST, Server, unprivileged_account


class MariaDbServer(Server):
    """A MariaDB server with full durability and one user, who may do everything.

    :param settings: server variables beside the defaults, such as ``{"max-allowed-packet": "1M"}``.
    :raises FileNotFoundError: when MariaDB's server programs are not installed.
    """

    product = "MariaDB"
    stop_signals = (signal.SIGTERM,)
    user = "export_queue"

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(settings)
        self._program, self._installer = _find("mariadbd"), _find("mariadb-install-db")

    def url(self, database: str = "mysql") -> str:
        """Return SQLAlchemy's URL of a database, with user and password.

        :param database: name of the database.
        """
        # The server has no TLS; a client that asks first reads all certificates of the machine, at each connection.
        address = f"{quote(self.user)}:{quote(self.password)}@{self.host}:{self.port}"
        return f"mysql+pymysql://{address}/{database}?ssl_disabled=true"

    def create_database(self) -> str:
        """Create an empty database and return its name."""
        name = f"test_{secrets.token_hex(6)}"  # other processes create databases on the same server
        self._execute(f"CREATE DATABASE `{name}`")
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database.

        :param name: as :meth:`create_database` returned it.
        """
        self._execute(f"DROP DATABASE IF EXISTS `{name}`")

    def _execute(self, statement: str) -> None:
        import pymysql

        with (
            pymysql.connect(
                host=self.host,
                port=self.port,
                user=self.user,
                password=self.password,
                connect_timeout=10,
                ssl_disabled=True,
            ) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)

    def _prepare(self) -> None:
        account = unprivileged_account()
        if account is not None:
            os.chown(self.folder, account.pw_uid, account.pw_gid)
        done = subprocess.run(
            [
                str(self._installer),
                "--no-defaults",
                f"--datadir={self.folder / 'data'}",
                f"--tmpdir={self.folder}",  # a server that starts removes the temporary tables of all others
                "--auth-root-authentication-method=socket",
                "--skip-test-db",
                "--skip-name-resolve",
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
            raise RuntimeError(f"mariadb-install-db failed:\n{done.stdout}{done.stderr}")
        # in a file, because a command line can be read by everybody on the machine
        users = self.folder / "users.sql"
        users.touch(mode=0o600)
        users.write_text(
            f"CREATE USER IF NOT EXISTS '{self.user}'@'%' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO '{self.user}'@'%' WITH GRANT OPTION;\n"
        )
        if account is not None:
            os.chown(users, account.pw_uid, account.pw_gid)

    def _identity(self) -> dict[str, Any]:
        account = unprivileged_account()  # MariaDB, as PostgreSQL, refuses to run as root
        return {} if account is None else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}

    def _command(self) -> list[str]:
        settings = {
            "datadir": str(self.folder / "data"),
            "tmpdir": str(self.folder),
            "bind-address": HOST,
            "port": str(self.port),
            "socket": str(self.folder / "socket"),
            "pid-file": str(self.folder / "pid"),
            "init-file": str(self.folder / "users.sql"),
            "skip-name-resolve": "ON",
            "innodb-buffer-pool-size": "64M",
            **self.settings,
        }
        return [str(self._program), "--no-defaults", *(f"--{name}={value}" for name, value in settings.items())]

    def _is_ready(self) -> bool:
        # It listens before it serves; its first packet, with its version, comes when it does.
        try:
            with socket.create_connection((HOST, self.port), timeout=2) as connection:
                greeting = connection.recv(5)
        except OSError:
            return False
        return len(greeting) == 5 and greeting[4] == 10


def _find(name: str) -> Path:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise FileNotFoundError(f"MariaDB is missing: no {name} on PATH (Debian package mariadb-server)")
    return Path(found)
