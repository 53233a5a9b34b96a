"""The lines of a drain that goes on: when, what, and that they disturb nothing."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterable

import pytest

from export_queue import StoreUnavailable
from export_queue.core.drain.progress import EVERY_SECONDS, Left, ProgressLog


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

    def count() -> Left | None:
        entries = next(left)
        return None if entries is None else Left(entries, hours.now)

    progress = ProgressLog("orders → copies", count, clock=hours, wait=hours.wait)
    if phase == "draining":
        progress.draining()
    with caplog.at_level(logging.INFO, "export_queue.drain"), progress:
        pass
    return caplog.messages


def test_a_drain_says_every_ten_seconds_what_is_left_how_fast_it_is_and_how_old(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert EVERY_SECONDS == 10
    assert lines(caplog, [10_000, 8_000, 7_000, 0], ticks=11, phase="draining") == [
        "orders → copies: draining; entries left: 8 000; 300 a second; the oldest 10 s old",
        "orders → copies: draining; entries left: 7 000; 100 a second; the oldest 20 s old",
        "orders → copies: draining; entries left: 0; 700 a second",
    ]


def test_a_count_that_takes_long_is_made_seldom(caplog: pytest.LogCaptureFixture) -> None:
    """Two seconds of each forty go into counting, and no line comes without a count."""
    hours = Hours(1000)
    begun: list[float] = []

    def count() -> Left:
        begun.append(hours.now)
        hours.now += 2
        return Left(5, 1)

    with ProgressLog("orders → copies", count, clock=hours, wait=hours.wait):
        pass
    assert all(later - earlier >= 42 for earlier, later in itertools.pairwise(begun))
    assert len(begun) > 20


def test_each_count_is_handed_on_at_once() -> None:
    hours, told = Hours(4), list[Left]()
    counts = iter([7, 5, 2, 1])
    progress = ProgressLog(
        "orders → copies", lambda: Left(next(counts), 0), on_left=told.append, clock=hours, wait=hours.wait
    )
    with progress:
        pass
    assert [left.entries for left in told] == [7, 5, 2, 1]


def test_a_drain_that_has_not_begun_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, [None, None], ticks=3, phase="starting") == ["orders → copies: starting"]


def test_waiting_is_said_at_once_and_then_only_in_its_turn(caplog: pytest.LogCaptureFixture) -> None:
    progress = ProgressLog("orders → copies", lambda: Left(5, 3), clock=Hours(0))
    with caplog.at_level(logging.INFO, "export_queue.drain"):
        for _ in range(100):
            progress.waiting(lambda: "[0, 5) by nightly/run/task")
    assert caplog.messages == [
        "orders → copies: waiting for [0, 5) by nightly/run/task; entries left: 5; the oldest 3 s old"
    ]


def test_a_store_that_is_away_costs_only_the_numbers(caplog: pytest.LogCaptureFixture) -> None:
    def away() -> Left:
        raise StoreUnavailable("restarting")

    progress = ProgressLog("orders → copies", away, clock=Hours(0))
    with caplog.at_level(logging.INFO, "export_queue.drain"):
        progress.waiting(lambda: str(away()))
    assert caplog.messages == ["orders → copies: waiting for others"]


def test_the_thread_ends_with_the_drain() -> None:
    with ProgressLog("orders → copies", lambda: Left(0, 0)):
        pass
    assert not [thread for thread in threading.enumerate() if thread.name == "export-queue-progress"]
