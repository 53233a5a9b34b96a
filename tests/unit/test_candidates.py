"""What a compaction merges: small segments, the newest first."""

from __future__ import annotations

from typing import Any

import pytest

from export_queue import Candidates, InvalidArgument, Range
from export_queue.core.locks import ROWS
from export_queue.core.segments import Segment, UnitPlan, choose_candidates

UNIT = Range(0, 5)
SECOND = 1_000_000_000


def segment(transaction: int, *, number: int = 1, size: int = 10) -> Segment:
    return Segment(
        transaction=transaction,
        number=number,
        queue_number=1,
        layout=1,
        first=0,
        end=5,
        file="/f",
        file_bytes=1,
        footer_bytes=1,
        checksum="",
        row_group_first=0,
        row_group_end=1,
        entries=1,
        bytes=size,
        lowest_seq=transaction,
        highest_seq=transaction,
    )


def chosen(segments: list[Segment], *, rows: int = 0, row_bytes: int = 1, **options: Any) -> list[tuple[int, int]]:
    wanted = Candidates(**{"least": 2, "small_bytes": 100, "most_bytes": 1000, **options.pop("wanted", {})})
    plan = choose_candidates(
        UnitPlan(UNIT, tuple(segments), rows, row_bytes),
        wanted=wanted,
        now_ms=options.pop("now_ms", 10_000),
        **options,
    )
    return [] if plan is None else [(one.transaction, one.number) for one in plan.segments]


def test_small_segments_are_chosen_and_large_ones_stay() -> None:
    assert chosen([segment(1), segment(2, size=100), segment(3)]) == [(1, 1), (3, 1)]


def test_fewer_sources_than_asked_for_are_left_alone() -> None:
    assert chosen([segment(1)]) == []
    assert chosen([segment(1)], rows=1) == [(1, 1)]
    assert chosen([], rows=5) == []


def test_too_many_bytes_of_rows_are_left_alone() -> None:
    assert chosen([segment(1)], rows=9, row_bytes=1001) == []


def test_held_and_young_segments_are_left_alone() -> None:
    assert chosen([segment(1), segment(2), segment(3)], is_free=lambda name: name != "2.1") == [(1, 1), (3, 1)]
    assert chosen([segment(1)], rows=9, is_free=lambda name: name != ROWS) == []
    young = [segment(SECOND), segment(2 * SECOND), segment(9 * SECOND)]
    assert chosen(young, wanted={"age_seconds": 5.0}) == [(SECOND, 1), (2 * SECOND, 1)]


def test_the_newest_segments_are_merged_up_to_the_size_of_an_output() -> None:
    many = [segment(i, size=90) for i in range(1, 20)]
    assert chosen(many, wanted={"most_bytes": 300}) == [(17, 1), (18, 1), (19, 1)]


def test_the_newest_segments_are_merged_up_to_a_number() -> None:
    assert chosen([segment(i) for i in range(1, 9)], wanted={"most_inputs": 3}) == [(6, 1), (7, 1), (8, 1)]


@pytest.mark.parametrize(
    "wrong", [{"least": 1}, {"most_inputs": 1}, {"small_bytes": 0}, {"most_bytes": 0}, {"age_seconds": -1}]
)
def test_numbers_out_of_bounds_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=f"{next(iter(wrong))}: expected at least"):
        Candidates(**wrong)
