"""The timeline of a reader's segments, as the store has them: what counts, what is hidden by what, what is exported.

A segment has a partition number of its unit once a compaction has named it. Those that came later and were never
merged follow in the order of their ids, as they would be numbered if they were merged now.

The version of all is the number of their layout. There is a timeline for each layout, also where buckets stay and only
units change: while an older layout drains out the entries of both count, though they lie in the same buckets. What was
rewritten into a later layout is hidden, in its own, by a retired segment that stands for all that it has become.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from export_queue.core.queue import Queue, Range
from export_queue.core.store import Reading, queries
from export_queue.core.timeline import AtomicGroup, Generation, SegmentId, State, Timeline, TimelineSegment


class _StandIn(SegmentId):
    """The name of what stands for segments that were rewritten: it is shown as their transaction."""

    __slots__ = ()

    def __str__(self) -> str:
        return str(self.transaction)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSegment:
    """A segment of a reader, and what has become of it."""

    segment: str
    """Its transaction and number: the name that locks have of it."""
    range: Range
    state: State
    entries: int
    left: int
    """Entries that its reader has not drained; 0 of a hidden one, since another one stands for it."""
    bytes: int
    hidden_by: str | None
    """The name of that one; of a segment that was rewritten into a later layout the transaction that did so."""
    file: str

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "segment": self.segment,
            "range": self.range.to_json(),
            "state": self.state,
            "entries": self.entries,
            "left": self.left,
            "bytes": self.bytes,
            "hidden_by": self.hidden_by,
            "file": self.file,
        }


def stored_timeline(work: Reading, queue: Queue) -> tuple[Timeline, list[StoredSegment]]:
    """Read the segments of a reader in one of its layouts, and arrange them.

    :param queue: the reader, in that layout.
    :returns: the timeline, and the segments in its order: from the first buckets on, in a unit the newest first.
    """
    place = (queue.number, queue.layout)
    waiting = {_id(row): row for row in queries.segments.of_reader(work, *place)}
    merged = {_id(row): row for row in queries.compactions.outputs(work, *place)}
    hidden = {_id(row): row for row in queries.compactions.hidden(work, *place)}
    # Units are altered once all is exported: what is left of the old ones only waits for clean-up.
    rows = {one: row for one, row in (waiting | merged | hidden).items() if _is_unit(queue, row)}
    given = queries.compactions.partitions_given(work, *place)
    partitions: dict[SegmentId, int] = {}
    for one in sorted(rows):
        number = rows[one].get("partition")
        if number is None:
            first = rows[one]["first_bucket"]
            number = given.get(first, 0)
            given[first] = number + 1
        partitions[one] = number
    inputs: defaultdict[SegmentId, set[SegmentId]] = defaultdict(set)
    for one in rows.keys() & hidden.keys():
        inputs[_hider(hidden[one])].add(one)
    placed = [
        TimelineSegment(
            id=one,
            generation=Generation(row["first_bucket"], row["end_bucket"], queue.layout),
            partition=partitions[one],
            group=AtomicGroup.of(partitions[one], overshadows=frozenset(partitions[below] for below in inputs[one])),
            retired=one in merged and not merged[one]["waits"] and one not in hidden,
        )
        for one, row in rows.items()
    ]
    moved = {by: below for by, below in inputs.items() if by.number == queries.compactions.ALL}
    timeline = Timeline([*placed, *_stand_ins(moved, placed)])
    ordered = sorted(rows, key=lambda one: (rows[one]["first_bucket"], -partitions[one]))
    states = {part.segment.id: part.state for part in timeline.parts()}
    return timeline, [_stored(one, rows, states[one], waiting, hidden) for one in ordered]


def _hider(row: Mapping[str, Any]) -> SegmentId:
    return SegmentId(row["by_transaction"], row["by_number"])


def _stand_ins(
    moved: Mapping[SegmentId, set[SegmentId]], placed: Sequence[TimelineSegment]
) -> Iterator[TimelineSegment]:
    """Make what stands for segments that were rewritten into another layout: one for each unit and transaction.

    :param moved: the segments, by what stands for them.
    :param placed: all segments of this layout.
    """
    taken: defaultdict[Generation, set[int]] = defaultdict(set)
    for one in placed:
        taken[one.generation].add(one.partition)
    for by, below in sorted(moved.items()):
        by_unit: defaultdict[Generation, set[int]] = defaultdict(set)
        for one in placed:
            if one.id in below:
                by_unit[one.generation].add(one.partition)
        for number, (unit, partitions) in enumerate(sorted(by_unit.items())):
            partition = max(taken[unit]) + 1
            taken[unit].add(partition)
            yield TimelineSegment(
                id=_StandIn(by.transaction, -number),
                generation=unit,
                partition=partition,
                group=AtomicGroup.of(partition, overshadows=frozenset(partitions)),
                retired=True,
            )


def _is_unit(queue: Queue, row: Mapping[str, Any]) -> bool:
    first, size = row["first_bucket"], queue.buckets_per_range
    return bool(first % size == 0 and row["end_bucket"] == min(first + size, queue.buckets))


def _stored(
    one: SegmentId,
    rows: Mapping[SegmentId, Mapping[str, Any]],
    state: State,
    waiting: Mapping[SegmentId, Mapping[str, Any]],
    hidden: Mapping[SegmentId, Mapping[str, Any]],
) -> StoredSegment:
    row = rows[one]
    by = hidden.get(one)
    return StoredSegment(
        segment=str(one),
        range=Range(row["first_bucket"], row["end_bucket"], row["layout"]),
        state=state,
        entries=row["entries"],
        left=int(waiting[one]["left"]) if one in waiting else 0,
        bytes=row["bytes"],
        hidden_by=None if by is None else _name(_hider(by)),
        file=row["file"],
    )


def _name(hider: SegmentId) -> str:
    return str(hider.transaction) if hider.number == queries.compactions.ALL else str(hider)


def count_states(segments: Sequence[StoredSegment]) -> dict[State, int]:
    """Count segments by what has become of them."""
    found: defaultdict[State, int] = defaultdict(int)
    for one in segments:
        found[one.state] += 1
    return dict(found)


def _id(row: Mapping[str, Any]) -> SegmentId:
    return SegmentId(row["transaction_id"], row["number"])
