"""The web service of the page about reading one's own writes: no user ever misses a change of his own."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.elasticsearch import ElasticsearchServer
from tests.support.fixtures import NEWER, OLDER
from tests.support.waiting import wait_until

from export_queue import Store, follow

pytestmark = [
    pytest.mark.timeout(240),  # the first test waits for its server
    pytest.mark.parametrize(  # the page's program has a sink on Elasticsearch
        "elasticsearch_server",
        [OLDER, pytest.param(NEWER, marks=pytest.mark.full("the second version"))],
        indirect=True,
    ),
]
PAGE = (Path(__file__).parents[2] / "docs" / "read-your-writes.md").read_text("utf-8")
(SERVICE,) = (
    block for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) if "FastAPI" in block
)


@pytest.fixture
def server(elasticsearch_server: ElasticsearchServer) -> Iterator[ElasticsearchServer]:
    yield elasticsearch_server
    elasticsearch_server.request("DELETE", "/products-000001")
    elasticsearch_server.request("DELETE", "/xq_control/_doc/%2A")
    elasticsearch_server.request("DELETE", "/xq_control/_doc/products")


@pytest.fixture
def service(
    server: ElasticsearchServer, store: Store, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """The names of the page's program."""
    store.configure_queue("products", buckets=20, buckets_per_range=5)
    found = {"STORE_URL": store_url, "SEARCH_URL": server.url, "SEARCH_USER": server.user}
    for name, value in {**found, "SEARCH_PASSWORD": server.password}.items():
        monkeypatch.setenv(name, value)
    names: dict[str, Any] = {"__name__": "service"}
    exec(compile(SERVICE, "docs/read-your-writes.md", "exec"), names)
    yield names
    for name in ("store", "sink", "search"):
        names[name].close()


def answer_of(client: Any, name: str) -> Any:
    """Search, again if the index is late, as it may be on a busy machine."""
    found = []

    def answers() -> bool:
        found.append(client.get("/products", params={"name": name}))
        return found[-1].status_code != 503

    wait_until(answers, "the index is late all the time")
    assert found[-1].status_code == 200
    return found[-1].json()


def test_a_user_finds_each_change_of_his_own(
    service: dict[str, Any], server: ElasticsearchServer, store: Store, store_url: str
) -> None:
    from fastapi.testclient import TestClient

    sink = server.sink(server.url, server.user, server.password)
    stopped = threading.Event()
    follower = threading.Thread(
        target=lambda: follow(store, "products", sink, sink_name="search", stop=stopped.is_set), daemon=True
    )
    follower.start()
    try:
        with TestClient(service["app"]) as client:
            for i in range(20):
                assert client.put(f"/products/p{i % 3}", params={"name": f"lamp{i}"}).status_code == 200
                assert answer_of(client, f"lamp{i}") == [f"p{i % 3}"]
    finally:
        stopped.set()
        follower.join()
        sink.close()


def test_an_index_that_is_late_is_an_error_and_no_old_answer(service: dict[str, Any]) -> None:
    from fastapi.testclient import TestClient

    with TestClient(service["app"]) as client:
        service["store"].wait_exported, waits = _briefly(service["store"].wait_exported), service["store"]
        client.put("/products/p1", params={"name": "lamp"})
        assert client.get("/products", params={"name": "lamp"}).status_code == 503
        assert waits.backlog("products")


def _briefly(wait: Any) -> Any:
    return lambda *plain, **named: wait(*plain, **{**named, "timeout": 0.05})
