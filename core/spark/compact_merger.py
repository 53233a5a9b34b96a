"""The merger of a compaction on Spark: one job per publication, each of whose tasks writes one file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark import SparkContext

from export_queue.core.drain import Problem
from export_queue.core.errors import SparkJobFailed
from export_queue.core.segments import Merge, Merged, UnitPlan
from export_queue.core.spark.action import collect_from_tasks
from export_queue.core.spark.carried_secrets import CarriedSecrets
from export_queue.core.spark.compact_tasks import in_full, merge_task, packed
from export_queue.core.store import StoreSpec

JOB_GROUP = "export-queue-compaction"
_HINT = "see Spark's log above; what was published stays published, nothing else has changed"


@dataclass(frozen=True, slots=True)
class SparkMerger:
    """Merges by the tasks of Spark jobs.

    Each attempt of a task writes its own file. Only the files that Spark returns are published, one per share; clean-up
    deletes the others.

    :param context: the connection to Spark.
    :param store: the store, which each task opens.
    :param secrets: secrets that executors on other machines cannot look up.
    """

    context: SparkContext
    store: StoreSpec
    secrets: CarriedSecrets

    @property
    def shares(self) -> int:
        """One per core that Spark has at this moment."""
        return int(self.context.defaultParallelism)

    def merge(
        self, merge: Merge, shares: Sequence[Sequence[UnitPlan]], *, check: Callable[[], None]
    ) -> Sequence[Merged]:
        """Run one job, and return what its tasks wrote.

        :raises SparkJobFailed: the job failed.
        :raises ExportQueueError: the error of a task.
        """
        try:
            found = collect_from_tasks(
                self.context,
                [packed(plans) for plans in shares],
                merge,
                lambda sent: merge_task(sent, self.store, self.secrets),
                # A group per job: cancelling a job whose locks were lost must not cancel the next one.
                group=f"{JOB_GROUP}-{merge.transaction}",
                title="compaction",
                check=check,
            )
        except SparkJobFailed as error:
            raise SparkJobFailed(error.message, hint=_HINT) from error.__cause__
        for one in found:
            if isinstance(one, Problem):
                raise one.to_error()
        # Spark answers in the order of the shares.
        return [in_full(one, plans) for one, plans in zip(found, shares, strict=True) if isinstance(one, Merged)]
