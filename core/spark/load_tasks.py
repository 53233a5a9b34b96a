"""The tasks of a bulk load: sorted rows come in, files are written, their descriptions go out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from export_queue.core.drain import Problem
from export_queue.core.errors import EntryError, ExportQueueError
from export_queue.core.queue import Queue
from export_queue.core.segments import FileReport, delete_files, write_segments
from export_queue.core.spark.encoding import key_bytes, shown_key, value_bytes
from export_queue.core.spark.frames import parts_by_queue, place_of
from export_queue.core.spark.targets import Targets

OUTCOME = "outcome string"
"""The columns of what tasks give back."""


@dataclass(frozen=True, slots=True)
class LoadSetup:
    """All that a task needs to write files; it holds no secret, since a task opens no connection.

    :param base: URL of the folder of all segments.
    :param store_id: the store.
    :param transaction: the id of the transaction that the files wait for.
    :param targets: queues by id.
    :param single: the queue of all rows; None where rows have a column that names it.
    :param latest_by: the column, here called ``latest``, that says which of the rows of a key counts.
    """

    base: str
    store_id: str
    transaction: int
    targets: Targets
    single: str | None
    latest_by: str | None = None

    def write(self, batches: Iterable[pa.RecordBatch], name: str) -> dict[str, list[FileReport]]:
        """Write sorted rows of Spark into files.

        :param batches: columns ``bucket``, ``key`` and ``value``, and ``queue`` in front of them if rows name theirs;
            sorted by queue, bucket and key.
        :param name: what the files' names begin with; no other attempt of any task has it.
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
    keys = key_bytes(batch.column("key"), queue, lambda row: place_of(batch, row))
    values = value_bytes(batch.column("value"), keys, queue)
    buckets = batch.column("bucket").cast(pa.int32())
    return pa.RecordBatch.from_arrays([buckets, keys, values], ["bucket", "key", "value"])


def checked_for_repetition(
    batches: Iterable[pa.RecordBatch], queue: Queue, latest_by: str | None
) -> Iterator[pa.RecordBatch]:
    """Hand sorted batches on, and see that no key comes twice without a word on which of its rows counts.

    :raises EntryError: one does; the error names it.
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
        return  # a key of null is refused later
    key = shown_key(found[0], queue)
    if latest_by is None:
        raise EntryError(
            f"queue {queue.id!r}: key {key} comes more than once in the DataFrame",
            hint="leave one of its rows, or name the column that says which one counts: latest_by=…",
        )
    raise EntryError(
        f"queue {queue.id!r}: key {key} comes more than once with the same {latest_by!r}, so that none is the latest",
        hint="leave one of these rows",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a task of a load has done.

    :param partition: its partition, of which one outcome counts.
    :param files: the files that it has written, by queue.
    :param problem: why it has given up.
    """

    partition: int
    files: dict[str, list[FileReport]]
    problem: Problem | None = None

    def to_json(self) -> str:
        """Return one text."""
        files = {queue: [report.to_json() for report in reports] for queue, reports in self.files.items()}
        problem = None if self.problem is None else asdict(self.problem)
        return orjson.dumps({"partition": self.partition, "files": files, "problem": problem}).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` gave."""
        found = orjson.loads(text)
        files = {queue: [FileReport.from_json(one) for one in reports] for queue, reports in found["files"].items()}
        problem = None if found["problem"] is None else Problem(**found["problem"])
        return cls(partition=found["partition"], files=files, problem=problem)


def attempt_name() -> tuple[int, str]:
    """Tell the partition of the task that runs here, and a name that only this attempt of it has.

    A stage that is repeated numbers its attempts from 0 again; ids of attempts are never used twice.
    """
    task: Any = TaskContext.get()
    partition = int(task.partitionId())
    return partition, f"{partition:05d}-{task.taskAttemptId()}"


def load_task(setup: LoadSetup) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Make the function of the Spark job, which gives one outcome.

    A row that is refused comes back as data: its repetition would be refused, too, and of a raised error Spark keeps
    no more than its text.
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
    """Delete the files of a task that has failed."""
    delete_files(report.file for reports in files.values() for report in reports)


def collect_files(outcomes: Sequence[Outcome]) -> dict[str, list[FileReport]]:
    """Gather the files of all tasks, by queue.

    :raises ExportQueueError: a task has given up.
    """
    for outcome in outcomes:
        if outcome.problem is not None:
            raise outcome.problem.to_error()
    files: dict[str, list[FileReport]] = {}
    for outcome in outcomes:
        for queue_id, reports in outcome.files.items():
            files.setdefault(queue_id, []).extend(reports)
    return files
