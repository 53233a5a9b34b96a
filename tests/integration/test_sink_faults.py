"""Every kind of sink on its real server, behind a proxy that cuts, holds and delays: what arrives late or twice, or not
at all, changes nothing that is newer, and nobody is told that something was written which was not."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import orjson
import pytest
from sqlalchemy import make_url
from tests.support.elasticsearch import ElasticsearchServer
from tests.support.fixtures import OLDER, OPENSEARCH
from tests.support.proxy import Cut, CuttingProxy, Direction
from tests.support.servers import RedisServer
from tests.support.sql_targets import execute

from export_queue import (
    ApplyResult,
    Delete,
    ExportQueueError,
    Operations,
    Put,
    RedisSink,
    Sink,
    SinkUnavailable,
    SqlSink,
    Store,
    drain,
)
from export_queue.core.drain import DRAIN_RETRY

pytestmark = pytest.mark.timeout(240)  # the first test of a version of Elasticsearch waits for its server
WAYS: tuple[Direction, ...] = ("to_server", "to_client")
PATIENCE = 60.0
"""Seconds that even a slow machine does not need."""
CUTS = 25
"""In each direction."""
_numbers = itertools.count()
Result = TypeVar("Result")


def puts(*ids: bytes, seq: int = 5, document: bytes | None = b'{"n":1}') -> Operations:
    n = len(ids)
    return Operations(["records"] * n, ids, [document] * n, [seq] * n, range(n))


def large(value: int) -> bytes:
    """Return a document that is most of what is sent for it."""
    return orjson.dumps({"n": value, "t": "x" * 4000})


def deliver(sink: Sink, operations: Operations) -> ApplyResult:
    """Apply as a drain does."""
    return patiently(lambda: sink.apply(operations))


def patiently(act: Callable[[], Result]) -> Result:
    """Do something again after errors that are transient."""
    for _ in range(5):
        with contextlib.suppress(SinkUnavailable):
            return act()
    return act()


class Sizes:
    """How many bytes a batch takes each way, over a connection that is there."""

    def __init__(self, proxy: CuttingProxy, sink: Sink, operations: Operations) -> None:
        deliver(sink, puts(b"warm"))
        proxy.arm()
        assert sink.apply(operations).written == len(operations)
        self.by_way = {way: proxy.counted(way) for way in WAYS}

    def cuts(self) -> Iterator[Cut]:
        for way, size in self.by_way.items():
            spread = range(0, size, max(1, size // CUTS))
            last = range(max(0, size - 32), size, 6)  # the answer to the commit, and what the client says after it
            for after in sorted({*spread, *last, size - 1, size}):
                yield Cut(direction=way, after=after, how="reset")


class Faults:
    """What every sink must stand; a subclass says how it is opened and read."""

    host: str
    port: int
    farewell: Mapping[Direction, int] = {"to_server": 0, "to_client": 0}
    """Bytes that a client exchanges after its batch was acknowledged."""
    is_atomic = True

    def open(self, port: int, timeout: float) -> Sink:
        """Open the sink at a port: the server's, or that of the proxy before it."""
        raise NotImplementedError

    def read(self) -> dict[bytes, bytes]:
        """Read the documents by id, as a reader does."""
        raise NotImplementedError

    @pytest.fixture
    def proxy(self) -> Iterator[CuttingProxy]:
        with CuttingProxy(self.host, self.port) as proxy:
            yield proxy

    @pytest.fixture
    def opened(self) -> Iterator[Callable[..., Sink]]:
        with contextlib.ExitStack() as closing:

            def open_one(port: int | None = None, timeout: float = 30.0) -> Sink:
                sink = self.open(port or self.port, timeout)
                closing.callback(sink.close)
                patiently(lambda: sink.admit(queue_id="q", store_id="s", fence=1))
                assert deliver(sink, puts(b"warm")).rejected == ()
                return sink

            yield open_one

    def fresh(self) -> bytes:
        """Return an id that nobody has, always of one length."""
        return b"%05d-%08d" % (os.getpid() % 100_000, next(_numbers))

    def test_a_connection_that_is_cut_at_any_byte_loses_nothing_and_doubles_nothing(self, opened, proxy):
        """Before the request, amid it, between commit and answer, amid the answer: whoever was told is right."""
        sink, direct = opened(proxy.port), opened()
        sizes = Sizes(proxy, sink, puts(self.fresh(), self.fresh()))
        unknown = []
        for cut in sizes.cuts():
            deliver(sink, puts(b"warm"))  # over a new connection
            batch = puts(self.fresh(), self.fresh())
            proxy.arm(cut)
            told = None
            with contextlib.suppress(SinkUnavailable):
                told = sink.apply(batch)
            proxy.disarm()
            again = direct.apply(batch)
            assert (again.written + again.stale, again.rejected) == (2, ())
            if told is None:
                unknown.append(again)
            else:
                assert (told, again) == (ApplyResult(2, 0), ApplyResult(0, 2)), f"acknowledged and not there: {cut}"
            assert again.written != 1 or not self.is_atomic
        assert ApplyResult(0, 2) in unknown, "an answer was lost after the batch was applied"
        assert ApplyResult(2, 0) in unknown, "a batch was lost on its way"

    def test_a_request_whose_answer_does_not_come_is_sent_once(self, opened, proxy):
        """It may have been applied, as here: only the drain decides to repeat it."""
        direct, sink = opened(), opened(proxy.port, timeout=2.0)
        ids = (self.fresh(), self.fresh())
        assert deliver(sink, puts(*ids, seq=4)) == ApplyResult(2, 0)
        sizes = Sizes(proxy, sink, puts(*ids, seq=5)).by_way  # of the same records: their shards have names of a length
        batch = puts(*ids, seq=6)
        last = sizes["to_client"] - self.farewell["to_client"] - 1
        proxy.arm(Cut(direction="to_client", after=last, how="hold"))
        with pytest.raises(SinkUnavailable) as caught:
            sink.apply(batch)
        assert caught.value.transient
        assert proxy.wait_for_cut(0)
        assert proxy.counted("to_server") <= sizes["to_server"], "more was sent than one batch takes"
        assert direct.apply(batch) == ApplyResult(0, 2)
        proxy.drop()
        assert deliver(sink, puts(*ids, seq=7)) == ApplyResult(2, 0), "it goes on over another connection"

    @pytest.mark.parametrize("newer", [large(9), None], ids=["put", "delete"])
    def test_a_write_that_arrives_after_a_newer_one_changes_nothing(self, opened, proxy, newer):
        """A zombie: stopped between its look and the end of its write, and woken when others have gone on."""
        zombie, other, record = opened(proxy.port), opened(), self.fresh()
        half = Sizes(proxy, zombie, puts(self.fresh(), document=large(1))).by_way["to_server"] // 2
        proxy.arm(Cut(direction="to_server", after=half, how="hold"))
        results: list[ApplyResult] = []
        thread = threading.Thread(target=lambda: results.append(zombie.apply(puts(record, document=large(1)))))
        thread.start()
        assert proxy.wait_for_cut(PATIENCE)
        assert other.apply(puts(record, seq=9, document=newer)).written == 1
        proxy.deliver()
        thread.join(PATIENCE)
        assert results == [ApplyResult(0, 1)]
        assert self.read().get(record) == newer

    def test_a_server_that_answers_too_late_delays_the_drain(self, opened, proxy, sqlite_url):
        """The batch ends by its time-out, the drain waits and tries again, and nothing is there twice."""
        pauses: list[float] = []
        cuts = [Cut(direction="to_client", after=10, how="hold")]
        with Store.open(sqlite_url) as store:
            store.create()
            queue = f"q-{self.fresh().decode()}"  # the sink remembers which store feeds it
            store.configure_queue(queue, buckets=1, buckets_per_range=1)
            ids = [self.fresh() for _ in range(40)]
            with store.transaction() as tx:
                for n, record in enumerate(ids):
                    tx.queue(queue).add(record.decode(), {"n": n})
            report = drain(
                store,
                queue,
                opened(proxy.port, timeout=2.0),
                sink_name="slow",
                exporter=lambda entry: [Put("records", entry.key, entry.value)],
                chunk_rows=10,
                retry=replace(DRAIN_RETRY, sleep=pauses.append),
                on_progress=lambda _: proxy.arm(cuts.pop()) if cuts else None,
            )
        assert (report.acknowledged, report.dead, report.left) == (40, 0, 0)
        assert pauses
        assert not cuts
        found = self.read()
        assert [found[record] for record in ids] == [b'{"n":%d}' % n for n in range(40)]

    def test_two_queues_may_feed_one_record_in_any_order(self, sqlite_url):
        """What counts is the sequence, which all queues of a store share."""
        records = [self.fresh() for _ in range(3)]
        first, second, third = (f"q-{self.fresh().decode()}" for _ in range(3))
        values = {
            first: [{"n": 1}, {"n": 1}, {"n": 1}],
            second: [{"n": 2}, None, {"n": 2}],
            third: [None, {"n": 3}, {"n": 3}],
        }
        sink = self.open(self.port, 30.0)
        with Store.open(sqlite_url) as store, contextlib.closing(sink):
            store.create()
            for queue, documents in values.items():  # each in a transaction of its own: later is newer
                store.configure_queue(queue)
                with store.transaction() as tx:
                    for record, document in zip(records, documents, strict=True):
                        tx.queue(queue).add(record.decode(), document)
            for queue in (third, first, second):
                assert drain(store, queue, sink, sink_name="shared", exporter=to_records).acknowledged == 3
        found = self.read()
        assert [found.get(record) for record in records] == [None, b'{"n":3}', b'{"n":3}']


def to_records(entry: Any) -> list[Put | Delete]:
    return [Delete("records", entry.key) if entry.value is None else Put("records", entry.key, entry.value)]


class TestRedis(Faults):
    @pytest.fixture(autouse=True)
    def _target(self, redis_server: RedisServer, redis_client) -> None:
        self.server, self.client = redis_server, redis_client
        self.host, self.port = redis_server.host, redis_server.port

    def open(self, port: int, timeout: float) -> Sink:
        return RedisSink(self.host, port, password=self.server.password, key="t:$id", socket_timeout=timeout)

    def read(self) -> dict[bytes, bytes]:
        return {key.removeprefix(b"t:"): self.client.get(key) for key in self.client.keys("t:*")}


class OnSql(Faults):
    url: str

    @pytest.fixture(autouse=True)
    def _soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("postgresql", "mysql"):
            monkeypatch.setattr(f"export_queue.core.sinks.sql.dialects.{name}._GRACE_SECONDS", 0.5)

    def at(self, url: str) -> None:
        parsed = make_url(url)
        assert parsed.host is not None
        assert parsed.port is not None
        self.url, self.host, self.port = url, parsed.host, parsed.port

    def open(self, port: int, timeout: float) -> Sink:
        return SqlSink(make_url(self.url).set(port=port).render_as_string(hide_password=False), timeout=timeout)

    def read(self) -> dict[bytes, bytes]:
        rows = execute(self.url, "SELECT id, document FROM records_live")
        return {record.encode(): document.encode() for record, document in rows}

    def test_a_zombie_amid_its_transaction_keeps_its_locks_for_its_time_out_only(self, opened, proxy):
        """Stopped just before its commit: the server ends its session, and others go on."""
        zombie, other, record = opened(proxy.port, timeout=3.0), opened(timeout=15.0), self.fresh()
        size = Sizes(proxy, zombie, puts(self.fresh())).by_way["to_server"]
        proxy.arm(Cut(direction="to_server", after=size - self.farewell["to_server"] - 1, how="hold"))
        ends: list[object] = []

        def work() -> None:
            try:
                ends.append(zombie.apply(puts(record, seq=5)))
            except ExportQueueError as error:
                ends.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        assert proxy.wait_for_cut(PATIENCE)
        assert other.apply(puts(record, seq=9, document=b'{"n":9}')) == ApplyResult(1, 0)
        proxy.deliver()
        thread.join(PATIENCE)
        (end,) = ends
        assert isinstance(end, SinkUnavailable), end
        assert self.read()[record] == b'{"n":9}'


class TestPostgresql(OnSql):
    @pytest.fixture(autouse=True)
    def _target(self, postgres_url: str) -> None:
        self.at(postgres_url)


@pytest.mark.full("connections to PostgreSQL are cut anyway")
class TestMariadb(OnSql):
    farewell: Mapping[Direction, int] = {"to_server": 13, "to_client": 11}  # the pool's ROLLBACK

    @pytest.fixture(autouse=True)
    def _target(self, mariadb_url: str) -> None:
        self.at(mariadb_url)


@pytest.mark.parametrize(  # what breaks here is on our side
    "elasticsearch_server", [OLDER, pytest.param(OPENSEARCH, marks=pytest.mark.full("another product"))], indirect=True
)
class TestElasticsearch(Faults):
    is_atomic = False

    @pytest.fixture(autouse=True)
    def _target(self, elasticsearch_server: ElasticsearchServer) -> Iterator[None]:
        self.server = elasticsearch_server
        self.host, self.port = elasticsearch_server.host, elasticsearch_server.port
        self.index = f"f{os.getpid()}x{next(_numbers)}"
        yield
        self.server.request("DELETE", f"/{self.index}-000001")

    def open(self, port: int, timeout: float) -> Sink:
        url = f"http://{self.host}:{port}"
        return self.server.sink(url, self.server.user, self.server.password, index=self.index, timeout=timeout)

    def read(self) -> dict[bytes, bytes]:
        self.server.request("POST", f"/{self.index}/_refresh")
        _, answer = self.server.request("POST", f"/{self.index}/_search", {"size": 10_000})
        return {hit["_id"].encode(): orjson.dumps(hit["_source"]) for hit in answer["hits"]["hits"]}
