"""The Redis sink against the raw client: the same records by hand-packed, pipelined SETs, and by redis-py.

There are a thousand records a shard, as a million records have with the default number of shards. Processor time is
that of client and server for a record.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Literal

import hiredis
import redis
from tests.support.servers import RedisServer

from benchmarks.measuring import Contestant, Figure, Taken, Watch, alternate, processor_of_each, rate, speed
from benchmarks.processor import of_server
from export_queue import Claim, Operations, RedisSink, Sink, bucket

RAW, CLIENT = "raw pipelined SET", "redis-py pipeline"
GOALS = {100: 0.6, 1_000: 0.8, 10_000: 0.95}
SCATTERED_GOAL = 0.3
FENCE_GOAL = 1.0
CLIENT_GOAL = 3.5
CLAIM = Claim("q/1/0", 1)


def run(quick: bool) -> list[Figure]:
    repeats = 2 if quick else 7
    figures: list[Figure] = []
    with RedisServer() as server:
        for size, records, batch in ((100, 60_000, 1000), (1_000, 20_000, 500), (10_000, 4_000, 100)):
            bench = Bench(server, records // 20 if quick else records, batch, b"x" * size)
            figures += bench.compare(size, repeats)
            figures += bench.compare_fence(size, repeats)
        figures += Bench(server, 3_000 if quick else 30_000, 1000, b"x" * 100).compare_scattered(repeats)
    return figures


def named(size: int) -> str:
    return f"{size} B" if size < 1000 else f"{size // 1000} kB"


class Bench:
    """Records of one size, delivered in batches of the size and the order in which a drain reads them.

    :param batch: records of a batch of the other contestants.
    """

    def __init__(self, server: RedisServer, records: int, batch: int, document: bytes) -> None:
        self.server, self.records, self.batch, self.document = server, records, batch, document
        self.shards = max(1, records // 1000)
        self.admin = redis.Redis(host=server.host, port=server.port, password=server.password)
        ids = [b"customer-%09d" % n for n in range(records)]
        self.sorted_ids = sorted(ids, key=lambda record: (bucket(record, self.shards), record))
        self.unsorted_ids = ids

    def compare_fence(self, size: int, repeats: int) -> list[Figure]:
        figures: list[Figure] = []
        for phase, seq in (("insert", 1), ("update", 2)):
            contestants = {
                "sink": lambda watch, p=phase, s=seq: self.sink(watch, self.sorted_ids, p, s, guard="fence"),
                RAW: lambda watch, p=phase: self.raw(watch, p),
            }
            taken = self.measure(contestants, repeats)
            figures.append(self.figure(f"fence: {phase} {named(size)}", taken, RAW, FENCE_GOAL))
        return figures

    def compare(self, size: int, repeats: int) -> list[Figure]:
        name = named(size)
        figures: list[Figure] = []
        for phase, seq in (("insert", 1), ("update", 2), ("stale", 1)):
            contestants = {
                "sink": lambda watch, p=phase, s=seq: self.sink(watch, self.sorted_ids, p, s),
                RAW: lambda watch, p=phase: self.raw(watch, p),
                CLIENT: lambda watch, p=phase: self.client(watch, p),
            }
            taken = self.measure(contestants, repeats)
            goal = GOALS[size] if phase == "update" else None
            figures.append(self.figure(f"{phase} {name}", taken, RAW, goal))
            if phase == "update":
                figures.append(self.figure(f"{phase} {name}", taken, CLIENT, CLIENT_GOAL if size == 100 else None))
        return figures

    def compare_scattered(self, repeats: int) -> list[Figure]:
        contestants = {
            "sink": lambda watch: self.sink(watch, self.unsorted_ids, "update", 2, shards=1009),
            RAW: lambda watch: self.raw(watch, "update"),
            CLIENT: lambda watch: self.client(watch, "update"),
        }
        taken = self.measure(contestants, repeats)
        case = "update 100 B, all shards in each batch"
        return [self.figure(case, taken, base, goal) for base, goal in ((RAW, SCATTERED_GOAL), (CLIENT, None))]

    def measure(self, contestants: dict[str, Contestant], repeats: int) -> Taken:
        return alternate(contestants, repeats=repeats, server=of_server(self.server.pid))

    def figure(self, case: str, taken: Taken, baseline: str, goal: float | None) -> Figure:
        own, others = (processor_of_each(taken, name, self.records) for name in ("sink", baseline))
        return Figure(
            bench="redis",
            case=case,
            ratio=speed(taken, "sink", baseline),
            better="higher",
            goal=goal,
            baseline=baseline,
            repeats=len(taken["sink"]),
            note=f"{rate(taken, 'sink', self.records, 'records')}; processor time {own}, {baseline} {others}",
        )

    def sink(
        self,
        watch: Watch,
        ids: Sequence[bytes],
        phase: str,
        seq: int,
        shards: int | None = None,
        guard: Literal["seq", "fence"] = "seq",
    ) -> None:
        self.admin.flushall()
        server, shards = self.server, shards or self.shards
        opened = RedisSink(server.host, server.port, password=server.password, key="r:$id", shards=shards, guard=guard)
        opened.admit(queue_id="q", store_id="s", fence=1)
        sink: Sink = opened
        if guard == "fence":
            (sink,) = opened.claim([CLAIM])
        if phase != "insert":
            self.deliver(sink, ids, seq - 1 if phase == "update" else seq)
        with watch.running():
            self.deliver(sink, ids, seq)
        opened.close()

    def deliver(self, sink: Sink, ids: Sequence[bytes], seq: int) -> None:
        size = sink.capabilities
        batch = min(size.batch_rows, size.batch_bytes // (len(ids[0]) + len(self.document)))
        for start in range(0, len(ids), batch):
            part = ids[start : start + batch]
            n = len(part)
            sink.apply(Operations(["c"] * n, part, [self.document] * n, [seq] * n, range(n)))

    def raw(self, watch: Watch, phase: str) -> None:
        self.admin.flushall()
        with socket.create_connection((self.server.host, self.server.port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reader = hiredis.Reader()
            connection.sendall(hiredis.pack_command((b"AUTH", self.server.password.encode())))
            self.read(connection, reader, 1)
            if phase != "insert":
                self.set_all(connection, reader)
            with watch.running():
                self.set_all(connection, reader)

    def set_all(self, connection: socket.socket, reader: hiredis.Reader) -> None:
        document, ids = self.document, self.sorted_ids
        head, tail = b"*3\r\n$3\r\nSET\r\n$%d\r\nr:", b"\r\n$%d\r\n%b\r\n" % (len(document), document)
        for start in range(0, len(ids), self.batch):
            part = ids[start : start + self.batch]
            connection.sendall(b"".join([head % (len(record) + 2) + record + tail for record in part]))
            self.read(connection, reader, len(part))

    @staticmethod
    def read(connection: socket.socket, reader: hiredis.Reader, replies: int) -> None:
        while replies:
            reader.feed(connection.recv(1 << 16))
            while (reply := reader.gets()) is not False:
                assert reply == b"OK"
                replies -= 1

    def client(self, watch: Watch, phase: str) -> None:
        self.admin.flushall()
        if phase != "insert":
            self.set_by_client()
        with watch.running():
            self.set_by_client()

    def set_by_client(self) -> None:
        for start in range(0, len(self.sorted_ids), self.batch):
            pipeline = self.admin.pipeline(transaction=False)
            for record in self.sorted_ids[start : start + self.batch]:
                pipeline.set(b"r:" + record, self.document)
            pipeline.execute()
