"""Records that the suites for sinks write into Redis: making sinks, and reading back what is there."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import redis

from export_queue import Operations, RedisSink

Make = Callable[..., RedisSink]
Found = dict[tuple[str, bytes], bytes]
Client = redis.Redis | redis.RedisCluster


class Server(Protocol):
    """A server, or one node of a cluster."""

    host: str
    port: int
    password: str


@contextmanager
def making(server: Server, **always: Any) -> Iterator[Make]:
    """Give a function that opens sinks, which are closed at the end."""
    opened: list[RedisSink] = []

    def make_sink(**options: Any) -> RedisSink:
        defaults = {"host": server.host, "port": server.port, "password": server.password, **always}
        opened.append(RedisSink(**{**defaults, **options}))
        return opened[-1]

    yield make_sink
    for sink in opened:
        sink.close()


def puts(*ids: bytes, seq: int = 5, collection: str = "orders", document: bytes | None = b"x") -> Operations:
    """Put the same document into records; None deletes them."""
    n = len(ids)
    return Operations([collection] * n, ids, [document] * n, [seq] * n, range(n))


def admit(sink: RedisSink) -> RedisSink:
    """Let a queue of a store drain into a sink."""
    sink.admit(queue_id="q", store_id="s", fence=1)
    return sink


def before(sink: RedisSink, verb: str, act: Callable[[], object], *, times: int = 1) -> list[object]:
    """Do something right before a sink sends commands of which the first has this verb.

    :param times: how often at most.
    :returns: what was returned, as it comes.
    """
    send, done = sink._connection.send, list[object]()

    def act_and_send(commands: Sequence[Any]) -> None:
        if commands[0][0] == verb and len(done) < times:
            done.append(None)  # before it is done: what is done here may send, too
            done[-1] = act()
        send(commands)

    sink._connection.send = act_and_send  # type: ignore[method-assign]
    return done


def member_id(name: bytes) -> bytes:
    """Name a member of one of three sets."""
    return b"%d/%b" % (zlib.crc32(name) % 3, name)


def strings(client: Client) -> Found:
    """Read the suite's strings."""
    keys = _keys(client)
    fetch = client.mget_nonatomic if isinstance(client, redis.RedisCluster) else client.mget
    values = fetch(keys) if keys else []
    return {_record(key): value for key, value in zip(keys, values, strict=True) if value is not None}


def members(client: Client) -> Found:
    """Read the suite's members of sets, which have no documents."""
    found: Found = {}
    for key in _keys(client):
        collection, name = _record(key)
        found |= {(collection, name + b"/" + member): b"" for member in client.smembers(key)}
    return found


def hashes(client: Client) -> Found:
    """Read the suite's hashes."""
    found = {_record(key): client.hgetall(key) for key in _keys(client)}
    return {record: document_of(fields) for record, fields in found.items() if fields}


def document_of(fields: Mapping[bytes, bytes]) -> bytes:
    """Put a document of the suite together again."""
    return b'{"of":"%b","seq":%b}' % (fields[b"of"], fields[b"seq"])


def _keys(client: Client) -> list[bytes]:
    return list(client.scan_iter("conformance*", count=10_000))


def _record(key: bytes) -> tuple[str, bytes]:
    collection, _, record = key.partition(b":")
    return collection.decode(), record
