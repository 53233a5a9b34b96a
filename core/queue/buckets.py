"""Buckets of keys and ranges of buckets; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import xxhash

from export_queue.core.errors import InvalidArgument

SEED = 42
"""Spark's seed of ``xxhash64``, so that its native expression gives the same numbers (I8)."""


def hash_of(key: bytes) -> int:
    """Compute the hash of a key: XXH64 as a signed 64-bit number, which tells its bucket in every layout (I8)."""
    unsigned = xxhash.xxh64_intdigest(key, SEED)
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned


def bucket(key: bytes, buckets: int) -> int:
    """Compute the bucket of a key: its hash, positive modulo the buckets (I8).

    Source: Spark's ``pmod(xxhash64(key), n)``, which gives the same number natively.
    """
    return hash_of(key) % buckets


def buckets_of(keys: Iterable[bytes], buckets: int) -> list[int]:
    """Compute the buckets of many keys."""
    digest, half, whole = xxhash.xxh64_intdigest, 1 << 63, 1 << 64
    return [((h - whole) if (h := digest(key, SEED)) >= half else h) % buckets for key in keys]


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """A half-open run of buckets."""

    first: int
    end: int

    def to_json(self) -> list[int]:
        """Return two integers."""
        return [self.first, self.end]

    def __str__(self) -> str:
        return f"[{self.first}, {self.end})"


def units_of(buckets: int, buckets_per_range: int) -> list[Range]:
    """List the units of a layout; the last one may be smaller."""
    return [Range(first, min(first + buckets_per_range, buckets)) for first in range(0, buckets, buckets_per_range)]


def split(ranges: Iterable[Range | Sequence[int]], buckets: int, buckets_per_range: int) -> list[Range]:
    """Cut ranges into units.

    :param ranges: each a Range or two integers, a run of whole units.
    :raises InvalidArgument: a range is not whole units, lies outside, or two overlap.
    """
    found: list[Range] = []
    for given in ranges:
        part = as_range(given)
        first, end = part.first, part.end
        starts = first % buckets_per_range == 0
        ends = end == buckets or (end % buckets_per_range == 0 and end <= buckets)
        if not (0 <= first < end and starts and ends):
            raise InvalidArgument(
                f"range [{first}, {end}): expected a run of whole units of {buckets_per_range} buckets "
                f"within [0, {buckets}), the last unit ending at {buckets}"
            )
        found += [Range(u, min(u + buckets_per_range, end)) for u in range(first, end, buckets_per_range)]
    found.sort()
    for one, other in zip(found, found[1:], strict=False):
        if one == other:
            raise InvalidArgument(f"ranges overlap: unit {one} is given twice")
    return found


def as_range(given: Range | Sequence[int]) -> Range:
    """Return a range of two integers, or of a range itself.

    :raises InvalidArgument: it is neither.
    """
    if isinstance(given, Range):
        return given
    if (
        not isinstance(given, Sequence)
        or isinstance(given, str | bytes)
        or len(given) != 2
        or not all(type(edge) is int for edge in given)
    ):
        raise InvalidArgument(f"range: expected two integers such as [0, 101], found {given!r}")
    return Range(given[0], given[1])


def join_ranges(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Sort ranges and join neighbours."""
    joined: list[Range] = []
    for part in sorted(ranges):
        if joined and joined[-1].end >= part.first:
            joined[-1] = Range(joined[-1].first, max(joined[-1].end, part.end))
        else:
            joined.append(part)
    return tuple(joined)
