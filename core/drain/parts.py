"""Cutting claimed units into parts of similar size, and distributing parts over tasks; pure.

Units differ in size: nearly all pending entries may be in one unit, or even in one bucket. Work is therefore cut by
measured size. A part never splits a key, so that all entries of a key are delivered in order.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from export_queue.core.locks import Lease, member
from export_queue.core.queue import Entries, Position, Range
from export_queue.core.segments import Segment, by_range

_HIGHEST_SEQ = (1 << 63) - 1
_BYTES_OF_ENTRY = 200
"""Bytes of keys and values that cost about as much as one entry."""
LEAST_WEIGHT = 20_000
"""Minimum weight of a part, because each part costs some statements and calls."""


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive entries that were measured together; they follow the entries of the previous block."""

    bucket: int
    key: bytes | None
    """The last key; None for the end of the bucket."""
    weight: int

    def place(self) -> tuple[int, bool, bytes]:
        """Return where the block ends, for sorting."""
        return self.bucket, self.key is None, self.key or b""

    @property
    def _end(self) -> Position | None:
        return None if self.key is None else Position(self.bucket, self.key, _HIGHEST_SEQ)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a claimed unit: some of its buckets, or some of the keys of a bucket."""

    lease: Lease
    buckets: Range
    after: Position | None = None
    """The part begins after this position; None for the beginning of its buckets."""
    until: Position | None = None
    """The part ends at this position; None for the end of its buckets."""

    @classmethod
    def whole(cls, lease: Lease) -> Part:
        return cls(lease, lease.range)

    def trim(self, entries: Entries) -> Entries:
        """Remove entries after the end of the part; mark the chunk as the last one if there are any."""
        if self.until is None or not entries:
            return entries
        last = len(entries) - 1
        if entries.position(last) < self.until:
            return entries
        end = bisect_right(range(len(entries)), self.until, key=entries.position)
        return Entries(
            entries.buckets[:end], entries.keys[:end], entries.seqs[:end], entries.values[:end], is_last=True
        )


def locked(segments: Sequence[Segment], lease: Lease, within: Range) -> list[Segment]:
    """Return the segments that a lease covers; a compaction may hold others that the snapshot sees.

    :param within: buckets of the lease.
    """
    return [one for one in by_range(segments, within) if lease.covers(member(one.transaction, one.number))]


def weight(entries: int, size: int) -> int:
    """Return the cost of some entries, as a number of small entries.

    :param size: bytes of their keys and values.
    """
    return entries + size // _BYTES_OF_ENTRY


def cut(lease: Lease, blocks: Sequence[Block], share: float) -> list[tuple[int, Part]]:
    """Cut a unit into parts of about equal weight.

    :param lease: the claim on the unit.
    :param blocks: the pending entries of the unit, in order. A block heavier than a share becomes its own part.
    :param share: weight of a part.
    :returns: parts that cover the unit, in order, each with its weight.
    """
    found: list[tuple[int, Part]] = []
    first, after, gathered = lease.range.first, None, 0
    # rows and files may be measured up to the same position
    joined = [replace(block, weight=sum(one.weight for one in (block, *rest))) for block, *rest in _by_place(blocks)]
    for block, follows in pairwise(joined):
        gathered += block.weight
        if follows.weight and gathered + follows.weight > share:
            found.append(
                (gathered, Part(lease, replace(lease.range, first=first, end=block.bucket + 1), after, block._end))
            )
            first, after, gathered = (block.bucket + 1, None, 0) if block.key is None else (block.bucket, block._end, 0)
    gathered += joined[-1].weight if joined else 0
    return [*found, (gathered, Part(lease, replace(lease.range, first=first), after))]


def _by_place(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    return (list(group) for _, group in groupby(blocks, key=Block.place))


def spread(parts: Sequence[tuple[int, Part]], tasks: int) -> list[list[Part]]:
    """Distribute parts over tasks evenly: the heaviest first, each to the task with the least work.

    :param parts: parts with their weights.
    :param tasks: maximum number of tasks.
    :returns: the parts of each task, in the order of the queue; every task has one.
    """
    load = [(0, task) for task in range(min(tasks, len(parts)))]
    given: list[list[Part]] = [[] for _ in load]
    for weight, part in sorted(parts, key=lambda one: -one[0]):
        least, task = heapq.heappop(load)
        given[task].append(part)
        heapq.heappush(load, (least + weight, task))
    return [sorted(one, key=lambda part: (part.buckets.first, part.after is not None, part.after)) for one in given]
