"""Reading the state of a queue as a DataFrame: one task for each unit, all at one snapshot.

The snapshot is taken once for each DataFrame. Nothing is held for it: a task that finds that clean-up has deleted
values that the snapshot needs fails with ``SnapshotTooOld``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceReader, InputPartition

from export_queue.core.errors import InvalidArgument
from export_queue.core.queue import Queue
from export_queue.core.spark.differences import StateSetup
from export_queue.core.state import read_state
from export_queue.core.store import StoreSpec

_TYPES = {
    "str": (t.StringType(), pa.string()),
    "json": (t.StringType(), pa.string()),
    "int": (t.LongType(), pa.int64()),
}
"""Types of columns by codec, for Spark and for Arrow. Other codecs give the stored bytes."""
_STORED = (t.BinaryType(), pa.binary())


def columns_of(queue: Queue) -> t.StructType:
    """Return the columns of a state: ``key``, ``value`` and ``seq``."""
    key, value = (_TYPES.get(codec, _STORED)[0] for codec in (queue.key, queue.value))
    columns = [("key", key), ("value", value), ("seq", t.LongType())]
    return t.StructType([t.StructField(name, kind) for name, kind in columns])


class StateReader(DataSourceReader):
    """Reads a state. It holds plain values only, because each call runs in another process.

    :param store: the store, with a reference in place of its password.
    :param queue_id: the queue.
    :param as_of: a former time or transaction.
    :param schema: the columns that Spark expects.
    :raises InvalidArgument: the queue has no state, or the expected columns are others.
    :raises StateIncomplete: the first load of the state is missing.
    """

    def __init__(self, store: StoreSpec, queue_id: str, as_of: datetime | int | None, schema: t.StructType) -> None:
        with contextlib.closing(store.open()) as database:
            self._state = StateSetup.of(read_state(database, queue_id, as_of=as_of), store)
        found, wanted = columns_of(self._state.reader).simpleString(), schema.simpleString()
        if wanted != found:
            raise InvalidArgument(
                f"format export_queue: the state of queue {queue_id!r} has the columns {found}, expected {wanted}",
                hint="leave out .schema(…), and cast the columns",
            )

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each unit."""
        return [InputPartition(unit) for unit in self._state.reader.units()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one unit.

        :raises SnapshotTooOld: values that the snapshot needs are deleted.
        """
        with self._state.opened() as content:
            for table in content.tables(partition.value):
                for batch in table.filter(table["value"].is_valid()).to_batches():
                    yield _decoded_batch(batch, content.reader)


def _decoded_batch(batch: pa.RecordBatch, queue: Queue) -> pa.RecordBatch:
    key, value = _decoded(batch["key"], queue.key), _decoded(batch["value"], queue.value)
    return pa.RecordBatch.from_arrays([key, value, batch["seq"]], ["key", "value", "seq"])


def _decoded(found: pa.Array, codec: str) -> pa.Array:
    kind = _TYPES.get(codec, _STORED)[1]
    try:
        return (found.cast(pa.string()) if codec == "int" else found).cast(kind)
    except pa.ArrowInvalid as error:
        raise InvalidArgument(
            f"format export_queue: expected whole numbers of 64 bits, found others: {error}"
        ) from error
