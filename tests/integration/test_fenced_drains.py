"""Drains into sinks with the guard ``fence``: their conditions, take-overs, and that no record goes back."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import redis
import sqlalchemy as sa
from tests.integration.test_drain_kills import DrainProcess, add, started, waiting
from tests.support.fenced_memory import FencedMemory

from export_queue import (
    ApplyResult,
    Claim,
    ConfigurationError,
    DrainReport,
    EntriesNotSettled,
    EntryRejected,
    LeaseLost,
    LockNotAvailable,
    MemorySink,
    Operations,
    Owner,
    RedisSink,
    SinkSpec,
    SinkUnavailable,
    SqlSink,
    Store,
    drain,
)
from export_queue.core.drain import DRAIN_RETRY, DrainRequest, LocalEngine, load_exporter, run_drain
from export_queue.core.locks import claim, revoke
from export_queue.core.sinks import ClaimedSink
from export_queue.core.testing.conformance.histories import Record
from export_queue.testing import FencedConformance

pytestmark = pytest.mark.one_store("it is the sinks that compare fences")

IMPATIENT = replace(DRAIN_RETRY, attempts=3, sleep=lambda seconds: None)


class TestFencedMemory(FencedConformance):
    """The suite itself, on the shortest sink that there is."""

    shared = False

    @pytest.fixture(autouse=True)
    def _target(self) -> None:
        self.sink = FencedMemory()

    def make_sink(self) -> FencedMemory:
        return self.sink

    def read_all(self) -> Mapping[Record, bytes]:
        with self.sink._lock:
            return dict(self.sink.documents)

    test_a_sink_refuses_another_store_and_a_store_that_went_back = None


@pytest.fixture
def orders(store: Store) -> Store:
    store.configure_queue("orders", buckets=20, buckets_per_range=5)
    return store


@pytest.fixture
def one_unit(store: Store) -> Store:
    store.configure_queue("orders", buckets=5, buckets_per_range=5)
    return store


def fenced_drain(store: Store, sink: Any, **options: Any) -> DrainReport:
    return drain(store, "orders", sink, **{"on_error": "fail", "retry": IMPATIENT, **options})


def drain_with(
    store: Store, sink: Any, *, sleep: Callable[[float], None], chunk_rows: int = 1000, **options: Any
) -> DrainReport:
    """Drain, and do something else where a drain would sleep."""
    request = DrainRequest(
        queue_id="orders", sink_name="s", on_error="fail", chunk_rows=chunk_rows, retry=IMPATIENT, **options
    )
    engine = LocalEngine(store.database, sink, load_exporter(None), request)
    return run_drain(store, request, nullcontext(engine), sleep=sleep)


def never(seconds: float) -> None:
    raise AssertionError("the drain waits")


# -- what is committed arrives ---------------------------------------------------------------------------------------


@pytest.fixture(params=["sql", pytest.param("redis", marks=pytest.mark.redis)])
def copies(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SinkSpec:
    """A sink that processes share."""
    if request.param == "sql":
        return SinkSpec("sql", {"url": f"sqlite:///{tmp_path / 'copies.db'}", "guard": "fence"}, name="copies")
    server = request.getfixturevalue("redis_server")
    request.getfixturevalue("redis_client")  # empties it
    monkeypatch.setenv("XQ_TEST_REDIS", server.password)
    options = {"host": server.host, "port": server.port, "guard": "fence"}
    return SinkSpec("redis", options, {"password": "env:XQ_TEST_REDIS"}, name="copies")


def read(copies: SinkSpec) -> dict[str, str]:
    if copies.kind == "redis":
        with redis.Redis(
            copies.options["host"], copies.options["port"], password=os.environ["XQ_TEST_REDIS"], decode_responses=True
        ) as client:
            return {key.removeprefix("orders:"): str(client.get(key)) for key in client.scan_iter("orders:*")}
    engine = sa.create_engine(copies.options["url"], poolclass=sa.NullPool)
    with engine.connect() as connection:
        if not sa.inspect(connection).has_table("orders"):
            return {}
        return {row[0]: row[1] for row in connection.execute(sa.text("select * from orders"))}


def test_every_committed_entry_arrives_and_nothing_stays(orders: Store, copies: SinkSpec) -> None:
    add(orders, {f"k{i}": 1 for i in range(200)})
    add(orders, {"k1": 2, "k2": None, "k3": 2})
    report = fenced_drain(orders, copies)
    assert (report.read, report.acknowledged, report.written, report.collapsed, report.stale) == (203, 203, 200, 3, 0)
    assert read(copies) == {f"k{i}": "1" for i in range(200) if i != 2} | {"k1": "2", "k3": "2"}
    assert waiting(orders) == 0
    assert report.skipped == ()
    add(orders, {"k3": None, "k2": 5})
    assert fenced_drain(orders, copies).written == 2
    assert len(read(copies)) == 199
    assert "k3" not in read(copies)


def test_an_empty_queue_needs_no_claim(orders: Store) -> None:
    sink = FencedMemory()
    assert fenced_drain(orders, sink).read == 0
    assert not sink.fences


def test_each_unit_is_claimed_under_the_fence_of_its_lease(orders: Store) -> None:
    add(orders, {f"k{i}": 1 for i in range(100)})
    sink = FencedMemory()
    fenced_drain(orders, sink)
    first = dict(sink.fences)
    assert sorted(first) == ["orders/1/0", "orders/1/10", "orders/1/15", "orders/1/5"]
    add(orders, {f"k{i}": 2 for i in range(100)})
    fenced_drain(orders, sink)
    assert all(sink.fences[unit] > fence for unit, fence in first.items())


def test_what_is_committed_while_units_are_claimed_is_drained_with_them(one_unit: Store) -> None:
    """The snapshot comes after the claim: until then an older drain could have brought newer entries."""
    add(one_unit, {"a": 1})
    sink = FencedMemory(on_claim=lambda claims: add(one_unit, {"a": 2}))
    assert fenced_drain(one_unit, sink).read == 2
    assert sink.records() == {"a": b"2"}


# -- only what is settled --------------------------------------------------------------------------------------------


def test_nothing_is_taken_behind_a_transaction_in_progress(one_unit: Store) -> None:
    add(one_unit, {"settled": 1})
    with one_unit.transaction() as older:
        older.queue("orders").add("a", "old")
        began = older.id
        newer = add(one_unit, {"a": "new"})
        assert began < newer
        sink = FencedMemory()
        with pytest.raises(EntriesNotSettled, match=rf"orders \[0, 5\).*{began} \(short") as caught:
            fenced_drain(one_unit, sink, lock_timeout=0, drain_id="early")
        assert caught.value.transient
        assert "lock_timeout" in caught.value.hint
        assert (waiting(one_unit), sink.records()) == (1, {"settled": b"1"})
        (early,) = map(DrainReport.from_dict, one_unit.reports(drain_id="early"))
        assert (early.acknowledged, early.ranges) == (1, ()), "a range is done when all of it has arrived"
    fenced_drain(one_unit, sink, lock_timeout=0)
    assert sink.records() == {"settled": b"1", "a": b'"new"'}, "the older transaction came later, and undid the newer"
    assert waiting(one_unit) == 0


def test_a_drain_waits_until_all_that_was_committed_before_it_is_settled(one_unit: Store) -> None:
    sink = FencedMemory()
    add(one_unit, {"settled": 1})
    older = one_unit.transaction()
    with older as tx:
        tx.queue("orders").add("a", "old")
        assert tx.id
        add(one_unit, {"a": "new"})
        slept: list[float] = []

        def finish(seconds: float) -> None:
            slept.append(seconds)
            assert sink.records() == {"settled": b"1"}, "what is settled does not wait"
            if len(slept) == 2:
                leave.set()
                done.wait(30)

        leave, done = threading.Event(), threading.Event()
        reports: list[DrainReport] = []
        thread = threading.Thread(target=lambda: reports.append(drain_with(one_unit, sink, sleep=finish)))
        thread.start()
        assert leave.wait(30)
    done.set()
    thread.join(30)
    (report,) = reports
    assert (report.read, report.acknowledged, len(slept)) == (3, 3, 2)
    assert sink.records() == {"settled": b"1", "a": b'"new"'}
    assert [str(part) for part in report.ranges] == ["[0, 5)"]


def test_a_transaction_that_began_later_holds_nothing_back(one_unit: Store) -> None:
    add(one_unit, {"a": 1})
    with one_unit.transaction() as later:
        later.queue("orders").add("b", 1)
        assert later.id
        report = drain_with(one_unit, FencedMemory(), sleep=never)
    assert report.read == 1


def test_a_drain_that_waited_too_long_names_no_unit_that_it_skipped(orders: Store) -> None:
    keys = [f"k{i}" for i in range(100)]
    add(orders, dict.fromkeys(keys, 1))
    queue = orders.queue("orders")
    claim(orders.database, queue, queue.units()[1:2], owner=Owner("somebody", "1"), lease_seconds=60)
    with orders.transaction() as older:
        older.queue("orders").add("older", 1)
        assert older.id
        add(orders, dict.fromkeys(keys, 2))
        with pytest.raises(EntriesNotSettled, match=r"orders \[0, 5\) \[10, 20\) must wait"):
            fenced_drain(orders, FencedMemory(), lock_timeout=0, if_locked="skip")


def test_a_drain_that_skips_what_others_hold_still_waits_for_what_is_not_settled(orders: Store) -> None:
    add(orders, {f"k{i}": 1 for i in range(100)})
    queue = orders.queue("orders")
    held = queue.units()[1]
    claim(orders.database, queue, [held], owner=Owner("somebody", "1"), lease_seconds=60)
    report = drain_with(orders, FencedMemory(), sleep=never, if_locked="skip")
    assert report.skipped == (held,)
    with orders.transaction() as older:
        older.queue("orders").add("z", 1)
        assert older.id
        add(orders, {f"k{i}": 2 for i in range(100)})
        with pytest.raises(EntriesNotSettled):
            drain_with(orders, FencedMemory(), sleep=never, if_locked="skip", lock_timeout=0)


def test_a_unit_that_others_hold_is_named_as_such(orders: Store) -> None:
    add(orders, {"a": 1})
    queue = orders.queue("orders")
    claim(orders.database, queue, queue.units(), owner=Owner("somebody", "1"), lease_seconds=60)
    with pytest.raises(LockNotAvailable, match="by somebody"):
        fenced_drain(orders, FencedMemory(), lock_timeout=0)


# -- a batch never cuts a key ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_rows", [1, 2, 3, 7, 25])
def test_all_entries_of_a_key_are_in_one_chunk(one_unit: Store, chunk_rows: int) -> None:
    """Each key is sent once, and so at its newest, whatever the size of chunks."""
    counts = {"a": 1, "b": 9, "c": 1, "d": 2, "e": 17, "f": 1, "g": 3}
    for turn in range(17):
        add(one_unit, {key: [turn, "x" * 50] for key, count in counts.items() if turn < count})
    sink = FencedMemory()
    report = drain_with(one_unit, sink, sleep=never, chunk_rows=chunk_rows)
    assert (report.read, report.acknowledged, waiting(one_unit)) == (34, 34, 0)
    sent = [record for batch in sink.batches for record in batch.ids]
    assert sorted(sent) == [key.encode() for key in sorted(counts)]
    assert {key: orjson.loads(document)[0] + 1 for key, document in sink.records().items()} == counts
    assert len(sink.batches) > 1


def test_chunks_that_are_cut_by_bytes_cut_no_key_either(one_unit: Store) -> None:
    for turn in range(8):
        add(one_unit, {key: [turn, "x" * 60] for key in "abcdef"})
    sink = FencedMemory()
    assert fenced_drain(one_unit, sink, chunk_rows=100, chunk_bytes=300).read == 48
    assert sorted(record for batch in sink.batches for record in batch.ids) == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert len(sink.batches) == 6


# -- conditions ------------------------------------------------------------------------------------------------------


def test_a_drain_that_would_set_entries_aside_is_refused_before_it_does_anything(orders: Store) -> None:
    add(orders, {"a": 1})
    sink = FencedMemory()
    with pytest.raises(ConfigurationError, match="needs on_error='fail', found 'dead_letter'") as caught:
        drain(orders, "orders", sink)
    assert "guard='seq'" in caught.value.hint
    assert (sink.fences, waiting(orders)) == ({}, 1)


def test_a_queue_with_dead_letters_is_refused_with_the_commands(orders: Store) -> None:
    add(orders, {"a": 1})

    def poison(entry: Any) -> Any:
        raise ValueError("poison")

    drain(orders, "orders", MemorySink(), sink_name="s", exporter=poison)
    add(orders, {"b": 1})
    sink = FencedMemory()
    with pytest.raises(ConfigurationError, match="'orders' has 1 dead letters") as caught:
        fenced_drain(orders, sink, sink_name="s")
    assert "export-queue dead drop orders" in caught.value.hint
    assert not sink.documents
    orders.dead_letters.drop("orders", who="test")
    assert fenced_drain(orders, sink, sink_name="s").read == 1


def test_an_entry_that_is_rejected_stops_the_drain_and_stays(one_unit: Store) -> None:
    add(one_unit, {"a": 1, "b": 2})

    def poison(entry: Any) -> Any:
        raise ValueError("poison")

    with pytest.raises(EntryRejected, match="poison"):
        fenced_drain(one_unit, FencedMemory(), exporter=poison)
    assert waiting(one_unit) == 2
    assert one_unit.dead_letters.list("orders") == []


# -- drains that die, sleep or are overtaken -------------------------------------------------------------------------


def test_an_overtaken_drain_is_shut_out_by_the_sink_itself(one_unit: Store) -> None:
    """It has just looked at its lease; then a younger attempt drains all, and newer entries too."""
    add(one_unit, {f"k{i}": "old" for i in range(50)})
    sink = FencedMemory()
    states: list[dict[str, bytes]] = []

    def overtake(operations: Operations) -> None:
        sink._before = lambda operations: None
        add(one_unit, {f"k{i}": "new" for i in range(50)} | {"k0": None})
        report = fenced_drain(one_unit, sink, sink_name="s", owner=Owner("dag/run/task", "2"))
        assert report.acknowledged == 100
        states.append(sink.records())

    sink._before = overtake
    with pytest.raises(LeaseLost, match="taken over"):
        fenced_drain(one_unit, sink, sink_name="s", owner=Owner("dag/run/task", "1"), drain_id="older")
    assert [sink.records()] == states
    assert "k0" not in sink.records()
    (left,) = map(DrainReport.from_dict, one_unit.reports(drain_id="older"))
    assert (left.acknowledged, left.left) == (0, 50)


def test_a_drain_that_was_overtaken_before_it_claimed_in_the_sink_does_nothing(one_unit: Store) -> None:
    add(one_unit, {"a": "old"})
    sink = FencedMemory()

    def overtake(claims: Any) -> None:
        sink._on_claim = lambda claims: None
        fenced_drain(one_unit, sink, sink_name="s", owner=Owner("dag/run/task", "2"))
        add(one_unit, {"a": "new"})

    sink._on_claim = overtake
    with pytest.raises(LeaseLost, match="taken over"):
        fenced_drain(one_unit, sink, sink_name="s", owner=Owner("dag/run/task", "1"))
    assert sink.records() == {"a": b'"old"'}
    assert waiting(one_unit) == 1


def test_a_batch_whose_answer_was_lost_is_applied_again_and_harmless(one_unit: Store) -> None:
    add(one_unit, {"a": 1, "b": 1})
    add(one_unit, {"a": None})
    lost = iter([True, True, False])

    def lose(operations: Operations) -> None:
        if next(lost):
            raise SinkUnavailable("the answer was lost")

    sink = FencedMemory(after=lose)
    report = fenced_drain(one_unit, sink)
    assert (report.written, report.stale, len(sink.batches)) == (2, 0, 3)
    assert sink.records() == {"b": b"1"}


def test_a_drain_that_failed_between_two_chunks_is_repeated_without_a_step_back(one_unit: Store) -> None:
    """Its first chunks are applied, and not all of them removed; every record goes on from its newest."""
    for turn in range(4):
        add(one_unit, {f"k{i}": turn for i in range(10)})
    seen: dict[str, list[int]] = {}

    def look(operations: Operations) -> None:
        for key, document in sink.records().items():
            seen.setdefault(key, []).append(int(document))

    def fail(operations: Operations) -> None:
        look(operations)
        if len(sink.batches) == 3:
            revoke(one_unit.database, "dag/run/task")

    sink = FencedMemory(after=fail)
    with pytest.raises(LeaseLost):
        drain_with(one_unit, sink, sleep=never, chunk_rows=6, owner=Owner("dag/run/task", "1"))
    assert waiting(one_unit) > 0
    sink._after = look
    add(one_unit, {f"k{i}": 4 for i in range(10)})
    drain_with(one_unit, sink, sleep=never, chunk_rows=6)
    assert set(sink.records().values()) == {b"4"}
    assert all(values == sorted(values) for values in seen.values())


class FencedDrainProcess(DrainProcess):
    """A drain in a process of its own that stops at a gate in front of, or behind, the sink."""

    @staticmethod
    def _run(pipe: Any, url: str, copies: SinkSpec, gated: bool, applies_first: bool, options: dict[str, Any]) -> None:
        def reach() -> None:
            if gated:
                pipe.send("at the gate")
                pipe.recv()

        with Store.open(url) as mine:
            inner = copies.open()
            assert isinstance(inner, SqlSink | RedisSink)
            under = inner.under

            def gate(claim: Claim) -> ClaimedSink:
                def write(operations: Operations) -> ApplyResult:
                    if not applies_first:
                        reach()
                    result = under(claim).apply(operations)
                    if applies_first:
                        reach()
                    return result

                return ClaimedSink(inner, write)

            inner.under = gate  # type: ignore[method-assign]
            try:
                report = drain(mine, "orders", inner, sink_name=copies.name, on_error="fail", **options)
                pipe.send(report.to_dict())
            except Exception as error:
                pipe.send(type(error).__name__)


@pytest.fixture
def drain_process(store_url: str, copies: SinkSpec) -> Iterator[Callable[..., DrainProcess]]:
    yield from started(FencedDrainProcess, store_url, copies)


@pytest.mark.parametrize(
    "applies_first",
    [
        pytest.param(False, id="before-the-sink", marks=pytest.mark.full("a kill a step later runs anyway")),
        pytest.param(True, id="between-sink-and-removal"),
    ],
)
def test_a_killed_drain_is_finished_by_the_next_one(
    orders: Store, copies: SinkSpec, drain_process: Callable[..., DrainProcess], applies_first: bool
) -> None:
    add(orders, {f"k{i}": i for i in range(100)})
    dying = drain_process(applies_first=applies_first, lease_seconds=3)
    dying.wait_at_gate()
    dying.kill()
    assert waiting(orders) == 100
    add(orders, {f"k{i}": None for i in range(0, 100, 2)})
    report = fenced_drain(orders, copies, lock_timeout=30)
    assert (report.acknowledged, report.stale, waiting(orders)) == (150, 0, 0)
    assert read(copies) == {f"k{i}": str(i) for i in range(1, 100, 2)}


def test_a_drain_that_slept_past_its_lease_writes_nothing_when_it_wakes(
    orders: Store, copies: SinkSpec, drain_process: Callable[..., DrainProcess]
) -> None:
    add(orders, {f"k{i}": "old" for i in range(100)})
    sleeping = drain_process(applies_first=False, lease_seconds=3, drain_id="sleeping")
    sleeping.wait_at_gate()
    sleeping.signal(signal.SIGSTOP)
    add(orders, {f"k{i}": "new" if i % 2 else None for i in range(100)})
    assert fenced_drain(orders, copies, lock_timeout=30).acknowledged == 200
    sleeping.go_on()
    sleeping.signal(signal.SIGCONT)
    assert sleeping.outcome() == "LeaseLost"
    assert read(copies) == {f"k{i}": '"new"' for i in range(1, 100, 2)}
    (report,) = map(DrainReport.from_dict, orders.reports(drain_id="sleeping"))
    assert report.acknowledged == 0


def test_two_drains_at_once_share_the_work_and_both_end_green(
    orders: Store, copies: SinkSpec, drain_process: Callable[..., DrainProcess]
) -> None:
    values = {f"k{i}": i for i in range(400)}
    add(orders, values)
    drains = [drain_process(gated=False) for _ in range(2)]
    reports = [DrainReport.from_dict(one.outcome()) for one in drains]
    assert sum(report.acknowledged for report in reports) == 400
    assert all(report.problem is None for report in reports)
    assert read(copies) == {key: str(value) for key, value in values.items()}
