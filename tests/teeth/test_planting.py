"""The runner tells a caught bug from one that is missed, does not fit, or does not even run."""

from __future__ import annotations

import dataclasses

import pytest
from tests.teeth.planting import Bug, check_unplanted, judge

SEED = Bug(
    name="seed",
    breaks=("I8",),
    file="core/queue/buckets.py",
    old="SEED = 42",
    new="SEED = 0",
    tests=("tests/unit/test_buckets.py::test_a_bucket_is_the_signed_hash_modulo_the_buckets",),
)


@pytest.mark.parametrize(
    ("new", "outcome"),
    [
        ("SEED = 0", "caught"),
        ("SEED = 40 + 2", "missed"),
        ("SEED = undefined", "broken"),  # the module cannot be imported
        ("SEED = '42'", "broken"),  # the test fails by a TypeError
    ],
)
def test_a_bug_counts_as_caught_only_if_a_test_says_so(new: str, outcome: str) -> None:
    verdict = judge(dataclasses.replace(SEED, new=new))
    assert verdict.outcome == outcome, verdict.output


@pytest.mark.parametrize("old", ["not there", "bucket"])
def test_a_text_that_does_not_occur_exactly_once_is_told(old: str) -> None:
    verdict = judge(dataclasses.replace(SEED, old=old))
    assert verdict.outcome == "broken"
    assert old in verdict.output


def test_a_bug_that_is_no_program_is_an_error() -> None:
    with pytest.raises(SyntaxError):
        judge(dataclasses.replace(SEED, new="SEED = ="))


def test_tests_that_fail_without_any_bug_are_told() -> None:
    absent = dataclasses.replace(SEED, tests=("tests/unit/test_buckets.py::test_absent",))
    assert "test_absent" in (check_unplanted([absent]) or "")
