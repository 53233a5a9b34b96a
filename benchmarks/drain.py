"""A drain against the raw client of its sink writing the same records; and what its parts take alone.

Reading, applying and removing overlap: each by itself, they may take longer than the drain does. The fixed part is the
time of a drain of as many units that have next to nothing in them. The vacuum behind a drain is a figure of its own:
the drain does not wait for it, but it takes the server's time.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
from tests.support.servers import PostgresServer, RedisServer

from benchmarks import redis as redis_bench
from benchmarks import sql as sql_bench
from benchmarks.measuring import (
    Contestant,
    Figure,
    Watch,
    alternate,
    median_ratio,
    processor_note,
    processor_of_each,
    rate,
    speed,
)
from benchmarks.processor import ProcessorClock, no_server, of_server
from export_queue import Operations, RedisSink, Sink, SqlSink, Store, drain
from export_queue.core.drain import DrainRequest
from export_queue.core.queue import Entries, Position, Queue, read_entries, remove_span
from export_queue.core.transactions import take_snapshot

_NUMBERS = itertools.count()

DOCUMENT = b"x" * 100
COPY = "COPY of the same rows in the same order, whose bytes are dropped"
PARTS = ("reading", "applying", "removing")
FEW = 100
"""Entries of a drain that is nothing but its fixed part; all ten units have some."""
GOALS = {"PostgreSQL → Redis": 0.3, "PostgreSQL → PostgreSQL": 0.35}


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
                server = of_server(postgres.pid) if kind == "PostgreSQL" else no_server
                if kind == "PostgreSQL":
                    figures.append(compare_reading(store, url, 5 * records, repeats, server))
                for name, target in (("Redis", RedisTarget(redis, records)), (kind, own)):
                    servers = both(server, of_server(redis.pid)) if name == "Redis" else server
                    figures += Bench(store, target, records).compare(f"{kind} → {name}", repeats, servers)
    return figures


def both(one: ProcessorClock, other: ProcessorClock) -> ProcessorClock:
    """Give the clock of two servers."""
    return lambda: one() + other()


def compare_reading(store: Store, url: str, records: int, repeats: int, server: ProcessorClock) -> Figure:
    """Read a queue in chunks, each in a short SQL transaction, against the fastest way out of the server."""
    queue = store.configure_queue("read", value="bytes")
    add(store, queue.id, records)
    rows = (
        "SELECT bucket, key, seq, value FROM export_queue.xq_entry "
        f"WHERE queue_number = {queue.number} AND layout = {queue.layout} ORDER BY bucket, key, seq"
    )
    with psycopg.connect(url.replace("+psycopg", "")) as connection:

        def copied(watch: Watch) -> None:
            with watch.running(), connection.cursor().copy(f"COPY ({rows}) TO STDOUT (FORMAT binary)") as copy:
                while copy.read():
                    pass
            connection.rollback()

        def read(watch: Watch) -> None:
            with watch.running():
                found = sum(len(chunk) for chunk in chunks(store, queue))
            assert found == records

        taken = alternate({"read": read, COPY: copied}, repeats=repeats, server=server)
    return Figure(
        bench="drain",
        case=f"PostgreSQL: {records:,} entries read in chunks",
        ratio=1 / speed(taken, "read", COPY),
        better="lower",
        baseline=COPY,
        repeats=repeats,
        goal=1.2,
        note=f"{rate(taken, 'read', records, 'entries')}; {processor_note(taken, 'read', COPY)}",
    )


def add(store: Store, queue_id: str, entries: int) -> None:
    """Add entries, ten thousand a transaction."""
    for start in range(0, entries, 10_000):
        with store.transaction() as tx:
            writer = tx.queue(queue_id)
            for n in range(start, min(start + 10_000, entries)):
                writer.add(f"customer-{n:09d}", DOCUMENT)


def chunks(store: Store, queue: Queue) -> Iterator[Entries]:
    """Read a queue as a drain does."""
    size = DrainRequest(queue_id=queue.id, sink_name="bench")
    snapshot = take_snapshot(store.database)
    for unit in queue.units():
        after: Position | None = None
        while True:
            with store.database.read() as work:
                chunk = read_entries(
                    work, queue, snapshot, unit, after=after, rows=size.chunk_rows, size=size.chunk_bytes
                )
            if not chunk:
                break
            yield chunk
            if chunk.is_last:
                break
            after = chunk.position(len(chunk) - 1)


class RedisTarget:
    """Strings in Redis."""

    baseline = "raw pipelined SET"

    def __init__(self, server: RedisServer, records: int) -> None:
        self._server = server
        self._raw = redis_bench.Bench(server, records, 1000, DOCUMENT)

    def fresh(self) -> Sink:
        self._raw.admin.flushall()
        return RedisSink(self._server.host, self._server.port, password=self._server.password, key="r:$id")

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
        number = next(self.names)
        self.queue = store.configure_queue(f"bench{number}", value="bytes")
        self.few = store.configure_queue(f"few{number}", value="bytes")
        self.vacuums: list[Watch] = []
        """What followed each drain."""

    def compare(self, case: str, repeats: int, server: ProcessorClock) -> list[Figure]:
        parts: dict[str, Contestant] = {"reading": self.reading, "applying": self.applying, "removing": self.removing}
        baseline = self.target.baseline
        seconds = alternate(
            {"drain": self.drain, "drain of few": self.drain_few, baseline: self.target.raw, **parts},
            repeats=repeats,
            server=server,
        )
        seconds.add("vacuum", self.vacuums[-repeats:])
        note = "; ".join(
            (
                rate(seconds, "drain", self.records, "entries"),
                processor_of_each(seconds, "drain", self.records),
                processor_note(seconds, "drain", baseline),
            )
        )
        pairs = zip(seconds["drain"], seconds["drain of few"], strict=True)
        by_entries = [whole - fixed for whole, fixed in pairs]
        against_raw = Figure(
            bench="drain",
            case=case,
            ratio=speed(seconds, "drain", baseline),
            better="higher",
            baseline=baseline,
            repeats=repeats,
            goal=GOALS.get(case),
            note=note,
        )
        without_fixed = Figure(
            bench="drain",
            case=f"{case}: without the fixed part",
            ratio=median_ratio(seconds[baseline], by_entries),
            better="higher",
            baseline=baseline,
            repeats=repeats,
            note=f"fixed: {processor_of_each(seconds, 'drain of few', 1)}",
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
        figures = [against_raw, *shares]
        if min(by_entries) > 0:  # of a small drain the fixed part is all that can be measured
            together = Figure(
                bench="drain",
                case=f"{case}: reading, applying and removing overlapped",
                ratio=median_ratio(
                    [sum(one) for one in zip(*(seconds[part] for part in PARTS), strict=True)], by_entries
                ),
                better="higher",
                baseline="each of them alone, one after the other; without the fixed part",
                repeats=repeats,
                goal=0.8,
            )
            figures = [against_raw, without_fixed, together, *shares]
        if self.store.database.dialect.file is not None:
            return figures
        vacuum = Figure(
            bench="drain",
            case=f"{case}: the vacuum behind it",
            ratio=median_ratio(seconds["vacuum"], seconds["drain"]),
            better="lower",
            baseline="the whole drain's time",
            repeats=repeats,
            note="; ".join(
                (processor_of_each(seconds, "vacuum", self.records), processor_note(seconds, "vacuum", "drain"))
            ),
        )
        return [*figures, vacuum]

    def fill(self) -> None:
        if not self.store.backlog(self.queue.id):
            add(self.store, self.queue.id, self.records)

    def drain(self, watch: Watch) -> None:
        self.fill()
        self.vacuums.append(self.drain_all(watch, self.queue.id, self.records))

    def drain_few(self, watch: Watch) -> None:
        add(self.store, self.few.id, FEW)
        self.drain_all(watch, self.few.id, FEW)

    def drain_all(self, watch: Watch, queue_id: str, entries: int) -> Watch:
        """Drain; returns what the vacuum behind it took."""
        sink = self.target.fresh()
        name = f"bench{next(_NUMBERS)}"
        self.store.rebind(queue_id, name, complete=True)  # each is another one, and empty
        with watch.running():
            report = drain(self.store, queue_id, sink, sink_name=name)
        vacuum = watch.another()
        with vacuum.running():  # the next contestant has the server for itself
            if (tidying := self.store.database.tidying) is not None:
                tidying.begin()  # a drain of few entries has not begun one
                tidying.wait()
        sink.close()  # not before: the processor time of its sessions ends with them
        assert report.acknowledged == entries
        return vacuum

    def reading(self, watch: Watch) -> None:
        self.fill()
        with watch.running():
            for _ in chunks(self.store, self.queue):
                pass

    def applying(self, watch: Watch) -> None:
        self.fill()
        sink = self.target.fresh()
        sink.admit(queue_id="none", store_id=self.store.id, fence=1)
        batches = [self.operations(chunk) for chunk in chunks(self.store, self.queue)]
        size = sink.capabilities
        with watch.running():
            for batch in batches:
                for part in batch.slices(rows=size.batch_rows, size=size.batch_bytes):
                    sink.apply(part)
        sink.close()

    def removing(self, watch: Watch) -> None:
        self.fill()
        snapshot = take_snapshot(self.store.database)
        spans = [(chunk.position(0), chunk.position(len(chunk) - 1)) for chunk in chunks(self.store, self.queue)]
        with watch.running():
            for first, last in spans:
                with self.store.database.begin() as work:
                    remove_span(work, self.queue, snapshot, first, last)

    def operations(self, chunk: Entries) -> Operations:
        count = len(chunk)
        return Operations(["c"] * count, chunk.keys, chunk.values, chunk.seqs, range(count))
