"""What observers decide without a store: waits after failures, the text of errors, the worker's loop."""

from __future__ import annotations

from random import Random

import pytest

from export_queue import InvalidArgument, StoreNotCreated, StoreUnavailable
from export_queue.core.cli.naming import load_function
from export_queue.core.observers import Processed, delay_ms, work
from export_queue.core.observers.failures import describe


def test_waits_double_up_to_five_minutes() -> None:
    assert [delay_ms(attempts, 1.0) for attempts in (1, 2, 3, 9, 10, 1000)] == [
        1000,
        2000,
        4000,
        256_000,
        300_000,
        300_000,
    ]


def test_waits_are_spread_over_their_upper_half() -> None:
    assert (delay_ms(3, 0.0), delay_ms(3, 0.5)) == (2000, 3000)


@pytest.mark.parametrize("text", ["a\x00b", "\ud800", "x" * 10_000])
def test_any_error_becomes_text_that_a_database_takes(text: str) -> None:
    told = describe(ValueError(text))
    assert told.startswith("ValueError: ")
    assert "\x00" not in told
    assert len(told.encode()) < 3000


class Untold(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_an_error_whose_text_cannot_be_had_is_told_by_its_class() -> None:
    assert describe(Untold()) == "Untold: (the text of this Untold cannot be had: its __str__ raised RuntimeError)"


class Rounds:
    """Gives prepared rounds, then asks to stop; notes the waits."""

    def __init__(self, *rounds: Processed | Exception) -> None:
        self.rounds = list(rounds)
        self.waits: list[float] = []

    def process(self) -> Processed:
        found = self.rounds.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def run(self) -> Processed:
        return work(self.process, stopped=lambda: not self.rounds, wait=self.waits.append, poll=2.0, random=Random(1))


def test_a_worker_adds_its_rounds_up() -> None:
    rounds = Rounds(Processed(done=2, failed=1, left=5), Processed(done=3, conflicted=1, skipped=4, left=1))
    assert rounds.run() == Processed(done=5, conflicted=1, failed=1, skipped=4, left=1)


def test_a_worker_waits_when_nothing_is_left_or_nothing_can_be_done() -> None:
    rounds = Rounds(Processed(done=1, left=1), Processed(done=1), Processed(conflicted=1, left=1), Processed())
    rounds.run()
    assert len(rounds.waits) == 3
    assert all(1.0 <= wait <= 3.0 for wait in rounds.waits)


def test_a_worker_waits_longer_and_longer_for_a_store_that_cannot_be_reached() -> None:
    rounds = Rounds(*[StoreUnavailable("gone")] * 6, Processed(), StoreUnavailable("gone"))
    rounds.run()
    whole = [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 2.0, 2.0]
    assert all(0.5 * most <= wait <= 1.5 * most for wait, most in zip(rounds.waits, whole, strict=True))


def test_a_worker_ends_at_an_error_that_stays() -> None:
    with pytest.raises(StoreNotCreated):
        Rounds(StoreNotCreated("none")).run()


@pytest.mark.parametrize("target", ["json", "json:", ":dumps", "json:nothing", "no_such_module:f", "json.missing:f"])
def test_a_wrong_target_is_refused(target: str) -> None:
    with pytest.raises(InvalidArgument, match=target):
        load_function(target)


def test_a_target_is_found() -> None:
    assert load_function("json:dumps")({}) == "{}"
