"""When hints are sent, whatever sends them."""

from __future__ import annotations

import threading
from collections.abc import Collection

import pytest

from export_queue.core.store.hints import DENSE_SECONDS, EVERY_SECONDS, UNFOLLOWED_SECONDS, Hints, pause
from export_queue.core.store.seams import Channel


@pytest.mark.parametrize(
    ("commits", "waited", "is_followed", "expected"),
    [
        (1, 0.0, True, EVERY_SECONDS),
        (1000, 0.0, True, EVERY_SECONDS),
        (4, 0.1, True, EVERY_SECONDS),
        (5, 0.1, True, DENSE_SECONDS),
        (24, 0.5, True, EVERY_SECONDS),
        (25, 0.5, True, DENSE_SECONDS),
        (1000, 0.1, False, UNFOLLOWED_SECONDS),
    ],
)
def test_hints_are_fewer_where_commits_are_dense_or_nobody_follows(
    commits: int, waited: float, is_followed: bool, expected: float
) -> None:
    assert pause(commits, waited, is_followed=is_followed) == expected


def test_a_process_that_commits_once_and_ends_sends_its_hint() -> None:
    """The end comes before the thread has begun."""
    sent: list[Channel] = []

    def send(channels: Collection[Channel]) -> bool:
        sent.extend(channels)
        return True

    class Set(threading.Event):
        def clear(self) -> None:
            """Stay set."""

    hints = Hints(send)
    hints._stopped = Set()
    hints._stopped.set()
    hints.tell("store", [7])
    hints.close()
    assert sent == [Channel.of("store", 7)]
