"""Whatever happens to a queue, step by step and in the middle of each other, its sinks end right (I6, I7, I9, I12)."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar
from uuid import uuid4

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from tests.support.fixtures import Covered
from tests.support.queue_world import STEPS, World
from tests.support.servers import PostgresServer

from export_queue import Store

EXAMPLES = int(os.environ.get("EXPORT_QUEUE_WORLD_EXAMPLES", "0"))
"""How many worlds each long run tries, of fifty steps each; 125 are 100 000 steps in all sixteen runs together."""
SHORT = pytest.param((1, 10), id="short", marks=pytest.mark.brief)
LONG = pytest.param(
    (EXAMPLES or 1, 50), id="long", marks=pytest.mark.full("fifty steps: a longer walk of the same steps")
)
KINDS = ["ranks", "ranks, few keys", "ranks, the latest", "fence"]

NewStore = Callable[[], contextlib.AbstractContextManager[Store]]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> NewStore:
    """Open one more empty store for the block."""
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        template: str = request.getfixturevalue("stores_to_copy")["postgresql"]

        @contextlib.contextmanager
        def on_postgresql() -> Iterator[Store]:
            name = server.create_database(template)
            with Store.open(server.url(name)) as store:
                yield store
            server.drop_database(name)

        return on_postgresql
    with Store.open(f"sqlite:///{tmp_path}/template.db") as first:
        first.create()

    @contextlib.contextmanager
    def on_sqlite() -> Iterator[Store]:
        folder = tmp_path / uuid4().hex
        folder.mkdir()
        shutil.copy(tmp_path / "template.db", folder / "store.db")
        with Store.open(f"sqlite:///{folder}/store.db") as store:
            yield store
        shutil.rmtree(folder)

    return on_sqlite


class QueueMachine(RuleBasedStateMachine):
    """A world of its own for each example; subclasses say of which kind."""

    new_store: ClassVar[NewStore]
    folder: ClassVar[Path]
    kind: ClassVar[str]
    readers: ClassVar[tuple[str, ...]]
    met: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.kept = contextlib.ExitStack()
        self.world: World | None = None
        self.is_whole = True

    @initialize()
    def begin_world(self) -> None:
        store = self.kept.enter_context(type(self).new_store())
        folder = self.folder / uuid4().hex
        self.kept.callback(shutil.rmtree, folder, ignore_errors=True)
        kinds = {"fenced": "fence" in self.kind, "latest": "latest" in self.kind, "few_keys": "few" in self.kind}
        self.world = World(store, folder, random.Random(0), self.readers, **kinds)
        self.world.installed(self.kept.enter_context(pytest.MonkeyPatch.context()))

    @rule(
        name=st.sampled_from([name for name, weight in STEPS.items() for _ in range(weight)]),
        seed=st.integers(0, 2**32 - 1),
    )
    def step(self, name: str, seed: int) -> None:
        """Take a step. Its choices follow from its own seed, since draws of hypothesis may not depend on the store."""
        assert self.world is not None
        if self.world.can_take(name):
            self.is_whole = False
            self.world.chance.seed(seed)
            self.world.take(name)
            self.is_whole = True

    @invariant()
    def the_store_equals_the_model(self) -> None:
        if self.world is not None:
            self.is_whole = False
            self.world.check()
            self.is_whole = True

    def teardown(self) -> None:
        with self.kept:
            if self.world is None:
                return
            try:
                if self.is_whole:
                    self.world.finish()
            except BaseException:
                self.is_whole = False
                raise
            finally:
                self.met.update(self.world.met)
                if not self.is_whole:
                    hypothesis.note("\n".join(self.world.trail))


@pytest.mark.parametrize("size", [SHORT, LONG])
@pytest.mark.parametrize("readers", [(), ("cache", "search")], ids=["queue", "subscriptions"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_is_its_model_whatever_happens(
    new_store: NewStore, tmp_path: Path, kind: str, readers: tuple[str, ...], size: tuple[int, int], covered: Covered
) -> None:
    named = {"new_store": staticmethod(new_store), "folder": tmp_path, "kind": kind, "readers": readers}
    machine = type("Queue", (QueueMachine,), {**named, "met": Counter()})
    examples, steps = size
    examples += 1  # the first one is always the simplest
    settings = hypothesis.settings(
        max_examples=examples, stateful_step_count=steps, suppress_health_check=list(hypothesis.HealthCheck)
    )
    run_state_machine_as_test(machine, settings=settings)
    covered(f"{sum(machine.met.values())} steps: {dict(sorted(machine.met.items()))}")
