"""States of a Redis server in which it takes nothing: each is told from the others, and leaves no half a batch."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest
import redis
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

from export_queue import ApplyResult, Operations, RedisSink, SinkRefused, SinkSpec, SinkUnavailable, Store, drain
from export_queue.core.drain import DRAIN_RETRY

PATIENCE = 60.0
"""Seconds that even a slow machine does not need."""


passwords: list[str] = []


def a_password() -> str:
    return passwords[-1]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server of the test's own, which it may spoil."""
    try:
        own = RedisServer({"enable-debug-command": "yes", "enable-protected-configs": "yes"})
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    with own:
        yield own


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    with connected(server) as client:
        yield client


def connected(server: RedisServer) -> redis.Redis:
    return redis.Redis(host=server.host, port=server.port, password=server.password)


@pytest.fixture
def sink(server: RedisServer) -> Iterator[RedisSink]:
    sink = RedisSink(server.host, server.port, password=server.password)
    sink.admit(queue_id="q", store_id="s", fence=1)
    assert sink.apply(puts(seq=1, document=b"old")) == ApplyResult(50, 0)
    yield sink
    sink.close()


def puts(*, seq: int, document: bytes | None = b"new") -> Operations:
    ids = [b"%02d" % n for n in range(50)]
    return Operations(["orders"] * 50, ids, [document] * 50, [seq] * 50, range(50))


def documents(client: redis.Redis) -> set[bytes | None]:
    return set(client.mget([f"orders:{n:02d}" for n in range(50)]))


@contextmanager
def beside(act: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    yield
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_server_that_is_busy_with_a_script_is_unavailable(server, client, sink):
    client.config_set("busy-reply-threshold", 10)

    def run_for_ever() -> None:
        with pytest.raises(redis.ResponseError, match="killed"), connected(server) as other:
            other.eval("while true do end", 0)

    def is_busy() -> bool:
        try:
            return not client.ping()
        except redis.ResponseError as error:
            return str(error).startswith("BUSY")

    with beside(run_for_ever):
        wait_until(is_busy, "the script does not run")
        with pytest.raises(SinkUnavailable, match="BUSY"):
            sink.apply(puts(seq=2))
        client.script_kill()
    assert documents(client) == {b"old"}
    assert sink.apply(puts(seq=2)) == ApplyResult(50, 0)


def test_a_server_that_is_reading_its_data_is_unavailable(server, client, sink):
    client.mset({f"more:{n}": "x" * 100 for n in range(2000)})
    client.config_set("key-load-delay", 2000)
    client.config_set("loading-process-events-interval-bytes", 1024)

    def reload() -> None:
        with connected(server) as other:
            other.execute_command("DEBUG RELOAD")

    with beside(reload):
        wait_until(lambda: client.info("persistence")["loading"], "it does not load")
        with pytest.raises(SinkUnavailable, match="LOADING"):
            sink.apply(puts(seq=2))
        client.config_set("key-load-delay", 0)
    assert documents(client) == {b"old"}
    assert sink.apply(puts(seq=2)) == ApplyResult(50, 0)


def test_a_server_that_reads_its_append_only_file_is_not_said_to_have_none(caplog):
    settings = {"appendonly": "yes", "appendfsync": "always", "enable-debug-command": "yes"}
    with RedisServer(settings) as server, connected(server) as client, connected(server) as other:
        with client.pipeline(transaction=False) as many:
            for n in range(20_000):
                many.set(f"more:{n}", "x")
            many.execute()
        client.config_set("key-load-delay", 200)  # it answers after each 1024 commands that it reads
        late = RedisSink(server.host, server.port, password=server.password)
        with beside(lambda: other.execute_command("DEBUG LOADAOF")), closing(late):
            wait_until(lambda: client.info("persistence")["loading"], "it does not load")
            assert not client.info("persistence")["aof_enabled"], "this is what it says meanwhile"
            with pytest.raises(SinkUnavailable, match=r"LOADING: .* since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"):
                late.admit(queue_id="q", store_id="s", fence=1)
            client.config_set("key-load-delay", 0)
        assert str(server.port) not in caplog.text


@pytest.mark.parametrize(
    ("refuse", "lift", "code"),
    [
        (("min-replicas-to-write", 1), ("min-replicas-to-write", 0), "NOREPLICAS"),
        (("maxmemory", 1), ("maxmemory", 0), "OOM"),
    ],
)
def test_a_drain_waits_at_each_of_its_steps_for_a_server_that_takes_no_writes(
    server, client, sqlite_url, refuse, lift, code
):
    secrets = {"password": f"{__name__}:a_password"}
    passwords.append(server.password)
    with Store.open(sqlite_url) as store:
        store.create()
        for guard in ("seq", "fence"):
            options = {"host": server.host, "port": server.port, "guard": guard, "key": guard + ":$id"}
            spec = SinkSpec("redis", options, secrets, name=guard)
            store.configure_queue(guard, buckets=1, value="bytes")
            pauses: list[float] = []

            def lift_at_the_third(seconds: float) -> None:
                pauses.append(seconds)  # noqa: B023
                if len(pauses) == 3:  # noqa: B023
                    client.config_set(*lift)

            patient = replace(DRAIN_RETRY, sleep=lift_at_the_third)
            impatient = replace(DRAIN_RETRY, attempts=2, sleep=lambda seconds: None)
            on_error = "fail" if guard == "fence" else None
            for key in ("first", "second"):  # the control records are written, then they are there
                with store.transaction() as tx:
                    tx.queue(guard).add(key, b"new")
                client.config_set(*refuse)
                with pytest.raises(SinkUnavailable, match=rf"{code}: .*\(since .* UTC, tried 2 times\)") as caught:
                    drain(store, guard, spec, retry=impatient, on_error=on_error)
                assert caught.value.transient
                pauses.clear()
                assert drain(store, guard, spec, retry=patient, on_error=on_error).acknowledged == 1
                assert len(pauses) == 3


def test_a_server_with_too_few_replicas_is_unavailable(client, sink):
    client.config_set("min-replicas-to-write", 1)
    with pytest.raises(SinkUnavailable, match="NOREPLICAS"):
        sink.apply(puts(seq=2))
    client.config_set("min-replicas-to-write", 0)
    assert documents(client) == {b"old"}
    assert sink.apply(puts(seq=2)) == ApplyResult(50, 0)


def test_a_server_that_cannot_save_is_unavailable(server, client, sink):
    folder = server.folder / "gone"
    folder.mkdir()
    client.config_set("dir", str(folder))
    client.config_set("save", "3600 1")
    shutil.rmtree(folder)
    client.bgsave()
    wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", "it could save")
    with pytest.raises(SinkUnavailable, match="MISCONF"):
        sink.apply(puts(seq=2))
    client.config_set("save", "")
    assert documents(client) == {b"old"}
    assert sink.apply(puts(seq=2)) == ApplyResult(50, 0)


def test_a_key_of_another_type_gives_way_to_a_string(client, sink):
    client.delete("orders:07", "orders:08")
    client.rpush("orders:07", "a", "list")
    client.sadd("orders:08", "a set")
    assert sink.apply(puts(seq=2)) == ApplyResult(50, 0)
    assert documents(client) == {b"new"}


def test_ranks_that_somebody_has_overwritten_park_the_drain_and_blame_no_record(client, sink):
    """What is no hash would fail alone, amid a transaction that is not rolled back."""
    spoilt = client.keys("xq:rank:*")[0]
    client.set(spoilt, "not ours")
    with pytest.raises(SinkRefused, match="WRONGTYPE"):
        sink.apply(puts(seq=2))
    assert documents(client) == {b"old"}, "nothing of the batch is written, though only one hash is spoilt"
    client.delete(spoilt)
    assert sink.apply(puts(seq=2)) == ApplyResult(50, 0)


def test_after_a_fail_over_another_connection_is_made(client, sink):
    """The name that was connected to may lead to another server by now."""

    def connections() -> set[str]:
        return {one["id"] for one in client.client_list() if one["name"] == "export-queue"}

    before = connections()
    client.replicaof("127.0.0.1", 1)
    with pytest.raises(SinkUnavailable, match="READONLY"):
        sink.apply(puts(seq=2))
    client.replicaof("NO", "ONE")
    assert documents(client) == {b"old"}
    assert sink.apply(puts(seq=2)) == ApplyResult(50, 0)
    after = connections()
    assert len(after) == 1
    assert not after & before
