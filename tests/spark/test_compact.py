"""A compaction by Spark's tasks: what it leaves is what one process leaves, whatever Spark does twice (I3, I13)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.spark.applications import shadow_home
from tests.spark.conftest import Submit
from tests.support import bulk
from tests.support.bulk import many, waits
from tests.support.drawn import drawn
from tests.support.waiting import PATIENCE, wait_until

from export_queue import (
    Candidates,
    CompactionReport,
    CompactJob,
    DrainReport,
    MemorySink,
    Owner,
    SegmentLost,
    SparkJobFailed,
    Store,
    StoreSpec,
    compact_job,
    drain,
)
from export_queue.core.locks import revoke, standing_locks
from export_queue.core.segments import compact, vacuum_segments, watched_steps
from export_queue.core.spark import action, compact_merger, merge_by_tasks
from export_queue.core.spark.action import collect
from export_queue.core.spark.compact_merger import SparkMerger
from export_queue.core.spark.compact_tasks import merge_task

FEW = Candidates(least=2)
HERE = Path(__file__).parent


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
def merger(spec: StoreSpec, spark: Any) -> SparkMerger:
    """The tasks of this process's Spark."""
    return merge_by_tasks(spark.sparkContext, spec)


@pytest.fixture
def compact_by_tasks(orders: Store, merger: SparkMerger) -> Callable[[], CompactionReport]:
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


@pytest.mark.full("Spark starts a worker anew")
def test_tasks_that_die_and_are_repeated_leave_what_one_process_leaves(
    orders: Store,
    tmp_path: Path,
    compact_by_tasks: Callable[[], CompactionReport],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
    vacuum_segments(orders.database, grace_seconds=0)
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


def test_a_drain_that_revokes_the_locks_gets_all_and_the_files_of_the_tasks_go(
    orders: Store, tmp_path: Path, compact_by_tasks: Callable[[], CompactionReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    everything, late = len(waits(orders)), {"late-1": b"late", "late-2": b"late"}
    sink, reports = MemorySink(), list[DrainReport]()

    def bring(step: str) -> None:
        if step == "written":
            bulk.load(orders, late)
            reports.append(drain(orders, "orders", sink, sink_name="sink", if_locked="skip"))
            reports.append(drain(orders, "orders", sink, sink_name="sink", lock_timeout=0.0))

    monkeypatch.setattr(watched_steps, "WATCHERS", [bring])
    report = compact_by_tasks()
    assert [one.read for one in reports] == [len(late), everything]
    assert (report.inputs, report.lost) == (0, 4)
    assert outputs(tmp_path) == set()
    assert waits(orders) == []


@pytest.mark.full("Spark takes seconds to end tasks that stand still")
def test_locks_that_are_lost_while_tasks_work_end_their_job_and_the_next_one_merges(
    orders: Store, tmp_path: Path, merger: SparkMerger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def standing_task(*_: Any) -> Callable[[Iterable[Any]], Iterator[Any]]:
        def run(shares: Iterable[Any]) -> Iterator[Any]:
            (tmp_path / "stands").touch()
            threading.Event().wait(300)
            yield from ()

        return run

    def revoke_once_it_stands() -> None:
        wait_until((tmp_path / "stands").exists, "no task begins")
        revoke(orders.database, "compaction")

    groups: list[str] = []

    def noted(*arguments: Any, group: str, **options: Any) -> Any:
        groups.append(group)
        return collect(*arguments, group=group, **options)

    before = waits(orders)
    monkeypatch.setattr(compact_merger, "merge_task", standing_task)
    monkeypatch.setattr(action, "collect", noted)
    revoking = threading.Thread(target=revoke_once_it_stands)
    revoking.start()
    report = compact(
        orders.database, "orders", wanted=FEW, owner=Owner("compaction"), merger=merger, lease_seconds=PATIENCE / 60
    )
    revoking.join()
    assert (report.inputs, report.lost) == (0, 4)
    assert waits(orders) == before
    monkeypatch.setattr(compact_merger, "merge_task", merge_task)
    report = compact(orders.database, "orders", wanted=FEW, owner=Owner("compaction"), merger=merger)
    assert (report.inputs, report.lost) == (16, 0)
    assert waits(orders) == before
    assert len(set(groups)) == 2, "the late end of the first job would be that of the second one"


@pytest.mark.full("Spark repeats the task, in vain")
def test_a_failing_job_says_that_nothing_has_changed(
    orders: Store, compact_by_tasks: Callable[[], CompactionReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Callable[[Any], Iterator[Any]]:
        return lambda shares: iter([1 // 0])

    monkeypatch.setattr(compact_merger, "merge_task", broken)
    before = waits(orders)
    with pytest.raises(SparkJobFailed, match="ZeroDivisionError") as raised:
        compact_by_tasks()
    assert "nothing else has changed" in raised.value.hint
    assert waits(orders) == before


# -- the program -----------------------------------------------------------------------------------------------------


@pytest.fixture
def job(spec: StoreSpec) -> CompactJob:
    """A compaction whose program does what the environment says."""
    return replace(a_job(spec), application=str(HERE / "mortal_main.py"))


def a_job(spec: StoreSpec) -> CompactJob:
    """Another attempt of the same task."""
    return compact_job(store=spec, queue_id="orders", owner=Owner("dag/run/task"), wanted=FEW)


def locks(store: Store) -> int:
    with store.database.read() as work:
        return len(standing_locks(work, store.queue("orders")))


@pytest.mark.full("starts spark-submit twice")
@pytest.mark.parametrize(("step", "is_merged"), drawn([("written", False), ("published", True)], about="steps"))
def test_a_driver_that_is_killed_leaves_the_state_before_or_after(
    orders: Store, spec: StoreSpec, job: CompactJob, submit: Submit, step: str, is_merged: bool
) -> None:
    before = waits(orders)
    submission = submit(job, variables={"DRIVER_DIES": step})
    assert submission.wait() != 0
    assert waits(orders) == before
    assert not orders.idempotency(job.report_key).committed
    assert locks(orders) == (0 if is_merged else 4)

    again = a_job(spec)
    submission = submit(again)
    assert submission.wait() == 0, submission.output()
    report = orders.idempotency(again.report_key).result
    expected = (0, 0, 0, 0) if is_merged else (16, 4, 0, 0)
    assert (report["inputs"], report["units"], report["lost"], report["passed_over"]) == expected
    assert "orders: " in submission.output()
    assert waits(orders) == before
    assert locks(orders) == 0


@pytest.mark.full("starts spark-submit")
def test_a_driver_that_is_told_to_stop_gives_its_locks_back(
    orders: Store, job: CompactJob, submit: Submit, tmp_path: Path
) -> None:
    before, there = waits(orders), tmp_path / "there"
    submission = submit(job, variables={"DRIVER_STANDS": "written", "STANDS_THERE": str(there)})
    wait_until(lambda: there.exists() or submission.process.poll() is not None, "the driver does not come so far")
    assert locks(orders) == 4, submission.output()
    os.kill(submission.driver(), signal.SIGTERM)
    assert submission.wait() == 143
    assert "compaction stopped: told to stop" in submission.output()
    assert locks(orders) == 0
    assert waits(orders) == before
    assert compact(orders.database, "orders", wanted=FEW).inputs == 16
    vacuum_segments(orders.database, grace_seconds=0)
    assert len(outputs(tmp_path)) == 1, "those of the tasks are gone"


@pytest.mark.full("starts spark-submit twice")
def test_the_exit_status_says_whether_trying_again_may_help(orders: Store, spec: StoreSpec, submit: Submit) -> None:
    revoked = Owner("dag/run/task")
    revoke(orders.database, revoked.task, attempt=revoked.attempt)
    submission = submit(compact_job(store=spec, queue_id="orders", owner=revoked, wanted=FEW))
    assert submission.wait() == 75, submission.output()
    assert "compaction failed: LeaseLost: " in submission.output()
    Path(sorted(orders.bulk_files())[1]).unlink()
    submission = submit(a_job(spec))
    assert submission.wait() == 1, submission.output()
    assert "compaction failed: SegmentLost: " in submission.output()


@pytest.mark.full("an application of Spark with executors")
def test_an_executor_that_is_lost_costs_its_work_alone(
    orders: Store, job: CompactJob, submit: Submit, spark_home: Path, tmp_path: Path
) -> None:
    before = waits(orders)
    home = shadow_home(next((spark_home / "lib").glob("python*/site-packages/pyspark")), tmp_path / "home")
    submission = submit(
        job,
        master="local-cluster[2,1,512]",
        variables={"EXECUTOR_DIES": "1", "SPARK_HOME": str(home)},
        conf={"spark.executor.memory": "512m"},
    )
    assert submission.wait(180) == 0, submission.output()
    report = orders.idempotency(job.report_key).result
    assert (report["inputs"], report["units"], report["lost"]) == (16, 4, 0)
    assert waits(orders) == before
    assert outputs(tmp_path) > set(report["files"]), "the attempt that died has left a file"
    vacuum_segments(orders.database, grace_seconds=0)
    assert outputs(tmp_path) == set(report["files"])
