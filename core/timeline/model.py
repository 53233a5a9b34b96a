"""The values that a timeline takes and returns. Each one is checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from export_queue.core.errors import InvalidArgument


class SegmentId(NamedTuple):
    """The name of a segment. It is never used again."""

    transaction: int
    """The transaction that published it."""
    number: int
    """Its number within the transaction."""

    def __str__(self) -> str:
        return f"{self.transaction}.{self.number}"


class Generation(NamedTuple):
    """One version of the entries in an interval of buckets. It hides lower versions in the buckets that it covers.

    Source: a time chunk and its version in Druid.
    """

    first: int
    end: int
    """The buckets are ``[first, end)``."""
    version: int

    def __str__(self) -> str:
        return f"version {self.version} of [{self.first}, {self.end})"


@dataclass(frozen=True, slots=True)
class AtomicGroup:
    """Segments of one generation that together replace other segments: the atomic update group of Druid.

    The members together hold the entries of the overshadowed segments. All members name the same group.

    :raises InvalidArgument: the group has no member, or an overshadowed number is not below all members.
    """

    members: frozenset[int]
    """Partition numbers."""
    overshadows: frozenset[int] = frozenset()
    """Partition numbers of older segments. They are below all members, so groups cannot hide each other in a circle."""
    lowest: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.members or min(self.members) < 0:
            raise InvalidArgument(
                f"atomic group: expected members of partition numbers 0 or higher, found {_shown(self.members)}"
            )
        object.__setattr__(self, "lowest", min(self.members))
        if self.overshadows and not 0 <= min(self.overshadows) <= max(self.overshadows) < self.lowest:
            raise InvalidArgument(
                f"atomic group {_shown(self.members)}: expected to overshadow partitions below {self.lowest}, "
                f"found {_shown(self.overshadows)}",
                hint="a segment gets its partition number after its inputs have theirs",
            )

    @classmethod
    def founding(cls, founders: int) -> AtomicGroup:
        """Make the group that founds a generation: partitions 0 to ``founders - 1``."""
        return cls(frozenset(range(founders)))

    def __str__(self) -> str:
        return _shown(self.members) + (f" overshadowing {_shown(self.overshadows)}" if self.overshadows else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSegment:
    """A published segment.

    :raises InvalidArgument: the fields contradict each other.
    """

    id: SegmentId
    generation: Generation
    partition: int
    """Its number in the generation. It is never used again."""
    group: AtomicGroup
    founders: int = 0
    """Size of the group that founded the generation, whose members are the first partitions. Every segment has it.

    0 if segments were appended where no generation existed. Such a generation replaces nothing."""

    def __post_init__(self) -> None:
        first, end, version = self.generation
        if not 0 <= first < end or version < 0:
            raise InvalidArgument(
                f"segment {self.id}: expected 0 ≤ first < end and a version of 0 or higher, found {self.generation}"
            )
        if self.partition not in self.group.members:
            raise InvalidArgument(
                f"segment {self.id}: expected an atomic group with its partition {self.partition}, found {self.group}"
            )
        if self.founders < 0:
            raise InvalidArgument(f"segment {self.id}: expected 0 or more founders, found {self.founders}")
        # a group with one founder is the founding group
        if self.group.lowest < self.founders and not (
            len(self.group.members) == self.founders == max(self.group.members) + 1 and not self.group.overshadows
        ):
            raise InvalidArgument(
                f"segment {self.id}: expected the founding group, which are the partitions 0 to {self.founders - 1} "
                f"and overshadow none, found {self.group}"
            )


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a segment in an interval of buckets."""

    segment: TimelineSegment
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Missing:
    """A group with missing members. It neither shows nor hides anything."""

    generation: Generation
    group: AtomicGroup
    partitions: tuple[int, ...]
    """The missing members."""


def _shown(numbers: frozenset[int]) -> str:
    few = sorted(numbers)[:10]
    return "{" + ", ".join(map(str, few)) + (", …" if len(numbers) > len(few) else "") + "}"
