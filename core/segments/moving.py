"""Moving what waits in units of an older layout into the current one: what was written, and its publication.

The entries of segments are written into other files than rows: their segments stand for the inputs, all together, and
give way to them if a file is lost. Those of rows stand for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from export_queue.core.errors import LeaseLost
from export_queue.core.locks import Lease, give_back, hold
from export_queue.core.queue import Position, Queue, Range, buckets_of, queue_of, remove_span
from export_queue.core.segments.files import load_pyarrow
from export_queue.core.segments.merging import Chunk
from export_queue.core.segments.model import FileReport, Segment
from export_queue.core.segments.writing import by_unit, write_merged
from export_queue.core.store import Work, identity_of, layout_closed, queries
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


def publish(
    work: Work,
    older: Queue,
    target: Queue,
    transaction: int,
    settled: Snapshot,
    leases: Sequence[Lease],
    units: Sequence[MovedUnit],
    written: Sequence[WrittenPart],
) -> None:
    """Let what was written stand in the place of all that was read, and end its transaction and its locks.

    The target is the layout in which the transaction adds: it stays open until the transaction has ended, though the
    queue be altered meanwhile.

    :param older: the queue in the layout of the units.
    :param target: the queue in the layout of what was written.
    :param transaction: the long one that has written the files.
    :param settled: what was read by.
    :param leases: interval locks on all units.
    :raises LeaseLost: a lock is not held any more, or rows have come back among those that were read.
    :raises LayoutClosed: the queue was altered as the target was chosen: the transaction adds to another layout.
    """
    steps = work.database.dialect.steps
    queries.readers.hold_as_commits_do(work, older.source_number)
    # Behind it: whoever alters the queue has ended, or waits until this SQL transaction has.
    if queue_of(work, older.id, transaction).layout != target.layout:
        raise layout_closed(f"queue {older.id!r}")
    steps.hold_long(work.connection, transaction, (), store_id=identity_of(work.database).store_id)
    now_ms = hold(work, *leases)
    for unit in units:
        _remove_rows(work, older, settled, unit)
    # The new segments count as no younger than their inputs, because they may be replaced by them again.
    lowest = [segment.lowest_seq for unit in units for segment in unit.segments]
    queries.compactions.insert(work, target.number, _merged(target, transaction, written, lowest))
    names = [(segment.transaction, segment.number) for unit in units for segment in unit.segments]
    if names:
        replaced = dict.fromkeys(names, (transaction, queries.compactions.ALL))
        hidden = queries.compactions.hide(work, older.number, replaced, now_ms=now_ms)
        if hidden != len(names):
            raise LeaseLost(f"queue {older.id!r}: expected {len(names)} pending segments, found {hidden}")
    steps.end_long(work.connection, transaction)
    give_back(work, leases)


def _remove_rows(work: Work, older: Queue, settled: Snapshot, unit: MovedUnit) -> None:
    if not unit.rows or unit.first is None or unit.last is None:
        return
    removed = remove_span(work, older, settled, unit.first, unit.last)
    if removed != unit.rows:
        raise LeaseLost(f"{unit.unit}: expected {unit.rows} rows under the lock, found {removed}")


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
