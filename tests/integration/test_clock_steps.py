"""A clock that steps by hours or days, forward and back (I1, I2, I5, I12, I14)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from tests.battery import plants

from export_queue.core.client import Store
from export_queue.core.errors import ConflictError, InvalidArgument
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
            monkeypatch.setattr(store.database.dialect, "now", lambda connection: clock())

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


@both
def test_ids_follow_a_step_of_the_clock_although_a_row_is_in_progress(stepping: Any) -> None:
    """A row is excluded from snapshots however far below it lies."""
    store, step = stepping
    with store.transaction() as tx:
        assert store.run(count) == 1
        own = tx.id
        step(40 * DAY)
        assert drawn(store) > own + 39 * DAY * 1_000_000
        with store.transaction() as other:
            assert own in other._transaction.value.excluded
        step(0)
    before = drawn(store)
    step(-3 * DAY)
    assert drawn(store) > before


@both
@pytest.mark.parametrize("early", [False, True])
def test_what_is_written_after_a_quiet_time_lives_its_time(stepping: Any, *, early: bool) -> None:
    """A long transaction is open, and nothing has drawn an id for hours, which looks like a step of the clock."""
    store, step = stepping
    store.configure_table("sessions", ttl=1800)
    store.begin()
    step(5 * HOUR)
    with store.transaction() as tx:
        if early:
            assert tx.id
        tx.table("sessions").set("anna", "token", b"1")
    with store.transaction(read_only=True) as tx:
        assert tx.table("sessions").get("anna", "token") == b"1"


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_ids_follow_no_step_that_would_hide_a_lock_in_progress(stepping: Any, store_url: str) -> None:
    store, step = stepping
    with psycopg.connect(store_url.replace("+psycopg", "")) as connection:
        with store.transaction(connection=connection) as tx:
            own = tx.id
            tx.table("t").set("a", "n", b"1")
        step(10 * DAY)
        assert drawn(store) > own + 9 * DAY * 1_000_000
        step(40 * DAY)
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
