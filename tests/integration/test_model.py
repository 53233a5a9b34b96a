"""Transactions, tables, queue and notifications against a model, with crashes at every point (I1-I5, I11, I12, I14)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.model.machine import StoreMachine
from tests.model.world import FileWorld, in_memory

PHASES = [Phase.generate] + ([Phase.shrink] if os.environ.get("SHRINK") else [])


def explore(world: Any, *, examples: int, steps: int) -> None:
    """Try the same sequences of steps each time."""
    machine = type("Machine", (StoreMachine,), {"world": world})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=PHASES,
        ),
    )


@pytest.fixture
def file_world() -> Iterator[FileWorld]:
    with in_memory() as folder:
        world = FileWorld(Path(folder))
        with world.timed_requests():
            yield world


@pytest.mark.parametrize(
    "examples", [60, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])], ids=["some", "many"]
)
def test_a_file_store_is_its_model_whatever_happens(file_world: FileWorld, examples: int) -> None:
    explore(file_world, examples=examples, steps=40)
