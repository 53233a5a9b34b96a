"""The program of a drain whose clock stands still until a file says how many seconds have passed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Self

from export_queue.core.drain import Deadline
from export_queue.core.spark import drain_driver, driver

CLOCK = Path(os.environ["CLOCK"])
"""Is there once time has passed: with the seconds since the drain began."""


def passed() -> float:
    return float(CLOCK.read_text()) if CLOCK.exists() else 0.0


class StandingDeadline(Deadline):
    @classmethod
    def after(cls, time_limit: float | None, *, clock: object = None) -> Self:
        return super().after(time_limit, clock=passed)


if __name__ == "__main__":
    drain_driver.Deadline = StandingDeadline  # type: ignore[misc]
    driver.main(sys.argv[1:])
