"""A proxy that speaks TLS with clients and hands everything on to a server without TLS."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import socketserver
import ssl
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.servers import HOST


class TlsProxy:
    """Listens on a port of its own while a ``with`` block runs.

    :param port: where the server listens.
    :param certificate: a certificate, beside its key.
    :param clients: who vouches for clients, which then need a certificate.
    """

    def __init__(self, port: int, certificate: Path, *, clients: Path | None = None) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        if clients is not None:
            context.load_verify_locations(clients)
            context.verify_mode = ssl.CERT_REQUIRED
        heard: list[bytes] = []
        self.heard = heard
        """What clients have sent, decrypted."""
        der = ssl.PEM_cert_to_DER_cert(certificate.read_text())
        self.fingerprint = hashlib.sha256(der).hexdigest()

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with (
                    contextlib.suppress(OSError),  # of a client that does not trust the certificate
                    context.wrap_socket(self.request, server_side=True) as client,
                    socket.create_connection((HOST, port)) as server,
                ):
                    back = threading.Thread(target=_copy, args=(server, client))
                    back.start()
                    _copy(client, server, heard)
                    back.join()

        self._server = socketserver.ThreadingTCPServer((HOST, 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _copy(source: socket.socket, target: socket.socket, heard: list[bytes] | None = None) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            if heard is not None:
                heard.append(data)
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
