"""Claims of drains: all units that are free now, each whole or but for what a compaction has of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from export_queue.core.locks.attempts import Owner
from export_queue.core.locks.lease import Lease
from export_queue.core.locks.lockbox import DRAIN_PRIORITY, grant, open_board, owner_request, read_board
from export_queue.core.locks.rules import ROWS, Area, Choice, Granted, choose, member
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
    """Take exclusive locks on all units that are free now, in one SQL transaction; it never waits for a holder.

    A unit is free if nobody holds it, its lease has expired, it was revoked, or an older attempt of the
    same task holds it: that attempt's fence is worthless from then on. The number of statements does not depend on
    that of the units.

    :param ranges: units of the queue.
    :param owner: the task that asks; what its attempt holds already is not free for it.
    :param lease_seconds: how long the locks last unless they are renewed.
    :param members: what is wanted of each unit; by default all there is, by an interval lock.
    :param leaves_out: whether it does without what segment locks of lower priority hold of a unit, and therefore names
        what it takes: without ``members`` the row entries, and all segments that are committed.
    :param revokes: whether locks of lower priority are revoked where all that is in the way of a unit has one.
    :returns: one lease for each unit that was granted; one that is not whole does without what others hold.
    :raises LeaseLost: the attempt was revoked, a newer one has taken over, or the queue's units were altered.
    """
    units = list(ranges)
    if not units:
        return []
    within = _hull(units)
    with database.begin() as work:
        board = open_board(work, queue, owner, within)
        # Behind the locks: a compaction gives its locks back with its publication, so that either is found here.
        there = _committed(work, queue, within) if leaves_out and members is None else {}
        found: list[Choice] = []
        for unit in units:
            names = there.get(unit.first, _ROWS_ALONE) if leaves_out and members is None else members
            request = owner_request(owner, [Area(unit.first, unit.end, names)], priority=priority)
            choice = choose(board, request, revokes=revokes, leaves_out=leaves_out)
            found += [] if choice is None else [choice]
        if not found:
            return []
        ended = Granted(
            tuple(lock for choice in found for lock in choice.ends.worthless),
            tuple(lock for choice in found for lock in choice.ends.revoked),
        )
        request = owner_request(owner, [choice.area for choice in found], priority=priority)
        leases = grant(work, queue, request, board, ended, lease_seconds=lease_seconds)
    return [replace(lease, is_whole=choice.is_whole) for lease, choice in zip(leases, found, strict=True)]


def claimable(work: Reading, queue: Queue, units: Sequence[Range], snapshot: Snapshot, *, owner: Owner) -> list[Range]:
    """Find the units in which something waits that a drain would get now which does without what is held.

    It looks only: nobody is kept from anything. A drain asks so before it claims a unit once more whose rest others
    hold, or it would claim it again and again for nothing.

    :param units: units of the queue.
    :param snapshot: decides which entries count.
    :param owner: the task of the drain.
    """
    if not units:
        return []
    within = _hull(units)
    there = _committed(work, queue, within, snapshot)
    board = read_board(work, queue, within, some_wait=True, lock=False)
    in_files: list[Range] = []
    with_rows: list[Range] = []
    for unit in units:
        names = there.get(unit.first, _ROWS_ALONE)
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
    """Name what there is in units that have segments, by their first buckets: row entries, and what is to be read.

    :param snapshot: decides which segments count; by default all that are committed.
    """
    found: defaultdict[int, set[str]] = defaultdict(lambda: {ROWS})
    size = queue.buckets_per_range
    bounds = {"first": within.first, "end": within.end}
    for first, end, transaction, number in queries.segments.names(work, queue.number, queue.layout, snapshot, **bounds):
        for unit in range(first // size, (end - 1) // size + 1):
            found[unit * size].add(member(transaction, number))
    return {first: frozenset(members) for first, members in found.items()}
