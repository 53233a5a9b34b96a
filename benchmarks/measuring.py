"""Taking turns: contestants run in alternating order, repeat after repeat, and medians are compared."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One ratio against a baseline of the same run."""

    bench: str
    case: str
    ratio: float
    better: Literal["lower", "higher"]
    baseline: str
    repeats: int
    goal: float | None = None
    note: str = ""
    """For people: absolute numbers, which differ from machine to machine."""

    @property
    def ok(self) -> bool | None:
        """Whether the goal is reached; None without one."""
        if self.goal is None:
            return None
        return self.ratio >= self.goal if self.better == "higher" else self.ratio <= self.goal

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": round(self.ratio, 3), "ok": self.ok}


class Watch:
    """Measures the part of a contestant's work that counts."""

    seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started


Contestant = Callable[[Watch], None]


def alternate(contestants: Mapping[str, Contestant], *, repeats: int, warm_up: bool = True) -> dict[str, list[float]]:
    """Let each contestant run once a repeat, in another order each time.

    :param contestants: by name; each measures itself with the watch it is given.
    :param repeats: how often.
    :param warm_up: whether a first round does not count.
    :returns: seconds of each repeat, by name.
    """
    order = list(contestants)
    shuffle = random.Random(0).shuffle
    seconds: dict[str, list[float]] = {name: [] for name in order}
    for repeat in range(-1 if warm_up else 0, repeats):
        shuffle(order)
        for name in order:
            watch = Watch()
            contestants[name](watch)
            if repeat >= 0:
                seconds[name].append(watch.seconds)
    return seconds


def speed(seconds: Mapping[str, list[float]], name: str, baseline: str) -> float:
    """Say how many times the baseline's speed a contestant has: the median over the repeats, each within itself."""
    pairs = zip(seconds[name], seconds[baseline], strict=True)
    return statistics.median(base / own for own, base in pairs)


def rate(seconds: Mapping[str, list[float]], name: str, things: int, of: str) -> str:
    """Write a median rate for people."""
    return f"{things / statistics.median(seconds[name]) / 1000:,.0f} k {of}/s"
