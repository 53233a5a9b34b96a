"""Merging the sources of units into one file: in this process, or in others that receive plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from export_queue.core.queue import LATEST, Position, Queue
from export_queue.core.segments.candidates import UnitPlan
from export_queue.core.segments.gathering import (
    merged,
    read_files,
    read_rows,
    same_as_before,
    table_of,
    without_earlier,
)
from export_queue.core.segments.model import FileReport
from export_queue.core.segments.writing import write_merged
from export_queue.core.store import Database
from export_queue.core.transactions import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(slots=True)
class ReplacedUnit:
    """What a replacement has read of one unit."""

    plan: UnitPlan
    read: int = 0
    """Entries of its segments that were not drained, and rows."""
    written: int = 0
    rows: int = 0
    first_row: Position | None = None
    last_row: Position | None = None
    """All visible rows between these positions were read."""
    lowest_seq: int = 0
    highest_seq: int = 0
    coalesced: int = 0
    """Entries that a later one of their key replaces."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What was merged of some units; nothing of it counts before its publication."""

    units: tuple[ReplacedUnit, ...]
    files: tuple[FileReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """What merging needs besides the store and the units; it may travel to another process.

    :param queue: the queue in the layout of what is read.
    :param settled: decides which rows are read.
    :param base: URL of the folder of all segments.
    :param transaction: id of the long transaction in whose folder files are written.
    :param kept_from: for the state of a queue: it need not be readable as of an older id.
    """

    queue: Queue
    settled: Snapshot
    base: str
    store_id: str
    transaction: int
    kept_from: int | None = None

    def run(self, database: Database, plans: Sequence[UnitPlan], check: Callable[[], None]) -> Merged:
        """Merge some units into one file. Repeating it for the same units is harmless: it writes another file.

        :param plans: units, ascending.
        :param check: raises if the work is no longer needed.
        :raises SegmentLost: a file is missing or damaged.
        :raises SegmentUnavailable: a filesystem does not answer.
        """
        units: list[ReplacedUnit] = []
        files = self.write(self._tables(database, plans, units, check), "compaction")
        return Merged(tuple(units), tuple(files))

    def write(self, batches: Iterable[tuple[int, int, pa.RecordBatch]], name: str) -> list[FileReport]:
        """Write a file; see :func:`write_merged`."""
        return write_merged(batches, base=self.base, store_id=self.store_id, transaction=self.transaction, name=name)

    def _tables(
        self, database: Database, plans: Sequence[UnitPlan], units: list[ReplacedUnit], check: Callable[[], None]
    ) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Yield the entries of each unit, and append what they were made of to ``units``."""
        import pyarrow.compute as pc

        size = self.queue.buckets_per_range
        tables = read_files((segment for plan in plans for segment in plan.segments), check=check)
        for plan in plans:
            sources = list(tables[plan.unit.first])
            chunks = list(read_rows(database, self.queue, self.settled, plan.unit)) if plan.row_entries else []
            check()
            if chunks:
                sources.append(table_of(chunks))
            found = merged(sources)
            table = self._without_replaced(found, is_whole=plan.is_whole)
            # A drain with an older snapshot must see the segment: it counts as no younger than all that it replaces.
            lowest = [pc.min(found["seq"]).as_py() or 0, *(one.lowest_seq for one in plan.segments)]
            units.append(
                ReplacedUnit(
                    plan,
                    read=sum(source.num_rows for source in sources),
                    written=table.num_rows,
                    rows=sum(map(len, chunks)),
                    first_row=chunks[0].position(0) if chunks else None,
                    last_row=chunks[-1].position(len(chunks[-1]) - 1) if chunks else None,
                    lowest_seq=min(lowest),
                    # A first load is not exported while something is pending that stands for it.
                    highest_seq=max((one.highest_seq for one in plan.segments), default=0),
                    coalesced=found.num_rows - table.num_rows,
                )
            )
            for batch in table.to_batches():
                yield plan.unit.first, plan.unit.first + size, batch

    def _without_replaced(self, table: pa.Table, *, is_whole: bool) -> pa.Table:
        """Leave out entries that a later one of their key replaces, if the queue says so.

        :param is_whole: whether the table has all settled entries of its unit. Then deletes are not needed for a state,
            apart from one in a unit without values: its segments are replaced by one that is not empty.
        """
        import pyarrow.compute as pc

        if self.queue.coalesce != LATEST:
            return table
        table = without_earlier(table, ("bucket", "key"), until=self.kept_from)
        if self.kept_from is None or not is_whole:
            return table
        first = pc.invert(same_as_before(table, ("bucket", "key")))
        is_old = pc.less_equal(table["seq"], self.kept_from)
        kept = table.filter(pc.invert(pc.and_(pc.and_(first, is_old), pc.is_null(table["value"]))))
        return kept if kept.num_rows else table.slice(0, 1)


class Merger(Protocol):
    """Merges the units of one publication, share by share."""

    @property
    def shares(self) -> int:
        """How many shares are merged at once; each is as large as what one process merges."""

    def merge(
        self, merge: Merge, shares: Sequence[Sequence[UnitPlan]], *, check: Callable[[], None]
    ) -> Sequence[Merged]:
        """Merge, and return all units of all shares, each once, in any order.

        :param shares: units, ascending; sometimes a few more shares than are merged at once.
        :param check: to call often; raises if the work is no longer needed.
        """


@dataclass(frozen=True, slots=True)
class LocalMerger(Merger):
    """Merges in this process."""

    database: Database

    @property
    @override
    def shares(self) -> int:
        return 1

    @override
    def merge(
        self, merge: Merge, shares: Sequence[Sequence[UnitPlan]], *, check: Callable[[], None]
    ) -> Sequence[Merged]:
        return [merge.run(self.database, plans, check) for plans in shares]
