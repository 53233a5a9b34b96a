"""How many connections of a store stay open, and who gets one that is returned."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from tests.support.waiting import PATIENCE, wait_until

from export_queue import Store, StoreUnavailable
from export_queue.core.store import KEPT_CONNECTIONS, MOST_CONNECTIONS


def idle(store: Store) -> int:
    """Connections that are open while nothing uses the store."""
    pool: Any = store.database.pool
    return len(pool._idle) + int(pool.engine.pool.checkedin())


def take_all(store: Store) -> list[Any]:
    return [store.database.pool.check_out() for _ in range(MOST_CONNECTIONS)]


def give_back(store: Store, loans: list[Any]) -> None:
    """Return connections, of which as many stay open as a process keeps."""
    for loan in loans:
        store.database.pool.check_in(loan)
    assert idle(store) == KEPT_CONNECTIONS


def test_idle_connections_are_limited_in_whichever_way_they_were_lent(store: Store) -> None:
    pool = store.database.pool
    loans = [pool.check_out() for _ in range(KEPT_CONNECTIONS + 2)]
    with ExitStack() as lent:
        for _ in range(KEPT_CONNECTIONS + 2):
            lent.enter_context(pool.connect())
    assert idle(store) <= KEPT_CONNECTIONS
    give_back(store, loans)


def test_a_connection_that_is_returned_goes_to_a_thread_that_waits(store: Store) -> None:
    pool: Any = store.database.pool
    loans = take_all(store)
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(pool.check_out)
        wait_until(lambda: pool.engine.pool._taking, "the thread does not wait")
        pool.check_in(loans.pop())
        loans.append(waits.result())
    give_back(store, loans)


def test_a_connection_that_is_kept_just_before_a_thread_waits_goes_to_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread has seen that there is no idle connection, but does not wait yet."""
    pool: Any = store.database.pool
    loans = take_all(store)
    monkeypatch.setattr(pool.engine.pool, "_timeout", PATIENCE / 2)
    connect, looked, returned = pool.connect_raw, threading.Event(), threading.Event()

    def slowly() -> Any:
        looked.set()
        assert returned.wait(PATIENCE)
        return connect()

    monkeypatch.setattr(pool, "connect_raw", slowly)
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(pool.check_out)
        assert looked.wait(PATIENCE)
        pool.check_in(loans.pop())
        returned.set()
        loans.append(waits.result())
    give_back(store, loans)


def test_connections_in_use_still_count_after_the_others_were_closed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As before a fork, and after a commit whose answer was lost."""
    pool: Any = store.database.pool
    loans = take_all(store)
    monkeypatch.setattr(pool.engine.pool, "_timeout", PATIENCE)
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(pool.check_out)
        wait_until(lambda: pool.engine.pool._taking, "the thread does not wait")
        store.database.forget_connections()
        assert pool.engine.pool.checkedout() == MOST_CONNECTIONS
        with pool.engine.pool._pool.mutex:  # the thread cannot take it before it is closed
            pool.check_in(loans.pop())
            store.database.forget_connections()
        loans.append(waits.result(timeout=PATIENCE / 2))
    monkeypatch.setattr(pool.engine.pool, "_timeout", 0.01)
    with pytest.raises(StoreUnavailable, match="all connections"):
        pool.check_out()
    give_back(store, loans)
    store.database.forget_connections()
    assert (idle(store), pool.engine.pool.checkedout()) == (0, 0)
