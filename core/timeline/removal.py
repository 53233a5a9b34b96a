"""What of a timeline is exported, and what clean-up may take.

The entries of a segment are exported if it is retired, or if exported segments hide it: those hold its entries, too. A
whole atomic group stands for what it overshadows; the founders of a generation for what lower ones hold in its
buckets. A segment is taken only with all that it hides, so that no fall-back ever shows exported entries again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from export_queue.core.timeline.generation import GenerationSegments
from export_queue.core.timeline.model import Generation, TimelineSegment
from export_queue.core.timeline.places import Cover, Places


def unexported(
    segment: TimelineSegment, own: GenerationSegments, above: Iterable[GenerationSegments]
) -> Iterator[tuple[int, int]]:
    """Yield the buckets of a segment whose entries are not exported.

    :param own: its generation.
    :param above: the higher generations that have some of its buckets, in any order: where one is exported because
        others cover it, those cover the segment, too.
    """
    cover = Cover()
    for found in above:
        _exported(found, cover)
    if segment.partition not in _exported(own, cover):
        yield from cover.gaps(*own.generation[:2])


def removable(ascending: Sequence[GenerationSegments], places: Places) -> tuple[tuple[TimelineSegment, ...], ...]:
    """Find what may be taken, step by step.

    :param ascending: all generations, the lowest versions first.
    :param places: where they lie.
    """
    cover = Cover()
    exported = {found.generation: _exported(found, cover) for found in reversed(ascending)}
    steps: list[tuple[TimelineSegment, ...]] = []
    gone: set[Generation] = set()
    for found in ascending:
        generation, partitions = found.generation, found.by_partition
        steps_here = list(_groups(found, exported[generation]))
        left = partitions.keys() - {one for step in steps_here for one in step}
        lower = (one for one in places.overlapping(*generation[:2]) if one.version < generation.version)
        if left and left <= exported[generation] and gone.issuperset(lower):
            steps_here.append(sorted(left))
            left = set()
        if not left:
            gone.add(generation)
        steps += [tuple(partitions[one] for one in step) for step in steps_here]
    return tuple(steps)


def _exported(found: GenerationSegments, cover: Cover) -> set[int]:
    """Find the exported partitions of a generation, and let it cover those below.

    :param cover: buckets that are exported by higher generations.
    """
    first, end, _ = found.generation
    partitions = found.exported(covered=not any(cover.gaps(first, end)))
    if found.founders and partitions.issuperset(range(found.founders)):
        cover.add(first, end)
    return partitions


def _groups(found: GenerationSegments, exported: set[int]) -> Iterator[list[int]]:
    """Yield the groups that go by themselves, the deepest first.

    The founders, and what stands for them, go with the whole generation: without them it would hide nothing. In the
    same way a group that stands for a lost member of another one goes behind that one.
    """
    gone: set[int] = set()
    for group in found.groups():
        if group.lowest < found.founders:
            continue
        present = sorted(group.members & found.by_partition.keys())
        if exported.issuperset(present) and gone >= found.known(group.overshadows):
            gone |= group.members
            yield present
