"""Trying again: which errors it may help against, and how long to wait in between."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception

from export_queue.core.errors import ExportQueueError, LockError

Result = TypeVar("Result")


def is_transient(error: BaseException) -> bool:
    """Tell whether trying the same again may help; connections of foreign clients count too."""
    if isinstance(error, ExportQueueError):
        return error.transient
    return isinstance(error, ConnectionError | TimeoutError)


def _is_worth_repeating(error: BaseException) -> bool:
    # A lost lease is transient for the task as a whole, but never comes back to its holder.
    return is_transient(error) and not isinstance(error, LockError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How often and how long apart a step is repeated while its errors are transient.

    Waits double from ``first`` to ``longest`` and are spread by half of themselves, so that drains
    that failed together do not come back together. The defaults give a server about 40 seconds, and two minutes
    to one that hangs, so that each call ends by its own time-out only.

    :param attempts: calls in all.
    :param seconds: no call is begun later than this after the first.
    :param first: seconds before the second call.
    :param longest: most seconds between two calls.
    """

    attempts: int = 9
    seconds: float = 120.0
    first: float = 0.2
    longest: float = 15.0
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = random.random
    clock: Callable[[], float] = time.monotonic

    def call(self, step: Callable[[], Result], *, check: Callable[[], None] | None = None) -> Result:
        """Call ``step`` until it returns, fails for good, or patience ends.

        :param step: what is done; it must be safe to repeat.
        :param check: called before each attempt; what it raises ends the matter.
        :returns: what ``step`` returned.
        """
        end = self.clock() + self.seconds

        def is_over(state: RetryCallState) -> bool:
            return state.attempt_number >= self.attempts or self.clock() + self._wait(state) > end

        def attempt() -> Result:
            if check is not None:
                check()
            return step()

        retrying = Retrying(
            stop=is_over,
            retry=retry_if_exception(_is_worth_repeating),
            wait=self._wait,
            sleep=self.sleep,
            reraise=True,
        )
        return retrying(attempt)

    def _wait(self, state: RetryCallState) -> float:
        wait: float = min(self.longest, self.first * 2.0 ** (state.attempt_number - 1))
        return wait * (0.75 + 0.5 * self.random())
