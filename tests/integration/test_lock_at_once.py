"""Locks that PostgreSQL grants in one round trip: as the rules do, wherever nothing is to be decided (I10)."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.waiting import PATIENCE, wait_until

from export_queue import Owner, Range, Store
from export_queue.core.locks import ROWS, Area, Lease, Lock, release, revoke
from export_queue.core.locks.lockbox import areas_text, grant, open_board, owner_request, text_of
from export_queue.core.locks.rules import Board, Granted, Request
from export_queue.core.locks.waiting import Asking
from export_queue.core.queue import Queue
from export_queue.core.store import schema

pytestmark = pytest.mark.parametrize(
    "store_url", [pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True
)
MINUTE = 60_000


@pytest.fixture
def queue(store: Store) -> Queue:
    return store.configure_queue("q", buckets=8, buckets_per_range=2)


spans = st.sampled_from([(0, 2), (2, 4), (4, 6), (0, 4), (2, 8)])
members = st.one_of(st.none(), st.frozensets(st.sampled_from([ROWS, "1.1", '2."1']), min_size=1))
areas = st.builds(lambda span, names: Area(*span, names), spans, members)
who = {
    "mode": st.sampled_from(["exclusive", "shared"]),
    "priority": st.sampled_from([25, 75]),
    "task": st.sampled_from(["a", "b", "c"]),
    "attempt": st.sampled_from(["1", "1", "2"]),
}
some_locks = st.lists(
    st.builds(
        Lock,
        area=areas,
        **who,
        id=st.just((0, 0)),
        lease_ms=st.sampled_from([-MINUTE, MINUTE]),
        revoked=st.sampled_from([False, False, True]),
    ),
    min_size=1,
    max_size=2,
)
some_requests = st.lists(
    st.builds(Request, areas=st.tuples(areas), **who, until_ms=st.sampled_from([MINUTE, MINUTE, -MINUTE])),
    min_size=1,
    max_size=1,
)
record = st.one_of(
    st.tuples(some_locks, st.just([])), st.tuples(st.just([]), some_requests), st.tuples(some_locks, some_requests)
)
"""What is there: locks, requests that wait, or both."""
wanted = st.lists(areas, min_size=1, max_size=2).filter(
    lambda found: len(found) == 1 or found[0].end <= found[1].first or found[1].end <= found[0].first
)


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wanted=wanted, asker=st.builds(Request, areas=st.just(()), **who), record=record)
def test_what_is_granted_at_once_is_granted_by_the_rules(
    store: Store, queue: Queue, wanted: list[Area], asker: Request, record: tuple[list[Lock], list[Request]]
) -> None:
    on_record, waiting, now = written(store, queue, *record)
    owner = Owner(asker.task, asker.attempt)
    mode: Any = asker.mode
    asking = Asking(store.database, queue, wanted, owner=owner, mode=mode, priority=asker.priority, lease_seconds=60)
    request = replace(asker, areas=tuple(wanted))
    found = asking.at_once()
    decided = Board(on_record, waiting, now=now).decide(request, revokes=False)
    low, high = min(area.first for area in wanted), max(area.end for area in wanted)
    near = [lock for lock in on_record if lock.area.first < high and low < lock.area.end]
    if found is not None:
        assert isinstance(decided, Granted)
        assert not [lock for lock in decided.worthless if lock.attempt != asker.attempt and lock.task == asker.task]
        assert granted(store, request, found, now)
    elif not near and not waiting:
        assert any(lock.task == asker.task and lock.attempt != asker.attempt for lock in on_record), "it is left alone"


def written(
    store: Store, queue: Queue, locks: list[Lock], requests: list[Request]
) -> tuple[list[Lock], list[Request], int]:
    """Put locks and requests on record; returns them as they are there."""
    with store.database.begin() as work:
        for table in (schema.lock, schema.lock_request, schema.attempt):
            work.connection.execute(table.delete())
        now = work.now()
        of_queue = {"queue_number": queue.number, "layout": queue.layout}
        on_record = [
            replace(lock, id=(number, lock.area.first), lease_ms=now + lock.lease_ms)
            for number, lock in enumerate(locks, 1)
        ]
        waiting = [replace(one, number=number, until_ms=now + one.until_ms) for number, one in enumerate(requests, 1)]
        for lock in on_record:
            row = {name: getattr(lock, name) for name in ("mode", "priority", "task", "attempt", "lease_ms", "revoked")}
            area = {"first_bucket": lock.area.first, "end_bucket": lock.area.end, "segment": text_of(lock.area.members)}
            work.connection.execute(schema.lock.insert().values(**row, **area, **of_queue, fence=lock.id[0]))
        for one in waiting:
            row = {name: getattr(one, name) for name in ("number", "mode", "priority", "task", "attempt", "until_ms")}
            more = {"areas": areas_text(one.areas), "asked_ms": now}
            work.connection.execute(schema.lock_request.insert().values(**row, **more, **of_queue))
    return on_record, waiting, now


def granted(store: Store, request: Request, leases: list[Lease], now: int) -> bool:
    """Tell whether the locks of leases are on record as they were asked for."""
    table = schema.lock
    with store.database.read() as work:
        rows = list(
            work.connection.execute(
                sa.select(table).where(table.c.fence == leases[0].fence).order_by(table.c.first_bucket)
            ).mappings()
        )
    expected = sorted((area.first, area.end, text_of(area.members)) for area in request.areas)
    return (
        [(row["first_bucket"], row["end_bucket"], row["segment"]) for row in rows] == expected
        and {(row["mode"], row["priority"], row["task"], row["attempt"], row["revoked"]) for row in rows}
        == {(request.mode, request.priority, request.task, request.attempt, False)}
        and all(now + MINUTE <= row["lease_ms"] <= now + 10 * MINUTE for row in rows)
    )


def test_an_attempt_that_was_revoked_gets_nothing_at_once(store: Store, queue: Queue) -> None:
    revoke(store.database, "a", attempt="1")
    asking = Asking(store.database, queue, [Area(0, 2)], owner=Owner("a", "1"), lease_seconds=60)
    assert asking.at_once() is None
    altered = replace(queue, buckets_per_range=4)
    asking = Asking(store.database, altered, [Area(0, 2)], owner=Owner("b", "1"), lease_seconds=60)
    assert asking.at_once() is None, "the units are others by now"


def test_nobody_is_granted_at_once_what_somebody_waits_for(store: Store, queue: Queue) -> None:
    area, database = Area(0, 2), store.database
    held = Asking(database, queue, [area], owner=Owner("anna", "1"), lease_seconds=60).at_once()
    assert held is not None
    with Asking(database, queue, [area], owner=Owner("bert", "1"), lease_seconds=60) as waiter:
        assert waiter.ask(revokes=False, stays=True) is None
        release(database, held)
        assert Asking(database, queue, [area], owner=Owner("carl", "1"), lease_seconds=60).at_once() is None
        assert waiter.ask(revokes=False, stays=True) is not None


def test_a_server_that_sees_no_later_grants_decides_nothing_at_once(store: Store, store_url: str, queue: Queue) -> None:
    """A request that waits for its turn would not see the lock that was granted meanwhile."""
    area, found = Area(0, 2), list[list[Lease] | None]()
    with store.database.connect() as connection:
        name = connection.scalar(sa.text("select current_database()"))
        connection.execute(sa.text(f"alter database \"{name}\" set default_transaction_isolation = 'repeatable read'"))
    with Store.open(store_url) as strict:
        asking = Asking(strict.database, queue, [area], owner=Owner("bert", "1"), lease_seconds=60)
        thread = threading.Thread(target=lambda: found.append(asking.at_once()))
        with store.database.begin() as work:
            board = open_board(work, queue, Owner("anna", "1"), Range(0, 2))
            thread.start()
            wait_until(lambda: not thread.is_alive() or waits_for_a_row(store), "bert neither waits nor ends")
            request = owner_request(Owner("anna", "1"), [area], priority=75)
            grant(work, queue, request, board, Granted(), lease_seconds=60)
        thread.join(PATIENCE)
        assert found == [None], "anna has it"


def waits_for_a_row(store: Store) -> bool:
    with store.database.connect() as connection:
        waiting = sa.text(
            "select exists (select 1 from pg_stat_activity where datname = current_database() "
            "and wait_event_type = 'Lock')"
        )
        return bool(connection.scalar(waiting))
