"""The tasks of a bulk load: they read sorted rows, write files, and return the descriptions of the files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from export_queue.core.drain import Problem
from export_queue.core.errors import EntryError, ExportQueueError
from export_queue.core.queue import Queue
from export_queue.core.segments import FileReport, delete_files, write_segments
from export_queue.core.spark.encoding import key_bytes, shown_key, value_bytes
from export_queue.core.spark.frames import location_of, parts_by_queue
from export_queue.core.spark.targets import Targets


@dataclass(frozen=True, slots=True)
class LoadSetup:
    """What a task needs to write files. It holds no secret, because a task opens no connection.

    :param base: URL of the folder of all segments.
    :param store_id: the store.
    :param transaction: the id of the transaction that will commit the files.
    :param targets: queues by id.
    :param single: the queue of all rows; None if a column names the queue of each row.
    :param latest_by: name of the column, here called ``latest``, that decides between rows with the same key.
    """

    base: str
    store_id: str
    transaction: int
    targets: Targets
    single: str | None
    latest_by: str | None = None

    def write(self, batches: Iterable[pa.RecordBatch], name: str) -> dict[str, list[FileReport]]:
        """Write sorted rows of Spark into files.

        :param batches: columns ``bucket``, ``key`` and ``value``, preceded by ``queue`` if a column names the queues;
            sorted by queue, bucket and key.
        :param name: start of the files' names, unique to this attempt of the task.
        :returns: the files of each queue.
        """
        files: dict[str, list[FileReport]] = {}
        for queue_id, part in parts_by_queue(batches, self.single):
            queue = self.targets[queue_id]
            try:
                files[queue.id] = write_segments(
                    (encoded(batch, queue) for batch in checked_for_repetition(part, queue, self.latest_by)),
                    base=self.base,
                    store_id=self.store_id,
                    transaction=self.transaction,
                    name=name,
                    buckets_per_range=queue.buckets_per_range,
                    on_duplicate="error" if self.latest_by is None else "keep_last",
                )
            except BaseException:
                delete_reported(files)
                raise
        return files


def encoded(batch: pa.RecordBatch, queue: Queue) -> pa.RecordBatch:
    """Turn the rows of a batch into entries.

    :raises EntryError: a row is refused.
    """
    keys = key_bytes(batch.column("key"), queue, lambda row: location_of(batch, row))
    values = value_bytes(batch.column("value"), keys, queue)
    buckets = batch.column("bucket").cast(pa.int32())
    return pa.RecordBatch.from_arrays([buckets, keys, values], ["bucket", "key", "value"])


def checked_for_repetition(
    batches: Iterable[pa.RecordBatch], queue: Queue, latest_by: str | None
) -> Iterator[pa.RecordBatch]:
    """Pass sorted batches on, and refuse a repeated key unless ``latest_by`` decides between its rows.

    :raises EntryError: a key is repeated; the error names it.
    """
    last: tuple[Any, Any] | None = None
    for batch in batches:
        keys, count = batch.column("key").cast(pa.binary()), batch.num_rows
        again = pc.indices_nonzero(pc.equal(keys.slice(1), keys.slice(0, count - 1)))
        for row in again.to_pylist():
            _refuse_equal(batch, row + 1, _key_and_rank(batch, row), queue, latest_by)
        if last is not None and keys[0].as_py() == last[0]:
            _refuse_equal(batch, 0, last, queue, latest_by)
        last = _key_and_rank(batch, count - 1)
        yield batch


def _key_and_rank(batch: pa.RecordBatch, row: int) -> tuple[Any, Any]:
    has_rank = "latest" in batch.schema.names
    key = batch.column("key").slice(row, 1).cast(pa.binary())[0].as_py()
    return key, batch.column("latest")[row].as_py() if has_rank else None


def _refuse_equal(
    batch: pa.RecordBatch, row: int, before: tuple[Any, Any], queue: Queue, latest_by: str | None
) -> None:
    found = _key_and_rank(batch, row)
    if found[0] is None or (latest_by is not None and found[1] != before[1]):
        return  # a null key is refused later
    key = shown_key(found[0], queue)
    if latest_by is None:
        raise EntryError(
            f"queue {queue.id!r}: key {key} comes more than once in the DataFrame",
            hint="keep one of its rows, or name the column that decides which row is the latest: latest_by=…",
        )
    raise EntryError(
        f"queue {queue.id!r}: key {key} comes more than once with the same {latest_by!r}, so that none is the latest",
        hint="keep one of these rows",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one task of a load.

    :param partition: its partition; one outcome counts per partition.
    :param files: the files that it wrote, by queue.
    :param problem: why it failed.
    """

    partition: int
    files: dict[str, list[FileReport]]
    problem: Problem | None = None

    def to_json(self) -> str:
        """Return the outcome as text."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` returned."""
        return msgspec.json.decode(text, type=cls)


def attempt_name() -> tuple[int, str]:
    """Return the partition of the task that runs here, and a name that is unique to this attempt.

    A repeated stage numbers its attempts from 0 again, but an attempt's id is never used twice.
    """
    task: Any = TaskContext.get()
    partition = int(task.partitionId())
    return partition, f"{partition:05d}-{task.taskAttemptId()}"


def load_task(setup: LoadSetup) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of the Spark job, which yields one outcome.

    A refused row is returned as data: Spark would repeat the task in vain, and keeps only the text of a raised error.
    """

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partition, name = attempt_name()
        try:
            outcome = Outcome(partition=partition, files=setup.write(batches, name))
        except ExportQueueError as error:
            if error.transient:
                raise
            outcome = Outcome(partition=partition, files={}, problem=Problem.of(error))
        yield pa.RecordBatch.from_pydict({"outcome": [outcome.to_json()]})

    return task


def delete_reported(files: Mapping[str, Sequence[FileReport]]) -> None:
    """Delete the files of a failed task."""
    delete_files(report.file for reports in files.values() for report in reports)


def collect_files(outcomes: Sequence[Outcome]) -> dict[str, list[FileReport]]:
    """Gather the files of all tasks, by queue.

    :raises ExportQueueError: a task failed.
    """
    for outcome in outcomes:
        if outcome.problem is not None:
            raise outcome.problem.to_error()
    files: dict[str, list[FileReport]] = {}
    for outcome in outcomes:
        for queue_id, reports in outcome.files.items():
            files.setdefault(queue_id, []).extend(reports)
    return files
