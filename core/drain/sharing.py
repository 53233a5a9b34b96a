"""Sharing claimed units out to tasks by what waits in them, as one look at the store measures it."""

from __future__ import annotations

from collections.abc import Sequence

from export_queue.core.drain.parts import LEAST_WEIGHT, Block, Part, cut, spread, weight_of
from export_queue.core.locks import Lease
from export_queue.core.queue import Backlog, Queue, Range, backlog_by_bucket, every_nth_key
from export_queue.core.store import Database, Reading
from export_queue.core.transactions import Snapshot

_PARTS_PER_TASK = 4
"""Smaller parts spread more evenly, and each costs some statements."""


def share_out(
    database: Database, queue: Queue, leases: Sequence[Lease], snapshot: Snapshot, *, tasks: int
) -> list[list[Part]]:
    """Cut claimed units where they are large, and give each task about as much as the others.

    :param database: the store.
    :param queue: the queue.
    :param leases: the claims on the units.
    :param snapshot: decides which entries count.
    :param tasks: the most tasks.
    :returns: the parts of each task; together they cover all units.
    """
    with database.read() as work:
        within = Range(min(lease.range.first for lease in leases), max(lease.range.end for lease in leases))
        measured = backlog_by_bucket(work, queue, snapshot, within)
        share = max(LEAST_WEIGHT, sum(map(weight_of, measured)) / (tasks * _PARTS_PER_TASK))
        parts: list[tuple[int, Part]] = []
        at = 0
        for lease in sorted(leases, key=lambda lease: lease.range):
            blocks: list[Block] = []
            while at < len(measured) and measured[at].range.first < lease.range.end:
                if measured[at].range.first >= lease.range.first:
                    blocks += _blocks(work, queue, snapshot, measured[at], share)
                at += 1
            parts += cut(lease, blocks, share)
    return spread(parts, tasks)


def _blocks(work: Reading, queue: Queue, snapshot: Snapshot, bucket: Backlog, share: float) -> list[Block]:
    """Take a bucket as one block, or as several where it is more than a share by itself."""
    weight, number = weight_of(bucket), bucket.range.first
    pieces = int(weight // share) + 1
    if pieces == 1:
        return [Block(number, None, weight)]
    step = -(-bucket.entries // pieces)
    # A key with very many entries is found several times.
    keys = list(dict.fromkeys(every_nth_key(work, queue, snapshot, number, step)))
    each = weight * step // bucket.entries
    blocks = [Block(number, key, each) for key in keys]
    return [*blocks, Block(number, None, weight - each * len(keys))]
