"""Records of the Redis sink as hashes, on a real server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import pytest
import redis
from tests.support.redis_records import hashes
from tests.support.servers import RedisServer

from export_queue import ApplyResult, Operations, RedisSink
from export_queue.testing import SinkConformance


@pytest.mark.full("strings run anyway")
class TestRedisHashes(SinkConformance):
    """The suite, with records as hashes."""

    options: ClassVar = {"target": "hash"}
    takes = "json"

    @pytest.fixture(autouse=True)
    def _target(self, redis_server: RedisServer, redis_client: redis.Redis) -> None:
        self.server, self.client = redis_server, redis_client

    def make_sink(self) -> RedisSink:
        return RedisSink(self.server.host, self.server.port, password=self.server.password, **self.options)

    def read_all(self) -> Mapping[tuple[str, bytes], bytes]:
        return hashes(self.client)


@pytest.fixture
def sink(redis_server: RedisServer, redis_client: redis.Redis) -> Iterator[RedisSink]:
    opened = RedisSink(redis_server.host, redis_server.port, password=redis_server.password, key="p:$id", target="hash")
    opened.admit(queue_id="q", store_id="s", fence=1)
    yield opened
    opened.close()


def put(*documents: bytes | None, seq: int = 5) -> Operations:
    n = len(documents)
    return Operations(["c"] * n, [b"%d" % i for i in range(n)], documents, [seq] * n, range(n))


def test_texts_stay_as_they_are_and_all_else_is_json_text(sink, redis_client):
    document = (
        b'{"name": "\\u00e9 \\"x\\"", "n": 7, "price": 1.10, "huge": 123456789012345678901234567890, "ok": true,'
        b' "no":false , "tags" : ["a", {"b": 1.0}], "in": {"a": null}, "gone": null, "": "e", "e": 1E40, "z":-0.0}'
    )
    assert sink.apply(put(document)).written == 1
    assert redis_client.hgetall("p:0") == {
        b"name": 'é "x"'.encode(),
        b"n": b"7",
        b"price": b"1.10",
        b"huge": b"123456789012345678901234567890",
        b"ok": b"true",
        b"no": b"false",
        b"tags": b'["a", {"b": 1.0}]',
        b"in": b'{"a": null}',
        b"": b"e",
        b"e": b"1E40",
        b"z": b"-0.0",
    }


def test_a_hash_is_replaced_as_a_whole(sink, redis_client):
    sink.apply(put(b'{"a": 1, "b": 2}', seq=5))
    sink.apply(put(b'{"b": 3}', seq=6))
    assert redis_client.hgetall("p:0") == {b"b": b"3"}
    sink.apply(put(None, seq=7))
    assert not redis_client.exists("p:0")


def test_a_key_of_another_type_is_replaced(sink, redis_client):
    redis_client.set("p:0", "a string")
    assert sink.apply(put(b'{"a": 1}')).written == 1
    assert redis_client.hgetall("p:0") == {b"a": b"1"}


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b"[1]", "a JSON array, expected an object"),
        (b'"text"', "a JSON text, expected an object"),
        (b"7", "number"),
        (b"null", "null"),
        (b"true", "truth value"),
        (b"{}", "no field"),
        (b'{"a": null}', "no field"),
        (b"", "no JSON"),
        (b'{"a": 1', "no JSON"),
        (b'{"a": NaN}', "no JSON"),
        (b"\xff", "no JSON"),
        (b'{"a": "\\ud800"}', "no JSON"),
    ],
)
def test_a_document_that_is_no_object_with_fields_is_rejected_alone(sink, redis_client, document, reason):
    result = sink.apply(put(b'{"a": 1}', document, b'{"a": 2}'))
    assert (result.written, [one.position for one in result.rejected]) == (2, [1])
    assert reason in result.rejected[0].reason
    assert not redis_client.exists("p:1")
    assert sink.apply(put(b'{"a": 1}', b'{"a": 3}', seq=5)) == ApplyResult(1, 1), "it left no rank"


def test_a_document_of_very_many_fields_arrives_whole(sink, redis_client):
    fields = {b"%d" % n: b"%d" % n for n in range(20_000)}
    document = b"{" + b",".join(b'"%b":%b' % pair for pair in fields.items()) + b"}"
    assert sink.apply(put(document)).written == 1
    assert redis_client.hgetall("p:0") == fields
