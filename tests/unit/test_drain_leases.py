"""Keeping leases alive: renewal, loss, pauses; with a store that is a list of calls."""

from __future__ import annotations

import threading

import pytest

from export_queue.core.drain import LeaseKeeper
from export_queue.core.drain import leases as room
from export_queue.core.errors import LeaseLost, StoreUnavailable
from export_queue.core.locks import Lease
from export_queue.core.queue import Range

LEASES = [Lease(1, 1, 1, Range(0, 5)), Lease(2, 1, 1, Range(5, 10))]


class Locks:
    """Stands for the lock box of a store."""

    def __init__(self) -> None:
        self.renewed: list[list[int]] = []
        self.released: list[int] = []
        self.errors: list[Exception] = []
        self.called = threading.Event()

    def renew(self, database, leases, *, lease_seconds):
        self.renewed.append([lease.fence for lease in leases])
        try:
            if self.errors:
                raise self.errors[0]
        finally:
            self.called.set()

    def release(self, database, leases):
        self.released += [lease.fence for lease in leases]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def locks(monkeypatch):
    fake = Locks()
    monkeypatch.setattr(room, "renew", fake.renew)
    monkeypatch.setattr(room, "release", fake.release)
    return fake


def keeper(*, lease_seconds: float = 0.03, clock: Clock | None = None) -> LeaseKeeper:
    clock = clock or Clock()
    return LeaseKeeper(None, LEASES, lease_seconds=lease_seconds, claimed_at=clock.now, clock=clock)


def test_leases_are_renewed_until_the_end_and_given_back_there(locks):
    with keeper():
        assert locks.called.wait(60)
    assert locks.renewed[0] == [1, 2]
    assert locks.released == [1, 2]
    assert not [thread for thread in threading.enumerate() if thread.name == "export-queue-leases"]


def test_a_lost_lease_is_noticed_at_the_next_look(locks):
    locks.errors = [LeaseLost("taken over by another attempt")]
    with keeper() as held:
        assert locks.called.wait(60)
        with pytest.raises(LeaseLost, match="taken over"):
            while True:
                held.check()


def test_a_holder_that_was_paused_past_its_lease_knows_by_its_own_clock(locks):
    clock = Clock()
    with keeper(lease_seconds=60, clock=clock) as held:
        held.check()
        clock.now += 61
        with pytest.raises(LeaseLost, match="were not renewed for 60 seconds"):
            held.check()


def test_a_store_that_is_away_for_a_moment_loses_no_lease(locks):
    locks.errors = [StoreUnavailable("restarting")]
    with keeper() as held:
        assert locks.called.wait(60)
        locks.errors.clear()
        locks.called.clear()
        assert locks.called.wait(60)
        held.check()


def test_a_lease_that_was_given_back_is_neither_renewed_nor_given_back_again(locks):
    clock = Clock()
    with keeper(lease_seconds=60, clock=clock) as held:
        clock.now += 1
        held.give_back([LEASES[0]])
        assert locks.released == [1]
    assert locks.released == [1, 2]


def test_leases_are_given_back_in_groups_and_none_waits_for_the_next_range(locks):
    clock = Clock()
    with keeper(lease_seconds=60, clock=clock) as held:
        held.give_back([LEASES[1]])
        assert locks.released == [], "a moment ago"
        clock.now += 1
        held.give_back([])
        assert locks.released == [2]
    assert locks.released == [2, 1]
