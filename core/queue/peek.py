"""Looking at the entries that wait, without taking any."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from export_queue.core.errors import InvalidArgument
from export_queue.core.queue.buckets import bucket
from export_queue.core.queue.queue import Queue
from export_queue.core.queue.read import Position
from export_queue.core.store import Reading, queries
from export_queue.core.transactions import Snapshot

MOST_ENTRIES = 1000
VALUES_BYTES = 16 << 20
"""Bytes of the values that one look reads; a single larger one is read alone."""


@dataclass(frozen=True, slots=True)
class QueuedEntry:
    """One entry that waits for a drain."""

    position: Position
    value_bytes: int | None
    """Bytes of the encoded value; None where the entry says that the record is gone."""
    value: bytes | None = None
    """The encoded value, where it was asked for."""


def peek(
    work: Reading,
    queue: Queue,
    snapshot: Snapshot,
    *,
    key: bytes | None = None,
    limit: int = 10,
    values: bool = False,
) -> list[QueuedEntry]:
    """Read the first entries of one layout that a snapshot sees, as a drain takes them: by bucket, key and seq.

    :param key: only entries of this encoded key.
    :param limit: most entries, 1 to 1000.
    :param values: whether values are read, too; there are fewer entries then where values are large.
    :raises InvalidArgument: the limit is out of bounds.
    """
    if type(limit) is not int or not 1 <= limit <= MOST_ENTRIES:
        raise InvalidArgument(f"limit: expected a whole number from 1 to {MOST_ENTRIES}, found {limit!r}")
    place = None if key is None else (bucket(key, queue.buckets), key)
    select = partial(queries.entries.select_waiting, work, queue.number, queue.layout, snapshot, place=place)
    rows = select(rows=limit, values=False)
    if values and rows:  # the sizes are known by now, so that memory is bounded
        rows = select(rows=_fitting([size or 0 for *_, size, _ in rows]), values=True)
    return [QueuedEntry(Position(at, found, seq), size, value) for at, found, seq, size, value in rows]


def hidden_seqs(work: Reading, queue: Queue, snapshot: Snapshot, key: bytes, *, limit: int) -> list[int]:
    """Read the sequences of a key's entries that are stored and not committed, as far as a snapshot tells.

    They were staged by long transactions in progress, or by such as ended without a commit, until clean-up comes.
    """
    found: list[int] = []
    for layout in queue.layouts():
        place = bucket(key, layout.buckets), key
        found += queries.entries.hidden_seqs(work, queue.number, layout.number, snapshot, place=place, rows=limit)
    return sorted(found)[:limit]


def _fitting(sizes: list[int]) -> int:
    """Count the first values that have a bounded number of bytes together; at least one."""
    total = 0
    for i, size in enumerate(sizes):
        total += size
        if total > VALUES_BYTES and i:
            return i
    return len(sizes)
