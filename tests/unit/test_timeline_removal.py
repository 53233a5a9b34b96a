"""What of a timeline is exported, and what clean-up takes: they never come back, and nothing stays for ever."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.timelines import by_bucket, ident, levels_example, numbers, seed_example, segment, segment_sets

from export_queue.core.timeline import SegmentId, Timeline, TimelineSegment


def steps(timeline: Timeline) -> list[list[int]]:
    return [numbers(step) for step in timeline.removable()]


def retired(*given: int) -> Timeline:
    """The proposal's example with some segments retired."""
    timeline = Timeline(seed_example().values())
    for one in given:
        timeline.retire(ident(one))
    return timeline


def test_a_retired_segment_shows_no_more_and_goes_on_hiding() -> None:
    timeline = retired(6, 7)
    assert numbers(timeline.visible(0, 100)) == [1, 8]
    assert numbers(timeline.hidden()) == [2, 3, 4, 5]
    timeline.retire(ident(6))
    assert numbers(timeline.visible(0, 100)) == [1, 8]


def test_a_drained_member_of_a_group_goes_on_counting() -> None:
    timeline = retired(6)
    assert numbers(timeline.visible(0, 100)) == [1, 7, 8]
    assert timeline.missing() == ()
    assert steps(timeline) == []


def test_a_drained_founder_goes_on_counting() -> None:
    timeline = Timeline([segment(1, 0), *(segment(2 + one, one, version=2, founders=2) for one in (0, 1))])
    timeline.retire(ident(2))
    assert numbers(timeline.visible(0, 100)) == [3]
    assert steps(timeline) == []


def test_the_rest_of_a_partly_drained_group_falls_back_when_a_member_is_lost() -> None:
    """What was lost may lie in any of the inputs: these come as a whole, and sinks know what they have already."""
    timeline = retired(6)
    timeline.withdraw(ident(7))
    assert numbers(timeline.visible(0, 100)) == [1, 4, 5, 8]


def test_what_was_appended_alone_goes_alone() -> None:
    assert steps(retired(8)) == [[8]]
    assert steps(retired(1, 8)) == [[8]]


def test_founders_and_what_stands_for_them_go_with_their_generation() -> None:
    assert steps(retired(1, 6, 7)) == [[5]]
    assert steps(retired(1, 6, 7, 8)) == [[5], [8], [1, 2, 3, 4, 6, 7]]


def test_hidden_segments_go_before_what_hides_them_and_not_before_that_is_exported() -> None:
    inputs = [segment(one, one) for one in (1, 2)]
    timeline = Timeline([*inputs, segment(3, 3, overshadows=[1, 2])])
    assert steps(timeline) == []
    timeline.retire(ident(1))
    assert steps(timeline) == [[1]]
    timeline.retire(ident(3))
    assert steps(timeline) == [[1], [2], [3]]


def test_a_hidden_generation_goes_deepest_first() -> None:
    timeline = Timeline(
        [segment(1, 0), segment(2, 0, version=2, founders=1), segment(3, 0, version=3, founders=1), segment(4, 1)]
    )
    assert steps(timeline) == []
    timeline.retire(ident(2))
    assert steps(timeline) == [[1], [4], [2]]
    timeline = Timeline(one for one in timeline if one.id != ident(2))
    timeline.retire(ident(3))
    assert steps(timeline) == [[1], [4], [3]]


def test_a_version_stays_as_long_as_it_hides_a_part_of_something_that_is_not_exported() -> None:
    timeline = Timeline([segment(1, 0), segment(2, 0, at=(50, 150), version=2, founders=1)])
    timeline.retire(ident(2))
    assert [(one.first, one.end) for one in timeline.unexported(ident(1))] == [(0, 50)]
    assert steps(timeline) == []
    timeline.retire(ident(1))
    assert steps(timeline) == [[1], [2]]


def test_what_is_hidden_by_something_not_exported_is_not_exported() -> None:
    timeline = Timeline([segment(1, 0), segment(2, 0, at=(50, 150), version=2, founders=1)])
    assert [(one.first, one.end) for one in timeline.unexported(ident(1))] == [(0, 100)]


def test_what_is_left_of_a_group_stands_for_nothing() -> None:
    timeline = Timeline([segment(1, 0), segment(2, 1, members=[1, 2], overshadows=[0], retired=True)])
    assert [(one.first, one.end) for one in timeline.unexported(ident(1))] == [(0, 100)]
    assert steps(timeline) == []
    timeline.retire(ident(1))
    assert steps(timeline) == [[1], [2]]


def test_a_version_without_its_founders_stands_for_nothing() -> None:
    timeline = Timeline([segment(1, 0), segment(2, 0, version=2, founders=2, retired=True)])
    assert [(one.first, one.end) for one in timeline.unexported(ident(1))] == [(0, 100)]
    assert steps(timeline) == []


def test_what_was_appended_to_a_version_keeps_it_and_not_what_the_version_hides() -> None:
    timeline = Timeline([segment(1, 0), segment(2, 0, version=2, founders=1), segment(3, 1, version=2, founders=1)])
    timeline.retire(ident(2))
    assert steps(timeline) == [[1]]
    timeline.retire(ident(3))
    assert steps(timeline) == [[1], [3], [2]]


def test_what_stands_for_a_lost_member_stays_as_long_as_that_group() -> None:
    group = [segment(one, one, members=[2, 3], overshadows=[1]) for one in (2, 3)]
    timeline = Timeline([segment(1, 1), *group, segment(4, 4, overshadows=[2])])
    timeline.withdraw(ident(2))
    timeline.retire(ident(4))
    assert numbers(timeline.visible(0, 100)) == [3]
    assert steps(timeline) == []
    timeline.retire(ident(3))
    assert steps(timeline) == [[1], [3], [4]]


def test_exported_is_what_the_levels_of_several_versions_say() -> None:
    """[100, 150) of segment 1 lies under version 2, all of which lies under an exported version 3."""
    timeline = Timeline(
        [
            segment(1, 0, at=(100, 200)),
            segment(2, 0, at=(50, 150), version=2, founders=1),
            segment(3, 0, at=(0, 150), version=3, founders=1, retired=True),
        ]
    )
    assert timeline.unexported(ident(2)) == ()
    assert [(one.first, one.end) for one in timeline.unexported(ident(1))] == [(150, 200)]
    assert steps(timeline) == []
    timeline.retire(ident(1))
    assert steps(timeline) == [[1], [2], [3]]


def test_an_example_with_everything_is_taken_once_all_is_retired() -> None:
    segments = [one for one in levels_example() if one.id.number != 7]
    timeline = Timeline(segments)
    for one in segments:
        timeline.retire(one.id)
    assert sorted(one for step in steps(timeline) for one in step) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("names_all", "shows"), [(True, []), (False, [1])])
def test_a_lost_link_of_an_exported_chain_shows_nothing_where_its_end_names_all_of_it(
    names_all: bool, shows: list[int]
) -> None:
    timeline = Timeline([segment(1, 1), segment(2, 2, overshadows=[1])])
    assert timeline.overshadowed_by([ident(2)]) == {1, 2}
    timeline.add(segment(3, 3, overshadows=[1, 2] if names_all else [2], retired=True))
    timeline.withdraw(ident(2))
    assert numbers(timeline.visible(0, 100)) == shows


@settings(max_examples=50)
@given(segment_sets(), st.data())
def test_what_is_taken_shows_nothing_then_or_later(segments: list[TimelineSegment], data: st.DataObject) -> None:
    """Behind any step, also when others that are not exported are withdrawn afterwards.

    Then a fall-back may come to what was exported, where something stands for a chain and names its last link only. It
    shows less where that was taken, and nothing else is missing.
    """
    whole, reduced = Timeline(segments), Timeline(segments)
    taken = whole.removable()
    gone = set[SegmentId]()
    for step in taken[: data.draw(st.integers(0, len(taken)))]:
        for one in step:
            reduced.withdraw(one.id)
            gone.add(one.id)
    assert reduced.visible(0, 100) == whole.visible(0, 100)
    lost = [one.id for one in reduced if not one.retired]
    for one in data.draw(st.lists(st.sampled_from(lost), unique=True, max_size=3)) if lost else []:
        reduced.withdraw(one)
        whole.withdraw(one)
        left = {place for place in by_bucket(whole.visible(0, 100)) if place[0] not in gone}
        assert by_bucket(reduced.visible(0, 100)) == left


@settings(max_examples=50)
@given(segment_sets(), st.data())
def test_taking_step_by_step_and_looking_anew_takes_the_same(
    segments: list[TimelineSegment], data: st.DataObject
) -> None:
    timeline = Timeline(segments)
    expected = {one.id for step in timeline.removable() for one in step}
    found = set[SegmentId]()
    while taken := timeline.removable():
        for step in taken[: data.draw(st.integers(1, len(taken)))]:
            for one in step:
                timeline.withdraw(one.id)
                found.add(one.id)
    assert found == expected


@settings(max_examples=50)
@given(segment_sets(whole=True), st.data())
def test_drained_to_the_end_everything_goes_and_every_entry_was_exported(
    segments: list[TimelineSegment], data: st.DataObject
) -> None:
    """Drains read what shows in any order; what is exported is retired, and taken at times."""
    timeline = Timeline(segments)
    drained = set[tuple[SegmentId, int]]()
    while left := sorted(by_bucket(timeline.visible(0, 100)) - drained):
        drained |= set(data.draw(st.lists(st.sampled_from(left), min_size=1)))
        for one in reversed(list(timeline)):  # what hides first
            if by_bucket(timeline.unexported(one.id)) <= drained:
                timeline.retire(one.id)
        if data.draw(st.booleans()):
            for step in timeline.removable():
                for one in step:
                    timeline.withdraw(one.id)
        assert not any(one.retired for one in (piece.segment for piece in timeline.visible(0, 100)))
    for step in timeline.removable():
        for one in step:
            timeline.withdraw(one.id)
    assert list(timeline) == []


@pytest.mark.parametrize("number", [1, 4])
def test_unexported_of_a_retired_segment_is_nothing(number: int) -> None:
    assert retired(number).unexported(ident(number)) == ()
