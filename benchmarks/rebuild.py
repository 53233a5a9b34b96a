"""A rebuild of an index under writes and deletes, next to the server's own way: a copy of the index, then the alias.

In both, a client makes 500 changes a second, a fifth of them deletes, from before the copy until after the switch. Then
the new index is compared with what the client has written. *Missed* documents are not there, or older than the last
write; *resurrected* ones were deleted. The distribution of Elasticsearch that the tests use lacks the module
``reindex``: there, the copy does what ``_reindex`` does, a scroll that reads a snapshot, and bulk requests without
versions.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.elasticsearch import ElasticsearchServer
from tests.support.servers import PostgresServer

from benchmarks.measuring import Figure
from export_queue import ExportQueueError, SinkSpec, Store, drain

WRITES = 500
"""Changes per second."""
BLOCK = 25
"""Changes of one transaction, or of one bulk request."""
PAGE = 1000
FILL = 100_000
"""Documents that one transaction adds before the rebuild."""
_SECRET = "EXPORT_QUEUE_BENCH_ELASTICSEARCH"


def run(quick: bool) -> Iterator[Figure]:
    records = 1000 if quick else int(os.environ.get("EXPORT_QUEUE_BENCH_ENTRIES", "100000"))
    with ElasticsearchServer() as server:
        reindexed = reindex(server, records)
        with PostgresServer() as postgres:
            rebuilt = rebuild(server, postgres.url(postgres.create_database()), records)
    for ours, theirs, what in zip(rebuilt[:2], reindexed[:2], ("missed", "resurrected"), strict=True):
        yield Figure(
            bench="rebuild",
            case=f"{records:,} documents, {WRITES} changes per second: share of documents that are not {what}",
            ratio=1 - ours / records,
            better="higher",
            baseline="all documents",
            repeats=1,
            goal=1.0,
            note=f"{ours} {what}, reindex and alias {theirs}; {rebuilt[2]:.0f} s, {reindexed[2]:.0f} s",
        )


Changes = Mapping[str, int | None]
"""By key the new number; None deletes."""


@dataclass
class Client:
    """Makes changes at a fixed rate in a thread, and knows the last of each key."""

    records: int
    write: Callable[[Changes], object]
    latest: dict[str, int | None]
    generator: random.Random = field(default_factory=lambda: random.Random(1))
    errors: list[BaseException] = field(default_factory=list)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._run, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if self.errors:
            raise self.errors[0]

    def _run(self, stop: threading.Event) -> None:
        number, due = 0, time.monotonic()
        try:
            while not stop.wait(max(0.0, due - time.monotonic())):
                due += BLOCK / WRITES
                number += 1
                keys = self.generator.sample(range(self.records), BLOCK)
                changes = {f"k{key}": None if self.generator.random() < 0.2 else number for key in keys}
                self.write(changes)
                self.latest.update(changes)
        except BaseException as error:
            self.errors.append(error)


def compared(server: ElasticsearchServer, alias: str, latest: Changes) -> tuple[int, int]:
    """Return how many documents are missed, and how many are resurrected."""
    found = {one: source["n"] for one, source in documents(server, alias)}
    missed = sum(1 for key, number in latest.items() if number is not None and found.get(key) != number)
    return missed, sum(1 for key in found if latest.get(key) is None)


def ask(server: ElasticsearchServer, method: str, path: str, body: object = None) -> Any:
    status, answer = server.request(method, path, body)
    if status not in (200, 201):
        raise RuntimeError(f"{method} {path}: {status} {answer}")
    return answer


def documents(server: ElasticsearchServer, alias: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Read a snapshot of an index by a scroll."""
    ask(server, "POST", f"/{alias}/_refresh")
    answer = ask(server, "POST", f"/{alias}/_search?scroll=5m", {"size": PAGE, "sort": ["_doc"]})
    while hits := answer["hits"]["hits"]:
        yield from ((hit["_id"], hit["_source"]) for hit in hits)
        answer = ask(server, "POST", "/_search/scroll", {"scroll": "5m", "scroll_id": answer["_scroll_id"]})


def rebuild(server: ElasticsearchServer, url: str, records: int) -> tuple[int, int, float]:
    """Rebuild as docs/rebuild.md says; return what was missed and resurrected, and the seconds of all steps."""
    sink = SinkSpec(
        "elasticsearch", {"hosts": server.url, "username": server.user}, {"password": f"env:{_SECRET}"}, name="search"
    )
    os.environ[_SECRET] = server.password
    with Store.open(url) as store, Store.open(url) as writing, follower(url, sink, "orders/main") as follow:
        store.create()
        store.configure_queue("orders", state=True, subscriptions=["main"])
        latest = {f"k{n}": 0 for n in range(records)}
        keys = list(latest)
        for at in range(0, records, FILL):
            with store.transaction() as tx:
                tx.queue("orders").add_many((key, {"n": 0}) for key in keys[at : at + FILL])
        drain(store, "orders/main", sink)

        def write(changes: Changes) -> None:
            with writing.transaction() as tx:
                for key, number in changes.items():
                    tx.queue("orders").add(key, None if number is None else {"n": number})

        client = Client(records, write, latest)
        with client.running():
            follow()
            begun = time.monotonic()
            store.rebuilds.start("orders/main", sink, new_options={"index": "$collection-2"})
            drain(store, "orders/main-2", sink)
            store.rebuilds.switch("orders/main", sink)
            seconds = time.monotonic() - begun
        drain(store, "orders/main-2", sink)
        return *compared(server, "orders_now", client.latest), seconds


@contextlib.contextmanager
def follower(url: str, sink: SinkSpec, reader: str) -> Iterator[Callable[[], None]]:
    """Drain a reader again and again in a thread, from the call of the result until the end of the block."""
    stop = threading.Event()

    def run() -> None:
        with Store.open(url) as store:
            while not stop.wait(0.05):
                with contextlib.suppress(ExportQueueError):
                    drain(store, reader, sink)

    thread = threading.Thread(target=run)
    yield thread.start
    stop.set()
    if thread.is_alive():
        thread.join()


def reindex(server: ElasticsearchServer, records: int) -> tuple[int, int, float]:
    """Copy an index and switch the alias; return what was missed and resurrected, and the seconds."""
    for name in ("plain-1", "plain-2"):
        ask(server, "PUT", f"/{name}", {"mappings": {"properties": {"n": {"type": "long"}}}})
    ask(server, "POST", "/_aliases", {"actions": [{"add": {"index": "plain-1", "alias": "plain"}}]})
    latest = {f"k{n}": 0 for n in range(records)}
    keys = list(latest)
    for at in range(0, records, PAGE):
        bulk(server, "plain", dict.fromkeys(keys[at : at + PAGE], 0))
    client = Client(records, lambda changes: bulk(server, "plain", changes), latest)
    with client.running():
        begun = time.monotonic()
        copy(server)
        moved = [{"remove": {"index": "plain-1", "alias": "plain"}}, {"add": {"index": "plain-2", "alias": "plain"}}]
        ask(server, "POST", "/_aliases", {"actions": moved})
        seconds = time.monotonic() - begun
    return *compared(server, "plain", client.latest), seconds


def copy(server: ElasticsearchServer) -> None:
    whole = {"source": {"index": "plain-1"}, "dest": {"index": "plain-2"}}
    ask(server, "POST", "/plain-1/_refresh")
    status, _ = server.request("POST", "/_reindex?refresh=true", whole)
    if status == 200:
        return
    block: dict[str, int | None] = {}
    for key, source in documents(server, "plain-1"):
        block[key] = source["n"]
        if len(block) == PAGE:
            bulk(server, "plain-2", block)
            block = {}
    if block:
        bulk(server, "plain-2", block)


def bulk(server: ElasticsearchServer, name: str, changes: Changes) -> None:
    lines = []
    for key, number in changes.items():
        lines.append(json.dumps({"delete" if number is None else "index": {"_id": key}}))
        if number is not None:
            lines.append(json.dumps({"n": number}))
    send(server, f"/{name}/_bulk", "\n".join([*lines, ""]).encode())


def send(server: ElasticsearchServer, path: str, lines: bytes) -> None:
    login = base64.b64encode(f"{server.user}:{server.password}".encode()).decode()
    headers = {"authorization": f"Basic {login}", "content-type": "application/x-ndjson"}
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", path, lines, headers)
        answer = json.loads(connection.getresponse().read())
    refused = [item for found in answer["items"] for item in found.values() if item["status"] not in (200, 201, 404)]
    if refused:
        raise RuntimeError(f"{path}: {refused[0]}")
