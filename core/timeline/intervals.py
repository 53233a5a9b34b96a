"""Intervals of buckets: an index of generations, a union, and the highest generation in each part of an interval."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator

from export_queue.core.timeline.model import Generation


class GenerationIndex:
    """Finds generations by their buckets.

    There is one sorted list for each power of two of the length. So the generations of a list that overlap an interval
    begin in it or shortly before.
    """

    def __init__(self, generations: Iterable[Generation] = ()) -> None:
        self._by_length: dict[int, list[Generation]] = {}
        for generation in sorted(generations):
            self._list_of(generation).append(generation)

    def add(self, generation: Generation) -> None:
        """Add a generation."""
        insort(self._list_of(generation), generation)

    def remove(self, generation: Generation) -> None:
        """Remove a generation."""
        found = self._list_of(generation)
        del found[bisect_left(found, generation)]

    def overlapping(self, first: int, end: int) -> Iterator[Generation]:
        """Yield the generations with buckets of ``[first, end)``."""
        for bits, found in self._by_length.items():
            begin = bisect_left(found, Generation(first - (1 << bits), -1, -1))
            for at in range(begin, bisect_left(found, Generation(end, -1, -1))):
                if found[at].end > first:
                    yield found[at]

    def _list_of(self, generation: Generation) -> list[Generation]:
        return self._by_length.setdefault((generation.end - generation.first).bit_length(), [])


class Cover:
    """A union of intervals of buckets."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []

    def add(self, first: int, end: int) -> None:
        """Add ``[first, end)``."""
        begin, stop = bisect_left(self._ends, first), bisect_right(self._firsts, end)
        if begin < stop:
            first, end = min(first, self._firsts[begin]), max(end, self._ends[stop - 1])
        self._firsts[begin:stop], self._ends[begin:stop] = [first], [end]

    def contains(self, first: int, end: int) -> bool:
        """Return whether all of ``[first, end)`` is covered."""
        at = bisect_right(self._firsts, first) - 1
        return at >= 0 and self._ends[at] >= end


def highest(generations: Iterable[Generation], first: int, end: int) -> Iterator[tuple[int, int, Generation]]:
    """Yield the parts of ``[first, end)`` with the highest generation of each: ascending, as long as possible."""
    waiting = sorted(generations, reverse=True)
    here: list[tuple[int, Generation]] = []
    """A heap of the generations that have begun, highest version first; some may have ended."""
    begun: tuple[int, Generation] | None = None
    while first < end:
        while waiting and waiting[-1].first <= first:
            heapq.heappush(here, (-waiting[-1].version, waiting.pop()))
        while here and here[0][1].end <= first:
            heapq.heappop(here)
        top = here[0][1] if here else None
        if begun is not None and begun[1] != top:
            yield begun[0], first, begun[1]
        if top is None:
            begun = None
        elif begun is None or begun[1] != top:
            begun = first, top
        first = min(waiting[-1].first if waiting else end, top.end if top else end, end)
    if begun is not None:
        yield begun[0], first, begun[1]
