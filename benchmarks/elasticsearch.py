"""The Elasticsearch sink against the server's own bulk of the same documents, and against the client's helper.

The raw way sends the same bytes without a version. Ours is compared with what does the same without a guard: new
documents with new ones, overwritten ones and stale ones with overwritten ones, tombstones with small documents over
large ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import elastic_transport
from elasticsearch import Elasticsearch, helpers
from tests.support.elasticsearch import ElasticsearchServer

from benchmarks.measuring import Figure, Watch, alternate, median_ratio, rate, speed
from export_queue import ElasticsearchSink, Operations
from export_queue.core.sinks.elasticsearch.indices import definition

RAW, HELPER = "raw bulk with ids", "streaming_bulk"
BATCH = 1000
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
    """Documents of about a hundred bytes, a thousand a request."""

    def __init__(self, server: ElasticsearchServer, records: int) -> None:
        self.server, self.records = server, records
        self.ids = [b"customer-%09d" % n for n in range(records)]
        self.documents = [
            b'{"name":"customer %d","city":"Oslo","total":%d,"open":false}' % (n, n * 7) for n in range(records)
        ]
        login = (server.user, server.password)
        self.client = Elasticsearch(server.url, basic_auth=login, max_retries=0, transport_class=Transport)
        self.sink = ElasticsearchSink(server.url, *login, index=ALIAS)
        self.cpu: dict[str, list[float]] = {}

    def close(self) -> None:
        self.sink.close()
        self.client.close()

    def compare(self, repeats: int) -> list[Figure]:
        figures: list[Figure] = []
        phases = (("new", False, 1), ("overwritten", True, 2), ("stale", True, 1))
        for phase, existing, seq in phases:
            contestants = {
                "sink": lambda watch, e=existing, s=seq: self.by_sink(watch, e, s, self.documents),
                RAW: lambda watch, e=existing: self.by_hand(watch, e, self.documents),
            }
            if phase == "new":
                contestants[HELPER] = self.by_helper
                self.cpu = {}
            seconds = alternate(contestants, repeats=repeats)
            figures.append(self.figure(phase, seconds, RAW, 0.93))
            if phase == "new":
                figures.append(self.figure(phase, seconds, HELPER, 2.3))
                figures.append(self.cpu_figure(repeats))
        contestants = {
            "sink": lambda watch: self.by_sink(watch, True, 2, [None] * self.records),
            RAW: lambda watch: self.by_hand(watch, True, [_SMALL] * self.records),
        }
        figures.append(self.figure("tombstones over documents", alternate(contestants, repeats=repeats), RAW, 0.93))
        return figures

    def figure(self, case: str, seconds: dict[str, list[float]], baseline: str, goal: float) -> Figure:
        return Figure(
            bench="elasticsearch",
            case=case,
            ratio=speed(seconds, "sink", baseline),
            better="higher",
            goal=goal,
            baseline=baseline,
            repeats=len(seconds["sink"]),
            note=rate(seconds, "sink", self.records, "documents"),
        )

    def cpu_figure(self, repeats: int) -> Figure:
        ours, theirs = (self.cpu[name][1:] for name in ("sink", HELPER))  # the first round warms up
        return Figure(
            bench="elasticsearch",
            case="new, processor time of the client a document",
            ratio=median_ratio(ours, theirs),
            better="lower",
            goal=1 / 6,
            baseline=HELPER,
            repeats=repeats,
            note=f"{min(ours) / self.records * 1e6:.1f} µs",
        )

    def by_sink(self, watch: Watch, existing: bool, seq: int, documents: Sequence[bytes | None]) -> None:
        self.empty()
        self.sink.create(ALIAS)
        if existing:
            self.deliver(1, self.documents)
            self.settle()
        self.measure(watch, "sink", lambda: self.deliver(seq, documents))

    def deliver(self, seq: int, documents: Sequence[bytes | None]) -> None:
        for start in range(0, self.records, BATCH):
            ids = self.ids[start : start + BATCH]
            n = len(ids)
            self.sink.apply(Operations(["c"] * n, ids, documents[start : start + n], [seq] * n, range(n)))

    def by_hand(self, watch: Watch, existing: bool, documents: Sequence[bytes]) -> None:
        self.empty()
        if existing:
            self.send(self.documents)
            self.settle()
        self.measure(watch, RAW, lambda: self.send(documents))

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

        def stream() -> None:
            for ok, _ in helpers.streaming_bulk(self.client, actions, chunk_size=BATCH):
                assert ok

        self.measure(watch, HELPER, stream)

    def measure(self, watch: Watch, name: str, work: Callable[[], None]) -> None:
        begun = time.process_time()
        with watch.running():
            work()
        self.cpu.setdefault(name, []).append(time.process_time() - begun)

    def empty(self) -> None:
        """Begin with the index as the sink makes it."""
        name, body = definition(ALIAS)
        self.server.request("DELETE", f"/{name}")
        status, answer = self.server.request("PUT", f"/{name}", body)
        assert status == 200, answer

    def settle(self) -> None:
        """Bring what is there to where older documents lie."""
        for what in ("_refresh", "_flush"):
            self.server.request("POST", f"/{ALIAS}/{what}")
