"""A drain as a job; importing this needs no PySpark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Unpack

from export_queue.core.drain import DrainOptions, DrainRequest, follower_options
from export_queue.core.errors import InvalidArgument
from export_queue.core.sinks import SinkSpec
from export_queue.core.spark.job import START_SECONDS, Job, JobArguments, describe
from export_queue.core.spark.submitter import Submitter
from export_queue.core.store import StoreSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainArguments(JobArguments):
    """The arguments of a drain's driver.

    :param sink: the sink, with references in place of secrets.
    :param request: parameters of the drain; its exporter is an import path.
    :param max_parallel: the most tasks that drain at once; by default Spark's cores decide.
    :param follow: whether the drain continues until it is told to stop.
    :param detached: whether no process waits for the driver. Then the store records that it lives, and it stops when
        the attempt that submitted it is revoked.
    """

    kind: ClassVar[str] = "drain"
    driver: ClassVar[str] = "export_queue.core.spark.drain_driver"
    logger: ClassVar[str] = "export_queue.drain"

    sink: SinkSpec
    request: DrainRequest
    max_parallel: int | None = None
    follow: bool = False
    detached: bool = False

    def __post_init__(self) -> None:
        if self.max_parallel is not None and (type(self.max_parallel) is not int or self.max_parallel < 1):
            raise InvalidArgument(f"max_parallel: expected a whole number from 1, found {self.max_parallel!r}")
        JobArguments.__post_init__(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainJob(Job):
    """A drain as any submitter needs it."""

    drain_id: str
    """The id under which the store keeps the report."""


def drain_job(
    *,
    queue_id: str,
    sink: SinkSpec,
    store: StoreSpec,
    max_parallel: int | None = None,
    master: str | None = None,
    start_timeout: float = START_SECONDS,
    submitter: Submitter | None = None,
    follow: bool = False,
    **options: Unpack[DrainOptions],
) -> DrainJob:
    """Describe a drain on Spark: one job, whose tasks share the entries of all units.

    :param queue_id: the queue.
    :param sink: description of the sink, with references in place of secrets.
    :param store: description of the store, with a reference in place of its password.
    :param max_parallel: the most tasks that drain at once; by default Spark's cores decide.
    :param master: Spark's master, if it is known, to refuse what cannot work.
    :param start_timeout: seconds that Spark may take to start and to find an executor.
    :param submitter: ``Submitter.here()`` if the driver runs on this machine (client modes) and is to end with this
        process, even if ``spark-submit`` survives.
    :param follow: continue, and deliver entries soon after their commit, until the driver receives SIGTERM, its parent
        ends, or ``time_limit`` is over; then the program exits with 0. Its reports are named ``drain_id`` plus ``-1``,
        ``-2``, …; while there are entries, it stores at least one per minute.
    :param options: as for :func:`~export_queue.core.drain.drain`. The exporter is an import path, which driver and
        executors must be able to import. A new submission of the same owner's task takes over from an older one.
    :returns: what to submit.
    :raises ConfigurationError: the job could not work, or an option is unknown.
    """
    arguments = DrainArguments(
        store=store,
        sink=sink,
        request=DrainRequest.of(queue_id, sink.name, follower_options(options) if follow else options),
        max_parallel=max_parallel,
        start_timeout=start_timeout,
        submitter=submitter,
        follow=follow,
    )
    return describe_drain(arguments, master)


def describe_drain(arguments: DrainArguments, master: str | None = None) -> DrainJob:
    """Describe the job of a drain's arguments; see :func:`drain_job`."""
    return describe(DrainJob, arguments, master=master, drain_id=arguments.request.drain_id)
