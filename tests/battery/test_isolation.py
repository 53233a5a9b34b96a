"""Histories of many processes under kills, judged by the checker: strong snapshot isolation, and truthful answers.

``EXPORT_QUEUE_BATTERY_TRANSACTIONS`` sets how many transactions all ways together run, ``EXPORT_QUEUE_SEED`` what the
processes do and what befalls them (not when: that is the machine's).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.battery import plants
from tests.battery.supervisor import Run
from tests.battery.ways import WAYS, Way
from tests.support.fixtures import Covered

TRANSACTIONS = int(os.environ.get("EXPORT_QUEUE_BATTERY_TRANSACTIONS", "100000"))
SHORT = 4000
"""Transactions of all ways together in the short run."""
BUDGET = float(os.environ.get("EXPORT_QUEUE_BATTERY_SECONDS", "900"))
"""Seconds after which one way begins no more transactions; the summary tells what was covered."""
FIRST = 3000
"""Transactions after which a first look is taken: what is badly broken shows early."""
HANGS = 7200
"""Seconds after which a run hangs for certain; a test of the count, not of speed."""

POSTGRESQL = next(way for way in WAYS if way.name == "postgresql")


@pytest.mark.timeout(HANGS)
@pytest.mark.parametrize(
    "all_ways",
    [
        pytest.param(SHORT, id="short"),
        pytest.param(TRANSACTIONS, id="long", marks=pytest.mark.full("as many transactions as are asked for")),
    ],
)
def test_what_clients_see_under_kills_is_strong_snapshot_isolation(
    way: Way, way_url: str, tmp_path: Path, seed: int, all_ways: int, covered: Covered
) -> None:
    transactions = way.part_of(all_ways)
    run = Run(way, way_url, tmp_path, seed)
    end = time.monotonic() + BUDGET
    for goal in (*range(FIRST, transactions, FIRST), transactions):
        run.run(goal - run.done)
        is_over = run.done >= transactions or time.monotonic() > end
        if is_over or goal == FIRST:
            verdict = run.check()
            assert not verdict.anomalies, str(verdict)
            assert not run.failures
        if is_over:
            break
    covered(
        f"{verdict.transactions} of {transactions} transactions, {run.events['processes killed']} kills, seed {seed}"
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
