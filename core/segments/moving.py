"""Moving what is pending in older layouts of a queue into the current one, so that its units share the work.

Everything settled moves, rows and segments of any size. An interval lock on each unit keeps drains, compactions and
retries out meanwhile. The entries are sorted and written in pieces of bounded size.

The entries of segments are written into other files than rows. Their new segments together replace the inputs, and
give way to these if a file is lost; those of rows replace no segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from typing_extensions import override

from export_queue.core.locks import Area, Lease
from export_queue.core.queue import Queue, buckets_of, queue_of
from export_queue.core.segments.candidates import UnitPlan
from export_queue.core.segments.gathering import merged, read_rows, table_of
from export_queue.core.segments.mergers import Merge, ReplacedUnit
from export_queue.core.segments.model import FileReport, by_file
from export_queue.core.segments.publication import Written
from export_queue.core.segments.reading import left_of, row_group_tables
from export_queue.core.segments.replacement import Replacement
from export_queue.core.segments.verified_file import COLUMNS
from export_queue.core.segments.watched_steps import reached
from export_queue.core.segments.writing import by_unit
from export_queue.core.store import Reading, queries

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(slots=True, kw_only=True)
class Move(Replacement):
    """Moves everything that is pending in older layouts."""

    name = "move"
    takes_rows_alone = True

    @override
    def choose(
        self, work: Reading, queue: Queue, pending: Sequence[UnitPlan], leases: Sequence[Lease]
    ) -> list[UnitPlan]:
        return list(pending)

    @override
    def area(self, plan: UnitPlan) -> Area:
        return Area(plan.unit.first, plan.unit.end)

    @override
    def target(self, queue: Queue, transaction: int) -> Queue:
        with self.database.read() as work:
            return queue_of(work, queue.id, transaction)

    @override
    def write(self, merge: Merge, target: Queue, plans: Sequence[UnitPlan], check: Callable[[], None]) -> Written:
        units = [ReplacedUnit(plan) for plan in plans]
        pieces = _Pieces(merge, target, self.wanted.most_bytes, units)
        for unit, table, of_rows in self._tables(merge, units):
            units[unit].read += table.num_rows
            if pieces.add(unit, table, of_rows=of_rows):
                reached("piece")
            self.progress(self.done + table.num_rows)
            check()
        pieces.end()
        names = [name for plan in plans for name in plan.names]
        # They count as no younger than the segments that may replace them again.
        lowest = min((segment.lowest_seq for plan in plans for segment in plan.segments), default=0)
        highest = max((segment.highest_seq for plan in plans for segment in plan.segments), default=0)
        numbers = count(1)
        new = [
            queries.compactions.Merged(
                segment=(merge.transaction, next(numbers)),
                columns=file.columns(
                    part,
                    target,
                    lowest_seq=None if of_rows else lowest,
                    highest_seq=0 if of_rows else highest,
                ),
                row_entries=part.entries if of_rows else 0,
            )
            for file, of_rows in pieces.written
            for part in file.slices
        ]
        replaced = dict.fromkeys(names, (merge.transaction, queries.compactions.ALL))
        return Written(units, [file for file, _ in pieces.written], new, replaced)

    def _tables(self, merge: Merge, units: Sequence[ReplacedUnit]) -> Iterator[tuple[int, pa.Table, bool]]:
        """Yield entries, the number of their unit, and whether they were rows."""
        numbers = {unit.plan.unit.first: number for number, unit in enumerate(units)}
        for of_file in by_file([segment for unit in units for segment in unit.plan.segments]):
            for segment, table in row_group_tables(of_file, COLUMNS):
                yield numbers[segment.first], left_of(segment, table), False
        for number, unit in enumerate(units):
            for chunk in read_rows(self.database, merge.queue, merge.settled, unit.plan.unit):
                unit.rows += len(chunk)
                unit.first_row = unit.first_row or chunk.position(0)
                unit.last_row = chunk.position(len(chunk) - 1)
                yield number, table_of([chunk]), True


@dataclass(slots=True)
class _Pieces:
    """Takes entries of the older layout, and writes files in the order of the target; of bounded memory."""

    merge: Merge
    target: Queue
    most_bytes: int
    """Entries of about this size, as Arrow has them, are written at once."""
    units: Sequence[ReplacedUnit]
    written: list[tuple[FileReport, bool]] = field(default_factory=list)
    """The files, and whether their entries were rows."""
    _pending: dict[bool, list[pa.Table]] = field(default_factory=lambda: {False: [], True: []})
    _bytes: int = 0

    def add(self, unit: int, table: pa.Table, *, of_rows: bool) -> bool:
        """Take entries of a unit; return whether a piece was written."""
        import pyarrow as pa

        buckets = buckets_of(table["key"].to_pylist(), self.target.buckets)
        table = table.set_column(0, "bucket", pa.array(buckets, pa.int32()))
        self._pending[of_rows].append(table.append_column("unit", pa.repeat(pa.scalar(unit), table.num_rows)))
        self._bytes += table.nbytes
        if self._bytes < self.most_bytes:
            return False
        self.end()
        return True

    def end(self) -> None:
        """Write what is left."""
        import pyarrow.compute as pc

        size = self.target.buckets_per_range
        for of_rows, tables in self._pending.items():
            if any(table.num_rows for table in tables):
                table = merged(tables)
                for counted in pc.value_counts(table["unit"]).to_pylist():
                    self.units[counted["values"]].written += counted["counts"]
                parts = (
                    (unit * size, (unit + 1) * size, part)
                    for batch in table.drop_columns("unit").to_batches()
                    for unit, part in by_unit(batch, size)
                )
                self.written += [(file, of_rows) for file in self.merge.write(parts, "rewritten")]
            tables.clear()
        self._bytes = 0
