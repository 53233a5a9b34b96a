"""Variants of which each run takes some: all together cost too much, and after some runs all have come."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterable, Sequence
from typing import TypeVar

from tests.support.shared import VARIABLE

Choice = TypeVar("Choice")
ALL = "EXPORT_QUEUE_DRAW"


def drawn(choices: Sequence[Choice], number: int = 1, *, about: str) -> list[Choice]:
    """Draw some: anew in each run, the same ones in all processes of a run.

    ``EXPORT_QUEUE_SEED`` repeats what was drawn, and ``EXPORT_QUEUE_DRAW=all`` takes all.

    :param about: tells draws of one run apart.
    """
    if takes_all():
        return list(choices)
    seed = os.environ.get("EXPORT_QUEUE_SEED") or os.environ.get(VARIABLE)
    return random.Random(f"{seed} {about}").sample(list(choices), number)


def left_for_later(groups: Iterable[tuple[str, Sequence[Choice]]], *, share: int) -> list[Choice]:
    """Draw one of some choices from each group, at least one, and return the others.

    :param groups: a name for each group, and its choices.
    :param share: of how many choices one is drawn.
    """
    left = []
    for name, choices in groups:
        kept = drawn(range(len(choices)), math.ceil(len(choices) / share), about=name)
        left += [choice for index, choice in enumerate(choices) if index not in kept]
    return left


def takes_all() -> bool:
    """Whether this run takes all variants."""
    return os.environ.get(ALL) == "all"
