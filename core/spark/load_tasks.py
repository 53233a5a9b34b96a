"""The tasks of a bulk load: sorted rows come in, files are written, their descriptions go out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import orjson
import pyarrow as pa
from pyspark import TaskContext

from export_queue.core.drain import Problem
from export_queue.core.errors import ExportQueueError
from export_queue.core.queue import Queue
from export_queue.core.segments import FileReport, write_segments
from export_queue.core.spark.encoding import key_bytes, value_bytes
from export_queue.core.spark.frames import parts_by_queue
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
    """

    base: str
    store_id: str
    transaction: int
    targets: Targets
    single: str | None

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
            files[queue.id] = write_segments(
                (encoded(batch, queue) for batch in part),
                base=self.base,
                store_id=self.store_id,
                transaction=self.transaction,
                name=name,
                buckets_per_range=queue.buckets_per_range,
            )
        return files


def encoded(batch: pa.RecordBatch, queue: Queue) -> pa.RecordBatch:
    """Turn the rows of a batch into entries.

    :raises EntryError: a row is refused.
    """
    keys = key_bytes(batch.column("key"), queue)
    values = value_bytes(batch.column("value"), keys, queue)
    return pa.RecordBatch.from_arrays([batch.column("bucket"), keys, values], ["bucket", "key", "value"])


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
