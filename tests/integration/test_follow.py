"""Followers: drains that go on until they are told to stop."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from tests.support.command_line import run_cli
from tests.support.servers import PostgresServer, RedisServer
from tests.support.waiting import PATIENCE, wait_until

from export_queue import (
    ApplyResult,
    DrainReport,
    EntryRejected,
    InvalidArgument,
    LeaseLost,
    MemorySink,
    Operations,
    Owner,
    Range,
    SinkLostData,
    SinkSpec,
    SinkUnavailable,
    Store,
    StoreUnavailable,
    UnknownQueue,
    drain,
    follow,
)
from export_queue import follow as _function
from export_queue.core.locks import claim, hold, holders, joined, release, revoke
from export_queue.core.store.seams import Channel

following = sys.modules[_function.__module__]

CLI = [sys.executable, "-c", "from export_queue.core.cli import main; main()"]


class Following:
    """A follower in a thread."""

    def __init__(self, store: Store, sink: Any, queue_id: str = "orders", **options: Any) -> None:
        self.queue_id = queue_id
        self.report: DrainReport | None = None
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(store, sink, options), daemon=True)
        self._thread.start()

    def _run(self, store: Store, sink: Any, options: dict[str, Any]) -> None:
        try:
            self.report = follow(store, self.queue_id, sink, stop=self._stop.is_set, **options)
        except BaseException as error:
            self.error = error

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def tell_to_stop(self) -> None:
        self._stop.set()

    def end(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        assert self.has_ended, "the follower did not end"

    def stopped(self) -> DrainReport:
        self.end()
        if self.error is not None:
            raise self.error
        assert self.report is not None
        self.report.check()
        return self.report


@contextlib.contextmanager
def following_into(store: Store, sink: Any, **options: Any) -> Iterator[Following]:
    follower = Following(store, sink, **options)
    try:
        yield follower
    finally:
        follower.end()


@pytest.fixture
def orders(store: Store) -> Store:
    store.configure_queue("orders", buckets=30, buckets_per_range=5)
    return store


def add(store: Store, first: int, end: int) -> None:
    with store.transaction() as tx:
        tx.queue("orders").add_many((f"k{i}", i) for i in range(first, end))


def waiting(store: Store) -> int:
    return sum(unit.entries for unit in store.backlog("orders"))


def held(store: Store) -> int:
    queue = store.queue("orders")
    with store.database.read() as work:
        return len(holders(work, queue, queue.units()))


def await_empty(store: Store, follower: Following | None = None) -> None:
    wait_until(lambda: not waiting(store) or (follower and follower.has_ended), "entries wait")
    if follower is not None and follower.error is not None:
        raise follower.error


def test_a_follower_brings_what_is_committed_while_it_runs(orders: Store) -> None:
    sink = MemorySink()
    add(orders, 0, 30)
    with following_into(orders, sink, sink_name="s", drain_id="f") as follower:
        await_empty(orders, follower)
        for start in range(30, 90, 10):
            add(orders, start, start + 10)
            await_empty(orders, follower)
        report = follower.stopped()
    assert (report.read, report.acknowledged, report.left, report.drain_id) == (90, 90, 0, "f")
    assert len(sink.records()) == 90
    assert held(orders) == 0


def test_the_reports_of_a_follower_are_few_and_reconcile_with_its_own(orders: Store) -> None:
    with following_into(orders, MemorySink(), sink_name="s", drain_id="f") as follower:
        for start in range(0, 60, 10):
            add(orders, start, start + 10)
            await_empty(orders, follower)
        report = follower.stopped()
    (stored,) = map(DrainReport.from_dict, orders.reports(queue_id="orders"))
    stored.check()
    assert (stored.drain_id, stored.acknowledged) == ("f-1", report.acknowledged)
    assert stored.acknowledged == 60


def test_links_that_end_by_their_time_have_a_report_each(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "LINK_SECONDS", 0.0)
    with following_into(orders, MemorySink(), sink_name="s", drain_id="f") as follower:
        for start in range(0, 30, 10):
            add(orders, start, start + 10)
            await_empty(orders, follower)
        report = follower.stopped()
    stored = [DrainReport.from_dict(one) for one in orders.reports(queue_id="orders")]
    assert len({one.drain_id for one in stored}) == len(stored) >= 3
    assert sum(one.acknowledged for one in stored) == report.acknowledged == 30


def test_a_follower_that_finds_nothing_leaves_nothing(orders: Store) -> None:
    looked = threading.Event()
    check = following.check_attempt

    def checked(*arguments: Any) -> None:
        check(*arguments)
        looked.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(following, "check_attempt", checked)
        with following_into(orders, MemorySink(), sink_name="s") as follower:
            assert looked.wait(PATIENCE)
            assert follower.stopped().read == 0
    assert orders.reports(queue_id="orders") == []


@pytest.mark.parametrize("has_work", [True, False], ids=["at work", "idle"])
def test_a_time_limit_ends_a_follower_and_its_last_report_is_stored(orders: Store, has_work: bool) -> None:
    if has_work:
        add(orders, 0, 10)
    report = follow(orders, "orders", MemorySink(), stop=lambda: False, time_limit=1.0, sink_name="s", drain_id="f")
    assert 1.0 <= report.seconds < PATIENCE
    assert report.acknowledged == (10 if has_work else 0)
    assert [one["drain_id"] for one in orders.reports(queue_id="orders")] == (["f-1"] if has_work else [])
    assert held(orders) == 0


def test_a_time_limit_ends_a_follower_whose_sink_is_away(orders: Store) -> None:
    class Away(MemorySink):
        def apply(self, operations: Operations) -> ApplyResult:
            raise SinkUnavailable("away")

    add(orders, 0, 10)
    report = follow(orders, "orders", Away(), stop=lambda: False, time_limit=0.5, sink_name="s")
    assert (report.acknowledged, waiting(orders), held(orders)) == (0, 10, 0)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_time_limit_is_above_0(orders: Store, limit: float) -> None:
    with pytest.raises(InvalidArgument, match=f"time_limit: expected seconds above 0, found {limit}"):
        follow(orders, "orders", MemorySink(), stop=lambda: True, time_limit=limit)


def test_what_others_hold_is_no_matter_of_options(orders: Store) -> None:
    with pytest.raises(InvalidArgument, match="if_locked: a follower never waits for other holders"):
        follow(orders, "orders", MemorySink(), stop=lambda: True, if_locked="fail")


def test_a_follower_ends_between_two_chunks(orders: Store) -> None:
    """The chunk at hand is brought, the next one is not begun."""
    add(orders, 0, 200)
    applied, go_on = threading.Event(), threading.Event()

    class Slow(MemorySink):
        def apply(self, operations: Operations) -> ApplyResult:
            applied.set()
            assert go_on.wait(PATIENCE)
            return super().apply(operations)

    sink = Slow()
    with following_into(orders, sink, sink_name="s", chunk_rows=10) as follower:
        assert applied.wait(PATIENCE)
        follower.tell_to_stop()
        go_on.set()
        report = follower.stopped()
    assert 0 < report.acknowledged < 200
    assert report.acknowledged == len(sink.records()), "what is in the sink has left the queue"
    assert waiting(orders) == 200 - report.acknowledged
    assert held(orders) == 0


@pytest.mark.parametrize("is_idle", [True, False], ids=["idle", "at work"])
def test_a_newer_attempt_of_the_task_ends_a_follower(orders: Store, is_idle: bool) -> None:
    sink = MemorySink()
    with following_into(orders, sink, sink_name="s", owner=Owner("task", "old")) as follower:
        add(orders, 0, 10)
        await_empty(orders, follower)
        if not is_idle:
            add(orders, 10, 20)
        report = drain(orders, "orders", sink, sink_name="s", owner=Owner("task", "new"))
        assert report.left == 0
        wait_until(lambda: follower.has_ended, "the older follower goes on")
        with pytest.raises(LeaseLost, match="revoked, or taken over"):
            follower.stopped()


@pytest.mark.parametrize("when", ["idle", "at work", "between links"])
def test_a_follower_ends_though_a_new_subscription_has_the_name_of_its_own(
    orders: Store, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The new one starts empty: a sink that is filled on would lack what was removed with the old one."""
    is_idle = when != "at work"
    if when == "between links":
        monkeypatch.setattr(following, "LINK_SECONDS", 0.0)
    orders.configure_queue("airports", buckets=4, value="bytes", subscriptions=["search", "cache"])
    found, go_on = threading.Event(), threading.Event()

    class Slow(MemorySink):
        def apply(self, operations: Operations) -> ApplyResult:
            found.set()
            assert go_on.wait(PATIENCE)
            return super().apply(operations)

    def put(key: str, value: bytes | None) -> None:
        with orders.transaction() as tx:
            tx.queue("airports").add(key, value)

    def replace() -> None:
        if not replaced:
            replaced.append(None)
            put("old", None)
            orders.unsubscribe("airports", "search", discard=True, who="anna")
            orders.subscribe("airports", "search")
            put("new", b"1")

    sink, replaced = Slow(), list[None]()
    put("old", b"1")
    with following_into(orders, sink, queue_id="airports/search", sink_name="s") as follower:
        assert found.wait(PATIENCE)
        if is_idle:
            go_on.set()
            wait_until(lambda: not orders.backlog("airports/search"), "the entry waits")
        if when == "between links":
            check_attempt = following.check_attempt
            monkeypatch.setattr(following, "check_attempt", lambda *given: (replace(), check_attempt(*given)))
        else:
            replace()
        go_on.set()
        wait_until(lambda: follower.has_ended, "the follower of the removed subscription goes on")
        with pytest.raises((UnknownQueue, LeaseLost)) as caught:
            follower.stopped()
    if is_idle:
        assert "subscription 'airports/search'" in str(caught.value)
        assert "was removed" in str(caught.value)
    assert [one.position.key for one in orders.peek("airports/search")] == [b"new"]
    assert ("airports", b"new") not in sink.records()


def test_a_revoked_follower_ends(orders: Store) -> None:
    with following_into(orders, MemorySink(), sink_name="s", owner=Owner("task", "one")) as follower:
        add(orders, 0, 10)
        await_empty(orders, follower)
        revoke(orders.database, "task", attempt="one")
        wait_until(lambda: follower.has_ended, "the revoked follower goes on")
        assert isinstance(follower.error, LeaseLost)


def test_an_error_that_lasts_ends_a_follower_and_is_reported(orders: Store) -> None:
    def refuse(entry: Any) -> list[Any]:
        raise ValueError("no")

    with following_into(orders, MemorySink(), sink_name="s", exporter=refuse, on_error="fail") as follower:
        add(orders, 0, 10)
        wait_until(lambda: follower.has_ended, "the follower goes on")
        assert isinstance(follower.error, EntryRejected)
    (report,) = map(DrainReport.from_dict, orders.reports(queue_id="orders"))
    assert report.problem is not None
    assert report.problem.error_class == "EntryRejected"
    assert (waiting(orders), held(orders)) == (10, 0)


def test_errors_that_pass_are_waited_for_without_a_busy_loop(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def pause(retry: Any, attempt: int) -> float:
        pauses.append(attempt)
        return 0.001

    class Away(MemorySink):
        def apply(self, operations: Operations) -> ApplyResult:
            if len(pauses) < 5:
                raise SinkUnavailable("away")
            return super().apply(operations)

    monkeypatch.setattr(type(following._OUTAGES), "pause", pause)
    with following_into(orders, Away(), sink_name="s") as follower:
        add(orders, 0, 10)
        await_empty(orders, follower)
        assert follower.stopped().acknowledged == 10
    assert held(orders) == 0


def test_pauses_between_attempts_grow(orders: Store) -> None:
    slept: list[float] = []
    follower = following.Follower(
        orders,
        following.DrainRequest.of("orders", "s", {}),
        lambda: len(slept) > 40,
        sleep=slept.append,
        clock=lambda: sum(slept),
    )

    @contextlib.contextmanager
    def away() -> Iterator[Any]:
        raise SinkUnavailable("away")
        yield

    follower.run(away)
    assert max(slept) <= following.LONGEST_PAUSE
    assert sum(slept) > 40 * following.LONGEST_PAUSE / 2


def test_a_long_round_lets_others_claim_and_counts_nothing_twice(
    orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "ROUND_SECONDS", 0.0)
    add(orders, 0, 200)
    with following_into(orders, MemorySink(), sink_name="s", chunk_rows=10, drain_id="f") as follower:
        await_empty(orders, follower)
        report = follower.stopped()
    assert (report.read, report.acknowledged, report.left) == (200, 200, 0)


def test_two_followers_and_a_drain_share_a_queue_with_writers(orders: Store) -> None:
    """Each entry is acknowledged once, whoever brings it."""
    sink = MemorySink()
    writers = [threading.Thread(target=_write, args=(orders, n * 1000, 60)) for n in range(2)]
    with (
        following_into(orders, sink, sink_name="s", chunk_rows=7) as one,
        following_into(orders, sink, sink_name="s", chunk_rows=7) as other,
    ):
        for writer in writers:
            writer.start()
        plain = [drain(orders, "orders", sink, sink_name="s", lock_timeout=PATIENCE) for _ in range(3)]
        for writer in writers:
            writer.join(PATIENCE)
        await_empty(orders)
        reports = [one.stopped(), other.stopped(), *plain]
    assert sum(report.acknowledged for report in reports) == 240
    assert len(sink.records()) == 240
    assert held(orders) == 0


def _write(store: Store, first: int, count: int) -> None:
    for i in range(first, first + 2 * count, 2):
        add(store, i, i + 2)


def test_joined_leases_are_held_and_given_back_together(orders: Store) -> None:
    """One of their locks is not enough for a critical section."""
    queue, database = orders.queue("orders"), orders.database
    units = queue.units()
    leases = claim(database, queue, [units[0], units[1], units[3]], owner=Owner("task"), lease_seconds=600)
    both, apart = joined(leases)
    assert (both.range, apart.range) == (Range(0, 10), units[3])
    with database.begin() as work:
        hold(work, both)
    release(database, [lease for lease in leases if lease.range == units[1]])
    with database.begin() as work, pytest.raises(LeaseLost):
        hold(work, both)
    release(database, [both, apart])
    assert held(orders) == 0


# hints


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Followers look only when a hint comes."""
    monkeypatch.setattr(following, "_LOOKS", following.Retry(first_pause=PATIENCE * 9, longest_pause=PATIENCE * 9))


@pytest.fixture
def pg_orders(postgres_url: str) -> Iterator[Store]:
    with Store.open(postgres_url) as store:
        store.create()
        store.configure_queue("orders", buckets=20, buckets_per_range=5)
        yield store


def sessions_that_listen(url: str) -> list[int]:
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        rows = connection.execute(
            "select a.pid from pg_locks l join pg_stat_activity a using (pid) "
            "where l.locktype = 'advisory' and l.objsubid = 2 and a.datname = current_database()"
        )
        return [pid for (pid,) in rows]


@pytest.mark.postgres
@pytest.mark.usefixtures("deaf")
def test_a_hint_wakes_a_follower(pg_orders: Store, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export_queue.core.store.hints.UNFOLLOWED_SECONDS", 0.1)
    with following_into(pg_orders, MemorySink(), sink_name="s") as follower:
        wait_until(lambda: sessions_that_listen(postgres_url), "nobody listens")
        for start in (0, 10):
            add(pg_orders, start, start + 10)
            await_empty(pg_orders, follower)
        follower.tell_to_stop()
        add(pg_orders, 20, 21)
        assert follower.stopped().acknowledged >= 20


@pytest.mark.postgres
@pytest.mark.usefixtures("deaf")
def test_the_commit_of_a_long_transaction_wakes_a_follower(
    pg_orders: Store, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that commits has staged nothing itself, and its store is closed at once."""
    monkeypatch.setattr("export_queue.core.store.hints.UNFOLLOWED_SECONDS", 0.1)
    with following_into(pg_orders, MemorySink(), sink_name="s") as follower:
        wait_until(lambda: len(sessions_that_listen(postgres_url)) == 2, "nobody listens")
        with Store.open(postgres_url) as staging:
            begun = staging.begin()
            with staging.resume(begun) as tx:
                tx.queue("orders").add_many((f"k{i}", i) for i in range(10))
        with Store.open(postgres_url) as committing:
            committing.commit(begun)
        await_empty(pg_orders, follower)
        follower.tell_to_stop()
        add(pg_orders, 20, 21)
        assert follower.stopped().acknowledged >= 10


@pytest.mark.postgres
def test_a_follower_of_a_subscription_is_woken_by_commits_to_its_queue(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, deaf: None
) -> None:
    monkeypatch.setattr("export_queue.core.store.hints.UNFOLLOWED_SECONDS", 0.1)
    sink, stop = MemorySink(), threading.Event()
    with Store.open(postgres_url) as store:
        store.create()
        store.configure_queue("orders", subscriptions=["cache"])
        thread = threading.Thread(
            target=follow,
            args=(store, "orders/cache", sink),
            kwargs={"stop": stop.is_set, "sink_name": "s"},
            daemon=True,
        )
        thread.start()
        wait_until(lambda: sessions_that_listen(postgres_url), "nobody listens")
        add(store, 0, 10)
        wait_until(lambda: not store.backlog("orders/cache"), "entries wait")
        stop.set()
        add(store, 10, 11)
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.mark.postgres
def test_a_follower_whose_listening_session_ends_looks_all_the_same(pg_orders: Store, postgres_url: str) -> None:
    with following_into(pg_orders, MemorySink(), sink_name="s") as follower:
        wait_until(lambda: sessions_that_listen(postgres_url), "nobody listens")
        with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as connection:
            for pid in sessions_that_listen(postgres_url):
                connection.execute("select pg_terminate_backend(%s)", (pid,))
        add(pg_orders, 0, 10)
        await_empty(pg_orders, follower)
        assert follower.stopped().acknowledged == 10


@pytest.fixture
def full_of_files() -> Iterator[None]:
    """More open files than select() can name, as a busy server has them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this machine gives a process fewer files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1024)]
    yield
    for one in opened:
        os.close(one)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.postgres
@pytest.mark.usefixtures("full_of_files")
def test_a_process_with_very_many_files_waits_for_hints(pg_orders: Store) -> None:
    listener = pg_orders.database.hints.listen(pg_orders.id, pg_orders.queue("orders").number)
    assert listener is not None
    try:
        assert listener.wait(0.01)
    finally:
        listener.close()


@pytest.mark.postgres
def test_where_nobody_follows_no_hint_is_sent(pg_orders: Store, postgres_url: str) -> None:
    """To listen without the lock shows what is sent, and asks for nothing."""
    channel = Channel.of(pg_orders.id, pg_orders.queue("orders").number)
    database = pg_orders.database
    add(pg_orders, 0, 1)
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as spy:
        spy.execute(f'listen "{channel.name}"')
        with database.connect() as connection:
            raw = connection.connection.driver_connection
            assert not database.dialect.wake_ups.send_hints(raw, [channel])
            spy.execute("select pg_advisory_lock_shared(%s, %s)", channel.locks)
            assert database.dialect.wake_ups.send_hints(raw, [channel])
            assert raw.execute("show synchronous_commit").fetchone() == ("on",), "the next commit is durable"
        assert len(list(spy.notifies(timeout=PATIENCE, stop_after=1))) == 1


@pytest.mark.postgres
def test_a_commit_succeeds_whatever_becomes_of_its_hint(pg_orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = threading.Event()

    def fail(*arguments: Any) -> bool:
        tried.set()
        raise StoreUnavailable("away")

    monkeypatch.setattr(pg_orders.database.dialect.wake_ups, "send_hints", fail)
    for start in range(3):
        add(pg_orders, start, start + 1)
    assert tried.wait(PATIENCE)
    assert waiting(pg_orders) == 3


@pytest.mark.postgres
def test_the_session_of_a_hint_ends_when_all_connections_are_forgotten_meanwhile(
    pg_orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lent: list[Any] = []
    goes_on = threading.Event()

    def hang(raw: Any, channels: Any) -> bool:
        lent.append(raw)
        goes_on.wait(PATIENCE)
        return False

    monkeypatch.setattr(pg_orders.database.dialect.wake_ups, "send_hints", hang)
    add(pg_orders, 0, 1)
    wait_until(lambda: lent, "no hint was sent")
    pg_orders.database.forget_connections()
    with pg_orders.transaction() as tx:  # a new pool is in use
        assert tx.table("t").get("r", "c") is None
    goes_on.set()
    wait_until(lambda: lent[0].closed, "the session goes on")


@pytest.mark.postgres
def test_a_commit_waits_for_no_hint(pg_orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answer = threading.Event(), threading.Event()

    def hang(*arguments: Any) -> bool:
        asked.set()
        return answer.wait(PATIENCE)

    monkeypatch.setattr(pg_orders.database.dialect.wake_ups, "send_hints", hang)
    try:
        add(pg_orders, 0, 1)
        assert asked.wait(PATIENCE)
        add(pg_orders, 1, 2)
        assert waiting(pg_orders) == 2
        assert not answer.is_set()
    finally:
        answer.set()


@pytest.mark.postgres
def test_the_thread_of_a_store_that_nobody_closes_ends_with_it(postgres_url: str) -> None:
    before = set(threading.enumerate())
    store = Store.open(postgres_url)
    store.create()
    store.configure_queue("orders")
    add(store, 0, 1)
    (thread,) = (one for one in set(threading.enumerate()) - before if one.name == "export-queue-hints")
    del store

    def has_ended() -> bool:
        gc.collect()
        return not thread.is_alive()

    wait_until(has_ended, "the thread goes on")


# processes and servers


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A server that forgets nothing that it acknowledged."""
    try:
        own = RedisServer({"appendonly": "yes", "appendfsync": "always"})
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    with own:
        yield own


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    try:
        own = PostgresServer()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    with own:
        yield own


def spec(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> SinkSpec:
    monkeypatch.setenv("XQ_TEST_REDIS", server.password)
    options = {"host": server.host, "port": server.port, "socket_timeout": 2, "socket_connect_timeout": 2}
    return SinkSpec("redis", options, {"password": "env:XQ_TEST_REDIS"})


def records(server: RedisServer) -> int:
    with redis.Redis(host=server.host, port=server.port, password=server.password) as client:
        return sum(1 for _ in client.scan_iter("orders:*", count=1000))


@pytest.fixture
def quick_outages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_OUTAGES", following.Retry(first_pause=0.05, longest_pause=0.5))


@pytest.mark.redis
@pytest.mark.usefixtures("quick_outages")
def test_a_follower_survives_a_restart_of_its_sink(
    orders: Store, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with following_into(orders, spec(own_redis, monkeypatch)) as follower:
        add(orders, 0, 10)
        await_empty(orders, follower)
        os.kill(own_redis.pid, signal.SIGKILL)
        own_redis.stop()
        add(orders, 10, 20)
        own_redis.start()
        await_empty(orders, follower)
        assert follower.stopped().acknowledged == 20
    assert records(own_redis) == 20


def test_a_follower_notices_that_its_sink_has_lost_data(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the next link, of which there is one a minute."""
    monkeypatch.setattr(following, "LINK_SECONDS", 0.0)
    sink = MemorySink()
    with following_into(orders, sink, sink_name="s") as follower:
        add(orders, 0, 10)
        wait_until(lambda: orders.reports(queue_id="orders"), "no link has ended")
        sink.clear()
        add(orders, 10, 20)
        wait_until(lambda: follower.has_ended, "the follower goes on")
        assert isinstance(follower.error, SinkLostData)
    assert sink.records() == {}, "it is noticed before the next batch"


@pytest.mark.postgres
@pytest.mark.usefixtures("quick_outages")
def test_a_follower_survives_a_restart_of_its_store(own_postgres: PostgresServer) -> None:
    sink = MemorySink()
    with Store.open(own_postgres.url(own_postgres.create_database())) as store:
        store.create()
        store.configure_queue("orders", buckets=20, buckets_per_range=5)
        with following_into(store, sink, sink_name="s") as follower:
            add(store, 0, 10)
            await_empty(store, follower)
            own_postgres.stop()
            own_postgres.start()
            wait_until(lambda: _could_add(store, 10, 20), "the store did not come back")
            await_empty(store, follower)
            assert follower.stopped().acknowledged == 20
    assert len(sink.records()) == 20


def _could_add(store: Store, first: int, end: int) -> bool:
    try:
        add(store, first, end)
    except StoreUnavailable:
        return False
    return True


EXPORTS = """
import os, time
from pathlib import Path
from export_queue import Put

here = Path(os.environ["XQ_TEST_GATE"])

def export(entry):
    if not (here / "open").exists():
        (here / "reached").touch()
        end = time.monotonic() + 60
        while not (here / "open").exists() and time.monotonic() < end:
            time.sleep(0.01)
    yield Put("orders", entry.key, {"n": entry.value})
"""
FOLLOW = """
import sys
from export_queue import SinkSpec, Store, follow

with Store.open(sys.argv[1]) as store:
    follow(store, "orders", SinkSpec("sql", {"url": sys.argv[2], "columns": {"n": "integer"}}),
           stop=lambda: False, exporter="gated:export", lease_seconds=1.5)
"""


@pytest.fixture
def gate(tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an exporter that stands still until there is a file ``open``."""
    (tmp_path / "gated.py").write_text(EXPORTS)
    monkeypatch.setenv("XQ_TEST_GATE", str(tmp_path))
    monkeypatch.setenv("XQ_TEST_STORE", store_url)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return tmp_path


@contextlib.contextmanager
def program(*arguments: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(arguments, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def reached(gate: Path, process: subprocess.Popen[str]) -> Callable[[], bool]:
    return lambda: (gate / "reached").exists() or process.poll() is not None


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGTERM, id="SIGTERM"),
        pytest.param(signal.SIGINT, id="SIGINT", marks=pytest.mark.full("a variant")),
    ],
)
def test_a_signal_ends_the_command_with_status_0_and_a_report_and_loses_nothing(
    orders: Store, store_url: str, gate: Path, number: signal.Signals
) -> None:
    add(orders, 0, 60)
    sink = f"sqlite:///{gate / 'copies.db'}"
    options = [
        "drain",
        "orders",
        "--store",
        "env:XQ_TEST_STORE",
        "--sink",
        sink,
        "--sink-option",
        'columns={"n": "integer"}',
    ]
    command = [*CLI, *options, "--exporter", "gated:export", "--json"]
    apart = ["--range", "0:5", "--range", "10:15", "--range", "20:25"]  # three chunks, since neighbours are one
    with program(*command, *apart, "--follow", cwd=gate) as process:
        wait_until(reached(gate, process), "no entry was exported")
        process.send_signal(number)
        (gate / "open").touch()
        told, complained = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, complained
    report = json.loads(told)
    assert report["read"] == report["acknowledged"] + report["left"]
    assert 0 < report["acknowledged"] < 60
    assert waiting(orders) == 60 - report["acknowledged"]
    assert held(orders) == 0
    told = run_cli(*command[len(CLI) :], url=store_url)
    assert json.loads(told)["written"] == 60 - report["written"], "nothing is brought twice"


def test_a_time_limit_ends_the_command_with_status_0(orders: Store, store_url: str, tmp_path: Path) -> None:
    add(orders, 0, 5)
    command = ["drain", "orders", "--sink", f"sqlite:///{tmp_path / 'copies.db'}", "--time-limit", "1", "--json"]
    assert json.loads(run_cli(*command, "--follow", url=store_url))["acknowledged"] == 5


def test_a_terminal_error_ends_the_command_with_status_1(orders: Store, gate: Path) -> None:
    add(orders, 0, 1)
    (gate / "refusing.py").write_text("def export(entry): raise ValueError('no')")
    sink = f"sqlite:///{gate / 'copies.db'}"
    options = [
        "drain",
        "orders",
        "--store",
        "env:XQ_TEST_STORE",
        "--sink",
        sink,
        "--sink-option",
        'columns={"n": "integer"}',
    ]
    options += ["--exporter", "refusing:export", "--on-error", "fail", "--follow"]
    with program(*CLI, *options, cwd=gate) as process:
        _, complained = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "EntryRejected" in complained


def test_after_a_killed_follower_another_one_goes_on(orders: Store, store_url: str, gate: Path) -> None:
    add(orders, 0, 40)
    sink = SinkSpec("sql", {"url": f"sqlite:///{gate / 'copies.db'}", "columns": {"n": "integer"}})
    with program(sys.executable, "-c", FOLLOW, store_url, f"sqlite:///{gate / 'copies.db'}", cwd=gate) as process:
        wait_until(reached(gate, process), "no entry was exported")
        assert process.poll() is None, process.communicate()
        assert held(orders) > 0
        process.kill()
        process.wait(PATIENCE)
    (gate / "open").touch()
    with following_into(orders, sink, exporter="gated:export") as follower:
        await_empty(orders, follower)
        report = follower.stopped()
    assert (report.acknowledged, report.dead) == (40, 0)
