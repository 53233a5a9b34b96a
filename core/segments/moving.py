"""Moving what waits in units of an older layout into the current one: what was written, and its publication.

The entries of segments are written into other files than rows: their segments stand for the inputs, all together, and
give way to them if a file is lost. Those of rows stand for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from export_queue.core.locks import Lease
from export_queue.core.queue import Position, Queue, Range, buckets_of
from export_queue.core.segments.files import load_pyarrow
from export_queue.core.segments.merging import Chunk
from export_queue.core.segments.model import FileReport, Segment
from export_queue.core.segments.publication import MergedRows, Publication
from export_queue.core.segments.writing import by_unit, write_merged
from export_queue.core.store import queries
from export_queue.core.transactions import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa

FILE_NAME = "rewritten"
"""First part of the names of files."""


@dataclass(slots=True)
class MovedUnit:
    """What was read of one unit."""

    unit: Range
    segments: Sequence[Segment]
    """All that wait there."""
    rows: int = 0
    read: int = 0
    """Entries of its segments that were not drained, and rows."""
    written: int = 0
    first: Position | None = None
    last: Position | None = None

    def add(self, chunk: Chunk) -> None:
        """Count the next entries."""
        self.rows += chunk.rows
        self.read += chunk.rows + sum(len(run.rows) for run in chunk.runs)
        self.written += len(chunk.entries)
        self.first = self.first or chunk.entries.position(0)
        self.last = chunk.entries.position(len(chunk.entries) - 1)

    @property
    def merged_rows(self) -> MergedRows | None:
        """The rows that are deleted at the publication."""
        if not self.rows or self.first is None or self.last is None:
            return None
        return MergedRows(unit=self.unit, count=self.rows, first=self.first, last=self.last)


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """A file of entries in their new places."""

    report: FileReport
    seqs: dict[int, tuple[int, int]]
    """Lowest and highest sequence in each unit, by its first bucket."""
    of_rows: bool
    """Whether its entries were rows; else they were in segments."""


@dataclass(slots=True, kw_only=True)
class Pieces:
    """Takes entries in the order of their older layout, and writes files in that of another one; of bounded memory.

    :param target: the queue in the layout that is written for.
    :param base: URL of the folder of all segments.
    :param transaction: id of the long transaction in whose folder files are written.
    :param most_bytes: so much of the entries, as Arrow has them, is written at once.
    """

    target: Queue
    base: str
    store_id: str
    transaction: int
    most_bytes: int
    written: list[WrittenPart] = field(default_factory=list)
    _pending: dict[bool, list[pa.RecordBatch]] = field(default_factory=lambda: {False: [], True: []})
    """By whether they were rows."""
    _bytes: int = 0

    def add(self, chunk: Chunk) -> bool:
        """Take entries in; tell whether a piece was written."""
        import pyarrow as pa
        import pyarrow.compute as pc

        batch = self._laid_out(chunk)
        if not chunk.runs or not chunk.rows:
            self._pending[not chunk.runs].append(batch)
        else:
            found = {(row[1], row[2]) for run in chunk.runs for row in run.rows}
            places = zip(chunk.entries.keys, chunk.entries.seqs, strict=True)
            in_segments = pa.array([place in found for place in places])
            self._pending[False].append(batch.filter(in_segments))
            self._pending[True].append(batch.filter(pc.invert(in_segments)))
        self._bytes += batch.nbytes
        if self._bytes < self.most_bytes:
            return False
        self.end()
        return True

    def end(self) -> None:
        """Write what is left."""
        for of_rows, batches in self._pending.items():
            if any(batch.num_rows for batch in batches):
                self.written.append(self._write(batches, of_rows=of_rows))
            batches.clear()
        self._bytes = 0

    def _laid_out(self, chunk: Chunk) -> pa.RecordBatch:
        pa, entries = load_pyarrow(), chunk.entries
        columns = {
            "bucket": pa.array(buckets_of(entries.keys, self.target.buckets), pa.int32()),
            "key": pa.array(entries.keys, pa.binary()),
            "seq": pa.array(entries.seqs, pa.int64()),
            "value": pa.array(entries.values, pa.binary()),
        }
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _write(self, batches: Sequence[pa.RecordBatch], *, of_rows: bool) -> WrittenPart:
        import pyarrow as pa
        import pyarrow.compute as pc

        size = self.target.buckets_per_range
        table = pa.Table.from_batches(batches)
        table = table.sort_by([(name, "ascending") for name in ("bucket", "key", "seq")]).combine_chunks()
        seqs: dict[int, tuple[int, int]] = {}
        parts = []
        for batch in table.to_batches():
            for unit, part in by_unit(batch, size):
                found = pc.min_max(part["seq"]).as_py()
                known = seqs.get(unit * size, (found["min"], found["max"]))
                seqs[unit * size] = (min(known[0], found["min"]), max(known[1], found["max"]))
                parts.append((unit * size, (unit + 1) * size, part))
        (report,) = write_merged(
            parts, base=self.base, store_id=self.store_id, transaction=self.transaction, name=FILE_NAME
        )
        return WrittenPart(report, seqs, of_rows)


def publication(
    older: Queue,
    target: Queue,
    transaction: int,
    settled: Snapshot,
    leases: Sequence[Lease],
    units: Sequence[MovedUnit],
    written: Sequence[WrittenPart],
) -> Publication:
    """Describe the replacement of all that was read in some units by what was written.

    :param older: the queue in the layout of the units.
    :param target: the queue in the layout of what was written: the one in which the transaction adds.
    :param leases: interval locks on all units.
    """
    # The new segments count as no younger than their inputs, because they may be replaced by them again.
    lowest = [segment.lowest_seq for unit in units for segment in unit.segments]
    names = [(segment.transaction, segment.number) for unit in units for segment in unit.segments]
    return Publication(
        queue=older,
        target=target,
        transaction=transaction,
        settled=settled,
        leases=leases,
        rows=[rows for unit in units if (rows := unit.merged_rows) is not None],
        merged=_merged(target, transaction, written, lowest),
        replaced=dict.fromkeys(names, (transaction, queries.compactions.ALL)),
    )


def _merged(
    target: Queue, transaction: int, written: Sequence[WrittenPart], lowest: Sequence[int]
) -> list[queries.compactions.Merged]:
    """Make the new segments.

    :param lowest: lowest sequences of the segments that they replace.
    """
    numbers = count(1)
    return [
        queries.compactions.Merged(
            segment=(transaction, next(numbers)),
            columns=piece.report.columns(part, target, seqs=_seqs(piece, part.first, lowest)),
            row_entries=part.entries if piece.of_rows else 0,
        )
        for piece in written
        for part in piece.report.slices
    ]


def _seqs(piece: WrittenPart, first: int, lowest: Sequence[int]) -> tuple[int, int]:
    low, high = piece.seqs[first]
    return (low if piece.of_rows else min(low, *lowest)), high
