"""The timeline of a queue's segments: what is kept is a function of the set, what is asked is computed from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from export_queue.core.errors import InvalidArgument
from export_queue.core.timeline import removal
from export_queue.core.timeline.generation import GenerationSegments
from export_queue.core.timeline.model import Generation, Missing, Part, Piece, SegmentId, State, TimelineSegment
from export_queue.core.timeline.places import Cover, Places, highest


class Timeline:
    """Tells which segments of a queue's layout count in which buckets; not for several threads at once.

    In each bucket the highest complete generation shows, and in it what no whole atomic group hides. Two timelines
    with the same segments answer alike, in whatever order and by whatever calls they got them.

    Source: Druid's VersionedIntervalTimeline with the overshadowing of its segment locking proposal.

    :param segments: all at once, which is quicker than one by one.
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
        self._places = Places(self._generations)
        for one, other in pairwise(sorted(self._generations, key=lambda one: (one.version, one.first))):
            if one.version == other.version and other.first < one.end:
                raise _overlap(one, other)
        for generation, found in self._generations.items():
            if not found.founders:
                self._check_place(generation, found.founders)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[TimelineSegment]:
        """Yield all segments, as :meth:`removable` orders them."""
        for generation in sorted(self._generations, key=_depth):
            yield from (one for _, one in sorted(self._generations[generation].by_partition.items()))

    def __contains__(self, segment: SegmentId) -> bool:
        return segment in self._by_id

    def __getitem__(self, segment: SegmentId) -> TimelineSegment:
        """Return a segment.

        :raises InvalidArgument: it is not there.
        """
        try:
            return self._by_id[segment]
        except KeyError:
            raise InvalidArgument(f"the timeline has no segment {segment}") from None

    def add(self, segment: TimelineSegment) -> None:
        """Take in a segment that was published.

        :raises InvalidArgument: it contradicts those that are there; then nothing has changed.
        """
        self._refuse_known(segment)
        generation = segment.generation
        found = self._generations.get(generation)
        if found is None:
            self._check_place(generation, segment.founders)
            found = self._generations[generation] = GenerationSegments(generation, segment.founders)
            self._places.add(generation)
        else:
            found.check(segment)
        found.add(segment)
        self._by_id[segment.id] = segment

    def withdraw(self, segment: SegmentId) -> None:
        """Leave out a segment that is lost, was taken back, or was removed: what it hid shows, hop by hop.

        :raises InvalidArgument: it is not there.
        """
        gone = self[segment]
        found = self._generations[gone.generation]
        found.withdraw(gone)
        del self._by_id[segment]
        if not found.by_partition:
            del self._generations[gone.generation]
            self._places.remove(gone.generation)

    def retire(self, segment: SegmentId) -> None:
        """Note that nothing of a segment is :meth:`unexported`: it shows no more, counts as there and goes on hiding.

        Retiring again changes nothing.

        :raises InvalidArgument: it is not there.
        """
        retired = replace(self[segment], retired=True)
        self._by_id[segment] = retired
        self._generations[retired.generation].by_partition[retired.partition] = retired

    def visible(self, first: int, end: int) -> tuple[Piece, ...]:
        """Find what is to be read of some buckets.

        :param first: the first bucket.
        :param end: the end of the buckets.
        :returns: segments with the buckets in which they count, ascending by bucket and partition number.
        """
        return tuple(
            Piece(segment, start, stop) for start, stop, found in self._winners(first, end) for segment in found.shown()
        )

    def hidden(self) -> tuple[TimelineSegment, ...]:
        """Find the segments that are not retired and of which nothing shows, since others hide it."""
        states: dict[SegmentId, set[State]] = {}
        for part in self.parts():
            states.setdefault(part.segment.id, set()).add(part.state)
        return tuple(one for one in self if states[one.id] == {"hidden"})

    def missing(self) -> tuple[Missing, ...]:
        """Find the groups of which members are missing, so that the others neither show nor hide anything.

        Whatever was appended to a generation waits, too, while the group that founded it is among these.
        """
        return tuple(
            one for place in sorted(self._generations, key=_depth) for one in self._generations[place].missing()
        )

    def parts(self) -> tuple[Part, ...]:
        """Cut all segments where their states change.

        :returns: the parts of each segment ascending; segments of high versions first, then of high partition numbers.
        """
        cover = Cover()
        parts: list[Part] = []
        for generation in sorted(self._generations, key=_depth, reverse=True):
            found = self._generations[generation]
            showing = list(cover.gaps(generation.first, generation.end))
            for _, segment in sorted(found.by_partition.items(), reverse=True):
                parts += _parts_of(segment, found, showing)
            if found.is_complete:
                cover.add(generation.first, generation.end)
        return tuple(parts)

    def unexported(self, segment: SegmentId) -> tuple[Piece, ...]:
        """Find what of a segment must still be exported before it may be retired.

        Buckets in which exported segments hide it need not be: their entries have gone with those.

        :raises InvalidArgument: it is not there.
        """
        found = self[segment]
        first, end, version = found.generation
        above = [self._generations[one] for one in self._places.overlapping(first, end) if one.version > version]
        runs = removal.unexported(found, self._generations[found.generation], above)
        return tuple(Piece(found, *run) for run in runs)

    def removable(self) -> tuple[tuple[TimelineSegment, ...], ...]:
        """Find what clean-up may take: segments whose entries are exported, each with all that it hides.

        :returns: steps, the deepest first. Each is taken as a whole, in one transaction; behind any of them nothing
            shows that did not show before, nor does it later, whatever else is withdrawn.
        """
        ascending = [self._generations[one] for one in sorted(self._generations, key=_depth)]
        return removal.removable(ascending, self._places)

    def generation_at(self, bucket: int) -> Generation | None:
        """Find the generation that shows in a bucket, in which what is appended lies; None where there is none."""
        return next((found.generation for _, _, found in self._winners(bucket, bucket + 1)), None)

    def founders_of(self, generation: Generation) -> int:
        """Tell the size of the group that founded a generation, which what is appended names.

        :raises InvalidArgument: nothing of it is there.
        """
        return self._of(generation).founders

    def segments_of(self, generation: Generation) -> tuple[TimelineSegment, ...]:
        """List what shows in a generation where no higher one hides it, by partition number.

        :raises InvalidArgument: nothing of it is there.
        """
        return tuple(self._of(generation).shown())

    def next_partition(self, generation: Generation) -> int:
        """Find the lowest partition number above all that a segment of a generation has or names.

        Only the store knows of numbers that were used and have gone.
        """
        found = self._generations.get(generation)
        return 0 if found is None else found.next_partition()

    def next_version(self) -> int:
        """Find the lowest version above all; only the store knows of those that have gone."""
        return max((one.version for one in self._generations), default=0) + 1

    def overshadowed_by(self, inputs: Iterable[SegmentId]) -> frozenset[int]:
        """Find what an atomic group overshadows whose members replace some segments of one generation.

        These are the inputs and what whole groups among them replace already: it must stay hidden when they have gone.

        :returns: partition numbers.
        :raises InvalidArgument: there are no inputs, one is not there, or they are of several generations.
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
            raise InvalidArgument(f"segment {segment.id}: expected to be new, found it in the timeline")

    def _check_place(self, generation: Generation, founders: int) -> None:
        """Refuse a generation that contradicts those around it."""
        for other in self._places.overlapping(generation.first, generation.end):
            if other == generation:
                continue
            if other.version == generation.version:
                raise _overlap(generation, other)
            upper, lower = (generation, other) if generation.version > other.version else (other, generation)
            if not (founders if upper is generation else self._generations[other].founders):
                raise InvalidArgument(
                    f"{upper}: expected founders, since it hides {lower}; found none",
                    hint="what is appended lies in the generation that is there",
                )

    def _winners(self, first: int, end: int) -> Iterator[tuple[int, int, GenerationSegments]]:
        """Yield runs of ``[first, end)`` with the highest complete generation of each, ascending."""
        complete = [one for one in self._places.overlapping(first, end) if self._generations[one].is_complete]
        for start, stop, generation in highest(complete, first, end):
            yield start, stop, self._generations[generation]


def _depth(generation: Generation) -> tuple[int, int]:
    """Order generations so that each comes behind those that it can hide."""
    return generation.version, generation.first


def _parts_of(
    segment: TimelineSegment, found: GenerationSegments, showing: Sequence[tuple[int, int]]
) -> Iterator[Part]:
    """Cut a segment into runs in which its generation shows, and others."""
    under: State = "retired" if segment.retired else "hidden"
    if segment.retired or found.is_hidden(segment):
        yield Part(segment, segment.generation.first, segment.generation.end, under)
        return
    state: State = "visible" if found.is_complete and found.is_whole(segment) else "waiting"
    at = segment.generation.first
    for first, end in showing:
        if at < first:
            yield Part(segment, at, first, under)
        yield Part(segment, first, end, state)
        at = end
    if at < segment.generation.end:
        yield Part(segment, at, segment.generation.end, under)


def _overlap(one: Generation, other: Generation) -> InvalidArgument:
    return InvalidArgument(
        f"{one}: expected the generations of one version to lie apart, found {other}",
        hint="a change of the intervals takes a new version",
    )
