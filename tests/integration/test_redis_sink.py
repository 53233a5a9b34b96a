"""The Redis sink on a real server: the conformance suite, and what goes wrong with servers."""

from __future__ import annotations

import socket
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import redis
from tests.support.redis_records import Make, admit, before, making, member_id, members, puts, strings
from tests.support.servers import RedisServer, free_port

from export_queue import (
    ApplyResult,
    Claim,
    ExportQueueError,
    Operations,
    RedisSink,
    Retry,
    SinkConfigurationError,
    SinkRefused,
    SinkSpec,
    SinkUnavailable,
)
from export_queue.core.sinks.redis.packing import pack_words
from export_queue.testing import SinkConformance


class TestRedisStrings(SinkConformance):
    """Records as strings."""

    options: ClassVar[Mapping[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def _target(self, redis_server: RedisServer, redis_client: redis.Redis) -> None:
        self.server, self.client = redis_server, redis_client

    def make_sink(self) -> RedisSink:
        return RedisSink(self.server.host, self.server.port, password=self.server.password, **self.options)

    def read_all(self) -> Mapping[tuple[str, bytes], bytes]:
        return strings(self.client)


@pytest.mark.full("strings in many shards run anyway")
class TestRedisStringsInFewShards(TestRedisStrings):
    """Few shards, so that appliers meet all the time."""

    options: ClassVar = {"shards": 2}


@pytest.mark.full("strings run anyway")
class TestRedisSets(TestRedisStrings):
    """Records as members of sets."""

    options: ClassVar = {"target": "set"}
    takes = "nothing"

    def record_id(self, name: bytes) -> bytes:
        return member_id(name)

    def read_all(self) -> Mapping[tuple[str, bytes], bytes]:
        return members(self.client)


SECRET = "hunter" + str(2)  # not as one literal: tracebacks show the lines of this file


@pytest.fixture
def make(redis_server: RedisServer, redis_client: redis.Redis) -> Iterator[Make]:
    with making(redis_server) as make_sink:
        yield make_sink


@pytest.fixture
def configured(redis_client: redis.Redis) -> Iterator[Callable[[str, str], None]]:
    """Set a parameter of the server for one test."""
    before: dict[str, str] = {}

    def configure(name: str, value: str) -> None:
        before[name] = redis_client.config_get(name)[name]
        redis_client.config_set(name, value)

    yield configure
    for name, value in before.items():
        redis_client.config_set(name, value)


def apply_one(sink: RedisSink) -> ApplyResult:
    return sink.apply(puts(b"1"))


def shown(error: BaseException) -> str:
    return repr(error) + "".join(traceback.format_exception(error))


# What lies in the server


def test_a_key_follows_its_template_and_the_rank_stands_beside_it(make, redis_client):
    sink = make(key="customer:$id:status")
    sink.apply(puts(b"77", seq=5))
    sink.apply(puts(b"78", seq=6, document=None))
    assert sorted(redis_client.keys()) == sorted(
        [b"customer:77:status", b"xq:control", *redis_client.keys("xq:rank:*")]
    )
    ranks = {field: rank for key in redis_client.keys("xq:rank:*") for field, rank in redis_client.hgetall(key).items()}
    assert ranks == {b"customer:77:status": b"%020d" % 11, b"customer:78:status": b"%020d" % 12}


def test_members_of_sets_are_what_readers_expect(make, redis_client):
    sink = make(key="by_count:$id", target="set")
    sink.apply(puts(b"12/N1", b"12/N2", b"13/N/3"))
    sink.apply(puts(b"12/N1", seq=6, document=None))
    assert redis_client.smembers("by_count:12") == {b"N2"}
    assert redis_client.smembers("by_count:13") == {b"N/3"}


def test_two_collections_with_one_key_are_one_record(make, redis_client):
    sink = make(key="k:$id")
    batch = Operations(["a", "b"], [b"1", b"1"], [b"old", b"new"], [5, 6], [0, 1])
    assert sink.apply(batch) == ApplyResult(1, 1)
    assert redis_client.get("k:1") == b"new"


def test_two_sinks_with_one_template_guard_one_record(make, redis_client):
    make(key="k:$id").apply(puts(b"1", seq=6, collection="a", document=b"new"))
    assert make(key="k:$id").apply(puts(b"1", seq=5, collection="b", document=b"old")).stale == 1
    assert redis_client.get("k:1") == b"new"


def test_strings_and_sets_of_one_id_do_not_share_a_rank(make, redis_client):
    make(key="s:$id").apply(puts(b"12/N1", seq=9))
    assert make(key="t:$id", target="set").apply(puts(b"12/N1", seq=5)).written == 1


def test_keys_of_the_sink_cannot_be_written_by_an_exporter(make, redis_client):
    sink = make(key="$id")
    result = sink.apply(puts(b"good", b"xq:control"))
    assert (result.written, [rejection.position for rejection in result.rejected]) == (1, [1])
    assert redis_client.type("xq:control") == b"hash"


def test_the_number_of_shards_is_fixed_by_the_first_sink(make):
    admit(make(shards=7)).apply(puts(b"1", seq=9))
    assert admit(make()).apply(puts(b"1", seq=8)).stale == 1
    with pytest.raises(SinkConfigurationError, match="7 shards, the sink asks for 8"):
        admit(make(shards=8))


@pytest.mark.parametrize(
    "options",
    [
        {"key": "x"},
        {"target": "list"},
        {"shards": 0},
        {"port": "6379"},
        {"ssl": True, "ssl_options": {"ssl_cert": "x"}},
        {"ssl": True, "ssl_options": {"ssl_cert_reqs": "perhaps"}},
        {"ssl": True, "ssl_options": {"ssl_ciphers": "none-such"}},
        {"ssl": True, "ssl_options": {"ssl_ca_data": "no certificate"}},
    ],
)
def test_options_are_checked_before_anything_is_connected(options):
    with pytest.raises(SinkConfigurationError):
        RedisSink("nowhere.invalid", **options)


def test_messages_name_a_database_that_is_not_the_first_one():
    assert str(RedisSink("nowhere.invalid", db=5)) == "Redis at nowhere.invalid:6379, database 5"
    assert str(RedisSink("nowhere.invalid")) == "Redis at nowhere.invalid:6379"


# One operation that fails must not take others with it


def test_a_set_that_is_no_set_is_rejected_alone(make, redis_client):
    redis_client.set("by:1", "a string")
    sink = make(key="by:$id", target="set")
    result = sink.apply(puts(b"0/a", b"1/b", b"2/c", b"1/d"))
    assert (result.written, [rejection.position for rejection in result.rejected]) == (2, [1, 3])
    assert "WRONGTYPE" in result.rejected[0].reason
    redis_client.delete("by:1")
    assert sink.apply(puts(b"1/b", b"1/d")).written == 2, "a rejected operation leaves no rank"
    assert redis_client.smembers("by:1") == {b"b", b"d"}


def test_a_key_that_turns_into_no_set_in_between_is_rejected_and_heals(make, redis_client, monkeypatch):
    sink = admit(make(key="by:$id", target="set"))
    look, first = sink._target.checked_keys, iter([True])

    def look_and_change(records):
        # the type is asked for after this; the server is made to answer for a key that does not exist yet
        return pack_words([b"by:other"]) if next(first, False) else look(records)

    monkeypatch.setattr(type(sink._target), "checked_keys", lambda _, records: look_and_change(records))
    redis_client.set("by:1", "a string")
    result = sink.apply(puts(b"1/b", b"2/c"))
    assert [rejection.position for rejection in result.rejected] == [0]
    redis_client.delete("by:1")
    sink.apply(puts(b"1/b"))  # the dead letter is tried again: its rank is there, the member is not
    assert redis_client.smembers("by:1") == {b"b"}


# Servers that take nothing


@pytest.mark.parametrize("guard", ["seq", "fence"])
def test_a_value_that_is_longer_than_the_server_takes_is_rejected_alone(make, redis_client, configured, guard):
    configured("proto-max-bulk-len", str(1 << 20))
    sink = admit(make(guard=guard))
    writer = sink if guard == "seq" else sink.claim([Claim("u", 7)])[0]
    sizes = [10, (1 << 20) + 1, 1 << 20]
    batch = Operations(["o"] * 3, [b"%d" % n for n in range(3)], [b"x" * size for size in sizes], [5] * 3, range(3))
    result = writer.apply(batch)
    assert (result.written, [one.position for one in result.rejected]) == (2, [1])
    assert "1048577 bytes in one piece" in result.rejected[0].reason
    assert sorted(redis_client.keys("o:*")) == [b"o:0", b"o:2"]


def test_a_hash_is_as_long_as_its_longest_field(make, redis_client, configured):
    configured("proto-max-bulk-len", str(1 << 20))
    sink = admit(make(target="hash"))
    sink.apply(puts(b"1", document=b'{"a":1}'))
    long = b"x" * 700_000
    documents = [b'{"a":"%b","b":"%b"}' % (long, long), b'{"a":"%b"}' % (long + long)]
    result = sink.apply(Operations(["orders"] * 2, [b"1", b"2"], documents, [9] * 2, range(2)))
    assert (result.written, [one.position for one in result.rejected]) == (1, [1])


def test_a_full_server_is_unavailable_and_nothing_is_half_applied(make, redis_client, configured):
    sink = admit(make())
    sink.apply(puts(b"1", seq=1, document=b"old"))
    configured("maxmemory", str(redis_client.info("memory")["used_memory"] + 100_000))
    big = Operations(["o"] * 40, [b"%d" % n for n in range(40)], [b"x" * 20_000] * 40, [5] * 40, range(40))
    with pytest.raises(SinkUnavailable, match="OOM"):
        for _ in range(10):
            sink.apply(big)
            big = Operations(
                ["o"] * 40, [b"%d-" % n + b for n, b in enumerate(big.ids)], big.documents, big.seqs, range(40)
            )
    redis_client.config_set("maxmemory", 0)
    written = {key for key in redis_client.keys("o:*") if key.partition(b":")[2] in big.ids}
    ranked = {field for name in redis_client.keys("xq:rank:*") for field in redis_client.hkeys(name)}
    assert written == {b"o:" + record for record in big.ids} & ranked
    assert len(written) < 40
    assert sink.apply(big) == ApplyResult(40 - len(written), len(written))


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_a_server_that_may_forget_any_key_is_refused(make, configured, policy):
    configured("maxmemory-policy", policy)
    with pytest.raises(SinkConfigurationError, match=policy) as caught:
        admit(make())
    assert "noeviction" in caught.value.hint


@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru"])
def test_a_server_that_keeps_keys_without_expiry_is_taken(make, configured, policy):
    configured("maxmemory-policy", policy)
    admit(make())


def test_a_replica_is_unavailable_before_and_during_a_drain(make, redis_client):
    sink = admit(make())
    redis_client.replicaof("127.0.0.1", free_port())
    try:
        with pytest.raises(SinkUnavailable, match="READONLY"):
            sink.apply(puts(b"1"))
        with pytest.raises(SinkUnavailable, match="replica"):
            admit(make())
    finally:
        redis_client.replicaof("NO", "ONE")
    assert sink.apply(puts(b"1")).written == 1


def test_a_user_without_rights_is_refused_by_name_of_the_right(make, redis_client):
    redis_client.acl_setuser("reader", enabled=True, passwords=["+" + SECRET], categories=["+@read"], keys=["*"])
    try:
        with pytest.raises(SinkRefused, match="NOPERM") as caught:
            admit(make(username="reader", password=SECRET))
    finally:
        redis_client.acl_deluser("reader")
    assert SECRET not in shown(caught.value)


def test_the_least_privileges_suffice(make, redis_client):
    commands = "info watch unwatch multi exec hget hmget hset hsetnx type mset unlink sadd srem set pexpire".split()
    commands.append("client|setname")
    keys = ["orders:*", "xq:*"]
    redis_client.acl_setuser(
        "writer", enabled=True, passwords=["+" + SECRET], commands=[f"+{name}" for name in commands], keys=keys
    )
    try:
        for target, record, seq in (("string", b"1", 5), ("hash", b"1", 7), ("set", b"1/a", 9)):
            redis_client.delete("orders:1")
            sink = admit(make(username="writer", password=SECRET, target=target))
            batch = puts(record, seq=seq, document=b'{"a": 1}')
            assert sink.apply(batch if target == "set" else replace(batch, ttls=[60])).written == 1
            assert sink.apply(puts(record, seq=seq + 1, document=None)).written == 1
    finally:
        redis_client.acl_deluser("writer")


def test_a_wrong_password_is_refused_and_not_shown(make):
    with pytest.raises(SinkRefused, match=r"127\.0\.0\.1") as caught:
        admit(make(password=SECRET))
    assert SECRET not in shown(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "nowhere.invalid"])
def test_a_server_that_is_not_there_is_unavailable_by_name(host, monkeypatch):
    monkeypatch.setenv("XQ_TEST", SECRET)
    spec = SinkSpec("redis", {"host": host, "port": free_port()}, {"password": "env:XQ_TEST"})
    sink = spec.open()
    for act in (admit, apply_one):
        with pytest.raises(SinkUnavailable, match=host) as caught:
            act(sink)
        assert caught.value.transient
        assert SECRET not in shown(caught.value) + repr(sink) + repr(vars(sink))


def test_a_server_that_does_not_answer_is_unavailable():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(SinkUnavailable, match=f"127.0.0.1:{port}"):
            admit(RedisSink("127.0.0.1", port, socket_timeout=0.2))


# Servers that come back


def test_a_restarted_server_is_written_to_again(tmp_path):
    with RedisServer({"appendonly": "yes", "appendfsync": "always"}) as server:
        sink = admit(RedisSink(server.host, server.port, password=server.password))
        sink.apply(puts(b"1", seq=5))
        server.stop()
        with pytest.raises(SinkUnavailable):
            sink.apply(puts(b"1", seq=6))
        server.start()
        assert sink.apply(puts(b"1", b"2", seq=4)) == ApplyResult(1, 1)
        sink.close()


def test_a_slow_server_is_asked_once(make, redis_client):
    """A request whose answer is late may have been applied: only the drain decides to repeat it."""
    sink = admit(make(socket_timeout=2))
    redis_client.config_resetstat()
    redis_client.client_pause(10_000, all=False)  # holds writes back
    with pytest.raises(SinkUnavailable):
        sink.apply(puts(b"1"))
    redis_client.client_unpause()
    assert redis_client.info("commandstats").get("cmdstat_exec", {"calls": 0})["calls"] <= 1
    assert sink.apply(puts(b"1", seq=6)).written == 1


def test_the_password_is_asked_for_at_each_connection(make, redis_client, redis_server):
    answers = iter([redis_server.password, "wrong", redis_server.password])
    sink = admit(make(password=lambda: next(answers)))
    sink.close()
    with pytest.raises(SinkRefused):
        sink.apply(puts(b"1"))
    assert sink.apply(puts(b"1")).written == 1


def test_an_error_while_the_password_is_found_leaves_no_half_open_connection(make, redis_server):
    answers = iter([RuntimeError("the vault is away"), redis_server.password])

    def password() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    sink = make(password=password)
    with pytest.raises(RuntimeError):
        admit(sink)
    admit(sink)


# Others at the same time


def test_a_batch_that_others_disturb_is_read_again(make, redis_client):
    """Somebody writes a newer rank between our look and our write: our transaction is void, the next look sees it."""
    sink = admit(make(shards=1))
    before(sink, "MULTI", lambda: admit(make()).apply(puts(b"1", seq=9, document=b"newer")))
    assert sink.apply(puts(b"1", b"2", seq=5)) == ApplyResult(1, 1)
    assert redis_client.mget("orders:1", "orders:2") == [b"newer", b"x"]


def test_a_batch_that_is_disturbed_for_ever_is_unavailable(make, redis_client, monkeypatch):
    sink = admit(make())
    monkeypatch.setattr(sink._servers, "_retry", Retry(sleep=lambda _: None))
    before(sink, "MULTI", lambda: redis_client.hset("xq:control", "of", "others"), times=1000)
    with pytest.raises(SinkUnavailable, match="other writers"):
        sink.apply(puts(*(b"%d" % n for n in range(50))))


def test_one_sink_may_be_used_by_several_threads(make, redis_client):
    sink = admit(make())
    failures: list[ExportQueueError] = []

    def work(start: int) -> None:
        try:
            for seq in range(50):
                sink.apply(puts(*(b"%d" % n for n in range(start, start + 30)), seq=seq, document=b"%d" % seq))
        except ExportQueueError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 10, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert set(redis_client.mget([f"orders:{n}" for n in range(50)])) == {b"49"}
