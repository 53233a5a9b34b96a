"""The deadline of a drain: when it is over, and what it cuts short."""

from __future__ import annotations

from dataclasses import replace

import pytest

from export_queue import DrainTimedOut, SinkUnavailable
from export_queue.core.drain import DRAIN_RETRY, Deadline
from export_queue.core.drain.transient import call_again


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_without_a_limit_a_drain_may_last_for_any_time() -> None:
    deadline = Deadline.after(None)
    deadline.check()
    assert deadline.left() == float("inf")
    assert deadline.bounded(DRAIN_RETRY) is DRAIN_RETRY


def test_the_time_is_over_at_the_limit_and_not_before() -> None:
    clock = Clock()
    deadline = Deadline.after(60, clock=clock)
    clock.now += 59.5
    deadline.check()
    assert deadline.left() == 0.5
    clock.now += 0.5
    with pytest.raises(DrainTimedOut, match="60 seconds"):
        deadline.check()
    clock.now += 1000
    assert deadline.left() == 0


def test_a_pause_that_would_last_beyond_the_deadline_ends_with_it() -> None:
    clock = Clock()
    calls: list[float] = []
    retry = Deadline.after(1, clock=clock).bounded(replace(DRAIN_RETRY, sleep=clock.sleep, random=lambda: 0.5))

    def step() -> None:
        calls.append(clock.now - 100)
        raise SinkUnavailable("busy")

    with pytest.raises(DrainTimedOut):
        call_again(retry, step)
    assert calls == pytest.approx([0, 0.2, 0.6])
    assert clock.now == 101


def test_a_passed_deadline_is_no_error_that_is_waited_out() -> None:
    def step() -> None:
        raise DrainTimedOut("over")

    with pytest.raises(DrainTimedOut):
        call_again(replace(DRAIN_RETRY, sleep=lambda seconds: pytest.fail("waited")), step)
