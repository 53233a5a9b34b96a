"""A clock that goes on in steps, with glitches forward and back."""

from __future__ import annotations

import random
from collections.abc import Sequence

MINUTE, HOUR, DAY = 60_000, 3_600_000, 24 * 3_600_000


class SteppingClock:
    """Milliseconds by which a clock goes before or behind the true one.

    Ids never go back: only a clock that goes beyond all that it has shown before moves them. So most steps go on from
    the last one, and a glitch is over with the next step.

    :param steps: how far a step goes at most.
    """

    def __init__(self, chance: random.Random, steps: Sequence[int]) -> None:
        self._chance, self._steps = chance, steps
        self._base = 0
        self.highest = 0
        """The most that it has shown so far."""

    def step(self) -> int:
        """Take the next step."""
        size = self._chance.randrange(self._chance.choice(self._steps))
        match self._chance.choice(("on", "on", "on", "on", "on", "on", "back", "forward")):
            case "on":
                self._base += size
                offset = self._base
            case "back":
                offset = self._base - 2 * size
            case _:
                offset = self._base + 2 * size
        self.highest = max(self.highest, offset)
        return offset
