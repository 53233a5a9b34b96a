"""A compaction by Spark's tasks: what it leaves is what one process leaves, whatever Spark does twice (I3, I13)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.conftest import Submit
from tests.support import bulk
from tests.support.bulk import many, waits
from tests.support.waiting import wait_until

from export_queue.core.client import Store
from export_queue.core.errors import SegmentLost, SparkJobFailed
from export_queue.core.locks import Owner, standing_locks
from export_queue.core.segments import Candidates, CompactionReport, compact, compaction, vacuum_segments
from export_queue.core.spark import compact_job
from export_queue.core.spark.carried_secrets import CarriedSecrets
from export_queue.core.store import StoreSpec, queries

FEW = Candidates(least=2)


@pytest.fixture
def store_url(sqlite_url: str) -> str:
    """What differs between the kinds of stores is below the room of segments."""
    return sqlite_url


@pytest.fixture
def spec(store_url: str) -> StoreSpec:
    return StoreSpec(url=store_url)


@pytest.fixture
def orders(store: Store) -> Store:
    """A store with a queue of four units that have segments and rows."""
    fill(store)
    return store


@pytest.fixture
def compact_by_tasks(orders: Store, spec: StoreSpec, spark: Any) -> Callable[[], CompactionReport]:
    """Compact by the tasks of this process's Spark."""
    from export_queue.core.spark.compact_merger import SparkMerger

    merger = SparkMerger(spark.sparkContext, spec, CarriedSecrets())
    return lambda: compact(orders.database, "orders", wanted=FEW, merger=merger)


def fill(store: Store) -> None:
    store.configure_queue("orders", buckets=20, buckets_per_range=5, value="bytes")
    for number in range(4):
        bulk.load(store, many(60, b"load %d" % number))
    bulk.put(store, many(30), b"row")


def outputs(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("compaction-*.parquet")}


def figures(report: CompactionReport) -> dict[str, Any]:
    return {**report.to_json(), "seconds": 0, "files": 0}


def test_tasks_that_die_and_are_repeated_leave_what_one_process_leaves(
    orders: Store,
    tmp_path: Path,
    compact_by_tasks: Callable[[], CompactionReport],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from export_queue.core.spark import compact_merger
    from export_queue.core.spark.compact_tasks import merge_task

    def dying_task(*arguments: Any) -> Callable[[Iterable[Any]], Iterator[Any]]:
        task = merge_task(*arguments)

        def run(shares: Iterable[Any]) -> Iterator[Any]:
            from pyspark import TaskContext

            found = list(task(shares))  # its file is there
            context = TaskContext.get()
            if context is not None and context.partitionId() == context.attemptNumber() == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            yield from found

        return run

    monkeypatch.setattr(compact_merger, "merge_task", dying_task)
    before = waits(orders)
    report = compact_by_tasks()
    assert waits(orders) == before
    assert (report.inputs, report.outputs, report.rows, report.read) == (16, 4, 30, len(before))
    assert len(report.files) == 2, "each task writes a file of all its units"
    assert len(outputs(tmp_path)) == 3, "and one has died behind its file"
    vacuum_segments(orders.database)
    assert outputs(tmp_path) == set(report.files)

    with Store.open(f"sqlite:///{tmp_path}/other.db") as other:
        other.create()
        fill(other)
        assert figures(report) == figures(compact(other.database, "orders", wanted=FEW))


def test_a_task_tells_what_it_lacks_and_nothing_has_changed(
    orders: Store, tmp_path: Path, compact_by_tasks: Callable[[], CompactionReport]
) -> None:
    before = orders.backlog("orders")
    lost = sorted(orders.bulk_files())[1]
    Path(lost).rename(tmp_path / "kept")
    with pytest.raises(SegmentLost):
        compact_by_tasks()
    assert orders.backlog("orders") == before
    (tmp_path / "kept").rename(lost)
    assert compact_by_tasks().inputs == 16


def test_a_lock_that_is_revoked_behind_the_job_takes_its_files_away_and_changes_nothing(
    orders: Store, tmp_path: Path, compact_by_tasks: Callable[[], CompactionReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(step: str) -> None:
        if step == "written":
            with orders.database.begin() as work:
                (task,) = {lock.task for lock in standing_locks(work, orders.queue("orders"))}
                queries.locks.revoke(work, task, {task.rpartition("/")[2]})

    before = waits(orders)
    monkeypatch.setattr(compaction, "reached", lose)
    report = compact_by_tasks()
    assert (report.inputs, report.lost) == (0, 4)
    assert outputs(tmp_path) == set()
    assert waits(orders) == before


@pytest.mark.full("Spark repeats the task, in vain")
def test_a_failing_job_says_that_nothing_has_changed(
    orders: Store, compact_by_tasks: Callable[[], CompactionReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    from export_queue.core.spark import compact_merger

    def broken(*_: Any) -> Callable[[Any], Iterator[Any]]:
        return lambda shares: iter([1 // 0])

    monkeypatch.setattr(compact_merger, "merge_task", broken)
    before = waits(orders)
    with pytest.raises(SparkJobFailed, match="ZeroDivisionError") as raised:
        compact_by_tasks()
    assert "nothing else has changed" in raised.value.hint
    assert waits(orders) == before


@pytest.mark.full("starts spark-submit twice")
def test_a_driver_that_is_killed_leaves_the_state_before_or_after(
    orders: Store, spec: StoreSpec, submit: Submit
) -> None:
    before = waits(orders)
    first = compact_job(store=spec, queue_id="orders", owner=Owner("dag/run/task"), wanted=FEW)
    submission = submit(first)
    driver = submission.driver()

    def has_begun() -> bool:
        with orders.database.read() as work:
            return bool(standing_locks(work, orders.queue("orders"))) or submission.process.poll() is not None

    wait_until(has_begun, "the compaction has not begun")
    os.kill(driver, signal.SIGKILL)
    submission.wait()
    assert waits(orders) == before
    assert not orders.idempotency(first.report_key).committed

    again = compact_job(store=spec, queue_id="orders", owner=Owner("dag/run/task"), wanted=FEW)
    submission = submit(again)
    assert submission.wait() == 0, submission.output()
    report = orders.idempotency(again.report_key).result
    assert (report["inputs"], report["units"], report["lost"], report["passed_over"]) in {(16, 4, 0, 0), (0, 0, 0, 0)}
    assert "orders: " in submission.output()
    assert waits(orders) == before
    assert len(orders.bulk_files()) >= 1
