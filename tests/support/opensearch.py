"""A private OpenSearch server for tests: the real server, as libraries of Maven Central, in a cache.

It has no plugin but its network and the usual analysis. ``OpenSearchNode.java`` starts it, and demands a login.
``python -m tests.support.opensearch`` fills the cache.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support import maven
from tests.support.elasticsearch import ElasticsearchServer, find_java
from tests.support.servers import HOST, MEMORY, Server, free_port

VERSION = "2.19.6"
_LOG4J = "2.25.4"
LIBRARIES = maven.Tree(
    f"opensearch-{VERSION}",
    (
        f"org.opensearch:opensearch:{VERSION}",
        f"org.opensearch:opensearch-plugin-classloader:{VERSION}",
        f"org.opensearch.plugin:transport-netty4-client:{VERSION}",
        f"org.opensearch.plugin:analysis-common:{VERSION}",
        f"org.apache.logging.log4j:log4j-core:{_LOG4J}",  # optional, but the server does not start without it
    ),
    "52522a192ea4abec61a8ec5b3bc1b76fbc2ccfcfa0d56e17679fe23feb50bcb2",
)
_PROGRAM = Path(__file__).with_name("OpenSearchNode.java")
_SETTINGS = {
    "discovery.type": "single-node",
    "network.host": HOST,
    "cluster.name": "export-queue",
    "node.name": "one",
    "http.type": "netty4",
    "transport.type": "netty4",
    "cluster.routing.allocation.disk.threshold_enabled": "false",
}


class OpenSearchServer(ElasticsearchServer):
    """An OpenSearch server of one node, with 512 MB of heap and a password.

    :param settings: its configuration beside the defaults.
    :raises FileNotFoundError: when there is no Java for it, or it cannot be downloaded.
    """

    product = "OpenSearch"
    kind = "opensearch"
    stop_signals = (signal.SIGTERM,)

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        Server.__init__(self, {**_SETTINGS, **(settings or {})})
        self.version = VERSION
        self._java = find_java(VERSION, self.product)
        self._libraries = maven.fetch_tree(LIBRARIES)
        self._data: Path | None = None

    @property
    def sink(self) -> type[Any]:
        """The class of its sinks."""
        from export_queue import OpenSearchSink

        return OpenSearchSink

    def kill(self) -> None:
        """End the server at once, as a power cut would; :meth:`start` brings it back."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(timeout=30)

    @property
    def _home(self) -> Path:
        return self.folder

    def _prepare(self) -> None:
        for name in ("config", "modules", "logs", "tmp"):
            (self.folder / name).mkdir()
        self._data = Path(tempfile.mkdtemp(prefix="export-queue-", dir=os.environ.get(MEMORY, self.folder)))

    def _launch(self) -> None:
        own = {"http.port": self.port, "transport.port": free_port(), "path.data": self._data}
        settings = {**self.settings, **own, "login": f"{self.user}:{self.password}"}
        (self.folder / "node.properties").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        Server._launch(self)

    def _identity(self) -> dict[str, Any]:
        return {}

    def _command(self) -> list[str]:
        options = ["-Xms512m", "-Xmx512m", f"-Djava.io.tmpdir={self.folder / 'tmp'}"]
        program = [str(self._java / "bin" / "java"), *options, "-cp", f"{self._libraries}/*", str(_PROGRAM)]
        return [*program, str(self.folder)]


def main() -> int:
    """Fill the cache, and say what cannot be had."""
    try:
        find_java(VERSION, "OpenSearch")
        maven.fetch_tree(LIBRARIES)
    except FileNotFoundError as missing:
        print(f"    tests on OpenSearch {VERSION} will be skipped: {missing}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
