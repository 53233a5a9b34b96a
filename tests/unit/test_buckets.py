"""Buckets are the same everywhere (I8); ranges are whole units."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

# Key and XXH64 with seed 42 as a signed number, as Spark's xxhash64 gives it; tests/spark compares the same list.
from tests.support.golden import GOLDEN_HASHES

from export_queue import InvalidArgument, Range, bucket
from export_queue.core.queue import Layout, as_range, buckets_of, join_ranges
from export_queue.core.queue.buckets import split


@pytest.mark.parametrize(("key", "signed"), GOLDEN_HASHES)
def test_a_bucket_is_the_signed_hash_modulo_the_buckets(key: bytes, signed: int) -> None:
    assert bucket(key, 1009) == signed % 1009


@given(st.lists(st.binary(max_size=40)), st.integers(1, 5000))
def test_many_keys_at_once_get_the_buckets_of_each_alone(keys: list[bytes], buckets: int) -> None:
    assert buckets_of(keys, buckets) == [bucket(key, buckets) for key in keys]


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_units_tile_the_buckets(buckets: int, per_range: int) -> None:
    per_range = min(per_range, buckets)
    layout = Layout(1, buckets, per_range)
    units = layout.units()
    assert units[0].first == 0
    assert units[-1].end == buckets
    assert all(one.end == other.first for one, other in zip(units, units[1:], strict=False))
    assert split([Range(0, buckets)], [layout]) == units
    assert [layout.unit_of(at) for at in range(buckets)] == [
        unit for unit in units for _ in range(unit.first, unit.end)
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        [0, 100],
        [1, 101],
        [0, 102],
        [101, 101],
        [202, 101],
        [-101, 0],
        [0, 1010],
        [909, 1008],
        [0],
        "ab",
        [0, 101.0],
        [True, 101],
        [0, 101, 2],
        [0, 101, 1, 1],
    ],
)
def test_a_range_that_is_not_whole_units_is_refused_with_what_is_expected(wrong: object) -> None:
    with pytest.raises(InvalidArgument, match="expected"):
        split([wrong], [Layout(1, 1009, 101)])  # type: ignore[list-item]


def test_overlapping_ranges_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"unit \[101, 202\) is given twice"):
        split([[0, 202], [101, 303]], [Layout(1, 1009, 101)])


def test_the_last_unit_may_be_smaller() -> None:
    assert Layout(1, 1009, 101).units()[-1] == Range(909, 1009)
    assert Layout(1, 1010, 100).units()[-1] == Range(1000, 1010)


def test_a_range_of_two_numbers_is_one_of_the_first_layout_and_a_third_one_names_another() -> None:
    layouts = [Layout(1, 16, 4), Layout(3, 10, 5)]
    assert split([[5, 10, 3], [0, 8]], layouts) == [Range(0, 4), Range(4, 8), Range(5, 10, 3)]
    assert [as_range(one.to_json()) for one in (Range(0, 4), Range(5, 10, 3))] == [Range(0, 4), Range(5, 10, 3)]
    assert [str(one) for one in (Range(0, 4), Range(5, 10, 3))] == ["[0, 4)", "[5, 10) of layout 3"]
    with pytest.raises(InvalidArgument, match="expected one of layout 1 or 3, found one of layout 2, which the queue"):
        split([[0, 5, 2]], layouts)
    with pytest.raises(
        InvalidArgument, match=r"range \[0, 4\) of layout 3: expected a run of whole units of 5 buckets"
    ):
        split([[0, 4, 3]], layouts)


def test_ranges_are_joined_within_their_layout() -> None:
    ranges = [Range(4, 8, 2), Range(0, 4), Range(8, 12), Range(0, 4, 2), Range(4, 8)]
    assert join_ranges(ranges) == (Range(0, 12), Range(0, 8, 2))
