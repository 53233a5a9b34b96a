"""What the timeline knows of segments, and what it answers: values, each valid in itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from export_queue.core.errors import InvalidArgument

State = Literal["visible", "hidden", "retired", "waiting"]


class SegmentId(NamedTuple):
    """The name of a segment, which no other segment ever has."""

    transaction: int
    """The transaction that published it."""
    number: int
    """Its number among those of the transaction."""

    def __str__(self) -> str:
        return f"{self.transaction}.{self.number}"


class Generation(NamedTuple):
    """A version of the entries of a run of buckets; of a higher one, what it covers of lower ones is hidden.

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
    """Segments of one generation that replace others all together: Druid's atomic update group.

    Together the members hold what the overshadowed segments hold together. All members name the same group.

    :raises InvalidArgument: there is no member, or an overshadowed number is not below all members.
    """

    members: frozenset[int]
    """Partition numbers."""
    overshadows: frozenset[int] = frozenset()
    """Partition numbers of segments that existed before all members: so groups never hide each other in a circle."""
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
                hint="a segment gets its partition number when its inputs have theirs",
            )

    @classmethod
    def of(cls, *members: int, overshadows: frozenset[int] = frozenset()) -> AtomicGroup:
        """Make the group of some partition numbers."""
        return cls(frozenset(members), overshadows)

    @classmethod
    def founding(cls, founders: int) -> AtomicGroup:
        """Make the group that founds a generation: its first partitions."""
        return cls(frozenset(range(founders)))

    def __str__(self) -> str:
        return _shown(self.members) + (f" overshadowing {_shown(self.overshadows)}" if self.overshadows else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSegment:
    """A published segment, as far as the timeline is concerned.

    :raises InvalidArgument: its fields contradict each other.
    """

    id: SegmentId
    generation: Generation
    partition: int
    """Its number in the generation."""
    group: AtomicGroup
    founders: int = 0
    """Size of the group that founded the generation, in every segment of it: its members are the first partitions.

    0 where nobody did, since segments were appended where nothing was: such a generation replaces nothing."""
    retired: bool = False
    """Whether everything in it is exported: nobody reads it any more, and it goes on hiding what it hid."""

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
        # where one of the group's partitions is a founder's, the group is the founders' one
        if self.group.lowest < self.founders and not (
            len(self.group.members) == self.founders == max(self.group.members) + 1 and not self.group.overshadows
        ):
            raise InvalidArgument(
                f"segment {self.id}: expected the founding group, which are the partitions 0 to {self.founders - 1} "
                f"and overshadow none, found {self.group}"
            )

    @property
    def is_founding(self) -> bool:
        """Whether it belongs to the group that founded the generation."""
        return self.partition < self.founders


@dataclass(frozen=True, slots=True)
class Piece:
    """A segment in some of its buckets."""

    segment: TimelineSegment
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a segment that has one state."""

    segment: TimelineSegment
    first: int
    end: int
    state: State


@dataclass(frozen=True, slots=True)
class Missing:
    """A group that neither shows nor hides anything, because members are missing."""

    generation: Generation
    group: AtomicGroup
    partitions: tuple[int, ...]
    """The missing members."""


def _shown(numbers: frozenset[int]) -> str:
    few = sorted(numbers)[:10]
    return "{" + ", ".join(map(str, few)) + (", …" if len(numbers) > len(few) else "") + "}"
