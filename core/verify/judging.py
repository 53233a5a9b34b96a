"""Whether a record of a sink is what it should be, and why not (pure).

Everything is decided from what is read in this order: the content of the queue at a settled cut; a snapshot; the
entries that were pending in it, and the dead letters; the record; the sink's floor; a new id of the store. So:

* An entry up to the cut that is neither pending nor dead was acknowledged before the record was read. The record has
  its rank, or a higher one (I7, I9).
* A rank above the cut may be of an entry that was committed since. One above the new id is of no entry at all.
* A tombstone at or below the floor may have been swept.
* An entry of a first load stands for an older one of its key, whose own sequence it does not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Difference = Literal["missing", "extra", "different", "stale", "ahead"]
REPAIRABLE: frozenset[str] = frozenset(("missing", "extra", "different", "stale"))
"""Differences that the record's own rank, or a tombstone, ends."""
Verdict = Literal["same", "missing", "extra", "different", "stale", "ahead", "dead", "queued", "younger"]


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a record."""

    rank: int
    """2·seq, and 1 more for a put; -1 for a record that does not exist, or has no rank."""
    digest: bytes | None
    """Digest of the document; None if there is none."""


ABSENT = Version(-1, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """The first loads of both sides, as sequences; 0 if there was none."""

    of_reader: int = 0
    """Sequence of the entries of the reader's last first load: of what was committed before it, one for each key."""
    of_source: int = 0
    """The same of the source. What its entries stand for has a lower sequence, which is not known."""
    began: int = 0
    """When the reader began, or its sink last lost its data: the sink may lack tombstones of older entries."""

    def stand_for(self, expected: Version, found: Version) -> bool:
        """Return whether a rank that is not the expected one may be of the same entry, because of a first load."""
        if 0 < self.of_reader == found.rank >> 1 and expected.rank < found.rank:
            return True
        return self.is_unknown(expected.rank) and 0 <= found.rank < expected.rank

    def is_unknown(self, rank: int) -> bool:
        """Return whether the source does not know the own sequence of an entry."""
        return 0 < self.of_source == rank >> 1


NO_LOADS = Loads()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """All that is known about one record."""

    expected: Version | None
    """What the latest entry up to the cut makes of the record; None if no entry names it."""
    found: Version
    expires: bool = False
    """Whether the expected document has a time to live, and may be gone."""
    cut: int
    newest: int
    """An id that the store drew after the record was read: every entry that existed then is below it."""
    floor: int
    queued: int | None = None
    """The highest rank among pending entries of the record or its key; None if there are none."""
    dead: int | None = None
    """The highest rank among dead letters of the record or its key; None if there are none."""
    loads: Loads = NO_LOADS
    is_ranked: bool = True
    """Whether ranks can be compared."""
    is_confirmed: bool = False
    """Without ranks: whether an earlier sighting has found the same, and everything committed until then is in the
    content now."""


def judge(seen: Sighting) -> Verdict:
    """Decide about one record. The verdict ``younger`` may change when a newer content is read."""
    if _agree(seen):
        return "same"
    expected = seen.expected or ABSENT
    if seen.is_ranked and seen.found.rank >> 1 > seen.newest:
        return "ahead"
    least = expected.rank if seen.is_ranked else -1
    if seen.loads.is_unknown(least):
        least = seen.found.rank + 1
    if seen.queued is not None and seen.queued >= least and not _was_delivered(seen, seen.queued):
        return "queued"
    if seen.dead is not None and seen.dead >= least:
        return "dead"
    return _ranked(seen, expected) if seen.is_ranked else _unranked(seen, expected)


def _was_delivered(seen: Sighting, queued: int) -> bool:
    """Return whether a pending entry has reached the record already, so that delivering it again changes nothing."""
    return seen.is_ranked and seen.found.rank >= queued


def _agree(seen: Sighting) -> bool:
    expected, found, loads = seen.expected, seen.found, seen.loads
    if expected is None:
        return found.digest is None  # a tombstone of an entry that the source has forgotten
    if expected.digest is None and found == ABSENT:
        seq = expected.rank >> 1
        return not seen.is_ranked or seq <= seen.floor or seq < loads.began or loads.is_unknown(expected.rank)
    if seen.is_ranked and found.rank != expected.rank and not loads.stand_for(expected, found):
        return False
    return found.digest == expected.digest or (seen.expires and found.digest is None)


def _ranked(seen: Sighting, expected: Version) -> Verdict:
    found = seen.found
    if found.rank > expected.rank:
        if found.rank >> 1 > seen.cut:
            return "younger"
        if seen.expected is not None and not seen.loads.stand_for(expected, found):
            return "ahead"
        return _document(found, expected)
    if found == ABSENT:
        return "missing"
    if seen.expected is None:
        return "extra"
    if found.rank < expected.rank and not seen.loads.stand_for(expected, found):
        return "stale"
    return _document(found, expected)


def _unranked(seen: Sighting, expected: Version) -> Verdict:
    return _document(seen.found, expected) if seen.is_confirmed else "younger"


def _document(found: Version, expected: Version) -> Verdict:
    if found.digest is None:
        return "missing"
    return "extra" if expected.digest is None else "different"
