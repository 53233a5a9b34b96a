"""The Redis sink on a real cluster: the conformance suite, slots that move, nodes that die."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import redis
from redis.crc import key_slot
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_records import Make, admit, making, member_id, members, puts, strings

from export_queue import (
    ApplyResult,
    Operations,
    RedisSink,
    SinkConfigurationError,
    SinkSpec,
    SinkUnavailable,
    Store,
    drain,
)
from export_queue.core.drain import Progress
from export_queue.core.sinks.redis import cluster as cluster_module
from export_queue.testing import SinkConformance


@pytest.fixture
def client(redis_cluster: RedisCluster) -> Iterator[redis.RedisCluster]:
    """A client of the cluster, which holds nothing; answers are bytes."""
    with redis.RedisCluster(redis_cluster.host, redis_cluster.port, password=redis_cluster.password) as opened:
        opened.flushall(target_nodes=redis.RedisCluster.PRIMARIES)
        yield opened


class TestRedisClusterStrings(SinkConformance):
    """Records as strings, all over the slots."""

    options: ClassVar[Mapping[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def _target(self, redis_cluster: RedisCluster, client: redis.RedisCluster) -> None:
        self.server, self.client = redis_cluster, client

    def make_sink(self) -> RedisSink:
        return RedisSink(self.server.host, self.server.port, password=self.server.password, **self.options)

    def read_all(self) -> Mapping[tuple[str, bytes], bytes]:
        return strings(self.client)


class TestRedisClusterStringsInOneSlot(TestRedisClusterStrings):
    """Keys with a hash tag: appliers meet all the time."""

    options: ClassVar = {"key": "$collection:{one}$id"}

    def read_all(self) -> Mapping[tuple[str, bytes], bytes]:
        return {(name, record.removeprefix(b"{one}")): value for (name, record), value in super().read_all().items()}


class TestRedisClusterSets(TestRedisClusterStrings):
    """Records as members of sets; hashes, which go the way of strings, have their suite on one server."""

    options: ClassVar = {"target": "set"}
    takes = "nothing"

    def record_id(self, name: bytes) -> bytes:
        return member_id(name)

    def read_all(self) -> Mapping[tuple[str, bytes], bytes]:
        return members(self.client)


def many(seq: int, count: int = 60) -> Operations:
    return puts(*(b"%d" % n for n in range(count)), seq=seq, document=b"%d" % seq)


@pytest.fixture
def make(redis_cluster: RedisCluster, client: redis.RedisCluster) -> Iterator[Make]:
    with making(redis_cluster) as open_sink:

        def make_sink(**options: Any) -> RedisSink:
            return admit(open_sink(**options))

        yield make_sink


def everything(cluster: RedisCluster, *command: Any) -> list[Any]:
    return [cluster.ask(node, *command) for node in cluster.nodes]


# What lies where


def test_the_rank_lies_in_the_slot_of_its_record(make, client):
    make(key="customer:$id").apply(puts(*(b"%d" % n for n in range(40))))
    ranks = list(client.scan_iter("xq:rank:*"))
    found = {field: key for key in ranks for field in client.hkeys(key)}
    assert set(found) == {b"customer:%d" % n for n in range(40)}
    assert all(key_slot(field) == key_slot(key) for field, key in found.items())
    assert len({key_slot(key) for key in ranks}) > 20, "users' keys spread as they are"


def test_a_hash_tag_of_the_users_own_keeps_keys_together(make, client):
    make(key="customer:{$id}:status").apply(puts(b"77"))
    assert client.get("customer:{77}:status") == b"x"


def test_a_database_with_the_ranks_of_a_single_server_is_refused(make, client):
    client.hset("xq:control", mapping={"layout": "1", "shards": "1009"})
    with pytest.raises(SinkConfigurationError, match="layout 1, expected 2"):
        make()


def test_shards_cannot_be_chosen(make):
    with pytest.raises(SinkConfigurationError, match="16384 shards"):
        make(shards=7)


def test_a_key_that_is_no_set_is_rejected_alone(make, client):
    client.set("by:1", "a string")
    sink = make(key="by:$id", target="set")
    result = sink.apply(puts(b"0/a", b"1/b", b"2/c", b"1/d"))
    assert (result.written, [rejection.position for rejection in result.rejected]) == (2, [1, 3])
    assert "holds a string" in result.rejected[0].reason
    client.delete("by:1")
    assert sink.apply(puts(b"1/b", b"1/d")).written == 2, "a rejected operation leaves no rank"


# Nodes that cannot hold the guarantees


def test_one_node_that_may_forget_any_key_is_enough_to_refuse(make, redis_cluster):
    node = redis_cluster.primary_of(key_slot(b"orders:1"))
    redis_cluster.ask(node, "CONFIG SET", "maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(SinkConfigurationError, match=f"{node.port} may evict"):
            make()
    finally:
        redis_cluster.ask(node, "CONFIG SET", "maxmemory-policy", "noeviction")


def test_a_full_node_is_unavailable_and_no_record_is_half_applied(make, redis_cluster, client):
    sink = make()
    sink.apply(many(seq=1))
    node = redis_cluster.primary_of(key_slot(b"orders:1"))
    redis_cluster.ask(node, "CONFIG SET", "maxmemory", "1mb")
    try:
        with pytest.raises(SinkUnavailable, match="OOM"):
            sink.apply(many(seq=2))
    finally:
        redis_cluster.ask(node, "CONFIG SET", "maxmemory", "0")
    assert client.get("orders:1") == b"1"
    result = sink.apply(many(seq=2))
    assert result.written + result.stale == 60
    assert 0 < result.written < 60, "other nodes had taken theirs"
    assert set(client.mget_nonatomic([f"orders:{n}" for n in range(60)])) == {b"2"}


def test_the_least_privileges_suffice(make, redis_cluster, client):
    password = "of the writer"
    commands = (
        "+info +watch +unwatch +multi +exec +hmget +hset +hsetnx +client|setname "
        "+cluster|slots +script|load +evalsha +hget +type +mset +unlink +sadd +srem +set +pexpire +wait"
    )
    everything(redis_cluster, "ACL", "SETUSER", "writer", "on", f">{password}", *commands.split(), "~orders:*", "~xq:*")
    try:
        for target, record in (("string", b"1"), ("set", b"2/a")):
            sink = make(username="writer", password=password, target=target, wait_replicas=1)
            assert sink.apply(puts(record)).written == 1
            assert sink.apply(puts(record, seq=6, document=None)).written == 1
    finally:
        everything(redis_cluster, "ACL", "DELUSER", "writer")


def test_the_guard_fence_is_refused_before_anything_is_written(make, client):
    with pytest.raises(SinkConfigurationError, match="different nodes"):
        make(guard="fence")
    assert list(client.scan_iter("*")) == []


# Slots that move


def test_a_slot_that_another_node_took_over_is_found_there(make, redis_cluster, client):
    sink = make()
    assert sink.apply(many(seq=5)).written == 60
    replica = next(node for node in redis_cluster.nodes if node not in redis_cluster.primaries())
    redis_cluster.wait(lambda: offsets_agree(redis_cluster), "that replicas have everything")
    redis_cluster.fail_over(replica)
    assert sink.apply(many(seq=6)).written == 60
    assert sink.apply(many(seq=5)).stale == 60


@pytest.mark.parametrize("act", ["wait", "admit"])
def test_a_node_that_was_replaced_is_looked_up_again_whatever_asks_for_it(make, redis_cluster, act):
    sink = make(wait_replicas=1)
    replaced = redis_cluster.primary_of(key_slot(b"orders:1"))
    ids = (b"%d" % n for n in itertools.count())
    elsewhere = puts(next(i for i in ids if redis_cluster.primary_of(key_slot(b"orders:" + i)) is not replaced))
    sink.apply(elsewhere)
    redis_cluster.wait(lambda: offsets_agree(redis_cluster), "that replicas have everything")
    ((_, port, _),) = redis_cluster.ask(replaced, "ROLE")[2]
    replica = redis_cluster.node_at(int(port))
    redis_cluster.fail_over(replica)
    errors: list[SinkUnavailable] = []
    for _ in range(2):
        try:
            if act == "wait":
                sink.apply(elsewhere)
            else:
                sink.admit(queue_id="q", store_id="s", fence=2)
        except SinkUnavailable as error:
            errors.append(error)
    assert len(errors) < 2, errors


@contextmanager
def slot_on_the_move(cluster: RedisCluster, key: bytes) -> Iterator[Callable[[], None]]:
    """A slot that is being moved to another node; what is yielded moves all its keys."""
    slot = key_slot(key)
    source = cluster.primary_of(slot)
    target = next(node for node in cluster.primaries() if node is not source)
    names = {node: cluster.ask(node, "CLUSTER MYID").decode() for node in (source, target)}
    cluster.ask(target, "CLUSTER SETSLOT", slot, "IMPORTING", names[source])
    cluster.ask(source, "CLUSTER SETSLOT", slot, "MIGRATING", names[target])

    def move_keys() -> None:
        keys = cluster.ask(source, "CLUSTER GETKEYSINSLOT", slot, 100)
        if keys:
            cluster.ask(
                source, "MIGRATE", target.host, target.port, "", 0, 5000, "AUTH", cluster.password, "KEYS", *keys
            )

    yield move_keys
    move_keys()
    for node in (target, source, *(other for other in cluster.primaries() if other not in names)):
        cluster.ask(node, "CLUSTER SETSLOT", slot, "NODE", names[target])


def test_a_record_in_a_slot_that_is_being_moved_waits_and_keeps_its_rank(make, redis_cluster, client, monkeypatch):
    monkeypatch.setattr(cluster_module, "MOVES", replace(cluster_module.MOVES, attempts=3))
    sink = make(key="orders:{moving}$id")
    sink.apply(puts(b"1", b"2", seq=5))
    with slot_on_the_move(redis_cluster, b"orders:{moving}1") as move_keys:
        assert sink.apply(puts(b"1", seq=6)).written == 1, "all is still where it was"
        with pytest.raises(SinkUnavailable, match="TRYAGAIN|ASK") as caught:
            sink.apply(puts(b"new", seq=6))
        assert caught.value.transient
        move_keys()
        with pytest.raises(SinkUnavailable, match="TRYAGAIN|ASK"):
            sink.apply(puts(b"1", seq=4))
    assert sink.apply(puts(b"1", b"new", seq=5)) == ApplyResult(1, 1)
    assert client.get("orders:{moving}1") == b"x"


# Nodes that die


def offsets_agree(cluster: RedisCluster) -> bool:
    """Tell whether every replica has all that its primary has."""
    roles = [cluster.ask(node, "ROLE") for node in cluster.nodes if node.is_running]
    return all(int(one[2]) == role[1] for role in roles if role[0] == b"master" for one in role[2])


@contextmanager
def killed_primary(cluster: RedisCluster, key: bytes) -> Iterator[Any]:
    """Kill the node that serves a key once its replica has everything; bring it back in the end."""
    everything(cluster, "CONFIG SET", "cluster-node-timeout", "3000")
    node = cluster.primary_of(key_slot(key))
    cluster.wait(lambda: offsets_agree(cluster), "that replicas have everything")
    cluster.kill(node)
    try:
        yield node
    finally:
        node.start()
        cluster.wait_until_whole()
        cluster.wait(lambda: len(cluster.primaries()) == 3, "three primaries")
        everything(cluster, "CONFIG SET", "cluster-node-timeout", "15000")


def patiently(cluster: RedisCluster, sink: RedisSink, operations: Operations) -> tuple[ApplyResult, int]:
    """Apply as a drain does, again while the sink is unavailable; also returns how often it was."""
    failed = itertools.count()
    results: list[ApplyResult] = []

    def apply() -> bool:
        try:
            results.append(sink.apply(operations))
        except SinkUnavailable:
            next(failed)
            return False
        return True

    cluster.wait(apply, "that the sink is available again")
    return results[-1], next(failed)


def test_a_dead_primary_is_unavailable_until_its_replica_has_taken_over(make, redis_cluster, client):
    sink = make(socket_timeout=5)
    assert sink.apply(many(seq=5)).written == 60
    with killed_primary(redis_cluster, b"orders:1"):
        result, failed = patiently(redis_cluster, sink, many(seq=6))
        assert failed > 0, "the first try met the dead node"
        assert len(result.rejected) == 0
        assert sink.apply(many(seq=6)) == ApplyResult(0, 60)
        assert sink.apply(many(seq=5)) == ApplyResult(0, 60), "the ranks are at the new primary, too"
    with redis.RedisCluster(redis_cluster.host, redis_cluster.port, password=redis_cluster.password) as reader:
        assert set(reader.mget_nonatomic([f"orders:{n}" for n in range(60)])) == {b"6"}


def test_the_node_that_the_sink_is_described_by_may_die(make, redis_cluster):
    seed = redis_cluster.primary_of(key_slot(b"orders:1"))
    sink = make(port=seed.port)
    sink.apply(many(seq=5))
    with killed_primary(redis_cluster, b"orders:1"):
        patiently(redis_cluster, sink, many(seq=6))
        assert sink.apply(many(seq=6)) == ApplyResult(0, 60)


def test_a_drain_outlives_the_death_of_a_primary(redis_cluster, client, sqlite_url, monkeypatch):
    monkeypatch.setenv("XQ_TEST_REDIS", redis_cluster.password)
    options = {"host": redis_cluster.host, "port": redis_cluster.port, "wait_replicas": 1, "socket_timeout": 4}
    spec = SinkSpec("redis", options, {"password": "env:XQ_TEST_REDIS"})
    everything(redis_cluster, "CONFIG SET", "cluster-node-timeout", "3000")
    slot = key_slot(b"orders:1")
    victim = redis_cluster.primary_of(slot)
    chunks, killed = itertools.count(1), threading.Event()

    def kill_once(_: Progress) -> None:
        if next(chunks) == 3:
            redis_cluster.kill(victim)
            killed.set()

    with Store.open(sqlite_url) as store, ThreadPoolExecutor(1) as beside:
        store.create()
        store.configure_queue("orders", buckets=5, buckets_per_range=5)
        with store.transaction() as tx:
            for n in range(400):
                tx.queue("orders").add(f"{n}", n)
        draining = beside.submit(drain, store, "orders", spec, on_progress=kill_once, chunk_rows=40)
        assert killed.wait(60)
        redis_cluster.wait(lambda: redis_cluster.primary_of(slot) is not victim, "the failover")
        victim.start()  # the new primary needs a replica, too; a server lives as long as the thread that started it
        report = draining.result(120)
        assert (report.acknowledged, report.dead, report.left) == (400, 0, 0)
    redis_cluster.wait_until_whole()
    everything(redis_cluster, "CONFIG SET", "cluster-node-timeout", "15000")
    with redis.RedisCluster(redis_cluster.host, redis_cluster.port, password=redis_cluster.password) as reader:
        assert reader.mget_nonatomic([f"orders:{n}" for n in range(400)]) == [b"%d" % n for n in range(400)]


def test_a_cluster_that_is_not_there_is_unavailable_by_name(redis_cluster):
    sink = RedisSink("127.0.0.1", redis_cluster.nodes[0].bus_port, socket_timeout=0.5)
    with pytest.raises(SinkUnavailable, match=str(redis_cluster.nodes[0].bus_port)):
        sink.apply(puts(b"1"))
    sink.close()
