"""Entries in files: they count with the commit and like rows (I3, I6, I7, I10, I13)."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs
import pytest
from tests.support import bulk
from tests.support.bulk import many
from tests.support.fenced_memory import FencedMemory
from tests.support.waiting import wait_until

from export_queue import (
    ApplyResult,
    DeadLetterFilter,
    DrainError,
    EntriesWait,
    EntryError,
    HasSubscriptions,
    InvalidArgument,
    LayoutClosed,
    LeaseLost,
    MemorySink,
    Operations,
    Owner,
    Range,
    RegistrationLost,
    Rejection,
    Retry,
    SegmentLost,
    SegmentRefused,
    SegmentUnavailable,
    SinkSpec,
    SinkUnavailable,
    Store,
    bucket,
    drain,
)
from export_queue.core.drain import (
    DrainRequest,
    Part,
    RangeReport,
    drain_ranges,
    load_exporter,
    opened_exporter,
    pipeline,
)
from export_queue.core.drain.fenced import claim_of
from export_queue.core.locks import claim
from export_queue.core.maintenance import Patience, safe_floor
from export_queue.core.maintenance import maintain as clean_up
from export_queue.core.queue import Position, Sighting, look, subscribe
from export_queue.core.segments import (
    FileReport,
    Run,
    UnitReader,
    begin_load,
    leave_out_drained,
    mark_done,
    stage_segments,
    vacuum_segments,
    verified_file,
    waiting_segments,
    write_segments,
    writing,
)
from export_queue.core.segments import files as segment_files
from export_queue.core.store import queries
from export_queue.core.transactions import take_snapshot

fork = multiprocessing.get_context("fork")
ONCE = Retry(attempts=1)
READERS = ["search", "cache"]
maintain = partial(clean_up, patience=Patience(files=0))


@pytest.fixture
def orders(store: Store, tmp_path: Path) -> Store:
    """A store with a queue of four units, whose files are in a folder of the test's."""
    store.database.segments = str(tmp_path / "segments")
    store.configure_queue("orders", buckets=20, buckets_per_range=5, value="bytes")
    return store


class Recorder(MemorySink):
    """A sink that notes what comes, in order."""

    def __init__(self, name: str | None = None, on_batch: Callable[[int], None] = lambda number: None) -> None:
        super().__init__(name)
        self.seen: list[tuple[str, int, Any]] = []
        self._on_batch, self._batches = on_batch, 0

    def apply(self, operations: Operations) -> ApplyResult:
        for i in range(len(operations)):
            self.seen.append((operations.ids[i].decode(), operations.seqs[i], operations.documents[i]))
        result = super().apply(operations)
        self._batches += 1
        self._on_batch(self._batches)
        return result


def drained(store: Store, queue_id: str = "orders", **options: Any) -> dict[str, Any]:
    sink = MemorySink(f"{store.database.segments} {queue_id}")
    drain(store, queue_id, sink, sink_name="sink", **options)
    return documents(sink)


def documents(sink: MemorySink) -> dict[str, Any]:
    return {key[1].decode(): value for key, value in sink.records().items()}


def waiting(store: Store, queue_id: str = "orders") -> int:
    return sum(unit.entries for unit in store.backlog(queue_id))


def files(store: Store) -> set[str]:
    folder = Path(str(store.database.segments))
    return {str(path) for path in folder.rglob("*") if path.is_file()}


def named(reports: list[FileReport]) -> set[str]:
    return {report.file for report in reports}


def test_entries_in_files_are_there_with_the_commit_and_not_before(orders: Store) -> None:
    with orders.transaction(long=True) as tx:
        bulk.add(tx, orders, many(50), tasks=3)
        assert waiting(orders) == 0
        assert orders.waiting_ranges("orders") == []
        assert orders.peek("orders") == []
        before = take_snapshot(orders.database)
    assert waiting(orders) == 50
    assert len(orders.waiting_ranges("orders")) == 4
    with orders.database.read() as work:
        assert waiting_segments(work, orders.queue("orders"), before, Range(0, 20)) == []
    assert set(drained(orders)) == many(50).keys()
    assert waiting(orders) == 0
    assert orders.waiting_ranges("orders") == []


def test_an_abort_leaves_nothing(orders: Store) -> None:
    with pytest.raises(ZeroDivisionError), orders.transaction(long=True) as tx:
        bulk.add(tx, orders, many(50))
        bulk.put(orders, ["row"], b"row")
        raise ZeroDivisionError
    assert set(drained(orders)) == {"row"}
    assert files(orders)
    maintain(orders.database)
    assert not files(orders)


def test_nothing_is_staged_after_the_end(orders: Store) -> None:
    with orders.transaction(long=True) as tx:
        reports = bulk.write(orders, tx.id, many(10))
        number = tx.id
    with pytest.raises(RegistrationLost):
        stage_segments(orders.database, number, orders.queue("orders"), reports)
    with pytest.raises(RegistrationLost):
        begin_load(orders.database, number)
    assert waiting(orders) == 0


def test_staging_the_same_files_again_changes_nothing(orders: Store) -> None:
    with orders.transaction(long=True) as tx:
        reports = bulk.write(orders, tx.id, many(10), tasks=2)
        for some in (reports[:1], reports, reports):
            stage_segments(orders.database, tx.id, orders.queue("orders"), some)
    assert waiting(orders) == 10


def test_files_of_another_transaction_are_not_staged(orders: Store) -> None:
    with orders.transaction(long=True) as one, orders.transaction(long=True) as other:
        reports = bulk.write(orders, one.id, many(3))
        begin_load(orders.database, other.id)
        with pytest.raises(InvalidArgument, match="expected one in the transaction's folder"):
            stage_segments(orders.database, other.id, orders.queue("orders"), reports)


def test_only_a_long_transaction_with_a_load_stages_files(orders: Store) -> None:
    with orders.transaction(long=True) as tx:
        report = FileReport("/somewhere", 1, 1, "", ())
        with pytest.raises(InvalidArgument, match="begin_load"):
            stage_segments(orders.database, tx.id, orders.queue("orders"), [report])


@pytest.mark.parametrize("moment", ["before staging", "after staging", "before the commit", "after the commit"])
def test_a_process_that_dies_leaves_all_or_nothing(orders: Store, open_store: Callable[[], Store], moment: str) -> None:
    ours, theirs = fork.Pipe()

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        with open_store() as mine:
            mine.database.segments = orders.database.segments
            step = mine.database.dialect.steps.commit

            def commit(*given: Any, **options: Any) -> Any:
                if moment == "before the commit":
                    die()
                found = step(*given, **options)
                die()
                return found

            mine.database.dialect.steps.commit = commit  # type: ignore[method-assign]
            with mine.transaction(long=True) as tx:
                theirs.send((tx.id, tx.request))
                reports = bulk.write(mine, tx.id, many(30))
                if moment == "before staging":
                    die()
                stage_segments(mine.database, tx.id, mine.queue("orders"), reports)
                if moment == "after staging":
                    die()

    process = fork.Process(target=work)
    process.start()
    number, request = ours.recv()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert len(files(orders)) == 1
    if moment != "after the commit":
        assert waiting(orders) == 0
        assert (
            vacuum_segments(orders.database, grace_seconds=0).files == 0
        )  # it may still be at work, as far as anybody knows
        assert orders.outcome(request).status == "refused"
        orders.database.dialect.steps.abort(_connection(orders), kind="long", transaction=number)
        assert vacuum_segments(orders.database, grace_seconds=0).files == 1
        assert waiting(orders) == 0
    else:
        assert orders.outcome(request).status == "committed"
        assert vacuum_segments(orders.database, grace_seconds=0).files == 0
        assert len(drained(orders)) == 30
        assert vacuum_segments(orders.database, grace_seconds=0).files == 1


def _connection(store: Store) -> Any:
    return store.database.pool.check_out().driver_connection


def test_an_expired_load_is_pruned_with_its_files(orders: Store) -> None:
    begun = orders.begin(timeout=1.0)
    with orders.resume(begun) as tx:
        bulk.add(tx, orders, many(10))
    with orders.database.begin() as work:
        queries.registrations.end_all(work)
    assert vacuum_segments(orders.database, grace_seconds=0).files == 0  # its rows refer to them
    maintain(orders.database)
    assert not files(orders)
    assert waiting(orders) == 0


def test_rows_and_files_are_drained_in_one_order(orders: Store) -> None:
    keys = list(many(40))
    older = bulk.put(orders, keys[::2], b"older")
    one, _ = bulk.load(orders, many(40, b"one"), tasks=3)
    between = bulk.put(orders, keys[::3], b"between")
    other, _ = bulk.load(orders, many(40, b"other"))
    newer = bulk.put(orders, keys[::5], b"newer")
    sink = Recorder()
    report = drain(orders, "orders", sink, sink_name="sink", chunk_rows=5)
    assert report.read == report.acknowledged == 20 + 40 + 14 + 40 + 8
    assert report.left == 0
    by_key: dict[str, list[int]] = {}
    for key, seq, _ in sink.seen:
        by_key.setdefault(key, []).append(seq)
    assert all(seqs == sorted(seqs) for seqs in by_key.values())
    assert by_key["key-0"][-1] == newer
    assert by_key["key-3"][-1] == other
    assert older < one < between < other < newer
    assert documents(sink) == {key: b"newer" if i % 5 == 0 else b"other" for i, key in enumerate(keys)}
    assert waiting(orders) == 0


@pytest.mark.parametrize("whole_keys", [False, True])
def test_chunks_are_what_a_sort_of_everything_would_give(orders: Store, whole_keys: bool) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    expected: list[tuple[int, bytes, int, bytes | None]] = []
    for _ in range(chance.randint(3, 8)):
        keys = chance.sample(sorted(many(60)), chance.randint(1, 60))
        value = bytes(chance.randrange(256) for _ in range(chance.randint(0, 300)))
        if chance.random() < 0.5:
            seq, _ = bulk.load(orders, dict.fromkeys(keys, value), tasks=chance.randint(1, 4))
        else:
            seq = bulk.put(orders, keys, value)
        expected += [(bulk.bucket(key.encode(), 20), key.encode(), seq, value) for key in keys]
    for limit in (1, 2, chance.randint(3, 30)):
        assert chunks(orders, limit, whole_keys=whole_keys) == sorted(expected)
    assert waiting(orders) == len(expected)


def chunks(store: Store, limit: int, *, whole_keys: bool) -> list[tuple[int, bytes, int, bytes | None]]:
    queue, snapshot, within = store.queue("orders"), take_snapshot(store.database), Range(0, 20)
    found: list[tuple[int, bytes, int, bytes | None]] = []
    with store.database.read() as work:
        segments = waiting_segments(work, queue, snapshot, within)
        reader = UnitReader(queue, snapshot, within, segments, rows=limit, size=5000, whole_keys=whole_keys)
        while chunk := reader.read(work).entries:
            rows = list(zip(chunk.buckets, chunk.keys, chunk.seqs, chunk.values, strict=True))
            assert len(rows) <= limit or (whole_keys and len({row[:2] for row in rows}) == 1)
            if whole_keys and found:
                assert found[-1][:2] != rows[0][:2]
            found += rows
            if chunk.is_last:
                break
        reader.close()
    return found


def test_of_a_key_that_one_transaction_adds_twice_the_row_counts(orders: Store) -> None:
    with orders.transaction(long=True) as tx:
        bulk.add(tx, orders, many(10))
        tx.queue("orders").add("key-1", b"row")
    sink = Recorder()
    report = drain(orders, "orders", sink, sink_name="sink")
    assert report.read == 10
    assert documents(sink) == many(10) | {"key-1": b"row"}
    assert waiting(orders) == 0


def test_dead_letters_come_from_files_and_go_back_as_rows(orders: Store) -> None:
    seq, _ = bulk.load(orders, many(20))
    sink = _Refusing({"key-3", "key-7"})
    report = drain(orders, "orders", sink, sink_name="sink", chunk_rows=4)
    assert (report.read, report.acknowledged, report.dead, report.left) == (20, 18, 2, 0)
    letters = orders.dead_letters.list("orders", values=True)
    assert [(letter.key, letter.position.seq, letter.value) for letter in letters] == [
        ("key-3", seq, b"bulk"),
        ("key-7", seq, b"bulk"),
    ]
    assert waiting(orders) == 0
    orders.dead_letters.retry("orders", DeadLetterFilter())
    assert waiting(orders) == 2
    sink.refused = set()
    drain(orders, "orders", sink, sink_name="sink")
    assert documents(sink) == many(20)


class _Refusing(MemorySink):
    def __init__(self, refused: set[str]) -> None:
        super().__init__()
        self.refused = refused

    def apply(self, operations: Operations) -> ApplyResult:
        if found := [i for i in range(len(operations)) if operations.ids[i].decode() in self.refused]:
            kept = [i for i in range(len(operations)) if i not in found]
            result = super().apply(operations.take(kept)) if kept else ApplyResult(0, 0, ())
            return ApplyResult(result.written, result.stale, tuple(Rejection(i, "refused") for i in found))
        return super().apply(operations)


def test_what_a_killed_drain_has_drained_stays_drained(
    orders: Store, open_store: Callable[[], Store], tmp_path: Path
) -> None:
    bulk.load(orders, many(100), tasks=3)
    bulk.put(orders, ["key-1", "row"], b"row")

    copies = SinkSpec("sql", {"url": f"sqlite:///{tmp_path / 'copies.db'}"}, name="copies")

    def work() -> None:
        with open_store() as mine, contextlib.closing(copies.open()) as sink:
            step, batches = sink.apply, itertools.count(1)

            def apply(operations: Operations) -> ApplyResult:
                if next(batches) == 6:
                    os.kill(os.getpid(), signal.SIGKILL)
                return step(operations)

            sink.apply = apply  # type: ignore[method-assign]
            drain(mine, "orders", sink, sink_name="copies", chunk_rows=3, owner=Owner("night", "1"))

    process = fork.Process(target=work)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    left = waiting(orders)
    assert 102 - 5 * 3 <= left <= 102 - 3 * 3  # in the middle of a unit
    report = drain(orders, "orders", copies, chunk_rows=9, owner=Owner("night", "2"))  # takes over at once
    assert report.read == left
    assert waiting(orders) == 0
    assert _rows(orders) == (0, 0)


def _rows(store: Store) -> tuple[int, int]:
    """Readers of segments, and drained parts."""
    prefix = "export_queue." if store.database.dialect.name == "postgresql" else ""
    with store.database.read() as work:
        found = [
            work.connection.exec_driver_sql(f"select count(*) from {prefix}xq_segment_{name}").scalar_one()
            for name in ("reader", "done")
        ]
    return found[0], found[1]


def test_a_drain_that_lost_its_lease_removes_nothing(orders: Store) -> None:
    bulk.load(orders, many(60))

    def on_batch(number: int) -> None:
        if number == 2:
            with orders.database.begin() as work:
                queries.locks.revoke(work, "task", ["1"])

    with pytest.raises(LeaseLost):
        drain(
            orders,
            "orders",
            Recorder(f"{orders.database.segments} lease", on_batch),
            sink_name="sink",
            chunk_rows=5,
            owner=Owner("task", "1"),
            retry=ONCE,
        )
    assert waiting(orders) >= 50
    sink = Recorder(f"{orders.database.segments} lease")
    drain(orders, "orders", sink, sink_name="sink", owner=Owner("task", "2"))
    assert documents(sink) == many(60)
    assert waiting(orders) == 0


def test_a_chunk_that_failed_between_others_is_read_again(orders: Store) -> None:
    bulk.load(orders, {f"key-{i}": b"bulk" for i in range(30)})
    sink = _Failing()
    with pytest.raises(SinkUnavailable, match="full"):
        drain(orders, "orders", sink, sink_name="sink", chunk_rows=3, retry=ONCE)
    left = waiting(orders)
    assert 0 < left < 30
    sink.broken = False
    report = drain(orders, "orders", sink, sink_name="sink", chunk_rows=3)
    assert report.read == left
    assert documents(sink) == many(30)


class _Failing(MemorySink):
    broken = True
    batches = 0

    def apply(self, operations: Operations) -> ApplyResult:
        self.batches += 1
        if self.broken and self.batches == 4:
            raise SinkUnavailable("full")
        return super().apply(operations)


def test_a_removal_that_failed_leaves_a_gap_that_is_drained_again(
    orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next chunk is on its way out by then."""
    bulk.load(orders, many(60))
    step, calls = pipeline.mark_done, itertools.count(1)

    def failing(*given: Any) -> Any:
        if next(calls) == 2:
            raise DrainError("not now")
        return step(*given)

    monkeypatch.setattr(pipeline, "mark_done", failing)
    sink = MemorySink()
    with pytest.raises(DrainError, match="not now"):
        drain(orders, "orders", sink, sink_name="sink", chunk_rows=3, retry=ONCE)
    left = waiting(orders)
    assert left == 60 - 2 * 3
    report = drain(orders, "orders", sink, sink_name="sink", chunk_rows=4)
    assert report.read == left
    assert waiting(orders) == 0


def test_two_tasks_that_end_a_segment_at_once_leave_nothing_of_it(orders: Store) -> None:
    if orders.database.dialect.file is not None:
        pytest.skip("SQLite has one writer")
    hot = [key for key in map("k{}".format, range(200)) if bucket(key.encode(), 20) == 7][:2]
    bulk.load(orders, dict.fromkeys(hot, b"1"))
    queue, snapshot = orders.queue("orders"), take_snapshot(orders.database)
    with orders.database.read() as work:
        (segment,) = waiting_segments(work, queue, snapshot, Range(0, 20))
        cut = Position(7, min(hot).encode(), (1 << 63) - 1)
        parts = [
            UnitReader(queue, snapshot, segment.range, [segment], after=after, until=until, rows=9, size=1000)
            for after, until in ((None, cut), (cut, None))
        ]
        (one,), (other,) = (reader.read(work).runs for reader in parts)

    def mark(run: Run) -> None:
        with orders.database.begin() as work:
            mark_done(work, queue, run)

    def somebody_waits() -> bool:
        with orders.database.read() as work:
            text = "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
            return bool(work.connection.exec_driver_sql(text).scalar())

    with ThreadPoolExecutor(1) as thread:
        with orders.database.begin() as work:
            mark_done(work, queue, one)
            marked = thread.submit(mark, other)
            wait_until(lambda: marked.done() or somebody_waits(), "the other task has neither marked nor waited")
        marked.result()
    assert waiting(orders) == 0
    assert _rows(orders) == (0, 0)


def one_by_one(store: Store) -> UnitReader:
    """Read the queue's only segment as a task does that begins now: with what others have noted so far left out."""
    queue, snapshot = store.queue("orders"), take_snapshot(store.database)
    with store.database.read() as work:
        (segment,) = waiting_segments(work, queue, snapshot, Range(0, 20))
    return UnitReader(queue, snapshot, segment.range, [segment], rows=1, size=1)


def drain_next(store: Store, reader: UnitReader, before: Run | None = None) -> Run:
    with store.database.begin() as work:
        (run,) = reader.read(work).runs
        return mark_done(work, store.queue("orders"), run, before)[0]


@pytest.mark.parametrize("entries", [3, 4], ids=["the count would be reached", "the count would be passed"])
def test_what_two_attempts_of_a_task_drain_at_once_counts_once(orders: Store, entries: int) -> None:
    """One attempt was taken for dead, and goes on beside the one that Spark has put in its place."""
    one_unit = [key for key in map("k{}".format, range(200)) if bucket(key.encode(), 20) < 5][:entries]
    bulk.load(orders, dict.fromkeys(one_unit, b"1"))
    first = one_by_one(orders)
    noted = drain_next(orders, first)
    second = one_by_one(orders)
    other = drain_next(orders, second)
    noted = drain_next(orders, first, noted)
    assert waiting(orders) == entries - 2
    if entries == 4:
        drain_next(orders, second, other)
    assert waiting(orders) == 1  # nobody has brought the last one
    drain_next(orders, first, drain_next(orders, first, noted) if entries == 4 else noted)
    assert waiting(orders) == 0
    assert _rows(orders) == (0, 0)
    first.close()
    second.close()


def test_the_runs_of_a_chunk_come_in_the_order_of_their_segments(orders: Store) -> None:
    """Tasks lock what they note in one order."""
    low, high = sorted(key.encode() for key in map("k{}".format, range(200)) if bucket(key.encode(), 20) == 7)[:2]
    for key in (high, low):
        bulk.load(orders, {key.decode(): b"1"})
    queue, snapshot = orders.queue("orders"), take_snapshot(orders.database)
    with orders.database.read() as work:
        segments = waiting_segments(work, queue, snapshot, Range(0, 20))
        runs = UnitReader(queue, snapshot, Range(5, 10), segments, rows=9, size=1000).read(work).runs
    assert [run.segment for run in runs] == segments


def test_units_are_altered_under_files_that_are_staged_only_for_sinks_with_ranks(orders: Store) -> None:
    before = orders.queue("orders")
    refused = pytest.raises(InvalidArgument, match="expected an empty queue, found 1 entries")
    with refused, orders.transaction(long=True) as tx:
        tx.queue("orders").add_batch(pa.table({"key": ["a"], "value": [b"1"]}))
        orders.alter_queue("orders", buckets_per_range=4)
    orders.alter_queue("orders", buckets_per_range=4)
    with orders.transaction(long=True) as tx:
        base = begin_load(orders.database, tx.id)
        batch = pa.record_batch({"bucket": pa.array([0], pa.int32()), "key": [b"a"], "value": [b"1"]})
        place = {"base": base, "store_id": orders.id, "transaction": tx.id, "name": "late"}
        reports = write_segments([batch], buckets_per_range=before.buckets_per_range, **place)
        with pytest.raises(LayoutClosed, match="'orders' were written in a layout that was closed meanwhile"):
            stage_segments(orders.database, tx.id, before, reports)


def test_noting_a_drained_part_again_changes_nothing(orders: Store) -> None:
    """The commit of a removal may be in doubt."""
    bulk.load(orders, {"a": b"1", "b": b"2"})
    queue, snapshot = orders.queue("orders"), take_snapshot(orders.database)
    with orders.database.read() as work:
        for segment in waiting_segments(work, queue, snapshot, Range(0, 20)):
            reader = UnitReader(queue, snapshot, segment.range, [segment], rows=1, size=1)
            before = None
            while chunk := reader.read(work):
                if not chunk.runs:
                    break
                for _ in range(2):
                    with orders.database.begin() as other:
                        noted, _ = mark_done(other, queue, chunk.runs[0], before)
                before = noted
    assert waiting(orders) == 0
    assert _rows(orders) == (0, 0)


def test_an_object_store_needs_neither_a_rename_nor_a_folder(
    orders: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow's local filesystem stands for one, by the way that any URL takes."""
    step = segment_files._filesystem

    def filesystem(url: str) -> Any:
        parts = urlsplit(url)
        if parts.scheme != "s3":
            return step(url)
        path = tmp_path / parts.netloc / parts.path.strip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        return pa.fs.LocalFileSystem(), str(path)

    monkeypatch.setattr(segment_files, "_filesystem", filesystem)
    bucket = tmp_path.name
    orders.database.segments = f"s3a://{bucket}/queue?region=here"
    number, (report, _) = bulk.load(orders, many(30), tasks=2)
    assert report.file.startswith(f"s3://{bucket}/queue/{orders.id}/{number}/")
    assert report.file.endswith(".parquet?region=here")
    (here,) = (tmp_path / bucket).rglob(Path(urlsplit(report.file).path).name)
    aside = here.rename(here.with_suffix(".aside"))
    with pytest.raises(SegmentLost, match="found no file"):
        drained(orders)
    assert vacuum_segments(orders.database, grace_seconds=0).files == 1  # the one that is aside
    assert not aside.exists()
    with pytest.raises(SegmentLost):
        drained(orders)
    orders.dead_letters.give_up_file("orders", report.file)
    assert len(drained(orders)) == 30 - report.entries
    assert vacuum_segments(orders.database, grace_seconds=0).files == 1
    assert not [path for path in (tmp_path / bucket).rglob("*") if path.is_file()]


def test_a_sink_with_fences_takes_entries_in_files(orders: Store) -> None:
    bulk.put(orders, list(many(10)), b"older")
    bulk.load(orders, many(30), tasks=3)
    newer = bulk.put(orders, list(many(5)), b"newer")
    sink = FencedMemory(rows=4)
    report = drain(orders, "orders", sink, sink_name="fenced", chunk_rows=3, on_error="fail")
    assert report.acknowledged == 45
    assert report.highest_seq == newer
    found = {record.decode(): document for (_, record), document in sink.documents.items()}
    assert found == many(30) | many(5, b"newer")


def test_an_attempt_behind_another_one_brings_a_fenced_sink_nothing_older(orders: Store) -> None:
    """Both have the claim, so that only what they read keeps order: rows and files as of one moment."""
    one_unit = [key for key in map("k{}".format, range(200)) if bucket(key.encode(), 20) < 5]
    bulk.load(orders, dict.fromkeys(one_unit, b"older"))
    bulk.put(orders, one_unit, b"newer")
    queue, snapshot = orders.queue("orders"), take_snapshot(orders.database)
    unit = queue.units()[0]
    leases = claim(orders.database, queue, [unit], owner=Owner("job", "1"), lease_seconds=60)
    request = DrainRequest(queue_id="orders", sink_name="fenced", drain_id="d", on_error="fail", chunk_rows=4)
    others: list[RangeReport] = []
    is_first = threading.Event()

    def attempt() -> list[RangeReport]:
        with opened_exporter(load_exporter(None), ONCE) as exporter:
            parts = [Part.whole(lease) for lease in leases]
            return drain_ranges(orders.database, queue, parts, snapshot, sink, exporter, request, check=lambda: None)

    def overtake(batch: Operations) -> None:
        if not is_first.is_set():
            is_first.set()
            others.extend(attempt())

    sink = FencedMemory(after=overtake)
    sink.claim([claim_of(queue, lease) for lease in leases])
    (report,) = attempt()
    assert [one.problem for one in (*others, report)] == [None, None]
    assert set(sink.records().values()) == {b"newer"}
    assert waiting(orders) == 0


@pytest.mark.parametrize("drained_by_others", range(5))
def test_what_others_have_drained_of_a_file_since_it_was_read_is_left_out_of_a_chunk(
    orders: Store, drained_by_others: int
) -> None:
    one_unit = [key for key in map("k{}".format, range(200)) if bucket(key.encode(), 20) < 5][:4]
    bulk.load(orders, dict.fromkeys(one_unit, b"1"))
    queue, snapshot, within = orders.queue("orders"), take_snapshot(orders.database), Range(0, 5)
    with orders.database.read() as work:
        reader = UnitReader(queue, snapshot, within, waiting_segments(work, queue, snapshot, within), rows=9, size=1000)
        chunk = reader.read(work)
    other, noted = one_by_one(orders), None
    for _ in range(drained_by_others):
        noted = drain_next(orders, other, noted)
    with orders.database.read() as work:
        found = leave_out_drained(work, queue, snapshot, within, chunk)
    assert found.entries.keys == chunk.entries.keys[drained_by_others:]
    assert found.runs == chunk.runs
    reader.close()
    other.close()


def test_a_drain_holds_a_part_of_a_file_in_memory(orders: Store) -> None:
    orders.configure_queue("large", buckets=5, buckets_per_range=5, value="bytes")
    entries = {f"key-{i}": random.Random(i).randbytes(400) for i in range(50_000)}
    _, (report,) = bulk.load(orders, entries, queue_id="large")
    assert report.bytes > 19 << 20
    (part,) = report.slices
    assert part.row_group_end > 2
    queue, snapshot, within = orders.queue("large"), take_snapshot(orders.database), Range(0, 5)
    before, most, counted = pa.total_allocated_bytes(), 0, 0
    with orders.database.read() as work:
        segments = waiting_segments(work, queue, snapshot, within)
        reader = UnitReader(queue, snapshot, within, segments, rows=1000, size=1 << 20)
        while found := len(reader.read(work).entries):
            counted += found
            most = max(most, pa.total_allocated_bytes() - before)
    assert counted == 50_000
    assert 0 < most < 10 << 20


def test_each_subscription_drains_the_same_files(orders: Store) -> None:
    orders.configure_queue(
        "airports", buckets=20, buckets_per_range=5, value="bytes", subscriptions=["search", "cache"]
    )
    _, reports = bulk.load(orders, many(25), queue_id="airports", tasks=2)
    assert waiting(orders, "airports/search") == waiting(orders, "airports/cache") == 25
    orders.subscribe("airports", "late")
    assert waiting(orders, "airports/late") == 0
    assert drained(orders, "airports/search") == many(25)
    maintain(orders.database)
    assert files(orders) == named(reports)
    assert drained(orders, "airports/cache") == many(25)
    assert files(orders) == named(reports)
    maintain(orders.database)
    assert not files(orders)


def test_the_readers_at_the_commit_get_what_was_staged_before(orders: Store) -> None:
    orders.configure_queue("airports", buckets=20, buckets_per_range=5, value="bytes", subscriptions=["search"])
    with orders.transaction(long=True) as tx:
        bulk.add(tx, orders, many(8), queue_id="airports")
        subscribe(orders.database, "airports", "cache", retry=ONCE)
    assert waiting(orders, "airports/search") == waiting(orders, "airports/cache") == 8


def test_a_queue_gets_no_first_subscription_and_a_subscription_does_not_go_while_files_wait(orders: Store) -> None:
    bulk.load(orders, many(8))
    with pytest.raises(EntriesWait, match="found 8 entries"):
        subscribe(orders.database, "orders", "search", retry=ONCE)
    orders.configure_queue(
        "airports", buckets=20, buckets_per_range=5, value="bytes", subscriptions=["search", "cache"]
    )
    _, reports = bulk.load(orders, many(8), queue_id="airports")
    with pytest.raises(EntriesWait, match="found 8 entries"):
        orders.unsubscribe("airports", "search")
    orders.unsubscribe("airports", "search", discard=True)
    assert len(drained(orders, "airports/cache")) == 8
    maintain(orders.database)
    assert not files(orders) & named(reports)


def test_a_first_load_in_files_is_its_subscriptions_alone(orders: Store) -> None:
    orders.configure_queue("airports", buckets=20, buckets_per_range=5, value="bytes", subscriptions=["search"])
    orders.subscribe("airports", "late")
    with orders.first_load("airports/late") as load:
        bulk.add(load, orders, many(9), queue_id="airports/late")  # type: ignore[arg-type]
    assert waiting(orders, "airports/late") == 9
    assert waiting(orders, "airports/search") == 0


def test_a_subscription_is_not_added_to_by_itself(orders: Store) -> None:
    orders.configure_queue("airports", buckets=20, buckets_per_range=5, value="bytes", subscriptions=["search"])
    with pytest.raises(InvalidArgument, match="found subscription"), orders.transaction(long=True) as tx:
        bulk.add(tx, orders, many(9), queue_id="airports/search")


def test_clean_up_deletes_no_file_that_somebody_needs(orders: Store) -> None:
    _, waits = bulk.load(orders, many(10))
    with orders.transaction(long=True) as tx:
        staged = bulk.add(tx, orders, many(10, start=10))
        written = bulk.write(orders, tx.id, many(10, start=20))
        maintain(orders.database)
        assert files(orders) == named(waits) | named(staged) | named(written)
    maintain(orders.database)
    assert files(orders) == named(waits) | named(staged)  # what was written and not staged counts for nothing
    assert orders.bulk_files() == sorted(files(orders))
    assert len(drained(orders)) == 20
    maintain(orders.database)
    assert not files(orders)


def test_files_of_a_late_attempt_go_until_the_folder_is_forgotten(orders: Store) -> None:
    number, _ = bulk.load(orders, many(10))
    drained(orders)
    assert vacuum_segments(orders.database, grace_seconds=0).files == 1
    queue = orders.queue("orders")
    write_segments(
        [bulk.batch(many(5), queue.buckets)],
        base=str(orders.database.segments),
        store_id=orders.id,
        transaction=number,
        name="zombie",
        buckets_per_range=5,
    )
    assert vacuum_segments(orders.database, grace_seconds=0).files == 1
    vacuum_segments(orders.database, grace_seconds=0, zombie_seconds=0.0)
    with orders.database.read() as work:
        assert queries.segments.folder_of(work, number) is None
    assert not list(Path(str(orders.database.segments)).rglob(str(number)))


def test_everything_that_counts_sees_entries_in_files(orders: Store) -> None:
    bulk.put(orders, ["key-1"], b"row")
    seq, _ = bulk.load(orders, many(10))
    assert waiting(orders) == 11
    prefix = "export_queue." if orders.database.dialect.name == "postgresql" else ""
    with orders.database.read() as work:
        lag = work.connection.exec_driver_sql(f"select sum(entries), sum(bytes) from {prefix}queue_lag").one()
        expected = sum(len(key) + 4 for key in many(10)) + len("key-1") + 3
        assert (int(lag[0]), int(lag[1])) == (11, expected)
        assert queries.monitoring.count_entries(work)[0][1] == 11
    assert sum(unit.bytes for unit in orders.backlog("orders")) == expected
    story = orders.why("orders", "key-1")
    assert [one.position.seq for one in story.queued][1:] == [seq]
    shown = orders.peek("orders", limit=20, values=True)
    assert len(shown) == 11
    assert [one.position for one in shown] == sorted(one.position for one in shown)
    assert sorted(one.value or b"" for one in shown) == [b"bulk"] * 10 + [b"row"]
    assert [one.position for one in orders.peek("orders", limit=4)] == [one.position for one in shown[:4]]
    assert [one.value_bytes for one in orders.peek("orders", key="key-1")] == [3, 4]
    with pytest.raises(InvalidArgument, match="expected an empty queue, found 11 entries"):
        orders.alter_queue("orders", buckets_per_range=10)


def test_a_commit_in_files_is_news_once(orders: Store) -> None:
    queue = orders.queue("orders")

    def seen(since: Sighting | None) -> Sighting:
        snapshot = take_snapshot(orders.database)
        with orders.database.read() as work:
            return look(work, queue, snapshot, since=since)

    bulk.load(orders, many(10))
    first = seen(None)
    assert first.has_news
    second = seen(first)
    assert not second.has_news
    bulk.load(orders, many(10))
    third = seen(second)
    assert third.has_news
    assert third.waiting == second.waiting


def test_a_sink_forgets_no_tombstone_that_an_entry_in_a_file_may_meet(orders: Store) -> None:
    seq, _ = bulk.load(orders, many(10))
    assert safe_floor(orders.database).floor < seq
    assert safe_floor(orders.database).held_by == "queued"
    drained(orders)
    assert safe_floor(orders.database).floor > seq


def test_a_missing_file_ends_the_drain_and_loses_nothing(orders: Store) -> None:
    _, (report,) = bulk.load(orders, many(10))
    path = Path(report.file)
    aside = path.with_suffix(".aside")
    path.rename(aside)
    with pytest.raises(SegmentLost, match=f"{path.name}: expected {report.bytes} bytes, found no file"):
        drained(orders)
    assert waiting(orders) == 10
    aside.rename(path)
    assert drained(orders) == many(10)


def test_a_lost_file_is_given_up_by_name_and_for_one_reader(orders: Store) -> None:
    orders.configure_queue("airports", buckets=20, buckets_per_range=5, value="bytes", subscriptions=READERS)
    _, (lost, whole) = bulk.load(orders, many(40), queue_id="airports", tasks=2)
    Path(lost.file).unlink()
    with pytest.raises(SegmentLost, match="give_up_file"):
        drained(orders, "airports/search", chunk_rows=3)
    with pytest.raises(InvalidArgument, match="no pending segment is in"):
        orders.dead_letters.give_up_file("airports/search", "/another")
    for remedy in (orders.dead_letters.give_up_file, orders.dead_letters.fall_back):
        with pytest.raises(HasSubscriptions, match="airports/cache, airports/search"):
            remedy("airports", lost.file)
    assert orders.dead_letters.give_up_file("airports/search", lost.file, who="me") == lost.entries
    assert len(drained(orders, "airports/search")) == whole.entries
    (record,) = orders.dead_letters.audit("airports/search")
    assert (record.act, record.who, record.letters) == ("give up", "me", lost.entries)
    assert lost.file in record.selection
    assert waiting(orders, "airports/cache") == 40


@pytest.mark.parametrize("told", [True, False], ids=["missing", "refused"])
def test_a_file_that_another_task_has_drained_and_clean_up_has_deleted_is_not_missed(
    orders: Store, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks look once what waits in their units, which they share."""
    if not told:  # an object store tells only those who may list it which objects are not there
        open_file = segment_files.open_file

        def opened(url: str, *, size: int) -> Any:
            try:
                return open_file(url, size=size)
            except SegmentLost as error:
                raise SegmentRefused(error.message) from error

        monkeypatch.setattr("export_queue.core.segments.verified_file.open_file", opened)
    of_bucket = {
        at: [key for key in map("k{}".format, range(300)) if bucket(key.encode(), 20) == at] for at in range(3)
    }
    bulk.load(orders, dict.fromkeys(of_bucket[1], b"bulk"))
    bulk.put(orders, of_bucket[0] + of_bucket[2], b"row")
    queue, snapshot = orders.queue("orders"), take_snapshot(orders.database)
    (lease,) = claim(orders.database, queue, queue.units()[:1], owner=Owner("job", "1"), lease_seconds=60)
    request = DrainRequest(queue_id="orders", sink_name="sink", drain_id="d", chunk_rows=4)

    def task(sink: MemorySink, *buckets: int) -> list[RangeReport]:
        parts = [Part(lease, Range(at, at + 1)) for at in buckets]
        with opened_exporter(load_exporter(None), ONCE) as exporter:
            return drain_ranges(orders.database, queue, parts, snapshot, sink, exporter, request, check=lambda: None)

    others: list[RangeReport] = []

    class Overtaken(MemorySink):
        def apply(self, operations: Operations) -> ApplyResult:
            if not others:
                others.extend(task(MemorySink(), 1))
                assert vacuum_segments(orders.database, grace_seconds=0).files == 1
            return super().apply(operations)

    reports = task(Overtaken(), 0, 2)
    assert [report.problem for report in (*others, *reports)] == [None] * 3
    assert waiting(orders) == 0


@pytest.mark.parametrize("damage", ["shorter", "changed"])
def test_a_damaged_file_ends_the_drain_and_loses_nothing(orders: Store, damage: str) -> None:
    values = {f"key-{i}": random.Random(i).randbytes(100) for i in range(400)}
    _, (report,) = bulk.load(orders, values)
    path = Path(report.file)
    whole = path.read_bytes()
    middle = len(whole) // 3
    path.write_bytes(whole[:-9] if damage == "shorter" else whole[:middle] + b"damaged!" + whole[middle + 8 :])
    found = f"expected {report.bytes} bytes" if damage == "shorter" else "expected checksum xxh3_128:"
    with pytest.raises(SegmentLost, match=f"{path.name}: {found}"):
        drained(orders, chunk_rows=20)
    left = waiting(orders)
    assert left > 0
    path.write_bytes(whole)
    assert drain(orders, "orders", MemorySink(f"{orders.database.segments} orders"), sink_name="sink").read == left
    assert waiting(orders) == 0


def test_a_read_that_fails_is_repeated_where_it_was(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    step = verified_file.VerifiedFile.table
    calls: list[int] = []

    def failing(self: Any, group: int) -> Any:
        calls.append(1)
        if len(calls) in (2, 7, 20):
            raise SegmentUnavailable("the network is down")
        return step(self, group)

    monkeypatch.setattr(writing, "GROUP_ROWS", 100)
    bulk.load(orders, many(3000), tasks=2)
    monkeypatch.setattr(verified_file.VerifiedFile, "table", failing)
    retry = Retry(attempts=500, seconds=60, first_pause=0.0001, longest_pause=0.001)
    sink = MemorySink()
    report = drain(orders, "orders", sink, sink_name="sink", retry=retry)
    assert report.read == 3000
    assert documents(sink) == many(3000)
    assert len(calls) > 30


@pytest.fixture
def number(orders: Store) -> Iterator[int]:
    with orders.transaction(long=True) as tx:
        yield tx.id


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"key": [b""], "bucket": [1], "value": [b""]}, "column key of key b'': expected 1 to 1024 bytes, found 0"),
        ({"key": [b"a", None], "bucket": [1, 1], "value": [b"", b""]}, "column key: expected no null"),
        ({"key": [b"b", b"a"], "bucket": [1, 1], "value": [b"", b""]}, "sorted by bucket and key"),
        ({"key": [b"a", b"a"], "bucket": [1, 1], "value": [b"", b""]}, "key b'a' comes more than once"),
        ({"key": [b"a"], "bucket": [1], "value": [b"12345"]}, "column value of key b'a': expected 0 to 4 bytes"),
        ({"key": [b"a"], "bucket": [1]}, "expected columns bucket, key and value, found key, bucket"),
    ],
)
def test_what_a_queue_does_not_take_is_named(orders: Store, number: int, entries: Any, message: str) -> None:
    with pytest.raises(EntryError, match=message):
        write_segments(
            [pa.RecordBatch.from_pydict(entries)],
            base=begin_load(orders.database, number),
            store_id=orders.id,
            transaction=number,
            name="00007-1",
            buckets_per_range=5,
            max_value_bytes=4,
        )


def test_of_a_key_that_comes_again_the_last_one_may_count(orders: Store) -> None:
    rows = [(b"a", b"1"), (b"a", b"2"), (b"a", b"3"), (b"b", b"4"), (b"b", b"5")]
    batches = [pa.RecordBatch.from_pydict({"bucket": [1], "key": [key], "value": [value]}) for key, value in rows]
    with orders.transaction(long=True) as tx:
        reports = write_segments(
            batches,
            base=begin_load(orders.database, tx.id),
            store_id=orders.id,
            transaction=tx.id,
            name="x",
            buckets_per_range=5,
            on_duplicate="keep_last",
        )
        stage_segments(orders.database, tx.id, orders.queue("orders"), reports)
    assert [(one.position.key, one.value) for one in orders.peek("orders", values=True)] == [(b"a", b"3"), (b"b", b"5")]


def test_a_store_without_a_place_for_files_says_what_it_needs(orders: Store, number: int) -> None:
    orders.database.segments = None
    with pytest.raises(InvalidArgument, match="no place for segments"):
        begin_load(orders.database, number)


@pytest.mark.parametrize("long", [False, True])
def test_an_arrow_table_is_added_by_the_queues_codecs(orders: Store, long: bool) -> None:
    orders.configure_queue("totals", buckets=20, buckets_per_range=5, key="int", value="json")
    with orders.transaction(long=long) as tx:
        numbers = tx.queue("totals")
        assert numbers.add_batch(pa.table({"key": [3, 1, 2], "value": [{"n": 3}, {"n": 1}, None]})) == 3
        assert tx.queue("orders").add_batch(pa.table({"key": ["b", "a"], "value": [b"2", b"1"]})) == 2
        if long:
            assert waiting(orders) == waiting(orders, "totals") == 0
    assert bool(files(orders)) == long
    assert drained(orders) == {"a": b"1", "b": b"2"}
    queue = orders.queue("totals")
    found = {queue.decode_key(one.position.key): one.value for one in orders.peek("totals", values=True)}
    assert found == {1: b'{"n":1}', 2: None, 3: b'{"n":3}'}


def test_of_a_key_in_two_tables_the_later_one_counts_and_in_one_it_is_an_error(orders: Store) -> None:
    twice = pa.table({"key": ["a", "a"], "value": [b"1", b"2"]})
    with orders.transaction(long=True) as tx:
        with pytest.raises(EntryError, match="key b'a' comes more than once"):
            tx.queue("orders").add_batch(twice)
        tx.queue("orders").add_batch(twice, on_duplicate="keep_last")
        tx.queue("orders").add_batch(pa.table({"key": ["a", "b"], "value": [b"3", None]}))
    assert drained(orders) == {"a": b"3"}
    assert waiting(orders) == 0


def test_a_table_without_its_columns_is_refused(orders: Store) -> None:
    with pytest.raises(EntryError, match="found no value"), orders.transaction(long=True) as tx:
        tx.queue("orders").add_batch(pa.table({"key": ["a"]}))


def test_a_queue_whose_keys_conflict_takes_no_files(orders: Store) -> None:
    orders.configure_queue("alone", buckets=20, buckets_per_range=5, value="bytes", exclusive=True)
    with pytest.raises(InvalidArgument, match="conflict key"), orders.transaction(long=True) as tx:
        bulk.add(tx, orders, many(3), queue_id="alone")
