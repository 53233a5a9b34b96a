"""A drain against the raw client of its sink writing the same records; and what its parts take alone.

Reading, applying and removing overlap: each by itself, they may take longer than the drain does.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support.servers import PostgresServer, RedisServer

from benchmarks import redis as redis_bench
from benchmarks import sql as sql_bench
from benchmarks.measuring import Contestant, Figure, Watch, alternate, rate, speed
from export_queue import Operations, RedisSink, Sink, SqlSink, Store, drain, readmit
from export_queue.core.drain import DrainRequest
from export_queue.core.queue import Entries, Position, read_entries, remove_span
from export_queue.core.transactions import take_snapshot

DOCUMENT = b"x" * 100
PARTS = ("reading", "applying", "removing")


def run(quick: bool) -> list[Figure]:
    records, repeats = (1_000, 1) if quick else (60_000, 5)
    figures: list[Figure] = []
    with PostgresServer() as postgres, RedisServer() as redis, tempfile.TemporaryDirectory() as folder:
        stores = {"PostgreSQL": postgres.url(postgres.create_database()), "SQLite": f"sqlite:///{folder}/store.db"}
        for kind, url in stores.items():
            with Store.open(url) as store:
                store.create()
                own = (
                    SqlTarget(sql_bench.OnPostgresql(postgres, records))
                    if kind == "PostgreSQL"
                    else SqlTarget(sql_bench.OnSqlite(Path(folder), records))
                )
                for name, target in (("Redis", RedisTarget(redis, records)), (kind, own)):
                    figures += Bench(store, target, records).compare(f"{kind} → {name}", repeats)
    return figures


class RedisTarget:
    """Strings in Redis."""

    baseline = "raw pipelined SET"

    def __init__(self, server: RedisServer, records: int) -> None:
        self._server = server
        self._raw = redis_bench.Bench(server, records, 1000, DOCUMENT)

    def fresh(self) -> Sink:
        self._raw.admin.flushall()
        return RedisSink(self._server.host, self._server.port, password=self._server.password, key="r:{id}")

    def raw(self, watch: Watch) -> None:
        self._raw.raw(watch, "insert")


class SqlTarget:
    """Rows of a new table."""

    def __init__(self, bench: sql_bench.OnPostgresql | sql_bench.OnSqlite) -> None:
        self._bench = bench
        # Named by what the bench of the sink itself compares with.
        ((self.baseline, self._raw), *_) = bench.baselines("insert", "seq").items()

    def fresh(self) -> Sink:
        return SqlSink(self._bench.url, table=next(self._bench.tables))

    def raw(self, watch: Watch) -> None:
        self._raw(watch)


class Bench:
    """One store and one sink: the queue is filled anew whenever it was emptied."""

    names = itertools.count()

    def __init__(self, store: Store, target: RedisTarget | SqlTarget, records: int) -> None:
        self.store, self.target, self.records = store, target, records
        self.queue = store.configure_queue(f"bench{next(self.names)}", value="bytes")

    def compare(self, case: str, repeats: int) -> list[Figure]:
        parts: dict[str, Contestant] = {"reading": self.reading, "applying": self.applying, "removing": self.removing}
        seconds = alternate({"drain": self.drain, self.target.baseline: self.target.raw, **parts}, repeats=repeats)
        note = rate(seconds, "drain", self.records, "entries")
        baseline = self.target.baseline
        against_raw = Figure(
            bench="drain",
            case=case,
            ratio=speed(seconds, "drain", baseline),
            better="higher",
            baseline=baseline,
            repeats=repeats,
            note=note,
        )
        shares = [
            Figure(
                bench="drain",
                case=f"{case}: {part} alone",
                ratio=1 / speed(seconds, part, "drain"),
                better="lower",
                baseline="the whole drain's time",
                repeats=repeats,
            )
            for part in PARTS
        ]
        return [against_raw, *shares]

    def fill(self) -> None:
        if self.store.backlog(self.queue.id):
            return
        for start in range(0, self.records, 10_000):
            with self.store.transaction() as tx:
                writer = tx.queue(self.queue.id)
                for n in range(start, min(start + 10_000, self.records)):
                    writer.add(f"customer-{n:09d}", DOCUMENT)

    def drain(self, watch: Watch) -> None:
        self.fill()
        sink = self.target.fresh()
        readmit(self.store, self.queue.id, sink)  # each is empty, and has the name of the one before
        with watch.running():
            report = drain(self.store, self.queue.id, sink, sink_name="bench")
        sink.close()
        assert report.acknowledged == self.records

    def reading(self, watch: Watch) -> None:
        self.fill()
        with watch.running():
            for _ in self.chunks():
                pass

    def applying(self, watch: Watch) -> None:
        self.fill()
        sink = self.target.fresh()
        sink.admit(queue_id="none", store_id=self.store.id, fence=1)
        batches = [self.operations(chunk) for chunk in self.chunks()]
        size = sink.capabilities
        with watch.running():
            for batch in batches:
                for part in batch.slices(rows=size.batch_rows, size=size.batch_bytes):
                    sink.apply(part)
        sink.close()

    def removing(self, watch: Watch) -> None:
        self.fill()
        snapshot = take_snapshot(self.store.database)
        spans = [(chunk.position(0), chunk.position(len(chunk) - 1)) for chunk in self.chunks()]
        with watch.running():
            for first, last in spans:
                with self.store.database.begin() as work:
                    remove_span(work, self.queue, snapshot, first, last)

    def chunks(self) -> Iterator[Entries]:
        size = DrainRequest(queue_id=self.queue.id, sink_name="bench")
        snapshot = take_snapshot(self.store.database)
        for unit in self.queue.units():
            after: Position | None = None
            while True:
                with self.store.database.read() as work:
                    chunk = read_entries(
                        work, self.queue, snapshot, unit, after=after, rows=size.chunk_rows, size=size.chunk_bytes
                    )
                if not chunk:
                    break
                yield chunk
                after = chunk.position(len(chunk) - 1)

    def operations(self, chunk: Entries) -> Operations:
        count = len(chunk)
        return Operations(["c"] * count, chunk.keys, chunk.values, chunk.seqs, range(count))
