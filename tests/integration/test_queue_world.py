"""Whatever happens to a queue, step by step and in the middle of each other, its sinks end right (I6, I7, I9, I12)."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from tests.support.queue_world import World

from export_queue.core.client import Store

SEED = os.environ.get("EXPORT_QUEUE_SEED")
STEPS = os.environ.get("EXPORT_QUEUE_WORLD_STEPS")
"""How many steps each run takes."""
SHORT = pytest.param(8, id="short")
LONG = pytest.param(50, id="long", marks=pytest.mark.full("fifty steps: a longer walk through the same steps"))
KINDS = ["ranks", "ranks, the latest", "fence"]


@pytest.mark.parametrize("steps", [SHORT, LONG])
@pytest.mark.parametrize("readers", [(), ("cache", "search")], ids=["queue", "subscriptions"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_is_its_model_whatever_happens(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, readers: tuple[str, ...], steps: int
) -> None:
    seed = int(SEED) if SEED else random.randrange(1 << 32)
    print("EXPORT_QUEUE_SEED", seed)
    world = World(store, tmp_path, seed, readers, fenced="fence" in kind, latest="latest" in kind)
    world.installed(monkeypatch)
    try:
        for _ in range(int(STEPS or steps)):
            world.step()
            world.check()
        world.finish()
    finally:
        print(*world.trail, world.met, sep="\n")
