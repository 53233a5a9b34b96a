"""The entries of many small segments, and of rows, of a unit as one sorted table in memory.

For what a compaction merges, which is bounded: to sort it at once takes a small part of the time of merging thousands
of sources by turns, as :mod:`merging` does for drains.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from export_queue.core.queue import Entries, Position, Queue, Range, read_entries
from export_queue.core.segments.files import load_pyarrow
from export_queue.core.segments.model import Segment
from export_queue.core.segments.reading import read_slices
from export_queue.core.store import Database
from export_queue.core.transactions import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa

_READERS = 8
"""Files that are read at once: an object store takes its time with each."""
_TABLES = 256
"""So many tables of a unit are kept apart."""
_CHUNK_ROWS = 8192
_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of one unit, and where they stood."""

    table: pa.Table
    first: Position
    last: Position


def read_files(segments: Iterable[Segment], *, check: Callable[[], None]) -> Mapping[int, list[pa.Table]]:
    """Read what is left of segments, file by file; by the first bucket of their unit, in the order of their ids.

    :param check: raises where it is no use to go on; called after each file.
    :raises SegmentLost: a file is missing or damaged.
    :raises SegmentUnavailable: a filesystem does not answer.
    """
    by_file: defaultdict[str, list[Segment]] = defaultdict(list)
    for segment in segments:
        by_file[segment.file].append(segment)
    # A file has one slice of a unit, and numbers of its own among those of its transaction.
    files = sorted(by_file.values(), key=lambda of_file: min((one.transaction, one.number) for one in of_file))
    found: defaultdict[int, list[pa.Table]] = defaultdict(list)
    with ThreadPoolExecutor(_READERS, thread_name_prefix="export-queue-files") as pool:
        try:
            for of_file, tables in zip(files, pool.map(read_slices, files), strict=True):
                for segment, table in zip(of_file, tables, strict=True):
                    _append(found[segment.first], table)
                check()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


def _append(sources: list[pa.Table], table: pa.Table) -> None:
    """Add a table to those of its unit; many small ones become one, since each takes kilobytes beside its entries."""
    sources.append(table)
    if len(sources) > _TABLES:
        sources[:] = [_joined(sources)]


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables([table.replace_schema_metadata(None) for table in tables]).combine_chunks()


def read_rows(database: Database, queue: Queue, settled: Snapshot, unit: Range) -> StoredRows | None:
    """Read the rows of a unit, in short SQL transactions; None where there are none."""
    chunks: list[Entries] = []
    after: Position | None = None
    while not chunks or not chunks[-1].is_last:
        with database.read() as work:
            chunk = read_entries(work, queue, settled, unit, after=after, rows=_CHUNK_ROWS, size=_CHUNK_BYTES)
        if not chunk:
            break
        chunks.append(chunk)
        after = chunk.position(len(chunk) - 1)
    if not chunks or after is None:
        return None
    return StoredRows(_table(chunks), chunks[0].position(0), after)


def merged(sources: Sequence[pa.Table]) -> pa.Table:
    """Sort the entries of all sources by bucket, key and seq; of equal entries one stays.

    A retried dead letter is a row, and may wait once more in files that have fallen back.
    """
    import pyarrow.compute as pc

    table = _joined(sources)
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in ("bucket", "key", "seq")])
    table = table.take(order).combine_chunks()
    return without_earlier(table, ("bucket", "key", "seq"))


def repeats(table: pa.Table, columns: Sequence[str]) -> pa.BooleanArray:
    """Tell of each row but the last whether the one behind it has the same in some columns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    count = max(table.num_rows - 1, 0)
    before, after = table.slice(0, count), table.slice(1)
    same = pa.chunked_array([pa.repeat(True, count)])
    for column in columns:
        same = pc.and_(same, pc.equal(after[column], before[column]))
    return same.combine_chunks()


def without_earlier(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Of neighbouring rows that have the same in some columns, leave the last."""
    import pyarrow as pa
    import pyarrow.compute as pc

    again = repeats(table, columns)
    if not pc.any(again).as_py():
        return table
    return table.filter(pa.concat_arrays([pc.invert(again), pa.array([True])]))


def _table(chunks: Sequence[Entries]) -> pa.Table:
    pa = load_pyarrow()
    kinds = {"bucket": pa.int32(), "key": pa.binary(), "seq": pa.int64(), "value": pa.binary()}
    batches = [
        pa.RecordBatch.from_arrays(
            [
                pa.array(column, kind)
                for column, kind in zip((one.buckets, one.keys, one.seqs, one.values), kinds.values(), strict=True)
            ],
            names=list(kinds),
        )
        for one in chunks
    ]
    return pa.Table.from_batches(batches)
