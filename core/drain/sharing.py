"""Distributing claimed units over tasks by size, measured in the store and in the footers of large files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from export_queue.core.drain.parts import LEAST_WEIGHT, Block, Part, cut, locked, spread, weight
from export_queue.core.locks import Lease
from export_queue.core.queue import Backlog, Queue, Range, backlog_by_bucket, every_nth_key
from export_queue.core.segments import RowGroup, Segment, row_groups, waiting_segments
from export_queue.core.store import Database, Reading
from export_queue.core.transactions import Snapshot

_PARTS_PER_TASK = 4
"""Smaller parts distribute more evenly, but each costs some statements."""


def share_out(
    database: Database, queue: Queue, leases: Sequence[Lease], snapshot: Snapshot, *, tasks: int, least: int = 0
) -> list[list[Part]]:
    """Cut large units into parts, and give each task about the same amount of work.

    :param leases: the claims on the units.
    :param snapshot: decides which entries count.
    :param tasks: maximum number of tasks.
    :param least: weight that a task should have before there is another one, because each task costs time.
    :returns: the parts of each task; together they cover all units.
    :raises SegmentLost: a file is missing.
    """
    with database.read() as work:
        within = Range(min(lease.range.first for lease in leases), max(lease.range.end for lease in leases))
        rows = backlog_by_bucket(work, queue, snapshot, within)
        segments = waiting_segments(work, queue, snapshot, within)
        units = {lease.range: locked(segments, lease, lease.range) for lease in leases}
        held = {number for lease in leases if lease.has_rows for number in range(lease.range.first, lease.range.end)}
        rows = [bucket for bucket in rows if bucket.range.first in held]
        total = sum(weight(bucket.entries, bucket.bytes) for bucket in rows)
        total += sum(map(_weight, units.values()))
        share = max(LEAST_WEIGHT, total / (tasks * _PARTS_PER_TASK))
        blocks = {bucket.range.first: _of_rows(work, queue, snapshot, bucket, share) for bucket in rows}
    # after the SQL transaction: a file system may be slow
    large = [segment for unit, found in units.items() if _weight(found) > share for segment in found]
    groups = dict(zip(map(_key, large), row_groups(large) if large else [], strict=True))
    parts: list[tuple[int, Part]] = []
    for lease in leases:
        unit = lease.range
        of_rows = [block for number in range(unit.first, unit.end) for block in blocks.get(number, ())]
        of_unit = of_rows + _of_segments(units[unit], unit, share, groups)
        parts += cut(lease, sorted(of_unit, key=Block.place), share)
    return spread(parts, min(tasks, total // least + 1) if least else tasks)


def _key(segment: Segment) -> tuple[int, int]:
    return segment.transaction, segment.number


def _weight(segments: Sequence[Segment]) -> int:
    return sum(weight(segment.entries, segment.bytes) for segment in segments)


def _of_rows(work: Reading, queue: Queue, snapshot: Snapshot, bucket: Backlog, share: float) -> list[Block]:
    """Return a bucket as one block, or as several if it exceeds a share."""
    whole, number = weight(bucket.entries, bucket.bytes), bucket.range.first
    pieces = int(whole // share) + 1
    if pieces == 1:
        return [Block(number, None, whole)]
    step = -(-bucket.entries // pieces)
    # a key with very many entries is found several times
    keys = list(dict.fromkeys(every_nth_key(work, queue, snapshot, number, step)))
    each = whole * step // bucket.entries
    blocks = [Block(number, key, each) for key in keys]
    return [*blocks, Block(number, None, whole - each * len(keys))]


def _of_segments(
    segments: Sequence[Segment], unit: Range, share: float, groups: Mapping[tuple[int, int], Sequence[RowGroup]]
) -> list[Block]:
    """Return the entries in files as one block, or as one per row group if they exceed a share.

    :param groups: the row groups of the segments, by the segments' keys, for units that exceed a share.
    """
    whole = _weight(segments)
    if whole <= share:
        return [Block(unit.first, None, whole)] if whole else []
    return [
        Block(min(group.last_bucket, unit.end - 1), group.last_key, weight(group.entries, group.bytes))
        for segment in segments
        for group in groups[_key(segment)]
    ]
