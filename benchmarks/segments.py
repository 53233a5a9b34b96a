"""Drains of bulk entries, which wait in Parquet files, against the sink's own unguarded way fed from the same files.

The unguarded way reads keys and values batch by batch and keeps no order, no ranks and no count: pipelined SETs, COPY
into a temporary table and an upsert, bulk requests with ids. It may lose what it was given when it fails; a drain may
not. Four files hold the entries, as four tasks of a load leave them. The store is PostgreSQL.

``EXPORT_QUEUE_BENCH_ENTRIES`` is the number of entries; a million by default.
"""

from __future__ import annotations

import itertools
import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from unittest import mock

import hiredis
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from tests.support.elasticsearch import ElasticsearchServer
from tests.support.servers import PostgresServer, RedisServer

from benchmarks import elasticsearch as elasticsearch_bench
from benchmarks import redis as redis_bench
from benchmarks.measuring import Figure, Watch, alternate, median_ratio, processor_of_each, rate, speed
from benchmarks.processor import ProcessorClock, of_server
from export_queue import ElasticsearchSink, Range, RedisSink, Sink, SqlSink, Store, drain
from export_queue.core.segments import waiting_segments
from export_queue.core.segments.verified_file import VerifiedFile
from export_queue.core.transactions import take_snapshot

_NUMBERS = itertools.count()

GOAL = 0.8
UNVERIFIED = "a drain that compares no checksums"
VERIFIED_GOAL = 1.03
FILES = 4
DOCUMENT = b'{"name":"customer","city":"Oslo","total":1234567,"open":false,"note":"one hundred bytes of a document"}'
BATCH = 10_000
"""Rows that the unguarded way reads from a file at once."""
SLOW = 5
"""The share of the entries that Elasticsearch gets is one of so many: it takes several times as long for each."""


def entries(quick: bool) -> int:
    """Tell how many entries a queue has."""
    return 2_000 if quick else int(os.environ.get("EXPORT_QUEUE_BENCH_ENTRIES", "1000000"))


def run(quick: bool) -> Iterator[Figure]:
    many, repeats = entries(quick), 1 if quick else 3
    with PostgresServer() as postgres, tempfile.TemporaryDirectory() as folder:
        url = postgres.url(postgres.create_database())
        with Store.open(url, segments=folder) as store:
            store.create()
            own = of_server(postgres.pid)
            with RedisServer() as redis:
                both = _sum(own, of_server(redis.pid))
                yield from Bench(store, IntoRedis(redis), many).compare(repeats, both)
            yield from Bench(store, IntoPostgresql(postgres), many).compare(repeats, own)
            with ElasticsearchServer() as server:
                both = _sum(own, of_server(server.pid))
                yield from Bench(store, IntoElasticsearch(server), many // SLOW).compare(repeats, both)


def _sum(one: ProcessorClock, other: ProcessorClock) -> ProcessorClock:
    return lambda: one() + other()


def batches_of(files: Sequence[str]) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Read keys and values of files, some at a time."""
    for path in files:
        for batch in pq.ParquetFile(path).iter_batches(batch_size=BATCH, columns=["key", "value"]):
            yield batch.column(0).to_pylist(), batch.column(1).to_pylist()


class IntoRedis:
    """Strings in Redis."""

    name, baseline = "Redis", "pipelined SETs of the same files"

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._raw = redis_bench.Bench(server, 1, 1, b"")

    def fresh(self) -> Sink:
        self._raw.admin.flushall()
        return RedisSink(self._server.host, self._server.port, password=self._server.password, key="r:$id")

    def unguarded(self, watch: Watch, files: Sequence[str]) -> None:
        self._raw.admin.flushall()
        reader = hiredis.Reader()
        with socket.create_connection((self._server.host, self._server.port)) as connection:
            connection.sendall(hiredis.pack_command((b"AUTH", self._server.password.encode())))
            self._raw.read(connection, reader, 1)
            with watch.running():
                for keys, values in batches_of(files):
                    for start in range(0, len(keys), 1000):
                        pairs = zip(keys[start : start + 1000], values[start : start + 1000], strict=True)
                        packed = [
                            b"*3\r\n$3\r\nSET\r\n$%d\r\nr:%b\r\n$%d\r\n%b\r\n" % (len(key) + 2, key, len(value), value)
                            for key, value in pairs
                        ]
                        connection.sendall(b"".join(packed))
                        self._raw.read(connection, reader, len(packed))

    def close(self) -> None:
        self._raw.admin.close()


class IntoPostgresql:
    """Rows of a new table."""

    name, baseline = "PostgreSQL", "COPY of the same files to a temporary table + upsert"

    def __init__(self, server: PostgresServer) -> None:
        self._url = server.url()
        self._connection = psycopg.connect(self._url.replace("+psycopg", ""))
        self._tables = iter(range(1 << 30))

    def fresh(self) -> Sink:
        return SqlSink(self._url, table=f"segments_{next(self._tables)}")

    def unguarded(self, watch: Watch, files: Sequence[str]) -> None:
        table, execute = f"segments_{next(self._tables)}", self._connection.execute
        execute(f'CREATE TABLE {table} (id text COLLATE "C" PRIMARY KEY, document text)')
        execute("CREATE TEMPORARY TABLE IF NOT EXISTS incoming (id text, document text)")
        self._connection.commit()
        with watch.running():
            for keys, values in batches_of(files):
                with self._connection.cursor().copy("COPY incoming FROM STDIN (FORMAT binary)") as copy:
                    copy.set_types(["text", "text"])
                    for key, value in zip(keys, values, strict=True):
                        copy.write_row((key.decode(), value.decode()))
                execute(
                    f"INSERT INTO {table} SELECT id, document FROM incoming ON CONFLICT (id) DO UPDATE "
                    "SET document = excluded.document"
                )
                execute("TRUNCATE incoming")
                self._connection.commit()
        execute(f"DROP TABLE {table}")
        self._connection.commit()

    def close(self) -> None:
        self._connection.close()


class IntoElasticsearch:
    """Documents of a new index."""

    name, baseline = "Elasticsearch", "bulk requests with ids of the same files"

    def __init__(self, server: ElasticsearchServer) -> None:
        self._server = server
        self._raw = elasticsearch_bench.Bench(server, 0)

    def fresh(self) -> Sink:
        self._raw.empty()
        server = self._server
        return ElasticsearchSink(server.url, server.user, server.password, index=elasticsearch_bench.ALIAS)

    def unguarded(self, watch: Watch, files: Sequence[str]) -> None:
        self._raw.empty()
        with watch.running():
            for keys, values in batches_of(files):
                self._raw.ids, self._raw.records = keys, len(keys)
                self._raw.send(values)

    def close(self) -> None:
        self._raw.close()


class Bench:
    """One sink; the queue is loaded anew before each turn."""

    def __init__(self, store: Store, target: IntoRedis | IntoPostgresql | IntoElasticsearch, many: int) -> None:
        self.store, self.target, self.many = store, target, many
        self.queue = store.configure_queue(f"to_{target.name.lower()}", key="bytes", value="bytes")
        self.files: list[str] = []
        """Those in which entries wait."""

    def compare(self, repeats: int, server: ProcessorClock) -> Iterator[Figure]:
        contestants = {"drain": self.drain, UNVERIFIED: self.unverified, self.target.baseline: self.unguarded}
        taken = alternate(contestants, repeats=repeats, warm_up=False, server=server)
        case = f"{self.many:,} entries from segments → {self.target.name}"
        own, others = (processor_of_each(taken, name, self.many) for name in ("drain", self.target.baseline))
        yield Figure(
            bench="segments",
            case=case,
            ratio=speed(taken, "drain", self.target.baseline),
            better="higher",
            goal=GOAL,
            baseline=self.target.baseline,
            repeats=repeats,
            note=f"{rate(taken, 'drain', self.many, 'entries')}; processor time {own}, baseline {others}",
        )
        yield Figure(
            bench="segments",
            case=f"{case}, processor time",
            ratio=median_ratio(taken.processor["drain"], taken.processor[self.target.baseline]),
            better="lower",
            baseline=self.target.baseline,
            repeats=repeats,
        )
        for what, seconds in (("", taken), (", processor time", taken.processor)):
            yield Figure(
                bench="segments",
                case=f"{case}, checksums compared{what}",
                ratio=median_ratio(seconds["drain"], seconds[UNVERIFIED]),
                better="lower",
                goal=None if what else VERIFIED_GOAL,
                baseline=UNVERIFIED,
                repeats=repeats,
            )
        self.target.close()

    def fill(self) -> None:
        """Add the entries in one transaction, where none wait."""
        if self.files:
            return
        with self.store.transaction(long=True) as tx:
            for number in range(FILES):
                keys = [b"customer-%013d" % n for n in range(number, self.many, FILES)]
                table = {"key": pa.array(keys, pa.binary()), "value": pa.array([DOCUMENT] * len(keys), pa.binary())}
                tx.queue(self.queue.id).add_batch(pa.table(table))
        snapshot = take_snapshot(self.store.database)
        with self.store.database.read() as work:
            waiting = waiting_segments(work, self.queue, snapshot, Range(0, self.queue.buckets))
        self.files = sorted({segment.file for segment in waiting})

    def drain(self, watch: Watch) -> None:
        self.fill()
        sink = self.target.fresh()
        name = f"bench{next(_NUMBERS)}"
        self.store.rebind(self.queue.id, name, complete=True)  # each is another one, and empty
        with watch.running():
            report = drain(self.store, self.queue.id, sink, sink_name=name)
        sink.close()
        assert report.acknowledged == self.many
        self.files = []

    def unverified(self, watch: Watch) -> None:
        with mock.patch.object(VerifiedFile, "_verified", lambda file, start, end, _: file._read(start, end)):
            self.drain(watch)

    def unguarded(self, watch: Watch) -> None:
        self.fill()
        self.target.unguarded(watch, self.files)
