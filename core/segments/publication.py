"""The publication of a replacement: new segments take the place of segments and rows in one SQL transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from export_queue.core.errors import LeaseLost, StoreError
from export_queue.core.locks import Lease, give_back, hold
from export_queue.core.queue import Queue, queue_of, remove_span
from export_queue.core.segments.mergers import Merge, ReplacedUnit
from export_queue.core.segments.model import FileReport
from export_queue.core.segments.watched_steps import reached
from export_queue.core.store import Database, Work, identity_of, layout_closed, queries


@dataclass(frozen=True, slots=True)
class Written:
    """What a replacement has written."""

    units: Sequence[ReplacedUnit]
    files: Sequence[FileReport]
    merged: Sequence[queries.compactions.Merged]
    replaced: Mapping[tuple[int, int], tuple[int, int]]
    """Names of the replaced segments, with those of the segments that replace them."""


def publish(database: Database, merge: Merge, target: Queue, leases: Sequence[Lease], written: Written) -> None:
    """Replace the inputs, and end the long transaction and the locks.

    If the answer of the store is lost, the outcome is looked up.

    :param target: the queue in the layout of what was written.
    :param leases: locks on everything that was read.
    :raises LeaseLost: a lock is no longer held, or the rows or segments have changed.
    :raises LayoutClosed: the queue was altered just when the target was read, so that the transaction adds to another
        layout.
    """
    try:
        with database.begin() as work:
            _publish(work, merge, target, leases, written)
            reached("publishing")
    except (StoreError, OSError):
        with database.read() as work:
            if not queries.compactions.is_published(work, merge.transaction):
                raise


def _publish(work: Work, merge: Merge, target: Queue, leases: Sequence[Lease], written: Written) -> None:
    steps, queue = work.database.dialect.steps, merge.queue
    if target.layout != queue.layout:
        queries.readers.hold_as_commits_do(work, queue.source_number)
        # With this held, no alteration of the queue is in progress: it has ended, or waits for this SQL transaction.
        if queue_of(work, queue.id, merge.transaction).layout != target.layout:
            raise layout_closed(f"queue {queue.id!r}")
    steps.hold_long(work.connection, merge.transaction, (), store_id=identity_of(work.database).store_id)
    now_ms = hold(work, *leases)
    covered = queries.entries.lowest_covered(work, queue.number, queue.layout)
    for unit in written.units:
        if unit.first_row is not None and unit.last_row is not None:
            removed = remove_span(work, queue, merge.settled, unit.first_row, unit.last_row)
            # A dead letter that was retried meanwhile is a row again, with a settled sequence.
            if removed != unit.rows:
                raise LeaseLost(f"{unit.plan.unit}: expected {unit.rows} rows under the lock, found {removed}")
    if merge.kept_from is not None:
        queries.queues.raise_oldest_cut(work, queue.number, merge.kept_from)
    queries.compactions.insert(work, queue.number, [_covering(one, covered) for one in written.merged])
    if written.replaced:
        hidden = queries.compactions.hide(work, queue.number, written.replaced, now_ms=now_ms)
        if hidden != len(written.replaced):
            raise LeaseLost(f"queue {queue.id!r}: expected {len(written.replaced)} pending segments, found {hidden}")
    steps.end_long(work.connection, merge.transaction)
    give_back(work, leases)


def _covering(one: queries.compactions.Merged, covered: int | None) -> queries.compactions.Merged:
    """Let a merged segment stand for what the retried dead letters among its rows stand for."""
    if covered is None or covered >= one.columns["lowest_seq"]:
        return one
    return replace(one, columns={**one.columns, "lowest_seq": covered})
