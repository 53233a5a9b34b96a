"""Both sides of a verify, read and compared by the tasks of a Spark job.

Tasks read ranges of the state and the collections of the sink, and divide the records into shares by their ids. Other
tasks compare one share each, as one process compares everything, and return only the records that may differ. The
driver takes these into the spool of its own comparison, which judges and repairs them as ever. Nothing is counted but
what Spark returns, once for each task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext, StorageLevel

from export_queue.core.drain import Problem
from export_queue.core.errors import SinkBindingError
from export_queue.core.queue import Range
from export_queue.core.sinks import SinkSpec
from export_queue.core.sources import StateContent
from export_queue.core.spark.action import JobProgress, collect
from export_queue.core.spark.carried_secrets import CarriedSecrets
from export_queue.core.spark.differences import StateSetup
from export_queue.core.spark.verify_tasks import (
    Collections,
    Compared,
    Divided,
    Note,
    VerifySetup,
    compare_task,
    is_note,
    read_sink_task,
    read_state_task,
)
from export_queue.core.store import StoreSpec
from export_queue.core.verify import Comparison, Divider, Expected, Refused, Rendered

JOB_GROUP = "export-queue-verify"
_SHARES_PER_CORE = 3
"""More than one, so that cores with light shares take work from those with heavy ones."""


@dataclass(frozen=True, slots=True)
class SparkSides:
    """Reads both sides of a comparison by tasks.

    :param context: the connection to Spark.
    :param store: the store, which each task opens.
    :param sink: the sink, which each task opens.
    :param secrets: secrets that executors on other machines cannot look up.
    """

    context: SparkContext
    store: StoreSpec
    sink: SinkSpec
    secrets: CarriedSecrets

    def __call__(self, comparison: Comparison) -> int:
        """Fill the spool with the records that may differ, and return their number.

        :raises SparkJobFailed: the job failed.
        :raises ExportQueueError: the error of a task.
        """
        with comparison.opened() as expected:
            sent = self.context.broadcast(self._setup(comparison, expected))
            sides = self._expected(comparison, expected, sent)
            try:
                if not comparison.copies:  # which collections to read, is known once everything was exported
                    sides.persist(StorageLevel.DISK_ONLY)
                    for _, note in self._collected(comparison, sides.filter(is_note)):
                        if isinstance(note, Collections | Problem):
                            _take(note, comparison)
                collections = [sorted(comparison.collections)]
                found = self.context.parallelize(collections, 1).mapPartitions(read_sink_task(sent, self.secrets))
                shares = self.context.union([sides, found]).partitionBy(sent.value.shares, int)
                for one in self._collected(comparison, shares.mapPartitions(compare_task(sent, self.secrets))):
                    _take(one, comparison)
            finally:
                sides.unpersist()
        return comparison.spool.take_refused()

    def _setup(self, comparison: Comparison, expected: Expected) -> VerifySetup:
        content = expected.content
        is_state = isinstance(content, StateContent)
        return VerifySetup(
            store=self.store,
            sink=self.sink,
            exporter=None if comparison.copies else _import_path(comparison),
            reader=comparison.reader,
            state=StateSetup.of(content, self.store) if isinstance(content, StateContent) else None,
            loaded=content.loaded if is_state else 0,  # type: ignore[union-attr]
            is_ranked=comparison.is_ranked,
            shares=max(1, self.context.defaultParallelism * _SHARES_PER_CORE),
        )

    def _expected(self, comparison: Comparison, expected: Expected, sent: Any) -> Any:
        """Return the expected records in pages: those of a state as tasks read it, others as the driver reads them."""
        if sent.value.state is not None:
            parts = _parts(comparison.units(), sent.value.shares)
            return self.context.parallelize(parts, len(parts)).mapPartitions(read_state_task(sent, self.secrets))
        pages = list(_divided(expected.pages(), comparison, sent.value.shares))
        return self.context.parallelize(pages, self.context.defaultParallelism)

    def _collected(self, comparison: Comparison, rows: Any) -> list[Any]:
        title = f"verify {comparison.reader.id}"
        check = JobProgress(self.context, JOB_GROUP, title).tell
        return collect(self.context, rows.collect, group=JOB_GROUP, title=title, check=check)


def _take(one: bytes | Note, comparison: Comparison) -> None:
    """Take what a task has returned into the comparison."""
    if isinstance(one, Problem):
        raise one.to_error()
    if isinstance(one, bytes):
        comparison.spool.take_candidates(one)
    elif isinstance(one, Refused):
        comparison.spool.add_refused(one)
    elif isinstance(one, Collections):
        comparison.collections |= one.names
    elif isinstance(one, Compared):
        comparison.compared += one.expected
        comparison.scanned += one.found


def _divided(pages: Iterable[Rendered], comparison: Comparison, shares: int) -> Iterator[Divided]:
    divider = Divider(0, shares)
    for page in pages:
        comparison.collections |= page.collections
        yield from divider.add(page.records, page.keys, page.expires)
    yield from divider.rest()


def _parts(units: Sequence[Range], most: int) -> list[list[Range]]:
    """Divide units into parts of about the same size."""
    parts = min(most, len(units))
    return [list(units[number::parts]) for number in range(parts)]


def _import_path(comparison: Comparison) -> str:
    """Return the name by which tasks import the exporter.

    :raises SinkBindingError: it has none.
    """
    name = comparison.exporter.identity
    if "<" in name:
        raise SinkBindingError(
            f"exporter {name}: expected one that other processes can import", hint="name it as module:name"
        )
    return name
