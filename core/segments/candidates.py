"""What a compaction merges: the choice among what waits in a unit; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from export_queue.core.errors import InvalidArgument
from export_queue.core.locks import ROWS, member
from export_queue.core.queue import Range
from export_queue.core.segments.model import Segment

IDS_PER_SECOND = 1_000_000_000
"""An id tells milliseconds, times 10⁶."""


_LEAST = {"small_bytes": 1, "least": 2, "most_bytes": 1, "most_inputs": 2, "age_seconds": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Which units are worth a compaction, and what is merged there.

    :raises InvalidArgument: a number is out of bounds.
    """

    small_bytes: int = 8 << 20
    """A segment with fewer bytes of keys and values is small; others stay as they are."""
    least: int = 8
    """Fewer sources than these are left alone; all rows of a unit are one source."""
    most_bytes: int = 64 << 20
    """A merged segment has about so many bytes of keys and values at most; three times as many are in memory."""
    most_inputs: int = 10_000
    """So many segments of a unit are merged at once at most; the next compaction merges the others."""
    age_seconds: float = 0.0
    """Younger segments are left alone."""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
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
    row_bytes: int

    @property
    def entries(self) -> int:
        """Entries that its sources were written with, and rows, about."""
        return sum(one.entries for one in self.segments) + self.row_entries

    @property
    def bytes(self) -> int:
        """Bytes of keys and values, about."""
        return sum(one.bytes for one in self.segments) + self.row_bytes

    @property
    def names(self) -> list[tuple[int, int]]:
        """Transaction and number of each segment."""
        return [_id(one) for one in self.segments]

    @property
    def members(self) -> frozenset[str]:
        """Names of its sources, as locks have them."""
        names = {member(one.transaction, one.number) for one in self.segments}
        return frozenset(names | {ROWS} if self.rows else names)


def choose_candidates(
    unit: Range,
    segments: Sequence[Segment],
    *,
    row_entries: int,
    row_bytes: int,
    wanted: Candidates,
    now_ms: int,
    is_free: Callable[[str], bool] = lambda _: True,
) -> UnitPlan | None:
    """Choose what is merged in a unit; None where it is not worth it.

    :param segments: all that wait in the unit.
    :param row_entries: settled rows that wait in the unit.
    :param row_bytes: their bytes.
    :param now_ms: the store's clock.
    :param is_free: tells by the name that locks have of a source whether nobody else works on it.
    """
    rows = row_entries > 0 and row_bytes <= wanted.most_bytes and is_free(ROWS)
    size = row_bytes if rows else 0
    chosen: list[Segment] = []
    youngest = now_ms - int(wanted.age_seconds * 1000)
    for segment in sorted(segments, key=_id, reverse=True):
        is_small = segment.bytes < wanted.small_bytes and segment.transaction // (IDS_PER_SECOND // 1000) <= youngest
        fits = size + segment.bytes <= wanted.most_bytes and len(chosen) < wanted.most_inputs
        if is_small and fits and is_free(member(*_id(segment))):
            chosen.append(segment)
            size += segment.bytes
    if not chosen or len(chosen) + rows < wanted.least:
        return None
    return UnitPlan(
        unit=unit,
        segments=tuple(sorted(chosen, key=_id)),
        rows=rows,
        row_entries=row_entries if rows else 0,
        row_bytes=row_bytes if rows else 0,
    )


def _id(segment: Segment) -> tuple[int, int]:
    return segment.transaction, segment.number
