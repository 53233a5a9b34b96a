"""What Kubernetes is given: an API server of tests, which takes whatever is made and runs nothing."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Made:
    """One object that a client has made."""

    path: str
    content: dict[str, Any] = field(repr=False)


class KubernetesApi:
    """Answers as an API server that accepts everything; used as a context manager."""

    def __init__(self) -> None:
        self.made: list[Made] = []
        made = self.made

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer(404, {"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"})

            def do_POST(self) -> None:
                content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                made.append(Made(self.path.partition("?")[0], content))
                content["metadata"] |= {"uid": f"uid-{len(made)}", "resourceVersion": "1"}
                self._answer(201, content)

            do_PATCH = do_POST

            def _answer(self, status: int, content: Any) -> None:
                body = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="kubernetes-api", daemon=True)

    @property
    def master(self) -> str:
        """The cluster, as Spark names it."""
        return f"k8s://http://{HOST}:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=30)
