"""Sinks that lost what they had acknowledged: found out, and refused until somebody says what is to be done."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
import sqlalchemy as sa
from redis.crc import key_slot
from tests.support.redis_cluster import RedisCluster
from tests.support.servers import RedisServer

from export_queue import (
    ApplyResult,
    DrainReport,
    MemorySink,
    Operations,
    RedisSink,
    SinkLostData,
    SinkSpec,
    Store,
    UnknownQueue,
    drain,
    readmit,
)
from export_queue.core.drain import (
    DrainRequest,
    Engine,
    LocalEngine,
    Part,
    RangeReport,
    Tally,
    drain_ranges,
    load_exporter,
    opened_exporter,
    run_drain,
)
from export_queue.core.locks import Lease, LeaseKeeper
from export_queue.core.queue import Queue
from export_queue.core.sinks.sql.control_tables import control_tables, unit_table
from export_queue.core.store import schema
from export_queue.core.transactions import Snapshot


def puts(seq: int, count: int = 60) -> Operations:
    ids = [b"%d" % n for n in range(count)]
    return Operations(["o"] * count, ids, [b"%d" % seq] * count, [seq] * count, range(count))


def admitted(server: RedisServer | RedisCluster) -> RedisSink:
    sink = RedisSink(server.host, server.port, password=server.password)
    sink.admit(queue_id="q", store_id="s", fence=1)
    return sink


# Within the life of a sink


def flush(server: RedisServer) -> None:
    with redis.Redis(host=server.host, port=server.port, password=server.password) as client:
        client.flushall()


def restart(server: RedisServer) -> None:
    server.stop()
    server.start()


@pytest.mark.parametrize("lose", [flush, restart])
def test_a_server_that_is_emptied_meanwhile_is_refused_for_good(lose: Callable[[RedisServer], None]):
    with RedisServer() as server:
        sink = admitted(server)
        sink.apply(puts(5))
        lose(server)
        refusals = []
        for _ in range(4):
            try:
                sink.apply(puts(4))
            except Exception as error:
                refusals.append(error)
        assert len(refusals) == 4
        assert isinstance(refusals[-1], SinkLostData)
        assert not refusals[-1].transient
        assert "readmit" in refusals[-1].hint
        with redis.Redis(host=server.host, port=server.port, password=server.password) as client:
            assert client.keys("o:*") == [], "nothing old came back"
        sink.close()


def test_a_server_that_kept_its_data_is_known_again():
    with RedisServer({"appendonly": "yes", "appendfsync": "always"}) as server:
        sink = admitted(server)
        sink.apply(puts(5))
        server.stop()
        server.start()
        sink.close()
        assert sink.apply(puts(4)) == ApplyResult(0, 60)
        sink.close()


@pytest.fixture
def cluster(redis_cluster: RedisCluster) -> RedisCluster:
    """A cluster that holds nothing."""
    for node in redis_cluster.primaries():
        redis_cluster.ask(node, "FLUSHALL")
    return redis_cluster


def test_one_node_of_a_cluster_that_is_emptied_is_enough(cluster: RedisCluster):
    elsewhere = cluster.primary_of(key_slot(b"xq:control"))
    victim = next(node for node in cluster.primaries() if node is not elsewhere)
    sink = admitted(cluster)
    sink.apply(puts(5))
    cluster.ask(victim, "FLUSHALL")
    for _ in range(2):
        with pytest.raises(SinkLostData, match=f"{victim.port} was emptied"):
            sink.apply(puts(4))
    sink.close()


def test_a_node_of_a_cluster_that_is_emptied_between_two_drains_is_enough(cluster: RedisCluster):
    elsewhere = cluster.primary_of(key_slot(b"xq:queue:q"))
    victim = next(node for node in cluster.primaries() if node is not elsewhere)
    sink = admitted(cluster)
    sink.apply(puts(5))
    sink.close()
    cluster.ask(victim, "FLUSHALL")
    for _ in range(2):
        with pytest.raises(SinkLostData, match=f"{victim.port} was emptied"):
            admitted(cluster)
    for node in cluster.primaries():
        cluster.ask(node, "FLUSHALL")
    sink = admitted(cluster)
    assert sink.apply(puts(6)).written == 60, "emptied altogether, it is a new one"
    sink.close()


# From one drain to the next


@pytest.fixture
def orders(store: Store) -> Store:
    store.configure_queue("orders", buckets=5, buckets_per_range=5)
    return store


def add(store: Store, *keys: str) -> None:
    with store.transaction() as tx:
        for key in keys:
            tx.queue("orders").add(key, {"of": key})


def test_an_emptied_sink_stops_the_next_drain_before_it_reads(orders: Store):
    sink = MemorySink()
    add(orders, "a", "b")
    drain(orders, "orders", sink, sink_name="cache")
    sink.clear()
    add(orders, "b")
    with pytest.raises(SinkLostData, match="'orders'") as caught:
        drain(orders, "orders", sink, sink_name="cache")
    assert not caught.value.transient
    assert sink.records() == {}
    assert sum(unit.entries for unit in orders.backlog("orders")) == 1
    failed = DrainReport.from_dict(orders.reports(queue_id="orders")[0])
    assert failed.problem is not None
    assert (failed.problem.error_class, failed.read) == ("SinkLostData", 0)


def test_everything_can_be_loaded_anew_on_purpose(orders: Store):
    sink = MemorySink()
    add(orders, "a", "b")
    drain(orders, "orders", sink, sink_name="cache")
    sink.clear()
    add(orders, "a", "b")
    readmit(orders, "orders", sink)
    assert drain(orders, "orders", sink, sink_name="cache").acknowledged == 2
    assert set(sink.records()) == {("orders", b"a"), ("orders", b"b")}
    add(orders, "a")
    assert drain(orders, "orders", sink, sink_name="cache").acknowledged == 1, "and the next drain is an ordinary one"


def test_only_a_queue_that_there_is_can_be_readmitted(orders: Store):
    with pytest.raises(UnknownQueue):
        readmit(orders, "others", MemorySink())


def test_a_drain_that_acknowledged_nothing_proves_nothing(orders: Store):
    drain(orders, "orders", MemorySink(), sink_name="cache")
    add(orders, "a")
    assert drain(orders, "orders", MemorySink(), sink_name="cache").acknowledged == 1


def test_another_sink_after_a_rebind_may_be_empty(orders: Store):
    add(orders, "a")
    drain(orders, "orders", MemorySink(), sink_name="cache")
    orders.rebind("orders", "other")
    add(orders, "b")
    assert drain(orders, "orders", MemorySink(), sink_name="other").acknowledged == 1
    orders.rebind("orders", "Cache")
    add(orders, "c")
    assert drain(orders, "orders", MemorySink(), sink_name="Cache").acknowledged == 1
    orders.rebind("orders", "cache")
    with pytest.raises(SinkLostData):
        drain(orders, "orders", MemorySink(), sink_name="cache")


def test_a_redis_server_without_persistence_is_found_out_after_its_restart(orders: Store, monkeypatch: Any):
    with RedisServer() as server:
        monkeypatch.setenv("XQ_TEST_REDIS", server.password)
        spec = SinkSpec("redis", {"host": server.host, "port": server.port}, {"password": "env:XQ_TEST_REDIS"})
        add(orders, "a")
        drain(orders, "orders", spec)
        restart(server)
        with pytest.raises(SinkLostData, match=f"{server.port} has forgotten queue 'orders'"):
            drain(orders, "orders", spec)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("xq_control", "has forgotten queue 'orders'"),
        ("xq_floor", "table 'xq_floor' of .* is gone"),
        ("xq_target", "table 'xq_target' of .* is gone"),
    ],
)
def test_a_database_whose_control_table_is_gone_is_found_out(orders: Store, tmp_path: Path, name: str, message: str):
    url = f"sqlite:///{tmp_path}/copies.db"
    add(orders, "a")
    drain(orders, "orders", SinkSpec("sql", {"url": url}))
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text(f"DROP TABLE {name}"))
    engine.dispose()
    with pytest.raises(SinkLostData, match=message):
        drain(orders, "orders", SinkSpec("sql", {"url": url}))
    readmit(orders, "orders", SinkSpec("sql", {"url": url}))
    assert drain(orders, "orders", SinkSpec("sql", {"url": url})).read == 0


class Repeated(LocalEngine):
    """As Spark does where an executor is lost behind its work: a task is repeated, and finds nothing left."""

    is_tallied = True

    def work_off(
        self, queue: Queue, leases: Sequence[Lease], snapshot: Snapshot, keeper: LeaseKeeper
    ) -> list[RangeReport]:
        def attempt(number: int) -> list[RangeReport]:
            parts, tally = [Part.whole(lease) for lease in leases], Tally(self.request, number)
            target = (self.sink, self.exporter, self.request)
            return drain_ranges(self.database, queue, parts, snapshot, *target, check=keeper.check, tally=tally)

        attempt(1)
        return attempt(2)


def test_what_a_repeated_task_brought_first_is_missed_in_an_emptied_sink(store: Store) -> None:
    store.configure_queue("repeated")
    with store.transaction() as tx:
        tx.queue("repeated").add("a", 1)
    sink = MemorySink()
    request = DrainRequest(queue_id="repeated", sink_name="s")

    @contextlib.contextmanager
    def engine() -> Iterator[Engine]:
        with opened_exporter(load_exporter(None), request.retry) as exporter:
            yield Repeated(store.database, sink, exporter, request)

    assert run_drain(store, request, engine()).acknowledged == 1
    assert len(sink.records()) == 1
    with store.transaction() as tx:
        tx.queue("repeated").add("b", 1)
    with pytest.raises(SinkLostData):
        drain(store, "repeated", MemorySink(), sink_name="s")


def test_no_table_of_a_sink_has_the_name_of_a_table_of_a_store() -> None:
    """A sink may be a schema, or a file, that holds the store, too."""
    names = {table.name for table in (*control_tables(None), unit_table(None))}
    assert not names & {table.name for table in schema.metadata.tables.values()}
