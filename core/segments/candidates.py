"""What a compaction merges: the choice among what is pending in a unit; pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter

from export_queue.core.errors import InvalidArgument
from export_queue.core.locks import ROWS, member
from export_queue.core.queue import Range
from export_queue.core.segments.model import Segment

_IDS_PER_MS = 1_000_000

_LEAST = {"small_bytes": 1, "least": 2, "most_bytes": 1, "most_inputs": 2, "age_seconds": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Which units are worth a compaction, and what it merges there.

    :raises InvalidArgument: a number is out of bounds.
    """

    small_bytes: int = 8 << 20
    """A segment with fewer bytes of keys and values is small. Others stay as they are."""
    least: int = 8
    """Minimum number of sources in a unit; all its rows are one source."""
    most_bytes: int = 64 << 20
    """Approximate maximum of keys and values in a merged segment. Three times as much is in memory."""
    most_inputs: int = 10_000
    """Maximum number of segments that one compaction merges per unit. The next compaction merges others."""
    age_seconds: float = 0.0
    """Younger segments are left alone."""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if not getattr(self, name) >= least:
                raise InvalidArgument(f"{name}: expected at least {least}, found {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class UnitPlan:
    """What is replaced in one unit."""

    unit: Range
    segments: tuple[Segment, ...]
    """In the order of their ids."""
    row_entries: int = 0
    """Approximate number of its settled rows; 0 if they are not replaced."""
    row_bytes: int = 0
    is_whole: bool = False
    """Whether it is everything settled in the unit, so that nothing older is elsewhere."""

    @property
    def entries(self) -> int:
        """Approximate number of entries, including drained ones."""
        return sum(one.entries for one in self.segments) + self.row_entries

    @property
    def bytes(self) -> int:
        """Approximate size of keys and values."""
        return sum(one.bytes for one in self.segments) + self.row_bytes

    @property
    def names(self) -> list[tuple[int, int]]:
        """Transaction and number of each segment."""
        return [one.key for one in self.segments]

    @property
    def members(self) -> frozenset[str]:
        """Names of its sources in locks."""
        names = {member(*one.key) for one in self.segments}
        return frozenset(names | {ROWS} if self.row_entries else names)


def choose_candidates(
    pending: UnitPlan, *, wanted: Candidates, now_ms: int, is_free: Callable[[str], bool] = lambda _: True
) -> UnitPlan | None:
    """Choose what a compaction merges in a unit; None if it is not worth it.

    :param pending: everything that is pending in the unit.
    :param now_ms: the store's clock.
    :param is_free: returns whether nobody else works on a source, by its name in locks.
    """
    rows = pending.row_entries > 0 and pending.row_bytes <= wanted.most_bytes and is_free(ROWS)
    size = pending.row_bytes if rows else 0
    chosen: list[Segment] = []
    youngest = now_ms - int(wanted.age_seconds * 1000)
    for segment in sorted(pending.segments, key=attrgetter("key"), reverse=True):
        is_small = segment.bytes < wanted.small_bytes and segment.transaction // _IDS_PER_MS <= youngest
        fits = size + segment.bytes <= wanted.most_bytes and len(chosen) < wanted.most_inputs
        if is_small and fits and is_free(member(*segment.key)):
            chosen.append(segment)
            size += segment.bytes
    if not chosen or len(chosen) + rows < wanted.least:
        return None
    segments = tuple(sorted(chosen, key=attrgetter("key")))
    return replace(pending, segments=segments) if rows else UnitPlan(pending.unit, segments)


_WHOLE_SHARE = 5
"""A state's unit is merged whole if at least one part in so many is small. So an entry is rewritten some ten times."""
_WHOLE_SIZE = 4
"""Maximum size of a unit that is merged whole, as a multiple of the size of a merged segment."""


def choose_of_state(
    pending: UnitPlan, *, wanted: Candidates, now_ms: int, is_free: Callable[[str], bool] = lambda _: True
) -> UnitPlan | None:
    """Choose what a compaction merges in a unit of a state: sometimes everything, so that large segments shrink, too.

    The parameters are those of :func:`choose_candidates`.
    """
    chosen = choose_candidates(pending, wanted=wanted, now_ms=now_ms, is_free=is_free)
    if chosen is None or pending.bytes > min(_WHOLE_SHARE * chosen.bytes, _WHOLE_SIZE * wanted.most_bytes):
        return chosen
    return replace(pending, is_whole=True) if all(map(is_free, pending.members)) else chosen
