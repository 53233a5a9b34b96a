"""Variants of which each run of all tests takes a part."""

from __future__ import annotations

import pytest
from tests.support.drawn import ALL, left_for_later

GROUPS = [("one", ["a"]), ("four", [*"bcde"]), ("seven", [*"fghijkl"])]


@pytest.fixture(autouse=True)
def _draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALL, raising=False)
    monkeypatch.setenv("EXPORT_QUEUE_SEED", "1")


def kept() -> set[str]:
    later = left_for_later(GROUPS, share=3)
    return {choice for _, choices in GROUPS for choice in choices} - {*later}


def test_of_each_group_one_of_three_is_drawn_and_at_least_one() -> None:
    assert [len(kept() & {*choices}) for _, choices in GROUPS] == [1, 2, 3]


def test_a_seed_repeats_a_draw_and_after_some_runs_all_have_come(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = []
    for seed in range(30):
        monkeypatch.setenv("EXPORT_QUEUE_SEED", str(seed))
        draws.append(kept())
        assert kept() == draws[-1]
    assert set().union(*draws) == {*"abcdefghijkl"}


def test_all_are_taken_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALL, "all")
    assert left_for_later(GROUPS, share=3) == []
