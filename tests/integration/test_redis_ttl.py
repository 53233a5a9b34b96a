"""Records of the Redis sink that expire, on a real server and in a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.waiting import wait_until

from export_queue import ApplyResult, Entry, MemorySink, Operations, Put, RedisSink, SinkSpec, Store, drain

HOUR = 3600.0


@pytest.fixture(
    params=[
        "server",
        pytest.param("cluster", marks=pytest.mark.full("six processes; one server has the same commands")),
    ]
)
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client of an empty server, and of an empty cluster."""
    if request.param == "server":
        yield request.getfixturevalue("redis_client")
        return
    cluster = request.getfixturevalue("redis_cluster")
    with redis.RedisCluster(cluster.host, cluster.port, password=cluster.password) as opened:
        opened.flushall(target_nodes=redis.RedisCluster.PRIMARIES)
        yield opened


@pytest.fixture(params=["string", "hash"])
def sink(request: pytest.FixtureRequest, client: Any) -> Iterator[RedisSink]:
    server = request.getfixturevalue("redis_cluster" if isinstance(client, redis.RedisCluster) else "redis_server")
    opened = RedisSink(server.host, server.port, password=server.password, key="p:$id", target=request.param)
    opened.admit(queue_id="q", store_id="s", fence=1)
    yield opened
    opened.close()


def put(*ttls: float | None, seq: int = 5) -> Operations:
    n = len(ttls)
    return Operations(["c"] * n, [b"%d" % i for i in range(n)], [b'{"a": 1}'] * n, [seq] * n, range(n), ttls)


def test_a_record_expires_and_its_neighbours_stay(sink, client):
    assert sink.apply(put(HOUR, None, 0.5 * HOUR)).written == 3
    assert 0.9 * HOUR < client.pttl("p:0") / 1000 <= HOUR
    assert client.ttl("p:1") == -1
    assert 0.4 * HOUR < client.pttl("p:2") / 1000 <= 0.5 * HOUR


def test_a_newer_put_has_its_own_time_or_none(sink, client):
    sink.apply(put(HOUR, HOUR, None, seq=5))
    sink.apply(put(None, 2 * HOUR, HOUR, seq=6))
    assert client.ttl("p:0") == -1
    assert client.ttl("p:1") > HOUR
    assert 0 < client.ttl("p:2") <= HOUR


def test_what_is_delivered_again_does_not_live_longer(sink, client):
    sink.apply(put(HOUR))
    client.expire("p:0", 60)
    assert sink.apply(put(HOUR)) == ApplyResult(0, 1)
    assert client.ttl("p:0") <= 60


def test_the_rank_outlives_the_record(sink, client):
    sink.apply(put(0.001, seq=6))
    wait_until(lambda: not client.exists("p:0"), "the record does not expire")
    assert sink.apply(put(None, seq=5)) == ApplyResult(0, 1), "what is older does not come back after it"
    assert not client.exists("p:0")
    assert sink.apply(put(None, seq=7)).written == 1


def test_members_of_sets_do_not_expire(client, request):
    server = request.getfixturevalue("redis_cluster" if isinstance(client, redis.RedisCluster) else "redis_server")
    sink = RedisSink(server.host, server.port, password=server.password, key="p:$id", target="set")
    batch = Operations(["c"] * 2, [b"1/a", b"1/b"], [b"", b""], [5, 5], [0, 1], [None, HOUR])
    result = sink.apply(batch)
    assert (result.written, [one.position for one in result.rejected]) == (1, [1])
    assert "no time to live of its own" in result.rejected[0].reason
    assert client.smembers("p:1") == {b"a"}
    sink.close()


def in_an_hour(entry: Entry) -> Iterator[Put]:
    yield Put("sessions", entry.key, entry.value, ttl=HOUR)


def test_times_to_live_go_from_exporters_to_sinks_that_keep_them(sqlite_url: str, tmp_path: Path):
    with Store.open(sqlite_url) as store:
        store.create()
        for queue_id in ("kept", "refused"):
            store.configure_queue(queue_id, buckets=1, buckets_per_range=1)
            with store.transaction() as tx:
                tx.queue(queue_id).add("a", {})
        memory = MemorySink()
        drain(store, "kept", memory, exporter=in_an_hour)
        assert memory.ttls() == {("sessions", b"a"): HOUR}
        copies = SinkSpec("sql", {"url": f"sqlite:///{tmp_path}/copies.db"})
        assert drain(store, "refused", copies, exporter=in_an_hour).dead == 1
        (letter,) = store.dead_letters.list("refused")
        assert "takes no put with a time to live" in letter.reason
