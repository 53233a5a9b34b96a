"""How many connections of a store stay open, and who gets one that is returned."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from tests.support.waiting import wait_until

from export_queue import Store
from export_queue.core.store import KEPT_CONNECTIONS, MOST_CONNECTIONS


def idle(store: Store) -> int:
    """Connections that are open while nothing uses the store."""
    pool: Any = store.database.pool
    return len(pool._idle) + int(pool.engine.pool.checkedin())


def test_idle_connections_are_limited_in_whichever_way_they_were_lent(store: Store) -> None:
    pool = store.database.pool
    loans = [pool.check_out() for _ in range(KEPT_CONNECTIONS + 2)]
    with ExitStack() as lent:
        for _ in range(KEPT_CONNECTIONS + 2):
            lent.enter_context(pool.connect())
    assert idle(store) == KEPT_CONNECTIONS
    for loan in loans:
        pool.check_in(loan)
    assert idle(store) == KEPT_CONNECTIONS


def test_a_connection_that_is_returned_goes_to_a_thread_that_waits(store: Store) -> None:
    pool: Any = store.database.pool
    loans = [pool.check_out() for _ in range(MOST_CONNECTIONS)]
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(pool.check_out)
        wait_until(lambda: pool.engine.pool._taking, "the thread does not wait")
        pool.check_in(loans.pop())
        loans.append(waits.result())
    for loan in loans:
        pool.check_in(loan)
    assert idle(store) == KEPT_CONNECTIONS
