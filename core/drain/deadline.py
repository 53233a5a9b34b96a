"""The deadline of a drain: after it, the drain delivers nothing more and ends in order."""

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
    """A moment of this process's clock; infinite by default.

    :param time_limit: seconds that the drain may last; None for no limit.
    :param until: value of ``clock()`` at which the time is over.
    :param clock: returns seconds; only differences count.
    """

    time_limit: float | None = None
    until: float = math.inf
    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)

    @classmethod
    def after(cls, time_limit: float | None, *, clock: Callable[[], float] = time.monotonic) -> Self:
        """Start a drain's time limit now."""
        return cls(time_limit, math.inf if time_limit is None else clock() + time_limit, clock)

    def left(self) -> float:
        """Return the seconds that are left; 0 once the time is over."""
        return max(0.0, self.until - self.clock())

    def check(self) -> None:
        """Check that there is time left.

        :raises DrainTimedOut: the time is over.
        """
        if not self.left():
            raise self.error()

    def error(self) -> DrainTimedOut:
        assert self.time_limit is not None
        return DrainTimedOut(f"the drain had {self.time_limit:g} seconds, which are over")

    def bounded(self, retry: Retry) -> Retry:
        """Return a retry whose pauses end at the deadline, with the deadline's error."""

        def pause(seconds: float) -> None:
            retry.sleep(min(seconds, self.left()))
            self.check()

        return retry if self.time_limit is None else replace(retry, sleep=pause)
