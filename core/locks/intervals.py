"""Intervals that are asked many times which of them overlap another one; pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from operator import itemgetter
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Intervals(Generic[Item]):
    """Half-open intervals with an item each, sorted, under a tree of their highest ends.

    A search looks at few intervals beside those that it finds, however long some of the others are.

    :param entries: first, end and item of each.
    """

    def __init__(self, entries: Iterable[tuple[int, int, Item]]) -> None:
        ordered = sorted(entries, key=itemgetter(0))
        self._firsts = [first for first, _, _ in ordered]
        self._items = [item for _, _, item in ordered]
        self._size = 1 << max(len(ordered) - 1, 0).bit_length()
        # As a heap: the highest end below node n is the greater one of those below 2 n and 2 n + 1.
        self._highest = [0] * self._size + [end for _, end, _ in ordered]
        self._highest += [0] * (2 * self._size - len(self._highest))
        for node in range(self._size - 1, 0, -1):
            self._highest[node] = max(self._highest[2 * node], self._highest[2 * node + 1])

    def overlapping(self, first: int, end: int) -> list[Item]:
        """Find the items whose intervals have numbers in common with [first, end), in the order of the intervals."""
        before_end = bisect_left(self._firsts, end)
        found: list[Item] = []
        nodes = [(1, 0, self._size)]
        while nodes:
            node, at, width = nodes.pop()
            if at >= before_end or self._highest[node] <= first:
                continue
            if width == 1:
                found.append(self._items[at])
            else:
                half = width // 2
                nodes += [(2 * node + 1, at + half, half), (2 * node, at, half)]
        return found
