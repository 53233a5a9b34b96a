"""The table of planted bugs fits the tree; whether the tests catch them is in ``test_planted.py``."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.teeth.planting import ROOT, Bug, copied, load, run

MOST_BUGS = 114

BUGS = load()
bugs = pytest.mark.parametrize("bug", [pytest.param(bug, id=bug.name) for bug in BUGS])


@bugs
def test_a_bug_has_exactly_one_place(bug: Bug) -> None:
    assert bug.applies(ROOT), f"{bug.file} must hold this text exactly once:\n{bug.old}"
    assert bug.old != bug.new


@pytest.mark.parametrize("environment", sorted({bug.environment for bug in BUGS}))
def test_the_tests_of_all_bugs_are_found_by_pytest(environment: str) -> None:
    assert all(bug.tests for bug in BUGS)
    tests = dict.fromkeys(test for bug in BUGS if bug.environment == environment for test in bug.tests)
    with copied() as tree:
        code, _, output = run(tree, tests, environment, "--collect-only")
    assert code == 0, output[-2000:]


def test_every_invariant_has_at_least_three_bugs_that_break_it() -> None:
    broken = Counter(what for bug in BUGS for what in bug.breaks)
    assert {name: broken[name] for number in range(1, 15) if broken[name := f"I{number}"] < 3} == {}


def test_the_table_stays_short() -> None:
    assert len(BUGS) <= MOST_BUGS, f"{len(BUGS)} bugs: a new bug replaces another one that earns less"


def test_every_room_has_a_bug() -> None:
    rooms = {path.name for path in (ROOT / "core").iterdir() if (path / "__init__.py").exists()}
    files = {bug.file for bug in BUGS}
    assert {room for room in rooms if not any(file.startswith(f"core/{room}/") for file in files)} == set()
    for folder in ("provider", "hooks", "operators", "sensors"):
        assert any(file.startswith(f"{folder}/") for file in files)
