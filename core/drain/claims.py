"""What a drain claims of the units that have work, beside others that hold some of it."""

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

    :param shared: units that were claimed but for what others hold of them.
    """

    database: Database
    request: DrainRequest
    shared: set[Range] = field(default_factory=set)

    def claim(
        self, queue: Queue, units: Sequence[Range], snapshot: Snapshot, *, is_fenced: bool, revokes: bool = False
    ) -> list[Lease]:
        """Claim the units that are free now, or what is free of them.

        A sink with ranks takes entries in any order, so that what a compaction holds of a unit may come later.

        :param snapshot: decides which entries count.
        :param is_fenced: whether the sink keeps no ranks.
        :param revokes: whether locks of lower priority are revoked that are in the way.
        :raises LockNotAvailable: not all is free, and the request says that the drain is to fail then.
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
        """Leave out the units of which nothing is left but what others hold."""
        known = self.shared.intersection(units)
        if not known:
            return units
        with self.database.read() as work:
            again = claimable(work, queue, sorted(known), snapshot, owner=self.request.owner)
        return [unit for unit in units if unit not in known or unit in again]

    def not_available(self, queue: Queue, units: Sequence[Range]) -> LockNotAvailable:
        """Make the error that names who holds units."""
        with self.database.read() as work:
            error = not_available(work, queue, units)
        if self.request.if_locked == "wait":
            error.hint = (
                f"the drain has waited for {self.request.lock_timeout:g} s: wait longer (lock_timeout), "
                "or see who holds it: export-queue locks"
            )
        return error

    def awaited(self, queue: Queue, units: Sequence[Range], promised: Snapshot) -> str:
        """Name the holders of the units that are ready; where none is, the transactions that hold entries back."""
        if not units:
            return f"older transactions: {in_progress(self.database, promised)}"
        with self.database.read() as work:
            held = [f"{holder.range} by {holder.owner.task}" for holder in holders(work, queue, units)]
        more = f" and {len(held) - _NAMED} more" if len(held) > _NAMED else ""
        return (", ".join(held[:_NAMED]) or shown(units)) + more


def shown(units: Sequence[Range]) -> str:
    """Show units to people, joined where they follow on each other."""
    return " ".join(str(part) for part in join_ranges(units))
