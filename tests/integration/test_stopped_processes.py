"""A process that stands still inside of a SQL transaction of the store holds nothing for longer than its lease (I10).

A suspended machine and a debugger do what SIGSTOP does here: the connection lives on, and no keep-alive sees it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.support.waiting import wait_until

from export_queue import LeaseLost, Owner, Store, StoreUnavailable
from export_queue.core.locks import Lease, claim, release, renew
from export_queue.core.queue import Queue
from export_queue.core.store import queries
from export_queue.core.store.postgresql import connection

fork = multiprocessing.get_context("fork")

pytestmark = pytest.mark.parametrize(
    "store_url",
    [pytest.param(kind, marks=pytest.mark.postgres) for kind in ("postgresql", "postgresql-pooler")],
    indirect=True,
)


@pytest.fixture
def queue(store: Store) -> Queue:
    return store.configure_queue("q", buckets=20, buckets_per_range=5)


@contextmanager
def stopped_before(
    step: str, open_store: Callable[[], Store], call: Callable[[Store], object]
) -> Iterator[Callable[[], str]]:
    """Run a call in a process that stops itself before one step of its SQL transaction.

    :returns: lets the process go on, and tells how its call ended.
    """
    here, there = fork.Pipe()

    def body() -> None:
        connection.IDLE_SECONDS = 0.5  # of this process alone: the test's own may be kept waiting by others
        real = getattr(queries.locks, step)

        def stop_then(*arguments: Any, **options: Any) -> Any:
            os.kill(os.getpid(), signal.SIGSTOP)
            return real(*arguments, **options)

        setattr(queries.locks, step, stop_then)
        with open_store() as mine:
            try:
                call(mine)
                there.send("done")
            except Exception as error:
                there.send(type(error).__name__)

    process = fork.Process(target=body, daemon=True)
    process.start()
    assert process.pid is not None
    os.waitpid(process.pid, os.WUNTRACED)

    def go_on() -> str:
        os.kill(process.pid or 0, signal.SIGCONT)
        assert here.poll(60), "the process hangs"
        return str(here.recv())

    try:
        yield go_on
    finally:
        process.kill()
        process.join(30)


def take(store: Store, queue: Queue, task: str) -> list[Lease]:
    return claim(store.database, queue, queue.units(), owner=Owner(task, "1"), lease_seconds=1)


def test_a_holder_that_stops_inside_of_a_renewal_loses_its_lease(
    store: Store, open_store: Callable[[], Store], queue: Queue
) -> None:
    leases = take(store, queue, "stopped")
    with stopped_before("extend", open_store, lambda mine: renew(mine.database, leases, lease_seconds=1)) as go_on:
        wait_until(lambda: take(store, queue, "next"), "the lease of a stopped holder did not end")
        assert go_on() == StoreUnavailable.__name__
    with pytest.raises(LeaseLost):
        renew(store.database, leases, lease_seconds=1)


def test_a_process_that_stops_inside_of_a_claim_holds_up_no_other_claim_for_long(
    store: Store, open_store: Callable[[], Store], queue: Queue
) -> None:
    # Beside a holder, or PostgreSQL would grant it in one call, in which no process can stop.
    claim(store.database, queue, queue.units()[:1], owner=Owner("holder", "1"), lease_seconds=60)
    with stopped_before("insert", open_store, lambda mine: take(mine, queue, "stopped")) as go_on:
        leases = take(store, queue, "next")
        assert len(leases) == len(queue.units()) - 1
        release(store.database, leases)
        assert go_on() == StoreUnavailable.__name__
