"""Several sinks as one: the conformance suite on it, and what happens when one of its parts fails or refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import redis
from sqlalchemy import create_engine, inspect, text
from tests.support.servers import RedisServer

from export_queue import (
    ApplyResult,
    Capabilities,
    MemorySink,
    Operations,
    RedisSink,
    Rejection,
    SecretNotFound,
    Sink,
    SinkBelongsToAnother,
    SinkConfigurationError,
    SinkSpec,
    SinkUnavailable,
    SqlSink,
    Store,
    drain,
)
from export_queue.core.drain import DRAIN_RETRY
from export_queue.core.sinks import CompositeSink
from export_queue.core.testing.conformance.histories import Delivery, expected, visible
from export_queue.testing import SinkConformance

Records = Mapping[tuple[str, bytes], bytes]


class TestTwoInMemory(SinkConformance):
    shared = False

    @pytest.fixture(autouse=True)
    def _target(self) -> None:
        self.names = [f"{self.fresh()}{n}" for n in range(2)]

    def make_sink(self) -> CompositeSink:
        return CompositeSink([(name, MemorySink(name)) for name in self.names])

    def read_all(self) -> Records:
        return MemorySink(self.names[1]).records()

    def check(self, deliveries: Sequence[Delivery]) -> None:
        super().check(deliveries)
        assert visible(MemorySink(self.names[0]).records(), deliveries) == expected(deliveries)


@pytest.mark.full("two parts in memory run anyway")
class TestSqliteAndRedis(SinkConformance):
    takes = "text"

    @pytest.fixture(autouse=True)
    def _target(self, tmp_path: Any, redis_server: RedisServer, redis_client: redis.Redis) -> Iterator[None]:
        self.server, self.client = redis_server, redis_client
        self.url = f"sqlite:///{tmp_path}/copies.db"
        self.readers = create_engine(self.url)
        yield
        self.readers.dispose()

    def make_sink(self) -> CompositeSink:
        cache = RedisSink(self.server.host, self.server.port, password=self.server.password)
        return CompositeSink([("copies", SqlSink(self.url)), ("cache", cache)])

    def read_all(self) -> Records:
        keys = list(self.client.scan_iter("conformance*", count=10_000))
        values = self.client.mget(keys) if keys else []
        found = zip((key.partition(b":") for key in keys), values, strict=True)
        return {(name.decode(), record): value for (name, _, record), value in found if value is not None}

    def check(self, deliveries: Sequence[Delivery]) -> None:
        super().check(deliveries)
        found = {}
        with self.readers.connect() as connection:
            for view in inspect(connection).get_view_names():
                for row in connection.execute(text(f'SELECT * FROM "{view}"')):
                    found[view.removesuffix("_live"), row.id.encode()] = row.document.encode()
        assert visible(found, deliveries) == expected(deliveries)


class Part(MemorySink):
    """A part that is told what to refuse, and when to be away."""

    def __init__(self, *, refuses: bytes = b"nothing of this", capabilities: Capabilities | None = None) -> None:
        super().__init__()
        self.refuses = refuses
        self.is_away = False
        self.closed = 0
        if capabilities is not None:
            self.capabilities = capabilities  # type: ignore[misc]

    def apply(self, operations: Operations) -> ApplyResult:
        if self.is_away:
            raise SinkUnavailable("away")
        bad = [i for i, document in enumerate(operations.documents) if self.refuses in (document or b"")]
        good = operations.take([i for i in range(len(operations)) if i not in bad])
        result = super().apply(good)
        return ApplyResult(result.written, result.stale, tuple(Rejection(i, "no") for i in bad))

    def close(self) -> None:
        self.closed += 1
        if self.is_away:
            raise SinkUnavailable("away")


def test_a_time_to_live_reaches_all_parts_or_is_rejected_by_the_name_of_one(tmp_path):
    batch = Operations(["c"] * 2, [b"1", b"2"], [b"{}"] * 2, [5] * 2, [0, 1], [None, 60])
    one, other = MemorySink(), MemorySink()
    assert composite(one=one, other=other).apply(batch).written == 2
    assert one.ttls() == other.ttls() == {("c", b"2"): 60}
    copies = SqlSink(f"sqlite:///{tmp_path}/copies.db")
    both = composite(cache=MemorySink(), copies=copies)
    result = both.apply(batch)
    assert not both.capabilities.ttl
    assert [(one.position, one.reason.partition(":")[0]) for one in result.rejected] == [(1, "copies")]
    copies.close()


@pytest.fixture
def orders(sqlite_url: str) -> Iterator[Store]:
    with Store.open(sqlite_url) as store:
        store.create()
        store.configure_queue("orders", buckets=4, buckets_per_range=4)
        yield store


def add(store: Store, **values: Any) -> None:
    with store.transaction() as tx:
        for key, value in values.items():
            tx.queue("orders").add(key, value)


def waiting(store: Store) -> int:
    return sum(unit.entries for unit in store.backlog("orders"))


def composite(**parts: Sink) -> CompositeSink:
    return CompositeSink(list(parts.items()))


@pytest.mark.parametrize("away", [0, 1, 2])
def test_while_one_part_is_away_entries_stay_queued_and_then_all_parts_get_them(orders: Store, away: int) -> None:
    parts = [Part(), Part(), Part()]
    sink = composite(a=parts[0], b=parts[1], c=parts[2])
    add(orders, anna=1, ben=2)
    drain(orders, "orders", sink)
    parts[away].is_away = True
    add(orders, anna=3, ben=None)
    with pytest.raises(SinkUnavailable):
        drain(orders, "orders", sink, retry=replace(DRAIN_RETRY, attempts=2, sleep=lambda seconds: None))
    assert (waiting(orders), orders.dead_letters.count("orders")) == (2, 0)
    parts[away].is_away = False
    report = drain(orders, "orders", sink)
    assert (report.acknowledged, report.dead, report.written, waiting(orders)) == (2, 0, 2, 0)
    assert [part.records() for part in parts] == [{("orders", b"anna"): b"3"}] * 3


def test_what_one_part_rejects_is_dead_by_its_name_and_reaches_no_later_part(orders: Store) -> None:
    strict, mild = Part(refuses=b"poison"), Part()
    add(orders, anna="good", ben="poison", carl="good")
    report = drain(orders, "orders", composite(strict=strict, mild=mild))
    assert (report.acknowledged, report.dead) == (2, 1)
    (letter,) = orders.dead_letters.list("orders")
    assert letter.reason == "strict: no"
    assert set(strict.records()) == set(mild.records()) == {("orders", b"anna"), ("orders", b"carl")}


def test_what_a_later_part_rejects_converges_after_a_retry(orders: Store) -> None:
    mild, strict = Part(), Part(refuses=b"poison")
    sink = composite(mild=mild, strict=strict)
    add(orders, anna="old")
    drain(orders, "orders", sink)
    add(orders, anna="poison")
    assert drain(orders, "orders", sink).dead == 1
    assert mild.records() != strict.records(), "until somebody does something"
    strict.refuses = b"nothing of this"
    assert orders.dead_letters.retry("orders") == 1
    assert drain(orders, "orders", sink).acknowledged == 1
    assert mild.records() == strict.records() == {("orders", b"anna"): b'"poison"'}


def test_what_gave_way_to_a_rejected_operation_reaches_all_parts(orders: Store) -> None:
    strict, mild = Part(refuses=b"poison"), Part()
    add(orders, anna="good")
    add(orders, anna="poison")
    report = drain(orders, "orders", composite(strict=strict, mild=mild))
    assert (report.acknowledged, report.dead) == (1, 1)
    assert strict.records() == mild.records() == {("orders", b"anna"): b'"good"'}


def test_a_composite_can_do_what_all_its_parts_can() -> None:
    one = Part(capabilities=Capabilities(batch_rows=10, batch_bytes=900))
    other = Part(capabilities=Capabilities(batch_rows=20, batch_bytes=100, binary_ids=False))
    assert composite(a=one, b=other).capabilities == Capabilities(batch_rows=10, batch_bytes=100, binary_ids=False)


def test_every_part_may_refuse_the_store() -> None:
    one, other = Part(), Part()
    other.admit(queue_id="q", store_id="another", fence=1)
    with pytest.raises(SinkBelongsToAnother):
        composite(a=one, b=other).admit(queue_id="q", store_id="ours", fence=5)


def test_all_parts_are_closed_though_one_fails() -> None:
    parts = [Part(), Part(), Part()]
    parts[1].is_away = True
    with pytest.raises(SinkUnavailable):
        composite(a=parts[0], b=parts[1], c=parts[2]).close()
    assert [part.closed for part in parts] == [1, 1, 1]


# -- as data ---------------------------------------------------------------------------------------------------------


def described(*parts: Any, **more: Any) -> SinkSpec:
    return SinkSpec("composite", {"parts": list(parts), **more})


def memory(name: str) -> dict[str, Any]:
    return {"kind": "memory", "options": {"name": name}}


def test_a_description_names_its_parts_and_survives_json(orders: Store) -> None:
    spec = described(memory("composite a"), {**memory("composite b"), "name": "second"})
    assert spec.name == "memory:composite a + second"
    assert SinkSpec.from_json(spec.to_json()) == spec
    assert [part.name for part in spec.leaves()] == ["memory:composite a", "second"]
    add(orders, anna=1)
    assert drain(orders, "orders", spec).acknowledged == 1
    assert MemorySink("composite a").records() == MemorySink("composite b").records() == {("orders", b"anna"): b"1"}
    assert isinstance(spec.open(), CompositeSink)


def test_each_part_has_its_own_secrets(monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer) -> None:
    monkeypatch.setenv("XQ_TEST_PART", redis_server.password)
    cache = {
        "kind": "redis",
        "options": {"host": redis_server.host, "port": redis_server.port},
        "secrets": {"password": "env:XQ_TEST_PART"},
    }
    spec = described(cache, memory("beside redis"))
    assert redis_server.password not in repr(spec) + spec.to_json()
    sink = spec.open()
    sink.admit(queue_id="q", store_id="s", fence=1)
    sink.close()
    monkeypatch.delenv("XQ_TEST_PART")
    with pytest.raises(SecretNotFound):
        spec.open()


@pytest.mark.parametrize(
    "build",
    [
        lambda: SinkSpec("composite"),
        lambda: described(),
        lambda: described(memory("a"), more=1),
        lambda: SinkSpec("composite", {"parts": [memory("a")]}, {"password": "env:X"}),
        lambda: described("memory"),
        lambda: described({"options": {}}),
        lambda: described({**memory("a"), "password": "secret"}),
        lambda: described({"kind": "redis", "options": {"password": "secret"}}),
        lambda: described({"kind": "redis", "secrets": {"password": "secret"}}),
        lambda: described(memory("a"), memory("a")),
        lambda: described(memory("a"), {"kind": "redis", "options": {"guard": "fence"}}),
        lambda: CompositeSink([]),
    ],
)
def test_what_is_no_composite_is_refused_without_showing_secrets(build: Any) -> None:
    with pytest.raises(SinkConfigurationError) as raised:
        build()
    assert "'secret'" not in str(raised.value)


def test_a_part_that_cannot_be_opened_closes_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(MemorySink, "close", lambda self: closed.append(self.name))
    with pytest.raises(SinkConfigurationError, match="it takes"):
        described(memory("opened"), {"kind": "memory", "options": {"unknown": 1}, "name": "broken"}).open()
    assert closed == ["opened"]
