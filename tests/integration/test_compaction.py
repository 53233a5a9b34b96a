"""Compaction: what a reader has not drained stays what it is, in fewer files (I3, I6, I7, I10, I12, I13)."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.support import bulk
from tests.support.bulk import many, waits

from export_queue import (
    Candidates,
    ExportQueueError,
    InvalidArgument,
    LeaseLost,
    MemorySink,
    Owner,
    Range,
    SegmentLost,
    Store,
    bucket,
    drain,
)
from export_queue.core.locks import COMPACTION_PRIORITY, ROWS, Area, acquire, claim, member, release
from export_queue.core.segments import (
    Merge,
    Merged,
    UnitPlan,
    compact,
    gathering,
    replacement,
    vacuum_segments,
    waiting_segments,
    watched_steps,
)
from export_queue.core.store import queries
from export_queue.core.store.schema import entry
from export_queue.core.transactions import settled_snapshot, take_snapshot

fork = multiprocessing.get_context("fork")
FEW = Candidates(least=2)
STEPS = ["locked", "begun", "written", "publishing", "published"]


@pytest.fixture
def orders(store: Store, tmp_path: Path) -> Store:
    """A store with a queue of four units, whose files are in a folder of the test's."""
    store.database.segments = str(tmp_path / "segments")
    store.configure_queue("orders", buckets=20, buckets_per_range=5, value="bytes")
    return store


def segments(store: Store) -> int:
    with store.database.read() as work:
        return len(waiting_segments(work, store.queue("orders"), take_snapshot(store.database), Range(0, 20)))


def files(store: Store) -> int:
    return sum(path.is_file() for path in Path(str(store.database.segments)).rglob("*"))


def fill(store: Store, *, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(6):
        keys = chance.sample(sorted(many(60)), 30)
        value = f"{number}".encode()
        if number % 3 == 2:
            bulk.put(store, keys, value)
        else:
            bulk.load(store, dict.fromkeys(keys, value), tasks=2)


def drained(store: Store, sink: MemorySink | None = None) -> tuple[dict[bytes, Any], int]:
    sink = sink or MemorySink()
    report = drain(store, "orders", sink, sink_name="sink")
    return {key[1]: value for key, value in sink.records().items()}, report.read


def test_a_compaction_changes_nothing_of_what_waits(orders: Store) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    fill(orders, seed=seed)
    early, before = take_snapshot(orders.database), waits(orders)
    count = segments(orders)
    report = compact(orders.database, "orders", wanted=FEW)
    assert (len(report.units), report.inputs, report.outputs, report.rows) == (4, count, 4, 60)
    assert report.read == report.written + report.superseded == len(before)
    assert segments(orders) == 4
    assert waits(orders) == before
    assert waits(orders, early) == before
    assert sum(unit.entries for unit in orders.backlog("orders")) == len(before)
    assert drained(orders)[1] == len(before)
    assert waits(orders) == []


def test_what_is_drained_of_the_inputs_is_left_out(orders: Store) -> None:
    fill(orders, seed=1)
    before = waits(orders)
    sink = MemorySink()
    step, batches = sink.apply, iter(range(100))

    def apply(operations: Any) -> Any:
        if next(batches) == 4:
            raise ExportQueueError("enough")
        return step(operations)

    sink.apply = apply  # type: ignore[method-assign]
    with pytest.raises(ExportQueueError, match="enough"):
        drain(orders, "orders", sink, sink_name="sink", chunk_rows=7)
    left = waits(orders)
    assert 0 < len(left) < len(before)
    report = compact(orders.database, "orders", wanted=FEW)
    assert report.read == report.written == len(left)
    assert waits(orders) == left


@pytest.mark.parametrize("tables", [1, 256])
def test_later_tables_and_rows_of_one_transaction_still_count_behind_a_compaction(
    orders: Store, monkeypatch: pytest.MonkeyPatch, tables: int
) -> None:
    monkeypatch.setattr(gathering, "_TABLES", tables)
    with orders.transaction(long=True) as tx:
        bulk.add(tx, orders, many(40, b"first"))
        bulk.add(tx, orders, many(20, b"second"))
        for key in many(10):
            tx.queue("orders").add(key, b"row")
    before = waits(orders)
    assert len(before) == 40
    report = compact(orders.database, "orders", wanted=FEW)
    assert (report.read, report.superseded) == (40, 0)
    assert waits(orders) == before


@pytest.mark.parametrize("later", [b"second", None], ids=["put", "delete"])
@pytest.mark.parametrize("form", ["table", "row"])
def test_the_later_of_two_adds_counts_though_a_drain_runs_during_a_compaction(
    orders: Store, monkeypatch: pytest.MonkeyPatch, later: bytes | None, form: str
) -> None:
    """The drain delivers what the compaction has not locked; equal sequences have no order in a sink."""
    keys = many(40)
    bulk.load(orders, {f"other-{n}": b"x" for n in range(60)})
    with orders.transaction(long=True) as tx:
        bulk.add(tx, orders, dict.fromkeys(keys, b"first" * 200))
        if form == "table":
            bulk.add(tx, orders, dict.fromkeys(keys, later))
        else:
            for key in keys:
                tx.queue("orders").add(key, later)
    sink, reports = MemorySink(), list[Any]()

    def come_by(step: str) -> None:
        if step == "written":
            reports.append(drain(orders, "orders", sink, sink_name="sink", if_locked="skip"))

    monkeypatch.setattr(watched_steps, "WATCHERS", [come_by])
    report = compact(orders.database, "orders", wanted=Candidates(least=2, small_bytes=10_000))
    drained(orders, sink)
    found = {key: value for (_, key), value in sink.records().items() if key.startswith(b"key-")}
    assert found == ({} if later is None else {key.encode(): later for key in keys})
    assert (len(reports), report.superseded) == (1, 0)


def names(store: Store) -> list[str]:
    """Name the segments that wait in the first unit, the oldest first."""
    queue = store.queue("orders")
    with store.database.read() as work:
        found = waiting_segments(work, queue, take_snapshot(store.database), queue.units()[0])
    return [member(one.transaction, one.number) for one in found]


def test_what_a_drain_holds_is_left_out(orders: Store) -> None:
    fill(orders, seed=13)
    queue, before = orders.queue("orders"), waits(orders)
    held = {ROWS, names(orders)[1]}
    area = Area(0, 5, frozenset(held))
    leases = acquire(orders.database, queue, [area], owner=Owner("drain", "1"), priority=75, lease_seconds=60)
    report = compact(orders.database, "orders", wanted=FEW)
    (unit,) = (unit for unit in report.units if unit.range == Range(0, 5))
    assert unit.rows == 0
    assert (len(report.units), report.lost) == (4, 0)
    assert waits(orders) == before
    release(orders.database, leases)
    assert held - {ROWS} < set(names(orders))
    assert len(names(orders)) == 2


def test_one_compaction_works_in_a_unit_at_a_time(orders: Store) -> None:
    fill(orders, seed=14)
    queue, before = orders.queue("orders"), waits(orders)
    area = Area(0, 5, frozenset({names(orders)[0]}))
    acquire(orders.database, queue, [area], owner=Owner("other", "1"), priority=COMPACTION_PRIORITY, lease_seconds=60)
    report = compact(orders.database, "orders", wanted=FEW)
    assert (len(report.units), report.passed_over) == (3, 1)
    assert waits(orders) == before


def test_a_drain_that_comes_between_the_look_and_the_lock_takes_its_unit_alone(
    orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(orders, seed=15)
    queue, before, ask = orders.queue("orders"), waits(orders), replacement.acquire
    others: list[Any] = []

    def come_first(*arguments: Any, **options: Any) -> Any:
        if not others:
            others.extend(claim(orders.database, queue, queue.units()[:1], owner=Owner("drain", "1"), lease_seconds=60))
        return ask(*arguments, **options)

    monkeypatch.setattr(replacement, "acquire", come_first)
    report = compact(orders.database, "orders", wanted=FEW)
    assert (len(report.units), report.passed_over) == (3, 1)
    assert waits(orders) == before


def test_a_drain_leaves_a_compaction_alone_and_revokes_it_once_it_has_waited(
    orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(orders, seed=18)
    everything, late = len(waits(orders)), 5
    sink, reports = MemorySink(), list[Any]()

    def drain_twice(step: str) -> None:
        if step == "written":
            bulk.load(orders, {f"late-{i}": b"late" for i in range(late)})
            reports.append(drain(orders, "orders", sink, sink_name="sink", if_locked="skip"))
            reports.append(drain(orders, "orders", sink, sink_name="sink", lock_timeout=0.1))

    monkeypatch.setattr(watched_steps, "WATCHERS", [drain_twice])
    report = compact(orders.database, "orders", wanted=FEW)
    assert [one.read for one in reports] == [late, everything]
    assert (report.units, report.lost) == ([], 4)
    assert waits(orders) == []
    assert vacuum_segments(orders.database, grace_seconds=0).files > 0
    assert files(orders) == 0


@pytest.mark.full("seven seconds: processes are started and killed while loads go on")
def test_compactions_that_are_killed_while_loads_and_drains_go_on_lose_and_double_nothing(
    orders: Store, open_store: Callable[[], Store]
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    sink, expected = MemorySink(), dict[str, bytes]()

    def work() -> None:
        with open_store() as mine:
            mine.database.segments = orders.database.segments
            while True:
                compact(mine.database, "orders", wanted=FEW, owner=Owner("compaction"), lease_seconds=2.0)

    read = loaded = 0
    for round_ in range(6):
        process = fork.Process(target=work)
        process.start()
        for number in range(chance.randrange(4, 12)):
            value = f"{round_}-{number}".encode()
            keys = chance.sample(sorted(many(60)), 20)
            if chance.random() < 0.7:
                bulk.load(orders, dict.fromkeys(keys, value))
            else:
                bulk.put(orders, keys, value)
            expected |= dict.fromkeys(keys, value)
            loaded += len(keys)
        process.kill()
        process.join(60)
        if round_ % 2:
            read += drain(orders, "orders", sink, sink_name="sink").acknowledged
    read += drain(orders, "orders", sink, sink_name="sink").acknowledged
    assert read == loaded
    assert {key[1]: value for key, value in sink.records().items()} == {k.encode(): v for k, v in expected.items()}
    assert waits(orders) == []


def test_units_are_published_in_batches_of_bounded_size(orders: Store) -> None:
    fill(orders, seed=16)
    before = waits(orders)
    seen: list[int] = []
    report = compact(
        orders.database,
        "orders",
        wanted=Candidates(least=2, most_bytes=300),
        on_progress=lambda progress: seen.append(progress.done),
    )
    assert len(report.files) == len(seen) > 1
    assert seen == sorted(seen)
    assert all(unit.read == unit.written + unit.superseded for unit in report.units)
    assert waits(orders) == before


@dataclass
class ByThree:
    """Merges in this process, and notes the shares that several processes would get."""

    store: Store
    seen: list[list[int]] = field(default_factory=list)
    """Bytes of the units of each share."""
    shares: int = 3

    def merge(
        self, merge: Merge, shares: Sequence[Sequence[UnitPlan]], *, check: Callable[[], None]
    ) -> Sequence[Merged]:
        self.seen += [[plan.bytes for plan in share] for share in shares]
        found = [merge.run(self.store.database, share, check) for share in shares]
        return found[::-1]  # any order will do


@pytest.mark.parametrize("most_bytes", [320, 700, 1 << 20])
def test_shares_of_a_publication_are_about_equal_and_bounded(orders: Store, most_bytes: int) -> None:
    """A unit of eight has many more bytes than its neighbours, so that equal shares would be too large."""
    orders.configure_queue("uneven", buckets=8, buckets_per_range=1, value="bytes")
    for number in range(3):
        values = {f"k{i}": b"%d" % number * (90 if bucket(f"k{i}".encode(), 8) % 3 else 9) for i in range(24)}
        bulk.load(orders, values, queue_id="uneven")
    merger = ByThree(orders)
    report = compact(orders.database, "uneven", wanted=Candidates(least=2, most_bytes=most_bytes), merger=merger)
    assert all(len(share) == 1 or sum(share) <= most_bytes for share in merger.seen), merger.seen
    assert [unit.range.first for unit in report.units] == sorted(unit.range.first for unit in report.units)
    assert report.read == report.written > 0
    assert len(report.units) == sum(map(len, merger.seen))
    assert len(report.files) == len(merger.seen)
    if most_bytes == 1 << 20:
        assert len(merger.seen) == 3
        assert max(map(sum, merger.seen)) <= 2 * min(map(sum, merger.seen)), merger.seen


def test_an_older_attempt_merges_nothing_any_more_although_it_held_nothing(orders: Store) -> None:
    fill(orders, seed=21)
    older, newer = Owner("compaction", "1"), Owner("compaction", "2")
    reports = []

    def overtake() -> bool:
        """Come between two publications, when the older attempt has given its locks back."""
        bulk.load(orders, many(40, b"late"))
        reports.append(compact(orders.database, "orders", wanted=FEW, owner=newer))
        return False

    with pytest.raises(LeaseLost):
        compact(orders.database, "orders", wanted=FEW, owner=older, stops=overtake)
    assert len(reports[0].units) == 4
    again = compact(orders.database, "orders", wanted=FEW, owner=Owner("compaction", "3"))
    assert (again.lost, again.passed_over) == (0, 0)


def test_a_file_that_goes_behind_a_lost_lock_is_no_lost_file(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The drain that has taken the locks may have brought all, and clean-up deleted it."""
    fill(orders, seed=22)
    everything, sink = len(waits(orders)), MemorySink()

    def bring_all(step: str) -> None:
        if step == "begun":
            assert drain(orders, "orders", sink, sink_name="sink", lock_timeout=0.0).read == everything
            assert vacuum_segments(orders.database, grace_seconds=0).files > 0

    monkeypatch.setattr(watched_steps, "WATCHERS", [bring_all])
    report = compact(orders.database, "orders", wanted=FEW)
    assert (report.units, report.lost) == ([], 4)
    assert files(orders) == 0


def test_a_missing_file_stops_a_compaction_and_changes_nothing(orders: Store) -> None:
    fill(orders, seed=17)
    lost = next(path for path in Path(str(orders.database.segments)).rglob("*.parquet"))
    aside = lost.with_suffix(".aside")
    before = waits(orders)
    lost.rename(aside)
    with pytest.raises(SegmentLost, match=lost.name):
        compact(orders.database, "orders", wanted=FEW)
    aside.rename(lost)
    assert waits(orders) == before
    assert len(compact(orders.database, "orders", wanted=FEW).units) == 4


def test_a_compaction_whose_lock_is_revoked_loses_cleanly(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(orders, seed=5)
    before, count, there = waits(orders), segments(orders), files(orders)

    def lose(step: str) -> None:
        if step == "written":
            with orders.database.begin() as work:
                queries.locks.revoke(work, "compaction", {"1"})

    monkeypatch.setattr(watched_steps, "WATCHERS", [lose])
    report = compact(orders.database, "orders", wanted=FEW, owner=Owner("compaction", "1"))
    assert (len(report.units), report.lost) == (0, 4)
    assert (waits(orders), segments(orders)) == (before, count)
    assert files(orders) == there
    assert vacuum_segments(orders.database, grace_seconds=0).files == 0


def test_a_dry_run_changes_nothing(orders: Store) -> None:
    fill(orders, seed=6)
    before, count, there = waits(orders), segments(orders), files(orders)
    report = compact(orders.database, "orders", wanted=FEW, dry_run=True)
    assert (len(report.units), report.inputs, report.rows, report.written) == (4, count, 60, 0)
    assert (waits(orders), segments(orders), files(orders)) == (before, count, there)


def test_late_data_and_drains_of_it_do_not_keep_a_compaction_from_its_end(
    orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under locks on whole intervals, each arrival of late data would take the compaction's away, again and again."""
    fill(orders, seed=19)
    everything, sink, late = len(waits(orders)), MemorySink(), iter(range(1000))

    def arrive(step: str) -> None:
        if step in ("locked", "begun", "written"):
            for _ in range(3):
                number = next(late)
                bulk.load(orders, {f"late-{number}-{i}": b"late" for i in range(8)})
                report = drain(orders, "orders", sink, sink_name="sink", if_locked="skip")
                assert report.read == 8

    monkeypatch.setattr(watched_steps, "WATCHERS", [arrive])
    report = compact(orders.database, "orders", wanted=FEW)
    assert (len(report.units), report.lost, report.read) == (4, 0, everything)
    monkeypatch.undo()
    assert drained(orders, sink)[1] == everything
    assert sum(value == b"late" for value in sink.records().values()) == next(late) * 8


def test_what_is_not_settled_stays_out_of_a_compaction(orders: Store) -> None:
    """Every snapshot sees a merged segment, also that of a drain that takes only settled entries."""
    fill(orders, seed=11)
    count = len(waits(orders))
    with orders.transaction(long=True) as older:
        _ = older.id
        bulk.put(orders, list(many(40)), b"row")
        bulk.load(orders, many(40, b"load"))
        report = compact(orders.database, "orders", wanted=FEW)
        assert report.read == count
        settled = settled_snapshot(orders.database, orders.queue("orders").number)
        assert len(waits(orders, settled)) == count
        assert len(waits(orders)) == count + 80


def test_fenced_drains_do_not_wait_for_a_compaction(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(orders, seed=12)
    seen: list[bool] = []

    def look(step: str) -> None:
        if step == "written":
            added = bulk.put(orders, ["late"], b"row")
            seen.append(settled_snapshot(orders.database, orders.queue("orders").number).read_pointer >= added)

    monkeypatch.setattr(watched_steps, "WATCHERS", [look])
    compact(orders.database, "orders", wanted=FEW)
    assert seen == [True]


def test_a_row_that_comes_back_among_merged_ones_is_not_lost(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead letter that is retried has a sequence that was settled long ago."""
    fill(orders, seed=10)
    before = waits(orders)
    (bucket_of, key, seq, _) = next(row for row in before if row[3] == b"2")
    queue = orders.queue("orders")
    with orders.database.begin() as work:
        queries.entries.delete_entries(work, queue.number, queue.layout, [(bucket_of, key, seq)])
    place = {"queue_number": queue.number, "layout": queue.layout, "bucket": bucket_of, "key": key, "seq": seq}

    def retry(step: str) -> None:
        if step == "written":
            with orders.database.begin() as work:
                work.connection.execute(entry.insert(), {**place, "value": b"2"})

    monkeypatch.setattr(watched_steps, "WATCHERS", [retry])
    report = compact(orders.database, "orders", wanted=FEW)
    assert (len(report.units), report.lost) == (0, 4)
    assert waits(orders) == before


def lose_output(store: Store) -> str:
    """Delete the file of the merged segments; returns its name."""
    (path,) = Path(str(store.database.segments)).rglob("compaction-*.parquet")
    path.unlink()
    return str(path)


def test_a_lost_output_falls_back_on_its_inputs_and_its_rows_are_given_up(orders: Store) -> None:
    fill(orders, seed=20)
    before, count = waits(orders), segments(orders)
    compact(orders.database, "orders", wanted=FEW)
    file = lose_output(orders)
    sink = MemorySink()
    with pytest.raises(SegmentLost, match="export-queue fall-back"):
        drained(orders, sink)
    found = orders.dead_letters.fall_back("orders", file, who="anna")
    assert (found.outputs, found.inputs, found.given_up) == (4, count, 60)
    assert waits(orders) == [row for row in before if row[3] not in (b"2", b"5")]
    assert orders.dead_letters.audit("orders")[-1].letters == 60
    compact(orders.database, "orders", wanted=FEW)
    assert drained(orders, sink)[1] == len(before) - 60
    vacuum_segments(orders.database, grace_seconds=0)
    assert files(orders) == 0


@pytest.mark.parametrize("is_drained", [False, True])
def test_a_fall_back_counts_what_it_gives_up_though_entries_were_superseded(orders: Store, is_drained: bool) -> None:
    with orders.transaction(long=True) as tx:
        bulk.add(tx, orders, many(40, b"first"))
        bulk.add(tx, orders, many(40, b"second"))
    bulk.put(orders, list(many(15)), b"row")
    report = compact(orders.database, "orders", wanted=FEW)
    assert (report.rows, report.read, report.superseded) == (15, 55, 0)
    sink = MemorySink()
    if is_drained:
        step = sink.apply

        def apply(operations: Any) -> Any:
            if orders.backlog("orders")[0].entries < 10:
                raise ExportQueueError("enough")
            return step(operations)

        sink.apply = apply  # type: ignore[method-assign]
        with pytest.raises(ExportQueueError, match="enough"):
            drain(orders, "orders", sink, sink_name="sink", chunk_rows=3)
        sink.apply = step  # type: ignore[method-assign]
    left = waits(orders)
    assert (0 < len(left) < 55) if is_drained else (len(left) == 55)
    lost = sum(row[3] == b"row" for row in left)
    assert orders.dead_letters.fall_back("orders", lose_output(orders)).given_up == lost
    assert waits(orders) == [row for row in left if row[3] != b"row"]
    assert drained(orders, sink)[1] >= len(left) - lost


@pytest.mark.parametrize("moment", ["locked", "begun", "written", "published"])
def test_a_compaction_ends_in_its_layout_though_the_queue_is_altered(
    orders: Store, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    fill(orders, seed=25)
    added = len(waits(orders))
    sink, brought = MemorySink(), []

    def alter(step: str) -> None:
        if step == moment and orders.queue("orders").layout == 1:
            orders.alter_queue("orders", buckets=16, buckets_per_range=4, guard="seq")
            fill(orders, seed=26)
            report = drain(orders, "orders", sink, sink_name="sink", if_locked="skip")
            brought.append(report.read)
            assert (len(orders.queue("orders").older) == 1) == (moment != "published")

    monkeypatch.setattr(watched_steps, "WATCHERS", [alter])
    assert compact(orders.database, "orders", wanted=FEW).read == added
    brought.append(drained(orders, sink)[1])
    assert sum(brought) == 2 * added
    assert brought[0] >= added
    assert orders.queue("orders").older == ()


def test_there_is_no_fall_back_behind_the_vacuum_of_the_inputs(orders: Store) -> None:
    fill(orders, seed=22)
    compact(orders.database, "orders", wanted=FEW)
    vacuum_segments(orders.database, grace_seconds=0, hidden_seconds=-1)
    with pytest.raises(InvalidArgument, match="have been vacuumed"):
        orders.dead_letters.fall_back("orders", lose_output(orders))
    with pytest.raises(InvalidArgument, match="no merged segment is pending"):
        orders.dead_letters.fall_back("orders", "/else")


def test_a_file_is_kept_for_a_while_and_goes_when_all_is_drained(orders: Store) -> None:
    fill(orders, seed=8)
    inputs = files(orders)
    compact(orders.database, "orders", wanted=FEW)
    assert vacuum_segments(orders.database, grace_seconds=0).files == 0
    assert files(orders) == inputs + 1
    assert vacuum_segments(orders.database, grace_seconds=0, hidden_seconds=-1).files == inputs
    drained(orders)
    assert vacuum_segments(orders.database, grace_seconds=0).files == 1
    assert files(orders) == 0


@pytest.mark.parametrize("moment", STEPS)
def test_a_compaction_that_is_killed_leaves_the_state_before_or_after(
    orders: Store, open_store: Callable[[], Store], moment: str
) -> None:
    fill(orders, seed=9)
    before, count = waits(orders), segments(orders)

    def work() -> None:
        def die(step: str) -> None:
            if step == moment:
                os.kill(os.getpid(), signal.SIGKILL)

        watched_steps.WATCHERS[:] = [die]
        with open_store() as mine:
            mine.database.segments = orders.database.segments
            compact(mine.database, "orders", wanted=FEW, owner=Owner("compaction"), lease_seconds=2.0)

    process = fork.Process(target=work)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert waits(orders) == before
    assert segments(orders) == (4 if moment == "published" else count)
    report = compact(orders.database, "orders", wanted=FEW, owner=Owner("compaction"))
    assert len(report.units) == (0 if moment == "published" else 4)
    assert waits(orders) == before
    with orders.database.begin() as work_of_clean_up:
        queries.registrations.end_all(work_of_clean_up)
    assert drained(orders)[1] == len(before)
