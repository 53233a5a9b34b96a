"""Each planted bug makes one of its tests fail: a test that never fails proves nothing."""

from __future__ import annotations

import pytest
from tests.teeth.planting import Bug, check_unplanted, judge, load

pytestmark = pytest.mark.timeout(1500)
FULL = pytest.mark.full("a copy of the tree and a run of tests for each bug")


@pytest.fixture(scope="module")
def unplanted(request: pytest.FixtureRequest) -> str | None:
    """What is wrong with the tests of the chosen bugs where nothing is planted; None if they pass."""
    items = (item for item in request.session.items if isinstance(item, pytest.Function) and hasattr(item, "callspec"))
    chosen = [item.callspec.params["bug"] for item in items if item.path == request.path]
    return check_unplanted(chosen)


@pytest.mark.parametrize("bug", [pytest.param(bug, id=bug.name, marks=FULL) for bug in load()])
def test_a_planted_bug_is_caught(bug: Bug, unplanted: str | None) -> None:
    assert unplanted is None, unplanted
    verdict = judge(bug)
    if verdict.outcome == "skipped":
        pytest.skip(f"its tests were skipped: {verdict.test}")
    assert verdict.outcome == "caught", f"{verdict.outcome}: {verdict.test}\n{verdict.output}"
