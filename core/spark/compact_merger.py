"""The merger of a compaction on Spark: one job for each publication, whose tasks write a file each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark import SparkContext

from export_queue.core.drain import Problem
from export_queue.core.errors import SparkJobFailed
from export_queue.core.segments import Merge, Merged, UnitPlan
from export_queue.core.spark.action import collect
from export_queue.core.spark.carried_secrets import CarriedSecrets
from export_queue.core.spark.compact_tasks import in_full, merge_task, packed
from export_queue.core.store import StoreSpec

JOB_GROUP = "export-queue-compaction"
_HINT = "see Spark's log above; what was published stays so, and nothing else has changed"


@dataclass(frozen=True, slots=True)
class SparkMerger:
    """Merges by the tasks of Spark jobs.

    An attempt of a task that Spark repeats, or runs twice, writes a file of its own. Only the files that Spark has
    answered with are published, one for each share; clean-up deletes the others, also those that come late.

    :param context: the connection to Spark.
    :param store: the store, which each task opens.
    :param secrets: secrets that executors of another machine cannot look up.
    """

    context: SparkContext
    store: StoreSpec
    secrets: CarriedSecrets

    @property
    def shares(self) -> int:
        """One for each core that there is at this moment."""
        return int(self.context.defaultParallelism)

    def merge(
        self, merge: Merge, shares: Sequence[Sequence[UnitPlan]], *, check: Callable[[], None]
    ) -> Sequence[Merged]:
        """Run one job, and hand on what its tasks wrote.

        :raises SparkJobFailed: the job failed.
        :raises ExportQueueError: what a task has met, as in one process.
        """
        sent = self.context.broadcast(merge)
        # A group of its own: the end of a job whose locks were lost may reach Spark behind the start of the next one.
        group = f"{JOB_GROUP}-{merge.transaction}"
        try:
            # Names of files go in and come out; entries never pass through Java.
            task = merge_task(sent, self.store, self.secrets)
            job = self.context.parallelize([packed(plans) for plans in shares], len(shares)).mapPartitions(task)
            found = collect(self.context, job.collect, group=group, title="compaction", check=check)
        except SparkJobFailed as error:
            raise SparkJobFailed(error.message, hint=_HINT) from error.__cause__
        finally:
            with contextlib.suppress(Exception):  # Java may be gone
                sent.destroy()
        for one in found:
            if isinstance(one, Problem):
                raise one.to_error()
        # Spark answers in the order of the shares.
        return [in_full(one, plans) for one, plans in zip(found, shares, strict=True) if isinstance(one, Merged)]
