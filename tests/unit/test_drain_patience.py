"""Trying again: what for, how often, how long apart."""

from __future__ import annotations

import pytest

from export_queue.core.drain import Patience, is_transient
from export_queue.core.errors import LeaseLost, SinkRefused, SinkUnavailable, StoreUnavailable


def failing(*errors: Exception):
    remaining = list(errors)

    def step() -> str:
        if remaining:
            raise remaining.pop(0)
        return "done"

    return step


def test_waits_double_up_to_the_longest_and_are_spread():
    waits: list[float] = []
    patience = Patience(attempts=6, first=1, longest=4, sleep=waits.append, random=lambda: 0.5)
    assert patience.call(failing(*[SinkUnavailable("busy")] * 5)) == "done"
    assert waits == [1, 2, 4, 4, 4]
    spread: list[float] = []
    Patience(first=1, sleep=spread.append, random=lambda: 0.0).call(failing(SinkUnavailable("busy")))
    assert spread == [0.75]


def test_the_last_error_comes_out_as_it_is_when_patience_ends():
    patience = Patience(attempts=2, sleep=lambda seconds: None)
    with pytest.raises(StoreUnavailable, match="second"):
        patience.call(failing(StoreUnavailable("first"), StoreUnavailable("second")))


def test_patience_with_a_server_that_hangs_ends_by_the_clock():
    now, calls = [1000.0], []

    def hang() -> None:
        calls.append(now[0])
        now[0] += 60  # the client's own time-out
        raise SinkUnavailable("does not answer")

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with pytest.raises(SinkUnavailable):
        Patience(seconds=120, sleep=sleep, clock=lambda: now[0]).call(hang)
    assert len(calls) == 2
    assert now[0] - 1000 < 120 + 60


@pytest.mark.parametrize("error", [SinkRefused("read only"), ValueError("no"), LeaseLost("taken over")])
def test_what_trying_again_cannot_help_is_raised_at_once(error):
    patience = Patience(sleep=lambda seconds: pytest.fail("waited"))
    with pytest.raises(type(error)):
        patience.call(failing(error))


def test_a_look_that_fails_ends_the_waiting():
    looks = []

    def check() -> None:
        looks.append(1)
        if len(looks) > 2:
            raise LeaseLost("expired")

    with pytest.raises(LeaseLost):
        Patience(sleep=lambda seconds: None).call(failing(*[SinkUnavailable("busy")] * 9), check=check)


def test_connections_of_foreign_clients_are_transient_and_other_foreign_errors_are_not():
    assert is_transient(ConnectionResetError())
    assert is_transient(TimeoutError())
    assert not is_transient(KeyError("x"))
    assert not is_transient(FileNotFoundError("x"))
