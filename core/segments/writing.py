"""Writing sorted entries into Parquet files, which do not count until they are staged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

import orjson

from export_queue.core.codecs import MAX_KEY_BYTES
from export_queue.core.errors import EntryError, InvalidArgument
from export_queue.core.segments.files import Written, check_base, create, delete_files, joined, load_pyarrow, translated
from export_queue.core.segments.model import FileReport, Slice
from export_queue.core.segments.verified_file import FILE, GROUPS, STORE, TRANSACTION

if TYPE_CHECKING:
    import pyarrow as pa

GROUP_ROWS = 1 << 16
GROUP_BYTES = 1 << 20
"""Maximum rows and bytes of a row group, unless one entry is larger. A drain holds one row group of each slice that it
merges in memory."""
TARGET_BYTES = 128 << 20
OnDuplicate = Literal["error", "keep_last"]


def write_segments(
    batches: Iterable[pa.RecordBatch],
    *,
    base: str,
    store_id: str,
    transaction: int,
    name: str,
    buckets_per_range: int,
    target_bytes: int = TARGET_BYTES,
    on_duplicate: OnDuplicate = "error",
    max_value_bytes: int | None = None,
) -> list[FileReport]:
    """Write entries into files of a long transaction. They count once they are staged and it commits.

    Each call writes its own files. If a task is repeated, clean-up deletes the files that are not staged.

    :param batches: columns ``bucket``, ``key`` and ``value``, sorted by bucket and key, keys as unsigned bytes; a null
        value deletes the record.
    :param base: the place of the store's segments.
    :param transaction: id of the transaction, and the sequence of its entries.
    :param name: first part of the files' names, such as partition and attempt.
    :param buckets_per_range: buckets of one unit of the queue.
    :param target_bytes: approximate size at which the next file begins.
    :param on_duplicate: what to do about repeated keys: raise an error, or keep the last entry.
    :param max_value_bytes: maximum size of a value; None for no limit.
    :returns: the files, for :func:`stage_segments`; none if there are no entries.
    :raises EntryError: a key or value is refused, the entries are not sorted, or a key is repeated.
    :raises SegmentUnavailable: the filesystem does not answer, or refuses.
    """
    if on_duplicate not in ("error", "keep_last"):
        raise InvalidArgument(f"on_duplicate: expected error or keep_last, found {on_duplicate!r}")
    load_pyarrow()
    with _Files(base, store_id, transaction, name, target_bytes) as files:
        for batch in in_order(_checked(batches, name, max_value_bytes), name, on_duplicate):
            for unit, part in by_unit(batch, buckets_per_range):
                files.add(unit * buckets_per_range, (unit + 1) * buckets_per_range, part)
        return files.end()


def write_merged(
    batches: Iterable[tuple[int, int, pa.RecordBatch]],
    *,
    base: str,
    store_id: str,
    transaction: int,
    name: str,
) -> list[FileReport]:
    """Write one file of entries that were checked when they were added, and keep their sequences.

    :param batches: first bucket and end of a unit, and entries: columns ``bucket``, ``key``, ``value`` and ``seq``, in
        the order of bucket, key and seq; the units ascend.
    :param transaction: id of the long transaction that owns the file.
    """
    load_pyarrow()
    with _Files(base, store_id, transaction, name, None) as files:
        for first, end, batch in batches:
            files.add(first, end, batch)
        return files.end()


def folder_of(base: str, store_id: str, transaction: int) -> str:
    """Return the folder of a long transaction's files."""
    return joined(check_base(base), store_id, str(transaction))


def _checked(batches: Iterable[pa.RecordBatch], name: str, max_value_bytes: int | None) -> Iterator[pa.RecordBatch]:
    """Cast columns to the types of the files, and check keys and values."""
    import pyarrow as pa

    wanted = {"bucket": pa.int32(), "key": pa.binary(), "value": pa.binary()}
    for batch in batches:
        missing = wanted.keys() - set(batch.schema.names)
        if missing:
            raise EntryError(f"{name}: expected columns bucket, key and value, found {', '.join(batch.schema.names)}")
        if not batch.num_rows:
            continue
        columns = []
        for column, kind in wanted.items():
            array = batch.column(column)
            try:
                columns.append(array.cast(kind))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise EntryError(f"{name}: column {column}: expected {kind}, found {array.type}: {error}") from error
        bucket, key, value = columns
        for column, array in (("bucket", bucket), ("key", key)):
            if array.null_count:
                raise EntryError(f"{name}: column {column}: expected no null, found {array.null_count}")
        check_sizes(name, key, value, max_value_bytes)
        yield pa.RecordBatch.from_arrays([bucket, key, value], names=list(wanted))


def check_sizes(name: str, key: Any, value: Any, max_value_bytes: int | None, *, rows: bool = False) -> None:
    """Check the bytes of keys and values.

    :param name: what they belong to, for the error.
    :param max_value_bytes: maximum size of a value; None for no limit.
    :param rows: whether the error gives the number of the row.
    """
    column, found = "key", _refused_size(key, 1, MAX_KEY_BYTES)
    if found is None and max_value_bytes is not None:
        column, found = "value", _refused_size(value, 0, max_value_bytes)
    if found is None:
        return
    at, problem = found
    row = f", row {at}" if rows else ""
    hint = "give the queue a larger max_value_bytes, or add a reference instead of the content"
    raise EntryError(
        f"{name}: column {column}{row} of key {key[at].as_py()[:60]!r}: {problem}",
        hint=hint if column == "value" else None,
    )


def _refused_size(array: Any, least: int, most: int) -> tuple[int, str] | None:
    """Find the first value whose size is out of bounds: its position and the problem."""
    import pyarrow.compute as pc

    sizes = pc.binary_length(array)
    found = pc.min_max(sizes).as_py()
    if found["min"] is None or (found["min"] >= least and found["max"] <= most):
        return None
    at = next(i for i, size in enumerate(sizes.to_pylist()) if size is not None and not least <= size <= most)
    return at, f"expected {least} to {most} bytes, found {sizes[at].as_py()}"


def duplicate_key(name: str, key: bytes) -> EntryError:
    return EntryError(
        f"{name}: key {key[:60]!r} comes more than once",
        hint="keep one of its rows, or pass on_duplicate='keep_last'",
    )


def in_order(batches: Iterable[pa.RecordBatch], name: str, on_duplicate: OnDuplicate) -> Iterator[pa.RecordBatch]:
    """Check the order of batches of entries, and handle repeated keys.

    :raises EntryError: the entries are not sorted, or a key is repeated.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    pending: pa.RecordBatch | None = None  # the last row, whose key the next batch may repeat
    for batch in batches:
        rows = batch
        if pending is not None:
            rows = pa.Table.from_batches([pending, batch]).combine_chunks().to_batches()[0]
        count = rows.num_rows - 1
        before, after = rows.slice(0, count), rows.slice(1)
        same_bucket = pc.equal(after["bucket"], before["bucket"])
        falls = pc.or_(
            pc.less(after["bucket"], before["bucket"]), pc.and_(same_bucket, pc.less(after["key"], before["key"]))
        )
        if (at := pc.index(falls, True).as_py()) >= 0:
            raise EntryError(
                f"{name}: expected entries sorted by bucket and key, found bucket {rows['bucket'][at + 1]}, key "
                f"{rows['key'][at + 1].as_py()[:60]!r} after bucket {rows['bucket'][at]}, key "
                f"{rows['key'][at].as_py()[:60]!r}"
            )
        again = pc.and_(same_bucket, pc.equal(after["key"], before["key"]))
        if (at := pc.index(again, True).as_py()) >= 0:
            if on_duplicate == "error":
                raise duplicate_key(name, rows["key"][at].as_py())
            rows = rows.filter(pa.concat_arrays([pc.invert(again), pa.array([True])]))
        yield rows.slice(0, rows.num_rows - 1)
        pending = rows.slice(rows.num_rows - 1)
    if pending is not None:
        yield pending


def by_unit(batch: pa.RecordBatch, buckets_per_range: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut a sorted batch into units; yield the number and the entries of each."""
    import pyarrow as pa
    import pyarrow.compute as pc

    units = pc.run_end_encode(pc.divide(batch["bucket"], pa.scalar(buckets_per_range, pa.int32())))
    start = 0
    for unit, end in zip(units.values.to_pylist(), units.run_ends.to_pylist(), strict=True):
        yield unit, batch.slice(start, end - start)
        start = end


class _Files:
    """The files of one call, written one after the other."""

    def __init__(self, base: str, store_id: str, transaction: int, name: str, target_bytes: int | None) -> None:
        self._folder, self._name, self._transaction = folder_of(base, store_id, transaction), name, transaction
        self._store_id, self._target_bytes = store_id, target_bytes
        self._reports: list[FileReport] = []
        self._open = contextlib.ExitStack()
        self._url = ""
        self._output: Written | None = None
        self._writer: Any = None
        self._slices: list[Slice] = []
        self._groups: list[tuple[int, str]] = []
        """End and checksum of each row group of the open file."""
        self._unit: tuple[int, int] | None = None
        self._parts: list[pa.RecordBatch] = []
        """Of the next row group."""
        self._rows = self._bytes = 0
        """Of these parts, in Arrow's memory."""

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._open.__exit__(kind, error, trace)
        if kind is not None:  # the files will never be staged
            delete_files(report.file for report in self._reports)

    def add(self, first: int, end: int, part: pa.RecordBatch) -> None:
        if self._unit != (first, end):
            self._end_group()
            self._unit = (first, end)
        if part.num_rows > 1 and (part.num_rows > GROUP_ROWS or part.nbytes > GROUP_BYTES):
            half = part.num_rows // 2
            self.add(first, end, part.slice(0, half))
            self.add(first, end, part.slice(half))
            return
        if self._parts and (self._rows + part.num_rows > GROUP_ROWS or self._bytes + part.nbytes > GROUP_BYTES):
            self._end_group()
        self._parts.append(part)
        self._rows += part.num_rows
        self._bytes += part.nbytes

    def end(self) -> list[FileReport]:
        self._end_group()
        self._end_file()
        return self._reports

    def _end_group(self) -> None:
        if not self._parts:
            return
        import pyarrow as pa

        table = pa.Table.from_batches(self._parts)
        if "seq" not in table.schema.names:
            seq = pa.repeat(pa.scalar(self._transaction, pa.int64()), table.num_rows)
            table = table.add_column(2, "seq", seq)
        with translated(self._url or self._folder):
            if self._writer is None:
                self._begin_file(table.schema)
            assert self._output is not None
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._groups.append((self._output.bytes, self._output.end_section()))
        self._extend(table)
        self._parts, self._rows, self._bytes = [], 0, 0
        if self._target_bytes is not None and self._output.bytes >= self._target_bytes:
            self._end_file()

    def _extend(self, group: pa.Table) -> None:
        """Add a row group to the slice of its unit."""
        import pyarrow.compute as pc

        assert self._unit is not None
        size = sum(pc.sum(pc.binary_length(group[column])).as_py() or 0 for column in ("key", "value"))
        seqs = pc.min_max(group["seq"]).as_py()
        number = len(self._groups) - 1
        found = Slice(
            *self._unit,
            row_group_first=number,
            row_group_end=number + 1,
            entries=group.num_rows,
            bytes=size,
            largest_value=pc.max(pc.binary_length(group["value"])).as_py() or 0,
            lowest_seq=seqs["min"],
            highest_seq=seqs["max"],
        )
        if self._slices and self._slices[-1].first == found.first:
            found = self._slices.pop() + found
        self._slices.append(found)

    def _begin_file(self, schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        self._url = joined(self._folder, f"{self._name}-{uuid4().hex}.parquet")
        self._output = self._open.enter_context(create(self._url))
        self._writer = pq.ParquetWriter(
            self._output,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=["bucket", "seq"],
            write_statistics=["bucket", "key", "seq"],
        )

    def _end_file(self) -> None:
        if self._writer is None:
            return
        assert self._output is not None
        footer = {
            STORE: self._store_id,
            TRANSACTION: str(self._transaction),
            FILE: self._url.partition("?")[0].rpartition("/")[2],
            GROUPS: orjson.dumps(self._groups),
        }
        before = self._output.bytes
        with translated(self._url):
            self._writer.add_key_value_metadata(footer)
            self._writer.close()
            self._open.close()
        size = self._output.bytes
        self._reports.append(
            FileReport(self._url, size, size - before, self._output.end_section(), tuple(self._slices))
        )
        self._writer, self._output, self._url = None, None, ""
        self._slices, self._groups = [], []
