"""Locks on units: claims, leases, take-over, the critical section (I10)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.waiting import wait_until

from export_queue import LeaseLost, Owner, Store
from export_queue.core.locks import Lease, begin_attempt, claim, hold, holders, release, renew, revoke
from export_queue.core.queue import Queue
from export_queue.core.store import schema

ANNA, BERT = Owner("anna", "1"), Owner("bert", "1")


@pytest.fixture
def queue(store: Store) -> Queue:
    return store.configure_queue("q", buckets=8, buckets_per_range=2)


def is_of(lease: Lease) -> sa.ColumnElement[bool]:
    return sa.and_(schema.lock.c.fence == lease.fence, schema.lock.c.first_bucket == lease.range.first)


def expire(store: Store, lease: Lease) -> None:
    with store.database.begin() as work:
        work.connection.execute(schema.lock.update().where(is_of(lease)).values(lease_ms=work.now() - 1))


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
        fences.append({lease.fence for lease in leases})
        release(store.database, leases)
    drawn = [fence for (fence,) in fences]
    assert drawn == sorted(set(drawn)), "one for each claim"


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
        rows = work.connection.execute(schema.lock.select().where(is_of(leases[1]))).mappings()
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


# -- attempts --------------------------------------------------------------------------------------------------------


def claims(store: Store, queue: Queue, owner: Owner) -> bool:
    """Tell whether an owner gets a unit; it is refused where it may work no more."""
    try:
        return bool(claim(store.database, queue, queue.units()[:1], owner=owner, lease_seconds=60))
    except LeaseLost:
        return False


def test_an_older_attempt_never_takes_back(store: Store, queue: Queue) -> None:
    older, newer = Owner("anna", "1"), Owner("anna", "2")
    assert claims(store, queue, older)
    assert claims(store, queue, newer)
    assert not claims(store, queue, older)
    with store.database.read() as work:
        (holder,) = holders(work, queue, queue.units())
    assert holder.owner == newer


def test_an_older_attempt_that_holds_nothing_never_takes_over(store: Store, queue: Queue) -> None:
    older, newer = Owner("anna", "1"), Owner("anna", "2")
    begin_attempt(store.database, queue, older)
    begin_attempt(store.database, queue, newer)
    with pytest.raises(LeaseLost, match="was revoked, or taken over by a newer one"):
        begin_attempt(store.database, queue, older)
    assert not claims(store, queue, older)
    assert claims(store, queue, newer)


def test_an_attempt_that_begins_on_another_queue_takes_nothing_over(store: Store, queue: Queue) -> None:
    other = store.configure_queue("other", buckets=8, buckets_per_range=2)
    begin_attempt(store.database, queue, ANNA)
    begin_attempt(store.database, other, Owner("anna", "2"))
    assert claims(store, queue, ANNA)


def test_a_revoked_attempt_gets_nothing_any_more_and_the_next_one_does(store: Store, queue: Queue) -> None:
    begin_attempt(store.database, queue, ANNA)
    assert revoke(store.database, "anna") == 0
    assert not claims(store, queue, ANNA)
    assert claims(store, queue, Owner("anna", "2"))


def test_an_attempt_is_revoked_before_it_begins_with_all_that_it_submitted(store: Store, queue: Queue) -> None:
    revoke(store.database, "anna", attempt="1")
    with pytest.raises(LeaseLost):
        begin_attempt(store.database, queue, ANNA.submitted())
    assert claims(store, queue, Owner("anna", "2"))
    running = BERT.submitted()
    begin_attempt(store.database, queue, running)
    revoke(store.database, "bert", attempt="1")
    with pytest.raises(LeaseLost):
        begin_attempt(store.database, queue, running)


def test_a_program_takes_over_from_its_older_run_and_not_from_its_submission(store: Store, queue: Queue) -> None:
    begin_attempt(store.database, queue, ANNA)
    first, second = ANNA.submitted(), ANNA.submitted()
    begin_attempt(store.database, queue, first)
    begin_attempt(store.database, queue, second)
    assert not claims(store, queue, first)
    assert claims(store, queue, second)


# -- many units ------------------------------------------------------------------------------------------------------


def test_the_statements_of_a_claim_do_not_grow_with_its_units(store: Store) -> None:
    counts = []
    for units in (3, 300):
        queue = store.configure_queue(f"q{units}", buckets=units, buckets_per_range=1)
        with counted_statements(store) as seen:
            leases = claim(store.database, queue, queue.units(), owner=ANNA, lease_seconds=60)
            renew(store.database, leases, lease_seconds=60)
            release(store.database, leases[:-1])
            release(store.database, leases[-1:])
        counts.append(len(seen))
        assert len(leases) == units
        with store.database.read() as work:
            assert holders(work, queue, queue.units()) == []
    assert counts[0] == counts[1]


@contextlib.contextmanager
def counted_statements(store: Store) -> Iterator[list[str]]:
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    sa.event.listen(store.database.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        sa.event.remove(store.database.engine, "before_cursor_execute", note)


@pytest.mark.full("seventy thousand locks")
def test_more_units_than_a_statement_has_parameters_are_claimed_renewed_and_given_back(store: Store) -> None:
    """SQLite takes 32 766 parameters, PostgreSQL 65 535."""
    many = 33_000 if store.database.dialect.name == "sqlite" else 66_000
    queue = store.configure_queue("wide", buckets=many, buckets_per_range=1)
    leases = claim(store.database, queue, queue.units(), owner=ANNA, lease_seconds=3600)
    renew(store.database, leases, lease_seconds=3600)
    release(store.database, leases[::2])
    assert len(claim(store.database, queue, queue.units(), owner=BERT, lease_seconds=3600)) == many // 2


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_a_claim_and_a_critical_section_that_draws_an_id_do_not_deadlock(store: Store, queue: Queue) -> None:
    free, held = queue.units()[:2]
    (lease,) = claim(store.database, queue, [held], owner=ANNA, lease_seconds=60)
    claimed: list[Lease] = []
    thread = threading.Thread(
        target=lambda: claimed.extend(claim(store.database, queue, [free, held], owner=BERT, lease_seconds=60))
    )
    with store.database.begin() as work:
        hold(work, lease)
        thread.start()
        wait_until(lambda: waits(store), "the claim does not wait for the critical section")
        store.database.dialect.steps.draw(work.connection)
    thread.join(30)
    assert [lease.range for lease in claimed] == [free]


def waits(store: Store) -> bool:
    with store.database.read() as work:
        found = work.connection.exec_driver_sql(
            "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        )
        return found.first() is not None
