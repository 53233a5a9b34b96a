"""Counts of the ends of this process's transactions."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the histogram of commit times, in seconds."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """A distribution of durations."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """Number in each class; the last class is above all bounds."""
    sum: float

    @property
    def count(self) -> int:
        """The total number."""
        return sum(self.counts)

    def cumulative(self) -> tuple[int, ...]:
        """Return the number of durations up to each bound, and at the end that of all."""
        return tuple(accumulate(self.counts))


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts at one moment. Labels are tuples."""

    commits: Mapping[tuple[str], int]
    """By kind."""
    refusals: Mapping[tuple[str, str], int]
    """By kind and name of the error."""
    aborts: Mapping[tuple[str], int]
    time_outs: Mapping[tuple[str], int]
    seconds: Mapping[str, Histogram]
    """Times of successful commits, by kind."""


class Counters:
    """Counts ends of transactions. It is thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._commits: Counter[tuple[str]] = Counter()
        self._refusals: Counter[tuple[str, str]] = Counter()
        self._aborts: Counter[tuple[str]] = Counter()
        self._time_outs: Counter[tuple[str]] = Counter()
        self._classes: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}

    def committed(self, kind: str, seconds: float) -> None:
        """Count a commit and its duration."""
        with self._lock:
            self._commits[kind,] += 1
            classes = self._classes.setdefault(kind, [0] * (len(BOUNDS) + 1))
            classes[bisect_left(BOUNDS, seconds)] += 1
            self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds

    def refused(self, kind: str, error_class: type[BaseException]) -> None:
        """Count a commit that was refused, for instance with a ``ConflictError``."""
        with self._lock:
            self._refusals[kind, error_class.__name__] += 1

    def aborted(self, kind: str) -> None:
        """Count a transaction that was aborted before its commit."""
        with self._lock:
            self._aborts[kind,] += 1

    def timed_out(self, kind: str) -> None:
        """Count a transaction whose deadline had passed."""
        with self._lock:
            self._time_outs[kind,] += 1

    def read(self) -> Counts:
        """Return the counts."""
        with self._lock:
            seconds = {
                kind: Histogram(BOUNDS, tuple(classes), self._seconds[kind]) for kind, classes in self._classes.items()
            }
            return Counts(dict(self._commits), dict(self._refusals), dict(self._aborts), dict(self._time_outs), seconds)
