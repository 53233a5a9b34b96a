"""Answers to Elasticsearch and OpenSearch sinks that come from something in between, or from an old server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from export_queue import ElasticsearchSink, OpenSearchSink, SinkConfigurationError, SinkUnavailable

GREETINGS = {
    "elasticsearch": {"version": {"number": "8.19.0"}, "tagline": "You Know, for Search"},
    "opensearch": {"version": {"number": "3.1.0", "distribution": "opensearch"}},
}


class _Handler(BaseHTTPRequestHandler):
    """Greets as a product, and gives one answer to everything else."""

    greeting: object = None
    headers_of_greeting: dict[str, str]
    answer: tuple[int, str, bytes]

    def do_GET(self) -> None:
        if self.path == "/":
            status, kind, body = 200, "application/json", json.dumps(self.greeting).encode()
        else:
            status, kind, body = self.answer
        self.send_response(status)
        headers = self.headers_of_greeting if self.path == "/" else {}
        for name, value in {**headers, "content-type": kind, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("answer", [(200, "text/html", b"<html>Log in"), (404, "text/plain", b"no"), (200, "", b"")])
@pytest.mark.parametrize("kind", ["elasticsearch", "opensearch"])
def test_the_page_of_a_proxy_is_neither_data_nor_a_missing_index(
    kind: str, answer: tuple[int, str, bytes], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Handler, "greeting", GREETINGS[kind])
    marks = {"x-elastic-product": "Elasticsearch"} if kind == "elasticsearch" else {}
    monkeypatch.setattr(_Handler, "headers_of_greeting", marks, raising=False)
    monkeypatch.setattr(_Handler, "answer", answer, raising=False)
    sink = (ElasticsearchSink if kind == "elasticsearch" else OpenSearchSink)(address)
    try:
        for step in (sink.probe, lambda: sink.admit(queue_id="orders", store_id="s", fence=2, shown=1)):
            with pytest.raises(SinkUnavailable, match="something in between has answered"):
                step()
    finally:
        sink.close()


def test_an_elasticsearch_that_does_not_name_itself_is_too_old(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Handler, "greeting", {"version": {"number": "7.10.2"}, "tagline": "You Know, for Search"})
    monkeypatch.setattr(_Handler, "headers_of_greeting", {}, raising=False)
    monkeypatch.setattr(_Handler, "answer", (200, "application/json", b"{}"), raising=False)
    sink = ElasticsearchSink(address)
    try:
        with pytest.raises(SinkConfigurationError, match=r"Elasticsearch 7\.10\.2, expected Elasticsearch 8 or 9"):
            sink.probe()
    finally:
        sink.close()
