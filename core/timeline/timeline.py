"""The timeline: it keeps a set of segments and computes from it which are visible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from export_queue.core.errors import InvalidArgument
from export_queue.core.timeline.generation import GenerationSegments
from export_queue.core.timeline.intervals import Cover, GenerationIndex, highest
from export_queue.core.timeline.model import Generation, Missing, Piece, SegmentId, TimelineSegment


class Timeline:
    """Decides which segments are visible in which buckets. Not thread-safe.

    In each bucket the highest complete generation is visible, without the segments that a whole atomic group hides.
    Two timelines with the same segments give the same answers, in whatever order the segments were added.

    Source: Druid's VersionedIntervalTimeline, with the overshadowing of its segment locking proposal.

    :param segments: segments to begin with; faster than adding them one by one.
    :raises InvalidArgument: two of them contradict each other.
    """

    def __init__(self, segments: Iterable[TimelineSegment] = ()) -> None:
        self._generations: dict[Generation, GenerationSegments] = {}
        self._by_id: dict[SegmentId, TimelineSegment] = {}
        for segment in segments:
            self._refuse_known(segment)
            found = self._generations.get(segment.generation)
            if found is None:
                found = self._generations[segment.generation] = GenerationSegments(segment.generation, segment.founders)
            found.check(segment)
            found.add(segment)
            self._by_id[segment.id] = segment
        self._index = GenerationIndex(self._generations)
        for one, other in pairwise(sorted(self._generations, key=lambda one: (one.version, one.first))):
            if one.version == other.version and other.first < one.end:
                raise _overlap(one, other)
        for generation, found in self._generations.items():
            if not found.founders:
                self._check_neighbours(generation, found.founders)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[TimelineSegment]:
        """Yield all segments by version, first bucket and partition."""
        for generation in sorted(self._generations, key=_by_version):
            yield from (one for _, one in sorted(self._generations[generation].by_partition.items()))

    def __contains__(self, segment: SegmentId) -> bool:
        return segment in self._by_id

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
        self._refuse_known(segment)
        generation = segment.generation
        found = self._generations.get(generation)
        if found is None:
            self._check_neighbours(generation, segment.founders)
            found = self._generations[generation] = GenerationSegments(generation, segment.founders)
            self._index.add(generation)
        else:
            found.check(segment)
        found.add(segment)
        self._by_id[segment.id] = segment

    def withdraw(self, segment: SegmentId) -> None:
        """Remove a segment. What it has hidden becomes visible again, hop by hop.

        :raises InvalidArgument: the timeline does not contain it.
        """
        gone = self[segment]
        found = self._generations[gone.generation]
        found.withdraw(gone)
        del self._by_id[segment]
        if not found.by_partition:
            del self._generations[gone.generation]
            self._index.remove(gone.generation)

    def visible(self, first: int, end: int) -> tuple[Piece, ...]:
        """Find what to read in the buckets ``[first, end)``.

        :returns: segments with the buckets in which they count, ascending by bucket and partition.
        """
        return tuple(
            Piece(segment, start, stop) for start, stop, found in self._winners(first, end) for segment in found.shown()
        )

    def hidden(self) -> tuple[TimelineSegment, ...]:
        """Find the segments that other segments hide in all of their buckets."""
        cover = Cover()
        hidden: set[SegmentId] = set()
        for generation in sorted(self._generations, key=_by_version, reverse=True):
            found = self._generations[generation]
            is_covered = cover.contains(generation.first, generation.end)
            hidden.update(one.id for one in found.by_partition.values() if is_covered or found.is_hidden(one))
            if found.is_complete:
                cover.add(generation.first, generation.end)
        return tuple(one for one in self if one.id in hidden)

    def missing(self) -> tuple[Missing, ...]:
        """Find the groups with missing members, which neither show nor hide anything.

        While the founding group of a generation is among them, segments appended to that generation are not visible.
        """
        return tuple(
            one for found in sorted(self._generations, key=_by_version) for one in self._generations[found].missing()
        )

    def generation_at(self, bucket: int) -> Generation | None:
        """Find the visible generation of a bucket, to which segments are appended."""
        return next((found.generation for _, _, found in self._winners(bucket, bucket + 1)), None)

    def founders_of(self, generation: Generation) -> int:
        """Return the size of the group that founded a generation. Appended segments name it.

        :raises InvalidArgument: the timeline has no segment of the generation.
        """
        return self._of(generation).founders

    def segments_of(self, generation: Generation) -> tuple[TimelineSegment, ...]:
        """List by partition the segments that count where no higher generation hides this one.

        :raises InvalidArgument: the timeline has no segment of the generation.
        """
        return tuple(self._of(generation).shown())

    def next_partition(self, generation: Generation) -> int:
        """Return the lowest number above all partitions that a segment of a generation has or names.

        Numbers of removed segments are not known here; the store must remember them.
        """
        found = self._generations.get(generation)
        return 0 if found is None else found.next_partition()

    def next_version(self) -> int:
        """Return the lowest version above all. The store must remember versions of removed segments."""
        return max((one.version for one in self._generations), default=0) + 1

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
        return self._of(generations[0]).overshadowed_by(frozenset(one.partition for one in found))

    def _of(self, generation: Generation) -> GenerationSegments:
        try:
            return self._generations[generation]
        except KeyError:
            raise InvalidArgument(f"the timeline has no segment of {generation}") from None

    def _refuse_known(self, segment: TimelineSegment) -> None:
        if segment.id in self._by_id:
            raise InvalidArgument(f"segment {segment.id}: expected a new segment, found it in the timeline")

    def _check_neighbours(self, generation: Generation, founders: int) -> None:
        """Check that a generation does not contradict those that it overlaps."""
        for other in self._index.overlapping(generation.first, generation.end):
            if other == generation:
                continue
            if other.version == generation.version:
                raise _overlap(generation, other)
            upper, lower = (generation, other) if generation.version > other.version else (other, generation)
            if not (founders if upper is generation else self._generations[other].founders):
                raise InvalidArgument(
                    f"{upper}: expected founders, since it hides {lower}; found none",
                    hint="append to the existing generation instead",
                )

    def _winners(self, first: int, end: int) -> Iterator[tuple[int, int, GenerationSegments]]:
        """Yield the parts of ``[first, end)`` with the highest complete generation of each, ascending."""
        complete = [one for one in self._index.overlapping(first, end) if self._generations[one].is_complete]
        for start, stop, generation in highest(complete, first, end):
            yield start, stop, self._generations[generation]


def _by_version(generation: Generation) -> tuple[int, int]:
    """Order generations so that each follows those that it can hide."""
    return generation.version, generation.first


def _overlap(one: Generation, other: Generation) -> InvalidArgument:
    return InvalidArgument(
        f"{one}: expected no overlap with a generation of the same version, found {other}",
        hint="other intervals need a new version",
    )
