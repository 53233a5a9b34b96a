"""Timelines to test with: the worked example of the segment locking proposal, and an oracle."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from export_queue.core.timeline import AtomicGroup, Generation, Piece, SegmentId, Timeline, TimelineSegment


def segment(
    number: int,
    partition: int,
    *,
    at: tuple[int, int] = (0, 100),
    version: int = 1,
    members: Iterable[int] | None = None,
    overshadows: Iterable[int] = (),
    founders: int = 0,
) -> TimelineSegment:
    """Make a segment; one of the founders belongs to their group, others are alone by default."""
    if members is None:
        members = range(founders) if partition < founders else (partition,)
    return TimelineSegment(
        id=SegmentId(1, number),
        generation=Generation(*at, version),
        partition=partition,
        group=AtomicGroup(frozenset(members), frozenset(overshadows)),
        founders=founders,
    )


def seed_example() -> dict[int, TimelineSegment]:
    """The segments 1 to 8 of the proposal, each with the partition number one less than its own.

    1, 2 and 3 come from a batch; 4 merges 2 and 3, and 5 is appended; 6 and 7 replace 4 and 5, and 8 is appended.
    """
    batch = [segment(number, number - 1, founders=3) for number in (1, 2, 3)]
    four = segment(4, 3, overshadows=[1, 2], founders=3)
    five = segment(5, 4, founders=3)
    pair = [segment(number, number - 1, members=[5, 6], overshadows=[1, 2, 3, 4], founders=3) for number in (6, 7)]
    eight = segment(8, 7, founders=3)
    return {one.id.number: one for one in (*batch, four, five, *pair, eight)}


def levels_example() -> list[TimelineSegment]:
    """Generations of several intervals: what is covered in part shows where it is not."""
    return [
        segment(1, 0, at=(0, 100), version=1),
        segment(2, 1, at=(0, 100), version=1),
        segment(3, 0, at=(100, 200), version=1),
        segment(4, 0, at=(50, 150), version=2, founders=2),
        segment(5, 1, at=(50, 150), version=2, founders=2),
        segment(6, 2, at=(50, 150), version=2, founders=2),
        segment(7, 0, at=(150, 250), version=3, founders=2),
    ]


@st.composite
def segment_sets(draw: st.DrawFn, *, most: int = 12) -> list[TimelineSegment]:
    """Sets of at most some segments that may lie in one timeline, in any order; some are missing."""
    generations = dict[Generation, int]()
    for first, length, version, founders in draw(
        st.lists(st.tuples(*(st.integers(*bounds) for bounds in ((0, 6), (1, 5), (1, 4), (0, 2)))), max_size=4)
    ):
        one = Generation(first, first + length, version)
        others = [other for other in generations if other.first < one.end and one.first < other.end]
        if any(other.version == version or (other.version > version and not generations[other]) for other in others):
            continue
        generations[one] = founders or int(any(other.version < version for other in others))
    segments = []
    for generation, founders in generations.items():
        groups = [AtomicGroup.founding(founders)] if founders else []
        taken = founders
        for size in draw(st.lists(st.integers(1, 2), max_size=3)):
            overshadows = draw(st.sets(st.sampled_from(range(taken)))) if taken else set[int]()
            groups.append(AtomicGroup(frozenset(range(taken, taken + size)), frozenset(overshadows)))
            taken += size
        for group in groups:
            for partition in sorted(group.members):
                if draw(st.integers(0, 4)):
                    number = len(segments) + 1
                    segments.append(
                        TimelineSegment(
                            id=SegmentId(1, number),
                            generation=generation,
                            partition=partition,
                            group=group,
                            founders=founders,
                        )
                    )
    return draw(st.permutations(segments))[:most]


class Oracle:
    """What shows in each bucket, from the definition and nothing else; slow."""

    def __init__(self, segments: Iterable[TimelineSegment]) -> None:
        self.segments = list(segments)

    def visible(self, first: int, end: int) -> set[tuple[SegmentId, int]]:
        """Segments with the buckets in which they show."""
        return {(one.id, bucket) for bucket in range(first, end) for one in self._at(bucket)}

    def _at(self, bucket: int) -> list[TimelineSegment]:
        here = {one.generation for one in self.segments if one.generation.first <= bucket < one.generation.end}
        complete = [one for one in here if self._is_complete(one)]
        if not complete:
            return []
        top = max(complete, key=lambda one: one.version)
        return [one for one in self._of(top) if self._shows(one)]

    def _of(self, generation: Generation) -> list[TimelineSegment]:
        return [one for one in self.segments if one.generation == generation]

    def _is_complete(self, generation: Generation) -> bool:
        return all(self._is_there(generation, one) for one in range(self._of(generation)[0].founders))

    def _shows(self, one: TimelineSegment) -> bool:
        return self._is_whole(one.generation, one.group) and not self._is_hidden(one.generation, one.partition)

    def _is_hidden(self, generation: Generation, partition: int) -> bool:
        return any(
            partition in group.overshadows and self._is_whole(generation, group)
            for group in {one.group for one in self._of(generation)}
        )

    def _is_there(self, generation: Generation, partition: int) -> bool:
        is_present = any(one.partition == partition for one in self._of(generation))
        return is_present or self._is_hidden(generation, partition)

    def _is_whole(self, generation: Generation, group: AtomicGroup) -> bool:
        return all(self._is_there(generation, member) for member in group.members)


def by_bucket(pieces: Iterable[Piece]) -> set[tuple[SegmentId, int]]:
    """Spread pieces over their buckets."""
    return {(piece.segment.id, bucket) for piece in pieces for bucket in range(piece.first, piece.end)}


def numbers(segments: Iterable[TimelineSegment | Piece]) -> list[int]:
    return [(one.segment if isinstance(one, Piece) else one).id.number for one in segments]


def ident(number: int) -> SegmentId:
    return SegmentId(1, number)


def answers(timeline: Timeline) -> dict[str, Any]:
    """Everything that a timeline tells."""
    generations = {one.generation for one in timeline}
    return {
        "all": list(timeline),
        "visible": timeline.visible(0, 1000),
        "hidden": timeline.hidden(),
        "missing": timeline.missing(),
        "generations": [timeline.generation_at(bucket) for bucket in range(12)],
        "next": {one: timeline.next_partition(one) for one in generations},
    }
