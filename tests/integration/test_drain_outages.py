"""Drains into servers that are killed, that hang and that come back: patience has an end, and nothing is lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import redis
import sqlalchemy as sa
from tests.support.drains import after_chunks
from tests.support.servers import PostgresServer, RedisServer

from export_queue import (
    ApplyResult,
    Capabilities,
    DrainReport,
    MemorySink,
    Operations,
    SinkSpec,
    SinkUnavailable,
    SqlSink,
    Store,
    drain,
)
from export_queue.core.drain import DRAIN_RETRY

ENTRIES = 400
CHUNK = 40


@pytest.fixture
def orders(sqlite_url: str) -> Iterator[Store]:
    """A store with a queue of one unit, drained in many chunks."""
    with Store.open(sqlite_url) as store:
        store.create()
        store.configure_queue("orders", buckets=5, buckets_per_range=5)
        with store.transaction() as tx:
            for i in range(ENTRIES):
                tx.queue("orders").add(f"k{i}", i)
        yield store


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server of the test's own, which forgets nothing that it acknowledged."""
    try:
        own = RedisServer({"appendonly": "yes", "appendfsync": "always"})
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    with own:
        yield own


@pytest.fixture
def cache(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> SinkSpec:
    monkeypatch.setenv("XQ_TEST_REDIS", server.password)
    options = {"host": server.host, "port": server.port, "socket_timeout": 0.5, "socket_connect_timeout": 0.5}
    return SinkSpec("redis", options, {"password": "env:XQ_TEST_REDIS"})


def waiting(store: Store) -> int:
    return sum(unit.entries for unit in store.backlog("orders"))


def kill(server: RedisServer) -> None:
    os.kill(server.pid, signal.SIGKILL)
    server.stop()


def failed(store: Store, drain_id: str) -> DrainReport:
    """Check what a drain that failed at its sink has left, and return its report."""
    (found,) = store.reports(drain_id=drain_id)
    report = DrainReport.from_dict(found)
    report.check()
    assert report.problem is not None
    assert (report.problem.error_class, report.problem.transient) == ("SinkUnavailable", True)
    assert 0 < report.acknowledged < ENTRIES
    assert report.dead == 0
    assert waiting(store) == ENTRIES - report.acknowledged
    return report


def arrived(server: RedisServer) -> int:
    with redis.Redis(host=server.host, port=server.port, password=server.password) as client:
        return sum(1 for _ in client.scan_iter("orders:*", count=1000))


def error_of(act: Callable[[], object]) -> BaseException:
    try:
        act()
    except Exception as error:
        return error
    raise AssertionError("it did not fail")


@pytest.mark.redis
def test_a_server_killed_in_the_middle_ends_the_drain_and_the_next_one_brings_the_rest(
    orders: Store, server: RedisServer, cache: SinkSpec
) -> None:
    retry = replace(DRAIN_RETRY, attempts=3, sleep=lambda seconds: None)
    kill_late = after_chunks(2, lambda: kill(server))
    with pytest.raises(SinkUnavailable, match=f"{server.host}:{server.port}"):
        drain(orders, "orders", cache, chunk_rows=CHUNK, drain_id="t", retry=retry, on_progress=kill_late)
    report = failed(orders, "t")
    server.start()
    assert arrived(server) >= report.acknowledged, "what was acknowledged is there"
    again = drain(orders, "orders", cache, chunk_rows=CHUNK)
    assert again.acknowledged == ENTRIES - report.acknowledged
    assert (waiting(orders), arrived(server)) == (0, ENTRIES)


@pytest.mark.redis
def test_a_server_that_is_killed_and_restarted_delays_the_drain(
    orders: Store, server: RedisServer, cache: SinkSpec
) -> None:
    retry = replace(DRAIN_RETRY, attempts=5, sleep=lambda seconds: server.start())
    kill_late = after_chunks(2, lambda: kill(server))
    report = drain(orders, "orders", cache, chunk_rows=CHUNK, retry=retry, on_progress=kill_late)
    assert (report.acknowledged, report.dead, waiting(orders)) == (ENTRIES, 0, 0)
    assert arrived(server) == ENTRIES


@pytest.mark.redis
def test_a_server_that_hangs_ends_the_drain_by_the_time_outs_and_the_next_one_brings_the_rest(
    orders: Store, server: RedisServer, cache: SinkSpec
) -> None:
    retry = replace(DRAIN_RETRY, attempts=3, sleep=lambda seconds: None)
    hang = after_chunks(2, lambda: os.kill(server.pid, signal.SIGSTOP))
    try:
        with pytest.raises(SinkUnavailable, match="does not answer"):
            drain(orders, "orders", cache, chunk_rows=CHUNK, drain_id="t", retry=retry, on_progress=hang)
        report = failed(orders, "t")
    finally:
        os.kill(server.pid, signal.SIGCONT)
    again = drain(orders, "orders", cache, chunk_rows=CHUNK)
    assert again.acknowledged == ENTRIES - report.acknowledged
    assert (waiting(orders), arrived(server)) == (0, ENTRIES)


@pytest.mark.redis
def test_a_server_that_goes_on_after_a_while_delays_the_drain(
    orders: Store, server: RedisServer, cache: SinkSpec
) -> None:
    retry = replace(DRAIN_RETRY, attempts=5, sleep=lambda seconds: os.kill(server.pid, signal.SIGCONT))
    hang = after_chunks(2, lambda: os.kill(server.pid, signal.SIGSTOP))
    report = drain(orders, "orders", cache, chunk_rows=CHUNK, retry=retry, on_progress=hang)
    assert (report.acknowledged, report.dead, waiting(orders), arrived(server)) == (ENTRIES, 0, 0, ENTRIES)


def test_a_postgresql_that_hangs_is_unavailable_after_the_time_out(
    postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped server keeps its end of the connection alive: neither TCP nor its own limits end the waiting."""
    monkeypatch.setattr("export_queue.core.sinks.sql.dialects.postgresql._GRACE_SECONDS", 0.5)
    sink = SqlSink(postgres_url, table="copies", timeout=3.0)
    sink.admit(queue_id="q", store_id="s", fence=1)

    def operation(seq: int) -> Operations:
        return Operations(["c"], [b"anna"], [b"%d" % seq], [seq], [0])

    assert sink.apply(operation(1)).written == 1
    engine = sa.create_engine(postgres_url, poolclass=sa.NullPool)
    sessions = sa.text(
        "select pid from pg_stat_activity where application_name = 'export_queue' and datname = current_database()"
    )
    with engine.connect() as connection:
        stopped = list(connection.execute(sessions).scalars())
    assert stopped
    try:
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        errors: list[BaseException] = []
        waiter = threading.Thread(target=lambda: errors.append(error_of(lambda: sink.apply(operation(2)))), daemon=True)
        waiter.start()
        waiter.join(30)
        assert not waiter.is_alive(), "it waits for ever"
        assert isinstance(errors[0], SinkUnavailable)
        assert "has not answered" in errors[0].message
        assert sink.apply(operation(3)).written == 1, "a new connection finds another session"
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    with engine.connect() as connection:
        assert connection.execute(sa.text("select document from copies_live")).scalar() == "3"
    sink.close()


def test_a_drain_has_one_request_under_way_and_each_is_bounded(orders: Store) -> None:
    class Counting(MemorySink):
        capabilities = Capabilities(batch_rows=7, batch_bytes=40)
        under_way = 0
        most = 0
        guard = threading.Lock()
        sizes: list[tuple[int, int]] = []  # noqa: RUF012 - one sink only

        def apply(self, operations: Operations) -> ApplyResult:
            with self.guard:
                self.under_way += 1
                self.most = max(self.most, self.under_way)
            weight = sum(map(len, operations.ids)) + sum(len(document or b"") for document in operations.documents)
            self.sizes.append((len(operations), weight))
            try:
                return super().apply(operations)
            finally:
                self.under_way -= 1

    sink = Counting()
    assert drain(orders, "orders", sink, chunk_rows=CHUNK).acknowledged == ENTRIES
    assert sink.most == 1
    assert max(rows for rows, _ in sink.sizes) <= 7
    assert max(weight for _, weight in sink.sizes) <= 40
    assert sum(rows for rows, _ in sink.sizes) == ENTRIES
