"""Each planted bug makes one of its tests fail: a test that never fails proves nothing."""

from __future__ import annotations

import contextlib

import pytest
from tests.support.servers import PostgresServer
from tests.support.shared import shared
from tests.teeth.planting import Bug, check_unplanted, judge, load

pytestmark = pytest.mark.timeout(1500)
FULL = pytest.mark.full("a copy of the tree and a run of tests for each bug")
BUGS = load()


@pytest.fixture(scope="module", autouse=True)
def keeper() -> None:
    """The keeper of the run's servers, started here: it outlives the copy whose tests would ask for it first."""
    with contextlib.suppress(FileNotFoundError):
        shared(PostgresServer)


@FULL
@pytest.mark.parametrize("environment", sorted({bug.environment for bug in BUGS}))
def test_without_a_bug_all_these_tests_pass(environment: str) -> None:
    assert check_unplanted([bug for bug in BUGS if bug.environment == environment]) is None


@FULL
@pytest.mark.parametrize("bug", [pytest.param(bug, id=bug.name) for bug in BUGS])
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    verdict = judge(bug)
    if verdict.outcome == "skipped":
        pytest.skip(f"its tests were skipped: {verdict.test}")
    assert verdict.outcome == "caught", f"{verdict.outcome}: {verdict.test}\n{verdict.output}"
