"""Adding Arrow tables to a queue inside a transaction: files for a long one, rows for all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from export_queue.core.errors import EntryError, ExportQueueError, StoreError
from export_queue.core.queue import Queue, QueueWriter, hashes_of, queue_of
from export_queue.core.segments.catalogue import begin_load, stage_segments
from export_queue.core.segments.files import delete_files, load_pyarrow
from export_queue.core.segments.one_entry import remember_keys
from export_queue.core.segments.writing import OnDuplicate, write_segments
from export_queue.core.store import identity_of
from export_queue.core.transactions import OpenTransaction

if TYPE_CHECKING:
    import pyarrow as pa


class BulkWriter(QueueWriter):
    """One queue, bound to its transaction, which takes whole tables as well."""

    def __init__(self, transaction: OpenTransaction, queue: Queue) -> None:
        super().__init__(transaction, queue)
        self._to_queue = queue
        self._of = transaction

    def add_batch(self, batch: pa.Table | pa.RecordBatch, *, on_duplicate: OnDuplicate = "error") -> int:
        """Add all rows of an Arrow table.

        In a long transaction they go into files beside the store, at once, and need not fit into memory together: call
        it for one table after the other. In any other transaction they are added one by one.

        :param batch: columns ``key`` and ``value``, by the queue's codecs; a null value says that the record is gone.
        :param on_duplicate: of a key that comes more than once in the table, the last one counts (``keep_last``), or it
            is an error. Of a key that comes in two tables, the later one counts.
        :returns: the rows of the table.
        :raises EntryError: a key or value is refused, or a key comes twice.
        :raises InvalidArgument: pyarrow is not installed, or the store has no place for files.
        :raises SegmentUnavailable: the place of the files does not answer, or refuses.
        """
        load_pyarrow()
        if missing := {"key", "value"} - set(batch.schema.names):
            raise EntryError(
                f"queue {self._to_queue.id!r}: expected a table with the columns key and value, found no "
                f"{' and no '.join(sorted(missing))}"
            )
        if self._of.kind == "long":
            self._write(batch, on_duplicate)
        else:
            pairs = zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True)
            self._put(self._checked(pairs, (), keep_last=on_duplicate == "keep_last"))
        return int(batch.num_rows)

    def _write(self, batch: pa.Table | pa.RecordBatch, on_duplicate: OnDuplicate) -> None:
        import pyarrow as pa

        queue, opened = self._to_queue, self._of
        keys = _as_stored(batch["key"], queue.key)
        if keys is None:
            keys = pa.array([queue.encode_key(key) for key in batch["key"].to_pylist()], pa.binary())
        if keys.null_count:
            raise EntryError(f"queue {queue.id!r}: column key: expected no null, found {keys.null_count}")
        values = _as_stored(batch["value"], queue.value)
        if values is None:
            pairs = zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True)
            values = pa.array([queue.encode_value(value, key=key) for key, value in pairs], pa.binary())
        base = begin_load(opened.database, opened)
        with opened.database.read() as work:  # what the process knows of the queue may be a minute old
            queue = queue_of(work, queue.id, opened.id)
        hashes = hashes_of(keys.to_pylist())
        buckets = pa.array([one % queue.buckets for one in hashes], pa.int32())
        table = pa.table({"bucket": buckets, "key": keys, "value": values})
        table = table.sort_by([("bucket", "ascending"), ("key", "ascending")])  # stable: of equal keys the last is last
        reports = write_segments(
            table.to_batches(max_chunksize=1 << 16),
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
        found = hashes if on_duplicate == "error" else list(set(hashes))
        remember_keys(opened, (report.file for report in reports), found)


def _as_stored(column: Any, codec: str) -> Any:
    """Take text and bytes as they are stored; None of all that a codec has to encode one by one."""
    import pyarrow as pa

    kind = column.type
    is_text = codec == "str" and (pa.types.is_string(kind) or pa.types.is_large_string(kind))
    if not is_text and not (codec == "bytes" and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind))):
        return None
    found = column.cast(pa.binary())
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
