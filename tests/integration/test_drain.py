"""Drains on both stores into the sinks: what is committed arrives, what is refused is set aside, counts reconcile."""

from __future__ import annotations

import os
import random
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

from export_queue import (
    AmbiguousRecord,
    ApplyResult,
    Capabilities,
    Delete,
    DrainReport,
    Entry,
    EntryRejected,
    ExporterError,
    InvalidArgument,
    MemorySink,
    Operations,
    Put,
    Range,
    Rejection,
    Sink,
    SinkBelongsToAnother,
    SinkBindingError,
    SinkRefused,
    SinkSpec,
    SinkUnavailable,
    Store,
    StoreUnavailable,
    TooManyDeadLetters,
    UnknownQueue,
    drain,
)
from export_queue.core.drain import DRAIN_RETRY, Progress, pipeline
from export_queue.core.locks import holders
from export_queue.core.store import Work

IMPATIENT = replace(DRAIN_RETRY, attempts=3, sleep=lambda seconds: None)


@dataclass(frozen=True)
class Target:
    """A sink under test, and how a reader of it sees the records of the queue ``orders``."""

    spec: SinkSpec
    read: Callable[[], dict[bytes, bytes]]


@pytest.fixture(params=["memory", "sql", pytest.param("redis", marks=pytest.mark.redis)])
def target(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    """One sink of each kind."""
    if request.param == "memory":
        name = uuid.uuid4().hex
        return Target(
            SinkSpec("memory", {"name": name}),
            lambda: {record: document for (_, record), document in MemorySink(name).records().items()},
        )
    if request.param == "sql":
        url = f"sqlite:///{tmp_path / 'copies.db'}"

        def read() -> dict[bytes, bytes]:
            engine = sa.create_engine(url, poolclass=sa.NullPool)
            with engine.connect() as connection:
                rows = connection.execute(sa.text("select * from orders_live")).all()
            return {str(row[0]).encode(): str(row[1]).encode() for row in rows}

        return Target(SinkSpec("sql", {"url": url}), read)
    server, client = request.getfixturevalue("redis_server"), request.getfixturevalue("redis_client")
    monkeypatch.setenv("XQ_TEST_REDIS", server.password)
    spec = SinkSpec("redis", {"host": server.host, "port": server.port}, {"password": "env:XQ_TEST_REDIS"})
    return Target(spec, lambda: {key.removeprefix(b"orders:"): client.get(key) for key in client.scan_iter("orders:*")})


@pytest.fixture
def orders(store: Store) -> Store:
    """A store with a small queue ``orders``."""
    store.configure_queue("orders", buckets=20, buckets_per_range=5)
    return store


def add(store: Store, values: dict[str, Any]) -> int:
    """Commit entries in one transaction; returns its id."""
    with store.transaction() as tx:
        for key, value in values.items():
            tx.queue("orders").add(key, value)
        return tx.id


def waiting(store: Store) -> int:
    return sum(unit.entries for unit in store.backlog("orders"))


def stored(store: Store, report: DrainReport) -> DrainReport:
    (found,) = store.reports(drain_id=report.drain_id)
    return DrainReport.from_dict(found)


class SinkInFront:
    """A sink in front of another: a test does something before or after each batch."""

    capabilities = Capabilities(batch_rows=100, batch_bytes=1 << 20)

    def __init__(
        self,
        *,
        before: Callable[[Operations], None] = lambda operations: None,
        after: Callable[[Operations], None] = lambda operations: None,
    ) -> None:
        self.inner = MemorySink()
        self._before, self._after = before, after

    def admit(self, *, queue_id: str, store_id: str, fence: int, shown: int = 0, readmit: bool = False) -> None:
        self.inner.admit(queue_id=queue_id, store_id=store_id, fence=fence, shown=shown, readmit=readmit)

    def apply(self, operations: Operations) -> ApplyResult:
        self._before(operations)
        result = self.inner.apply(operations)
        self._after(operations)
        return result

    def close(self) -> None: ...


class PickySink(SinkInFront):
    """Never takes a document that holds the word ``poison``."""

    def apply(self, operations: Operations) -> ApplyResult:
        bad = [i for i, document in enumerate(operations.documents) if b"poison" in (document or b"")]
        good = operations.take([i for i in range(len(operations)) if i not in set(bad)])
        result = self.inner.apply(good)
        rejected = tuple(Rejection(i, f"poison at {operations.ids[i].decode()}") for i in bad)
        return ApplyResult(result.written, result.stale, rejected)


# -- what is committed arrives ---------------------------------------------------------------------------------------


def test_every_committed_entry_arrives_and_nothing_stays(orders: Store, target: Target) -> None:
    add(orders, {"a": 1, "b": 1, "c": 1})
    last = add(orders, {"a": 2, "c": None})
    report = drain(orders, "orders", target.spec)
    assert target.read() == {b"a": b"2", b"b": b"1"}
    assert waiting(orders) == 0
    assert (report.read, report.acknowledged, report.dead, report.left) == (5, 5, 0, 0)
    assert (report.produced, report.written, report.collapsed) == (5, 3, 2)
    assert report.highest_seq == last
    assert report.ranges == (Range(0, 20),)
    assert stored(orders, report) == report
    assert orders.queue("orders").sink == target.spec.name


def test_an_empty_queue_drains_to_a_report_of_zeros(orders: Store, target: Target) -> None:
    report = drain(orders, "orders", target.spec)
    assert (report.read, report.produced, report.problem) == (0, 0, None)
    assert stored(orders, report) == report


def test_only_the_ranges_that_were_asked_for_are_drained(orders: Store) -> None:
    add(orders, {f"k{i}": i for i in range(200)})
    before = {unit.range: unit.entries for unit in orders.backlog("orders")}
    report = drain(orders, "orders", MemorySink(), ranges=[[5, 15]])
    assert {unit.range.to_json()[0] for unit in orders.backlog("orders")} == {0, 15}
    assert report.read == sum(entries for unit, entries in before.items() if 5 <= unit.first < 15)


def test_many_chunks_and_batches_lose_nothing(orders: Store) -> None:
    expected = {}
    for turn in range(4):
        values = {f"k{i}": [turn, "x" * (i % 50)] for i in range(300)}
        add(orders, values)
        expected |= values
    sink = SinkInFront()
    told: list[Progress] = []
    report = drain(orders, "orders", sink, on_progress=told.append, chunk_rows=37, chunk_bytes=1000)
    assert len(sink.inner.records()) == len(expected)
    assert (report.read, report.acknowledged, waiting(orders)) == (1200, 1200, 0)
    assert [step.acknowledged for step in told] == sorted(step.acknowledged for step in told)
    assert told[-1] == Progress(1200, 1200, 0)
    assert len(told) > 1200 / 37


def test_a_range_that_one_chunk_holds_is_read_once(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    read_entries = pipeline.read_entries

    def counted(*arguments: Any, **options: Any) -> Any:
        found = read_entries(*arguments, **options)
        reads.append(len(found))
        return found

    monkeypatch.setattr(pipeline, "read_entries", counted)
    add(orders, {f"k{i}": i for i in range(200)})
    sizes = [unit.entries for unit in orders.backlog("orders")]
    assert drain(orders, "orders", MemorySink()).acknowledged == 200
    assert reads == sizes


def test_a_range_that_is_done_is_free_while_the_next_chunk_takes_its_time(
    orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export_queue.core.locks.keeping.GROUP_SECONDS", 0.02)
    add(orders, {f"k{i}": i for i in range(200)})
    whole = {unit.range for unit in orders.backlog("orders")}
    chunks: list[Operations] = []

    def is_free(done: int) -> bool:
        with orders.database.read() as work:
            left = {holder.range for holder in holders(work, orders.queue("orders"), whole)}
        return len(whole - left) == done

    def before(operations: Operations) -> None:
        wait_until(lambda: is_free(len(chunks)), "a range that is done is still held")
        chunks.append(operations)

    assert drain(orders, "orders", SinkInFront(before=before)).acknowledged == 200
    assert len(chunks) == len(whole) == 4


ENTRIES_SIZE = b"select pg_relation_size('export_queue.xq_entry')"


@pytest.fixture
def untidy(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store on PostgreSQL that a drain leaves with entries to be vacuumed."""
    monkeypatch.setattr("export_queue.core.drain.one_drain.TIDY_AFTER", 100)
    with Store.open(postgres_url) as store:
        store.create()
        store.configure_queue("orders")
        add(store, {f"k{i}": i for i in range(200)})
        yield store


def test_a_drain_does_not_wait_for_the_vacuum_behind_it(
    untidy: Store, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever closes the store waits for it."""
    begun, go_on, dialect = threading.Event(), threading.Event(), untidy.database.dialect.server
    assert dialect is not None
    tidy_entries = dialect.tidy_entries

    def tidy(connection: Any) -> None:
        begun.set()
        assert go_on.wait(60)
        tidy_entries(connection)

    monkeypatch.setattr(dialect, "tidy_entries", tidy)
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as watcher:
        assert drain(untidy, "orders", MemorySink()).acknowledged == 200
        assert begun.wait(60)
        assert watcher.execute(ENTRIES_SIZE).fetchone() != (0,)
        go_on.set()
        untidy.close()
        assert watcher.execute(ENTRIES_SIZE).fetchone() == (0,)


def test_drains_that_end_together_do_not_wait_for_each_others_vacuum(untidy: Store, postgres_url: str) -> None:
    with psycopg.connect(postgres_url.replace("+psycopg", "")) as other:
        other.execute("lock table export_queue.xq_entry in share update exclusive mode")  # as a vacuum does
        other.execute("set idle_in_transaction_session_timeout = '30s'")
        assert drain(untidy, "orders", MemorySink()).acknowledged == 200
        untidy.close()
        assert other.execute(ENTRIES_SIZE).fetchone() != (0,)


def test_a_vacuum_that_fails_leaves_a_line_in_the_log(
    untidy: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(connection: Any) -> None:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(untidy.database.dialect.server, "tidy_entries", fail)
    with caplog.at_level("DEBUG", logger="export_queue"):
        assert drain(untidy, "orders", MemorySink()).acknowledged == 200
        untidy.close()
    assert "not reclaimed: the disk is full" in caplog.text


def test_an_exporter_by_import_path_turns_one_entry_into_many_operations(
    orders: Store, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inverted.py").write_text(
        "from export_queue.core.sinks import Delete, Put\n"
        "def export(entry):\n"
        "    if entry.value['old'] is not None:\n"
        "        yield Delete('orders', f\"{entry.value['old']}/{entry.key}\")\n"
        "    yield Put('orders', f\"{entry.value['new']}/{entry.key}\", b'x')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for old, new in [(None, 1), (1, 2), (2, 2)]:  # at old = new a put must win
        add(orders, {"ann": {"old": old, "new": new}})
    drain(orders, "orders", target.spec, exporter="inverted:export")
    assert target.read() == {b"2/ann": b"x"}


def test_writers_go_on_while_drains_run(orders: Store, target: Target) -> None:
    """I6, I7, I9: whatever interleaves, the sink ends at the last committed value of each key."""
    last: dict[str, tuple[int, int]] = {}
    guard = threading.Lock()
    errors: list[BaseException] = []

    def write(writer: int) -> None:
        generator = random.Random(writer)
        try:
            for turn in range(40):
                key = f"k{generator.randrange(25)}"
                with orders.transaction() as tx:
                    if turn % 3 == 0:
                        tx.table("t").get(key, "n")  # a reader: its id is older than its commit
                    tx.queue("orders").add(key, writer * 1000 + turn)
                    seq = tx.id
                with guard:
                    last[key] = max(last.get(key, (0, 0)), (seq, writer * 1000 + turn))
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for writer in writers:
        writer.start()
    read = 0
    while any(writer.is_alive() for writer in writers):
        read += drain(orders, "orders", target.spec).read
    for writer in writers:
        writer.join()
    assert not errors
    report = drain(orders, "orders", target.spec)
    assert target.read() == {key.encode(): str(value).encode() for key, (_, value) in last.items()}
    assert (read + report.read, waiting(orders)) == (120, 0)


def test_a_transaction_that_started_before_the_drain_and_commits_after_it_is_not_lost(orders: Store) -> None:
    sink = MemorySink()
    with orders.transaction(long=True) as tx:
        early = tx.id
        tx.queue("orders").add("late", "old")
        late = add(orders, {"late": "new", "other": 1})
        assert early < late
        assert drain(orders, "orders", sink).read == 2
    assert waiting(orders) == 1
    report = drain(orders, "orders", sink)
    assert (report.read, report.stale, waiting(orders)) == (1, 1, 0)
    assert sink.records()["orders", b"late"] == b'"new"'


def test_what_commits_into_a_chunk_between_its_reading_and_its_removal_stays(orders: Store) -> None:
    """I7: an older transaction commits between two entries that were read."""
    orders.configure_queue("one", buckets=1, buckets_per_range=1)
    late = orders.transaction(long=True)
    tx = late.__enter__()
    tx.queue("one").add("b", "late")
    with orders.transaction() as other:
        for key in ("a", "c"):
            other.queue("one").add(key, "early")

    def commit_the_older(operations: Operations) -> None:
        late.__exit__(None, None, None)

    sink = SinkInFront(after=commit_the_older)
    report = drain(orders, "one", sink, sink_name="s")
    assert report.acknowledged == 2
    assert [unit.entries for unit in orders.backlog("one")] == [1]
    drain(orders, "one", sink.inner, sink_name="s")
    assert set(sink.inner.records()) == {("one", b"a"), ("one", b"b"), ("one", b"c")}


def test_an_aborted_transaction_exports_nothing(orders: Store) -> None:
    with pytest.raises(ZeroDivisionError), orders.transaction() as tx:
        tx.queue("orders").add("a", 1)
        raise ZeroDivisionError
    assert drain(orders, "orders", MemorySink()).read == 0


# -- what is refused is set aside ------------------------------------------------------------------------------------


def test_a_rejected_entry_is_a_dead_letter_with_the_sinks_own_words_and_the_rest_flows(orders: Store) -> None:
    add(orders, {f"k{i}": i for i in range(50)})
    seq = add(orders, {"k7": "poison", "bad": "poison"})
    sink = PickySink()
    report = drain(orders, "orders", sink)
    assert (report.read, report.acknowledged, report.dead, report.left) == (52, 50, 2, 0)
    assert (report.produced, report.written, report.rejected) == (52, 50, 2)
    letters = orders.dead_letters.list("orders", values=True)
    assert {(letter.position.key, letter.position.seq, letter.reason) for letter in letters} == {
        (b"k7", seq, "poison at k7"),
        (b"bad", seq, "poison at bad"),
    }
    assert {letter.drain_id for letter in letters} == {report.drain_id}
    assert {letter.value for letter in letters} == {b'"poison"'}
    assert sink.inner.records()["orders", b"k7"] == b"7", "what had given way to the rejected entry is there"
    assert waiting(orders) == 0


def test_an_entry_that_the_exporter_refuses_is_a_dead_letter(orders: Store) -> None:
    def export(entry: Entry) -> Iterator[Put]:
        if entry.value == 3:
            raise KeyError("no such customer")
        yield Put("c", entry.key, entry.value)

    add(orders, {f"k{i}": i for i in range(10)})
    report = drain(orders, "orders", MemorySink(), exporter=export)
    (letter,) = orders.dead_letters.list("orders")
    assert (report.acknowledged, report.dead, report.produced) == (9, 1, 9)
    assert (letter.position.key, letter.error_class, letter.reason) == (b"k3", "KeyError", "'no such customer'")


def test_a_sink_of_the_users_that_raises_costs_only_the_entry_that_it_raises_at(orders: Store) -> None:
    def choke(operations: Operations) -> None:
        if any(document == b"13" for document in operations.documents):
            raise ValueError("thirteen")

    add(orders, {f"k{i}": i for i in range(40)})
    report = drain(orders, "orders", SinkInFront(before=choke))
    (letter,) = orders.dead_letters.list("orders")
    assert (report.acknowledged, report.dead) == (39, 1)
    assert (letter.position.key, letter.error_class, letter.reason) == (b"k13", "ValueError", "thirteen")


def test_more_refusals_than_max_dead_stop_the_drain_and_leave_the_rest_queued(orders: Store) -> None:
    add(orders, {f"k{i}": "poison" for i in range(100)})
    with pytest.raises(TooManyDeadLetters, match="max_dead=10"):
        drain(orders, "orders", PickySink(), max_dead=10, drain_id="t")
    dead = orders.dead_letters.count("orders")
    assert dead <= 10
    assert waiting(orders) + dead == 100
    (report,) = map(DrainReport.from_dict, orders.reports(drain_id="t"))
    report.check()
    assert report.dead == dead
    assert report.problem is not None
    assert report.problem.error_class == "TooManyDeadLetters"


def test_max_dead_counts_over_all_ranges_of_a_drain(orders: Store) -> None:
    add(orders, {f"k{i}": "poison" for i in range(100)})
    per_range = [unit.entries for unit in orders.backlog("orders")]
    assert max(per_range) < 60, "no range alone reaches the limit"
    sink = PickySink()
    with pytest.raises(TooManyDeadLetters):
        drain(orders, "orders", sink, max_dead=60)
    assert 0 < orders.dead_letters.count("orders") <= 60
    drain(orders, "orders", sink, max_dead=100)
    assert orders.dead_letters.count("orders") == 100


def test_on_error_fail_stops_at_the_first_refusal_and_buries_nothing(orders: Store) -> None:
    add(orders, {"a": 1, "b": "poison"})
    with pytest.raises(EntryRejected, match="b'b' of orders .*poison at b"):
        drain(orders, "orders", PickySink(), on_error="fail", drain_id="t")
    assert orders.dead_letters.count("orders") == 0
    (report,) = map(DrainReport.from_dict, orders.reports(drain_id="t"))
    report.check()
    assert report.left == waiting(orders) == 2 - report.acknowledged


def test_two_documents_of_one_transaction_for_one_record_name_both_keys(orders: Store) -> None:
    orders.configure_queue("one", buckets=1, buckets_per_range=1)
    with orders.transaction() as tx:
        for key in ("a", "b"):
            tx.queue("one").add(key, key)
    with pytest.raises(AmbiguousRecord, match=r"b'a'.*b'b'"):
        drain(orders, "one", MemorySink(), exporter=lambda entry: [Put("c", "same", entry.value)])
    assert [unit.entries for unit in orders.backlog("one")] == [2]


def test_values_are_not_in_the_messages_of_errors(orders: Store) -> None:
    def export(entry: Entry) -> list[Put]:
        raise RuntimeError("refused")

    add(orders, {"a": "a private value"})
    with pytest.raises(EntryRejected) as caught:
        drain(orders, "orders", MemorySink(), exporter=export, on_error="fail")
    assert "private" not in str(caught.value)
    assert "private" not in repr(caught.value.__notes__)


# -- sinks that are away ---------------------------------------------------------------------------------------------


def test_a_sink_that_is_away_for_a_moment_delays_the_drain_and_buries_nothing(orders: Store) -> None:
    trouble: list[Exception] = [SinkUnavailable("busy"), ConnectionResetError("gone")]

    def fail(operations: Operations) -> None:
        if trouble:
            raise trouble.pop()

    add(orders, {f"k{i}": i for i in range(20)})
    report = drain(orders, "orders", SinkInFront(before=fail), retry=IMPATIENT)
    assert (report.acknowledged, report.dead) == (20, 0)


def test_a_sink_that_stays_away_fails_the_drain_and_everything_stays_queued(orders: Store) -> None:
    def fail(operations: Operations) -> None:
        raise SinkUnavailable("down")

    add(orders, {f"k{i}": i for i in range(20)})
    with pytest.raises(SinkUnavailable):
        drain(orders, "orders", SinkInFront(before=fail), retry=IMPATIENT, drain_id="t")
    (report,) = map(DrainReport.from_dict, orders.reports(drain_id="t"))
    report.check()
    assert (report.acknowledged, report.dead) == (0, 0)
    assert waiting(orders) == 20
    assert report.oldest_left_seconds > 0
    assert report.problem is not None
    assert report.problem.transient


def test_what_was_acknowledged_before_a_failure_stays_removed(orders: Store) -> None:
    batches: list[int] = []

    def fail_late(operations: Operations) -> None:
        batches.append(len(operations))
        if len(batches) > 3:
            raise SinkRefused("disk full")

    add(orders, {f"k{i}": i for i in range(300)})
    sink = SinkInFront(before=fail_late)
    with pytest.raises(SinkRefused):
        drain(orders, "orders", sink, drain_id="t", chunk_rows=37, chunk_bytes=1000)
    (report,) = map(DrainReport.from_dict, orders.reports(drain_id="t"))
    report.check()
    assert report.acknowledged == sum(batches[:3])
    assert waiting(orders) == 300 - report.acknowledged
    assert report.left == batches[3]


def test_a_removal_whose_commit_was_in_doubt_is_repeated_without_harm(orders: Store) -> None:
    """The store's connection breaks after a commit has taken effect: nothing is counted or buried twice."""
    add(orders, {"a": 1, "b": "poison"})
    begin, broken = orders.database.begin, []

    @contextmanager
    def begin_and_break() -> Iterator[Work]:
        buried = orders.dead_letters.count("orders")
        with begin() as work:
            yield work
        if orders.dead_letters.count("orders") > buried and not broken:
            broken.append(1)
            raise StoreUnavailable("connection lost")

    orders.database.begin = begin_and_break  # type: ignore[method-assign]
    report = drain(orders, "orders", PickySink(), retry=IMPATIENT)
    assert broken
    assert (report.read, report.acknowledged, report.dead) == (2, 1, 1)
    assert (waiting(orders), orders.dead_letters.count("orders")) == (0, 1)


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.full("more seeds")) for n in range(3, 6))]
)
def test_whatever_fails_counts_reconcile_and_in_the_end_every_entry_is_in_the_sink_or_dead(
    orders: Store, seed: int
) -> None:
    """I6, I12, I13 under random trouble; each drain checks its own counts."""
    generator = random.Random(seed)
    last: dict[str, str] = {}
    total = 0
    for turn in range(8):
        values = {f"k{generator.randrange(60)}": f"{turn}" for _ in range(40)}
        for key in generator.sample(sorted(values), 3):
            values[key] = "poison"  # dead, unless something newer of its key is in its chunk
        add(orders, values)
        total += len(values)
        last |= {key: value for key, value in values.items() if value != "poison"}

    def trouble(operations: Operations) -> None:
        if generator.random() < 0.2:
            raise generator.choice([SinkUnavailable("down"), SinkRefused("full"), ConnectionResetError("gone")])

    class Troubled(PickySink):
        def apply(self, operations: Operations) -> ApplyResult:
            trouble(operations)
            result = super().apply(operations)
            trouble(operations)
            return result

    sink = Troubled()
    retry = replace(DRAIN_RETRY, attempts=2, sleep=lambda seconds: None)
    reports: list[DrainReport] = []
    for attempt in range(200):
        if not waiting(orders):
            break
        with suppress(SinkUnavailable, SinkRefused, ConnectionError):
            drain(orders, "orders", sink, retry=retry, drain_id=f"{attempt}", chunk_rows=37, chunk_bytes=1000)
        reports += map(DrainReport.from_dict, orders.reports(drain_id=f"{attempt}"))
    assert waiting(orders) == 0
    for report in reports:
        report.check()
    dead = sum(report.dead for report in reports)
    assert 0 < dead == orders.dead_letters.count("orders")
    assert sum(report.acknowledged for report in reports) + dead == total
    assert sink.inner.records() == {("orders", key.encode()): f'"{value}"'.encode() for key, value in last.items()}


@pytest.mark.redis
def test_a_server_that_restarts_in_the_middle_delays_the_drain(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with RedisServer({"appendonly": "yes"}) as server:
        monkeypatch.setenv("XQ_TEST_REDIS", server.password)
        spec = SinkSpec("redis", {"host": server.host, "port": server.port}, {"password": "env:XQ_TEST_REDIS"})
        inner = spec.open()
        restarts: list[int] = []

        class Restarting(SinkInFront):
            capabilities = Capabilities(batch_rows=10, batch_bytes=1 << 20)

            def apply(self, operations: Operations) -> ApplyResult:
                if not restarts:
                    restarts.append(os.getpid())
                    server.stop()
                return inner.apply(operations)

        sink = Restarting()
        sink.inner = inner  # type: ignore[assignment]
        retry = replace(DRAIN_RETRY, attempts=5, sleep=lambda seconds: server.start())
        add(orders, {f"k{i}": i for i in range(100)})
        report = drain(orders, "orders", sink, retry=retry)
        assert (report.acknowledged, report.dead, waiting(orders)) == (100, 0, 0)
        inner.close()


@pytest.mark.redis
def test_a_dead_server_fails_the_drain_and_the_next_one_brings_everything(
    orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RedisServer() as server:
        monkeypatch.setenv("XQ_TEST_REDIS", server.password)
        spec = SinkSpec("redis", {"host": server.host, "port": server.port}, {"password": "env:XQ_TEST_REDIS"})
        add(orders, {f"k{i}": i for i in range(100)})
        server.stop()
        with pytest.raises(SinkUnavailable):
            drain(orders, "orders", spec, retry=IMPATIENT)
        assert waiting(orders) == 100
        server.start()
        assert drain(orders, "orders", spec).acknowledged == 100


# -- bad input loses nothing -----------------------------------------------------------------------------------------


def _drain_unknown_queue(store: Store) -> None:
    drain(store, "oders", MemorySink(), drain_id="t")


def _drain_broken_range(store: Store) -> None:
    drain(store, "orders", MemorySink(), ranges=[[0, 3]], drain_id="t")


def _drain_unknown_exporter(store: Store) -> None:
    drain(store, "orders", MemorySink(), exporter="no_such_module:export", drain_id="t")


def _drain_unreachable_sink(store: Store) -> None:
    spec = SinkSpec("redis", {"host": "127.0.0.1", "port": 1})
    drain(store, "orders", spec, retry=IMPATIENT, drain_id="t")


def _drain_another_sink(store: Store) -> None:
    drain(store, "orders", MemorySink(), sink_name="first")
    add(store, {"b": 2})
    drain(store, "orders", MemorySink(), sink_name="second", drain_id="t")


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (_drain_unknown_queue, UnknownQueue, "no queue 'oders'; it has: orders"),
        (_drain_broken_range, InvalidArgument, "whole units of 5 buckets"),
        (_drain_unknown_exporter, ExporterError, "no_such_module"),
        (_drain_unreachable_sink, SinkUnavailable, "127.0.0.1:1"),
        (_drain_another_sink, SinkBindingError, "drains into sink 'first'"),
    ],
)
def test_bad_input_is_named_and_reported_and_loses_nothing(
    orders: Store, act: Callable[[Store], None], error: type[Exception], message: str
) -> None:
    add(orders, {"a": 1})
    with pytest.raises(error, match=message):
        act(orders)
    assert waiting(orders) == 1
    (report,) = map(DrainReport.from_dict, orders.reports(drain_id="t"))
    report.check()
    assert report.problem is not None
    assert report.problem.error_class == error.__name__


@pytest.mark.parametrize(
    "wrong", [{"if_locked": "maybe"}, {"lock_timeout": -1}, {"on_error": "ignore"}, {"max_dead": -1}]
)
def test_options_are_checked_before_anything_is_done(orders: Store, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        drain(orders, "orders", MemorySink(), **wrong)
    assert orders.queue("orders").sink is None


def test_a_sink_that_another_store_feeds_is_refused_before_anything_is_claimed(orders: Store, tmp_path: Path) -> None:
    sink = MemorySink()
    with Store.open(f"sqlite:///{tmp_path / 'other.db'}") as other:
        other.create()
        other.configure_queue("orders")
        drain(other, "orders", sink)
    add(orders, {"a": 1})
    with pytest.raises(SinkBelongsToAnother):
        drain(orders, "orders", sink)
    assert waiting(orders) == 1


def test_an_unreachable_sink_does_not_bind_the_queue(orders: Store) -> None:
    add(orders, {"a": 1})
    with pytest.raises(SinkUnavailable):
        drain(orders, "orders", SinkSpec("redis", {"host": "127.0.0.1", "port": 1}), retry=IMPATIENT)
    assert orders.queue("orders").sink is None


def test_a_sink_that_was_given_open_stays_open(orders: Store) -> None:
    closed: list[str] = []

    class Closing(SinkInFront):
        def close(self) -> None:
            closed.append("closed")

    sink: Sink = Closing()
    drain(orders, "orders", sink)
    assert closed == []


def test_deletes_and_puts_of_one_transaction_reach_the_sink_as_the_put(orders: Store) -> None:
    sink = MemorySink()

    def export(entry: Entry) -> list[Put | Delete]:
        return [Delete("c", "r"), Put("c", "r", "here"), Delete("c", "r")]

    add(orders, {"a": 1})
    drain(orders, "orders", sink, exporter=export)
    assert sink.records() == {("c", b"r"): b"here"}
