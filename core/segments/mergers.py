"""Who reads what a compaction merges, and writes it: this process, or others that are told by plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from export_queue.core.queue import LATEST, Queue
from export_queue.core.segments.candidates import UnitPlan
from export_queue.core.segments.gathering import merged, read_files, read_rows, without_earlier
from export_queue.core.segments.merged_unit import MergedUnit
from export_queue.core.segments.model import FileReport
from export_queue.core.segments.writing import write_merged
from export_queue.core.store import Database
from export_queue.core.transactions import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Merged:
    """What was merged of some units; nothing of it counts before its publication."""

    units: tuple[MergedUnit, ...]
    files: tuple[FileReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """All that merging needs beside the store and the units; it may travel to another process.

    :param settled: decides which rows are read.
    :param base: URL of the folder of all segments.
    :param transaction: id of the long transaction in whose folder files are written.
    """

    queue: Queue
    settled: Snapshot
    base: str
    store_id: str
    transaction: int

    def run(self, database: Database, plans: Sequence[UnitPlan], check: Callable[[], None]) -> Merged:
        """Merge some units into one file; to be called again for the same units is harmless: it writes another file.

        :param plans: units, ascending.
        :param check: raises where it is no use to go on.
        :raises SegmentLost: a file is missing or damaged.
        :raises SegmentUnavailable: a filesystem does not answer.
        """
        units: list[MergedUnit] = []
        files = write_merged(
            self._tables(database, plans, units, check),
            base=self.base,
            store_id=self.store_id,
            transaction=self.transaction,
            name="compaction",
        )
        return Merged(tuple(units), tuple(files))

    def _tables(
        self, database: Database, plans: Sequence[UnitPlan], units: list[MergedUnit], check: Callable[[], None]
    ) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Yield the entries of each unit; what they were made of is appended to ``units``."""
        size = self.queue.buckets_per_range
        tables = read_files((segment for plan in plans for segment in plan.segments), check=check)
        for plan in plans:
            sources = list(tables[plan.unit.first])
            stored = read_rows(database, self.queue, self.settled, plan.unit) if plan.rows else None
            check()
            if stored is not None:
                sources.append(stored.table)
            found = merged(sources)
            table = without_earlier(found, ("bucket", "key")) if self.queue.coalesce == LATEST else found
            units.append(MergedUnit.of(plan, sum(source.num_rows for source in sources), stored, found, table))
            for batch in table.to_batches():
                yield plan.unit.first // size * size, plan.unit.first // size * size + size, batch


class Merger(Protocol):
    """Merges the units of one publication, share by share."""

    @property
    def shares(self) -> int:
        """How many shares are worked on at once; each is as large as what one process merges."""

    def merge(
        self, merge: Merge, shares: Sequence[Sequence[UnitPlan]], *, check: Callable[[], None]
    ) -> Sequence[Merged]:
        """Merge; what comes back is all units of all shares, each once.

        :param shares: units, ascending; sometimes a few more shares than are worked on at once.
        :param check: to be called again and again; raises where it is no use to go on.
        """


@dataclass(frozen=True, slots=True)
class LocalMerger:
    """Merges in this process."""

    database: Database

    @property
    def shares(self) -> int:
        """One after the other."""
        return 1

    def merge(
        self, merge: Merge, shares: Sequence[Sequence[UnitPlan]], *, check: Callable[[], None]
    ) -> Sequence[Merged]:
        """Merge one share after the other."""
        return [merge.run(self.database, plans, check) for plans in shares]
