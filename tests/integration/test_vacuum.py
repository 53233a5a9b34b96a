"""The vacuum: files go a while after nothing refers to them, and a dry run only looks (I11, I12)."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support import bulk
from tests.support.bulk import many

from export_queue import Candidates, MemorySink, Range, Store, drain
from export_queue.core.maintenance import maintain
from export_queue.core.segments import Vacuumed, compact, vacuum, vacuum_segments, waiting_segments
from export_queue.core.store import queries, schema
from export_queue.core.transactions import take_snapshot

pytestmark = pytest.mark.one_store("which files go is decided in the same way on each store")

HOUR = 3600
FEW = Candidates(least=2)
EVERYTHING = Range(0, 20)
fork = multiprocessing.get_context("fork")


@pytest.fixture
def orders(store: Store, tmp_path: Path) -> Store:
    """A store with a queue of four units, whose files are in a folder of the test's."""
    store.database.segments = str(tmp_path / "segments")
    store.configure_queue("orders", buckets=20, buckets_per_range=5, value="bytes")
    return store


def files(store: Store) -> set[str]:
    return {str(path) for path in Path(str(store.database.segments)).rglob("*") if path.is_file()}


def drain_all(store: Store) -> int:
    return drain(store, "orders", MemorySink(), sink_name="sink").read


def let_pass(store: Store, *, seconds: int) -> None:
    """Let what was noted of files, and runs of clean-up, look as if it had been earlier."""
    with store.database.begin() as work:
        for column in (schema.unused_file.c.since_ms, schema.low_watermark.c.at_ms):
            work.connection.execute(column.table.update().values({column: column - 1000 * seconds}))


def stored(store: Store) -> dict[str, list[Any]]:
    with store.database.read() as work:
        return {
            name: sorted(map(tuple, work.connection.execute(table.select())), key=repr)
            for name, table in schema.metadata.tables.items()
        }


def waiting(found: Vacuumed) -> set[str]:
    return {one.file for one in found.waiting}


def drained(store: Store) -> None:
    bulk.load(store, many(30), tasks=2)
    drain_all(store)


def aborted(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), store.transaction(long=True) as tx:
        bulk.add(tx, store, many(30), tasks=2)
        raise ZeroDivisionError


def never_staged(store: Store) -> None:
    with store.transaction(long=True) as tx:
        bulk.write(store, tx.id, many(30), tasks=2)


def superseded(store: Store) -> None:
    for _ in range(2):
        bulk.load(store, many(30))
    compact(store.database, "orders", wanted=FEW)
    with store.database.begin() as work:
        work.connection.execute(schema.hidden_segment.update().values(hidden_ms=0))


@pytest.mark.parametrize("left_by", [drained, aborted, never_staged, superseded])
def test_a_file_stays_for_an_hour_after_a_run_has_found_that_nothing_refers_to_it(
    orders: Store, left_by: Callable[[Store], None]
) -> None:
    left_by(orders)
    needed = set(orders.bulk_files())
    unused = files(orders) - needed
    assert len(unused) == 2
    for _ in range(2):
        found = vacuum_segments(orders.database)
        assert (found.deleted, waiting(found)) == ((), unused)
        assert maintain(orders.database).segment_files == 0
    let_pass(orders, seconds=HOUR - 60)
    found = vacuum_segments(orders.database)
    assert (found.files, waiting(found)) == (0, unused)
    assert all(0 < one.seconds <= 60 for one in found.waiting)
    let_pass(orders, seconds=60)
    assert maintain(orders.database).segment_files == 0  # the first to find them old
    let_pass(orders, seconds=600)
    assert maintain(orders.database).segment_files == 2
    assert files(orders) == needed
    assert vacuum_segments(orders.database, zombie_seconds=0.0).waiting == ()


def test_a_transaction_is_not_forgotten_before_the_grace_time_of_its_last_file(orders: Store) -> None:
    """The end of a folder takes along all that is in it."""
    drained(orders)
    for _ in range(2):
        assert len(vacuum_segments(orders.database, zombie_seconds=0.0).waiting) == 2
    let_pass(orders, seconds=HOUR)
    assert vacuum_segments(orders.database, zombie_seconds=0.0).files == 2
    found = stored(orders)
    assert found["xq_load"] == found["xq_unused_file"] == []


def test_the_grace_time_of_a_file_begins_with_itself(orders: Store) -> None:
    number, _ = bulk.load(orders, many(30))
    drain_all(orders)
    vacuum_segments(orders.database)
    let_pass(orders, seconds=HOUR)
    late = Path(str(orders.database.segments)) / orders.id / str(number) / "late.parquet"
    late.write_bytes(b"of a task that went on")
    found = vacuum_segments(orders.database)
    assert (found.files, waiting(found)) == (1, {str(late)})


def test_a_clock_that_was_ahead_keeps_no_file_for_longer(orders: Store) -> None:
    drained(orders)
    vacuum_segments(orders.database)
    let_pass(orders, seconds=-365 * 24 * HOUR)
    assert {one.seconds for one in vacuum_segments(orders.database).waiting} == {HOUR}
    let_pass(orders, seconds=HOUR)
    assert vacuum_segments(orders.database).files == 2


def test_files_of_a_forgotten_transaction_are_forgotten(orders: Store) -> None:
    """Code of schema 4 forgets a transaction alone, and a run may note files while another one forgets."""
    drained(orders)
    vacuum_segments(orders.database)
    with orders.database.begin() as work:
        work.connection.execute(schema.load.delete())
    assert vacuum_segments(orders.database).waiting == ()
    assert stored(orders)["xq_unused_file"] == []


def in_several_hops(store: Store) -> None:
    """Two compactions one above the other, of which a part is drained, and some of all else."""
    for _ in range(2):
        for _ in range(2):
            bulk.load(store, many(30), tasks=2)
        bulk.put(store, list(many(20)), b"row")
        compact(store.database, "orders", wanted=FEW)
    drain(store, "orders", MemorySink(), sink_name="sink", ranges=[[0, 10]])
    bulk.load(store, many(30))
    aborted(store)


@pytest.mark.parametrize("hidden_seconds", [-1.0, HOUR])
@pytest.mark.parametrize("older", ["none", "the lower hop", "the upper hop"])
def test_a_dry_run_foretells_a_run_and_writes_nothing(orders: Store, hidden_seconds: float, older: str) -> None:
    in_several_hops(orders)
    with orders.database.begin() as work:
        hidden = schema.hidden_segment
        lower = hidden.c.by_transaction.in_(sa.select(hidden.alias("upper").c.transaction_id))
        of = {"none": hidden.c.number < 0, "the lower hop": lower, "the upper hop": ~lower}[older]
        work.connection.execute(hidden.update().where(of).values(hidden_ms=0))
    before, there = stored(orders), files(orders)
    foretold = vacuum_segments(orders.database, grace_seconds=0, hidden_seconds=hidden_seconds, dry_run=True)
    later = vacuum_segments(orders.database, hidden_seconds=hidden_seconds, dry_run=True)
    assert (stored(orders), files(orders)) == (before, there)
    assert (later.deleted, waiting(later)) == ((), set(foretold.deleted))
    found = vacuum_segments(orders.database, grace_seconds=0, hidden_seconds=hidden_seconds)
    assert found == foretold
    assert files(orders) == there - set(found.deleted) >= set(orders.bulk_files())


def test_what_lies_below_a_hidden_segment_is_kept_as_long_as_that_one(orders: Store) -> None:
    """So that a fall-back may go from hop to hop."""
    merged = []
    for _ in range(2):
        for _ in range(2):
            bulk.load(orders, many(30))
        merged += compact(orders.database, "orders", wanted=FEW).files
    there = files(orders)
    assert vacuum_segments(orders.database, grace_seconds=0).deleted == ()
    for file in reversed(merged):
        assert orders.dead_letters.fall_back("orders", file).given_up == 0
    assert vacuum_segments(orders.database, grace_seconds=0).files == 2
    assert files(orders) == there - set(merged) == set(orders.bulk_files())
    assert drain_all(orders) == 4 * 30


def test_a_dry_run_waits_for_no_writer(orders: Store, open_store: Callable[[], Store]) -> None:
    drained(orders)
    with open_store() as other, orders.database.begin() as work:
        work.connection.execute(schema.load.update().values(segments=schema.load.c.segments))
        assert len(vacuum_segments(other.database, dry_run=True).waiting) == 2


@pytest.mark.full("seven seconds: fifty processes, of which nearly all are killed")
def test_a_vacuum_that_is_killed_at_any_step_is_finished_by_the_next(
    orders: Store, open_store: Callable[[], Store]
) -> None:
    steps = [(vacuum, name) for name in ("list_files", "delete_file", "delete_folder")]
    steps += [
        (queries.vacuum, name)
        for name in ("ended_loads", "delete_unread", "note_end", "files", "unused_since", "note_unused", "forget")
    ]
    steps += [(queries.vacuum, name) for name in ("forget_hidden", "forget_strays")]
    for number in range(4):
        bulk.load(orders, many(30, b"%d" % number), tasks=2)
    bulk.put(orders, list(many(20)), b"row")
    inputs = files(orders)
    compact(orders.database, "orders", wanted=FEW)
    bulk.load(orders, many(30, b"later"))
    there = files(orders)

    def work(last: int) -> None:
        left = iter(range(last))

        def dies_behind(step: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                found = step(*arguments, **options)
                if next(left, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                return found

            return call

        for module, name in steps:
            setattr(module, name, dies_behind(getattr(module, name)))
        with open_store() as mine:
            mine.database.segments = orders.database.segments
            vacuum_segments(mine.database, hidden_seconds=-1, zombie_seconds=0.0)

    def kill_at_each_step(least: set[str]) -> int:
        last, ended = 0, None
        while ended != 0:
            process = fork.Process(target=work, args=(last,))
            process.start()
            process.join(60)
            ended = process.exitcode
            assert ended in (0, -signal.SIGKILL)
            assert files(orders) >= least
            with orders.database.read() as reading:
                found = waiting_segments(reading, orders.queue("orders"), take_snapshot(orders.database), EVERYTHING)
            assert {one.file for one in found} == set(orders.bulk_files()) == needed
            last = last + 1 if ended else last
        return last

    needed = set(orders.bulk_files())
    assert kill_at_each_step(there) > len(steps)
    noted = stored(orders)["xq_unused_file"]
    assert {file for _, file, _ in noted} == inputs
    vacuum_segments(orders.database, hidden_seconds=-1)
    assert stored(orders)["xq_unused_file"] == noted
    let_pass(orders, seconds=HOUR)
    assert kill_at_each_step(needed) > len(steps)
    assert files(orders) == there - inputs == needed
    assert drain_all(orders) == 4 * 30 + 20 + 30
    vacuum_segments(orders.database, grace_seconds=0, zombie_seconds=0.0)
    assert files(orders) == set()
