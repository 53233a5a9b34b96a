"""Claiming units that others may hold: what is free at once, the rest in further rounds.

One policy serves drains, the submissions of a drain on Spark, and retries of dead letters (:func:`rounds`). They differ
in what they claim and in what they do with it (:class:`Terms`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from export_queue.core.drain.deadline import Deadline
from export_queue.core.drain.promise import Promise
from export_queue.core.drain.request import IfLocked
from export_queue.core.errors import ExportQueueError
from export_queue.core.locks import Lease, Owner, check_attempt, claim, claimable, release
from export_queue.core.queue import Queue, Range, waiting_ranges
from export_queue.core.store import Database
from export_queue.core.transactions import Snapshot, expire_if_due, settled_snapshot, take_snapshot

POLL_SECONDS = 0.5
"""Time between two attempts to claim what others hold."""
_ANSWER_SECONDS = 60.0

Claimed = TypeVar("Claimed")


@dataclass(slots=True, kw_only=True)
class Terms(Generic[Claimed]):
    """How a task claims units, and how it waits for others.

    :param owner: the task; it stops when it is revoked or a newer attempt takes over.
    :param left: returns the units that the task still wants.
    :param claim: claims what is free in some units, and returns nothing if nothing is. The second argument says whether
        to revoke locks of lower priority.
    :param refusal: returns the error after too long a wait, from the units that others hold and from all units that are
        left. If others hold none, older transactions hold entries back.
    :param ready: returns those of some units that may be claimed now.
    :param on_wait: called before each pause with the units that others hold; may raise to stop.
    :param after_wait: called after each pause, to find out what is left.
    :param if_locked: what to do if nothing is free.
    :param lock_timeout: seconds to wait for others, counted from when there is nothing else to claim.
    :param skipped: units that were left to others.
    """

    database: Database
    owner: Owner
    left: Callable[[], Sequence[Range]]
    claim: Callable[[Sequence[Range], bool], Claimed | None]
    refusal: Callable[[Sequence[Range], Sequence[Range]], ExportQueueError]
    ready: Callable[[Sequence[Range]], Sequence[Range]] = lambda units: units
    on_wait: Callable[[Sequence[Range]], None] = lambda units: None
    after_wait: Callable[[], None] = lambda: None
    if_locked: IfLocked = "wait"
    lock_timeout: float
    deadline: Deadline = field(default_factory=Deadline)
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    skipped: set[Range] = field(default_factory=set)

    def units(self) -> list[Range]:
        """Return the units that are left and not skipped."""
        return [unit for unit in self.left() if unit not in self.skipped]


def rounds(terms: Terms[Claimed]) -> Iterator[Claimed]:
    """Claim units in rounds until none is left or the rest is skipped.

    Before the caller asks for the next round, it drains what it got, so that the units left are fewer.

    :raises LockNotAvailable: others hold units, and the terms do not allow to wait, or not this long.
    :raises EntriesNotSettled: no unit was ready in time.
    :raises DrainTimedOut: the time limit has passed.
    :raises LeaseLost: the attempt was revoked, or a newer one has begun.
    """
    since = terms.clock()
    while units := terms.units():
        terms.deadline.check()
        ready = terms.ready(units)
        is_late = terms.clock() - since >= terms.lock_timeout
        if claimed := terms.claim(ready, is_late and terms.if_locked == "wait"):
            yield claimed
            since = terms.clock()
            continue
        if terms.if_locked == "skip":
            terms.skipped |= set(ready)
            ready, units = [], terms.units()
            if not units:
                return
        if is_late:
            raise terms.refusal(ready, units)
        terms.on_wait(ready)
        terms.sleep(min(POLL_SECONDS, terms.deadline.left()))
        check_attempt(terms.database, terms.owner)
        terms.after_wait()


def claim_in_layouts(database: Database, queue: Queue, units: Sequence[Range], **options: Any) -> list[Lease]:
    """Claim what is free in units of any layouts.

    :param options: further arguments of :func:`~export_queue.core.locks.claim`.
    """
    leases: list[Lease] = []
    try:
        for of, in_layout in queue.by_layout(units):
            leases += claim(database, of, in_layout, **options)
    except BaseException:
        release(database, leases)
        raise
    return leases


class Claim(NamedTuple):
    """What a drain got in one round."""

    leases: Sequence[Lease]
    snapshot: Snapshot
    """Decides which rows and files are read. It is taken before the claim, so that the claim covers all segments that
    it sees. A fenced drain locks whole intervals and takes its snapshot after the claim."""
    claimed_at: float


@dataclass(slots=True)
class Claims:
    """The claims of one drain.

    :param is_fenced: whether the sink keeps no ranks.
    :param shared: units that were claimed except for the parts that others hold.
    """

    promise: Promise
    is_fenced: bool
    clock: Callable[[], float]
    shared: set[Range] = field(default_factory=set)

    def ready(self, units: Sequence[Range]) -> Sequence[Range]:
        """Leave out units without settled entries if the sink is fenced: older entries could be committed later."""
        if not self.is_fenced:
            return units
        database, queue = self.promise.database, self.promise.queue
        expire_if_due(database, seconds=_ANSWER_SECONDS)  # an expired transaction would hold them back
        snapshot = settled_snapshot(database, queue.number)
        with database.read() as work:
            return waiting_ranges(work, queue, snapshot, units)

    def claim(self, units: Sequence[Range], revokes: bool = False, snapshot: Snapshot | None = None) -> Claim | None:
        """Claim what is free in some units.

        A sink with ranks accepts entries in any order, so the parts that a compaction holds may be delivered later.

        :param revokes: whether conflicting locks of lower priority are revoked.
        :param snapshot: decides what is read; by default a new one.
        :raises LockNotAvailable: others hold something, and the request has ``if_locked="fail"``.
        """
        promise, request = self.promise, self.promise.request
        claimed_at, snapshot = self.clock(), snapshot or take_snapshot(promise.database)
        units = units if revokes else self._with_some_free(units)
        leases = claim_in_layouts(
            promise.database,
            promise.queue,
            units,
            owner=request.owner,
            lease_seconds=request.lease_seconds,
            leaves_out=not self.is_fenced,
            revokes=revokes,
        )
        whole = {lease.range for lease in leases if lease.is_whole}
        if request.if_locked == "fail" and len(whole) < len(units):
            held = [unit for unit in units if unit not in whole]
            raise promise.refusal(held, held)  # the end of the drain releases the leases
        self.shared = (self.shared - whole) | {lease.range for lease in leases if not lease.is_whole}
        return Claim(leases, snapshot, claimed_at) if leases else None

    def _with_some_free(self, units: Sequence[Range]) -> Sequence[Range]:
        """Leave out units in which only the parts that others hold are left."""
        known = self.shared.intersection(units)
        if not known:
            return units
        promise = self.promise
        with promise.database.read() as work:
            again = claimable(work, promise.queue, sorted(known), promise.snapshot, owner=promise.request.owner)
        return [unit for unit in units if unit not in known or unit in again]
