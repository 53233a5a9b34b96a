"""Transactions, tables, queue and notifications against a model, with crashes at every point (I1-I5, I11, I12, I14)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.conftest import STORES
from tests.model.machine import StoreMachine
from tests.model.mortal import MortalSession
from tests.model.world import FileWorld, ServerWorld, World, in_memory

from export_queue.core.store.postgresql import connection as bounded

EXAMPLES = 10
"""Of each seed; from this number on hypothesis would vary the last ones instead of drawing new ones."""


def explore(world: World, *, seeds: int, steps: int, look_every: int) -> None:
    """Try the same sequences of steps each time.

    :param look_every: after how many steps all there is is compared; what a step itself shows always is.
    """
    for number in range(seeds):
        print("seed", number)
        machine = seed(number)(type("Machine", (StoreMachine,), {"world": world, "look_every": look_every}))
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=steps,
                database=None,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.generate, Phase.shrink],  # explaining a failure would take longer than finding it
            ),
        )
    assert world.deaths, "no process has died in the middle of a step"


SEEDS = os.environ.get("EXPORT_QUEUE_MODEL_SEEDS")
"""How many seeds the longer runs try; three on files and one on servers by default."""
SHORT = pytest.param(False, marks=[pytest.mark.brief, pytest.mark.timeout(600)], id="short")
LONG = pytest.param(True, marks=[pytest.mark.full("many sequences of steps"), pytest.mark.timeout(7200)], id="long")


@pytest.fixture
def file_world() -> Iterator[FileWorld]:
    with in_memory() as folder:
        world = FileWorld(Path(folder))
        with world.timed_requests():
            yield world


@pytest.mark.parametrize("long", [SHORT, LONG])
def test_a_file_store_is_its_model_whatever_happens(file_world: FileWorld, long: bool) -> None:
    if long:
        explore(file_world, seeds=int(SEEDS or 3), steps=50, look_every=3)
    else:
        explore(file_world, seeds=1, steps=30, look_every=3)


@pytest.fixture
def server_world(store_url: str, store_kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerWorld]:
    monkeypatch.setattr(bounded, "BoundedConnection", MortalSession)
    with closing(ServerWorld(store_url, store_kind)) as world:
        yield world


@pytest.mark.parametrize(
    "store_url", [pytest.param(kind, marks=marks) for kind, marks in STORES.items() if marks], indirect=True
)
@pytest.mark.parametrize("long", [SHORT, LONG])
def test_a_server_store_is_its_model_whatever_happens(server_world: ServerWorld, long: bool) -> None:
    explore(server_world, seeds=int(SEEDS or 1) if long else 1, steps=32 if long else 12, look_every=3)
