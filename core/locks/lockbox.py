"""Locks in the store. Each is the right to work on a part of a queue.

A lock has a lease, which its holder renews, and a fence, which comes from the id source and therefore grows across
restarts. Changes under a lock are made in a critical section: the SQL transaction of the change locks and checks the
lock's row (I10).

:mod:`rules` decides who may hold what, one request of a queue at a time; the queue's row is locked meanwhile.

Source: Druid's interval and segment locks, and its critical actions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from export_queue.core.errors import LeaseLost
from export_queue.core.locks.attempts import Owner, take_over
from export_queue.core.locks.lease import Lease, lock_ids
from export_queue.core.locks.rules import Area, Board, Granted, Lock, LockId, Mode, Request
from export_queue.core.queue import Queue, Range
from export_queue.core.store import Database, LockCall, Reading, Work, identity_of, queries

DRAIN_PRIORITY = 75
LOAD_PRIORITY = 50
COMPACTION_PRIORITY = 25


def text_of(members: frozenset[str] | None) -> str | None:
    """Write members as text; None stands for all."""
    return None if members is None else json.dumps(sorted(members), separators=(",", ":"))


def lock_of(row: Mapping[str, Any]) -> Lock:
    return Lock(
        area=Area(row["first_bucket"], row["end_bucket"], _members(row["segment"])),
        mode=row["mode"],
        priority=row["priority"],
        task=row["task"],
        attempt=row["attempt"],
        id=(row["fence"], row["first_bucket"]),
        lease_ms=row["lease_ms"],
        revoked=bool(row["revoked"]),
    )


def areas_text(areas: Iterable[Area]) -> str:
    return json.dumps([[area.first, area.end, text_of(area.members)] for area in areas], separators=(",", ":"))


def request_of(row: Mapping[str, Any]) -> Request:
    return Request(
        areas=tuple(Area(first, end, _members(names)) for first, end, names in json.loads(row["areas"])),
        mode=row["mode"],
        priority=row["priority"],
        task=row["task"],
        attempt=row["attempt"],
        number=row["number"],
        until_ms=row["until_ms"],
    )


def _members(text: str | None) -> frozenset[str] | None:
    return None if text is None else frozenset(json.loads(text))


def owner_request(
    owner: Owner,
    areas: Iterable[Area],
    *,
    priority: int,
    mode: Mode = "exclusive",
    number: int | None = None,
) -> Request:
    return Request(
        areas=tuple(areas),
        mode=mode,
        priority=priority,
        task=owner.task,
        attempt=owner.attempt,
        spared=frozenset(owner.names - {owner.attempt}),
        number=number,
    )


def open_board(work: Work, queue: Queue, owner: Owner, within: Range) -> Board:
    """Block other requests, take over from older attempts, and read what is on record near an interval.

    :raises LeaseLost: the attempt was revoked, a newer one has taken over, or the queue's units were altered.
    """
    queries.locks.serialise_requests(work, queue.number, queue_id=queue.id)
    some_wait = take_over(work, queue, owner)
    return read_board(work, queue, within, some_wait=some_wait, lock=True)


def read_board(work: Reading, queue: Queue, within: Range, *, some_wait: bool, lock: bool) -> Board:
    """Read the locks near an interval, and waiting requests if there are any."""
    bounds = {"first": within.first, "end": within.end}
    locks = queries.locks.overlapping(work, queue.number, queue.layout, **bounds, lock=lock)
    waiting = queries.locks.requests(work, queue.number, queue.layout) if some_wait else []
    return Board(map(lock_of, locks), map(request_of, waiting), now=work.now())


def grant(
    work: Work, queue: Queue, request: Request, board: Board, ended: Granted, *, lease_seconds: float
) -> list[Lease]:
    """Record a decision.

    :returns: a lease for each area of the request, in their order.
    """
    queries.locks.delete(work, {lock.id for lock in (*ended.worthless, *board.gone)})
    queries.locks.revoke_at(work, {lock.id for lock in ended.revoked})
    # After the rows: a critical section draws an id under the row of its lock.
    fence = work.database.dialect.steps.draw(work.connection)
    lock = {
        "fence": fence,
        "queue_number": queue.number,
        "layout": queue.layout,
        "mode": request.mode,
        "priority": request.priority,
        "task": request.task,
        "attempt": request.attempt,
        "lease_ms": board.now + int(lease_seconds * 1000),
        "revoked": False,
    }
    rows = [
        {**lock, "first_bucket": area.first, "end_bucket": area.end, "segment": text_of(area.members)}
        for area in request.areas
    ]
    queries.locks.insert(work, rows)
    return _leases_of(queue, request, fence)


def grant_at_once(database: Database, queue: Queue, request: Request, *, lease_seconds: float) -> list[Lease] | None:
    """Grant a request in one round trip, if the database can and nothing is in the way; else return None."""
    locks = database.dialect.locks
    if locks is None:
        return None
    call = LockCall(
        queue=queue.number,
        layout=queue.layout,
        buckets_per_range=queue.buckets_per_range,
        areas=[(area.first, area.end, text_of(area.members)) for area in request.areas],
        mode=request.mode,
        priority=request.priority,
        task=request.task,
        attempts=[request.attempt, *sorted(request.spared)],
        lease_ms=int(lease_seconds * 1000),
    )
    with database.connect() as connection:
        fence = locks.lock_at_once(connection, call)
    return None if fence is None else _leases_of(queue, request, fence)


def _leases_of(queue: Queue, request: Request, fence: int) -> list[Lease]:
    return [
        Lease(fence, queue.number, queue.layout, Range(area.first, area.end, queue.layout), members=area.members)
        for area in request.areas
    ]


def renew(database: Database, leases: Sequence[Lease], *, lease_seconds: float) -> None:
    """Extend leases.

    :raises LeaseLost: a lease has expired, was revoked or taken over; then none is extended.
    """
    if not leases:
        return
    with database.begin() as work:
        now = work.now()  # read once: a holder that is paused between check and extension gains no time
        _require(work, leases, now=now, shared=False)
        queries.locks.extend(work, lock_ids(leases), lease_ms=now + int(lease_seconds * 1000))


def hold(work: Work, *leases: Lease) -> int:
    """Enter a critical section: none of the locks can be taken over until this SQL transaction ends.

    :param leases: all leases that the change relies on.
    :returns: the store's clock, in milliseconds.
    :raises LeaseLost: a lease has expired, was revoked or taken over; change nothing.
    """
    now = work.now()
    _require(work, leases, now=now, shared=True)
    return now


def check_leases(database: Database, leases: Sequence[Lease]) -> int:
    """Check that leases are still held; they may be lost right after the check.

    :returns: the store's clock at the check, in milliseconds.
    :raises LeaseLost: a lease has expired, was revoked or taken over.
    """
    with database.read() as work:
        now = work.now()
        queues = {lease.queue for lease in leases}
        held = {lock_of(row).id for number in queues for row in queries.locks.of_queue(work, number, now=now)}
    _refuse_lost(leases, held)
    return now


def _require(work: Work, leases: Sequence[Lease], *, now: int, shared: bool) -> None:
    held = queries.locks.select_held(work, lock_ids(leases), now=now, shared=shared)
    _refuse_lost(leases, held)


def _refuse_lost(leases: Sequence[Lease], held: Set[LockId]) -> None:
    for lease in leases:
        if not held >= set(lock_ids([lease])):
            raise LeaseLost(f"the lock on {lease.range} (fence {lease.fence}) has expired, was revoked or taken over")


def give_back(work: Work, leases: Sequence[Lease]) -> None:
    """Release locks in the SQL transaction of the change that was made under them; waiters poll for it."""
    queries.locks.delete(work, lock_ids(leases))


def release(database: Database, leases: Sequence[Lease]) -> None:
    """Release locks and wake those that wait for them. Locks that no longer exist are ignored."""
    if not leases:
        return
    of_queues = sorted({lease.queue for lease in leases})
    locks = database.dialect.locks
    if locks is None:
        with database.begin() as work:
            queries.locks.delete(work, lock_ids(leases))
        return  # nobody waits for a hint
    with database.connect() as connection:
        some_wait = locks.release_locks(connection, lock_ids(leases), of_queues)
    if some_wait:
        database.hints.tell(identity_of(database).store_id, [waiters_of(number) for number in of_queues])


def waiters_of(queue: int) -> int:
    """Return the number for hints to waiters for locks of a queue; no queue has this number."""
    return -queue


def release_all(work: Work, queue: Queue, units: Iterable[Range], owner: Owner) -> None:
    """Release all locks that an attempt holds on some units."""
    for of, in_layout in queue.by_layout(units):
        firsts = [unit.first for unit in in_layout]
        queries.locks.delete_of_attempt(
            work, owner.task, owner.attempt, queue=queue.number, layout=of.layout, firsts=firsts
        )


def standing_locks(work: Reading, queue: Queue) -> list[Lock]:
    """Read the locks in a queue's layout whose holders may work, by interval."""
    found = queries.locks.of_queue(work, queue.number, now=work.now())
    return [lock_of(row) for row in found if row["layout"] == queue.layout]
