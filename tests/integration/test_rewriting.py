"""Rewriting of older layouts: what waits there moves, each entry once, into the current one (I3, I6, I10, I12, I13)."""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support import bulk
from tests.support.bulk import many
from tests.support.waiting import PATIENCE, wait_until

from export_queue import (
    Candidates,
    ExportQueueError,
    InvalidArgument,
    MemorySink,
    Owner,
    SegmentLost,
    Store,
    bucket,
    drain,
)
from export_queue.core.drain import claims
from export_queue.core.locks import claim, release
from export_queue.core.maintenance import Patience, maintain
from export_queue.core.queue import Layout, close_layouts, find_queue, read
from export_queue.core.segments import (
    UnitReader,
    compact,
    gathering,
    list_segments,
    peek,
    vacuum_segments,
    waiting_segments,
    watched_steps,
    writing,
)
from export_queue.core.store import Snapshot, queries
from export_queue.core.store.schema import entry
from export_queue.core.store.schema import layout as layout_table
from export_queue.core.transactions import take_snapshot

pytestmark = pytest.mark.one_store("a move replaces files as a compaction does, which runs on each store")

rewrite = functools.partial(compact, older_layouts=True)
fork = multiprocessing.get_context("fork")
SMALL = Candidates(most_bytes=1500)
OTHER = {"buckets": 7, "buckets_per_range": 3, "guard": "seq"}
STEPS = ["locked", "begun", "piece", "written", "publishing", "published"]


@pytest.fixture
def orders(store: Store, tmp_path: Path) -> Store:
    """A store with a queue of 20 buckets in two units, whose files are in a folder of the test's."""
    store.database.segments = str(tmp_path / "segments")
    store.configure_queue("orders", buckets=20, buckets_per_range=10, value="bytes")
    return store


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_CHUNK_ROWS", 7)


def fill(store: Store, *, seed: int, queue_id: str = "orders") -> None:
    """Add rows, files, and tombstones of both kinds."""
    chance = random.Random(seed)
    for number in range(6):
        keys = chance.sample(sorted(many(60)), 30)
        value = None if number == chance.randrange(6) else f"{seed}-{number}".encode()
        if number % 3 == 2:
            bulk.put(store, keys, value, queue_id=queue_id)
        else:
            bulk.load(store, dict.fromkeys(keys, value), tasks=2, queue_id=queue_id)


def entries_of(
    store: Store, layout: Layout, snapshot: Snapshot | None = None, queue_id: str = "orders"
) -> list[tuple[int, bytes, int, bytes | None]]:
    """Read what a drain would bring of one layout, in its order."""
    queue = store.queue(queue_id).laid_out_as(layout)
    seen = snapshot or take_snapshot(store.database)
    found: list[tuple[int, bytes, int, bytes | None]] = []
    for unit in queue.units():
        with store.database.read() as work:
            segments = waiting_segments(work, queue, seen, unit)
            reader = UnitReader(queue, seen, unit, segments, rows=1000, size=1 << 20)
            while chunk := reader.read(work).entries:
                found += zip(chunk.buckets, chunk.keys, chunk.seqs, chunk.values, strict=True)
        reader.close()
    assert all(at == bucket(key, layout.buckets) for at, key, *_ in found)
    return found


def waits(store: Store, snapshot: Snapshot | None = None, queue_id: str = "orders") -> list[tuple[bytes, int, Any]]:
    """Read all that waits, in whichever layout."""
    with store.database.read() as work:
        queue = find_queue(work, queue_id)
    return sorted(row[1:] for one in queue.layouts() for row in entries_of(store, one, snapshot, queue_id))


def older(store: Store, queue_id: str = "orders") -> list[int]:
    with store.database.read() as work:
        return [one.number for one in find_queue(work, queue_id).older]


def files(store: Store) -> int:
    return sum(path.is_file() for path in Path(str(store.database.segments)).rglob("*"))


def drained(store: Store, sink: MemorySink | None = None, **options: Any) -> tuple[dict[bytes, Any], int]:
    sink = sink or MemorySink()
    report = drain(store, "orders", sink, sink_name="sink", **options)
    return {key[1]: value for key, value in sink.records().items()}, report.read


def newest(entries: list[tuple[bytes, int, Any]]) -> dict[bytes, Any]:
    """The records that a sink ends with."""
    found = {key: value for key, _, value in entries}  # sorted by key and seq
    return {key: value for key, value in found.items() if value is not None}


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("wanted", [None, SMALL], ids=["one piece", "many pieces"])
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param({"buckets": 7, "buckets_per_range": 3}, id="both"),
        pytest.param({"buckets": 20, "buckets_per_range": 3}, id="units"),
        pytest.param({"buckets": 40}, id="buckets", marks=pytest.mark.full("as both")),
    ],
)
def test_all_that_waits_moves_and_nothing_of_it_changes(
    orders: Store, layout: dict[str, int], wanted: Candidates | None
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    fill(orders, seed=seed)
    early, before, there = take_snapshot(orders.database), waits(orders), files(orders)
    orders.alter_queue("orders", **layout, guard="seq")
    bulk.put(orders, ["new"], b"new")
    report = orders.compact("orders", older_layouts=True, wanted=wanted)
    assert [unit.range.layout for unit in report.units] == [1, 1]
    assert report.read == report.written + report.superseded == len(before)
    assert report.rows == 60
    assert len(report.files) == files(orders) - there
    assert (len(report.files) > 4) == (wanted is not None)
    queue = orders.queue("orders")
    assert (queue.older, older(orders)) == ((), [])
    new = next(row for row in waits(orders) if row[0] == b"new")
    assert waits(orders) == sorted([*before, new])
    assert waits(orders, early) == before
    assert sum(unit.entries for unit in orders.backlog("orders")) == len(before) + 1
    sink = MemorySink()
    assert drained(orders, sink)[1] == len(before) + 1
    assert newest(sorted([*before, new])) == {k[1]: v for k, v in sink.records().items()}
    vacuum_segments(orders.database, grace_seconds=0)
    assert (waits(orders), files(orders)) == ([], 0)


def test_units_that_are_too_fine_are_moved_together(orders: Store) -> None:
    orders.alter_queue("orders", buckets=40, buckets_per_range=1, guard="seq")
    for number in range(3):
        bulk.load(orders, many(60, f"{number}".encode()))
    before = waits(orders)
    orders.alter_queue("orders", buckets=4, buckets_per_range=2, guard="seq")
    report = orders.compact("orders", older_layouts=True)
    assert len(report.units) > 20
    assert (report.outputs, len(report.files)) == (2, 1)
    assert waits(orders) == before


def fails_behind(sink: MemorySink, batches: int) -> Callable[[], None]:
    """Let a sink fail at a batch; returns what ends that."""
    step, left = sink.apply, iter(range(batches))

    def apply(operations: Any) -> Any:
        if next(left, None) is None:
            raise ExportQueueError("enough")
        return step(operations)

    def go_on() -> None:
        sink.apply = step  # type: ignore[method-assign]

    sink.apply = apply  # type: ignore[method-assign]
    return go_on


@pytest.mark.parametrize("group_rows", [writing.GROUP_ROWS, 3], ids=["part of a row group", "whole row groups"])
def test_what_is_drained_is_left_out(orders: Store, monkeypatch: pytest.MonkeyPatch, group_rows: int) -> None:
    monkeypatch.setattr(writing, "GROUP_ROWS", group_rows)
    fill(orders, seed=1)
    everything, sink = len(waits(orders)), MemorySink()
    go_on = fails_behind(sink, 4)
    with pytest.raises(ExportQueueError, match="enough"):
        drained(orders, sink, chunk_rows=7)
    go_on()
    left = waits(orders)
    assert 0 < len(left) < everything
    orders.alter_queue("orders", **OTHER)
    report = orders.compact("orders", older_layouts=True)
    assert report.read == report.written == len(left)
    assert waits(orders) == left


def test_several_layouts_are_moved_at_once_and_merged_segments_too(orders: Store) -> None:
    fill(orders, seed=2)
    compact(orders.database, "orders", wanted=Candidates(least=2))
    orders.alter_queue("orders", **OTHER)
    fill(orders, seed=3)
    orders.alter_queue("orders", buckets=5, buckets_per_range=1, guard="seq")
    fill(orders, seed=4)
    before = waits(orders)
    report = orders.compact("orders", older_layouts=True)
    assert {unit.range.layout for unit in report.units} == {1, 2}
    assert report.read == report.written == len(before) * 2 // 3
    assert (waits(orders), older(orders)) == (before, [])
    compact(orders.database, "orders", wanted=Candidates(least=2))
    assert waits(orders) == before
    assert drained(orders)[1] == len(before)


def test_each_subscription_moves_what_it_has_not_drained(store: Store, tmp_path: Path) -> None:
    store.database.segments = str(tmp_path / "segments")
    store.configure_queue("orders", buckets=20, buckets_per_range=10, value="bytes", subscriptions=["search", "cache"])
    fill(store, seed=5)
    before = waits(store, queue_id="orders/search")
    drain(store, "orders/cache", MemorySink(), sink_name="cache")
    store.alter_queue("orders", **OTHER)
    assert store.compact("orders/cache", older_layouts=True).read == 0
    assert older(store, "orders/cache") == [1]
    report = store.compact("orders/search", older_layouts=True)
    assert report.read == len(before)
    assert waits(store, queue_id="orders/search") == before
    assert (waits(store, queue_id="orders/cache"), older(store, "orders/search")) == ([], [])


def test_a_unit_that_is_worked_on_is_passed_over_and_keeps_its_layout_open(orders: Store) -> None:
    fill(orders, seed=6)
    queue, before, sink = orders.queue("orders"), waits(orders), MemorySink()
    leases = claim(orders.database, queue, queue.units()[:1], owner=Owner("other", "1"), lease_seconds=60)
    orders.alter_queue("orders", **OTHER)
    report = rewrite(orders.database, "orders")
    assert (len(report.units), report.passed_over, report.lost, report.still_open) == (1, 1, 0, (1,))
    assert waits(orders) == before
    assert drained(orders, sink, if_locked="skip")[1] == report.written
    release(orders.database, leases)
    report = rewrite(orders.database, "orders")
    assert (len(report.units), report.passed_over, report.still_open) == (1, 0, ())
    assert drained(orders, sink)[1] == report.written


def test_compactions_of_the_current_layout_do_not_mind_the_locks_of_older_ones(orders: Store) -> None:
    queue = orders.queue("orders")
    claim(orders.database, queue, queue.units(), owner=Owner("other", "1"), lease_seconds=60)
    orders.alter_queue("orders", **OTHER)
    fill(orders, seed=7)
    assert compact(orders.database, "orders", wanted=Candidates(least=2)).passed_over == 0


def test_what_is_not_settled_stays_and_what_its_layout_gets_later_is_moved_by_the_next_run(orders: Store) -> None:
    fill(orders, seed=8)
    count = len(waits(orders))
    with orders.transaction(long=True) as late:
        bulk.add(late, orders, many(40, b"late"))
        late.queue("orders").add("late-row", b"late")
        bulk.put(orders, list(many(40)), b"row")
        orders.alter_queue("orders", **OTHER)
        report = rewrite(orders.database, "orders")
        assert (report.read, report.still_open) == (count, (1,))
        assert len(waits(orders)) == count + 40
    before = waits(orders)
    assert len(before) == count + 81
    report = rewrite(orders.database, "orders")
    assert (report.read, report.still_open) == (81, ())
    assert waits(orders) == before


@pytest.mark.parametrize(
    "moment",
    ["locked", "written", "published"]
    + [pytest.param(step, marks=pytest.mark.full("more steps")) for step in ("begun", "piece")],
)
def test_a_rewriting_ends_in_the_layout_in_which_it_has_begun_though_the_queue_is_altered(
    orders: Store, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    fill(orders, seed=9)
    before, sink, brought = waits(orders), MemorySink(), list[int]()
    orders.alter_queue("orders", **OTHER)

    def alter(step: str) -> None:
        if step == moment and not brought:
            orders.alter_queue("orders", buckets=5, buckets_per_range=1, guard="seq")
            brought.append(drained(orders, sink, if_locked="skip")[1])

    monkeypatch.setattr(watched_steps, "WATCHERS", [alter])
    rewrite(orders.database, "orders", wanted=SMALL)
    monkeypatch.undo()
    left = waits(orders)
    rewrite(orders.database, "orders")
    assert waits(orders) == left
    assert older(orders) == []
    brought.append(drained(orders, sink)[1])
    assert {k[1]: v for k, v in sink.records().items()} == newest(before)
    assert (sum(brought), waits(orders)) == (len(before), [])


def test_nothing_is_moved_into_a_layout_that_was_closed_as_it_was_chosen(
    orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id was drawn between the last one that the alteration had seen and its end."""
    fill(orders, seed=28)
    orders.alter_queue("orders", **OTHER)
    before, there = waits(orders), files(orders)

    def alter(step: str) -> None:
        if step == "begun":
            orders.alter_queue("orders", buckets=5, buckets_per_range=1, guard="seq")
            with orders.database.begin() as work:
                work.connection.execute(layout_table.update().where(layout_table.c.layout == 2).values(ceased_id=1))
            close_layouts(orders.database, orders.queue("orders"))
            assert older(orders) == [1]

    monkeypatch.setattr(watched_steps, "WATCHERS", [alter])
    report = rewrite(orders.database, "orders")
    assert (report.units, report.lost) == ([], 2)
    assert (waits(orders), files(orders)) == (before, there)


def test_a_drain_that_has_waited_takes_the_locks_away(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(orders, seed=10)
    everything, sink, reports = len(waits(orders)), MemorySink(), list[Any]()
    orders.alter_queue("orders", **OTHER)
    there = files(orders)

    def drain_twice(step: str) -> None:
        if step == "written":
            bulk.put(orders, ["new"], b"new")
            reports.append(drain(orders, "orders", sink, sink_name="sink", if_locked="skip"))
            reports.append(drain(orders, "orders", sink, sink_name="sink", lock_timeout=0.1))

    monkeypatch.setattr(watched_steps, "WATCHERS", [drain_twice])
    report = rewrite(orders.database, "orders")
    assert [one.read for one in reports] == [1, everything]
    assert (report.units, report.lost, files(orders)) == ([], 2, there)
    assert (waits(orders), older(orders)) == ([], [])


def held(store: Store) -> int:
    """Count the locks whose holders may work."""
    with store.database.read() as work:
        return len(queries.locks.of_queue(work, store.queue("orders").number, now=work.now()))


def test_a_drain_brings_what_is_moved_behind_its_look(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the drain has promised lies in units by then that had nothing when it looked for work."""
    fill(orders, seed=11)
    everything, sink, take = len(waits(orders)), MemorySink(), claims.claim
    orders.alter_queue("orders", **OTHER)
    moved: list[int] = []

    def move_before(*arguments: Any, **options: Any) -> Any:
        if not moved:
            moved.append(rewrite(orders.database, "orders").written)
        return take(*arguments, **options)

    monkeypatch.setattr(claims, "claim", move_before)
    assert drained(orders, sink)[1] == everything == moved[0]


def test_a_drain_brings_what_is_moved_into_a_layout_that_came_behind_its_start(
    orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(orders, seed=12)
    everything, sink, take = len(waits(orders)), MemorySink(), claims.claim
    moved: list[int] = []

    def move_before(*arguments: Any, **options: Any) -> Any:
        if not moved:
            orders.alter_queue("orders", **OTHER)
            moved.append(rewrite(orders.database, "orders").written)
        return take(*arguments, **options)

    monkeypatch.setattr(claims, "claim", move_before)
    assert drained(orders, sink)[1] == everything == moved[0]
    assert older(orders) == []


def test_a_drain_that_waits_for_a_rewriting_brings_what_it_has_moved(
    orders: Store, open_store: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(orders, seed=13)
    orders.alter_queue("orders", **OTHER)
    fill(orders, seed=14)
    everything, sink, reports = len(waits(orders)), MemorySink(), list[Any]()

    def bring() -> None:
        with open_store() as mine:
            mine.database.segments = orders.database.segments
            reports.append(drain(mine, "orders", sink, sink_name="sink", lock_timeout=PATIENCE))

    thread = threading.Thread(target=bring)

    def wait(step: str) -> None:
        if step == "locked":
            thread.start()
            wait_until(
                lambda: {unit.range.layout for unit in orders.backlog("orders")} == {1},
                "the drain has not brought what lies in the current layout",
            )

    monkeypatch.setattr(watched_steps, "WATCHERS", [wait])
    moved = rewrite(orders.database, "orders").written
    thread.join(PATIENCE)
    assert [report.read for report in reports] == [everything]
    assert 0 < moved < everything


def test_what_moves_while_somebody_looks_is_counted_once(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(orders, seed=15)
    everything, count = len(waits(orders)), read._backlog_in_layout
    orders.alter_queue("orders", **OTHER)
    moved: list[int] = []

    def move_behind(*arguments: Any) -> Any:
        found = count(*arguments)
        if not moved:
            moved.append(rewrite(orders.database, "orders").written)
        return found

    monkeypatch.setattr(read, "_backlog_in_layout", move_behind)
    assert sum(unit.entries for unit in orders.backlog("orders")) == everything == moved[0]


def test_what_moves_while_somebody_peeks_is_shown_once(orders: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(orders, seed=16)
    everything, look = len(waits(orders)), peek.__globals__["_peek_in_layout"]
    orders.alter_queue("orders", **OTHER)
    moved: list[int] = []

    def move_behind(*arguments: Any, **options: Any) -> Any:
        found = look(*arguments, **options)
        if not moved:
            moved.append(rewrite(orders.database, "orders").written)
        return found

    monkeypatch.setitem(peek.__globals__, "_peek_in_layout", move_behind)
    assert len(orders.peek("orders", limit=1000)) == everything == moved[0]


def test_a_row_that_comes_back_among_those_that_move_is_not_lost(
    orders: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(orders, seed=17)
    queue, layout = orders.queue("orders"), Layout(1, 20, 10)
    _, (bucket_of, key, seq, value), *_ = (row for row in entries_of(orders, layout) if row[3] == b"17-2")
    before = waits(orders)
    with orders.database.begin() as work:
        queries.entries.delete_entries(work, queue.number, queue.layout, [(bucket_of, key, seq)])
    orders.alter_queue("orders", **OTHER)
    place = {"queue_number": queue.number, "layout": 1, "bucket": bucket_of, "key": key, "seq": seq}

    def retry(step: str) -> None:
        if step == "written":
            with orders.database.begin() as work:
                work.connection.execute(entry.insert(), {**place, "value": value})

    monkeypatch.setattr(watched_steps, "WATCHERS", [retry])
    report = rewrite(orders.database, "orders")
    assert (len(report.units), report.lost) == (0, 2)
    assert waits(orders) == before


def test_a_dry_run_changes_nothing(orders: Store) -> None:
    fill(orders, seed=18)
    orders.alter_queue("orders", **OTHER)
    before, there = waits(orders), files(orders)
    report = orders.compact("orders", older_layouts=True, dry_run=True)
    assert (len(report.units), report.inputs, report.rows, report.read) == (2, 16, 60, len(before))
    assert (report.written, report.outputs, report.files) == (0, 0, [])
    assert (waits(orders), files(orders), older(orders)) == (before, there, [1])


def test_where_nothing_waits_in_older_layouts_they_are_closed_and_nothing_is_done(orders: Store) -> None:
    assert rewrite(orders.database, "orders").line().startswith("orders: 0 segments and 0 rows in 0 units")
    with orders.transaction(long=True) as late:
        _ = late.id
        orders.alter_queue("orders", **OTHER)
        assert rewrite(orders.database, "orders").still_open == (1,)
    orders.database.segments = None  # no place for files is needed
    report = rewrite(orders.database, "orders")
    assert (report.units, report.still_open, older(orders)) == ([], (), [])


def test_what_is_worth_it_is_no_question(orders: Store) -> None:
    with pytest.raises(InvalidArgument, match="takes everything that is pending there"):
        orders.compact("orders", older_layouts=True, wanted=Candidates(least=2))


def test_for_sinks_without_ranks_there_is_nothing_to_rewrite(orders: Store) -> None:
    """Their queue is altered only while it is empty, and its older layouts are closed from the beginning."""
    fill(orders, seed=19)
    with pytest.raises(InvalidArgument, match="expected an empty queue"):
        orders.alter_queue("orders", buckets=7, buckets_per_range=3)
    assert rewrite(orders.database, "orders").read == 0
    drained(orders)
    orders.alter_queue("orders", buckets=7, buckets_per_range=3)
    report = rewrite(orders.database, "orders")
    assert (report.read, report.still_open) == (0, ())


@pytest.mark.usefixtures("small_chunks")
def test_a_job_that_is_told_to_stop_gives_its_locks_back_amid_a_unit(orders: Store) -> None:
    fill(orders, seed=20)
    orders.alter_queue("orders", **OTHER)
    before, there = waits(orders), files(orders)
    done: list[int] = []
    report = rewrite(
        orders.database, "orders", stops=lambda: len(done) == 3, on_progress=lambda progress: done.append(progress.done)
    )
    assert (report.units, report.lost, report.passed_over) == ([], 0, 0)
    assert (waits(orders), files(orders), older(orders)) == (before, there, [1])
    assert held(orders) == 0
    done.clear()
    total = len(before)
    rewrite(orders.database, "orders", on_progress=lambda progress: done.append(progress.done * 100 // progress.total))
    assert done == sorted(done)
    assert done[-1] == 100
    assert drained(orders)[1] == total


def lost_file(store: Store, layout: int) -> tuple[str, Callable[[], None]]:
    """Take away the first file of what waits in a layout; returns its name, and what brings it back."""
    with store.database.read() as work:
        queue = find_queue(work, "orders")
        found = waiting_segments(work, queue.in_layout(layout), take_snapshot(store.database), queue.units()[0])
    path = Path(found[0].file)
    aside = path.rename(path.with_suffix(".aside"))
    return str(path), lambda: Path(aside.rename(path)).touch()


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("is_drained", [False, True])
def test_a_lost_file_gives_way_to_what_it_was_rewritten_of(orders: Store, is_drained: bool) -> None:
    fill(orders, seed=21)
    before, sink = waits(orders), MemorySink()
    orders.alter_queue("orders", **OTHER)
    rewrite(orders.database, "orders", wanted=SMALL)
    if is_drained:
        go_on = fails_behind(sink, 3)
        with pytest.raises(ExportQueueError, match="enough"):
            drained(orders, sink, chunk_rows=9)
        go_on()
    left = waits(orders)
    file, _ = lost_file(orders, 2)
    with pytest.raises(SegmentLost, match="export-queue fall-back"):
        drained(orders, sink)
    found = orders.dead_letters.fall_back("orders", file)
    assert (found.moved_back, found.given_up) == (True, 0)
    assert "count again in their older layout" in found.line()
    assert older(orders) == [1]
    assert set(left) <= set(waits(orders)) <= set(before)
    assert (len(left) < len(before)) == is_drained
    rewrite(orders.database, "orders")
    drained(orders, sink)
    assert {k[1]: v for k, v in sink.records().items()} == newest(before)
    vacuum_segments(orders.database, grace_seconds=0, zombie_seconds=-1)
    assert (waits(orders), older(orders)) == ([], [])


def test_a_lost_file_of_rows_has_nothing_to_fall_back_on(orders: Store) -> None:
    bulk.put(orders, list(many(40)), b"row")
    orders.alter_queue("orders", **OTHER)
    rewrite(orders.database, "orders")
    file, _ = lost_file(orders, 2)
    with pytest.raises(InvalidArgument, match="found rows, which are in no other file"):
        orders.dead_letters.fall_back("orders", file)
    assert orders.dead_letters.give_up_file("orders", file) == 40
    assert waits(orders) == []


def test_a_fall_back_goes_hop_by_hop_from_a_compaction_to_the_older_layout(orders: Store) -> None:
    for number in range(3):
        bulk.load(orders, many(60, f"{number}".encode()))
    before = waits(orders)
    orders.alter_queue("orders", **OTHER)
    rewrite(orders.database, "orders")
    bulk.load(orders, many(60, b"later"))
    everything = waits(orders)
    compact(orders.database, "orders", wanted=Candidates(least=2))
    merged, _ = lost_file(orders, 2)
    assert not orders.dead_letters.fall_back("orders", merged).moved_back
    assert waits(orders) == everything
    moved, _ = lost_file(orders, 2)
    assert orders.dead_letters.fall_back("orders", moved).moved_back
    assert waits(orders) == everything
    assert drained(orders)[1] == len(everything) > len(before)


def test_what_a_compaction_has_merged_of_a_move_is_delivered_twice_after_its_fall_back(orders: Store) -> None:
    bulk.load(orders, many(60, b"first"))
    before = waits(orders)
    orders.alter_queue("orders", **OTHER)
    rewrite(orders.database, "orders")
    bulk.load(orders, {"key-1": b"later"})
    everything = waits(orders)
    report = compact(orders.database, "orders", wanted=Candidates(least=2))
    assert 1 < report.read < len(before)
    moved = next(file for file in orders.bulk_files() if "rewritten" in file)
    Path(moved).unlink()
    assert orders.dead_letters.fall_back("orders", moved).moved_back
    assert sorted(set(waits(orders))) == everything
    twice = report.read - 1
    assert sum(unit.entries for unit in orders.backlog("orders")) == len(everything) + twice
    assert drained(orders) == (newest(everything), len(everything) + twice)
    assert (waits(orders), older(orders)) == ([], [])


def test_inputs_are_kept_while_anything_that_they_became_waits(orders: Store) -> None:
    for number in range(3):
        bulk.load(orders, many(60, f"{number}".encode()))
    inputs = files(orders)
    orders.alter_queue("orders", **OTHER)
    written = len(rewrite(orders.database, "orders").files)
    first, *rest = orders.queue("orders").units()
    sink = MemorySink()
    drain(orders, "orders", sink, sink_name="sink", ranges=[first])
    assert vacuum_segments(orders.database, grace_seconds=0).files == 0
    drain(orders, "orders", sink, sink_name="sink", ranges=rest)
    assert vacuum_segments(orders.database, grace_seconds=0).files == inputs + written
    assert files(orders) == 0


def test_each_layout_shows_what_has_become_of_its_segments(orders: Store) -> None:
    fill(orders, seed=22)
    orders.alter_queue("orders", **OTHER)
    report = rewrite(orders.database, "orders")
    bulk.load(orders, many(10, b"later"))
    with orders.database.read() as work:
        queue = find_queue(work, "orders")
        shown = list_segments(work, queue.laid_out_as(Layout(1, 20, 10)))
        found = list_segments(work, queue)
    assert {one.state for one in shown} == {"hidden"}
    assert {one.range.layout for one in shown} == {1}
    (by,) = {one.hidden_by for one in shown}
    assert len(shown) == report.inputs
    moved = {one.segment for one in found if one.segment.startswith(f"{by}.")}
    assert len(moved) == report.outputs
    assert {one.range.layout for one in found} == {2}
    assert {one.state for one in found} == {"visible"}
    drained(orders)
    with orders.database.read() as work:
        states = {one.state for one in list_segments(work, find_queue(work, "orders"))}
    assert states == {"retired"}


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("moment", STEPS)
def test_a_rewriting_that_is_killed_leaves_the_state_before_or_after(
    orders: Store, open_store: Callable[[], Store], moment: str
) -> None:
    fill(orders, seed=23)
    orders.alter_queue("orders", **OTHER)
    before, there = waits(orders), files(orders)

    def work() -> None:
        def die(step: str) -> None:
            if step == moment:
                os.kill(os.getpid(), signal.SIGKILL)

        watched_steps.WATCHERS[:] = [die]
        with open_store() as mine:
            mine.database.segments = orders.database.segments
            rewrite(mine.database, "orders", wanted=SMALL, owner=Owner("rewriting"), lease_seconds=5.0)

    process = fork.Process(target=work)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert waits(orders) == before
    assert held(orders) == (0 if moment == "published" else 1)
    with orders.database.begin() as clean_up:
        queries.registrations.end_all(clean_up)
    report = rewrite(orders.database, "orders", wanted=SMALL, owner=Owner("rewriting"))
    assert len(report.units) == (1 if moment == "published" else 2)
    assert (waits(orders), older(orders)) == (before, [])
    maintain(orders.database, patience=Patience(files=0))
    assert files(orders) >= there
    assert drained(orders)[1] == len(before)
    maintain(orders.database, patience=Patience(files=0))
    assert files(orders) == 0


@pytest.mark.full("ten seconds: processes are started and killed while the queue is altered, loaded and drained")
def test_rewritings_that_are_killed_while_the_queue_is_altered_lose_and_double_nothing(
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
                rewrite(mine.database, "orders", wanted=SMALL, owner=Owner("rewriting"), lease_seconds=5.0)

    read = loaded = 0
    for round_ in range(8):
        process = fork.Process(target=work)
        process.start()
        for number in range(chance.randrange(4, 10)):
            value = f"{round_}-{number}".encode()
            keys = chance.sample(sorted(many(60)), 20)
            if chance.random() < 0.7:
                bulk.load(orders, dict.fromkeys(keys, value))
            else:
                bulk.put(orders, keys, value)
            expected |= dict.fromkeys(keys, value)
            loaded += len(keys)
            if number % 3 == 1:
                orders.alter_queue("orders", buckets=chance.randrange(4, 40), buckets_per_range=3, guard="seq")
        process.kill()
        process.join(60)
        if round_ % 2:
            read += drained(orders, sink, lock_timeout=0.1)[1]
    read += drained(orders, sink, lock_timeout=0.1)[1]
    assert {key[1]: value for key, value in sink.records().items()} == {k.encode(): v for k, v in expected.items()}
    assert read == loaded
    assert waits(orders) == []
