"""Trying again: which errors it may help against, how often, and how long the pauses in between are."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from export_queue.core.callables import check_runs, returned
from export_queue.core.errors import ExportQueueError, InvalidArgument
from export_queue.core.interruptions import raised_by_handler

Result = TypeVar("Result")


def is_transient(error: BaseException) -> bool:
    """Tell whether trying the same again may help; connections of foreign clients count too."""
    if isinstance(error, ExportQueueError):
        return error.transient
    return isinstance(error, ConnectionError | TimeoutError) and raised_by_handler(error) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often a step is called, and how long the pauses between its calls are.

    Pauses double from ``first_pause`` to ``longest_pause`` and are spread by half of themselves to either side, so that
    callers that failed together do not come back together. ``Retry()`` is for conflicts that pass,
    ``Retry(attempts=None, seconds=60)`` for work that must get through, ``Retry(attempts=1)`` for none.

    :param attempts: calls in all; None for any number.
    :param seconds: no call begins later than this after the first one; None for any time.
    :param first_pause: seconds before the second call.
    :param longest_pause: most seconds between two calls.
    :param sleep: waits for a number of seconds.
    :param random: draws a number from 0 up to 1.
    :param clock: tells seconds; only differences count.
    """

    attempts: int | None = 10
    seconds: float | None = None
    first_pause: float = 0.005
    longest_pause: float = 1.0
    sleep: Callable[[float], object] = field(default=time.sleep, repr=False, compare=False)
    random: Callable[[], float] = field(default=random.random, repr=False, compare=False)
    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.attempts is not None and self.attempts < 1:
            raise InvalidArgument(f"attempts: expected at least 1, found {self.attempts}")
        for name in ("seconds", "first_pause", "longest_pause"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidArgument(f"{name}: expected more than 0, found {value}")
        for name in ("sleep", "random", "clock"):
            check_runs(getattr(self, name), name)
        if self.attempts is None and self.seconds is None:
            raise InvalidArgument("retry: expected a bound, found neither attempts nor seconds")

    def call(
        self,
        step: Callable[[], Result],
        *,
        worth_repeating: Callable[[Exception], bool] = is_transient,
        check: Callable[[], None] | None = None,
        on_pause: Callable[[Exception], None] | None = None,
    ) -> Result:
        """Call ``step`` until it returns, fails for good, or the bounds are reached; then its last error is raised.

        :param step: what is done; it must be safe to repeat.
        :param worth_repeating: tells whether another call may help after an error.
        :param check: called before each call; what it raises ends the matter.
        :param on_pause: called with the error before the pause after a failed call.
        :returns: what ``step`` returned.
        """
        # Own code, since a library's machinery would cost as much as the commit that it repeats.
        begun = self.clock()
        for attempt in itertools.count(1):
            if check is not None:
                check()
            try:
                return step()
            except Exception as error:
                if attempt == self.attempts or not worth_repeating(error):
                    raise
                pause = self.pause(attempt)
                if self.seconds is not None and self.clock() + pause > begun + self.seconds:
                    raise
                if on_pause is not None:
                    on_pause(error)
            returned(self.sleep(pause), "sleep")
        raise AssertionError("unreachable")

    def pause(self, attempt: int) -> float:
        """Draw the pause after an attempt that failed.

        :param attempt: its number, from 1.
        :returns: seconds.
        """
        pause = min(self.longest_pause, self.first_pause * 2.0 ** min(attempt - 1, 30))
        return pause * (0.5 + self.random())
