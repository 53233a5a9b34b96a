"""The Redis sink with the guard ``fence``: plain keys, claims, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest
import redis
from tests.support.redis_records import Make, before, hashes, making, member_id, members, puts, strings
from tests.support.servers import RedisServer

from export_queue import Claim, LeaseLost, Operations, RedisSink, SinkConfigurationError, SinkUnavailable
from export_queue.core.sinks.redis import pieces
from export_queue.testing import FencedConformance

MINE = Claim("q/1/0", 7)


class TestStrings(FencedConformance):
    """Records as strings."""

    options: ClassVar[Mapping[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def _target(self, redis_server: RedisServer, redis_client: redis.Redis) -> None:
        self.server, self.client = redis_server, redis_client

    def make_sink(self) -> RedisSink:
        server = self.server
        return RedisSink(server.host, server.port, password=server.password, guard="fence", **self.options)

    def read_all(self) -> Mapping[tuple[str, bytes], bytes]:
        return strings(self.client)


@pytest.mark.full("the guard is that of strings")
class TestSets(TestStrings):
    """Records as members of sets."""

    options: ClassVar = {"target": "set"}
    takes = "nothing"

    def record_id(self, name: bytes) -> bytes:
        return member_id(name)

    def read_all(self) -> Mapping[tuple[str, bytes], bytes]:
        return members(self.client)


@pytest.mark.full("the guard is that of strings")
class TestHashes(TestStrings):
    """Records as hashes."""

    options: ClassVar = {"target": "hash"}
    takes = "json"

    def read_all(self) -> Mapping[tuple[str, bytes], bytes]:
        return hashes(self.client)


@pytest.fixture
def make(redis_server: RedisServer, redis_client: redis.Redis) -> Iterator[Make]:
    with making(redis_server, guard="fence") as make_sink:
        yield make_sink


def claimed(sink: RedisSink) -> RedisSink:
    sink.admit(queue_id="q", store_id="s", fence=1)
    sink.claim([MINE])
    return sink


def test_the_server_holds_no_ranks(make, redis_client):
    sink = claimed(make(key="customer:$id"))
    sink.under(MINE).apply(puts(b"1", b"2"))
    sink.under(MINE).apply(puts(b"2", document=None))
    assert sorted(redis_client.keys()) == [b"customer:1", b"xq:control", b"xq:fence:q/1/0", b"xq:queue:q"]
    assert redis_client.hgetall("xq:fence:q/1/0") == {b"fence": b"7"}


@pytest.mark.parametrize("target", ["string", "hash"])
def test_a_put_has_its_own_time_to_live_or_none(make, redis_client, target):
    sink = claimed(make(key="k:$id", target=target))
    batch = Operations(["c"] * 2, [b"1", b"2"], [b'{"a": 1}'] * 2, [5] * 2, range(2), [3600.0, None])
    assert sink.under(MINE).apply(batch).written == 2
    assert 0 < redis_client.ttl("k:1") <= 3600
    assert redis_client.ttl("k:2") == -1
    assert sink.under(MINE).apply(puts(b"1", document=b'{"a": 2}')).written == 1
    assert redis_client.ttl("k:1") == -1


def test_a_claim_between_look_and_write_keeps_the_batch_out(make, redis_client):
    """The younger drain comes when the fence has been compared, and before the records are written."""
    sink, younger = claimed(make(key="k:$id")), make(key="k:$id")
    met = before(sink, "MULTI", lambda: younger.claim([Claim(MINE.unit, 8)]))
    with pytest.raises(LeaseLost, match="taken over"):
        sink.under(MINE).apply(puts(b"1", b"2"))
    assert met
    assert redis_client.keys("k:*") == []


def test_a_set_that_is_no_set_is_rejected_alone(make, redis_client):
    redis_client.set("by:1", "a string")
    sink = claimed(make(key="by:$id", target="set"))
    result = sink.under(MINE).apply(puts(b"0/a", b"1/b", b"2/c", b"1/d"))
    assert (result.written, [rejection.position for rejection in result.rejected]) == (2, [1, 3])
    assert "WRONGTYPE" in result.rejected[0].reason
    result = sink.under(MINE).apply(puts(b"1/b"))
    assert (result.written, len(result.rejected)) == (0, 1)
    assert sink.under(MINE).apply(puts(b"0/b")).written == 1


def test_a_key_that_ceases_to_be_a_set_at_the_last_moment_is_rejected(make, redis_client):
    sink = claimed(make(key="by:$id", target="set"))
    before(sink, "MULTI", lambda: redis_client.set("by:1", "a string"))
    result = sink.under(MINE).apply(puts(b"0/a", b"1/b"))
    assert (result.written, [rejection.position for rejection in result.rejected]) == (1, [1])


def test_a_server_that_lost_its_memory_is_noticed(make, redis_client):
    sink = claimed(make())
    sink.under(MINE).apply(puts(b"1"))
    redis_client.flushall()
    with pytest.raises(LeaseLost, match="forgotten the claim.*found none") as caught:
        sink.under(MINE).apply(puts(b"2"))
    assert "compare it with the data" in caught.value.hint
    assert redis_client.keys("orders:*") == []


@pytest.mark.parametrize(("first", "second"), [("seq", "fence"), ("fence", "seq")])
def test_a_queue_that_was_drained_with_the_other_guard_is_refused(make, first, second):
    make(guard=first).admit(queue_id="q", store_id="s", fence=1)
    make(guard=second).admit(queue_id="another", store_id="s", fence=1)
    with pytest.raises(SinkConfigurationError, match=f"with guard='{first}', not '{second}'") as caught:
        make(guard=second).admit(queue_id="q", store_id="s", fence=2)
    assert f"guard='{first}'" in caught.value.hint
    make(guard=first).admit(queue_id="q", store_id="s", fence=1), "what is refused leaves nothing"


def test_a_piece_that_memory_refuses_is_not_written_in_part(make, redis_client, monkeypatch):
    monkeypatch.setattr(pieces, "BYTES", 1 << 30)
    sink = claimed(make(key="k:$id"))
    redis_client.config_set("maxmemory", "1mb")
    try:
        batch = Operations(["c"] * 3, [b"1", b"2", b"3"], [b"x", b"y" * (4 << 20), b"z"], [5] * 3, range(3))
        with pytest.raises(Exception, match="memory|OOM"):
            sink.under(MINE).apply(batch)
    finally:
        redis_client.config_set("maxmemory", "0")
    assert redis_client.keys("k:*") == []
    assert sink.under(MINE).apply(batch).written == 3


def test_an_answer_that_was_lost_leaves_a_batch_that_may_be_repeated(make, redis_client, monkeypatch):
    sink = claimed(make(key="k:$id"))
    send, connection = sink._connection.send, sink._connection

    def lose(commands: Any) -> None:
        send(commands)
        if commands[-1] == ("EXEC",):
            connection.receive_all(len(commands))
            raise SinkUnavailable("the answer was lost")

    monkeypatch.setattr(connection, "send", lose)
    with pytest.raises(SinkUnavailable):
        sink.under(MINE).apply(puts(b"1"))
    monkeypatch.undo()
    assert sink.under(MINE).apply(puts(b"1")).written == 1
    assert redis_client.get("k:1") == b"x"


def test_another_guard_is_refused():
    with pytest.raises(SinkConfigurationError, match="expected 'seq' or 'fence'"):
        RedisSink("nowhere.invalid", guard="none")


def test_a_batch_without_a_claim_is_refused(make: Make) -> None:
    with pytest.raises(SinkConfigurationError, match="guard"):
        claimed(make()).apply(puts(b"1"))
