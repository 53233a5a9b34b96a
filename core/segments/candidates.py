"""What a compaction merges: the choice among what waits in a unit; pure.

Of entries at one place, which one transaction has added twice, the later source counts: a larger segment id, and rows
behind all segments. A merged segment has the largest id of all, so that nothing may be merged over what stays and came
later: the choice goes from the newest segment to older ones.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from export_queue.core.errors import InvalidArgument
from export_queue.core.queue import Range
from export_queue.core.segments.model import Segment

IDS_PER_SECOND = 1_000_000_000
"""An id tells milliseconds, times 10⁶."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Which units are worth a compaction, and what is merged there.

    :raises InvalidArgument: a number is out of bounds.
    """

    small_bytes: int = 8 << 20
    """A segment with fewer bytes of keys and values is small; others stay as they are."""
    least: int = 8
    """Fewer sources than these are left alone; all rows of a unit are one source."""
    most_bytes: int = 128 << 20
    """A merged segment has about so many bytes at most."""
    age_seconds: float = 0.0
    """Younger segments are left alone."""

    def __post_init__(self) -> None:
        for name, least in (("small_bytes", 1), ("least", 2), ("most_bytes", 1), ("age_seconds", 0)):
            if not getattr(self, name) >= least:
                raise InvalidArgument(f"{name}: expected at least {least}, found {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPlan:
    """What is merged in one unit."""

    unit: Range
    segments: tuple[Segment, ...]
    """In the order of their ids."""
    rows: bool
    """Whether its settled rows are merged, too."""
    row_entries: int
    """How many rows those are, about."""

    @property
    def entries(self) -> int:
        """Entries that its sources were written with, and rows, about."""
        return sum(one.entries for one in self.segments) + self.row_entries

    @property
    def bytes(self) -> int:
        """Bytes of the segments' keys and values."""
        return sum(one.bytes for one in self.segments)


def choose_candidates(
    unit: Range,
    segments: Sequence[Segment],
    *,
    row_entries: int,
    row_bytes: int,
    wanted: Candidates,
    now_ms: int,
    held: Set[tuple[int, int]] = frozenset(),
) -> UnitPlan | None:
    """Choose what is merged in a unit; None where it is not worth it.

    :param segments: all that wait in the unit.
    :param row_entries: settled rows that wait in the unit.
    :param row_bytes: their bytes.
    :param now_ms: the store's clock.
    :param held: transaction and number of segments that others work on.
    """
    rows = row_entries > 0 and row_bytes <= wanted.most_bytes
    size = row_bytes if rows else 0
    chosen: list[Segment] = []
    stays: list[Segment] = []
    youngest = now_ms - int(wanted.age_seconds * 1000)
    for segment in sorted(segments, key=_id, reverse=True):
        fits = segment.bytes < wanted.small_bytes and size + segment.bytes <= wanted.most_bytes
        is_old = segment.transaction // (IDS_PER_SECOND // 1000) <= youngest
        if fits and is_old and _id(segment) not in held and not any(_share_seqs(segment, one) for one in stays):
            chosen.append(segment)
            size += segment.bytes
        else:
            stays.append(segment)
    if not chosen or len(chosen) + rows < wanted.least:
        return None
    return UnitPlan(unit=unit, segments=tuple(reversed(chosen)), rows=rows, row_entries=row_entries if rows else 0)


def _id(segment: Segment) -> tuple[int, int]:
    return segment.transaction, segment.number


def _share_seqs(one: Segment, other: Segment) -> bool:
    return one.lowest_seq <= other.highest_seq and other.lowest_seq <= one.highest_seq
