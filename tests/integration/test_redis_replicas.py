"""The Redis sink that waits for replicas: real ones, that follow, stop and die."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from tests.support.redis_cluster import RedisCluster
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

from export_queue import ApplyResult, Claim, Operations, RedisSink, SinkConfigurationError, SinkUnavailable


def puts(seq: int, count: int = 50) -> Operations:
    ids = [b"%d" % n for n in range(count)]
    return Operations(["o"] * count, ids, [b"%d" % seq] * count, [seq] * count, range(count))


@pytest.fixture
def primary() -> Iterator[RedisServer]:
    """A server of the test's own."""
    try:
        server = RedisServer({"repl-diskless-sync-delay": "0", "repl-timeout": "600"})
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    with server:
        yield server


@pytest.fixture
def replica(primary: RedisServer) -> Iterator[RedisServer]:
    """A replica of it that has caught up."""
    with RedisServer({"replicaof": f"{primary.host} {primary.port}", "masterauth": primary.password}) as server:
        wait_until(lambda: follows(primary), "the replica does not follow")
        yield server


def client(server: RedisServer) -> redis.Redis:
    return redis.Redis(host=server.host, port=server.port, password=server.password)


def follows(primary: RedisServer) -> bool:
    with client(primary) as asking:
        return asking.info("replication").get("slave0", {}).get("state") == "online"


Make = Callable[..., RedisSink]


@pytest.fixture
def make(primary: RedisServer) -> Iterator[Make]:
    opened: list[RedisSink] = []

    def make_sink(**options: Any) -> RedisSink:
        opened.append(RedisSink(primary.host, primary.port, password=primary.password, **options))
        return opened[-1]

    yield make_sink
    for sink in opened:
        sink.close()


@contextmanager
def frozen(server: RedisServer) -> Iterator[None]:
    """A server that is there and does nothing."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def test_what_is_acknowledged_is_at_the_replica(make, replica):
    sink = make(wait_replicas=1)
    sink.admit(queue_id="q", store_id="s", fence=1)
    with client(replica) as reader:
        assert reader.hget("xq:queue:q", "store") == b"s"
        for seq in range(1, 60):
            sink.apply(puts(seq))
            assert reader.get("o:49") == b"%d" % seq


def test_without_its_replica_a_batch_is_not_acknowledged_and_later_it_is(make, replica, primary):
    patient, hasty = make(wait_replicas=1), make(wait_replicas=1, socket_timeout=2)
    patient.apply(puts(1))
    replica.stop()
    with pytest.raises(SinkUnavailable, match="expected 1 replicas to have the batch within 1 s, found 0") as caught:
        hasty.apply(puts(2))
    assert caught.value.transient
    replica.start()
    wait_until(lambda: follows(primary), "the replica does not follow")
    assert patient.apply(puts(2)) == ApplyResult(0, 50)
    with client(replica) as reader:
        assert reader.get("o:49") == b"2"


def test_more_replicas_than_there_are_is_unavailable_and_says_how_many(make, replica):
    make(wait_replicas=1).apply(puts(1))
    sink = make(wait_replicas=2, socket_timeout=4)
    with pytest.raises(SinkUnavailable, match=r"expected 2 .* within 2 s, found 1"):
        sink.apply(puts(1))


def test_a_batch_that_comes_again_over_another_connection_is_waited_for_as_well(make, replica):
    """All of it is stale there, so that connection writes nothing; yet the replica does not have it."""
    make(wait_replicas=1).apply(puts(1))
    with frozen(replica):
        for hasty in (make(wait_replicas=1, socket_timeout=0.4), make(wait_replicas=1, socket_timeout=0.4)):
            with pytest.raises(SinkUnavailable, match="found 0"):
                hasty.apply(puts(2))
    wait_until(lambda: make(wait_replicas=1).apply(puts(2)) == ApplyResult(0, 50), "no replica acknowledges")
    with client(replica) as reader:
        assert reader.get("o:49") == b"2"


def test_a_batch_under_a_claim_is_waited_for_as_well(make, replica):
    patient, mine = make(wait_replicas=1, guard="fence"), Claim("q/1/0", 1)
    patient.admit(queue_id="q", store_id="s", fence=1)
    patient.claim([mine])
    patient.under(mine).apply(puts(1))
    with client(replica) as reader:
        assert reader.get("o:49") == b"1"
    hasty = make(wait_replicas=1, socket_timeout=0.4, guard="fence")
    with frozen(replica), pytest.raises(SinkUnavailable, match="expected 1 .* found 0"):
        hasty.under(mine).apply(puts(2))


@pytest.mark.parametrize("wrong", [-1, "1", 1.5])
def test_a_number_of_replicas_is_checked(wrong):
    with pytest.raises(SinkConfigurationError, match="wait_replicas"):
        RedisSink("nowhere.invalid", wait_replicas=wrong)


def test_what_a_cluster_acknowledged_survives_the_death_of_its_primary(redis_cluster: RedisCluster):
    """The primary is killed at once after the acknowledgement, not when its replica has caught up."""
    sink = RedisSink(
        redis_cluster.host, redis_cluster.port, password=redis_cluster.password, wait_replicas=1, socket_timeout=10
    )
    for node in redis_cluster.nodes:
        redis_cluster.ask(node, "CONFIG SET", "cluster-node-timeout", "3000")
    for seq in range(1, 31):
        sink.apply(puts(seq))
    victim = redis_cluster.primaries()[-1]
    sink.apply(puts(31))
    redis_cluster.kill(victim)

    def is_back() -> bool:
        """Something late reaches all nodes; the new primary may have no replica yet."""
        try:
            sink.apply(puts(29))
        except SinkUnavailable as unavailable:
            return "found 0" in str(unavailable)
        return True

    redis_cluster.wait(is_back, "the failover")
    port = redis_cluster.primaries()[0].port
    with redis.RedisCluster(redis_cluster.host, port, password=redis_cluster.password) as reader:
        assert set(reader.mget_nonatomic([f"o:{n}" for n in range(50)])) == {b"31"}
    victim.start()
    redis_cluster.wait_until_whole()
    for node in redis_cluster.nodes:
        redis_cluster.ask(node, "CONFIG SET", "cluster-node-timeout", "15000")
    sink.close()
