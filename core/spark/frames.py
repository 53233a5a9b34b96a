"""The rows of a load: their columns, their order, and how a task splits them by queue."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql import types as t

from export_queue.core.codecs import MAX_KEY_BYTES
from export_queue.core.queue import Queue
from export_queue.core.spark.encoding import row_location, row_without_queue
from export_queue.core.spark.targets import Target, Targets

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ROW_BITS = 33
"""Lower bits of Spark's ``monotonically_increasing_id`` that number the row; the upper bits number the partition."""


def entry_columns(df: DataFrame, target: Target) -> DataFrame:
    """Select the columns of entries: ``key`` as bytes or text, ``value`` unchanged, and the optional columns.

    A key stays text if it is text: Spark compares text in place and in the order of its UTF-8 bytes, but copies
    binaries before it compares them.

    :returns: with the columns ``queue`` and ``latest`` only if the target names them.
    """
    key = _column(target.key)
    if not isinstance(df.schema[target.key].dataType, t.BinaryType):
        key = key.cast("string")  # without a collation; whole numbers become their digits
    others = {"queue": target.queue_column, "latest": target.latest_by}
    named = [_column(name).alias(alias) for alias, name in others.items() if name is not None]
    return df.select(*named, key.alias("key"), _column(target.value).alias("value"))


def sorted_entries(df: DataFrame, target: Target, targets: Targets, tasks: int) -> DataFrame:
    """Distribute rows over tasks by the key's hash, and sort the rows of each task in the order of files.

    An invalid key has no bucket. Its ``bucket`` holds the row's position instead (see :func:`location_of`): the task
    that refuses the row cannot know where in the DataFrame it was.

    :param tasks: number of tasks.
    """
    # The bucket is a remainder of the whole hash, so the upper half of the hash is independent of it.
    task = f.pmod(f.shiftrightunsigned(f.xxhash64(f.col("key")), 32), f.lit(tasks)).cast("int")
    rows = _with_buckets(df, target, _buckets(targets, target)).select("*", task.alias("task"))
    order = ["bucket", "key"] if target.queue_column is None else ["queue", "bucket", "key"]
    order += [] if target.latest_by is None else ["latest"]
    return rows.repartitionById(tasks, "task").select(*order, "value").sortWithinPartitions(*order)


def rows_by_part(df: DataFrame, target: Target, queue: Queue, parts: int) -> DataFrame:
    """Distribute rows over tasks by ranges of buckets, and sort the rows of each task by bucket and key.

    Each task receives one more row, the first one, which has no bucket and has the number of its part as its key (see
    :func:`numbered`). So every task runs, also if the frame has no rows for it.

    :param queue: the queue of all rows.
    :param parts: number of tasks.
    """
    bucket = f.col("bucket")
    part = f.when(bucket < 0, 0).otherwise(f.floor(bucket * parts / queue.buckets)).cast("int")
    rows = _with_buckets(df, target, f.lit(queue.buckets)).select("*", part.alias("part"))
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    number = f.col("id").cast("string").cast(kinds["key"]).alias("key")
    empty = [f.lit(None).cast(kind).alias(name) for name, kind in kinds.items() if name not in ("key", "part")]
    firsts = df.sparkSession.range(0, parts, 1, 1).select(number, *empty, f.col("id").cast("int").alias("part"))
    order = ["bucket", "key"] if target.latest_by is None else ["bucket", "key", "latest"]
    together = rows.unionByName(firsts).repartitionById(parts, "part")
    return together.select(*order, "value").sortWithinPartitions(*order)


def numbered(batches: Iterable[pa.RecordBatch]) -> tuple[int, Iterator[pa.RecordBatch]]:
    """Return the number of a task's part, and its rows.

    :param batches: the rows of a task of :func:`rows_by_part`.
    """
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled)
    assert first.column("bucket")[0].as_py() is None
    rest = (batch for batch in itertools.chain([first.slice(1)], filled) if batch.num_rows)
    return int(first.column("key")[0].as_py()), rest


def location_of(batch: pa.RecordBatch, row: int) -> str:
    """Return where in the DataFrame a row with an invalid key was.

    :param batch: rows of :func:`sorted_entries`.
    """
    number = -1 - batch.column("bucket")[row].as_py()
    return row_location(number >> _ROW_BITS, number & ((1 << _ROW_BITS) - 1))


def parts_by_queue(
    batches: Iterable[pa.RecordBatch], single: str | None
) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
    """Yield runs of rows of the same queue; consume each before the next one.

    :param single: the queue of all rows; None if the column ``queue`` names it.
    :raises EntryError: a row names no queue.
    """
    filled = (batch for batch in batches if batch.num_rows)
    if single is not None:
        first = next(filled, None)
        if first is not None:
            yield single, itertools.chain([first], filled)
        return
    pieces = (piece for batch in filled for piece in _pieces(batch))
    for queue_id, group in itertools.groupby(pieces, key=lambda piece: piece[0]):
        yield queue_id, (part for _, part in group)


def _pieces(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    start = 0
    for queue_id, rows in itertools.groupby(batch.column("queue").to_pylist()):
        count = sum(1 for _ in rows)
        if queue_id is None:
            raise row_without_queue(batch.column("key")[start].as_py())
        yield queue_id, batch.slice(start, count)
        start += count


def _with_buckets(df: DataFrame, target: Target, buckets: Column) -> DataFrame:
    """Add ``bucket`` to the columns of entries, and ``location``, the row's position in the DataFrame."""
    fits = f.coalesce(f.octet_length("key").between(1, MAX_KEY_BYTES), f.lit(False))
    bucket = f.when(fits, f.pmod(f.xxhash64(f.col("key")), buckets)).otherwise(-1 - f.col("location"))
    # A separate step: the function numbers the rows of the step in which it is called.
    placed = entry_columns(df, target).select("*", f.monotonically_increasing_id().alias("location"))
    return placed.select("*", bucket.alias("bucket"))


def _buckets(targets: Targets, target: Target) -> Column:
    if target.queue is not None:
        return f.lit(targets.queues[target.queue].buckets)
    pairs = [f.lit(part) for queue in targets.queues.values() for part in (queue.id, queue.buckets)]
    return f.element_at(f.create_map(*pairs), f.col("queue"))  # null for an unknown queue, which the task refuses


def _column(name: str) -> Column:
    return f.col(f"`{name.replace('`', '``')}`")  # a name may contain dots
