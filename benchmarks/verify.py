"""What it costs to prove that a sink equals a state, against reading both sides once: all pages of the state, and a
scan of the sink.

The sinks are in memory, where reading costs least, in Redis, and in a table of PostgreSQL; processor time is that of
client and server. Documents are JSON of a hundred bytes. The store is SQLite; the state is in local files.

A drain next to a verify of the same queue and sink is compared with the same drain alone; the store is PostgreSQL, the
sink Redis, and the verify runs in a process of its own. Both need the cores of the machine, so that the processor time
of the drain's process, and of the store, is shown too: it says what the verify costs the drain apart from the cores.

Memory is that of a process which compares a state with a sink in SQLite, so that only verify holds data.

``EXPORT_QUEUE_BENCH_ENTRIES`` is the largest number of records; a million by default.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import statistics
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.support.servers import PostgresServer, RedisServer

from benchmarks.clients import PATIENCE
from benchmarks.measuring import Figure, Watch, alternate, median_ratio, rate, speed
from benchmarks.processor import ProcessorClock, no_server, of_server
from export_queue import MemorySink, Operations, RedisSink, SqlSink, Store, drain, verify
from export_queue.core.sources import StateSource

BASELINE = "reading the state and the sink once"
GOAL = 1.3
FLAT = 1.2
ALONE = "the same drain alone"
DRAIN_GOAL = 0.95
"""Speed of a drain next to a verify."""
_COMMITTED_TOGETHER = 500
QUEUE = "customers"
_DOCUMENT = b'{"name":"customer","city":"Oslo","total":%07d,"open":false,"note":"one hundred bytes of a document"}'
_BATCH = 50_000
_FRESH = multiprocessing.get_context("spawn")
"""Processes that hold nothing of this one's memory."""


def run(quick: bool) -> Iterator[Figure]:
    largest = 20_000 if quick else int(os.environ.get("EXPORT_QUEUE_BENCH_ENTRIES", "1000000"))
    repeats = 1 if quick else 5
    for size in (largest // 10, largest):
        yield from in_memory(size, repeats)
    yield from in_servers(largest // 10, repeats)
    yield from beside_drains(largest // 5, largest // 20, repeats)
    small, large = (peak_memory(size) for size in (largest // 10, largest))
    yield Figure(
        bench="verify",
        case=f"{largest:,} records, peak memory",
        ratio=large / small,
        better="lower",
        baseline=f"that of {largest // 10:,}",
        repeats=1,
        goal=FLAT,
        note=f"{large >> 10} MiB",
    )


def in_memory(size: int, repeats: int) -> Iterator[Figure]:
    """Compare with a sink in memory: first all is the same, then 1 % of its records differ."""
    with filled(size) as store:
        sink = MemorySink()
        drain(store, QUEUE, sink)
        yield from compared("memory", store, sink, size, repeats)
        records = list(sink.ranks())[::100]
        sink.repair(
            Operations(
                [collection for collection, _ in records],
                [record for _, record in records],
                [b"{}"] * len(records),
                [rank >> 1 for rank in list(sink.ranks().values())[::100]],
                range(len(records)),
            )
        )
        yield from compared("memory, 1 % differ", store, sink, size, repeats, differences=len(records))
        yield planted(store, sink, size, known=len(records))


def planted(store: Store, sink: MemorySink, size: int, *, known: int) -> Figure:
    """Plant two differences of each kind, and count how many verify finds.

    :param known: differences that are there before.
    """
    records = [(QUEUE, b"customer-%013d" % n) for n in range(1, 11)]
    missing, stale, changed, extra, deleted = (records[start : start + 2] for start in range(0, 10, 2))
    with store.transaction() as tx:
        tx.queue(QUEUE).add_many((record, None) for _, record in deleted)
    drain(store, QUEUE, sink)
    ranks, documents = sink._contents.ranks, sink._contents.documents
    for record in (*missing, *deleted):  # of the deleted ones the tombstones
        del ranks[record]
        documents.pop(record, None)
    for record in stale:
        ranks[record], documents[record] = 3, b"{}"
    for record in changed:
        documents[record] = b"{}"
    for collection, record in extra:
        ranks[collection, b"no " + record], documents[collection, b"no " + record] = ranks[collection, record], b"{}"
    report = verify(store, QUEUE, sink)
    found = report.differences - known
    return Figure(
        bench="verify",
        case=f"{size:,} records, memory: planted differences that are found",
        ratio=found / len(records),
        better="higher",
        baseline="all of ten, two of each kind",
        repeats=1,
        goal=1.0,
        note=f"{found} of {len(records)}",
    )


def in_servers(size: int, repeats: int) -> Iterator[Figure]:
    """Compare with sinks in servers."""
    with filled(size) as store, RedisServer() as redis:
        address = {"host": redis.host, "port": redis.port, "password": redis.password}
        with contextlib.closing(RedisSink(**address)) as in_redis:
            drain(store, QUEUE, in_redis)
            yield from compared("Redis", store, in_redis, size, repeats, clock=of_server(redis.pid))
    with (
        filled(size) as store,
        PostgresServer() as postgres,
        contextlib.closing(SqlSink(postgres.url(postgres.create_database()))) as table,
    ):
        drain(store, QUEUE, table)
        yield from compared("PostgreSQL", store, table, size, repeats, clock=of_server(postgres.pid))


@contextlib.contextmanager
def filled(size: int) -> Iterator[Store]:
    """Make a store with a queue, whose state has the documents."""
    with tempfile.TemporaryDirectory() as folder, Store.open(f"sqlite:///{Path(folder) / 'store.db'}") as store:
        fill(store, size)
        yield store


def fill(store: Store, size: int) -> None:
    store.create()
    store.configure_queue(QUEUE, key="bytes", value="bytes", state=True)
    for start in range(0, size, _BATCH):
        numbers = range(start, min(start + _BATCH, size))
        keys, values = [b"customer-%013d" % n for n in numbers], [_DOCUMENT % n for n in numbers]
        with store.transaction(long=True) as tx:
            tx.queue(QUEUE).add_batch(pa.table({"key": pa.array(keys), "value": pa.array(values)}))


def compared(
    name: str,
    store: Store,
    sink: MemorySink | RedisSink | SqlSink,
    size: int,
    repeats: int,
    *,
    differences: int = 0,
    clock: ProcessorClock = no_server,
) -> Iterator[Figure]:
    """Compare verify, and the reading.

    :param differences: the number that verify must find.
    """

    def prove(watch: Watch) -> None:
        with watch.running():
            report = verify(store, QUEUE, sink)
        assert (report.compared, report.differences) == (size, differences)

    def read(watch: Watch) -> None:
        queue = store.queue(QUEUE)
        with watch.running():
            with StateSource().open(store.database, queue) as content:
                found = sum(len(page) for unit in queue.units() for page in content.pages(unit))
            scanned = sum(len(records) for records in sink.scan({QUEUE}))
        assert found == scanned == size

    taken = alternate({"verify": prove, BASELINE: read}, repeats=repeats, server=clock)
    for what, seconds in ((", processor time", taken.processor), ("", taken)):
        yield Figure(
            bench="verify",
            case=f"{size:,} records, {name}{what}",
            ratio=median_ratio(seconds["verify"], seconds[BASELINE]),
            better="lower",
            baseline=BASELINE,
            repeats=repeats,
            goal=GOAL if what and not differences else None,
            note="" if what else rate(taken, "verify", size, "records"),
        )


def beside_drains(size: int, drained: int, repeats: int) -> Iterator[Figure]:
    """Drain alone, and while another process compares the records of the same queue again and again.

    :param size: records that are in the sink before.
    :param drained: entries of each drain, of other keys.
    """
    with tempfile.TemporaryDirectory() as folder, PostgresServer() as postgres, RedisServer() as redis:
        url = postgres.url(postgres.create_database())
        address = {"host": redis.host, "port": redis.port, "password": redis.password}
        with Store.open(url, segments=folder) as store, contextlib.closing(RedisSink(**address)) as sink:
            fill(store, size)
            drain(store, QUEUE, sink)

            def alone(watch: Watch) -> None:
                _add_rows(store, drained)
                with watch.running():
                    report = drain(store, QUEUE, sink)
                assert report.written == drained, report.line()

            def beside(watch: Watch) -> None:
                with verifying(url, folder, address):
                    alone(watch)

            taken = alternate({"beside": beside, ALONE: alone}, repeats=repeats, server=of_server(postgres.pid))
    case = f"a drain of {drained:,} entries next to a verify of {size:,} records"
    yield Figure(
        bench="verify",
        case=f"{case}, speed",
        ratio=speed(taken, "beside", ALONE),
        better="higher",
        baseline=ALONE,
        repeats=repeats,
        goal=DRAIN_GOAL,
        note=f"{os.cpu_count()} cores; {rate(taken, 'beside', drained, 'entries')}",
    )
    for part, what in (("client", "its process"), ("server", "the store, with the statements of the verify")):
        of = {name: [getattr(watch, part) for watch in watches] for name, watches in taken.watches.items()}
        yield Figure(
            bench="verify",
            case=f"{case}, processor time of {what}",
            ratio=median_ratio(of["beside"], of[ALONE]),
            better="lower",
            baseline=ALONE,
            repeats=repeats,
            note=f"{statistics.median(of['beside']) / drained * 1e6:.1f} µs an entry",
        )


def _add_rows(store: Store, count: int) -> None:
    for start in range(0, count, _COMMITTED_TOGETHER):
        with store.transaction() as tx:
            queue = tx.queue(QUEUE)
            for n in range(start, min(start + _COMMITTED_TOGETHER, count)):
                queue.add(b"drained-%013d" % n, _DOCUMENT % n)


class _EndedError(Exception):
    """The verify is no longer needed."""


@contextlib.contextmanager
def verifying(url: str, folder: str, address: dict[str, Any]) -> Iterator[None]:
    """Let another process verify from before the block to its end."""
    ours, theirs = _FRESH.Pipe()
    process = _FRESH.Process(target=_verify_repeatedly, args=(url, folder, address, theirs), daemon=True)
    process.start()
    try:
        if not ours.poll(PATIENCE):
            raise RuntimeError("the verify of the benchmark has not begun to read")
        ours.recv()
        yield
        assert not ours.poll(), "the verify of the benchmark has failed"
        ours.send(None)
        process.join(PATIENCE)
    finally:
        process.kill()
        process.join()


def _verify_repeatedly(url: str, folder: str, address: dict[str, Any], commands: Connection) -> None:
    """Verify until something is received. Send a message when the first one reads, and another if one fails."""
    has_begun = False

    def check(_: object) -> None:
        nonlocal has_begun
        if not has_begun:
            commands.send("reads")
            has_begun = True
        if commands.poll():
            raise _EndedError

    with Store.open(url, segments=folder) as store, contextlib.closing(RedisSink(**address)) as sink:
        try:
            while True:
                report = verify(store, QUEUE, sink, on_progress=check)
                assert not report.differences, report.line()
        except _EndedError:
            pass
        except BaseException:
            commands.send("failed")
            raise


def peak_memory(size: int) -> int:
    """Return the peak memory of a process that compares, in KiB."""
    with tempfile.TemporaryDirectory() as folder:
        url, target = (f"sqlite:///{Path(folder) / name}" for name in ("store.db", "target.db"))
        with Store.open(url) as store, contextlib.closing(SqlSink(target, table="customers")) as sink:
            fill(store, size)
            drain(store, QUEUE, sink)
        receiver, sender = _FRESH.Pipe(duplex=False)
        process = _FRESH.Process(target=_verify_apart, args=(url, target, size, sender), daemon=True)
        process.start()
        if not receiver.poll(PATIENCE + size / 1000):
            raise RuntimeError("a comparison of the benchmark has not ended")
        peak: int = receiver.recv()
        process.join(PATIENCE)
        return peak


def _verify_apart(url: str, target: str, size: int, sender: Connection) -> None:
    with Store.open(url) as store, contextlib.closing(SqlSink(target, table="customers")) as sink:
        report = verify(store, QUEUE, sink)
        assert (report.compared, report.differences) == (size, 0), report.line()
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    sender.send(int(found[1]))
