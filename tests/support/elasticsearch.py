"""A private Elasticsearch server for tests and benchmarks, beside those of :mod:`tests.support.servers`.

It is the distribution that plugins of Elasticsearch are tested with: the real server, without scripts, ingest and data
streams. It comes from Maven Central, into a cache, and needs a Java that is there already.
``python -m tests.support.elasticsearch`` fills the cache.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support import maven
from tests.support.servers import HOST, MEMORY, Server, free_port, unprivileged_account

VERSIONS = {
    "8.19.8": "8d943e94cef02cbceb6e39cd00175bb04e5f882fa32783a473880b8691a54376",
    "9.2.8": "db508f13489de1f46f1af9b487e1589071f34f5eb03a996b851a8bd67880f09b",
}
"""What is tested with, and the SHA-256 of each file."""
_GROUP = "org.elasticsearch.distribution.integ-test-zip"
_SETTINGS = {
    "discovery.type": "single-node",
    "http.host": HOST,
    "transport.host": HOST,
    "xpack.security.enabled": "true",
    "xpack.security.enrollment.enabled": "false",
    "xpack.security.http.ssl.enabled": "false",
    "xpack.security.transport.ssl.enabled": "false",
    "node.store.allow_mmap": "false",  # else the kernel wants vm.max_map_count
    "cluster.routing.allocation.disk.threshold_enabled": "false",
}


class ElasticsearchServer(Server):
    """An Elasticsearch server of one node, with 512 MB of heap and a password.

    :param settings: lines of its configuration beside the defaults.
    :param version: one of ``VERSIONS``.
    :param roles: further users, each of whom has the role of its name: the role's definition as Elasticsearch's API
        takes it; their password is the server's.
    :raises FileNotFoundError: when there is no Java for it, or it cannot be downloaded.
    """

    product = "Elasticsearch"
    kind = "elasticsearch"
    """The kind of sink."""
    stop_signals = (signal.SIGTERM,)
    start_seconds = 120
    user = "export_queue"

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        version: str = "8.19.8",
        roles: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__({**_SETTINGS, **(settings or {})})
        self.version = version
        self._java = find_java(version)
        self._zip = fetch(version)
        self._roles = dict(roles or {})
        self._data: Path | None = None
        """In memory where that is allowed: a change of the cluster's state flushes files."""

    def facts(self) -> dict[str, Any]:
        """Return what a client must know of a running server, as JSON takes it."""
        return {**super().facts(), "version": self.version}

    @property
    def url(self) -> str:
        """Where it answers; user and password are not in it."""
        return f"http://{self.host}:{self.port}"

    @property
    def sink(self) -> type[Any]:
        """The class of its sinks."""
        from export_queue import ElasticsearchSink

        return ElasticsearchSink

    def request(self, method: str, path: str, body: object = None, *, user: str | None = None) -> tuple[int, Any]:
        """Ask the server, without any client.

        :param body: JSON.
        :param user: as whom; by default as the user who may do everything.
        :returns: the status, and the JSON of the answer.
        """
        credentials = base64.b64encode(f"{user or self.user}:{self.password}".encode()).decode()
        headers = {"authorization": f"Basic {credentials}", "content-type": "application/json"}
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None
        finally:
            connection.close()

    def kill(self) -> None:
        """End the server at once, as a power cut would; :meth:`start` brings it back."""
        os.kill(int((self._home / "pid").read_text()), signal.SIGKILL)
        process, self._process = self._process, None
        if process is not None:
            process.wait(timeout=30)  # the launcher ends with it

    @property
    def _home(self) -> Path:
        return self.folder / f"elasticsearch-{self.version}"

    def _prepare(self) -> None:
        with zipfile.ZipFile(self._zip) as archive:
            archive.extractall(self.folder)
        for program in (self._home / "bin").iterdir():
            program.chmod(0o755)
        (self.folder / "tmp").mkdir()
        self._data = Path(tempfile.mkdtemp(prefix="export-queue-", dir=os.environ.get(MEMORY, self.folder)))
        config = self._home / "config"
        roles = {self.user: "superuser", **dict(zip(self._roles, self._roles, strict=True))}
        secret = _hashed(self.password)
        (config / "users").write_text("".join(f"{name}:{secret}\n" for name in roles))
        (config / "users_roles").write_text("".join(f"{role}:{name}\n" for name, role in roles.items()))
        definitions = (f"{name}: {json.dumps(role)}\n" for name, role in self._roles.items())  # JSON is YAML
        (config / "roles.yml").write_text("".join(definitions))
        account = unprivileged_account()  # Elasticsearch, as PostgreSQL, refuses to run as root
        if account is not None:
            for path in (self._data, self.folder, *self.folder.rglob("*")):
                os.chown(path, account.pw_uid, account.pw_gid)

    def _discard(self) -> None:
        super()._discard()
        if self._data is not None:
            shutil.rmtree(self._data, ignore_errors=True)

    def _parent(self) -> str | None:
        return None  # it runs programs of its folder, which memory often forbids

    def _identity(self) -> dict[str, Any]:
        account = unprivileged_account()
        return {} if account is None else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}

    def _launch(self) -> None:
        ports = {"http.port": self.port, "transport.port": free_port()}
        settings = {**self.settings, **ports, "path.data": self._data}
        lines = [f"{name}: {value}\n" for name, value in settings.items()]
        (self._home / "config" / "elasticsearch.yml").write_text("".join(lines))
        super()._launch()

    def _command(self) -> list[str]:
        variables = {
            "ES_JAVA_HOME": self._java,
            # Its launcher hands JAVA_TOOL_OPTIONS to no Java.
            "ES_JAVA_OPTS": f"-Xms512m -Xmx512m {os.environ.get('JAVA_TOOL_OPTIONS', '')}",
            "ES_TMPDIR": self.folder / "tmp",
            "CLI_JAVA_OPTS": f"-Djava.io.tmpdir={self.folder / 'tmp'}",
        }
        words = [f"{name}={value}" for name, value in variables.items()]
        return ["env", *words, str(self._home / "bin" / "elasticsearch"), "-p", str(self._home / "pid")]

    def _is_ready(self) -> bool:
        try:
            status, _ = self.request("GET", "/_cluster/health?wait_for_status=yellow&timeout=5s")
        except (OSError, http.client.HTTPException):
            return False
        return status == 200


def fetch(version: str) -> Path:
    """Return the file of a version, from the cache or, the first time, from Maven Central.

    :param version: one of ``VERSIONS``.
    :raises FileNotFoundError: when it cannot be had.
    """
    return maven.fetch(maven.Artifact(_GROUP, "elasticsearch", version, VERSIONS[version], extension="zip"))


def find_java(version: str, product: str = "Elasticsearch") -> Path:
    """Return the home of the oldest Java of this machine that a version of a product runs with.

    :raises FileNotFoundError: when there is none.
    """
    least = 17 if version.startswith(("2.", "8.")) else 21  # of OpenSearch, of Elasticsearch
    named = [Path(home) / "bin" / "java" for home in [os.environ.get("JAVA_HOME")] if home]
    named += [Path(program) for program in [shutil.which("java")] if program]
    found: dict[Path, int] = {}
    for program in [*named, *Path("/usr/lib/jvm").glob("*/bin/java")]:
        home = program.resolve().parents[1]
        if program.exists() and home not in found:
            found[home] = _java_version(program)
    for home, major in sorted(found.items(), key=lambda pair: pair[1]):
        # Elasticsearch 9 asks for a module that small runtimes leave out
        if major >= least and (least < 21 or "jdk.jdi@" in _said_by(home / "bin" / "java", "--list-modules")):
            return home
    kind = f"Java {least} or newer" if least < 21 else f"a full JDK {least} or newer"
    raise FileNotFoundError(f"{product} {version} is missing {kind}; found: {sorted(found.values()) or 'none'}")


def _java_version(program: Path) -> int:
    match = re.search(r'version "(\d+)', _said_by(program, "-version"))
    return int(match[1]) if match else 0


def _said_by(program: Path, option: str) -> str:
    done = subprocess.run([program, option], capture_output=True, text=True, timeout=30, check=False)
    return done.stdout + done.stderr


def _hashed(password: str) -> str:
    """Hash a password as a file of users of Elasticsearch has it."""
    salt, rounds = os.urandom(32), 10_000
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, rounds, 32)
    return f"{{PBKDF2}}{rounds}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def main() -> int:
    """Fill the cache, and say what cannot be had."""
    for version in VERSIONS:
        try:
            find_java(version)
            fetch(version)
        except FileNotFoundError as missing:
            print(f"    tests on Elasticsearch {version} will be skipped: {missing}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
