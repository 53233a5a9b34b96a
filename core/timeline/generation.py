"""The segments of one generation, and which of them hide which.

A partition is *there* if its segment is, or if a whole group overshadows it: what was replaced is missed by nobody.
A group is *whole* if all its members are there; then it hides what it overshadows. Groups overshadow only what is below
all of their members, so that both words are defined from the highest group downwards. Counts are kept up to date:
of missing members of each group, and of whole groups over each partition.
"""

from __future__ import annotations

from collections.abc import Iterator

from export_queue.core.errors import InvalidArgument
from export_queue.core.timeline.model import AtomicGroup, Generation, Missing, TimelineSegment


class GenerationSegments:
    """The segments of one generation that are present."""

    def __init__(self, generation: Generation, founders: int) -> None:
        self.generation = generation
        self.founders = founders
        self.by_partition: dict[int, TimelineSegment] = {}
        self._groups: dict[int, AtomicGroup] = {}
        """By their lowest members: those with a member that is present, and always the founding one."""
        self._group_of: dict[int, int] = {}
        """The lowest member of each partition's group, also for members that are missing."""
        self._present: dict[int, int] = {}
        self._missing: dict[int, int] = {}
        self._hiders: dict[int, int] = {}
        """How many whole groups overshadow a partition; never 0."""
        if founders:
            self._know(AtomicGroup.founding(founders))

    @property
    def is_complete(self) -> bool:
        """Whether the group that founded it is there."""
        return not self.founders or self._missing[0] == 0

    def check(self, segment: TimelineSegment) -> None:
        """Refuse what contradicts the segments that are present.

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
                    f"the atomic group {group} that others name of partition {member}, found {segment.group}",
                    hint="all members name the same members, and the same partitions that they overshadow",
                )

    def add(self, segment: TimelineSegment) -> None:
        """Take in a segment that was checked."""
        partition, lowest = segment.partition, segment.group.lowest
        if lowest not in self._groups:
            self._know(segment.group)
        self.by_partition[partition] = segment
        self._present[lowest] += 1
        if partition not in self._hiders:
            self._miss(lowest, -1)

    def withdraw(self, segment: TimelineSegment) -> None:
        """Leave a segment out."""
        partition, lowest = segment.partition, segment.group.lowest
        del self.by_partition[partition]
        self._present[lowest] -= 1
        if partition not in self._hiders:
            self._miss(lowest, 1)
        if not self._present[lowest] and not segment.is_founding:
            self._forget(lowest)

    def is_hidden(self, segment: TimelineSegment) -> bool:
        """Tell whether a whole group of this generation hides a segment."""
        return segment.partition in self._hiders

    def is_whole(self, segment: TimelineSegment) -> bool:
        """Tell whether the group of a segment is there."""
        return self._missing[segment.group.lowest] == 0

    def shown(self) -> Iterator[TimelineSegment]:
        """Yield, by partition, what is read where no higher generation hides this one."""
        if self.is_complete:
            for _, segment in sorted(self.by_partition.items()):
                if not segment.retired and self.is_whole(segment) and not self.is_hidden(segment):
                    yield segment

    def known(self, partitions: frozenset[int]) -> frozenset[int]:
        """Choose the partitions that a present segment has, or names as a member of its group."""
        return partitions & self._group_of.keys()

    def groups(self) -> list[AtomicGroup]:
        """List the groups, by their lowest members."""
        return [self._groups[lowest] for lowest in sorted(self._groups)]

    def missing(self) -> Iterator[Missing]:
        """Yield groups of which members are missing."""
        for group in self.groups():
            if self._missing[group.lowest]:
                gone = tuple(one for one in sorted(group.members) if not self._is_there(one))
                yield Missing(self.generation, group, gone)

    def exported(self, *, covered: bool) -> set[int]:
        """Find the partitions whose entries are all exported: retired, or hidden by whole groups of exported ones.

        :param covered: whether higher generations, all exported, hide this one everywhere.
        """
        found = {number for number, segment in self.by_partition.items() if covered or segment.retired}
        for group in reversed(self.groups()):
            if not self._missing[group.lowest] and group.members <= found:
                found |= group.overshadows
        return found

    def overshadowed_by(self, inputs: frozenset[int]) -> frozenset[int]:
        """Find what a group overshadows that replaces some partitions: these, and what they replace by themselves."""
        found = set(inputs)
        for group in reversed(self.groups()):
            if group.members <= found:
                found |= group.overshadows
        return frozenset(found)

    def next_partition(self) -> int:
        """Find the lowest partition number above all that a present segment has or names."""
        return max(self._group_of, default=-1) + 1

    def _refusal(self, segment: TimelineSegment, expected: str, *, hint: str | None = None) -> InvalidArgument:
        where = f"segment {segment.id}, partition {segment.partition} of {self.generation}"
        return InvalidArgument(f"{where}: expected {expected}", hint=hint)

    def _is_there(self, partition: int) -> bool:
        return partition in self.by_partition or partition in self._hiders

    def _know(self, group: AtomicGroup) -> None:
        self._groups[group.lowest] = group
        self._group_of.update(dict.fromkeys(group.members, group.lowest))
        self._present[group.lowest] = 0
        self._missing[group.lowest] = sum(not self._is_there(member) for member in group.members)
        if not self._missing[group.lowest]:
            self._turn(group.lowest, 1)

    def _forget(self, lowest: int) -> None:
        if not self._missing[lowest]:
            self._turn(lowest, -1)
        for member in self._groups.pop(lowest).members:
            del self._group_of[member]
        del self._present[lowest], self._missing[lowest]

    def _turn(self, lowest: int, more: int) -> None:
        for other in self._hide(lowest, more):
            self._miss(other, -more)

    def _miss(self, lowest: int, more: int) -> None:
        """Count one member of a group more, or less, as missing, and what follows from it."""
        pending = [lowest]
        while pending:
            lowest = pending.pop()
            before = self._missing[lowest]
            self._missing[lowest] = before + more
            if (before == 0) != (before + more == 0):
                pending += self._hide(lowest, -more)

    def _hide(self, lowest: int, more: int) -> list[int]:
        """Count a group over what it overshadows, once it is whole, or no longer.

        :returns: the groups of which a member that is not present is there by that, or is not any more.
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
