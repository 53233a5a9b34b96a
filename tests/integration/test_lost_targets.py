"""Tables and servers that lost what they held between two drains: found out, and never made anew in silence."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
import sqlalchemy as sa
from redis.crc import key_slot
from tests.support.command_line import run_cli
from tests.support.redis_cluster import RedisCluster
from tests.support.servers import RedisServer
from tests.support.sql_targets import admit, puts

from export_queue import (
    MemorySink,
    RedisSink,
    SinkBelongsToAnother,
    SinkConfigurationError,
    SinkLostData,
    SinkSpec,
    SqlSink,
    Store,
    drain,
    readmit,
)
from export_queue.core.sinks import CompositeSink

pytestmark = pytest.mark.one_store("it is the sinks that lose something")


@pytest.fixture
def orders(sqlite_url: str) -> Iterator[Store]:
    with Store.open(sqlite_url) as store:
        store.create()
        store.configure_queue("orders", buckets=4, buckets_per_range=1)
        yield store


def add(store: Store, *keys: str) -> None:
    with store.transaction() as tx:
        for key in keys:
            tx.queue("orders").add(key, {"of": key})


def execute(url: str, *statements: str) -> Sequence[Any]:
    engine = sa.create_engine(url)
    try:
        with engine.begin() as connection:
            found = [connection.exec_driver_sql(statement) for statement in statements]
            return found[-1].all() if found[-1].returns_rows else []
    finally:
        engine.dispose()


MARIADB = pytest.param("mariadb", marks=pytest.mark.full("PostgreSQL runs anyway"))
GONE = {
    "dropped": ["DROP TABLE orders"],
    "renamed": ["ALTER TABLE orders RENAME TO old_orders"],
    "emptied": ["DELETE FROM orders"],
    "made anew": ["CREATE TABLE another AS SELECT * FROM orders WHERE 1 = 0", "DROP TABLE orders",
                  "ALTER TABLE another RENAME TO orders", "ALTER TABLE orders ADD PRIMARY KEY (id)"],
}  # fmt: skip


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres), MARIADB])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/copies.db"
    return str(request.getfixturevalue("postgres_url" if request.param == "postgresql" else "mariadb_url"))


@pytest.mark.parametrize("loss", GONE)
@pytest.mark.parametrize("guard", ["seq", "fence"])
def test_a_table_that_lost_its_rows_is_refused_until_it_is_readmitted(orders: Store, url: str, guard: Any, loss: str):
    if loss == "made anew" and url.startswith("sqlite"):
        pytest.skip("SQLite adds no primary key to a table")
    sink = SqlSink(url, guard=guard)
    options: Any = {"sink_name": "copies", "on_error": "fail"}
    add(orders, "a", "b")
    drain(orders, "orders", sink, **options)
    if guard == "seq":
        execute(url, "DROP VIEW orders_live")
    execute(url, *GONE[loss])
    add(orders, "c")
    for opened in (sink, SqlSink(url, guard=guard)):  # one that stayed open, and one of another process
        with pytest.raises(SinkLostData, match="orders") as caught:
            drain(orders, "orders", opened, **options)
        assert "readmit" in caught.value.hint
        opened.close()
    assert sum(unit.entries for unit in orders.backlog("orders")) == 1
    add(orders, "a", "b")
    sink = SqlSink(url, guard=guard)
    readmit(orders, "orders", sink)
    assert drain(orders, "orders", sink, **options).acknowledged == 3
    assert execute(url, f"SELECT id FROM {'orders_live' if guard == 'seq' else 'orders'} ORDER BY id") == [
        ("a",), ("b",), ("c",)
    ]  # fmt: skip
    sink.close()


@pytest.mark.parametrize("table", ["$collection", "copies"])
def test_a_table_that_is_readmitted_for_one_queue_is_still_lost_to_another(orders: Store, url: str, table: str):
    orders.configure_queue("bills", buckets=1)
    tables = ["copies"] if table == "copies" else ["orders", "bills"]

    def bring(queue: str) -> int:
        with orders.transaction() as tx:
            tx.queue(queue).add("a", {"of": queue})
        return drain(orders, queue, sink, sink_name="copies").acknowledged

    sink = SqlSink(url, table=table)
    bring("orders")
    bring("bills")
    execute(url, *(f"DROP VIEW {name}_live" for name in tables), *(f"DROP TABLE {name}" for name in tables))
    readmit(orders, "orders", sink)
    assert bring("orders") == 1
    orders.configure_queue("later", buckets=1)
    assert bring("later") == 1, "a queue that was not there cannot have lost anything"
    for _ in range(2):
        with pytest.raises(SinkLostData, match="queue 'bills'"):
            bring("bills")
    sink.close()
    sink = SqlSink(url, table=table)  # as in Spark's executors, which admit nothing
    sink.continue_drain("bills")
    with pytest.raises(SinkLostData, match="queue 'bills'"):
        sink.apply(puts(b"a", collection="bills"))
    readmit(orders, "bills", sink)
    assert bring("bills") == 3
    assert bring("orders") == 1
    sink.close()


def test_a_readmission_of_a_store_that_the_sink_refuses_forgets_nothing(orders: Store, tmp_path: Path):
    url = f"sqlite:///{tmp_path}/copies.db"
    add(orders, "a")
    drain(orders, "orders", SinkSpec("sql", {"url": url}, name="copies"))
    execute(url, "DROP VIEW orders_live", "DROP TABLE orders")
    with Store.open(f"sqlite:///{tmp_path}/other.db") as other:
        other.create()
        other.configure_queue("orders", buckets=1)
        with pytest.raises(SinkBelongsToAnother):
            readmit(other, "orders", SinkSpec("sql", {"url": url}))
    with pytest.raises(SinkLostData, match="is gone"):
        drain(orders, "orders", SinkSpec("sql", {"url": url}, name="copies"))


def test_a_table_that_is_emptied_during_a_drain_is_refused_by_the_next_batch(orders: Store, url: str):
    add(orders, *map(str, range(40)))
    sink, chunks = SqlSink(url), list[object]()

    def empty(progress: object) -> None:
        if not chunks:
            execute(url, "DELETE FROM orders")
        chunks.append(progress)

    with pytest.raises(SinkLostData, match="was emptied"):
        drain(orders, "orders", sink, on_progress=empty)
    assert len(chunks) < 4
    sink.close()


def test_a_table_that_forbids_a_row_of_the_sinks_own_is_known_by_whether_it_holds_rows(orders: Store, tmp_path: Path):
    url = f"sqlite:///{tmp_path}/copies.db"
    execute(
        url,
        "CREATE TABLE orders (id text PRIMARY KEY CHECK (length(id) < 5), document text, _rank bigint,"
        " _deleted boolean)",
    )
    add(orders, "a", "b")
    drain(orders, "orders", SinkSpec("sql", {"url": url}))
    assert execute(url, "SELECT count(*) FROM orders") == [(2,)]
    execute(url, "DELETE FROM orders")
    add(orders, "c")
    with pytest.raises(SinkLostData, match="is empty"):
        drain(orders, "orders", SinkSpec("sql", {"url": url}))


def test_a_fenced_table_whose_records_were_all_deleted_has_lost_nothing(orders: Store, url: str):
    sink = SqlSink(url, guard="fence")
    add(orders, "a")
    drain(orders, "orders", sink, on_error="fail")
    with orders.transaction() as tx:
        tx.queue("orders").add("a", None)
    drain(orders, "orders", sink, on_error="fail")
    assert execute(url, "SELECT count(*) FROM orders") == [(0,)]
    add(orders, "b")
    assert drain(orders, "orders", sink, on_error="fail").acknowledged == 1
    sink.close()


def test_an_id_that_is_the_sinks_own_is_rejected(tmp_path: Path):
    sink = admit(SqlSink(f"sqlite:///{tmp_path}/copies.db"))
    result = sink.apply(puts(b"a", b"xq_mark"))
    assert (result.written, [one.position for one in result.rejected]) == (1, [1])
    sink.close()


def test_an_older_copy_of_a_file_is_refused_until_it_is_readmitted(orders: Store, sqlite_url: str, tmp_path: Path):
    spec = SinkSpec("sql", {"url": f"sqlite:///{tmp_path}/copies.db"})
    add(orders, "a")
    drain(orders, "orders", spec)
    shutil.copy(tmp_path / "copies.db", tmp_path / "backup.db")
    add(orders, "b")
    drain(orders, "orders", spec)
    shutil.copy(tmp_path / "backup.db", tmp_path / "copies.db")
    add(orders, "c")
    with pytest.raises(SinkLostData, match="older state"):
        drain(orders, "orders", spec)
    (tmp_path / "copies.json").write_text(spec.to_json())
    printed = run_cli("readmit", "orders", str(tmp_path / "copies.json"), url=sqlite_url)
    assert "accepted without the lost records" in printed
    assert drain(orders, "orders", spec).acknowledged == 1


def test_a_state_of_the_middle_of_the_last_drain_is_older_too(orders: Store, tmp_path: Path):
    spec = SinkSpec("sql", {"url": f"sqlite:///{tmp_path}/copies.db"})
    add(orders, *map(str, range(40)))
    drain(orders, "orders", spec, on_progress=lambda _: shutil.copy(tmp_path / "copies.db", tmp_path / "backup.db"))
    shutil.copy(tmp_path / "backup.db", tmp_path / "copies.db")
    with pytest.raises(SinkLostData, match="older state"):
        drain(orders, "orders", spec)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_sink_that_is_lost_after_a_first_drain_that_was_killed_is_noticed(tmp_path: Path):
    place, spec = f"sqlite:///{tmp_path}/store.db", SinkSpec("sql", {"url": f"sqlite:///{tmp_path}/copies.db"})
    with Store.open(place) as store:
        store.create()
        store.configure_queue("orders", buckets=8, buckets_per_range=1)
        add(store, *map(str, range(40)))
    pid = os.fork()
    if pid == 0:
        chunks: list[object] = []

        def die(progress: object) -> None:
            chunks.append(progress)
            if len(chunks) == 4:
                os.kill(os.getpid(), signal.SIGKILL)

        with Store.open(place) as store:
            drain(store, "orders", spec, on_progress=die, lease_seconds=1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    for file in tmp_path.glob("copies.db*"):
        file.unlink()
    with Store.open(place) as store, pytest.raises(SinkLostData, match="forgotten"):
        drain(store, "orders", spec, lease_seconds=1)


@pytest.mark.parametrize("guard", ["seq", "fence"])
def test_a_redis_server_that_is_back_from_an_older_copy_on_its_disk_is_refused(orders: Store, guard: Any):
    with RedisServer() as server:
        sink = RedisSink(server.host, server.port, password=server.password, guard=guard)
        options: Any = {"sink_name": "cache", "on_error": "fail"}
        add(orders, "a")
        drain(orders, "orders", sink, **options)
        with redis.Redis(host=server.host, port=server.port, password=server.password) as client:
            client.save()
        add(orders, "b")
        drain(orders, "orders", sink, **options)
        server.stop()  # it saves nothing at its end
        server.start()
        add(orders, "c")
        with pytest.raises(SinkLostData, match="older state"):
            drain(orders, "orders", sink, **options)
        readmit(orders, "orders", sink)
        assert drain(orders, "orders", sink, **options).acknowledged == 1
        sink.close()


@pytest.mark.full("a node of the cluster restarts")
def test_one_node_of_a_cluster_that_is_back_from_an_older_copy_on_its_disk_is_refused(redis_cluster: RedisCluster):
    def drained(fence: int) -> None:
        sink = RedisSink(redis_cluster.host, redis_cluster.port, password=redis_cluster.password)
        try:
            sink.admit(queue_id="q", store_id="s", fence=fence)
            sink.apply(puts(*(b"%d" % n for n in range(60)), seq=fence))
        finally:
            sink.close()

    for node in redis_cluster.primaries():
        redis_cluster.ask(node, "FLUSHALL")
    elsewhere = redis_cluster.primary_of(key_slot(b"xq:queue:q"))
    victim = next(node for node in redis_cluster.primaries() if node is not elsewhere)
    drained(1)
    redis_cluster.ask(victim, "SAVE")
    drained(2)
    victim.stop()
    victim.start()
    (victim.folder / "dump.rdb").unlink()
    redis_cluster.wait_until_whole()
    with pytest.raises(SinkLostData, match=f"{victim.port} is in an older state"):
        drained(3)


def test_one_part_of_a_composite_that_lost_its_data_is_enough(orders: Store):
    lost = MemorySink()
    sink = CompositeSink([("kept", MemorySink()), ("lost", lost)])
    add(orders, "a")
    drain(orders, "orders", sink, sink_name="both")
    lost.clear()
    with pytest.raises(SinkLostData, match="orders"):
        drain(orders, "orders", sink, sink_name="both")


def test_keys_of_redis_have_one_guard_whatever_queue_writes_them(redis_server: RedisServer, redis_client: redis.Redis):
    def admitted(queue: str, guard: Any, key: str) -> RedisSink:
        sink = RedisSink(redis_server.host, redis_server.port, password=redis_server.password, key=key, guard=guard)
        sink.admit(queue_id=queue, store_id="s", fence=1)
        return sink

    admitted("a", "seq", "customer:$id").close()
    with pytest.raises(SinkConfigurationError, match="guard='seq', not 'fence'"):
        admitted("b", "fence", "customer:$id")
    admitted("b", "fence", "bill:$id").close()
    with pytest.raises(SinkConfigurationError, match="guard='fence', not 'seq'"):
        admitted("c", "seq", "bill:$id")
