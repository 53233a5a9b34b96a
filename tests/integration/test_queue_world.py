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
"""How many steps each run takes; each fifty are a world with its own seed. 6300 are 100 000 in all runs together."""
SHORT = pytest.param(8, id="short")
LONG = pytest.param(50, id="long", marks=pytest.mark.full("fifty steps: a longer walk through the same steps"))
KINDS = ["ranks", "ranks, few keys", "ranks, the latest", "fence"]


@pytest.mark.parametrize("steps", [SHORT, LONG])
@pytest.mark.parametrize("readers", [(), ("cache", "search")], ids=["queue", "subscriptions"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_is_its_model_whatever_happens(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, readers: tuple[str, ...], steps: int
) -> None:
    left = int(STEPS or steps)
    while left > 0:
        seed = int(SEED) if SEED else random.randrange(1 << 32)
        print("EXPORT_QUEUE_SEED", seed)
        folder, kinds = tmp_path / str(left), {"fenced": "fence" in kind, "latest": "latest" in kind}
        queue_id = f"orders-{left}"
        world = World(store, folder, seed, readers, few_keys="few" in kind, queue_id=queue_id, **kinds)
        with monkeypatch.context() as patches:
            world.installed(patches)
            walk(world, min(left, 50))
        left -= 50


def walk(world: World, steps: int) -> None:
    try:
        for _ in range(steps):
            world.step()
            world.check()
        world.finish()
    finally:
        print(*world.trail, world.met, sep="\n")
