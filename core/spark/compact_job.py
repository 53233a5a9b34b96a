"""A compaction as a job; importing this needs no PySpark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from export_queue.core.locks import Owner
from export_queue.core.segments import Candidates
from export_queue.core.spark.carried_secrets import CarriedSecrets
from export_queue.core.spark.job import START_SECONDS, Job, JobArguments, describe
from export_queue.core.spark.submitter import Submitter
from export_queue.core.store import StoreSpec

if TYPE_CHECKING:
    from pyspark import SparkContext

    from export_queue.core.spark.compact_merger import SparkMerger


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactArguments(JobArguments):
    """The arguments of a compaction's driver.

    :param queue_id: a queue without subscriptions, or a subscription.
    :param owner: the task; a newer attempt of it takes over from an older one.
    :param wanted: which units are worth a compaction.
    """

    kind: ClassVar[str] = "compaction"
    driver: ClassVar[str] = "export_queue.core.spark.compact_driver"
    logger: ClassVar[str] = "export_queue.segments"

    queue_id: str
    owner: Owner
    wanted: Candidates

    @property
    def report_key(self) -> str:
        """The idempotency key whose result is the report, as its ``summary()`` returns it."""
        return f"compaction/{self.owner.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactJob(Job):
    """A compaction as any submitter needs it."""

    report_key: str
    """The idempotency key whose result is the report, with the number of units in place of the units."""
    problem_key: str
    """The idempotency key whose result is the error that the driver ended with."""


def compact_job(
    *,
    queue_id: str,
    store: StoreSpec,
    wanted: Candidates | None = None,
    owner: Owner | None = None,
    master: str | None = None,
    start_timeout: float = START_SECONDS,
    submitter: Submitter | None = None,
) -> CompactJob:
    """Describe a compaction on Spark: its driver locks and publishes, its tasks read and write.

    :param queue_id: a queue without subscriptions, or a subscription.
    :param store: description of the store, with a reference in place of its password.
    :param wanted: which units are worth a compaction.
    :param owner: the task; a newer attempt of it takes over from an older one. By default no other job shares it.
    :param master: Spark's master, if it is known, to refuse what cannot work.
    :param start_timeout: seconds that Spark may take to start and to find an executor.
    :param submitter: ``Submitter.here()`` if the driver runs on this machine and is to end with this process.
    :returns: what to submit.
    :raises ConfigurationError: the job could not work.
    """
    owner = owner or Owner.unique()
    problem_key = f"compaction/{owner.attempt}/problem"
    arguments = CompactArguments(
        store=store,
        queue_id=queue_id,
        owner=owner,
        wanted=wanted or Candidates(),
        start_timeout=start_timeout,
        submitter=submitter,
        problem_key=problem_key,
    )
    return describe(CompactJob, arguments, master=master, report_key=arguments.report_key, problem_key=problem_key)


def merge_by_tasks(context: SparkContext, store: StoreSpec) -> SparkMerger:
    """Return a merger for a compaction that the caller's own Spark program runs.

    :param context: its connection to Spark. The executors must have this library.
    :param store: the store. Each task opens it and looks up its secrets.
    """
    from export_queue.core.spark.compact_merger import SparkMerger

    return SparkMerger(context, store, CarriedSecrets())
