"""Claiming units that have work, next to others that may hold parts of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from export_queue.core.drain.fenced import in_progress
from export_queue.core.drain.request import DrainRequest
from export_queue.core.errors import LockNotAvailable
from export_queue.core.locks import Lease, claim, claimable, holders, not_available, release
from export_queue.core.queue import Queue, Range, join_ranges
from export_queue.core.store import Database
from export_queue.core.transactions import Snapshot

_NAMED = 5


@dataclass(slots=True)
class Claims:
    """The claims of one drain.

    :param shared: units that were claimed except for the parts that others hold.
    """

    database: Database
    request: DrainRequest
    shared: set[Range] = field(default_factory=set)

    def claim(
        self, queue: Queue, units: Sequence[Range], snapshot: Snapshot, *, is_fenced: bool, revokes: bool = False
    ) -> list[Lease]:
        """Claim what is free in some units.

        A sink with ranks accepts entries in any order, so the parts that a compaction holds may be delivered later.

        :param snapshot: decides which entries count.
        :param is_fenced: whether the sink keeps no ranks.
        :param revokes: whether conflicting locks of lower priority are revoked.
        :raises LockNotAvailable: others hold something, and the request has ``if_locked="fail"``.
        """
        request = self.request
        units = units if revokes else self._with_some_free(queue, units, snapshot)
        if not units:
            return []
        leases: list[Lease] = []
        for of, in_layout in queue.by_layout(units):
            leases += claim(
                self.database,
                of,
                in_layout,
                owner=request.owner,
                lease_seconds=request.lease_seconds,
                leaves_out=not is_fenced,
                revokes=revokes,
            )
        whole = {lease.range for lease in leases if lease.is_whole}
        if request.if_locked == "fail" and len(whole) < len(units):
            release(self.database, leases)
            raise self.not_available(queue, [unit for unit in units if unit not in whole])
        self.shared = (self.shared - whole) | {lease.range for lease in leases if not lease.is_whole}
        return leases

    def _with_some_free(self, queue: Queue, units: Sequence[Range], snapshot: Snapshot) -> Sequence[Range]:
        """Leave out units in which only the parts that others hold are left."""
        known = self.shared.intersection(units)
        if not known:
            return units
        with self.database.read() as work:
            again = claimable(work, queue, sorted(known), snapshot, owner=self.request.owner)
        return [unit for unit in units if unit not in known or unit in again]

    def not_available(self, queue: Queue, units: Sequence[Range]) -> LockNotAvailable:
        """Return the error that names the holders of units."""
        with self.database.read() as work:
            error = not_available(work, queue, units)
        if self.request.if_locked == "wait":
            error.hint = (
                f"the drain waited for {self.request.lock_timeout:g} s: wait longer (lock_timeout), "
                "or see who holds it: export-queue locks"
            )
        return error

    def awaited(self, queue: Queue, units: Sequence[Range], promised: Snapshot) -> str:
        """Name the holders of the ready units; if none is ready, name the transactions that hold entries back."""
        if not units:
            return f"older transactions: {in_progress(self.database, promised)}"
        with self.database.read() as work:
            held = [f"{holder.range} by {holder.owner.task}" for holder in holders(work, queue, units)]
        more = f" and {len(held) - _NAMED} more" if len(held) > _NAMED else ""
        return (", ".join(held[:_NAMED]) or shown(units)) + more


def shown(units: Sequence[Range]) -> str:
    """Return units as text, with neighbours joined."""
    return " ".join(str(part) for part in join_ranges(units))
