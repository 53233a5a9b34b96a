"""A clock that steps by hours or days, forward and back (I1, I2, I5, I12, I14)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from tests.battery import plants
from tests.support import bulk
from tests.support.bulk import many

from export_queue import (
    Candidates,
    CommitOutcomeUnknown,
    ConflictError,
    InvalidArgument,
    MemorySink,
    Owner,
    RegistrationLost,
    SnapshotTooOld,
    Store,
    drain,
    verify,
)
from export_queue.core.locks import begin_attempt
from export_queue.core.maintenance import Patience, vacuum
from export_queue.core.segments import compact
from export_queue.core.store import schema
from export_queue.core.store.creation import MAX_FLOOR

HOUR, DAY = 3_600_000, 24 * 3_600_000
both = pytest.mark.parametrize("store_url", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def stepping(store_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Store, Callable[[int], None]]]:
    """A store, and what sets its clock before or behind the true one, by milliseconds."""
    offset = [0]

    def clock() -> int:
        return time.time_ns() // 1_000_000 + offset[0]

    with Store.open(store_url, clock=clock) as store:
        store.create()
        is_server = store.database.dialect.name == "postgresql"
        if is_server:
            plants.give_the_store_a_clock_of_its_own(store_url)
            plants.follow_the_stores_clock(store)
            monkeypatch.setattr(store.database.dialect.steps, "now", lambda connection: clock())

        def step(milliseconds: int) -> None:
            offset[0] = milliseconds
            if is_server:
                plants.set_clock(store_url, milliseconds)

        yield store, step


def count(tx: Any) -> int:
    n = int(tx.table("t").get("a", "n", b"0")) + 1
    tx.table("t").set("a", "n", b"%d" % n)
    return n


def drawn(store: Store) -> int:
    with store.transaction() as tx:
        return int(tx.id)


def settle(store: Store, step: Callable[[int], None], milliseconds: int) -> None:
    """Step, and let a run of clean-up meet the clock there for some minutes."""
    step(milliseconds - HOUR // 3)
    store.maintain()
    step(milliseconds)


@both
def test_while_a_row_is_in_progress_a_step_of_the_clock_is_followed_little_by_little(stepping: Any) -> None:
    """A row is excluded from snapshots however far below it lies."""
    store, step = stepping
    with store.transaction() as tx:
        assert store.run(count) == 1
        own = tx.id
        step(5 * HOUR)
        first = drawn(store)
        assert own < first < own + 2 * HOUR * 1_000_000
        assert first < drawn(store) < own + 3 * HOUR * 1_000_000
        with store.transaction() as other:
            assert own in other._transaction.value.excluded
        settle(store, step, 5 * HOUR)
        assert drawn(store) > own + 4 * HOUR * 1_000_000
        step(0)
    before = drawn(store)
    step(-3 * DAY)
    assert drawn(store) > before


@both
@pytest.mark.parametrize("early", [False, True])
def test_what_is_written_after_a_quiet_time_lives_its_time(stepping: Any, *, early: bool) -> None:
    """A long transaction is open, and nothing but clean-up has come for hours, which looks like a step of the clock."""
    store, step = stepping
    store.configure_table("sessions", ttl=1800)
    store.begin()
    settle(store, step, 5 * HOUR)
    with store.transaction() as tx:
        if early:
            assert tx.id
        tx.table("sessions").set("anna", "token", b"1")
    with store.transaction(read_only=True) as tx:
        assert tx.table("sessions").get("anna", "token") == b"1"


@both
@pytest.mark.parametrize("long", [False, True])
def test_a_glitch_of_days_that_ids_followed_ends_no_cells_time_to_live(stepping: Any, *, long: bool) -> None:
    store, step = stepping
    store.configure_table("sessions", ttl=DAY // 1000)
    with store.transaction() as tx:
        tx.table("sessions").set("anna", "token", b"1")
    step(5 * DAY)
    ahead = drawn(store)
    for hours in (0, 2, 4):
        step(hours * HOUR)
        assert drawn(store) > ahead
        store.maintain()
        with store.transaction(long=long) as tx:
            assert tx.table("sessions").get("anna", "token") == b"1"
            assert [value for _, _, value in tx.table("sessions").scan()] == [b"1"]
    assert len(cells(store)) == 1
    for hours in (24, 26, 28):
        step(hours * HOUR + 60_000)
        drawn(store)
        store.maintain()
        with store.transaction(long=long) as tx:
            assert tx.table("sessions").get("anna", "token") is None
    assert cells(store) == []


@both
@pytest.mark.parametrize("read", ["get", "get_many", "scan"])
def test_a_cell_that_expired_while_the_clock_was_back_never_vanishes_under_its_reader(stepping: Any, read: str) -> None:
    store, step = stepping
    store.configure_table("sessions", ttl=DAY // 1000)

    def seen(tx: Any) -> list[bytes]:
        table = tx.table("sessions")
        if read == "scan":
            return [value for _, _, value in table.scan()]
        if read == "get_many":
            return list(table.get_many([("anna", "token")]).values())
        value = table.get("anna", "token")
        return [] if value is None else [value]

    with store.transaction() as tx:
        tx.table("sessions").set("anna", "token", b"1")
    for hours in (44, 48):
        step(hours * HOUR)
        drawn(store)
        store.maintain()
    assert len(cells(store)) == 1
    step(2 * HOUR)
    with store.transaction(read_only=True) as tx:
        assert seen(tx) == [b"1"]
        step(49 * HOUR)
        store.maintain()
        assert cells(store) == []
        with pytest.raises(SnapshotTooOld, match="clean-up has deleted what had expired"):
            seen(tx)


def cells(store: Store) -> list[Any]:
    with store.database.read() as work:
        return list(work.connection.execute(sa.select(schema.cell)))


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_ids_follow_no_step_that_would_hide_a_lock_in_progress(stepping: Any, store_url: str) -> None:
    store, step = stepping
    with psycopg.connect(store_url.replace("+psycopg", "")) as connection:
        with store.transaction(connection=connection) as tx:
            own = tx.id
            tx.table("t").set("a", "n", b"1")
        settle(store, step, 10 * DAY)
        assert drawn(store) > own + 9 * DAY * 1_000_000
        settle(store, step, 40 * DAY)
        last = drawn(store)
        assert own < last < own + 11 * DAY * 1_000_000
        with store.transaction() as other:
            assert own in other._transaction.value.excluded
    assert drawn(store) > last + 20 * DAY * 1_000_000


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_step_of_the_clock_hides_no_transaction_in_progress(stepping: Any, store_url: str) -> None:
    """Bound to a SQL transaction of the user's, and registered by its lock alone."""
    store, step = stepping
    assert store.run(count) == 1
    with psycopg.connect(store_url.replace("+psycopg", "")) as connection:
        with store.transaction(connection=connection) as tx:
            count(tx)
        step(3 * HOUR)
        for _ in range(2):
            drawn(store)
        with pytest.raises(ConflictError), store.transaction() as other:
            assert other.id  # a snapshot made of ids
            assert other.table("t").get("a", "n") == b"1"
            connection.commit()
            assert other.table("t").get("a", "n") == b"1"
            other.table("t").set("a", "n", b"lost")
    assert store.run(count) == 3


@both
def test_a_floor_is_refused_while_ids_are_in_progress(stepping: Any) -> None:
    store, _ = stepping
    with store.transaction() as tx:
        floor = tx.id + 3 * HOUR * 1_000_000
        with pytest.raises(InvalidArgument, match="without transactions in progress"):
            store.create(floor=floor)
        store.create(floor=1)  # below all ids: nothing changes
    store.create(floor=floor)
    assert drawn(store) > floor


@both
def test_a_floor_leaves_room_for_ids(stepping: Any) -> None:
    store, _ = stepping
    with pytest.raises(InvalidArgument, match="floor"):
        store.create(floor=(1 << 62) - 1)
    store.create(floor=MAX_FLOOR)
    assert MAX_FLOOR < drawn(store) < 1 << 62


@both
def test_a_glitch_of_the_clock_forgets_nothing(stepping: Any) -> None:
    store, step = stepping
    calls: list[int] = []

    def pay(tx: Any) -> str:
        calls.append(1)
        tx.table("t").set("paid", "n", b"1")
        return "paid"

    with store.transaction() as tx:
        tx.table("t").set("a", "n", b"1")
    assert store.run(pay, idempotency_key="invoice 7") == "paid"
    store.maintain()
    step(40 * DAY)
    for _ in range(2):
        report = store.maintain()
        assert (report.idempotency_keys, report.outcomes) == (0, 0)
    step(0)
    assert store.run(pay, idempotency_key="invoice 7") == "paid"
    assert calls == [1]
    assert store.outcome(tx.request).status == "committed"
    store.maintain()  # which forgets what was noted in the glitch
    step(40 * DAY + HOUR)
    assert store.maintain().idempotency_keys == 0
    step(40 * DAY + 2 * HOUR)  # the clock has stayed
    assert store.maintain().idempotency_keys == 1


@both
@pytest.mark.parametrize("gone_by", [1000, HOUR // 4, 2 * HOUR])
def test_work_that_was_committed_while_the_clock_was_behind_takes_effect_once(stepping: Any, gone_by: int) -> None:
    store, step = stepping
    drawn(store)
    store.maintain()
    step(-40 * DAY)
    assert store.run(count, idempotency_key="invoice 7") == 1
    for _ in range(3):
        step(gone_by)
        assert store.maintain().idempotency_keys == 0
        assert store.run(count, idempotency_key="invoice 7") == 1
        gone_by += HOUR // 4
    for days in (31, 32):
        step(days * DAY)
        found = store.maintain().idempotency_keys
    assert found == 1


@both
def test_a_glitch_of_the_clock_takes_no_version_from_a_reader(stepping: Any) -> None:
    store, step = stepping
    assert store.run(count) == 1
    with store.transaction() as reader:
        assert reader.table("t").get("a", "n") == b"1"
        assert [store.run(count) for _ in range(2)] == [2, 3]
        store.maintain()
        step(3 * DAY)
        for _ in range(2):
            assert store.maintain().versions == 0
        step(0)
        assert reader.table("t").get("a", "n") == b"1"


@both
@pytest.mark.full("as many ids as no statement has parameters")
@pytest.mark.parametrize("number", [70_000])
def test_snapshots_exclude_any_number_of_ids(store: Store, number: int) -> None:
    """A parameter for each would be more than a statement may have."""
    store.configure_queue("q", buckets=4, buckets_per_range=4)
    with store.transaction() as tx:
        tx.queue("q").add("k", 1)
        own = tx.id
    with store.database.begin() as work:
        rows = [{"id": own - 1 - n, "since_ms": 0, "left_to": "somebody"} for n in range(number)]
        work.connection.execute(sa.insert(schema.invalid), rows)
    assert sum(one.entries for one in store.backlog("q")) == 1
    assert len(store.waiting_ranges("q")) == 1


# --- what clean-up deletes because it is old --------------------------------------------------------------------------


@pytest.fixture
def bulky(stepping: tuple[Store, Callable[[int], None]], tmp_path: Path) -> Store:
    """The store whose clock steps, with a queue and a folder of files."""
    store, _ = stepping
    store.database.segments = str(tmp_path / "segments")
    store.configure_queue("orders", buckets=4, value="bytes")
    return store


def files_of(store: Store) -> set[str]:
    return {str(path) for path in Path(str(store.database.segments)).rglob("*") if path.is_file()}


def drain_all(store: Store) -> int:
    return drain(store, "orders", MemorySink(), sink_name="sink").read


def merged(store: Store) -> str:
    for number in range(3):
        bulk.load(store, many(10, b"%d" % number))
    (file,) = compact(store.database, "orders", wanted=Candidates(least=2)).files
    return file


@both
def test_a_glitch_of_the_clock_keeps_what_a_fall_back_needs(stepping: Any, bulky: Store) -> None:
    _, step = stepping
    file = merged(bulky)
    bulky.maintain()
    step(2 * DAY)
    for _ in range(2):
        assert bulky.maintain().segment_files == 0
    step(0)
    bulky.maintain()
    Path(file).unlink()
    assert bulky.dead_letters.fall_back("orders", file).given_up == 0
    assert drain_all(bulky) == 30


@both
@pytest.mark.parametrize("before", ["a run before", "a run long before", "no run"])
def test_a_clock_that_is_behind_for_a_moment_keeps_what_a_fall_back_needs(
    stepping: Any, bulky: Store, before: str
) -> None:
    """The run under that clock must not take the true times for times of the future, and correct them."""
    _, step = stepping
    if before == "a run long before":
        step(-7 * DAY)
        bulky.maintain()
        step(0)
    file = merged(bulky)
    there = files_of(bulky)
    if before == "a run before":
        bulky.maintain()
    step(-2 * DAY)
    bulky.maintain()
    for minutes in (0, 11, 22, 33):
        step(minutes * HOUR // 60)
        assert bulky.maintain().segment_files == 0
    assert files_of(bulky) == there
    step(0)
    Path(file).unlink()
    assert bulky.dead_letters.fall_back("orders", file).given_up == 0
    assert drain_all(bulky) == 30


@both
def test_a_clock_that_is_behind_for_a_moment_takes_no_grace_time_from_files(stepping: Any, bulky: Store) -> None:
    _, step = stepping
    bulk.load(bulky, many(10))
    assert drain_all(bulky) == 10
    there = files_of(bulky)
    bulky.maintain()
    step(-2 * DAY)
    bulky.maintain()
    for minutes in (0, 11, 22, 33, 44, 55):
        step(minutes * HOUR // 60)
        assert bulky.maintain().segment_files == 0
    assert files_of(bulky) == there
    step(HOUR + 12 * HOUR // 60)
    assert bulky.maintain().segment_files == len(there)


@both
@pytest.mark.parametrize("glitch", ["of the run that finds them", "of the next run"])
def test_a_glitch_of_the_clock_neither_ends_nor_prolongs_the_grace_time_of_files(
    stepping: Any, bulky: Store, glitch: str
) -> None:
    _, step = stepping
    bulk.load(bulky, many(10))
    assert drain_all(bulky) == 10
    there = files_of(bulky)
    if glitch == "of the next run":
        bulky.maintain()
    step(2 * DAY)
    for _ in range(2):
        assert bulky.maintain().segment_files == 0
    for minutes in (0, 15, 60):  # a second look tells a clock that was ahead from one that is behind
        step(minutes * HOUR // 60)
        assert bulky.maintain().segment_files == 0
    assert files_of(bulky) == there
    for minutes in (90, 121):
        step(minutes * HOUR // 60)
        bulky.maintain()
    assert not files_of(bulky)
    folders = list(Path(str(bulky.database.segments)).glob("*/*"))
    for hours in (26, 27):  # what a lost task writes into the folder goes, too, for a day
        assert all(path.exists() for path in folders)
        step(hours * HOUR)
        bulky.maintain()
    assert not any(path.exists() for path in folders)


@both
def test_inputs_that_were_merged_while_the_clock_was_ahead_are_kept_for_a_day_and_no_longer(
    stepping: Any, bulky: Store
) -> None:
    _, step = stepping
    merged(bulky)
    with bulky.database.begin() as work:
        hidden = schema.hidden_segment
        work.connection.execute(hidden.update().values(hidden_ms=hidden.c.hidden_ms + 40 * DAY))
    for minutes in (0, 15):
        step(minutes * HOUR // 60)
        bulky.maintain()
    there = files_of(bulky)
    for hours in (23, 25, 26, 27, 28):
        assert files_of(bulky) == there
        step(hours * HOUR)
        bulky.maintain()
    assert len(files_of(bulky)) == 1


@both
def test_a_vacuum_of_its_own_believes_no_glitch_of_the_clock(stepping: Any, bulky: Store) -> None:
    _, step = stepping
    merged(bulky)
    there = files_of(bulky)
    for milliseconds in (0, 2 * DAY, 2 * DAY, 0):
        step(milliseconds)
        assert vacuum(bulky.database, patience=Patience()).files == 0
        assert vacuum(bulky.database, patience=Patience(files=0), dry_run=True).files == 0
    assert files_of(bulky) == there
    for milliseconds in (DAY + HOUR, DAY + 2 * HOUR):
        step(milliseconds)
        found = vacuum(bulky.database, patience=Patience(files=0)).files
    assert found == 3


@both
def test_a_glitch_of_the_clock_forgets_no_record(stepping: Any, bulky: Store) -> None:
    _, step = stepping

    def refuse(entry: Any) -> Any:
        raise ValueError("refused")

    with bulky.transaction() as tx:
        tx.queue("orders").add("k", b"v")
    drain(bulky, "orders", MemorySink(), sink_name="sink", exporter=refuse)
    bulky.dead_letters.drop("orders", who="anna")
    begin_attempt(bulky.database, bulky.queue("orders"), Owner("task", "1"))
    bulky.run(lambda tx: tx.queue("orders").add("k", b"v"), idempotency_key="key")
    verify(bulky, "orders", MemorySink(), sink_name="sink", source=lambda: iter(()), exporter=refuse)
    bulky.maintain()
    figures = (
        "outcomes",
        "idempotency_keys",
        "drain_reports",
        "comparisons",
        "dead_letter_acts",
        "attempts",
        "conflict_keys",
    )
    step(400 * DAY)
    for _ in range(2):
        report = bulky.maintain()
        assert {name: getattr(report, name) for name in figures} == dict.fromkeys(figures, 0)
    step(400 * DAY + HOUR)  # the clock has stayed
    report = bulky.maintain()
    assert [name for name in figures if not getattr(report, name)] == ["conflict_keys"]
    assert bulky.finished_comparisons() == []


@both
def test_a_glitch_of_the_clock_ends_no_long_transaction(stepping: Any, bulky: Store) -> None:
    _, step = stepping
    with bulky.transaction(long=True) as tx:
        bulk.add(tx, bulky, many(10))
        for milliseconds in (2 * DAY, 2 * DAY, 0, 2 * DAY, -2 * DAY, 0):
            step(milliseconds)
            report = bulky.maintain()
            assert (report.expired, report.pruned, report.segment_files) == (0, 0, 0)
            assert drain_all(bulky) == 0
    assert drain_all(bulky) == 10


@both
def test_a_long_transaction_past_its_time_out_is_ended_when_it_is_found_late_a_second_time(
    stepping: Any, bulky: Store
) -> None:
    _, step = stepping
    value = bulky.begin()
    step(DAY + HOUR)
    assert bulky.maintain().expired == 0
    step(DAY + HOUR + HOUR // 12)
    assert bulky.maintain().expired == 0
    step(DAY + HOUR + HOUR // 6)
    assert bulky.maintain().expired == 1
    with pytest.raises((RegistrationLost, CommitOutcomeUnknown)):
        bulky.commit(value)


@both
def test_a_clock_that_was_ahead_when_a_long_transaction_was_found_late_counts_anew(stepping: Any, bulky: Store) -> None:
    _, step = stepping
    bulky.begin()
    step(4 * DAY)
    assert bulky.maintain().expired == 0
    step(DAY + HOUR)
    assert bulky.maintain().expired == 0
    step(DAY + 2 * HOUR)
    assert bulky.maintain().expired == 1
