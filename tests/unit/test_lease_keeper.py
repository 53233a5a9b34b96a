"""Keeping leases alive: renewal, loss, pauses; with a store that is a list of calls."""

from __future__ import annotations

import threading

import pytest

from export_queue import LeaseLost, Range, StoreUnavailable
from export_queue.core.locks import Lease, LeaseKeeper
from export_queue.core.locks import keeping as room

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


class Waits:
    """Lets a keeper's thread go on step by step: a test hears that a step is over when the next wait begins."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.seconds: list[float] = []
        self._begun, self._go_on = threading.Semaphore(0), threading.Semaphore(0)
        self._ended = False

    def __call__(self, stop: threading.Event, seconds: float) -> bool:
        self.seconds.append(seconds)
        self._begun.release()
        assert self._go_on.acquire(timeout=60)
        return self._ended

    def step(self) -> None:
        assert self._begun.acquire(timeout=60)
        self.clock.now += self.seconds[-1]
        self._go_on.release()
        assert self._begun.acquire(timeout=60)
        self._begun.release()

    def end(self) -> None:
        self._ended = True
        self._go_on.release()


@pytest.fixture
def waits():
    return Waits(Clock())


@pytest.fixture
def held(locks, waits):
    """A keeper of leases of a minute, whose thread goes on by steps of a second."""
    kept = LeaseKeeper(None, LEASES, lease_seconds=60, claimed_at=waits.clock.now, clock=waits.clock, wait=waits)
    with kept:
        yield kept
        waits.end()


def test_a_range_that_is_done_is_free_a_second_later_whatever_its_drain_does(locks, waits, held):
    held.give_back([LEASES[1]])
    assert locks.released == []
    waits.step()
    assert locks.released == [2]
    assert sum(waits.seconds[:-1]) <= room.GROUP_SECONDS


def test_leases_are_given_back_in_groups_and_at_the_end_only_the_others(locks, waits):
    with LeaseKeeper(None, LEASES, lease_seconds=60, claimed_at=1000.0, clock=waits.clock, wait=waits) as held:
        waits.step()
        held.give_back([LEASES[0]])
        waits.step()
        waits.step()
        assert locks.released == [1]
        waits.end()
    assert locks.released == [1, 2]


def test_what_was_done_since_the_last_step_is_given_back_at_the_end(locks, waits):
    with LeaseKeeper(None, LEASES, lease_seconds=60, claimed_at=1000.0, clock=waits.clock, wait=waits) as held:
        held.give_back(LEASES)
        waits.end()
    assert locks.released == [1, 2]


def test_leases_are_renewed_three_times_as_often_as_they_end_but_for_those_given_back(locks, waits, held):
    for _ in range(20):
        waits.step()
    assert locks.renewed == [[1, 2]]
    held.give_back([LEASES[0]])
    for _ in range(20):
        waits.step()
    assert locks.renewed == [[1, 2], [2]]
    held.check()


def test_a_lease_whose_return_is_in_doubt_is_given_back_again_and_not_renewed(locks, waits, held, monkeypatch):
    def fail(database, leases):
        locks.release(database, leases)
        raise StoreUnavailable("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(room, "release", fail)
        held.give_back([LEASES[0]])
        waits.step()
        held.give_back([LEASES[1]])
        waits.step()
    waits.step()
    assert locks.released == [1, 1, 2, 1, 2]
    for _ in range(20):
        waits.step()
    assert locks.renewed == []
    assert locks.released == [1, 1, 2, 1, 2]


def test_time_that_a_return_takes_puts_no_renewal_off(locks, waits, held, monkeypatch):
    def slow(database, leases):
        locks.release(database, leases)
        waits.clock.now += 30

    monkeypatch.setattr(room, "release", slow)
    held.give_back([LEASES[0]])
    waits.step()
    assert locks.renewed == [[2]]
