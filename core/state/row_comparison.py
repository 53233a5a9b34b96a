"""The difference between a state and sorted rows, for mirrors by Spark."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from typing import Protocol

from export_queue.core.queue import Range
from export_queue.core.sources import Row
from export_queue.core.state.mirror_report import KINDS, SAMPLES, Found
from export_queue.core.state.reading import StateContent

_Key = tuple[int, bytes]
"""Bucket and key."""
_AT_ONCE = 10_000


class SortedRecords(Protocol):
    """Records of a data set in the order of bucket and key."""

    def between(self, after: _Key, last: _Key) -> Iterator[Row]:
        """Yield the records after one position and up to another one; each call begins where the last one ended."""


@dataclass(slots=True)
class Comparison:
    """Compares a data set with the state, page by page.

    :param start: the encoded scope.
    """

    content: StateContent
    now: SortedRecords
    start: bytes
    found: Found = field(default_factory=Found)

    def differences(self, within: Range) -> Iterator[list[Row]]:
        """Yield the entries that make the state equal to the data set, in their order, in blocks of bounded size.

        :param within: the buckets to compare.
        """
        at: _Key = (within.first, b"")
        for page in self.content.pages(within):
            if page:
                keys = list(zip(page.buckets, page.keys, strict=True))
                yield from self._compare_up_to(at, keys[-1], keys, page.values)
                at = keys[-1]
        yield from self._compare_up_to(at, (within.end, b""), (), ())

    def _compare_up_to(
        self, at: _Key, end: _Key, keys: Sequence[_Key], values: Sequence[bytes | None]
    ) -> Iterator[list[Row]]:
        """Compare a page of the state with the records between two positions, which may be very many more."""
        found = self.now.between(at, end)
        first, is_last = 0, False
        while not is_last:
            block = list(islice(found, _AT_ONCE))
            is_last = len(block) < _AT_ONCE
            upto = len(keys) if is_last else bisect_right(keys, block[-1][:2])
            part = zip(keys[first:upto], values[first:upto], strict=True)
            before = {key: value for key, value in part if value is not None and key[1].startswith(self.start)}
            yield self._compare(before, {row[:2]: row[3] for row in block})
            first = upto

    def _compare(self, before: Mapping[_Key, bytes], now: Mapping[_Key, bytes | None]) -> list[Row]:
        new, deleted = now.keys() - before.keys(), before.keys() - now.keys()
        changed = {key for key, _ in now.items() - before.items()} - new
        self.found.counts["unchanged"] += len(now) - len(new) - len(changed)
        for kind, keys in zip(KINDS, (new, changed, deleted), strict=True):
            self.found.counts[kind] += len(keys)
            samples = self.found.samples[kind]
            if keys and len(samples) < SAMPLES:
                samples += nsmallest(SAMPLES - len(samples), (key for _, key in keys))
        return [(*key, 0, now.get(key)) for key in sorted(new | changed | deleted)]
