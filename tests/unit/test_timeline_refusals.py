"""What a timeline refuses: values and sets of segments that contradict themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.timelines import answers, ident, levels_example, segment

from export_queue import InvalidArgument
from export_queue.core.timeline import AtomicGroup, Generation, Timeline, TimelineSegment


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AtomicGroup(frozenset()), "expected members"),
        (lambda: AtomicGroup(frozenset({-1})), "0 or higher"),
        (lambda: AtomicGroup(frozenset({3, 4}), frozenset({3})), "partitions below 3, found {3}"),
        (lambda: AtomicGroup(frozenset({3}), frozenset({5})), "below 3, found {5}"),
        (lambda: AtomicGroup(frozenset({3}), frozenset({-1})), "below 3, found {-1}"),
        (lambda: segment(1, 0, at=(5, 5)), "first < end"),
        (lambda: segment(1, 0, at=(-1, 5)), "0 ≤ first"),
        (lambda: segment(1, 0, version=-1), "version of 0 or higher"),
        (lambda: segment(1, 3, members=[4]), "group with its partition 3, found {4}"),
        (lambda: segment(1, 0, founders=-1), "0 or more founders"),
        (lambda: segment(1, 0, founders=2, members=[0]), "founding group"),
        (lambda: segment(1, 2, founders=2, members=[1, 2]), "founding group"),
        (lambda: segment(1, 0, founders=2, members=[0, 2]), "founding group"),
    ],
)
def test_a_value_that_contradicts_itself_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        make()
    assert message in str(raised.value)


CONTRADICTIONS = {
    "the same id": (segment(1, 0), segment(1, 1), "found it in the timeline"),
    "the same partition": (segment(1, 0), segment(2, 0), "taken by segment"),
    "other founders": (segment(1, 0, founders=1), segment(2, 2, founders=2), "founders"),
    "a group of another size": (
        segment(1, 3, members=[3, 4]),
        segment(2, 4, members=[3, 4, 5]),
        "expected the atomic group",
    ),
    "a group with other members": (
        segment(1, 3, members=[3, 4]),
        segment(2, 4, members=[4, 5]),
        "expected the atomic group",
    ),
    "a group that overshadows others": (
        segment(1, 3, members=[3, 4], overshadows=[0]),
        segment(2, 4, members=[3, 4], overshadows=[1]),
        "expected the atomic group",
    ),
    "an overlap in one version": (segment(1, 0), segment(2, 0, at=(50, 150)), "expected no overlap"),
    "an overlap in one version, one inside": (segment(1, 0), segment(2, 0, at=(50, 60)), "expected no overlap"),
    "an overlap in one version that was founded": (
        segment(1, 0, founders=1),
        segment(2, 0, at=(50, 150), founders=1),
        "expected no overlap",
    ),
    "a higher version that nobody founded": (segment(1, 0), segment(2, 0, version=2), "expected founders"),
}


@pytest.mark.parametrize(("one", "other", "message"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
@pytest.mark.parametrize("is_reversed", [False, True])
def test_segments_that_contradict_each_other_are_refused_in_any_order(
    one: TimelineSegment, other: TimelineSegment, message: str, is_reversed: bool
) -> None:
    first, second = (other, one) if is_reversed else (one, other)
    with pytest.raises(InvalidArgument, match=message):
        Timeline([first, second])
    timeline = Timeline([first])
    with pytest.raises(InvalidArgument, match=message):
        timeline.add(second)
    assert answers(timeline) == answers(Timeline([first]))
    assert timeline._generations.keys() == {first.generation}


def test_neighbours_of_one_version_and_founded_ones_above_are_no_contradiction() -> None:
    segments = [segment(1, 0), segment(2, 0, at=(100, 200)), segment(3, 0, at=(50, 150), version=2, founders=1)]
    assert answers(Timeline(segments)) == answers(Timeline(reversed(segments)))


@pytest.mark.parametrize("act", ["withdraw", "__getitem__"])
def test_a_segment_that_is_not_there_is_named(act: str) -> None:
    with pytest.raises(InvalidArgument, match=r"no segment 1\.9"):
        getattr(Timeline(levels_example()), act)(ident(9))


def test_what_is_asked_of_a_generation_that_is_not_there_is_refused() -> None:
    timeline = Timeline(levels_example())
    for act in (timeline.founders_of, timeline.segments_of):
        with pytest.raises(InvalidArgument, match="no segment of version 9"):
            act(Generation(0, 100, 9))
    with pytest.raises(InvalidArgument, match="of one generation, found 0"):
        timeline.overshadowed_by([])
    with pytest.raises(InvalidArgument, match="of one generation, found 2; version 1 of"):
        timeline.overshadowed_by([ident(1), ident(4)])
