"""How a drain tries again: what for, how long, and what ends it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from export_queue import LeaseLost, SinkRefused, SinkUnavailable, StoreUnavailable
from export_queue.core.drain import DRAIN_RETRY
from export_queue.core.drain.transient import call_again


def failing(*errors: Exception):
    remaining = list(errors)

    def step() -> str:
        if remaining:
            raise remaining.pop(0)
        return "done"

    return step


def test_a_server_that_refuses_is_given_about_forty_seconds():
    waits: list[float] = []
    retry = replace(DRAIN_RETRY, sleep=waits.append, random=lambda: 0.5)
    assert call_again(retry, failing(*[SinkUnavailable("busy")] * 8)) == "done"
    assert waits[:3] == [0.2, 0.4, 0.8]
    assert 30 < sum(waits) < 50


def test_the_last_error_comes_out_as_it_is():
    retry = replace(DRAIN_RETRY, attempts=2, sleep=lambda seconds: None)
    with pytest.raises(StoreUnavailable, match="second"):
        call_again(retry, failing(StoreUnavailable("first"), StoreUnavailable("second")))


def test_the_last_error_says_since_when_and_how_often_it_was_tried():
    retry = replace(DRAIN_RETRY, attempts=3, sleep=lambda seconds: None)
    with pytest.raises(
        SinkUnavailable, match=r"^busy \(since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, tried 3 times\)"
    ) as caught:
        call_again(retry, failing(*[SinkUnavailable("busy") for _ in range(3)]))
    assert caught.value.transient
    with pytest.raises(SinkRefused) as terminal:
        call_again(retry, failing(SinkUnavailable("busy"), SinkRefused("no rights")))
    assert terminal.value.message == "no rights"


def test_a_server_that_hangs_is_given_two_minutes():
    now, calls = [1000.0], []

    def hang() -> None:
        calls.append(now[0])
        now[0] += 60  # the client's own time-out
        raise SinkUnavailable("does not answer")

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with pytest.raises(SinkUnavailable):
        call_again(replace(DRAIN_RETRY, sleep=sleep, clock=lambda: now[0]), hang)
    assert len(calls) == 2
    assert now[0] - 1000 < 120 + 60


@pytest.mark.parametrize("error", [SinkRefused("read only"), ValueError("no"), LeaseLost("taken over")])
def test_what_trying_again_cannot_help_is_raised_at_once(error):
    retry = replace(DRAIN_RETRY, sleep=lambda seconds: pytest.fail("waited"))
    with pytest.raises(type(error)):
        call_again(retry, failing(error))


def test_a_look_that_fails_ends_the_waiting():
    looks = []

    def check() -> None:
        looks.append(1)
        if len(looks) > 2:
            raise LeaseLost("expired")

    retry = replace(DRAIN_RETRY, sleep=lambda seconds: None)
    with pytest.raises(LeaseLost):
        call_again(retry, failing(*[SinkUnavailable("busy")] * 9), check=check)
