"""The rows of a load on their way: which columns they have, and how a task takes them apart by queue."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql import types as t

from export_queue.core.codecs import MAX_KEY_BYTES
from export_queue.core.spark.encoding import place, row_without_queue
from export_queue.core.spark.targets import Target, Targets

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ROW_BITS = 33
"""Of what Spark's monotonically_increasing_id gives: the lower ones are the row's, the upper ones the partition's."""


def entry_columns(df: DataFrame, target: Target) -> DataFrame:
    """Choose the columns of entries: ``key`` as bytes or text, ``value`` as it is, and those that the user names.

    Spark compares text where it lies, and copies binaries before it compares them: a sort by text is faster, and has
    the order of its UTF-8.

    :returns: ``queue`` and ``latest`` are there only if they are named.
    """
    key = _column(target.key)
    if not isinstance(df.schema[target.key].dataType, t.BinaryType):
        key = key.cast("string")  # without a collation; of whole numbers their digits
    others = {"queue": target.queue_column, "latest": target.latest_by}
    named = [_column(name).alias(alias) for alias, name in others.items() if name is not None]
    return df.select(*named, key.alias("key"), _column(target.value).alias("value"))


def sorted_entries(df: DataFrame, target: Target, targets: Targets, tasks: int) -> DataFrame:
    """Spread rows over tasks by bits of the key's hash; the rows of each task come as a file has them.

    A key that no queue takes has no bucket. In its stead stands the place of its row, for :func:`place_of`: the task
    that refuses the row cannot tell any more where it was.

    :param tasks: how many.
    """
    hashed = f.xxhash64(f.col("key"))
    fits = f.coalesce(f.octet_length("key").between(1, MAX_KEY_BYTES), f.lit(False))
    bucket = f.when(fits, f.pmod(hashed, _buckets(targets, target))).otherwise(-1 - f.col("place"))
    # The bucket is a remainder of the whole hash, of which its upper half alone tells next to nothing.
    task = f.pmod(f.shiftrightunsigned(hashed, 32), f.lit(tasks)).cast("int")
    # In a step of its own, since it counts the rows for which it is asked.
    placed = entry_columns(df, target).select("*", f.monotonically_increasing_id().alias("place"))
    rows = placed.select("*", bucket.alias("bucket"), task.alias("task"))
    order = ["bucket", "key"] if target.queue_column is None else ["queue", "bucket", "key"]
    order += [] if target.latest_by is None else ["latest"]
    return rows.repartitionById(tasks, "task").select(*order, "value").sortWithinPartitions(*order)


def place_of(batch: pa.RecordBatch, row: int) -> str:
    """Tell where in the DataFrame a row was whose key no queue takes.

    :param batch: rows of :func:`sorted_entries`.
    """
    number = -1 - batch.column("bucket")[row].as_py()
    return place(number >> _ROW_BITS, number & ((1 << _ROW_BITS) - 1))


def parts_by_queue(
    batches: Iterable[pa.RecordBatch], single: str | None
) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
    """Give runs of rows of the same queue, each to be consumed before the next one.

    :param single: the queue of all rows; None where the column ``queue`` names it.
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
    """Cut a batch where the queue changes."""
    start = 0
    for queue_id, rows in itertools.groupby(batch.column("queue").to_pylist()):
        count = sum(1 for _ in rows)
        if queue_id is None:
            raise row_without_queue(batch.column("key")[start].as_py())
        yield queue_id, batch.slice(start, count)
        start += count


def _buckets(targets: Targets, target: Target) -> Column:
    if target.queue is not None:
        return f.lit(targets.queues[target.queue].buckets)
    pairs = [f.lit(part) for queue in targets.queues.values() for part in (queue.id, queue.buckets)]
    return f.element_at(f.create_map(*pairs), f.col("queue"))  # null for an unknown one, which the task refuses


def _column(name: str) -> Column:
    return f.col(f"`{name.replace('`', '``')}`")  # whatever dots it has
