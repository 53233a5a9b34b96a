"""Cutting claimed units into parts of about one size, and parts into tasks; pure.

Units differ: one may hold nearly all that waits, in a single bucket even. Work is therefore cut by what was measured.
A part never cuts a key, so that all entries of a key come in one order.
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
"""Bytes of keys and values that cost about as much as an entry itself."""
LEAST_WEIGHT = 20_000
"""What is lighter is not cut: a part costs some statements and calls of its own."""


@dataclass(frozen=True, slots=True)
class Block:
    """Neighbouring entries that were measured together, behind those of the block before."""

    bucket: int
    key: bytes | None
    """The last key; None stands for the end of the bucket."""
    weight: int

    def place(self) -> tuple[int, bool, bytes]:
        """Say where it ends, to sort by."""
        return self.bucket, self.key is None, self.key or b""

    @property
    def _end(self) -> Position | None:
        return None if self.key is None else Position(self.bucket, self.key, _HIGHEST_SEQ)


@dataclass(frozen=True, slots=True)
class Part:
    """What is drained in one go of a claimed unit: some of its buckets, or some of the keys of its bucket."""

    lease: Lease
    buckets: Range
    after: Position | None = None
    """Where it begins: behind this place; None for the beginning of its buckets."""
    until: Position | None = None
    """Where it ends: at this place; None for the end of its buckets."""

    @classmethod
    def whole(cls, lease: Lease) -> Part:
        """Take all of a unit."""
        return cls(lease, lease.range)

    def trim(self, entries: Entries) -> Entries:
        """Leave out what lies behind the part; entries before the end stay, and the last chunk is told as one."""
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
    """Choose what may be read: the segments of some buckets that are locked, not all that a snapshot sees.

    A compaction may hold others.

    :param within: buckets of the lease.
    """
    return [one for one in by_range(segments, within) if lease.covers(member(one.transaction, one.number))]


def weight(entries: int, size: int) -> int:
    """Say how much work some entries are: about the number of small entries that cost as much.

    :param size: bytes of their keys and values.
    """
    return entries + size // _BYTES_OF_ENTRY


def cut(lease: Lease, blocks: Sequence[Block], share: float) -> list[tuple[int, Part]]:
    """Cut a unit where about a share is full.

    :param lease: the claim on the unit.
    :param blocks: what waits in the unit, in its order; one that is heavier than a share makes a part of its own.
    :param share: weight of a part.
    :returns: parts that cover the unit, in its order, each with its weight.
    """
    found: list[tuple[int, Part]] = []
    first, after, gathered = lease.range.first, None, 0
    # Rows and files may be measured up to the same place.
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
    """Give parts to tasks so that all have about as much to do: the heaviest first, each to whom has least.

    :param parts: parts with their weights.
    :param tasks: the most tasks.
    :returns: the parts of each task, in the order of the queue; no task is without one.
    """
    load = [(0, task) for task in range(min(tasks, len(parts)))]
    given: list[list[Part]] = [[] for _ in load]
    for weight, part in sorted(parts, key=lambda one: -one[0]):
        least, task = heapq.heappop(load)
        given[task].append(part)
        heapq.heappush(load, (least + weight, task))
    return [sorted(one, key=lambda part: (part.buckets.first, part.after is not None, part.after)) for one in given]
