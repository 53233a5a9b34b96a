"""Leases: granted locks, as values that are passed to those who work under them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from export_queue.core.locks.rules import ROWS, LockId
from export_queue.core.queue import Range


@dataclass(frozen=True, slots=True)
class Lease:
    """A granted lock; a value that may be sent to other processes."""

    fence: int
    """All locks of one claim have the same fence."""
    queue: int
    layout: int
    range: Range
    others: tuple[int, ...] = ()
    """First buckets of the other units, if it stands for the locks of several."""
    members: frozenset[str] | None = None
    """Names of the row entries and segments that it covers in its range; None for all."""
    is_whole: bool = True
    """Whether it covers all that was asked for, so that nobody else holds a part."""

    @property
    def has_rows(self) -> bool:
        """Whether it covers the row entries."""
        return self.covers(ROWS)

    def covers(self, name: str) -> bool:
        """Return whether it covers a member of its range."""
        return self.members is None or name in self.members


def joined(leases: Sequence[Lease]) -> list[Lease]:
    """Join the leases of one claim whose units are adjacent. A joined lease is held, renewed and released as a whole.

    A segment belongs to one unit, so its name identifies it. Leases that cover the row entries are not joined with
    those that do not.
    """
    found: list[Lease] = []
    for lease in sorted(leases, key=lambda one: one.range):
        if found and _may_join(last := found[-1], lease):
            found[-1] = replace(
                last,
                range=replace(last.range, end=lease.range.end),
                others=(*last.others, lease.range.first, *lease.others),
                members=None if last.members is None or lease.members is None else last.members | lease.members,
                is_whole=last.is_whole and lease.is_whole,
            )
        else:
            found.append(lease)
    return found


def _may_join(one: Lease, next_one: Lease) -> bool:
    is_alike = (one.members is None) == (next_one.members is None) and one.has_rows == next_one.has_rows
    return is_alike and one.layout == next_one.layout and one.range.end == next_one.range.first


def lock_ids(leases: Iterable[Lease]) -> list[LockId]:
    return [(lease.fence, first) for lease in leases for first in (lease.range.first, *lease.others)]
