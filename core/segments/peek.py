"""Reading pending entries, including those in files, without taking any."""

from __future__ import annotations

from export_queue.core.queue import Position, Queue, QueuedEntry, Range, bucket, unmoved
from export_queue.core.queue import peek as peek_at_rows
from export_queue.core.segments.catalogue import waiting_segments
from export_queue.core.segments.model import Segment
from export_queue.core.segments.reading import SegmentReader
from export_queue.core.store import Reading
from export_queue.core.transactions import Snapshot

_BATCH_ROWS = 1024
VALUES_BYTES = 16 << 20
"""Maximum size of the values that one call returns; a larger value is returned alone."""


def peek(
    work: Reading, queue: Queue, snapshot: Snapshot, *, key: bytes | None = None, limit: int = 10, values: bool = False
) -> list[QueuedEntry]:
    """Read the first entries that a snapshot sees, in the order of a drain: older layouts first, then bucket, key, seq.

    :param key: only entries of this encoded key.
    :param limit: maximum number of entries, 1 to 1000.
    :param values: whether to read values too; if they are large, fewer entries are returned.
    :raises InvalidArgument: the limit is out of bounds.
    :raises SegmentLost: a file is missing or damaged.
    """

    def look() -> list[QueuedEntry]:
        found: list[QueuedEntry] = []
        for layout in queue.layouts():
            most = limit - len(found) if found else limit
            if not found or most:
                of = queue.in_layout(layout.number)
                found += _peek_in_layout(work, of, snapshot, key=key, limit=most, values=values)
        return found

    return unmoved(work, queue, look, several=True)


def _peek_in_layout(
    work: Reading, queue: Queue, snapshot: Snapshot, *, key: bytes | None, limit: int, values: bool
) -> list[QueuedEntry]:
    at = None if key is None else bucket(key, queue.buckets)
    segments = waiting_segments(work, queue, snapshot, Range(0, queue.buckets) if at is None else Range(at, at + 1))
    if not segments:
        return peek_at_rows(work, queue, snapshot, key=key, limit=limit, values=values)
    rows = {row.position: row for row in peek_at_rows(work, queue, snapshot, key=key, limit=limit)}
    found: dict[Position, QueuedEntry] = {}
    for first in sorted({segment.first for segment in segments}):
        if len(found) >= limit:  # later units have later entries
            break
        for segment in segments:
            if segment.first == first:
                found = _bounded(found | _first_entries(segment, at, key, limit, values=values), limit, values=values)
    found |= rows
    shown = [found[position] for position in sorted(found)][:limit]
    return shown if not values else _with_values(work, queue, snapshot, key, shown, rows)


def _bounded(found: dict[Position, QueuedEntry], limit: int, *, values: bool) -> dict[Position, QueuedEntry]:
    """Keep only as many entries as are shown, to bound the values in memory."""
    size = 0
    kept: dict[Position, QueuedEntry] = {}
    for position in sorted(found)[:limit]:
        size += found[position].value_bytes or 0
        if values and size > VALUES_BYTES and kept:
            break
        kept[position] = found[position]
    return kept


def _first_entries(
    segment: Segment, at: int | None, key: bytes | None, limit: int, *, values: bool
) -> dict[Position, QueuedEntry]:
    bounds = (segment.first, segment.end) if at is None else (at, at + 1)
    after = None if at is None or key is None else Position(at, key, -1)
    reader = SegmentReader(segment, first=bounds[0], end=bounds[1], after=after, batch_rows=_BATCH_ROWS)
    found: dict[Position, QueuedEntry] = {}
    size = 0
    try:
        while len(found) < limit:
            reader.fill()
            taken = reader.take(None)
            for bucket_of, found_key, seq, value in taken[: limit - len(found)]:
                if key is not None and found_key != key:
                    return found
                size += len(value or b"")
                if values and size > VALUES_BYTES and found:
                    return found
                position = Position(bucket_of, found_key, seq)
                found[position] = QueuedEntry(
                    position, None if value is None else len(value), value if values else None
                )
            if not taken:
                break
    finally:
        reader.close()
    return found


def _with_values(
    work: Reading,
    queue: Queue,
    snapshot: Snapshot,
    key: bytes | None,
    shown: list[QueuedEntry],
    rows: dict[Position, QueuedEntry],
) -> list[QueuedEntry]:
    """Add the values of rows, and stop when they become too large."""
    number = sum(entry.position in rows for entry in shown)
    read = peek_at_rows(work, queue, snapshot, key=key, limit=number, values=True) if number else []
    valued = {row.position: row for row in read}
    found: list[QueuedEntry] = []
    size = 0
    for entry in shown:
        size += entry.value_bytes or 0
        whole = valued.get(entry.position) if entry.position in rows else entry
        if whole is None or (size > VALUES_BYTES and found):
            break
        found.append(whole)
    return found
