"""What a compaction has merged in one unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from export_queue.core.errors import LeaseLost
from export_queue.core.queue import Position, Queue
from export_queue.core.segments.candidates import UnitPlan
from export_queue.core.segments.gathering import StoredRows
from export_queue.core.segments.model import FileReport, Slice
from export_queue.core.segments.publication import MergedRows
from export_queue.core.store import queries

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

    @property
    def merged_rows(self) -> MergedRows | None:
        """The rows that are deleted at the publication."""
        if self.first_row is None or self.last_row is None:
            return None
        return MergedRows(unit=self.plan.unit, count=self.rows, first=self.first_row, last=self.last_row)
