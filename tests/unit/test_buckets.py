"""Buckets are the same everywhere (I8); ranges are whole units."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

# Key and XXH64 with seed 42 as a signed number, as Spark's xxhash64 gives it; tests/spark compares the same list.
from tests.support.golden import GOLDEN_HASHES

from export_queue.core.errors import InvalidArgument
from export_queue.core.queue import Range, bucket, buckets_of
from export_queue.core.queue.buckets import split, units_of


@pytest.mark.parametrize(("key", "signed"), GOLDEN_HASHES)
def test_a_bucket_is_the_signed_hash_modulo_the_buckets(key: bytes, signed: int) -> None:
    assert bucket(key, 1009) == signed % 1009


@given(st.lists(st.binary(max_size=40)), st.integers(1, 5000))
def test_many_keys_at_once_get_the_buckets_of_each_alone(keys: list[bytes], buckets: int) -> None:
    assert buckets_of(keys, buckets) == [bucket(key, buckets) for key in keys]


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_units_tile_the_buckets(buckets: int, per_range: int) -> None:
    per_range = min(per_range, buckets)
    units = units_of(buckets, per_range)
    assert units[0].first == 0
    assert units[-1].end == buckets
    assert all(one.end == other.first for one, other in zip(units, units[1:], strict=False))
    assert split([Range(0, buckets)], buckets, per_range) == units


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
    ],
)
def test_a_range_that_is_not_whole_units_is_refused_with_what_is_expected(wrong: object) -> None:
    with pytest.raises(InvalidArgument, match="expected"):
        split([wrong], 1009, 101)  # type: ignore[list-item]


def test_overlapping_ranges_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"unit \[101, 202\) is given twice"):
        split([[0, 202], [101, 303]], 1009, 101)


def test_the_last_unit_may_be_smaller() -> None:
    assert units_of(1009, 101)[-1] == Range(909, 1009)
    assert units_of(1010, 100)[-1] == Range(1000, 1010)
