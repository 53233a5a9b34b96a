"""Variants of which each run takes some: all together cost too much, and after some runs all have come."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

from tests.support.shared import VARIABLE

Choice = TypeVar("Choice")
ALL = "EXPORT_QUEUE_BATTERY_DEATHS"


def drawn(choices: Sequence[Choice], number: int = 1, *, about: str) -> list[Choice]:
    """Draw some: anew in each run, the same ones in all processes of a run.

    ``EXPORT_QUEUE_SEED`` repeats what was drawn, and ``EXPORT_QUEUE_BATTERY_DEATHS=all`` takes all.

    :param about: tells draws of one run apart.
    """
    if os.environ.get(ALL) == "all":
        return list(choices)
    seed = os.environ.get("EXPORT_QUEUE_SEED") or os.environ.get(VARIABLE)
    return random.Random(f"{seed} {about}").sample(list(choices), number)
