"""The timeline: which segments show, whatever way it came about, and what contradicts itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.timelines import (
    Oracle,
    answers,
    by_bucket,
    ident,
    numbers,
    seed_example,
    segment,
    segment_sets,
)

from export_queue.core.timeline import Generation, SegmentId, Timeline, TimelineSegment
from export_queue.core.transactions import Snapshot

# the proposal's example


@pytest.mark.parametrize(
    ("published", "visible"),
    [([1, 2, 3], [1, 2, 3]), ([1, 2, 3, 4, 5], [1, 4, 5]), ([1, 2, 3, 4, 5, 6, 7, 8], [1, 6, 7, 8])],
)
def test_the_worked_example_shows_what_the_proposal_says(published: list[int], visible: list[int]) -> None:
    example = seed_example()
    assert numbers(Timeline(example[one] for one in published).visible(0, 100)) == visible


@pytest.mark.parametrize(
    ("withdrawn", "visible"),
    [
        ([6], [1, 4, 5, 8]),
        ([7], [1, 4, 5, 8]),
        ([6, 7], [1, 4, 5, 8]),
        ([6, 4], [1, 2, 3, 5, 8]),
        ([6, 5], [1, 4, 8]),
        ([7, 6, 5, 4], [1, 2, 3, 8]),
        ([8], [1, 6, 7]),
        ([2, 3, 4, 5], [1, 6, 7, 8]),
        ([1], []),
        ([2, 6], [1, 4, 5, 8]),
        ([2, 6, 4], []),
    ],
)
def test_a_withdrawal_falls_back_hop_by_hop(withdrawn: list[int], visible: list[int]) -> None:
    timeline = Timeline(seed_example().values())
    for one in withdrawn:
        timeline.withdraw(ident(one))
    assert numbers(timeline.visible(0, 100)) == visible


def test_an_incomplete_group_hides_nothing_and_is_listed() -> None:
    example = seed_example()
    timeline = Timeline(example[one] for one in (1, 2, 3, 4, 5, 6))
    assert numbers(timeline.visible(0, 100)) == [1, 4, 5]
    assert [(one.group, one.partitions) for one in timeline.missing()] == [(example[6].group, (6,))]
    timeline.add(example[7])
    assert numbers(timeline.visible(0, 100)) == [1, 6, 7]
    assert timeline.missing() == ()
    assert numbers(timeline.hidden()) == [2, 3, 4, 5]


# versions and intervals


def test_what_a_higher_version_covers_in_part_shows_where_it_is_not_covered() -> None:
    timeline = Timeline([segment(1, 0), segment(2, 0, at=(40, 60), version=2, founders=1)])
    found = [(one.segment.id.number, one.first, one.end) for one in timeline.visible(0, 100)]
    assert found == [(1, 0, 40), (2, 40, 60), (1, 60, 100)]
    clipped = [(one.segment.id.number, one.first, one.end) for one in timeline.visible(50, 70)]
    assert clipped == [(2, 50, 60), (1, 60, 70)]
    assert timeline.hidden() == ()


def test_a_version_is_complete_once_its_founders_are_there_and_what_was_appended_falls_with_it() -> None:
    timeline = Timeline([segment(1, 0), segment(2, 0, version=2, founders=2), segment(3, 2, version=2, founders=2)])
    assert numbers(timeline.visible(0, 100)) == [1]
    timeline.add(segment(4, 1, version=2, founders=2))
    assert numbers(timeline.visible(0, 100)) == [2, 4, 3]
    timeline.withdraw(ident(2))
    assert numbers(timeline.visible(0, 100)) == [1]


def test_the_highest_complete_version_wins_over_an_incomplete_one_above() -> None:
    below, complete, incomplete = (
        segment(1, 0),
        segment(2, 0, version=2, founders=1),
        segment(3, 0, version=3, founders=2),
    )
    timeline = Timeline([incomplete, complete, below])
    assert numbers(timeline.visible(0, 100)) == [2]
    assert numbers(timeline.hidden()) == [1]


def test_a_lost_segment_that_was_replaced_is_missed_by_nobody() -> None:
    """A founder, and a member of a group, that a whole group stands for."""
    timeline = Timeline(seed_example().values())
    for lost in (2, 5):
        timeline.withdraw(ident(lost))
    assert numbers(timeline.visible(0, 100)) == [1, 6, 7, 8]
    pair = [segment(1, 0), *(segment(one, one, members=[2, 3], overshadows=[0]) for one in (2, 3))]
    timeline = Timeline([*pair, segment(4, 4, overshadows=[2])])
    timeline.withdraw(ident(2))
    assert numbers(timeline.visible(0, 100)) == [3, 4]
    timeline.withdraw(ident(4))
    assert numbers(timeline.visible(0, 100)) == [1]


def test_the_inputs_of_a_group_show_beside_what_replaced_a_part_of_it_when_the_rest_is_lost() -> None:
    pair = [segment(1, 0), *(segment(one, one, members=[2, 3], overshadows=[0]) for one in (2, 3))]
    timeline = Timeline([*pair, segment(4, 4, overshadows=[2])])
    assert numbers(timeline.visible(0, 100)) == [3, 4]
    timeline.withdraw(ident(3))
    assert numbers(timeline.visible(0, 100)) == [1, 4]


def test_a_group_of_which_all_members_were_replaced_hides_as_long_as_one_is_known() -> None:
    inputs, pair = segment(1, 0), [segment(1 + one, one, members=[1, 2], overshadows=[0]) for one in (1, 2)]
    timeline = Timeline([inputs, segment(4, 3, overshadows=[1, 2])])
    assert numbers(timeline.visible(0, 100)) == [1, 4]
    timeline.add(pair[0])
    assert numbers(timeline.visible(0, 100)) == [4]
    timeline.withdraw(pair[0].id)
    assert numbers(timeline.visible(0, 100)) == [1, 4]
    assert numbers(Timeline([inputs, *pair, segment(4, 3, overshadows=[1, 2])]).visible(0, 100)) == [4]


def by_the_letter(segments: Iterable[TimelineSegment], inputs: dict[int, frozenset[int]]) -> list[int]:
    """Find what shows in one generation by the proposal's algorithm, steps 2 to 7, one hop a segment.

    Incomplete groups that nothing can replace are left out, which the proposal shows.

    :param inputs: the direct inputs of each partition.
    """
    present = {one.partition: one for one in segments}
    overshadowed = frozenset[int]().union(*(inputs[one] for one in present))
    candidates = present.keys() - overshadowed
    while broken := {one for one in candidates if not present[one].group.members <= candidates}:
        lower = frozenset[int]().union(*(inputs[one] for one in broken)) & present.keys()
        candidates = (candidates - broken) | lower
    return sorted(present[one].id.number for one in candidates)


@given(st.data())
def test_merges_and_withdrawals_show_what_the_letter_of_the_proposal_says(data: st.DataObject) -> None:
    """Each merge takes whole groups that show, as the letter needs it, and what is withdrawn shows."""
    timeline = Timeline()
    inputs: dict[int, frozenset[int]] = {}

    def publish(size: int, taken: frozenset[int] = frozenset()) -> None:
        chosen = [one.id for one in timeline if one.partition in taken]
        overshadows = timeline.overshadowed_by(chosen) if chosen else frozenset[int]()
        members = range(len(inputs), len(inputs) + size)
        for partition in members:
            timeline.add(segment(partition + 1, partition, members=members, overshadows=overshadows))
        inputs.update(dict.fromkeys(members, taken))

    for merge in data.draw(st.lists(st.booleans(), max_size=8)):
        groups = sorted({tuple(sorted(one.segment.group.members)) for one in timeline.visible(0, 100)})
        if merge and groups:
            chosen = data.draw(st.lists(st.sampled_from(groups), min_size=1, max_size=3, unique=True))
            publish(data.draw(st.integers(1, 3)), frozenset().union(*chosen))
        else:
            publish(1)
    for _ in range(data.draw(st.integers(0, 4))):
        assert numbers(timeline.visible(0, 100)) == by_the_letter(timeline, inputs)
        merged = [one.segment.id for one in timeline.visible(0, 100) if one.segment.group.overshadows]
        if merged:
            timeline.withdraw(data.draw(st.sampled_from(merged)))
    assert numbers(timeline.visible(0, 100)) == by_the_letter(timeline, inputs)


# any order, bulk or not


@settings(max_examples=50)
@given(segment_sets(), st.integers(0, 11), st.integers(0, 11))
def test_the_timeline_shows_what_the_definition_says(segments: list[TimelineSegment], first: int, length: int) -> None:
    timeline, oracle = Timeline(segments), Oracle(segments)
    pieces = timeline.visible(first, first + length)
    assert by_bucket(pieces) == oracle.visible(first, first + length)
    assert len(by_bucket(pieces)) == sum(one.end - one.first for one in pieces)


@settings(max_examples=50)
@given(segment_sets())
def test_what_is_neither_hidden_nor_visible_waits_for_missing_members(segments: list[TimelineSegment]) -> None:
    timeline = Timeline(segments)
    hidden = {one.id for one in timeline.hidden()}
    shown = {one.segment.id for one in timeline.visible(0, 100)}
    founded = (one for one in timeline.missing() if timeline.founders_of(one.generation) > one.group.lowest)
    incomplete = {one.generation for one in founded}
    waiting = {(one.generation, one.group) for one in timeline.missing()}
    assert not hidden & shown
    for one in timeline:
        if one.id not in hidden | shown:
            assert one.generation in incomplete or (one.generation, one.group) in waiting


@settings(max_examples=40)
@given(segment_sets(most=4))
def test_every_order_of_arrival_gives_the_same_timeline(segments: list[TimelineSegment]) -> None:
    expected = answers(Timeline(segments))
    for order in permutations(segments):
        timeline = Timeline()
        for one in order:
            timeline.add(one)
        assert answers(timeline) == expected


@settings(max_examples=25)
@given(segment_sets(), st.randoms(use_true_random=False))
def test_any_way_to_a_set_of_segments_gives_the_timeline_of_the_set(
    segments: list[TimelineSegment], source: random.Random
) -> None:
    """Additions and withdrawals in any order, with a look after each that must leave no trace."""
    timeline, present = Timeline(), dict[SegmentId, TimelineSegment]()
    for _ in range(3 * len(segments)):
        one = source.choice(segments)
        if one.id not in present:
            timeline.add(one)
            present[one.id] = one
        else:
            timeline.withdraw(one.id)
            del present[one.id]
        assert answers(timeline) == answers(Timeline(present.values()))
    assert len(timeline) == len(present)


def replayed(steps: Sequence[tuple[str, Any]]) -> Timeline:
    timeline = Timeline()
    for act, value in steps:
        acts: dict[str, Callable[[Any], None]] = {"add": timeline.add, "withdraw": timeline.withdraw}
        acts[act](value)
    return timeline


def test_an_emptied_timeline_is_as_a_new_one() -> None:
    example = seed_example()
    timeline = replayed([("add", one) for one in example.values()] + [("withdraw", one.id) for one in example.values()])
    assert answers(timeline) == answers(Timeline())
    assert timeline._generations == timeline._by_id == {}


def test_a_snapshot_has_the_timeline_of_the_segments_that_it_sees() -> None:
    """A follower of the commits, whose order is not that of the ids, and each snapshot between two of them."""
    example = seed_example()
    commits = {10: (1, 2, 3), 12: (4,), 11: (5,), 20: (6, 7), 15: (8,)}
    published = [
        replace(example[number], id=SegmentId(transaction, number))
        for transaction, own in commits.items()
        for number in own
    ]
    followed = Timeline()
    visible = [[1, 2, 3], [1, 4], [1, 4, 5], [1, 6, 7], [1, 6, 7, 8]]
    for count, transaction in enumerate(commits):
        for one in published:
            if one.id.transaction == transaction:
                followed.add(one)
        snapshot = Snapshot(29, tuple(sorted(list(commits)[count + 1 :])))
        timeline = Timeline(one for one in published if snapshot.is_visible(one.id.transaction))
        assert numbers(timeline.visible(0, 100)) == visible[count]
        assert answers(timeline) == answers(followed)


# what compaction asks


def test_compaction_learns_what_to_replace_and_which_numbers_are_free() -> None:
    example = seed_example()
    timeline = Timeline(example[one] for one in (1, 2, 3, 4, 5))
    generation = timeline.generation_at(50)
    assert generation == Generation(0, 100, 1)
    assert timeline.generation_at(100) is None
    assert timeline.founders_of(generation) == 3
    assert numbers(timeline.segments_of(generation)) == [1, 4, 5]
    assert timeline.next_partition(generation) == 5
    assert timeline.next_partition(Generation(100, 200, 1)) == 0
    assert timeline.overshadowed_by([ident(4), ident(5)]) == example[6].group.overshadows == {1, 2, 3, 4}
    assert timeline.overshadowed_by([ident(1)]) == {0}


def test_nothing_of_a_generation_without_its_founders_is_an_input() -> None:
    timeline = Timeline([segment(1, 0, founders=2), segment(2, 2, founders=2)])
    assert timeline.segments_of(Generation(0, 100, 1)) == ()


def test_a_part_of_a_group_does_not_replace_what_the_group_replaced() -> None:
    timeline = Timeline(seed_example().values())
    assert timeline.overshadowed_by([ident(6)]) == {5}
    assert timeline.overshadowed_by([ident(6), ident(7)]) == {1, 2, 3, 4, 5, 6}


def test_numbers_that_a_segment_only_names_are_not_free() -> None:
    timeline = Timeline([segment(1, 4, members=[4, 9])])
    assert timeline.next_partition(Generation(0, 100, 1)) == 10
