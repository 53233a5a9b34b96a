"""Buckets of keys and ranges of buckets; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TYPE_CHECKING

import xxhash

from export_queue.core.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa

SEED = 42
"""The seed of Spark's ``xxhash64``, so that its native expression gives the same numbers (I8)."""


def hash_of(key: bytes) -> int:
    """Compute the hash of a key: XXH64 as a signed 64-bit number. It determines the bucket in every layout (I8)."""
    unsigned = xxhash.xxh64_intdigest(key, SEED)
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned


def bucket(key: bytes, buckets: int) -> int:
    """Compute the bucket of a key: its hash, positive modulo the buckets (I8).

    Source: Spark's ``pmod(xxhash64(key), n)``, which gives the same number natively.
    """
    return hash_of(key) % buckets


def hashes_of(keys: Iterable[bytes]) -> list[int]:
    """Compute the hashes of many keys; each modulo the number of buckets is the key's bucket."""
    digest, half, whole = xxhash.xxh64_intdigest, 1 << 63, 1 << 64
    return [(h - whole) if (h := digest(key, SEED)) >= half else h for key in keys]


def hash_column(keys: pa.Array) -> pa.Array:
    """Compute the hashes of a column of binary keys, as signed 64-bit numbers."""
    import pyarrow as pa

    digests = map(xxhash.xxh64_intdigest, keys.to_pylist(), repeat(SEED))
    return pa.array(digests, pa.uint64(), size=len(keys)).view(pa.int64())


def bucket_column(hashes: pa.Array, buckets: int) -> pa.Array:
    """Compute the buckets of a column of hashes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rests = pc.subtract(hashes, pc.multiply(pc.divide(hashes, buckets), buckets))  # division rounds towards 0
    return pc.if_else(pc.less(rests, 0), pc.add(rests, buckets), rests).cast(pa.int32())


def buckets_of(keys: Iterable[bytes], buckets: int) -> list[int]:
    """Compute the buckets of many keys."""
    return [h % buckets for h in hashes_of(keys)]


FIRST_LAYOUT = 1
"""Number of a queue's first layout; later ones count up."""


@dataclass(frozen=True, slots=True)
class Range:
    """A half-open range of buckets of one layout; ranges are ordered by layout."""

    first: int
    end: int
    layout: int = FIRST_LAYOUT

    def to_json(self) -> list[int]:
        """Return two integers, or three if the layout is not the first one."""
        return [self.first, self.end] if self.layout == FIRST_LAYOUT else [self.first, self.end, self.layout]

    def __lt__(self, other: Range) -> bool:
        return (self.layout, self.first, self.end) < (other.layout, other.first, other.end)

    def __str__(self) -> str:
        shown = f"[{self.first}, {self.end})"
        return shown if self.layout == FIRST_LAYOUT else f"{shown} of layout {self.layout}"


@dataclass(frozen=True, slots=True)
class Layout:
    """How the keys of a queue are divided: the number of buckets, and how many of them make one unit."""

    number: int
    buckets: int
    buckets_per_range: int

    def units(self) -> list[Range]:
        """List the units. The last one may be smaller."""
        return [self.unit_of(first) for first in range(0, self.buckets, self.buckets_per_range)]

    def unit_of(self, at: int) -> Range:
        """Find the unit of a bucket."""
        first = at // self.buckets_per_range * self.buckets_per_range
        return Range(first, min(first + self.buckets_per_range, self.buckets), self.number)

    def split(self, part: Range) -> list[Range]:
        """Split a range into units.

        :raises InvalidArgument: the range is not whole units, or lies outside.
        """
        first, end, size = part.first, part.end, self.buckets_per_range
        starts = first % size == 0
        ends = end == self.buckets or (end % size == 0 and end <= self.buckets)
        if not (0 <= first < end and starts and ends):
            raise InvalidArgument(
                f"range {part}: expected a run of whole units of {size} buckets "
                f"within [0, {self.buckets}), the last unit ending at {self.buckets}"
            )
        return [Range(unit, min(unit + size, end), self.number) for unit in range(first, end, size)]


def split(ranges: Iterable[Range | Sequence[int]], layouts: Sequence[Layout]) -> list[Range]:
    """Split ranges into units.

    :param ranges: each a Range or its integers.
    :param layouts: all layouts of a queue, the current one last.
    :raises InvalidArgument: a range is not whole units, lies outside or overlaps another; or its layout is unknown.
    """
    known = {layout.number: layout for layout in layouts}
    found: list[Range] = []
    for given in ranges:
        part = as_range(given)
        layout = known.get(part.layout)
        if layout is None:
            current = layouts[-1]
            raise InvalidArgument(
                f"range {part}: expected one of layout {' or '.join(map(str, known))}, found one of layout "
                f"{part.layout}, which the queue never had",
                hint=f"list the ranges anew: one of a later layout than the first names it, as in "
                f"[0, {min(current.buckets_per_range, current.buckets)}, {current.number}]",
            )
        found += layout.split(part)
    found.sort()
    for one, other in zip(found, found[1:], strict=False):
        if one == other:
            raise InvalidArgument(f"ranges overlap: unit {one} is given twice")
    return found


def as_range(given: Range | Sequence[int]) -> Range:
    """Make a range of its first bucket, its end and optionally its layout.

    :raises InvalidArgument: the value is not a range.
    """
    if isinstance(given, Range):
        return given
    if (
        not isinstance(given, Sequence)
        or isinstance(given, str | bytes)
        or len(given) not in (2, 3)
        or not all(type(edge) is int for edge in given)
    ):
        raise InvalidArgument(f"range: expected two integers such as [0, 101], found {given!r}")
    return Range(*given)


def join_ranges(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Sort ranges and join adjacent ones."""
    joined: list[Range] = []
    for part in sorted(ranges):
        if joined and joined[-1].layout == part.layout and joined[-1].end >= part.first:
            joined[-1] = replace(joined[-1], end=max(joined[-1].end, part.end))
        else:
            joined.append(part)
    return tuple(joined)
