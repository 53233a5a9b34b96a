"""Trying again, with a clock, a sleep and a randomness of the test's own."""

from __future__ import annotations

import pytest

from export_queue import InvalidArgument, Retry, SinkConfigurationError, SinkUnavailable


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def made(clock: Clock, **options: float | None) -> Retry:
    return Retry(**options, sleep=clock.sleep, clock=lambda: clock.now, random=lambda: 0.5)  # type: ignore[arg-type]


def failing(times: int, error: Exception) -> tuple[list[int], object]:
    calls: list[int] = []

    def step() -> str:
        calls.append(1)
        if len(calls) <= times:
            raise error
        return "done"

    return calls, step


def test_pauses_double_up_to_the_longest_one() -> None:
    clock = Clock()
    _, step = failing(5, SinkUnavailable("down"))
    assert made(clock, first_pause=1, longest_pause=5).call(step) == "done"  # type: ignore[arg-type]
    assert clock.pauses == [1, 2, 4, 5, 5]


def test_the_spread_is_half_of_a_pause_to_either_side() -> None:
    low, high = (
        Retry(first_pause=4, longest_pause=9, random=lambda: 0.0),
        Retry(first_pause=4, longest_pause=9, random=lambda: 1.0),
    )
    assert (low.pause(1), high.pause(1)) == (2, 6)


def test_the_last_attempt_raises_its_error() -> None:
    calls, step = failing(9, SinkUnavailable("down"))
    with pytest.raises(SinkUnavailable):
        made(Clock(), attempts=3).call(step)  # type: ignore[arg-type]
    assert len(calls) == 3


def test_no_call_begins_behind_the_time() -> None:
    clock = Clock()
    calls, step = failing(99, SinkUnavailable("down"))
    with pytest.raises(SinkUnavailable):
        made(clock, attempts=None, seconds=10, first_pause=4, longest_pause=4).call(step)  # type: ignore[arg-type]
    assert (len(calls), clock.now) == (3, 8)


def test_what_is_not_transient_is_raised_at_once() -> None:
    calls, step = failing(1, SinkConfigurationError("wrong"))
    with pytest.raises(SinkConfigurationError):
        made(Clock()).call(step)  # type: ignore[arg-type]
    assert len(calls) == 1


def test_a_check_before_each_call_ends_the_matter() -> None:
    calls, step = failing(9, SinkUnavailable("down"))
    checks = iter([None, None, KeyError("lost")])

    def check() -> None:
        found = next(checks)
        if found is not None:
            raise found

    with pytest.raises(KeyError):
        made(Clock()).call(step, check=check)  # type: ignore[arg-type]
    assert len(calls) == 2


@pytest.mark.parametrize("options", [{"attempts": 0}, {"seconds": -1}, {"first_pause": -1}, {"attempts": None}])
def test_a_retry_without_sense_is_refused(options: dict[str, float | None]) -> None:
    with pytest.raises(InvalidArgument):
        Retry(**options)  # type: ignore[arg-type]
