"""Retries: which errors are transient, how often to try, and how long to pause."""

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
    """Return whether another attempt may succeed; errors of connections of other libraries are included."""
    if isinstance(error, ExportQueueError):
        return error.transient
    return isinstance(error, ConnectionError | TimeoutError) and raised_by_handler(error) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often a step is tried, and how long to pause between attempts.

    Pauses double from ``first_pause`` to ``longest_pause``. Each is randomized by half in both directions, so that
    callers that failed together do not retry together. Use ``Retry()`` for short conflicts,
    ``Retry(attempts=None, seconds=60)`` for work that must succeed, and ``Retry(attempts=1)`` for no retries.

    :param attempts: maximum number of attempts; None for no limit.
    :param seconds: no attempt starts later than this after the first one, 0 for one attempt; None for no limit.
    :param first_pause: seconds before the second attempt.
    :param longest_pause: maximum number of seconds between two attempts.
    :param sleep: waits for a number of seconds.
    :param random: returns a random number from 0 to 1.
    :param clock: returns seconds; only differences are used.
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
            may_be_zero = name == "seconds"
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and (value > 0 or (may_be_zero and value == 0))):
                least = "at least" if may_be_zero else "more than"
                raise InvalidArgument(f"{name}: expected {least} 0, found {value!r}")
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
        """Call ``step`` until it returns. If it fails permanently or a limit is reached, raise its last error.

        :param step: the function to call; it must be safe to repeat.
        :param worth_repeating: returns whether another attempt may succeed after an error.
        :param check: called before each attempt; its errors are not retried.
        :param on_pause: called with the error before the pause after a failed attempt.
        :returns: the result of ``step``.
        """
        # Not a library's code, whose overhead would cost as much as the commit that it repeats.
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
        """Return a random pause in seconds after the failed attempt with this number, starting from 1."""
        pause = min(self.longest_pause, self.first_pause * 2.0 ** min(attempt - 1, 30))
        return pause * (0.5 + self.random())
