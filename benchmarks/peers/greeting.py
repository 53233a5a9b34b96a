"""Stands before an Elasticsearch server and answers ``GET /``, which elasticsearch-spark asks in each task.

The distribution that tests and benchmarks use does not answer it. All else is handed through as it is.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from types import TracebackType
from typing import Self

from tests.support.servers import HOST

QUESTION = b"GET / HTTP"


class Greeting:
    """A proxy on a port of its own; a context.

    :param port: the server's port.
    :param version: what it is said to be.
    """

    def __init__(self, port: int, version: str) -> None:
        self._server = (HOST, port)
        told = {"name": "n", "cluster_name": "c", "cluster_uuid": "u", "version": {"number": version}}
        body = json.dumps({**told, "tagline": "You Know, for Search"}).encode()
        head = f"HTTP/1.1 200 OK\r\nX-Elastic-Product: Elasticsearch\r\ncontent-length: {len(body)}\r\n"
        self._answer = f"{head}content-type: application/json\r\n\r\n".encode() + body
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=(source, target), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        """Hand bytes on until there are no more; clients send a request when the answer to the last one is there."""
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 18):
                if data.startswith(QUESTION):
                    source.sendall(self._answer)
                else:
                    target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()  # the other direction closes the other end
