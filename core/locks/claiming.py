"""Claims of drains: all units that are free now, each as a whole or without what a compaction holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from export_queue.core.locks.attempts import Owner
from export_queue.core.locks.lease import Lease
from export_queue.core.locks.lockbox import (
    DRAIN_PRIORITY,
    grant,
    grant_at_once,
    open_board,
    owner_request,
    read_board,
    release,
)
from export_queue.core.locks.rules import ROWS, Area, Granted, Request, choose, member
from export_queue.core.queue import Queue, Range, waiting_in_rows
from export_queue.core.store import Database, Reading, queries
from export_queue.core.transactions import Snapshot


def claim(
    database: Database,
    queue: Queue,
    ranges: Iterable[Range],
    *,
    owner: Owner,
    lease_seconds: float,
    priority: int = DRAIN_PRIORITY,
    members: frozenset[str] | None = None,
    leaves_out: bool = False,
    revokes: bool = False,
) -> list[Lease]:
    """Take exclusive locks on all units that are free now, in one SQL transaction. It never waits for a holder.

    A unit is free if nobody holds it, its lease has expired, it was revoked, or an older attempt of the same task
    holds it, whose fence no longer counts then. The number of statements does not depend on the number of units.

    :param owner: the task that asks; what its attempt already holds is not free for it.
    :param lease_seconds: how long the locks last unless they are renewed.
    :param members: what to lock in each unit; by default everything, with an interval lock.
    :param leaves_out: whether to accept a unit without what segment locks of lower priority hold. The claim then names
        what it locks: unless ``members`` is given, the row entries and all committed segments.
    :param revokes: whether to revoke the locks in the way of a unit, if all of them have lower priority.
    :returns: one lease for each granted unit; it is not whole if others hold a part.
    :raises LeaseLost: the attempt was revoked, a newer one has taken over, or the queue's units were altered.
    """
    wish = _Wish(queue, tuple(ranges), owner, priority, members, is_named=leaves_out and members is None)
    if not wish.units:
        return []
    leases = _claim_at_once(database, wish, lease_seconds)
    if leases is not None:
        return leases
    with database.begin() as work:
        board = open_board(work, queue, owner, _hull(wish.units))
        # After the locks: a compaction releases its locks when it publishes, so one of the two is found here.
        areas = wish.areas(work)
        chosen = (choose(board, wish.request([one]), revokes=revokes, leaves_out=leaves_out) for one in areas)
        found = [choice for choice in chosen if choice is not None]
        if not found:
            return []
        ended = Granted(
            tuple(lock for choice in found for lock in choice.ends.worthless),
            tuple(lock for choice in found for lock in choice.ends.revoked),
        )
        request = wish.request([choice.area for choice in found])
        leases = grant(work, queue, request, board, ended, lease_seconds=lease_seconds)
    return [replace(lease, is_whole=choice.is_whole) for lease, choice in zip(leases, found, strict=True)]


@dataclass(frozen=True, slots=True)
class _Wish:
    """What a claim asks for."""

    queue: Queue
    units: tuple[Range, ...]
    owner: Owner
    priority: int
    members: frozenset[str] | None
    is_named: bool
    """Whether it names everything that each unit contains."""

    def areas(self, work: Reading) -> list[Area]:
        """Return the area to lock now, for each unit."""
        present = _committed(work, self.queue, _hull(self.units)) if self.is_named else {}
        other = _ROWS_ALONE if self.is_named else self.members
        return [Area(unit.first, unit.end, present.get(unit.first, other)) for unit in self.units]

    def request(self, areas: Sequence[Area]) -> Request:
        return owner_request(self.owner, areas, priority=self.priority)


def _claim_at_once(database: Database, wish: _Wish, lease_seconds: float) -> list[Lease] | None:
    """Claim all units in three round trips instead of ten if nothing is in the way; else return None."""
    with database.read() as work:
        asked = wish.areas(work)
    leases = grant_at_once(database, wish.queue, wish.request(asked), lease_seconds=lease_seconds)
    if leases is None or not wish.is_named:
        return leases
    with database.read() as work:
        present = wish.areas(work)
    if all(area.covers(one) for area, one in zip(asked, present, strict=True)):
        return leases
    # Something was published before the grant, perhaps by a compaction of the segments that were asked for.
    release(database, leases)
    return None


def claimable(work: Reading, queue: Queue, units: Sequence[Range], snapshot: Snapshot, *, owner: Owner) -> list[Range]:
    """Find the units with pending entries that a drain would get now, if it accepts units without what others hold.

    Nothing is locked. A drain asks before it claims again a unit of which others hold a part; otherwise it would claim
    the unit again and again for nothing.

    :param snapshot: decides which entries count.
    """
    return [
        unit
        for of, in_layout in queue.by_layout(units)
        for unit in _claimable_in_layout(work, of, in_layout, snapshot, owner)
    ]


def _claimable_in_layout(
    work: Reading, queue: Queue, units: Sequence[Range], snapshot: Snapshot, owner: Owner
) -> list[Range]:
    within = _hull(units)
    present = _committed(work, queue, within, snapshot)
    board = read_board(work, queue, within, some_wait=True, lock=False)
    in_files: list[Range] = []
    with_rows: list[Range] = []
    for unit in units:
        names = present.get(unit.first, _ROWS_ALONE)
        request = owner_request(owner, [Area(unit.first, unit.end, names)], priority=DRAIN_PRIORITY)
        choice = choose(board, request, revokes=False, leaves_out=True)
        if choice is None or choice.area.members is None:
            continue
        if choice.area.members > _ROWS_ALONE or ROWS not in choice.area.members:
            in_files.append(unit)
        else:
            with_rows.append(unit)
    return sorted([*in_files, *waiting_in_rows(work, queue, snapshot, with_rows)])


_ROWS_ALONE = frozenset({ROWS})


def _hull(units: Sequence[Range]) -> Range:
    return Range(min(unit.first for unit in units), max(unit.end for unit in units))


def _committed(
    work: Reading, queue: Queue, within: Range, snapshot: Snapshot | None = None
) -> dict[int, frozenset[str]]:
    """Return the members of units that have segments, by first bucket: the row entries and the segments.

    :param snapshot: decides which segments count; by default all committed ones.
    """
    found: defaultdict[int, set[str]] = defaultdict(lambda: {ROWS})
    size = queue.buckets_per_range
    bounds = {"first": within.first, "end": within.end}
    for first, end, transaction, number in queries.segments.names(work, queue.number, queue.layout, snapshot, **bounds):
        for unit in range(first // size, (end - 1) // size + 1):
            found[unit * size].add(member(transaction, number))
    return {first: frozenset(members) for first, members in found.items()}
