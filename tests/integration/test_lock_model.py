"""Locks against a model, with many holders and waiters that stop, die and come back (I10)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.model.locking import BUCKETS, REQUEST_SECONDS, UNIT, LockMachine
from tests.model.world import in_memory

from export_queue import Store
from export_queue.core.locks import waiting

SEEDS = int(os.environ.get("EXPORT_QUEUE_MODEL_SEEDS", "2"))
"""How many seeds the longer runs try."""


@pytest.fixture(autouse=True)
def _slow_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "REQUEST_MS", REQUEST_SECONDS * 1000)


def explore(url: str, *, seeds: int, examples: int, steps: int) -> None:
    with Store.open(url) as store:
        store.create()
        store.configure_queue("q", buckets=BUCKETS, buckets_per_range=UNIT)
        for number in range(seeds):
            print("seed", number)
            machine = seed(number)(type("Machine", (LockMachine,), {"store": store}))
            run_state_machine_as_test(
                machine,
                settings=settings(
                    max_examples=examples,
                    stateful_step_count=steps,
                    database=None,
                    suppress_health_check=list(HealthCheck),
                    phases=[Phase.generate, Phase.shrink],  # explaining a failure would take longer than finding it
                ),
            )


@pytest.mark.parametrize(
    "long",
    [
        pytest.param(False, marks=pytest.mark.brief),
        pytest.param(True, marks=pytest.mark.full("many sequences of steps")),
    ],
    ids=["short", "long"],
)
def test_locks_in_a_file_are_their_model_whatever_happens(long: bool) -> None:
    with in_memory() as folder:
        url = f"sqlite:///{Path(folder) / 'store.db'}"
        explore(url, seeds=SEEDS if long else 1, examples=15 if long else 8, steps=50)


@pytest.mark.full("the same steps; what differs between databases has tests of its own")
def test_locks_on_a_server_are_their_model_whatever_happens(postgres_url: str) -> None:
    explore(postgres_url, seeds=SEEDS, examples=15, steps=50)
