"""Replacing segments and rows by one that was merged of them: the publication of a compaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from export_queue.core.errors import LeaseLost
from export_queue.core.locks import Lease, give_back, hold
from export_queue.core.queue import Position, Queue, remove_span
from export_queue.core.segments.candidates import UnitPlan
from export_queue.core.segments.gathering import StoredRows
from export_queue.core.segments.model import FileReport, Slice
from export_queue.core.store import Reading, Work, identity_of, queries
from export_queue.core.transactions import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedUnit:
    """What was merged in one unit."""

    plan: UnitPlan
    read: int
    """Entries of its segments that were not drained, and rows."""
    rows: int
    written: int
    lowest_seq: int
    highest_seq: int
    first_row: Position | None
    last_row: Position | None
    coalesced: int = 0
    """Entries that a later one of their key stands for."""

    @classmethod
    def of(cls, plan: UnitPlan, read: int, stored: StoredRows | None, found: pa.Table, table: pa.Table) -> MergedUnit:
        """Count what a unit was made of.

        :param read: entries of all its sources.
        :param stored: the rows among them.
        :param found: all places of all sources.
        :param table: what is left of them.
        """
        import pyarrow.compute as pc

        # of all that it stands for, from hop to hop: what waits counts as no younger than before
        seqs = pc.min_max(found["seq"]).as_py()
        return cls(
            plan=plan,
            read=read,
            rows=0 if stored is None else stored.table.num_rows,
            written=table.num_rows,
            lowest_seq=min([seqs["min"] or 0, *(one.lowest_seq for one in plan.segments)]),
            highest_seq=seqs["max"] or 0,
            first_row=None if stored is None else stored.first,
            last_row=None if stored is None else stored.last,
            coalesced=found.num_rows - table.num_rows,
        )

    def segment(
        self, name: tuple[int, int], queue: Queue, report: FileReport, part: Slice
    ) -> queries.compactions.Merged:
        """Make the segment that replaces this unit's inputs.

        :raises LeaseLost: the file has another number of entries.
        """
        if part.entries != self.written:
            raise LeaseLost(f"{self.plan.unit}: expected {self.written} entries in the file, found {part.entries}")
        seqs = (self.lowest_seq, self.highest_seq)
        return queries.compactions.Merged(
            segment=name,
            columns=report.columns(part, queue, seqs=seqs),
            row_entries=self.rows,
            coalesced=self.coalesced,
        )


def is_published(work: Reading, transaction: int) -> bool:
    """Tell whether a compaction has taken effect: it leaves merged segments, until these are drained and vacuumed."""
    return queries.compactions.is_published(work, transaction)


def publish(
    work: Work,
    queue: Queue,
    transaction: int,
    settled: Snapshot,
    leases: Sequence[Lease],
    units: Sequence[MergedUnit],
    reports: Sequence[FileReport],
) -> None:
    """Let merged segments stand for their inputs, and end their transaction and its locks.

    :param transaction: the long one that has written the files.
    :param settled: what rows were read by.
    :param leases: locks on all that was merged.
    :raises LeaseLost: a lock is not held any more, or rows have come back among the merged ones.
    """
    steps = work.database.dialect.steps
    steps.hold_long(work.connection, transaction, (), store_id=identity_of(work.database).store_id)
    now_ms = hold(work, *leases)
    written = {part.first: (report, part) for report in reports for part in report.slices}
    merged: list[queries.compactions.Merged] = []
    replaced: dict[tuple[int, int], tuple[int, int]] = {}
    for number, unit in enumerate(units, 1):
        _remove_rows(work, queue, settled, unit)
        if (found := written.get(unit.plan.unit.first)) is not None:
            merged.append(unit.segment((transaction, number), queue, *found))
            replaced |= dict.fromkeys(unit.plan.names, (transaction, number))
    if merged:
        queries.compactions.insert(work, queue.number, merged)
        hidden = queries.compactions.hide(work, queue.number, replaced, now_ms=now_ms)
        if hidden != len(replaced):
            raise LeaseLost(f"queue {queue.id!r}: expected {len(replaced)} pending segments, found {hidden}")
    steps.end_long(work.connection, transaction)
    give_back(work, leases)


def _remove_rows(work: Work, queue: Queue, settled: Snapshot, unit: MergedUnit) -> None:
    if unit.first_row is None or unit.last_row is None:
        return
    removed = remove_span(work, queue, settled, unit.first_row, unit.last_row)
    # A dead letter that was retried meanwhile has come back as a row, below what is settled.
    if removed != unit.rows:
        raise LeaseLost(f"{unit.plan.unit}: expected {unit.rows} rows under the lock, found {removed}")
