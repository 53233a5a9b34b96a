"""The lines of a drain that goes on: when, what, and that they disturb nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

import pytest

from export_queue.core.drain.progress import EVERY_SECONDS, ProgressLog
from export_queue.core.errors import StoreUnavailable


class Hours:
    """A clock that only the log's own waiting moves on."""

    def __init__(self, ticks: int) -> None:
        self.now = 0.0
        self._ticks = ticks

    def __call__(self) -> float:
        return self.now

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self._ticks -= 1
        self.now += seconds
        return self._ticks < 0


def lines(caplog: pytest.LogCaptureFixture, counts: Iterable[int | None], *, ticks: int, phase: str) -> list[str]:
    hours, left = Hours(ticks), iter(counts)
    progress = ProgressLog("orders → copies", lambda: next(left), clock=hours, wait=hours.wait)
    if phase == "draining":
        progress.draining()
    with caplog.at_level(logging.INFO, "export_queue.drain"), progress:
        pass
    return caplog.messages


def test_a_drain_says_every_thirty_seconds_what_is_left_and_how_fast_it_is(caplog: pytest.LogCaptureFixture) -> None:
    assert EVERY_SECONDS == 30
    assert lines(caplog, [10_000, 4_000, 1_000], ticks=8, phase="draining") == [
        "orders → copies: draining; entries left: 4 000; 300 a second",
        "orders → copies: draining; entries left: 1 000; 100 a second",
    ]


def test_a_drain_that_has_not_begun_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, [None, None], ticks=3, phase="starting") == ["orders → copies: starting"]


def test_waiting_is_said_at_once_and_then_only_in_its_turn(caplog: pytest.LogCaptureFixture) -> None:
    progress = ProgressLog("orders → copies", lambda: 5, clock=Hours(0))
    with caplog.at_level(logging.INFO, "export_queue.drain"):
        for _ in range(100):
            progress.waiting(lambda: "[0, 5) by nightly/run/task")
    assert caplog.messages == ["orders → copies: waiting for [0, 5) by nightly/run/task; entries left: 5"]


def test_a_store_that_is_away_costs_only_the_numbers(caplog: pytest.LogCaptureFixture) -> None:
    def away() -> int:
        raise StoreUnavailable("restarting")

    progress = ProgressLog("orders → copies", away, clock=Hours(0))
    with caplog.at_level(logging.INFO, "export_queue.drain"):
        progress.waiting(lambda: str(away()))
    assert caplog.messages == ["orders → copies: waiting for others"]


def test_the_thread_ends_with_the_drain() -> None:
    with ProgressLog("orders → copies", lambda: 0):
        pass
    assert not [thread for thread in threading.enumerate() if thread.name == "export-queue-progress"]
