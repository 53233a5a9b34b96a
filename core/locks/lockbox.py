"""Locks: each is the right to work on one unit of a queue.

A lock lives in the store with a lease, which its holder renews, and a fence, drawn from the id source so
that it grows over restarts. Changes under a lock are made in a critical section: the lock's
row is locked and checked in the SQL transaction of the change itself (I10).

Source: Druid's interval locks and critical actions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from export_queue.core.errors import LeaseLost, LockNotAvailable
from export_queue.core.locks.attempts import Owner, take_over
from export_queue.core.queue import Queue, Range, join_ranges
from export_queue.core.store import Database, Reading, Work, queries

DRAIN_PRIORITY = 75


@dataclass(frozen=True, slots=True)
class Lease:
    """A lock that was granted; a value that may travel to other processes."""

    fence: int
    """That of the claim: all locks of one claim have the same."""
    queue: int
    layout: int
    range: Range
    others: tuple[int, ...] = ()
    """First buckets of the other units, where it stands for the locks of several."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; the fence is a string, since it exceeds 2⁵³."""
        return {
            "fence": str(self.fence),
            "queue": self.queue,
            "layout": self.layout,
            "range": self.range.to_json(),
            "others": list(self.others),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Lease:
        """Read what :meth:`to_json` gave."""
        others = tuple(value.get("others", ()))
        return cls(int(value["fence"]), value["queue"], value["layout"], Range(*value["range"]), others)


def joined(leases: Sequence[Lease]) -> list[Lease]:
    """Join the leases of one claim whose units are neighbours: all are held, renewed and given back together."""
    found: list[Lease] = []
    for lease in sorted(leases, key=lambda one: one.range.first):
        if found and (last := found[-1]).range.end == lease.range.first:
            others = (*last.others, lease.range.first, *lease.others)
            found[-1] = replace(last, range=Range(last.range.first, lease.range.end), others=others)
        else:
            found.append(lease)
    return found


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
    same task holds it: that attempt's fence is worthless from then on. The number of statements does not depend on
    that of the units.

    :param ranges: units of the queue.
    :param owner: the task that asks.
    :param lease_seconds: how long the locks last unless they are renewed.
    :returns: one lease for each unit that was granted.
    :raises LeaseLost: the attempt was revoked, a newer one has taken over, or the queue's units were altered.
    """
    units = list(ranges)
    if not units:
        return []
    with database.begin() as work:
        stored = queries.locks.serialise_requests(work, queue.number, queue_id=queue.id)
        if stored != queue.buckets_per_range:
            # a sink with the guard fence knows units by their first bucket: claims of both kinds would miss each other
            raise LeaseLost(
                f"the units of queue {queue.id!r} were altered: expected {queue.buckets_per_range} buckets a unit, "
                f"as at the start, found {stored}",
                hint="start again: the ranges of the new units are read then",
            )
        take_over(work, queue, owner)
        first, end = min(unit.first for unit in units), max(unit.end for unit in units)
        found = queries.locks.overlapping(work, queue.number, queue.layout, first=first, end=end)
        free, worthless = choose(units, found, now=work.now())
        if not free:
            return []
        queries.locks.delete(work, [(row["fence"], row["first_bucket"]) for row in worthless])
        # After the rows: a critical section draws an id under the row of its lock.
        fence = database.dialect.draw(work.connection)
        lock = {
            "fence": fence,
            "queue_number": queue.number,
            "layout": queue.layout,
            "segment": None,
            "mode": "exclusive",
            "priority": priority,
            "task": owner.task,
            "attempt": owner.attempt,
            "lease_ms": work.now() + int(lease_seconds * 1000),
            "revoked": False,
        }
        queries.locks.insert(work, [{**lock, "first_bucket": unit.first, "end_bucket": unit.end} for unit in free])
    return [Lease(fence, queue.number, queue.layout, unit) for unit in free]


def choose(
    units: Sequence[Range], locks: Sequence[Mapping[str, Any]], *, now: int
) -> tuple[list[Range], list[Mapping[str, Any]]]:
    """Decide a request; pure.

    :param units: units that are asked for.
    :param locks: locks near them.
    :param now: the store's clock, in milliseconds.
    :returns: the units that are free, and the worthless locks that are in their way.
    """
    standing = [row for row in locks if not row["revoked"] and row["lease_ms"] > now]
    held = _Cover((row["first_bucket"], row["end_bucket"]) for row in standing)
    free = [unit for unit in units if not held.meets(unit.first, unit.end)]
    granted = _Cover((unit.first, unit.end) for unit in free)
    worthless = [row for row in locks if granted.meets(row["first_bucket"], row["end_bucket"])]
    return free, worthless


class _Cover:
    """Intervals that are asked many times whether they meet another one."""

    def __init__(self, intervals: Iterable[tuple[int, int]]) -> None:
        ordered = sorted(intervals)
        self._firsts = [first for first, _ in ordered]
        self._highest_ends = list(accumulate((end for _, end in ordered), max))

    def meets(self, first: int, end: int) -> bool:
        before_end = bisect_left(self._firsts, end)
        return before_end > 0 and self._highest_ends[before_end - 1] > first


def renew(database: Database, leases: Sequence[Lease], *, lease_seconds: float) -> None:
    """Extend leases.

    :raises LeaseLost: one of them has expired, was revoked or taken over; none is extended then.
    """
    if not leases:
        return
    with database.begin() as work:
        now = work.now()  # once: a holder that is stopped between the look and the extension gains nothing by it
        _require(work, leases, now=now, shared=False)
        queries.locks.extend(work, _places(leases), lease_ms=now + int(lease_seconds * 1000))


def hold(work: Work, lease: Lease) -> int:
    """Enter a critical section: the lock cannot be taken over until this SQL transaction ends.

    :returns: the store's clock, in milliseconds.
    :raises LeaseLost: it has expired, was revoked or taken over: change nothing.
    """
    now = work.now()
    _require(work, [lease], now=now, shared=True)
    return now


def check_leases(database: Database, leases: Sequence[Lease]) -> int:
    """Look whether leases are still held; a lease may be lost right behind the look.

    :returns: the store's clock at the look, in milliseconds.
    :raises LeaseLost: one of them has expired, was revoked or taken over.
    """
    with database.read() as work:
        now = work.now()
        held = {
            (row["fence"], row["first_bucket"])
            for number in {lease.queue for lease in leases}
            for row in queries.locks.of_queue(work, number, now=now)
        }
    _refuse_lost(leases, held)
    return now


def _require(work: Work, leases: Sequence[Lease], *, now: int, shared: bool) -> None:
    held = queries.locks.select_held(work, _places(leases), now=now, shared=shared)
    _refuse_lost(leases, held)


def _places(leases: Sequence[Lease]) -> list[queries.locks.Place]:
    return [(lease.fence, first) for lease in leases for first in (lease.range.first, *lease.others)]


def _refuse_lost(leases: Sequence[Lease], held: Set[queries.locks.Place]) -> None:
    for lease in leases:
        if not held >= set(_places([lease])):
            raise LeaseLost(f"the lock on {lease.range} (fence {lease.fence}) has expired or was taken over")


def release(database: Database, leases: Sequence[Lease]) -> None:
    """Give locks back; locks that are gone already are passed over."""
    if leases:
        with database.begin() as work:
            queries.locks.delete(work, _places(leases))


def release_all(work: Work, queue: Queue, units: Iterable[Range], owner: Owner) -> None:
    """Give back whatever an attempt holds of some units."""
    firsts = [unit.first for unit in units]
    queries.locks.delete_of_attempt(
        work, owner.task, owner.attempt, queue=queue.number, layout=queue.layout, firsts=firsts
    )


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
