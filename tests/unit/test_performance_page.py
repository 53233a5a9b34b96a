"""How figures get into the page about performance, and what they are made of."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from benchmarks.measuring import Figure, Outcome, median_ratio, shuffled  # noqa: E402
from benchmarks.page import fill, table  # noqa: E402

PAGE = (
    "Prose.\n\n<!-- figures of commit -->\nold\n<!-- end -->\n\nMore.\n\n<!-- figures of sql -->\nkept\n<!-- end -->\n"
)


def figure(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "bench": "commit",
        "case": "sqlite, write",
        "ratio": 1.234,
        "better": "lower",
        "goal": 1.5,
        "baseline": "outbox",
        "repeats": 7,
    }
    one = Figure(**{**values, **changes})
    return {**one.to_dict(), "date": "2026-01-02", "machine": "2 × abacus", "quick": False}


def test_new_figures_replace_the_old_and_leave_everything_else():
    filled = fill(PAGE, [figure()])
    assert "old" not in filled
    assert "| sqlite, write | 1.23 | ≤ 1.5 | yes | outbox | 7 |" in filled
    assert filled.startswith("Prose.\n\n<!-- figures of commit -->\n|")
    assert filled.endswith("\n<!-- end -->\n\nMore.\n\n<!-- figures of sql -->\nkept\n<!-- end -->\n")
    assert fill(filled, [figure()]) == filled


def outcome(way: str, event: str, became: str) -> dict[str, Any]:
    one = Outcome(bench="commit", target="Redis", way=way, event=event, became=became)
    return {**one.to_dict(), "date": "2026-01-02", "machine": "2 × abacus", "quick": False}


def test_what_became_of_events_stands_below_the_figures_a_row_a_way():
    seen = [outcome("drain", "late", "newer"), outcome("drain", "retry", "once"), outcome("loop", "late", "older")]
    filled = fill(PAGE, [figure(), *seen])
    expected = "| Redis | late | retry |\n|---|---|---|\n| drain | newer | once |\n| loop | older |  |\n"
    assert "| outbox | 7 |\n\n" + expected + "\nMeasured on 2026-01-02: 2 × abacus.\n" in filled
    assert "| case |" not in fill(PAGE, seen)


def test_figures_without_a_place_on_the_page_are_refused():
    with pytest.raises(ValueError, match="growth"):
        fill(PAGE, [figure(bench="growth")])


@pytest.mark.parametrize(
    ("changes", "goal_and_met"),
    [
        ({"better": "lower", "goal": 1.3, "ratio": 1.3}, "≤ 1.3 | yes"),
        ({"better": "lower", "goal": 1.3, "ratio": 1.31}, "≤ 1.3 | **no**"),
        ({"better": "higher", "goal": 0.5, "ratio": 0.5}, "≥ 0.5 | yes"),
        ({"better": "higher", "goal": 0.5, "ratio": 0.49}, "≥ 0.5 | **no**"),
        ({"better": "higher", "goal": None, "ratio": 0.1}, " | "),
    ],
)
def test_a_goal_that_is_missed_is_said(changes: dict[str, Any], goal_and_met: str):
    row = table([figure(**changes)]).splitlines()[2]
    assert f" | {goal_and_met} | outbox |" in row


def test_a_quick_run_is_not_taken_for_a_measurement():
    assert "quick run" in table([{**figure(), "quick": True}])
    assert "quick run" not in table([figure()])
    assert "2026-01-02: 2 × abacus." in table([figure()])


def test_repeats_are_compared_each_within_itself():
    # The machine was ten times as slow in the second repeat; ours took twice the baseline's time in each.
    assert median_ratio([2.0, 20.0, 2.0], [1.0, 10.0, 1.0]) == 2.0


def test_every_contestant_has_its_turn_in_every_repeat():
    turns = list(shuffled("abc", repeats=50))
    repeats = [turns[start : start + 3] for start in range(0, len(turns), 3)]
    assert len(repeats) == 50
    assert all(sorted(repeat) == ["a", "b", "c"] for repeat in repeats)
    assert {repeat[0] for repeat in repeats} == {"a", "b", "c"}
