"""The timeline: it keeps a set of segments and computes from it which are visible."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from operator import attrgetter

from export_queue.core.errors import InvalidArgument
from export_queue.core.timeline.model import AtomicGroup, Generation, Missing, Piece, SegmentId, TimelineSegment

_by_version = attrgetter("version", "first")


class Timeline:
    """Decides which segments are visible in which buckets. Not thread-safe.

    In each bucket the highest complete generation is visible, without the segments that a whole atomic group hides.
    Two timelines with the same segments give the same answers, in whatever order the segments were added.

    Source: Druid's VersionedIntervalTimeline, with the overshadowing of its segment locking proposal.

    :raises InvalidArgument: two of the segments contradict each other.
    """

    def __init__(self, segments: Iterable[TimelineSegment] = ()) -> None:
        self._generations: dict[Generation, dict[int, TimelineSegment]] = {}
        """By partition."""
        self._claimed: dict[Generation, dict[int, AtomicGroup]] = {}
        """By partition, present or not: the group that present segments name for it."""
        self._by_id: dict[SegmentId, TimelineSegment] = {}
        for segment in segments:
            self.add(segment)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[TimelineSegment]:
        """Yield all segments by version, first bucket and partition."""
        for generation in sorted(self._generations, key=_by_version):
            yield from (one for _, one in sorted(self._generations[generation].items()))

    def __getitem__(self, segment: SegmentId) -> TimelineSegment:
        """Return a segment.

        :raises InvalidArgument: the timeline does not contain it.
        """
        try:
            return self._by_id[segment]
        except KeyError:
            raise InvalidArgument(f"the timeline has no segment {segment}") from None

    def add(self, segment: TimelineSegment) -> None:
        """Add a published segment.

        :raises InvalidArgument: it contradicts a present one. Then nothing has changed.
        """
        if segment.id in self._by_id:
            raise InvalidArgument(f"segment {segment.id}: expected a new segment, found it in the timeline")
        if segment.generation in self._generations:
            self._check_siblings(segment)
        else:
            self._check_neighbours(segment)
        self._generations.setdefault(segment.generation, {})[segment.partition] = segment
        claimed = self._claimed.setdefault(segment.generation, {})
        claimed.update(dict.fromkeys(segment.group.members, segment.group))
        self._by_id[segment.id] = segment

    def withdraw(self, segment: SegmentId) -> None:
        """Remove a segment. What it has hidden becomes visible again, hop by hop.

        :raises InvalidArgument: the timeline does not contain it.
        """
        gone = self[segment]
        del self._by_id[segment], self._generations[gone.generation][gone.partition]
        left = self._generations[gone.generation].values()
        self._claimed[gone.generation] = {member: one.group for one in left for member in one.group.members}
        if not left:
            del self._generations[gone.generation], self._claimed[gone.generation]

    def visible(self, first: int, end: int) -> tuple[Piece, ...]:
        """Find what to read in the buckets ``[first, end)``.

        :returns: segments with the buckets in which they count, ascending by bucket and partition.
        """
        return tuple(
            Piece(segment, start, stop)
            for start, stop, generation in self._winners(first, end)
            for segment in self.segments_of(generation)
        )

    def hidden(self) -> tuple[TimelineSegment, ...]:
        """Find the segments that other segments hide in all of their buckets."""
        found = []
        for generation, segments in sorted(self._generations.items(), key=lambda one: _by_version(one[0])):
            winners = self._winners(generation.first, generation.end)
            above = sum(stop - start for start, stop, winner in winners if winner.version > generation.version)
            is_covered = above == generation.end - generation.first
            hidden, _ = self._resolved(generation)
            found += [one for partition, one in sorted(segments.items()) if is_covered or partition in hidden]
        return tuple(found)

    def missing(self) -> tuple[Missing, ...]:
        """Find the groups with missing members, which neither show nor hide anything.

        While the founding group of a generation is among them, segments appended to that generation are not visible.
        """
        return tuple(
            Missing(generation, group, gone)
            for generation in sorted(self._generations, key=_by_version)
            for group, gone in reversed(self._resolved(generation)[1].items())
            if gone
        )

    def generation_at(self, bucket: int) -> Generation | None:
        """Find the visible generation of a bucket, to which segments are appended."""
        return next((generation for _, _, generation in self._winners(bucket, bucket + 1)), None)

    def founders_of(self, generation: Generation) -> int:
        """Return the size of the group that founded a generation. Appended segments name it.

        :raises InvalidArgument: the timeline has no segment of the generation.
        """
        try:
            return next(iter(self._generations[generation].values())).founders
        except KeyError:
            raise InvalidArgument(f"the timeline has no segment of {generation}") from None

    def segments_of(self, generation: Generation) -> tuple[TimelineSegment, ...]:
        """List by partition the segments that count where no higher generation hides this one.

        :raises InvalidArgument: the timeline has no segment of the generation.
        """
        if not self._is_complete(generation):
            return ()
        hidden, missing = self._resolved(generation)
        return tuple(
            one
            for partition, one in sorted(self._generations[generation].items())
            if partition not in hidden and not missing[one.group]
        )

    def next_partition(self, generation: Generation) -> int:
        """Return the lowest number above all partitions that a segment of a generation has or names.

        Numbers of removed segments are not known here; the store must remember them.
        """
        found = self._generations.get(generation, {}).values()
        return max((max(max(one.group.members) + 1, one.founders) for one in found), default=0)

    def overshadowed_by(self, inputs: Iterable[SegmentId]) -> frozenset[int]:
        """Find the partitions that an atomic group must overshadow to replace segments of one generation.

        These are the inputs and what whole groups among them replace: it must stay hidden after the inputs are removed.

        :returns: partition numbers.
        :raises InvalidArgument: there are no inputs, one is unknown, or they belong to several generations.
        """
        found = [self[one] for one in inputs]
        generations = sorted({one.generation for one in found})
        if len(generations) != 1:
            raise InvalidArgument(
                f"inputs of an atomic group: expected segments of one generation, found {len(generations)}"
                + "".join(f"; {one}" for one in generations[:3])
            )
        overshadowed = frozenset(one.partition for one in found)
        for group in self._resolved(generations[0])[1]:
            if group.members <= overshadowed:
                overshadowed |= group.overshadows
        return overshadowed

    def _is_complete(self, generation: Generation) -> bool:
        founders = self.founders_of(generation)
        return not founders or not self._resolved(generation)[1][AtomicGroup.founding(founders)]

    def _resolved(self, generation: Generation) -> tuple[set[int], dict[AtomicGroup, tuple[int, ...]]]:
        """Find which partitions of a generation are hidden, and the missing members of each group, the highest first.

        A member is missing if it is absent and no whole group overshadows it. A group is whole if no member is missing.
        Groups overshadow partitions below their own, so one pass downwards decides.
        """
        segments = self._generations[generation]
        groups = {one.group for one in segments.values()}
        if founders := self.founders_of(generation):
            groups.add(AtomicGroup.founding(founders))
        hidden: set[int] = set()
        missing: dict[AtomicGroup, tuple[int, ...]] = {}
        for group in sorted(groups, key=lambda one: one.lowest, reverse=True):
            missing[group] = tuple(one for one in sorted(group.members) if one not in segments and one not in hidden)
            if not missing[group]:
                hidden |= group.overshadows
        return hidden, missing

    def _check_siblings(self, segment: TimelineSegment) -> None:
        """Check that a segment does not contradict those of its generation."""
        where = f"segment {segment.id}, partition {segment.partition} of {segment.generation}"
        founders = self.founders_of(segment.generation)
        if segment.founders != founders:
            raise InvalidArgument(f"{where}: expected {founders} founders, found {segment.founders}")
        if (other := self._generations[segment.generation].get(segment.partition)) is not None:
            raise InvalidArgument(f"{where}: expected a partition of its own, found it taken by segment {other.id}")
        for member in segment.group.members:
            if (group := self._claimed[segment.generation].get(member, segment.group)) != segment.group:
                raise InvalidArgument(
                    f"{where}: expected the atomic group {group} that other segments name for partition {member}, "
                    f"found {segment.group}",
                    hint="all members of a group name the same members and the same overshadowed partitions",
                )

    def _check_neighbours(self, segment: TimelineSegment) -> None:
        """Check that a new generation does not contradict those that it overlaps."""
        generation = segment.generation
        for other in self._generations:
            if other.end <= generation.first or other.first >= generation.end:
                continue
            if other.version == generation.version:
                raise InvalidArgument(
                    f"{generation}: expected no overlap with a generation of the same version, found {other}",
                    hint="other intervals need a new version",
                )
            upper, lower = (generation, other) if generation.version > other.version else (other, generation)
            if not (segment.founders if upper is generation else self.founders_of(other)):
                raise InvalidArgument(
                    f"{upper}: expected founders, since it hides {lower}; found none",
                    hint="append to the existing generation instead",
                )

    def _winners(self, first: int, end: int) -> Iterator[tuple[int, int, Generation]]:
        """Yield the parts of ``[first, end)`` and the highest complete generation of each, ascending."""
        found = (one for one in self._generations if one.first < end and one.end > first and self._is_complete(one))
        waiting = sorted(found, reverse=True)
        here: list[tuple[int, Generation]] = []
        """A heap of the generations that have begun, highest version first; some may have ended."""
        while first < end:
            while waiting and waiting[-1].first <= first:
                heapq.heappush(here, (-waiting[-1].version, waiting.pop()))
            while here and here[0][1].end <= first:
                heapq.heappop(here)
            stop = waiting[-1].first if waiting else end
            if here:
                yield first, min(stop, here[0][1].end, end), here[0][1]
                stop = min(stop, here[0][1].end)
            first = stop
