"""The Elasticsearch sink against the server's own bulk of the same documents, and against the client's helper.

The raw way sends the same bytes without a version, one request at a time. Ours is compared with what does the same
without a guard: new documents with new ones, overwritten ones and stale ones with overwritten ones, tombstones with
small documents over large ones. Processor time is that of client and server for a document.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import elastic_transport
from elasticsearch import Elasticsearch, helpers
from tests.support.elasticsearch import ElasticsearchServer

from benchmarks.measuring import (
    Contestant,
    Figure,
    Taken,
    Watch,
    alternate,
    median_ratio,
    processor_of_each,
    rate,
    speed,
)
from benchmarks.processor import of_server
from export_queue import ElasticsearchSink, Operations
from export_queue.core.sinks.elasticsearch.indices import definition

RAW, HELPER = "raw bulk with ids", "streaming_bulk"
BATCH = 1000
"""Documents of a request of the other contestants."""
GOAL, HELPER_GOAL, CLIENT_GOAL = 1.0, 2.0, 1 / 7
ALIAS = "records"
_HEADERS = {
    "accept": "application/vnd.elasticsearch+json; compatible-with=8",
    "content-type": "application/vnd.elasticsearch+x-ndjson; compatible-with=8",
}
_SMALL = b'{"gone":true,"at":1700000000000000001}'


def run(quick: bool) -> list[Figure]:
    with ElasticsearchServer() as server:
        bench = Bench(server, 500 if quick else 40_000)
        try:
            return bench.compare(1 if quick else 7)
        finally:
            bench.close()


class Transport(elastic_transport.Transport):
    """Lets a client of 9.x talk to a server of 8.x, as a user's client of 8.x would."""

    def perform_request(self, method: str, target: str, *, headers: Any = None, **arguments: Any) -> Any:
        spoken = {name: text.replace("compatible-with=9", "compatible-with=8") for name, text in headers.items()}
        return super().perform_request(method, target, headers=spoken, **arguments)


class Bench:
    """Documents of about a hundred bytes."""

    def __init__(self, server: ElasticsearchServer, records: int) -> None:
        self.server, self.records = server, records
        self.ids = [b"customer-%09d" % n for n in range(records)]
        self.documents = [
            b'{"name":"customer %d","city":"Oslo","total":%d,"open":false}' % (n, n * 7) for n in range(records)
        ]
        login = (server.user, server.password)
        self.client = Elasticsearch(server.url, basic_auth=login, max_retries=0, transport_class=Transport)
        self.sink = ElasticsearchSink(server.url, *login, index=ALIAS)

    def close(self) -> None:
        self.sink.close()
        self.client.close()

    def compare(self, repeats: int) -> list[Figure]:
        figures: list[Figure] = []
        phases = (("new", False, 1), ("overwritten", True, 2), ("stale", True, 1))
        for phase, existing, seq in phases:
            contestants: dict[str, Contestant] = {
                "sink": lambda watch, e=existing, s=seq: self.by_sink(watch, e, s, self.documents),
                RAW: lambda watch, e=existing: self.by_hand(watch, e, self.documents),
            }
            if phase == "new":
                contestants[HELPER] = self.by_helper
            taken = self.measure(contestants, repeats)
            figures.append(self.figure(phase, taken, RAW, GOAL))
            if phase == "new":
                figures.append(self.figure(phase, taken, HELPER, HELPER_GOAL))
                figures.append(self.client_figure(taken))
        contestants = {
            "sink": lambda watch: self.by_sink(watch, True, 2, [None] * self.records),
            RAW: lambda watch: self.by_hand(watch, True, [_SMALL] * self.records),
        }
        figures.append(self.figure("tombstones over documents", self.measure(contestants, repeats), RAW, GOAL))
        return figures

    def measure(self, contestants: dict[str, Contestant], repeats: int) -> Taken:
        return alternate(contestants, repeats=repeats, server=of_server(self.server.pid))

    def figure(self, case: str, taken: Taken, baseline: str, goal: float) -> Figure:
        own, others = (processor_of_each(taken, name, self.records) for name in ("sink", baseline))
        return Figure(
            bench="elasticsearch",
            case=case,
            ratio=speed(taken, "sink", baseline),
            better="higher",
            goal=goal,
            baseline=baseline,
            repeats=len(taken["sink"]),
            note=f"{rate(taken, 'sink', self.records, 'documents')}; processor time {own}, {baseline} {others}",
        )

    def client_figure(self, taken: Taken) -> Figure:
        return Figure(
            bench="elasticsearch",
            case="new, processor time of the client a document",
            ratio=median_ratio(*([watch.client for watch in taken.watches[name]] for name in ("sink", HELPER))),
            better="lower",
            goal=CLIENT_GOAL,
            baseline=HELPER,
            repeats=len(taken["sink"]),
        )

    def by_sink(self, watch: Watch, existing: bool, seq: int, documents: Sequence[bytes | None]) -> None:
        self.empty()
        self.sink.create(ALIAS)
        if existing:
            self.deliver(1, self.documents)
            self.settle()
        with watch.running():
            self.deliver(seq, documents)

    def deliver(self, seq: int, documents: Sequence[bytes | None]) -> None:
        rows = self.sink.capabilities.batch_rows
        for start in range(0, self.records, rows):
            ids = self.ids[start : start + rows]
            n = len(ids)
            self.sink.apply(Operations(["c"] * n, ids, documents[start : start + n], [seq] * n, range(n)))

    def by_hand(self, watch: Watch, existing: bool, documents: Sequence[bytes]) -> None:
        self.empty()
        if existing:
            self.send(self.documents)
            self.settle()
        with watch.running():
            self.send(documents)

    def send(self, documents: Sequence[bytes]) -> None:
        for start in range(0, self.records, BATCH):
            pairs = zip(self.ids[start : start + BATCH], documents[start : start + BATCH], strict=True)
            body = b"".join([b'{"index":{"_id":"%b"}}\n%b\n' % pair for pair in pairs])
            params = {"filter_path": "errors"}
            answer = self.client.perform_request("POST", f"/{ALIAS}/_bulk", params=params, headers=_HEADERS, body=body)
            assert not answer.body["errors"]

    def by_helper(self, watch: Watch) -> None:
        self.empty()
        actions = (
            {"_index": ALIAS, "_id": record.decode(), "_source": document}
            for record, document in zip(self.ids, self.documents, strict=True)
        )

        with watch.running():
            for ok, _ in helpers.streaming_bulk(self.client, actions, chunk_size=BATCH):
                assert ok

    def empty(self) -> None:
        """Begin with the index as the sink makes it."""
        name, body = definition(ALIAS)
        for index in (name, "xq_control"):  # which remembers the index
            self.server.request("DELETE", f"/{index}")
        status, answer = self.server.request("PUT", f"/{name}", body)
        assert status == 200, answer

    def settle(self) -> None:
        """Bring what is there to where older documents lie."""
        for what in ("_refresh", "_flush"):
            self.server.request("POST", f"/{ALIAS}/{what}")
