"""The publication of a compaction or a move: merged segments replace segments and rows in one SQL transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from export_queue.core.errors import LeaseLost, StoreError
from export_queue.core.locks import Lease, give_back, hold
from export_queue.core.queue import Position, Queue, Range, queue_of, remove_span
from export_queue.core.segments.watched_steps import reached
from export_queue.core.store import Database, Work, identity_of, layout_closed, queries
from export_queue.core.transactions import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedRows:
    """The rows of a unit that were merged."""

    unit: Range
    count: int
    first: Position
    last: Position
    """All visible rows between these positions were merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What is published.

    :param queue: the queue in the layout of what was read.
    :param target: the queue in the layout of what was written.
    :param transaction: id of the long transaction that has written the files.
    :param settled: the snapshot that rows were read with.
    :param leases: locks on everything that was read.
    """

    queue: Queue
    target: Queue
    transaction: int
    settled: Snapshot
    leases: Sequence[Lease]
    rows: Sequence[MergedRows]
    merged: Sequence[queries.compactions.Merged]
    replaced: Mapping[tuple[int, int], tuple[int, int]]
    """Names of the replaced segments, with those of the segments that replace them."""


def publish(database: Database, published: Publication) -> None:
    """Replace the inputs by the merged segments, and end the long transaction and the locks.

    If the answer of the store is lost, the outcome is looked up.

    :raises LeaseLost: a lock is no longer held, or the rows or segments have changed.
    :raises LayoutClosed: the queue was altered just when the target was read, so that the transaction adds to another
        layout.
    """
    try:
        with database.begin() as work:
            _publish(work, published)
            reached("publishing")
    except (StoreError, OSError):
        with database.read() as work:
            if not queries.compactions.is_published(work, published.transaction):
                raise


def _publish(work: Work, published: Publication) -> None:
    steps, queue, transaction = work.database.dialect.steps, published.queue, published.transaction
    if published.target.layout != queue.layout:
        queries.readers.hold_as_commits_do(work, queue.source_number)
        # With this held, whoever alters the queue has ended, or waits for this SQL transaction.
        if queue_of(work, queue.id, transaction).layout != published.target.layout:
            raise layout_closed(f"queue {queue.id!r}")
    steps.hold_long(work.connection, transaction, (), store_id=identity_of(work.database).store_id)
    now_ms = hold(work, *published.leases)
    for rows in published.rows:
        removed = remove_span(work, queue, published.settled, rows.first, rows.last)
        # A dead letter that was retried meanwhile is a row again, with a settled sequence.
        if removed != rows.count:
            raise LeaseLost(f"{rows.unit}: expected {rows.count} rows under the lock, found {removed}")
    if published.merged:
        queries.compactions.insert(work, queue.number, published.merged)
    if published.replaced:
        hidden = queries.compactions.hide(work, queue.number, published.replaced, now_ms=now_ms)
        if hidden != len(published.replaced):
            raise LeaseLost(f"queue {queue.id!r}: expected {len(published.replaced)} pending segments, found {hidden}")
    steps.end_long(work.connection, transaction)
    give_back(work, published.leases)
