"""The deadline of a drain: a moment after which it brings nothing more, and ends in order."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

from export_queue.core.errors import DrainTimedOut
from export_queue.core.retry import Retry


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of this process's clock; without one, a drain may last for any time.

    :param time_limit: how many seconds the drain may last; None for any time.
    :param until: ``clock()`` at which they are over.
    :param clock: tells seconds; only differences count.
    """

    time_limit: float | None = None
    until: float = math.inf
    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)

    @classmethod
    def after(cls, time_limit: float | None, *, clock: Callable[[], float] = time.monotonic) -> Self:
        """Count a drain's time limit from now on."""
        return cls(time_limit, math.inf if time_limit is None else clock() + time_limit, clock)

    def left(self) -> float:
        """Tell how many seconds are left; 0 once the time is over."""
        return max(0.0, self.until - self.clock())

    def check(self) -> None:
        """Look whether there is time left.

        :raises DrainTimedOut: there is none.
        """
        if not self.left():
            raise self.error()

    def error(self) -> DrainTimedOut:
        """Make the error that ends a drain whose time is over."""
        assert self.time_limit is not None
        return DrainTimedOut(f"the drain had {self.time_limit:g} seconds, which are over")

    def bounded(self, retry: Retry) -> Retry:
        """Let the pauses of a retry end by the deadline: one that would last longer ends then, in the deadline's error.

        :param retry: how often, and how long apart, a step of the drain is repeated.
        """

        def pause(seconds: float) -> None:
            retry.sleep(min(seconds, self.left()))
            self.check()

        return retry if self.time_limit is None else replace(retry, sleep=pause)
