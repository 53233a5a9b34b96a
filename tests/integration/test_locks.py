"""Locks on units: claims, leases, take-over, the critical section (I10)."""

from __future__ import annotations

import threading

import pytest

from export_queue.core.client import Store
from export_queue.core.errors import LeaseLost
from export_queue.core.locks import Lease, Owner, claim, hold, holders, release, renew, revoke
from export_queue.core.queue import Queue
from export_queue.core.store import schema

ANNA, BERT = Owner("anna", "1"), Owner("bert", "1")


@pytest.fixture
def queue(store: Store) -> Queue:
    return store.configure_queue("q", buckets=8, buckets_per_range=2)


def expire(store: Store, lease: Lease) -> None:
    with store.database.begin() as work:
        work.connection.execute(
            schema.lock.update().where(schema.lock.c.fence == lease.fence).values(lease_ms=work.now() - 1)
        )


def test_a_unit_has_one_holder(store: Store, queue: Queue) -> None:
    first = claim(store.database, queue, queue.units()[:3], owner=ANNA, lease_seconds=60)
    assert [lease.range for lease in first] == queue.units()[:3]
    second = claim(store.database, queue, queue.units(), owner=BERT, lease_seconds=60)
    assert [lease.range for lease in second] == queue.units()[3:]
    with store.database.read() as work:
        found = holders(work, queue, queue.units())
    assert [holder.owner.task for holder in found] == ["anna"] * 3 + ["bert"]


def test_the_same_attempt_gets_no_second_lock(store: Store, queue: Queue) -> None:
    claim(store.database, queue, queue.units(), owner=ANNA, lease_seconds=60)
    assert claim(store.database, queue, queue.units(), owner=ANNA, lease_seconds=60) == []


def test_a_lock_given_back_is_free(store: Store, queue: Queue) -> None:
    leases = claim(store.database, queue, queue.units(), owner=ANNA, lease_seconds=60)
    release(store.database, leases)
    release(store.database, leases)
    assert len(claim(store.database, queue, queue.units(), owner=BERT, lease_seconds=60)) == 4


def test_fences_grow(store: Store, queue: Queue) -> None:
    fences = []
    for owner in (ANNA, BERT, ANNA):
        leases = claim(store.database, queue, queue.units(), owner=owner, lease_seconds=60)
        fences += [lease.fence for lease in leases]
        release(store.database, leases)
    assert fences == sorted(set(fences))


def test_an_expired_lease_is_lost_for_good(store: Store, queue: Queue) -> None:
    (lease,) = claim(store.database, queue, queue.units()[:1], owner=ANNA, lease_seconds=60)
    renew(store.database, [lease], lease_seconds=60)
    expire(store, lease)
    with pytest.raises(LeaseLost):
        renew(store.database, [lease], lease_seconds=60)
    with pytest.raises(LeaseLost), store.database.begin() as work:
        hold(work, lease)
    (other,) = claim(store.database, queue, queue.units()[:1], owner=BERT, lease_seconds=60)
    assert other.fence > lease.fence
    with pytest.raises(LeaseLost):
        renew(store.database, [lease], lease_seconds=60)


def test_a_new_attempt_of_the_same_task_takes_over(store: Store, queue: Queue) -> None:
    (old,) = claim(store.database, queue, queue.units()[:1], owner=ANNA, lease_seconds=60)
    (new,) = claim(store.database, queue, queue.units()[:1], owner=Owner("anna", "2"), lease_seconds=60)
    with pytest.raises(LeaseLost), store.database.begin() as work:
        hold(work, old)
    with store.database.begin() as work:
        hold(work, new)


def test_a_revoked_lock_is_worthless_and_free(store: Store, queue: Queue) -> None:
    leases = claim(store.database, queue, queue.units(), owner=ANNA, lease_seconds=60)
    assert revoke(store.database, "anna") == 4
    with pytest.raises(LeaseLost):
        renew(store.database, leases, lease_seconds=60)
    assert len(claim(store.database, queue, queue.units(), owner=BERT, lease_seconds=60)) == 4


def test_one_lost_lease_extends_none(store: Store, queue: Queue) -> None:
    leases = claim(store.database, queue, queue.units()[:2], owner=ANNA, lease_seconds=1000)
    expire(store, leases[0])
    with pytest.raises(LeaseLost):
        renew(store.database, leases, lease_seconds=5000)
    with store.database.read() as work:
        rows = work.connection.execute(schema.lock.select().where(schema.lock.c.fence == leases[1].fence)).mappings()
        assert rows.one()["lease_ms"] < work.now() + 2_000_000


def test_a_take_over_waits_for_the_critical_section(store: Store, queue: Queue) -> None:
    """What is changed under a lock is committed before anybody else gets it, also if its lease ends meanwhile."""
    (lease,) = claim(store.database, queue, queue.units()[:1], owner=ANNA, lease_seconds=60)
    taken: list[Lease] = []
    with store.database.begin() as work:
        hold(work, lease)
        thread = threading.Thread(
            target=lambda: taken.extend(
                claim(store.database, queue, queue.units()[:1], owner=Owner("anna", "2"), lease_seconds=60)
            )
        )
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        assert taken == []
    thread.join(30)
    assert len(taken) == 1


def test_a_lease_survives_the_way_through_json(store: Store, queue: Queue) -> None:
    (lease,) = claim(store.database, queue, queue.units()[:1], owner=ANNA, lease_seconds=60)
    assert Lease.from_json(lease.to_json()) == lease
