"""Running a function in a transaction until it commits."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from export_queue.core.errors import InvalidArgument, StoreError, TransactionError

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """When a function is run again, and after what pause: a random part of one that doubles each time.

    ``Retry()`` is for conflicts that pass, ``Retry(attempts=None, seconds=60)`` for work that must get through,
    ``Retry(attempts=1)`` for none.
    """

    attempts: int | None = 10
    """How often the function is run at most; None for any number."""
    seconds: float | None = None
    """No new attempt begins so long after the first one."""
    first_pause: float = 0.005
    """Seconds; the longest first pause."""
    longest_pause: float = 1.0

    def __post_init__(self) -> None:
        if self.attempts is not None and self.attempts < 1:
            raise InvalidArgument(f"attempts: expected at least 1, found {self.attempts}")
        for name in ("seconds", "first_pause", "longest_pause"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidArgument(f"{name}: expected more than 0, found {value}")
        if self.attempts is None and self.seconds is None:
            raise InvalidArgument("retry: expected a bound, found neither attempts nor seconds")

    def run(self, attempt: Callable[[], Result]) -> Result:
        """Run a function again, from its start, while its transaction ends in a transient error.

        The function runs again, never its writes: what it read may have changed.

        :param attempt: begins a transaction, works and commits.
        :returns: what the function returned; the last error is raised.
        """
        # A library's loop would cost as much as the commit's own work on this side.
        begun = time.monotonic()
        for number in itertools.count(1):
            try:
                return attempt()
            # A sink's or a lock's error belongs to the function: only the transaction's own are known to have left
            # nothing.
            except (TransactionError, StoreError) as error:
                if not error.transient or self._is_last(number, time.monotonic() - begun):
                    raise
            time.sleep(random.uniform(0, min(self.first_pause * 2 ** min(number - 1, 30), self.longest_pause)))
        raise AssertionError("unreachable")

    def _is_last(self, number: int, seconds: float) -> bool:
        return number == self.attempts or (self.seconds is not None and seconds >= self.seconds)
