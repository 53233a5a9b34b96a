"""The segments of one generation, and which of them hide others.

A partition is *accounted for* if its segment is present or a whole group overshadows it. A group is *whole* if all its
members are accounted for. A whole group hides the partitions that it overshadows. These are below all of its members,
so both terms are defined from the highest group downwards. Two counts are kept up to date: the missing members of each
group, and the whole groups that overshadow each partition.
"""

from __future__ import annotations

from collections.abc import Iterator

from export_queue.core.errors import InvalidArgument
from export_queue.core.timeline.model import AtomicGroup, Generation, Missing, TimelineSegment


class GenerationSegments:
    """The present segments of one generation."""

    def __init__(self, generation: Generation, founders: int) -> None:
        self.generation = generation
        self.founders = founders
        self.by_partition: dict[int, TimelineSegment] = {}
        self._groups: dict[int, AtomicGroup] = {}
        """By lowest member: groups with a present member, and always the founding group."""
        self._group_of: dict[int, int] = {}
        """By partition, present or missing: the lowest member of its group."""
        self._present: dict[int, int] = {}
        self._missing: dict[int, int] = {}
        self._hiders: dict[int, int] = {}
        """By partition: the number of whole groups that overshadow it, if there is one."""
        if founders:
            self._add_group(AtomicGroup.founding(founders))

    @property
    def is_complete(self) -> bool:
        """Whether the founding group is whole."""
        return not self.founders or self._missing[0] == 0

    def check(self, segment: TimelineSegment) -> None:
        """Check that a segment does not contradict the present ones.

        :raises InvalidArgument: it does.
        """
        if segment.founders != self.founders:
            raise self._refusal(segment, f"{self.founders} founders, found {segment.founders}")
        if (other := self.by_partition.get(segment.partition)) is not None:
            raise self._refusal(segment, f"a partition of its own, found it taken by segment {other.id}")
        known = self._groups.get(segment.group.lowest)
        if known is segment.group or known == segment.group:
            return
        for member in segment.group.members:
            if (lowest := self._group_of.get(member)) is not None:
                group = self._groups[lowest]
                raise self._refusal(
                    segment,
                    f"the atomic group {group} that other segments name for partition {member}, found {segment.group}",
                    hint="all members of a group name the same members and the same overshadowed partitions",
                )

    def add(self, segment: TimelineSegment) -> None:
        """Add a checked segment."""
        partition, lowest = segment.partition, segment.group.lowest
        if lowest not in self._groups:
            self._add_group(segment.group)
        self.by_partition[partition] = segment
        self._present[lowest] += 1
        if partition not in self._hiders:
            self._miss(lowest, -1)

    def withdraw(self, segment: TimelineSegment) -> None:
        """Remove a segment."""
        partition, lowest = segment.partition, segment.group.lowest
        del self.by_partition[partition]
        self._present[lowest] -= 1
        if partition not in self._hiders:
            self._miss(lowest, 1)
        if not self._present[lowest] and not segment.is_founding:
            self._remove_group(lowest)

    def is_hidden(self, segment: TimelineSegment) -> bool:
        """Return whether a whole group of this generation hides a segment."""
        return segment.partition in self._hiders

    def is_whole(self, segment: TimelineSegment) -> bool:
        """Return whether the group of a segment is whole."""
        return self._missing[segment.group.lowest] == 0

    def shown(self) -> Iterator[TimelineSegment]:
        """Yield by partition the segments that count where no higher generation hides this one."""
        if self.is_complete:
            for _, segment in sorted(self.by_partition.items()):
                if self.is_whole(segment) and not self.is_hidden(segment):
                    yield segment

    def groups(self) -> list[AtomicGroup]:
        """List the groups by lowest member."""
        return [self._groups[lowest] for lowest in sorted(self._groups)]

    def missing(self) -> Iterator[Missing]:
        """Yield the groups with missing members."""
        for group in self.groups():
            if self._missing[group.lowest]:
                gone = tuple(one for one in sorted(group.members) if not self._is_accounted_for(one))
                yield Missing(self.generation, group, gone)

    def overshadowed_by(self, inputs: frozenset[int]) -> frozenset[int]:
        """Return what a group must overshadow to replace inputs: these, and what whole groups of them hide."""
        found = set(inputs)
        for group in reversed(self.groups()):
            if group.members <= found:
                found |= group.overshadows
        return frozenset(found)

    def next_partition(self) -> int:
        """Return the lowest number above all partitions that a present segment has or names."""
        return max(self._group_of, default=-1) + 1

    def _refusal(self, segment: TimelineSegment, expected: str, *, hint: str | None = None) -> InvalidArgument:
        where = f"segment {segment.id}, partition {segment.partition} of {self.generation}"
        return InvalidArgument(f"{where}: expected {expected}", hint=hint)

    def _is_accounted_for(self, partition: int) -> bool:
        return partition in self.by_partition or partition in self._hiders

    def _add_group(self, group: AtomicGroup) -> None:
        self._groups[group.lowest] = group
        self._group_of.update(dict.fromkeys(group.members, group.lowest))
        self._present[group.lowest] = 0
        self._missing[group.lowest] = sum(not self._is_accounted_for(member) for member in group.members)
        if not self._missing[group.lowest]:
            self._count_hiders(group.lowest, 1)

    def _remove_group(self, lowest: int) -> None:
        if not self._missing[lowest]:
            self._count_hiders(lowest, -1)
        for member in self._groups.pop(lowest).members:
            del self._group_of[member]
        del self._present[lowest], self._missing[lowest]

    def _count_hiders(self, lowest: int, more: int) -> None:
        for other in self._hide(lowest, more):
            self._miss(other, -more)

    def _miss(self, lowest: int, more: int) -> None:
        """Add to the missing members of a group, and update the groups that this makes whole or breaks."""
        pending = [lowest]
        while pending:
            lowest = pending.pop()
            before = self._missing[lowest]
            self._missing[lowest] = before + more
            if (before == 0) != (before + more == 0):
                pending += self._hide(lowest, -more)

    def _hide(self, lowest: int, more: int) -> list[int]:
        """Count a group over the partitions that it overshadows: 1 once it is whole, -1 once it no longer is.

        :returns: the groups with an absent member that this accounts for, or no longer does.
        """
        turned = []
        for partition in self._groups[lowest].overshadows:
            before = self._hiders.pop(partition, 0)
            if before + more:
                self._hiders[partition] = before + more
            is_turned = (before == 0) != (before + more == 0)
            if is_turned and partition not in self.by_partition and partition in self._group_of:
                turned.append(self._group_of[partition])
        return turned
