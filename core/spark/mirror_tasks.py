"""The tasks of a mirror load: each compares its rows with its buckets of the state, and writes the difference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from export_queue.core.drain import Problem
from export_queue.core.errors import ExportQueueError
from export_queue.core.queue import Queue, Range
from export_queue.core.segments import FileReport, in_order
from export_queue.core.spark.carried_secrets import CarriedSecrets
from export_queue.core.spark.differences import FilePlace, StateSetup, checked, write_difference
from export_queue.core.spark.frames import numbered
from export_queue.core.spark.load_tasks import LoadSetup, Outcome, attempt_name, checked_for_repetition, encoded
from export_queue.core.state import Found


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorOutcome(Outcome):
    """The result of one task of a mirror load."""

    found: Found = field(default_factory=Found)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSetup:
    """What a task needs. It holds no secret.

    :param load: where the differences go.
    :param state: what they are differences to.
    :param tasks: number of tasks.
    :param scope: beginning of the keys that are compared.
    :param dry_run: write no files.
    """

    load: LoadSetup
    state: StateSetup
    tasks: int
    scope: bytes
    dry_run: bool

    def run(self, batches: Iterable[pa.RecordBatch], name: str) -> tuple[Found, dict[str, list[FileReport]]]:
        """Compare the rows of one task; see :func:`export_queue.core.spark.frames.rows_by_part`.

        :param name: start of the files' names, unique to this attempt of the task.
        """
        load = self.load
        queue = load.targets[load.single or ""]
        number, rows = numbered(batches)
        within = part_of(queue, number, self.tasks)
        place = None if self.dry_run else FilePlace(load.base, load.store_id, load.transaction, queue, name)
        with self.state.opened() as content:
            entries = (encoded(batch, queue) for batch in checked_for_repetition(rows, queue, load.latest_by))
            distinct = in_order(entries, name, "error" if load.latest_by is None else "keep_last")
            records = checked(distinct, queue, within, scope=self.scope)
            found, files = write_difference(content, [records], within, scope=self.scope, place=place)
        return found, {queue.id: files} if files else {}


def part_of(queue: Queue, number: int, parts: int) -> Range:
    """Return the buckets of one of several parts, as ``bucket * parts // buckets`` numbers them."""
    first, end = (-(-at * queue.buckets // parts) for at in (number, number + 1))
    return Range(first, end, queue.layout)


def mirror_task(
    setup: MirrorSetup, secrets: CarriedSecrets
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of the Spark job, which yields one outcome; see :func:`load_task`.

    :param secrets: secrets that executors on other machines cannot look up.
    """

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        secrets.unpack()
        partition, name = attempt_name()
        try:
            found, files = setup.run(batches, name)
            outcome = MirrorOutcome(partition=partition, files=files, found=found)
        except ExportQueueError as error:
            if error.transient:
                raise
            outcome = MirrorOutcome(partition=partition, files={}, problem=Problem.of(error))
        yield pa.RecordBatch.from_pydict({"outcome": [outcome.to_json()]})

    return task
