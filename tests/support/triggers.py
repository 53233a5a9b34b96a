"""Running triggers in an event loop, with every look at the store in the test's view; only for tests/airflow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import pytest

from export_queue import polling

if TYPE_CHECKING:
    from airflow.triggers.base import BaseEventTrigger


def run(watch: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(watch, 60))


class Watch:
    """A trigger that runs, and its events."""

    def __init__(self, trigger: BaseEventTrigger) -> None:
        self.events: list[dict[str, Any]] = []
        self._trigger = trigger
        self._task = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        async with contextlib.aclosing(self._trigger.run()) as events:
            async for event in events:
                self.events.append(event.payload)

    async def stop(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


class Looks:
    """Counts the looks, those that have ended and those that the triggers have been told of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ended = self.count = 0
        inner, turn = polling.Poller._answer, polling.Poller._look_when_due

        def counted(poller: polling.Poller, questions: Any) -> Any:
            try:
                return inner(poller, questions)
            finally:
                self.ended += 1

        async def told(poller: polling.Poller) -> None:
            try:
                await turn(poller)
            finally:
                self.count = self.ended

        monkeypatch.setattr(polling.Poller, "_answer", counted)
        monkeypatch.setattr(polling.Poller, "_look_when_due", told)

    async def another(self, times: int = 1) -> None:
        """Wait until the store was looked at, and the triggers know what was found."""
        await self.until(self.count + times)

    async def until(self, count: int) -> None:
        while self.count < count or any(ask.answer.done() for poller in pollers() for ask in poller._asks):
            await asyncio.sleep(0.005)
        for _ in range(5):
            await asyncio.sleep(0)


async def sharing(number: int) -> None:
    """Wait until so many triggers use one poller: a busy machine starts them late."""
    while [poller.users for poller in pollers()] != [number]:
        await asyncio.sleep(0.005)


def pollers() -> list[polling.Poller]:
    return list(polling._pollers.values())


@contextlib.contextmanager
def store_held(looks: Looks) -> Any:
    """Make sure that no look falls into a block: it runs without giving the event loop a turn, or a look goes on."""
    (poller,) = pollers()
    poller._thread.submit(lambda: None).result()  # a look that is under way ends first
    before = looks.ended
    yield
    assert looks.ended == before
