"""Sweeps of Redis: the floor is part of each batch's transaction, and pages of large and small hashes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from tests.support.redis_records import Make, admit, before, making, puts
from tests.support.servers import RedisServer

from export_queue import SinkBelongsToAnother, SinkRefused
from export_queue.core.sinks.redis import sweep


@pytest.fixture
def make(redis_server: RedisServer, redis_client: redis.Redis) -> Iterator[Make]:
    with making(redis_server) as make_sink:
        yield make_sink


def ranks(client: redis.Redis) -> dict[bytes, int]:
    return {
        field: int(rank)
        for pattern in ("xq:rank:*", "xq:member:*")
        for key in client.keys(pattern)
        for field, rank in client.hgetall(key).items()
    }


@pytest.mark.parametrize("target", ["string", "set"])
def test_a_sweep_right_before_a_batch_is_seen_by_it(make, redis_client, target):
    sink, sweeper = admit(make(target=target)), admit(make(target=target))
    sink.apply(puts(b"1/a", seq=20, document=None))
    swept = before(sink, "WATCH", lambda: sweeper.sweep(store_id="s", floor=25))
    result = sink.apply(puts(b"1/a", seq=15))
    assert (result.written, result.stale, swept) == (0, 1, [1])
    assert ranks(redis_client) == {}
    assert [key for key in redis_client.keys("*") if not key.startswith(b"xq:")] == []


def test_a_batch_that_has_read_the_floor_is_not_executed_once_it_has_risen(make, redis_client):
    """Nothing but the floor's own key tells the batch: its record has no rank, as if its tombstone had gone before."""
    sink, sweeper = admit(make()), admit(make())
    before(sink, "MULTI", lambda: sweeper.sweep(store_id="s", floor=25))
    result = sink.apply(puts(b"1", seq=15))
    assert (result.written, result.stale) == (0, 1)
    assert not redis_client.exists("orders:1")


def test_a_tombstone_that_is_put_again_as_it_is_swept_stays(make, redis_client):
    sink, sweeper = admit(make()), admit(make())
    sink.apply(puts(b"1", seq=20, document=None))
    send = sweeper._connection.send

    def put_before_the_delete(commands: Any) -> None:
        if commands[0][0] == "MULTI" and commands[1][0] == "HDEL":
            assert sink.apply(puts(b"1", seq=30)).written <= 1
        send(commands)

    sweeper._connection.send = put_before_the_delete  # type: ignore[method-assign]
    assert sweeper.sweep(store_id="s", floor=25) == 0
    assert ranks(redis_client) == {b"orders:1": 61}
    assert redis_client.get("orders:1") == b"x"


@pytest.mark.parametrize("shards", [1, 7])
@pytest.mark.parametrize("rows", [5, 3000])
def test_hashes_of_any_size_are_swept(make, redis_client, shards, rows):
    sink, members = admit(make(shards=shards)), admit(make(target="set", key="sets:$id"))
    ids = [b"%d/a" % n for n in range(rows)]
    for one in (sink, members):
        for start in range(0, rows, 500):
            part = ids[start : start + 500]
            one.apply(puts(*part, seq=20, document=None))
            one.apply(puts(*part[::3], seq=21))
    assert sink.sweep(store_id="s", floor=25) == 2 * (rows - len(ranks(redis_client)) // 2)
    kept = [n for start in range(0, rows, 500) for n in range(start, min(rows, start + 500))[::3]]
    assert sorted(ranks(redis_client).values()) == [43] * 2 * len(kept)
    assert members.sweep(store_id="s", floor=25) == 0


def test_pages_are_small_and_a_sweep_that_meets_writers_goes_on(make, redis_client, monkeypatch):
    monkeypatch.setattr(sweep, "PAGE", 20)
    sink, other = admit(make(shards=1)), admit(make())
    ids = [b"%d" % n for n in range(2000)]
    for start in range(0, 2000, 500):
        sink.apply(puts(*ids[start : start + 500], seq=20, document=None))
    send, asked = sink._connection.send, []

    def disturbed(commands: Any) -> None:
        asked.append(commands)
        if len(asked) % 10 == 0:
            other.apply(puts(b"other%d" % len(asked), seq=30))
        send(commands)

    sink._connection.send = disturbed  # type: ignore[method-assign]
    assert sink.sweep(store_id="s", floor=25) == 2000
    assert max(len(command) for commands in asked for command in commands) < 300
    assert set(ranks(redis_client).values()) == {61}


def test_the_floor_is_one_for_the_whole_database_and_none_for_another(make):
    sink, other, elsewhere = admit(make()), admit(make(key="other:$id")), admit(make(db=1))
    sink.sweep(store_id="s", floor=25)
    assert other.apply(puts(b"1", seq=25)).stale == 1
    assert elsewhere.apply(puts(b"1", seq=25)).written == 1


def test_a_sweep_needs_two_more_commands_than_a_drain(make, redis_client):
    drain = "+info +watch +unwatch +multi +exec +hget +hmget +hset +hsetnx +client|setname +mset +unlink"
    redis_client.execute_command("ACL", "SETUSER", "least", "on", ">x", "~orders:*", "~xq:*", "-@all", *drain.split())
    try:
        sink = admit(make(username="least", password="x"))
        sink.apply(puts(b"1", seq=20, document=None))
        with pytest.raises(SinkRefused, match="hscan"):
            sink.sweep(store_id="s", floor=25)
        assert sink.apply(puts(b"2", seq=25)).stale == 1, "the floor has been raised: the next sweep goes on"
        redis_client.execute_command("ACL", "SETUSER", "least", "+hscan", "+hdel")
        assert sink.sweep(store_id="s", floor=25) == 1
    finally:
        redis_client.execute_command("ACL", "DELUSER", "least")


def test_a_store_that_comes_as_the_sweep_begins_is_seen_or_refused(make):
    """The sweep has looked at who feeds the database, and another store comes before the floor is raised."""
    sink, stranger = admit(make()), make()
    before(sink, "MULTI", lambda: stranger.admit(queue_id="theirs", store_id="another", fence=1))
    with pytest.raises(SinkBelongsToAnother, match="another"):
        sink.sweep(store_id="s", floor=25)
    assert stranger.apply(puts(b"1", seq=20)).written == 1
