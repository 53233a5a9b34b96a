"""Locks: each is the right to work on one unit of a queue.

A lock lives in the store with a lease, which its holder renews, and a fence, drawn from the id source so
that it grows over restarts. Changes under a lock are made in a critical section: the lock's
row is locked and checked in the SQL transaction of the change itself (I10).

Source: Druid's interval locks and critical actions.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from export_queue.core.errors import LeaseLost, LockNotAvailable
from export_queue.core.queue import Queue, Range, join_ranges
from export_queue.core.store import Database, Reading, Work, queries

DRAIN_PRIORITY = 75


@dataclass(frozen=True, slots=True)
class Owner:
    """A task, and one attempt of it."""

    task: str
    """The same over retries, such as dag/run/task/map index: a new attempt takes over what an older one holds."""
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Different for every attempt; by default a new one."""

    @classmethod
    def unique(cls) -> Owner:
        """Make an owner that no other drain shares."""
        attempt = uuid.uuid4().hex
        return cls(f"{socket.gethostname()}/{os.getpid()}/{attempt}", attempt)


@dataclass(frozen=True, slots=True)
class Lease:
    """A lock that was granted; a value that may travel to other processes."""

    fence: int
    queue: int
    layout: int
    range: Range

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; the fence is a string, since it exceeds 2⁵³."""
        return {
            "fence": str(self.fence),
            "queue": self.queue,
            "layout": self.layout,
            "range": self.range.to_json(),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Lease:
        """Read what :meth:`to_json` gave."""
        return cls(int(value["fence"]), value["queue"], value["layout"], Range(*value["range"]))


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a lock, for messages."""

    owner: Owner
    range: Range
    fence: int
    lease_ms: int


def claim(
    database: Database,
    queue: Queue,
    ranges: Iterable[Range],
    *,
    owner: Owner,
    lease_seconds: float,
    priority: int = DRAIN_PRIORITY,
) -> list[Lease]:
    """Take exclusive locks on all units that are free now, in one SQL transaction; it never waits for a holder.

    A unit is free if nobody holds it, its lease has expired, it was revoked, or an older attempt of the
    same task holds it: that attempt's fence is worthless from then on.

    :param ranges: units of the queue.
    :param owner: the task that asks.
    :param lease_seconds: how long the locks last unless they are renewed.
    :returns: one lease for each unit that was granted.
    """
    granted: list[Lease] = []
    with database.begin() as work:
        queries.locks.serialise_requests(work, queue.number)
        now = work.now()
        for unit in ranges:
            meeting = queries.locks.overlapping(work, queue.number, queue.layout, first=unit.first, end=unit.end)
            if any(_stands(row, owner, now) for row in meeting):
                continue
            queries.locks.delete(work, [row["fence"] for row in meeting])
            fence = database.dialect.draw(work.connection)
            queries.locks.insert(
                work,
                {
                    "fence": fence,
                    "queue_number": queue.number,
                    "layout": queue.layout,
                    "first_bucket": unit.first,
                    "end_bucket": unit.end,
                    "segment": None,
                    "mode": "exclusive",
                    "priority": priority,
                    "task": owner.task,
                    "attempt": owner.attempt,
                    "lease_ms": now + int(lease_seconds * 1000),
                    "revoked": False,
                },
            )
            granted.append(Lease(fence, queue.number, queue.layout, unit))
    return granted


def _stands(row: Any, owner: Owner, now: int) -> bool:
    """Tell whether a lock stands against a request; pure."""
    if row["revoked"] or row["lease_ms"] <= now:
        return False
    taken_over = row["task"] == owner.task and row["attempt"] != owner.attempt
    return not taken_over


def renew(database: Database, leases: Sequence[Lease], *, lease_seconds: float) -> None:
    """Extend leases.

    :raises LeaseLost: one of them has expired, was revoked or taken over; none is extended then.
    """
    if not leases:
        return
    with database.begin() as work:
        _require(work, leases, shared=False)
        queries.locks.extend(work, [lease.fence for lease in leases], lease_ms=work.now() + int(lease_seconds * 1000))


def hold(work: Work, lease: Lease) -> None:
    """Enter a critical section: the lock cannot be taken over until this SQL transaction ends.

    :raises LeaseLost: it has expired, was revoked or taken over: change nothing.
    """
    _require(work, [lease], shared=True)


def check_leases(database: Database, leases: Sequence[Lease]) -> None:
    """Look whether leases are still held; a lease may be lost right behind the look.

    :raises LeaseLost: one of them has expired, was revoked or taken over.
    """
    with database.read() as work:
        now = work.now()
        held = {
            row["fence"]
            for number in {lease.queue for lease in leases}
            for row in queries.locks.of_queue(work, number, now=now)
        }
    _refuse_lost(leases, held)


def _require(work: Work, leases: Sequence[Lease], *, shared: bool) -> None:
    held = queries.locks.select_held(work, [lease.fence for lease in leases], now=work.now(), shared=shared)
    _refuse_lost(leases, held)


def _refuse_lost(leases: Sequence[Lease], held: Collection[int]) -> None:
    for lease in leases:
        if lease.fence not in held:
            raise LeaseLost(f"the lock on {lease.range} (fence {lease.fence}) has expired or was taken over")


def release(database: Database, leases: Sequence[Lease]) -> None:
    """Give locks back; locks that are gone already are passed over."""
    if leases:
        with database.begin() as work:
            queries.locks.delete(work, [lease.fence for lease in leases])


def revoke(database: Database, task: str) -> int:
    """Make all locks of a task worthless; returns how many."""
    with database.begin() as work:
        return queries.locks.revoke_task(work, task)


def holders(work: Reading, queue: Queue, ranges: Iterable[Range]) -> list[Holder]:
    """Read the holders of units, for messages."""
    wanted = set(ranges)
    found = [
        Holder(
            Owner(row["task"], row["attempt"]),
            Range(row["first_bucket"], row["end_bucket"]),
            row["fence"],
            row["lease_ms"],
        )
        for row in queries.locks.of_queue(work, queue.number, now=work.now())
    ]
    return [holder for holder in found if holder.range in wanted]


def not_available(work: Reading, queue: Queue, units: Iterable[Range]) -> LockNotAvailable:
    """Say who holds units."""
    units = list(units)
    held = [f"{holder.range} by {holder.owner.task}" for holder in holders(work, queue, units)]
    shown = " ".join(str(part) for part in join_ranges(units))
    return LockNotAvailable(f"others work on {queue.id} {shown}; held: {', '.join(held) or 'free by now'}")
