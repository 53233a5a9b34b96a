"""OpenSearch as a sink: a short proof on a real server, and what happens where it is taken for Elasticsearch."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.support.certificates import make_certificate
from tests.support.command_line import run_cli
from tests.support.elasticsearch import ElasticsearchServer
from tests.support.tls_proxy import TlsProxy

from export_queue import (
    ApplyResult,
    ElasticsearchSink,
    OpenSearchSink,
    Operations,
    SinkConfigurationError,
    SinkRefused,
    SinkSpec,
    SinkUnavailable,
    Store,
    drain,
    verify,
)
from export_queue.core.doctor import examine_sink, extras_of_sink
from export_queue.core.sinks.elasticsearch import scanning
from export_queue.core.sinks.elasticsearch.products import ELASTICSEARCH, OPENSEARCH, product_of

pytestmark = [
    pytest.mark.timeout(240),  # the first test waits for the server
    pytest.mark.one_store("what a sink does not depend on the store"),
]
PASSWORD = "XQ_TEST_OPENSEARCH"


@pytest.fixture
def search(
    opensearch_server: ElasticsearchServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[ElasticsearchServer, str, SinkSpec]]:
    """The server, a name of a queue for one test, and the description of a sink; whatever is created is deleted."""
    name = f"o{uuid4().hex[:12]}"
    monkeypatch.setenv(PASSWORD, opensearch_server.password)
    options = {"hosts": opensearch_server.url, "username": opensearch_server.user}
    yield opensearch_server, name, SinkSpec("opensearch", options, {"password": f"env:{PASSWORD}"}, name="search")
    for index in opensearch_server.request("GET", f"/{name}*?expand_wildcards=all")[1]:
        opensearch_server.request("DELETE", f"/{index}")
    opensearch_server.request("DELETE", "/xq_control/_doc/%2A")


@pytest.fixture
def stub() -> Iterator[Callable[..., str]]:
    """Start a server that answers every request with some JSON, as Elasticsearch or not, and return its URL."""
    opened: list[ThreadingHTTPServer] = []

    def start(body: bytes, is_elastic: bool, status: int = 200) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                if is_elastic:
                    self.send_header("X-Elastic-Product", "Elasticsearch")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        opened.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=opened[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{opened[-1].server_port}"

    yield start
    for one in opened:
        one.shutdown()
        one.server_close()


def found(server: ElasticsearchServer, alias: str) -> dict[str, Any]:
    """Read all documents as a reader does."""
    server.request("POST", f"/{alias}/_refresh")
    status, answer = server.request("POST", f"/{alias}/_search", {"size": 1000})
    assert status == 200, answer
    return {hit["_id"]: hit["_source"] for hit in answer["hits"]["hits"]}


def add(store: Store, queue: str, entries: dict[str, dict[str, Any] | None]) -> None:
    with store.transaction() as tx:
        for key, value in entries.items():
            tx.queue(queue).add(key, value)


def test_a_queue_is_drained_verified_and_rebuilt_by_an_alias(store: Store, search: Any) -> None:
    server, name, sink = search
    store.configure_queue(name, buckets=8, buckets_per_range=4, subscriptions=["main"], state=True)
    add(store, name, {f"k{n}": {"n": n} for n in range(30)})
    add(store, name, {"k1": {"n": 100}, "k2": None})
    assert drain(store, f"{name}/main", sink).acknowledged == 31 + 1
    wanted = {f"k{n}": {"n": n} for n in range(30) if n != 2} | {"k1": {"n": 100}}
    assert found(server, name) == wanted
    with contextlib.closing(sink.open()) as late:
        stale = Operations([name] * 2, [b"k1", b"k2"], [b'{"n":-1}'] * 2, [5, 5], range(2))
        assert late.apply(stale) == ApplyResult(0, 2), "neither an old put nor one after a delete"
    assert found(server, name) == wanted
    report = verify(store, f"{name}/main", sink)
    assert (report.differences, report.compared) == (0, 30), report.lines()
    server.request("DELETE", f"/{name}/_doc/k7?refresh=true")
    assert verify(store, f"{name}/main", sink).missing == 1
    store.rebuilds.start(f"{name}/main", sink, pointer="$collection-now", new_options={"index": "$collection-2"})
    add(store, name, {"k3": {"n": 300}})
    for reader in store.subscriptions(name):
        drain(store, reader.id, sink)
    store.rebuilds.switch(f"{name}/main", sink)
    assert found(server, f"{name}-now") == found(server, f"{name}-2") == wanted | {"k3": {"n": 300}}
    assert "k7" not in found(server, name), "the old index"


def test_one_kind_is_not_the_other(search: Any, store: Store) -> None:
    server, name, _ = search
    login = {"username": server.user, "password": server.password}
    with pytest.raises(SinkConfigurationError, match=r"is OpenSearch 2\.19\.6, expected Elasticsearch") as caught:
        ElasticsearchSink(server.url, **login).admit(queue_id=name, store_id="s", fence=1)
    assert "opensearch+https://host:9200" in str(caught.value.hint)
    assert server.password not in str(caught.value)
    assert server.request("GET", f"/{name}*")[1] == {}, "nothing was created"


def test_elasticsearch_is_not_opensearch_nor_is_anything_else(stub: Callable[..., str]) -> None:
    for body, is_elastic, said in (
        (
            b'{"version":{"number":"9.2.8"},"tagline":"You Know, for Search"}',
            True,
            "is Elasticsearch 9.2.8, expected Open",
        ),
        (b'{"hello":"world"}', False, "is neither Elasticsearch nor OpenSearch, expected OpenSearch"),
    ):
        with pytest.raises(SinkConfigurationError, match=said) as caught:
            OpenSearchSink(stub(body, is_elastic)).admit(queue_id="q", store_id="s", fence=1)
        assert ("kind elasticsearch" in str(caught.value.hint)) is is_elastic


@pytest.mark.parametrize(
    ("greeting", "product", "called"),
    [
        ({"version": {"distribution": "opensearch", "number": "3.1.0"}}, OPENSEARCH, "OpenSearch 3.1.0"),
        (
            {"version": {"number": "7.10.2"}, "tagline": "The OpenSearch Project: https://opensearch.org/"},
            OPENSEARCH,
            "OpenSearch 7.10.2",
        ),
        ({"version": {"number": "7.10.2"}, "tagline": "You Know, for Search"}, ELASTICSEARCH, "Elasticsearch 7.10.2"),
        ({"version": "1"}, None, "neither Elasticsearch nor OpenSearch"),
        ("<html>", None, "neither Elasticsearch nor OpenSearch"),
        (None, None, "neither Elasticsearch nor OpenSearch"),
    ],
)
def test_a_server_is_known_by_its_greeting(greeting: Any, product: Any, called: str) -> None:
    assert product_of(greeting) == (product, called)


def test_a_user_who_may_not_see_the_version_may_still_write(stub: Callable[..., str]) -> None:
    forbidden = b'{"error":{"type":"security_exception","reason":"no permissions"},"status":403}'
    with contextlib.closing(OpenSearchSink(stub(forbidden, False, status=403))) as sink:
        assert sink.probe().endswith("the user may not see the cluster's health, and need not")


def test_login_and_tls_are_demanded(search: Any, tmp_path: Path) -> None:
    server, name, _ = search
    known, other = (make_certificate(tmp_path, one) for one in ("known", "other"))
    with TlsProxy(server.port, known) as proxy:
        for options, password, complaint in (
            ({"ca_certs": str(known)}, server.password, None),
            ({"ca_certs": str(other)}, server.password, "certificate"),
            ({}, server.password, "certificate"),
            ({"ca_certs": str(known)}, "wrong", "401"),
        ):
            sink = OpenSearchSink(
                f"https://127.0.0.1:{proxy.port}", server.user, password, index=name, client_options=options
            )
            with contextlib.closing(sink):
                if complaint is None:
                    assert sink.probe().startswith(f"OpenSearch at 127.0.0.1:{proxy.port}, cluster ")
                    continue
                with pytest.raises(SinkRefused, match=complaint) as caught:
                    sink.admit(queue_id=name, store_id="s", fence=1)
                assert password not in str(caught.value)


def test_the_command_line_and_the_doctor_know_it(search: Any, store: Store, store_url: str) -> None:
    server, name, sink = search
    store.configure_queue(name)
    add(store, name, {"a": {"n": 1}})
    url = server.url.replace("http://", f"opensearch+http://{server.user}@")
    named = ("--sink", url, "--sink-secret", f"password=env:{PASSWORD}")
    assert f"PUT /{name}-000001" in run_cli("ddl", name, *named, url=store_url)
    assert "1 acknowledged" in run_cli("drain", name, *named, url=store_url)
    assert found(server, name) == {"a": {"n": 1}}
    assert extras_of_sink(sink) == {"opensearch"}
    (check,) = examine_sink(sink)
    assert (check.level, check.found.partition(" at ")[0]) == ("ok", "OpenSearch")


def test_a_page_without_all_shards_is_no_page() -> None:
    class Partial:
        def demand(self, method: str, path: str, **arguments: Any) -> Any:
            return {"_scroll_id": "s", "timed_out": False, "_shards": {"failed": 1}, "hits": {"hits": [{"_id": "1"}]}}

        def ask(self, method: str, path: str, **arguments: Any) -> tuple[int, Any]:
            return 200, {}

    with pytest.raises(SinkUnavailable, match="a shard cannot be read"):
        list(scanning.pages(Partial(), "orders", {"match_all": {}}, size=10))  # type: ignore[arg-type]
