"""The one way to wait in a test: for an event, with an end that a loaded machine does not reach."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds that even a loaded machine does not need; nothing waits for so long when all is well."""


def wait_until(
    condition: Callable[[], object],
    what: str,
    *,
    seconds: float = PATIENCE,
    pause: float = 0.01,
    progress: Callable[[], object] = lambda: None,
) -> None:
    """Wait until a condition holds.

    :param condition: asked again and again; any true value is enough.
    :param what: what is wrong when the condition stays false: "no worker came".
    :param seconds: longest wait.
    :param pause: seconds between two checks.
    :param progress: a value that changes while the awaited work advances; each change starts ``seconds`` again.
    :raises AssertionError: the condition does not come true in time.
    """
    end, last = time.monotonic() + seconds, progress()
    while not condition():
        if (now := progress()) != last:
            end, last = time.monotonic() + seconds, now
        assert time.monotonic() < end, f"{what}, in {seconds:g} s"
        time.sleep(pause)
