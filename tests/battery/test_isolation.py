"""Histories of many processes under kills, judged by the checker: strong snapshot isolation, and truthful answers.

The store's clock steps by minutes, hours and days meanwhile, forward and back. ``EXPORT_QUEUE_SEED`` sets what the
processes do and what befalls them (not when: that is the machine's).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.battery import plants
from tests.battery.size import HANGS, TRANSACTIONS
from tests.battery.supervisor import Run
from tests.battery.ways import WAYS, Way
from tests.support.fixtures import Covered

SHORT = 4000
"""Transactions of all ways together in the short run."""
FIRST = 3000
"""Transactions after which a first look is taken: what is badly broken shows early."""

POSTGRESQL = next(way for way in WAYS if way.name == "postgresql")


@pytest.mark.timeout(HANGS)
@pytest.mark.parametrize(
    "all_ways",
    [
        pytest.param(SHORT, id="short", marks=pytest.mark.brief),
        pytest.param(TRANSACTIONS, id="long", marks=pytest.mark.full("as many transactions as are asked for")),
    ],
)
def test_what_clients_see_under_kills_is_strong_snapshot_isolation(
    way: Way, way_url: str, tmp_path: Path, seed: int, all_ways: int, covered: Covered
) -> None:
    transactions = way.part_of(all_ways)
    run = Run(way, way_url, tmp_path, seed)
    for goal in (*range(FIRST, transactions, FIRST), transactions):
        run.run(goal - run.done)
        if goal in (FIRST, transactions):
            verdict = run.check()
            assert not verdict.anomalies, str(verdict)
            assert not run.failures
    covered(
        f"{verdict.transactions} transactions, {verdict.committed} committed, {run.events['processes killed']} kills, "
        f"{run.events['clock steps']} steps of the clock, seed {seed}"
    )
    assert verdict.committed > verdict.transactions / 2
    assert sum(run.ended_late.values()) > run.done / 200, "too few were ended by others"


def test_all_ways_together_run_as_many_transactions_as_are_asked_for() -> None:
    assert sum(way.part_of(100_000) for way in WAYS) >= 100_000


@pytest.fixture
def plain_run(postgres_url: str, tmp_path: Path, seed: int) -> Run:
    """A run whose store nobody has changed yet."""
    POSTGRESQL.create(postgres_url)
    return Run(POSTGRESQL, postgres_url, tmp_path, seed)


@pytest.mark.full("thousands of transactions for each pause")
@pytest.mark.postgres
@pytest.mark.timeout(HANGS)
@pytest.mark.parametrize(
    "pause",
    [
        pytest.param(plants.pause_before_registering, id="between drawing and registering an id, under the gate"),
        pytest.param(plants.pause_before_listing, id="before the locks are listed, as active rows are read after them"),
        pytest.param(plants.pause_behind_listing, id="between the list of locks and what says which have ended"),
    ],
)
def test_a_pause_where_the_order_of_steps_is_right_is_harmless(plain_run: Run, pause: Callable[[str], None]) -> None:
    pause(plain_run.url)
    plain_run.run(2000, torment=False)
    verdict = plain_run.check()
    assert not verdict.anomalies, str(verdict)
    assert not plain_run.failures


@pytest.mark.full("thousands of transactions, to prove the checker")
@pytest.mark.postgres
@pytest.mark.timeout(HANGS)
def test_the_same_pause_behind_a_gate_that_is_freed_too_early_is_caught(plain_run: Run) -> None:
    plants.free_the_gate_too_early(plain_run.url)
    for _ in range(10):
        plain_run.run(1000, torment=False)
        if plain_run.check().anomalies:
            return
    pytest.fail("the checker is blind: ids registered out of order went unnoticed")
