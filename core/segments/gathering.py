"""The entries of many small segments and of rows as sorted tables in memory.

For compactions and moves, whose input is bounded: sorting it at once is much faster than merging thousands of sources
step by step, as :mod:`merging` does for drains.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from export_queue.core.queue import Entries, Position, Queue, Range, read_entries
from export_queue.core.segments.files import load_pyarrow
from export_queue.core.segments.model import Segment, by_file
from export_queue.core.segments.reading import read_slices
from export_queue.core.store import Database
from export_queue.core.transactions import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa

_READERS = 8
"""Files that are read at once, since an object store is slow to answer."""
_TABLES = 256
"""Maximum number of separate tables of a unit."""
_CHUNK_ROWS = 8192
_CHUNK_BYTES = 4 << 20


def read_files(segments: Iterable[Segment], *, check: Callable[[], None]) -> Mapping[int, list[pa.Table]]:
    """Read what is not drained of some segments, file by file.

    :param check: called after each file; raises if the work is no longer needed.
    :returns: tables by the first bucket of their unit.
    :raises SegmentLost: a file is missing or damaged.
    :raises SegmentUnavailable: a filesystem does not answer.
    """
    files = by_file(segments)
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
    """Add a table to those of its unit. Many small ones become one, since each takes kilobytes besides its entries."""
    sources.append(table)
    if len(sources) > _TABLES:
        sources[:] = [_joined(sources)]


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables([table.replace_schema_metadata(None) for table in tables]).combine_chunks()


def read_rows(database: Database, queue: Queue, settled: Snapshot, unit: Range) -> Iterator[Entries]:
    """Read the rows of a unit, each chunk in a SQL transaction of its own."""
    after: Position | None = None
    is_last = False
    while not is_last:
        with database.read() as work:
            chunk = read_entries(work, queue, settled, unit, after=after, rows=_CHUNK_ROWS, size=_CHUNK_BYTES)
        is_last = chunk.is_last or not chunk
        if chunk:
            after = chunk.position(len(chunk) - 1)
            yield chunk


def merged(sources: Sequence[pa.Table]) -> pa.Table:
    """Sort the entries of all sources by bucket, key and seq, and keep one of equal entries.

    A retried dead letter is a row, and may also be in files that have fallen back.
    """
    import pyarrow.compute as pc

    table = _joined(sources)
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in ("bucket", "key", "seq")])
    table = table.take(order).combine_chunks()
    return without_earlier(table, ("bucket", "key", "seq"))


def without_earlier(table: pa.Table, columns: Sequence[str], *, until: int | None = None) -> pa.Table:
    """Keep the last of neighbouring rows with equal values in some columns.

    :param until: rows that only a later seq than this one replaces are kept, too.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    again = same_as_before(table, columns)
    if until is not None:
        again = pc.and_(again, pc.less_equal(table["seq"].combine_chunks(), until))
    if not pc.any(again).as_py():
        return table
    return table.filter(pa.concat_arrays([pc.invert(again.slice(1)), pa.array([True])]))


def same_as_before(table: pa.Table, columns: Sequence[str]) -> pa.Array:
    """Return for each row whether the row before it has equal values in some columns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    count = max(table.num_rows - 1, 0)
    before, after = table.slice(0, count), table.slice(1)
    again = pa.chunked_array([pa.repeat(True, count)])
    for column in columns:
        again = pc.and_(again, pc.equal(after[column], before[column]))
    return pa.concat_arrays([pa.array([False] * min(table.num_rows, 1), pa.bool_()), again.combine_chunks()])


def table_of(chunks: Sequence[Entries]) -> pa.Table:
    """Return entries as one table."""
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
    return pa.Table.from_batches(batches, pa.schema(kinds))
