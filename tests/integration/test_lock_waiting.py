"""Waiting for locks between processes: a release, a revocation and a death wake those that wait, in order (I10)."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.waiting import PATIENCE, wait_until

from export_queue import LeaseLost, Owner, Range, Store
from export_queue.core.locks import ROWS, Area, Lease, acquire, hold, release, renew, revoke
from export_queue.core.locks.lockbox import open_board
from export_queue.core.queue import Queue
from export_queue.core.store import queries, schema

fork = multiprocessing.get_context("fork")
UNIT = Area(0, 2, frozenset({ROWS, "7.1"}))


@pytest.fixture
def queue(store: Store) -> Queue:
    return store.configure_queue("q", buckets=8, buckets_per_range=2)


def take(store: Store, owner: Owner, area: Area = UNIT, **options: Any) -> list[Lease]:
    return acquire(
        store.database, store.queue("q"), [area], owner=owner, **({"lease_seconds": 600, "priority": 75} | options)
    )


class Process:
    """A process that takes a lock, tells so, and gives it back when told."""

    def __init__(self, open_store: Callable[[], Store], task: str, **options: Any) -> None:
        self.here, there = fork.Pipe()
        self.owner = Owner(task, "1")
        self.process = fork.Process(target=self._work, args=(open_store, there, options), daemon=True)
        self.process.start()

    def _work(self, open_store: Callable[[], Store], there: Connection, options: dict[str, Any]) -> None:
        with open_store() as store:
            leases = take(store, self.owner, **{"wait_seconds": PATIENCE, "revoke_after": None} | options)
            there.send("taken")
            there.recv()
            release(store.database, leases)
            there.send("given back")

    def tells(self, word: str) -> None:
        assert self.here.poll(PATIENCE), f"{self.owner.task} is not {word}"
        assert self.here.recv() == word

    @property
    def is_silent(self) -> bool:
        return not self.here.poll(0)

    def gives_back(self) -> None:
        self.here.send("give it back")
        self.tells("given back")

    def dies(self) -> None:
        self.process.kill()
        self.process.join()


Started = Callable[..., Process]


@pytest.fixture
def started(store: Store, queue: Queue, open_store: Callable[[], Store]) -> Iterator[Started]:
    found: list[Process] = []

    def start(task: str, **options: Any) -> Process:
        found.append(Process(open_store, task, **options))
        return found[-1]

    yield start
    for one in found:
        one.dies()


def waiting(store: Store) -> list[str]:
    """The tasks that wait, the oldest first."""
    with store.database.read() as work:
        asked = sa.select(schema.lock_request.c.task).order_by(schema.lock_request.c.number)
        return list(work.connection.scalars(asked))


def wait_for_waiters(store: Store, *tasks: str) -> None:
    wait_until(lambda: waiting(store) == list(tasks), f"{tasks} do not wait")


def test_a_waiter_in_another_process_is_waked_by_a_release(store: Store, started: Started) -> None:
    leases = take(store, Owner("holder", "1"))
    waiter = started("waiter")
    wait_for_waiters(store, "waiter")
    assert waiter.is_silent
    release(store.database, leases)
    waiter.tells("taken")
    waiter.gives_back()
    assert waiting(store) == []


def test_a_waiter_in_another_process_is_waked_by_a_revocation(store: Store, started: Started) -> None:
    leases = take(store, Owner("holder", "1"))
    waiter = started("waiter")
    wait_for_waiters(store, "waiter")
    revoke(store.database, "holder", attempt="1")
    waiter.tells("taken")
    with pytest.raises(LeaseLost), store.database.begin() as work:
        hold(work, *leases)


def test_a_waiter_of_higher_priority_takes_what_it_waits_for_when_it_may(store: Store, started: Started) -> None:
    leases = take(store, Owner("compaction", "1"), priority=25)
    waiter = started("drain", revoke_after=0.3)
    waiter.tells("taken")
    with pytest.raises(LeaseLost):
        renew(store.database, leases, lease_seconds=60)


def test_the_lock_of_a_holder_that_was_killed_ends_with_its_lease(store: Store, started: Started) -> None:
    holder = started("holder", lease_seconds=2.0)
    holder.tells("taken")
    waiter = started("waiter")
    wait_for_waiters(store, "waiter")
    holder.dies()
    waiter.tells("taken")
    with store.database.read() as work:
        held = list(work.connection.execute(sa.select(schema.lock.c.task, schema.lock.c.lease_ms)))
        assert [task for task, lease_ms in held if lease_ms > work.now()] == ["waiter"]


@pytest.mark.full("the model of locks has dead waiters; this one is a process")
def test_a_waiter_that_was_killed_holds_up_nobody_for_long(
    store: Store, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export_queue.core.locks.waiting.REQUEST_MS", 1000)
    leases = take(store, Owner("holder", "1"))
    dead = started("dead")
    wait_for_waiters(store, "dead")
    dead.dies()
    release(store.database, leases)
    alive = started("alive")
    alive.tells("taken")


def test_who_came_first_is_served_first_and_higher_priority_before_that(store: Store, started: Started) -> None:
    leases = take(store, Owner("holder", "1"))
    names = [("second", 50), ("third", 50), ("last", 25), ("first", 75)]
    processes: dict[str, Process] = {}
    for count, (name, priority) in enumerate(names, 1):
        processes[name] = started(name, priority=priority)
        wait_for_waiters(store, *(name for name, _ in names[:count]))
    release(store.database, leases)
    for name in ("first", "second", "third", "last"):
        one = processes.pop(name)
        one.tells("taken")
        assert all(other.is_silent for other in processes.values())
        one.gives_back()


@pytest.mark.full("many processes; each way of waking has a test of its own")
def test_processes_that_compete_hold_one_at_a_time_and_all_get_their_turn(store: Store, started: Started) -> None:
    """Each of them wants two units in the other order, and none waits for ever."""
    for round_ in range(3):
        areas = [Area(0, 4), UNIT, Area(2, 4, frozenset({ROWS})), Area(0, 8)]
        processes = [started(f"{round_} {number}", area=area) for number, area in enumerate(areas)]
        left = list(processes)
        while left:
            wait_until(lambda: any(not one.is_silent for one in left), "all of them wait")  # noqa: B023
            for one in [one for one in left if not one.is_silent]:
                one.tells("taken")
                one.gives_back()
                left.remove(one)
    assert waiting(store) == []


@pytest.mark.parametrize("store_url", [pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True)
def test_a_revocation_and_a_request_that_meet_do_not_wait_for_each_other(store: Store, queue: Queue) -> None:
    """Both take the lock's row and the row of a request whose waiter is gone."""
    gone = Owner("gone", "1")
    take(store, gone)
    row = {"number": 1, "queue_number": queue.number, "layout": queue.layout, "areas": "[]", "mode": "exclusive"}
    with store.database.begin() as work:
        queries.locks.insert_request(
            work, {**row, "priority": 25, "task": "gone", "attempt": "1", "asked_ms": 0, "until_ms": 1}
        )
    revoked: list[int] = []
    thread = threading.Thread(target=lambda: revoked.append(revoke(store.database, "gone")))
    with store.database.begin() as work:
        board = open_board(work, queue, Owner("bert", "1"), Range(0, 2))
        thread.start()
        wait_until(lambda: waits_for_a_row(store), "the revocation does not wait")
        queries.locks.delete_requests(work, board.gone_requests)
    thread.join(PATIENCE)
    assert revoked == [1]


def waits_for_a_row(store: Store) -> bool:
    with store.database.connect() as connection:
        of_database = "datname = current_database() and wait_event_type = 'Lock'"
        return bool(connection.scalar(sa.text(f"select count(*) from pg_stat_activity where {of_database}")))
