"""Locks that are asked for all at once: segment and interval locks, waiting, revocation (I10)."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.waiting import PATIENCE, wait_until

from export_queue import LeaseLost, LockNotAvailable, Owner, Store
from export_queue.core.locks import ROWS, Area, Lease, acquire, claim, give_back, hold, release, renew
from export_queue.core.locks import standing_locks as standing
from export_queue.core.queue import Queue
from export_queue.core.store import schema

ANNA, BERT, CARL = Owner("anna", "1"), Owner("bert", "1"), Owner("carl", "1")


@pytest.fixture
def queue(store: Store) -> Queue:
    return store.configure_queue("q", buckets=8, buckets_per_range=2)


def take(store: Store, queue: Queue, owner: Owner, *members: str, **options: object) -> list[Lease]:
    area = Area(0, 2, frozenset(members) or None)
    return acquire(store.database, queue, [area], owner=owner, lease_seconds=60, **options)  # type: ignore[arg-type]


def test_locks_on_different_segments_stand_side_by_side(store: Store, queue: Queue) -> None:
    take(store, queue, ANNA, ROWS, "1.1")
    take(store, queue, BERT, "1.2")
    with pytest.raises(LockNotAvailable, match="is held by anna"):
        take(store, queue, CARL, "1.1")
    with pytest.raises(LockNotAvailable):
        take(store, queue, CARL)
    with store.database.read() as work:
        assert [lock.task for lock in standing(work, queue)] == ["anna", "bert"]


def test_all_or_nothing_is_taken(store: Store, queue: Queue) -> None:
    take(store, queue, ANNA, "1.1")
    areas = [Area(0, 2, frozenset({"1.1"})), Area(2, 4, frozenset({ROWS}))]
    with pytest.raises(LockNotAvailable):
        acquire(store.database, queue, areas, owner=BERT, lease_seconds=60)
    assert len(acquire(store.database, queue, areas[1:], owner=CARL, lease_seconds=60)) == 1


@pytest.mark.parametrize("narrow", [Area(2, 4), Area(0, 2, frozenset({ROWS})), Area(4, 6, frozenset({"1.1"}))])
def test_an_attempt_shares_its_wide_lock_though_it_has_taken_a_narrower_one(
    store: Store, queue: Queue, narrow: Area
) -> None:
    for area in (Area(0, 6), narrow, Area(0, 6), narrow, Area(2, 4)):
        assert acquire(store.database, queue, [area], owner=ANNA, lease_seconds=60)
    for area in (narrow, Area(0, 8)):
        with pytest.raises(LockNotAvailable, match="is held by anna"):
            acquire(store.database, queue, [area], owner=BERT, lease_seconds=60)


def test_a_narrow_lock_alone_keeps_a_wider_request_of_its_attempt_out(store: Store, queue: Queue) -> None:
    acquire(store.database, queue, [Area(2, 4)], owner=ANNA, lease_seconds=60)
    with pytest.raises(LockNotAvailable, match="is held by anna"):
        acquire(store.database, queue, [Area(0, 6)], owner=ANNA, lease_seconds=60)


def test_a_lock_of_lower_priority_is_revoked_and_its_holder_learns_of_it(store: Store, queue: Queue) -> None:
    low = take(store, queue, ANNA, ROWS, priority=25)
    with pytest.raises(LockNotAvailable):
        take(store, queue, BERT, ROWS, priority=75, revoke_after=None)
    high = take(store, queue, BERT, ROWS, priority=75)
    with pytest.raises(LeaseLost):
        renew(store.database, low, lease_seconds=60)
    release(store.database, high)
    with pytest.raises(LeaseLost), store.database.begin() as work:
        hold(work, *low)


def test_a_critical_section_relies_on_all_locks(store: Store, queue: Queue) -> None:
    first, second = take(store, queue, ANNA, "1.1", priority=25), take(store, queue, ANNA, "1.2", priority=25)
    take(store, queue, BERT, "1.2", priority=75)
    with pytest.raises(LeaseLost), store.database.begin() as work:
        hold(work, *first, *second)
    with store.database.begin() as work:
        hold(work, *first)
        give_back(work, first)
    with store.database.read() as work:
        assert [lock.task for lock in standing(work, queue)] == ["bert"]


def test_claims_of_whole_units_and_segment_locks_keep_each_other_out(store: Store, queue: Queue) -> None:
    take(store, queue, ANNA, "1.1", priority=25)
    units = queue.units()
    leases = claim(store.database, queue, units, owner=BERT, lease_seconds=60)
    assert [lease.range for lease in leases] == units[1:]
    left = claim(store.database, queue, units[:1], owner=CARL, lease_seconds=60, leaves_out=True)
    assert [(lease.members, lease.is_whole) for lease in left] == [(frozenset({ROWS}), True)]


def test_a_waiter_gets_its_turn_when_the_lock_is_given_back(store: Store, queue: Queue) -> None:
    held = take(store, queue, ANNA)
    got: list[Lease] = []
    thread = threading.Thread(target=lambda: got.extend(take(store, queue, BERT, wait_seconds=PATIENCE)))
    thread.start()
    wait_until(lambda: requests(store) == 1, "nobody waits")
    release(store.database, held)
    thread.join(PATIENCE)
    assert got
    assert requests(store) == 0


def test_nobody_waits_while_it_holds(store: Store, queue: Queue) -> None:
    take(store, queue, ANNA, "1.1")
    take(store, queue, BERT, "1.2")
    with pytest.raises(LockNotAvailable, match="holds locks and would wait"):
        take(store, queue, BERT, "1.1", wait_seconds=PATIENCE)
    assert requests(store) == 0


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_request_does_not_read_all_locks_of_its_queue(store: Store, queue: Queue) -> None:
    seen: list[tuple[str, Any]] = []
    sa.event.listen(store.database.engine, "before_cursor_execute", lambda *call: seen.append((call[2], call[3])))
    take(store, queue, ANNA, "1.1")
    asked = [(text, values) for text, values in seen if text.startswith("SELECT") and "xq_lock " in text]
    assert asked
    with store.database.read() as work:
        for text, values in asked:
            plan = [row.detail for row in work.connection.exec_driver_sql(f"explain query plan {text}", values)]
            assert not [step for step in plan if "xq_lock " in step and step.endswith("(queue_number=?)")], plan


def requests(store: Store) -> int:
    with store.database.read() as work:
        return int(work.connection.scalar(sa.select(sa.func.count()).select_from(schema.lock_request)) or 0)
