"""Tallies: whatever becomes of a drain's tasks, its report says what has left the queue, each entry once (I13)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.support import bulk

from export_queue import (
    ApplyResult,
    DrainReport,
    LeaseLost,
    MemorySink,
    Operations,
    Owner,
    SparkJobFailed,
    Store,
    StoreUnavailable,
    drain,
)
from export_queue.core.drain import (
    DRAIN_RETRY,
    Counts,
    DrainRequest,
    Follower,
    LocalEngine,
    Part,
    RangeReport,
    Tally,
    drain_ranges,
    load_exporter,
    pipeline,
    run_drain,
    tally,
)
from export_queue.core.drain.drain_run import DrainRun
from export_queue.core.locks import Lease, LeaseKeeper, begin_attempt, claim, revoke
from export_queue.core.queue import Queue
from export_queue.core.transactions import Snapshot, take_snapshot

pytestmark = pytest.mark.one_store("a report is made of what tasks return, in the same way on each store")

IMPATIENT = replace(DRAIN_RETRY, sleep=lambda seconds: None)


@pytest.fixture
def orders(store: Store) -> Store:
    store.configure_queue("orders", buckets=20, buckets_per_range=5)
    with store.transaction() as tx:
        tx.queue("orders").add_many((f"k{i}", i) for i in range(100))
    return store


class ActingSink(MemorySink):
    """Does something behind one of its batches."""

    def __init__(self, act: Callable[[], object], *, batch: int = 1) -> None:
        super().__init__()
        self._act, self._left = act, batch

    def apply(self, operations: Operations) -> ApplyResult:
        result = super().apply(operations)
        self._left -= 1
        if not self._left:
            self._act()
        return result


def refuse_odd(entry: Any) -> Any:
    if entry.value % 2:
        raise ValueError("odd")
    return []


@dataclass
class Job:
    """The tasks of one drain, which a test runs one by one."""

    store: Store
    request: DrainRequest
    snapshot: Snapshot = field(init=False)
    leases: list[Lease] = field(init=False)

    def __post_init__(self) -> None:
        queue, owner = self.store.queue("orders"), self.request.owner
        begin_attempt(self.store.database, queue, owner)
        self.leases = claim(self.store.database, queue, queue.units(), owner=owner, lease_seconds=60)
        self.snapshot = take_snapshot(self.store.database)

    def run(self, attempt: int, sink: MemorySink | None = None, units: slice = slice(None)) -> list[RangeReport]:
        return drain_ranges(
            self.store.database,
            self.store.queue("orders"),
            [Part.whole(lease) for lease in self.leases[units]],
            self.snapshot,
            sink or MemorySink(),
            load_exporter(self.request.exporter),
            self.request,
            check=lambda: None,
            tally=Tally(self.request, attempt),
        )

    def counted(self) -> Counts:
        with self.store.database.read() as work:
            return tally.counted(work, self.request)


def job(store: Store, **options: Any) -> Job:
    owner = Owner("job", "1")
    defaults = {"queue_id": "orders", "sink_name": "s", "owner": owner, "retry": IMPATIENT, "chunk_rows": 7}
    return Job(store, DrainRequest(**defaults | options))


def letters(store: Store) -> int:
    return store.dead_letters.count("orders")


@pytest.mark.parametrize("batch", [1, 3])
def test_two_copies_of_a_task_at_once_count_each_entry_once(orders: Store, batch: int) -> None:
    copies = job(orders, exporter=refuse_odd)
    first = ActingSink(lambda: copies.run(2), batch=batch)
    reports = copies.run(1, first)
    assert all(report.problem is None for report in reports)
    counts = copies.counted()
    assert (counts.read, counts.acknowledged + counts.dead) == (100, 100)
    assert counts.dead == letters(orders) > 0
    assert sum(report.acknowledged + report.dead for report in reports) > 0, "what came back counts some of them twice"


def test_entries_of_files_count_once_too(orders: Store, tmp_path: Path) -> None:
    orders.database.segments = str(tmp_path / "segments")
    bulk.load(orders, bulk.many(60, b"1"))
    copies = job(orders)
    copies.run(1, ActingSink(lambda: copies.run(2), batch=2))
    assert copies.counted().acknowledged == 160


def test_a_removal_whose_answer_was_lost_counts_once(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one = job(orders)
    step, failures = pipeline._Pipeline._remove_once, iter([False, True, False, False, True])

    def lost(*arguments: Any) -> Any:
        found = step(*arguments)
        if next(failures, False):
            raise StoreUnavailable("the answer was lost")
        return found

    monkeypatch.setattr(pipeline._Pipeline, "_remove_once", lost)
    (reports, counts) = one.run(1), one.counted()
    assert sum(report.acknowledged for report in reports) == counts.acknowledged == 100
    assert counts.written == 100


def test_a_removal_that_did_not_take_effect_counts_when_it_does(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one = job(orders)
    step, failures = Tally.add, iter([False, True, False, False, True])

    def failing(*arguments: Any, **options: Any) -> None:
        step(*arguments, **options)
        if next(failures, False):
            raise StoreUnavailable("rolled back")

    monkeypatch.setattr(Tally, "add", failing)
    one.run(1)
    assert one.counted().acknowledged == 100


def test_what_was_removed_before_a_lease_was_lost_is_counted(orders: Store) -> None:
    one = job(orders)
    sink = ActingSink(lambda: revoke(orders.database, "job"), batch=3)
    reports = one.run(1, sink)
    assert {report.problem.error_class for report in reports if report.problem} == {"LeaseLost"}
    assert 0 < one.counted().acknowledged == 100 - waiting(orders) < 100


def waiting(store: Store) -> int:
    return sum(unit.entries for unit in store.backlog("orders"))


@dataclass(slots=True)
class Failing(LocalEngine):
    """As a Spark job that fails as a whole: what its tasks have reported is lost."""

    error: Exception = field(default_factory=Exception)
    units: int = 2

    @property
    def is_tallied(self) -> bool:
        return True

    def work_off(self, queue: Queue, leases: Sequence[Lease], snapshot: Snapshot, keeper: LeaseKeeper) -> Any:
        parts = [Part.whole(lease) for lease in leases[: self.units]]
        target = (self.sink, self.exporter, self.request)
        drain_ranges(self.database, queue, parts, snapshot, *target, check=keeper.check, tally=Tally(self.request, 1))
        raise self.error


@pytest.mark.parametrize("error", [SparkJobFailed("an executor was lost too often"), LeaseLost("revoked")])
def test_the_report_of_a_job_that_failed_as_a_whole_is_true(orders: Store, error: Exception) -> None:
    request = DrainRequest(queue_id="orders", sink_name="s", drain_id="failed", exporter=refuse_odd)
    sink = MemorySink()
    engine = Failing(orders.database, sink, load_exporter(refuse_odd), request, error=error)
    with pytest.raises(type(error)):
        run_drain(orders, request, nullcontext(engine))
    (stored,) = orders.reports(drain_id="failed")
    report = DrainReport.from_dict(stored)
    report.check()
    assert 0 < report.dead == letters(orders)
    assert report.acknowledged + report.dead == 100 - waiting(orders) < 100
    assert report.first_rejection == "ValueError: odd"
    with orders.database.read() as work:
        assert tally.counted(work, request).read == 0, "they are taken away with the report"
    drain(orders, "orders", sink, sink_name="s")
    assert waiting(orders) == 0


def test_a_report_whose_answer_was_lost_is_returned_with_its_counts(
    orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from export_queue.core.drain import one_drain

    step, failures = one_drain._end, iter([True])

    def lost(*arguments: Any, **options: Any) -> Any:
        found = step(*arguments, **options)
        if next(failures, False):
            raise StoreUnavailable("the answer was lost")
        return found

    monkeypatch.setattr(one_drain, "_end", lost)
    monkeypatch.setattr(one_drain, "DRAIN_RETRY", IMPATIENT)

    class Tallied(Failing):
        def work_off(self, queue: Queue, leases: Sequence[Lease], snapshot: Snapshot, keeper: LeaseKeeper) -> Any:
            with pytest.raises(SparkJobFailed):
                super().work_off(queue, leases, snapshot, keeper)
            return [RangeReport(range=lease.range) for lease in leases]

    request = DrainRequest(queue_id="orders", sink_name="s", drain_id="lost")
    engine = Tallied(orders.database, MemorySink(), load_exporter(None), request, error=SparkJobFailed("lost"), units=4)
    report = run_drain(orders, request, nullcontext(engine), sleep=lambda seconds: None)
    (stored,) = orders.reports(drain_id="lost")
    assert report.acknowledged == stored["acknowledged"] == 100


def test_a_follower_counts_what_a_failed_job_has_removed_though_the_store_was_away_for_a_moment(
    orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, failures, ended = DrainRun._count_tallied, iter([True]), threading.Event()

    def away(run: DrainRun) -> None:
        if next(failures, False):
            raise StoreUnavailable("away")
        count(run)

    monkeypatch.setattr(DrainRun, "_count_tallied", away)

    class Ending(Failing):
        def work_off(self, *arguments: Any) -> Any:
            ended.set()
            return super().work_off(*arguments)

    def of_link(link: DrainRequest) -> LocalEngine:
        return Ending(orders.database, MemorySink(), load_exporter(None), link, error=SparkJobFailed("lost"))

    request = DrainRequest(queue_id="orders", sink_name="s", drain_id="followed")
    report = Follower(orders, request, ended.is_set).run(lambda: nullcontext(of_link))
    assert report.acknowledged == 100 - waiting(orders) > 0
    (stored,) = orders.reports(drain_id="followed-1")
    assert stored["acknowledged"] == report.acknowledged
    with orders.database.read() as work:
        assert tally.counted(work, replace(request, drain_id="followed-1")).read == 0


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks that have buried entries wait for each other, for a moment, before they count what is dead."""
    step, barrier = pipeline.count_dead_letters, threading.Barrier(2)

    def count(*arguments: Any) -> int:
        try:
            barrier.wait(1)
        except threading.BrokenBarrierError:
            barrier.reset()
        return step(*arguments)

    monkeypatch.setattr(pipeline, "count_dead_letters", count)


def test_tasks_that_bury_at_one_moment_do_not_exceed_max_dead_together(orders: Store, crowd: None) -> None:
    units = [unit.entries for unit in orders.backlog("orders")]

    def refuse(entry: Any) -> Any:
        raise ValueError("refused")

    one = job(orders, exporter=refuse, max_dead=max(units[:2]), chunk_rows=100)
    found: list[RangeReport] = []
    threads = [threading.Thread(target=lambda n=n: found.extend(one.run(n, units=slice(n, n + 1)))) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    problems = [report.problem.error_class for report in found if report.problem]
    assert problems == ["TooManyDeadLetters"]
    assert letters(orders) <= max(units[:2])
    assert letters(orders) == one.counted().dead
