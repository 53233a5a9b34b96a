"""Giving what is pending for one reader to another one, with its sequences: files without a copy, rows as a new file.

A file then belongs to segments of several transactions: to those of its writer, and to those of first loads, which name
the writer. Clean-up deletes it when none of them is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from export_queue.core.errors import StateIncomplete
from export_queue.core.queue import Entries, Position, Queue, Range, find_queue, find_state, read_entries
from export_queue.core.segments.catalogue import begin_load
from export_queue.core.segments.gathering import table_of, without_earlier
from export_queue.core.segments.writing import by_unit, write_merged
from export_queue.core.store import Work, identity_of, layout_closed, queries
from export_queue.core.transactions import OpenTransaction, Snapshot

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK_ROWS = 8192
_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Shared:
    """What a first load has in common with a state."""

    rows: int
    """Rows of the state that were written into a file."""
    in_files: int
    """Entries in files of the state."""


def share_state(opened: OpenTransaction, state: Queue, reader: Queue, on_progress: Callable[[int], object]) -> Shared:
    """Stage everything that a state has for another reader of its queue, deletes and sequences included.

    Rows are read first. What a compaction moves into a file meanwhile is then found in the file, and what it drops is
    replaced by an entry that the reader has, too.

    :param opened: the first load of the reader; all transactions with smaller ids have ended.
    :param state: the state, with one layout, which is that of the reader.
    :param on_progress: called with the number of rows so far.
    :raises LayoutClosed: the buckets of the queue were altered meanwhile.
    :raises StateIncomplete: the state was switched off meanwhile.
    """
    database, load = opened.database, opened.id
    base = begin_load(database, opened)
    excluded = (one for one in opened.value.stored_snapshot.excluded if one < load)
    settled = Snapshot(load - 1, tuple(excluded))
    files = write_merged(
        _rows(opened, state, settled, on_progress),
        base=base,
        store_id=identity_of(database).store_id,
        transaction=load,
        name="state",
    )
    with database.begin() as work:
        database.dialect.steps.hold_long(
            work.connection, load, (reader.number,), store_id=identity_of(database).store_id
        )
        # With this held, no alteration of the queue is in progress: it has ended, or waits for this SQL transaction.
        _check_unchanged(work, state, reader)
        found = queries.segments.hold_pending(work, state.number, below=load, unless=reader.number)
        shared = [
            {
                **row,
                "queue_number": reader.number,
                "written_by": row["written_by"] or row["transaction_id"],
                # It stands for the load: waits for this look for pending segments with its sequence.
                "highest_seq": max(load, row["highest_seq"]),
                "add_order": 0,
            }
            for row in found
        ]
        own = [file.columns(part, reader, highest_seq=load) for file in files for part in file.slices]
        queries.segments.stage_former(work, load, [*own, *shared])
    return Shared(sum(file.entries for file in files), sum(row["entries"] for row in found))


def _check_unchanged(work: Work, state: Queue, reader: Queue) -> None:
    if find_state(work, reader.source).number != state.number:
        raise StateIncomplete(f"the state of queue {reader.source!r} was switched off and on")
    if any(find_queue(work, one.id).layout != state.layout for one in (state, reader)):
        raise layout_closed(f"queue {reader.source!r}")


def _rows(
    opened: OpenTransaction, state: Queue, settled: Snapshot, on_progress: Callable[[int], object]
) -> Iterator[tuple[int, int, pa.RecordBatch]]:
    """Read the rows of a state, of each key the latest one; yield first bucket, end and entries of each unit."""
    rows = 0
    for chunk in _chunks(opened, state, settled):
        table = without_earlier(table_of([chunk]), ("bucket", "key"))
        rows += table.num_rows
        for batch in table.combine_chunks().to_batches():
            for unit, part in by_unit(batch, state.buckets_per_range):
                yield unit * state.buckets_per_range, (unit + 1) * state.buckets_per_range, part
        on_progress(rows)


def _chunks(opened: OpenTransaction, state: Queue, settled: Snapshot) -> Iterator[Entries]:
    after: Position | None = None
    is_last = False
    within = Range(0, state.buckets, state.layout)
    while not is_last:
        with opened.database.read() as work:
            chunk = read_entries(
                work, state, settled, within, after=after, rows=_CHUNK_ROWS, size=_CHUNK_BYTES, whole_keys=True
            )
        is_last = chunk.is_last or not chunk
        if chunk:
            after = chunk.position(len(chunk) - 1)
            yield chunk
