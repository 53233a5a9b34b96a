"""Adding Arrow tables to a queue in a transaction: as files in a long one, as rows in any other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, get_args

from export_queue.core.errors import EntryError, ExportQueueError, InvalidArgument, StoreError
from export_queue.core.queue import Queue, QueueWriter, bucket_column, hash_column, queue_of
from export_queue.core.segments.catalogue import begin_load, stage_segments
from export_queue.core.segments.files import delete_files, load_pyarrow
from export_queue.core.segments.one_entry import remember_keys
from export_queue.core.segments.writing import OnDuplicate, check_sizes, duplicate_key, write_segments
from export_queue.core.store import identity_of

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 1 << 16
_BATCH_BYTES = 16 << 20
"""Maximum rows and bytes of a batch, unless one entry is larger."""


class BulkWriter(QueueWriter):
    """One queue in a transaction, which also takes tables."""

    def add_batch(self, batch: pa.Table | pa.RecordBatch, *, on_duplicate: OnDuplicate = "error") -> int:
        """Add all rows of an Arrow table.

        A long transaction writes each table into files at once, so the tables need not fit into memory together. Any
        other transaction adds the rows one by one.

        :param batch: columns ``key`` and ``value``, for the queue's codecs; a null value deletes the record.
        :param on_duplicate: what to do about repeated keys in the table: raise an ``error``, or ``keep_last``. If two
            tables have the same key, the later table counts.
        :returns: the number of rows.
        :raises EntryError: a key or value is refused, or a key is repeated; nothing of the table is added.
        :raises InvalidArgument: pyarrow is not installed, or the store has no place for files.
        :raises SegmentUnavailable: the filesystem does not answer, or refuses.
        """
        pa = load_pyarrow()
        if on_duplicate not in get_args(OnDuplicate):
            raise InvalidArgument(f"on_duplicate: expected error or keep_last, found {on_duplicate!r}")
        if not isinstance(batch, pa.Table | pa.RecordBatch):
            raise InvalidArgument(
                f"expected an Arrow table or record batch, found {type(batch).__name__}",
                hint="convert it, as with pyarrow.Table.from_pandas(frame) or pyarrow.Table.from_pylist(rows)",
            )
        queue = self._queue
        named, column = (_checked(queue, batch, name) for name in ("key", "value"))
        keys = _encoded(queue, "key", named, lambda key, _: queue.encode_key(key))
        values = _encoded(queue, "value", column, lambda value, row: queue.encode_value(value, key=named[row].as_py()))
        check_sizes(f"queue {queue.id!r}", keys, values, queue.max_value_bytes, rows=True)
        if self._transaction.kind == "long":
            self._write(keys, values, on_duplicate)
        else:
            self._add_rows(keys.to_pylist(), values.to_pylist(), on_duplicate)
        return int(batch.num_rows)

    @property
    def has_place(self) -> bool:
        """Whether entries can be added as files: the store has a place for them, and pyarrow is installed."""
        return self._transaction.database.segments is not None and find_spec("pyarrow") is not None

    def add_encoded_rows(self, entries: Mapping[bytes, bytes | None]) -> None:
        """Add entries whose keys and values are encoded and checked as rows, and stage them."""
        self._put(entries)
        self._transaction.flush()

    def add_encoded(self, batches: Sequence[pa.RecordBatch], *, in_files: bool) -> None:
        """Add entries whose keys and values are encoded and checked, and stage them.

        :param batches: columns ``key`` and ``value``; no key comes twice.
        :param in_files: write files, in a long transaction; else add rows.
        """
        import pyarrow as pa

        table = pa.Table.from_batches(batches).combine_chunks()
        keys, values = (table[name].cast(pa.large_binary()).combine_chunks() for name in ("key", "value"))
        if in_files:
            self._write(keys, values, "error")
        else:
            self.add_encoded_rows(dict(zip(keys.to_pylist(), values.to_pylist(), strict=True)))

    def _add_rows(self, keys: Sequence[bytes], values: Sequence[bytes | None], on_duplicate: OnDuplicate) -> None:
        if on_duplicate == "error" and len(set(keys)) < len(keys):
            raise duplicate_key(f"queue {self._queue.id!r}", Counter(keys).most_common(1)[0][0])
        self._put(dict(zip(keys, values, strict=True)))

    def _write(self, keys: pa.Array, values: pa.Array, on_duplicate: OnDuplicate) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        queue, opened = self._queue, self._transaction
        if not len(keys):
            return
        base = begin_load(opened.database, opened)
        with opened.database.read() as work:  # the cached queue may be a minute old
            queue = queue_of(work, queue.id, opened.id)
        hashes = hash_column(keys)
        buckets = bucket_column(hashes, queue.buckets)
        sortable = pa.table({"bucket": buckets, "key": keys})
        # Stable: the last of equal keys stays the last.
        order = pc.sort_indices(sortable, sort_keys=[("bucket", "ascending"), ("key", "ascending")])
        reports = write_segments(
            _in_batches({"bucket": buckets, "key": keys, "value": values}, order),
            base=base,
            store_id=identity_of(opened.database).store_id,
            transaction=opened.id,
            name="batch",
            buckets_per_range=queue.buckets_per_range,
            on_duplicate=on_duplicate,
            max_value_bytes=queue.max_value_bytes,
        )
        try:
            stage_segments(opened.database, opened, queue, reports)
        except ExportQueueError as error:
            if not isinstance(error, StoreError):  # else they may be staged
                delete_files(report.file for report in reports)
            raise
        found = hashes if on_duplicate == "error" else pc.unique(hashes)
        remember_keys(opened, (report.file for report in reports), found)


def _checked(queue: Queue, batch: pa.Table | pa.RecordBatch, name: str) -> Any:
    """Return a column after checking its memory and that text is UTF-8."""
    import pyarrow as pa

    found = batch.schema.names.count(name)
    if found != 1:
        others = [other for other in ("key", "value") if not batch.schema.names.count(other)]
        what = f"{found} columns {name}" if found else f"no {' and no '.join(others)}"
        raise EntryError(f"queue {queue.id!r}: expected a table with one column key and one column value, found {what}")
    column = batch.column(name)
    try:
        column.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        # Validating a slice of a nested column checks all of its content. Invalid memory must not be read.
        is_text = "UTF8" in str(error)
        row = _first_row(column, lambda part: part.to_pylist() if is_text else part.validate(full=True))
        raise EntryError(
            f"queue {queue.id!r}: column {name}, row {row}: expected a valid {column.type}: {error}"
        ) from error
    if name == "key" and column.null_count:
        row = column.is_null().index(True).as_py()
        raise EntryError(f"queue {queue.id!r}: column key, row {row}: expected a key, found null")
    return column


def _first_row(column: Any, check: Callable[[Any], Any]) -> int:
    """Find the first row for which a check raises, given that it raises for the whole column."""
    first, rows = 0, len(column)
    while rows > 1:
        half = rows // 2
        try:
            check(column.slice(first, half))
        except Exception:
            rows = half
        else:
            first, rows = first + half, rows - half
    return first


def _encoded(queue: Queue, name: str, column: Any, encode: Callable[[Any, int], bytes | None]) -> pa.Array:
    """Encode a column as it is stored."""
    import pyarrow as pa

    if is_as_stored(column.type, queue.key if name == "key" else queue.value):
        found = column.cast(pa.large_binary())
        if not isinstance(found, pa.ChunkedArray):
            return found
        return pa.concat_arrays(found.chunks or [pa.array([], found.type)])
    encoded: list[bytes | None] = []
    for row, item in enumerate(_listed(queue, name, column)):
        try:
            encoded.append(encode(item, row))
        except EntryError as error:
            raise EntryError(f"column {name}, row {row}: {error.message}", hint=error.hint) from error
    return pa.array(encoded, pa.large_binary())


def is_as_stored(kind: Any, codec: str) -> bool:
    """Return whether a codec stores values of a type unchanged."""
    import pyarrow.types as types

    if codec == "str":
        return bool(types.is_string(kind) or types.is_large_string(kind))
    return bool(codec == "bytes" and (types.is_binary(kind) or types.is_large_binary(kind)))


def _listed(queue: Queue, name: str, column: Any) -> list[Any]:
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except Exception as error:
        row = _first_row(column, lambda part: part.to_pylist())
        raise EntryError(
            f"queue {queue.id!r}: column {name}, row {row}: expected a {column.type} that Python can represent: {error}"
        ) from error


def _in_batches(columns: Mapping[str, pa.Array], order: pa.Array) -> Iterator[pa.RecordBatch]:
    """Yield the rows in an order, in batches of bounded size."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = pc.add(pc.binary_length(columns["key"]), pc.fill_null(pc.binary_length(columns["value"]), 0))
    ends = pc.cumulative_sum(lengths.take(order))
    first = before = 0
    while first < len(order):
        rows = min(_BATCH_ROWS, len(order) - first)
        while rows > 1 and ends[first + rows - 1].as_py() - before > _BATCH_BYTES:
            rows //= 2
        part = order.slice(first, rows)
        first += rows
        before = ends[first - 1].as_py()
        yield pa.RecordBatch.from_arrays([column.take(part) for column in columns.values()], list(columns))
