"""A drain as an application with arguments, which any submitter can run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack

from export_queue.core.drain import DrainOptions, DrainRequest, follower_options
from export_queue.core.sinks import SinkSpec
from export_queue.core.spark.archive import package_archive
from export_queue.core.spark.arguments import START_SECONDS, DrainArguments
from export_queue.core.spark.masters import check_master, refuse_remote_sqlite
from export_queue.core.spark.submitter import Submitter
from export_queue.core.store import StoreSpec

APPLICATION = Path(__file__).with_name("drain_main.py")

_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CONF = {
    # Start-up is what a submission costs: no web server, and no optimising compiler for a job whose work is in
    # Python and the databases.
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": _QUICK_START,
    "spark.executor.extraJavaOptions": _QUICK_START,
    # Every line goes through the submitter's log.
    "spark.log.level": "WARN",
    "spark.ui.showConsoleProgress": "false",
    # Two copies of a task would be right but of no use: both wait for the same sink.
    "spark.speculation": "false",
}


@dataclass(frozen=True, slots=True)
class DrainJob:
    """A job as any submitter needs it: ``spark-submit --py-files … --conf … application arguments``.

    On one machine set ``SPARK_LOCAL_IP=127.0.0.1`` in its environment, or Spark listens on the machine's address.
    """

    application: str
    """Path of the program."""
    py_files: str | None
    """Path of the archive with the library."""
    arguments: list[str]
    """Arguments of the program; they hold no secret."""
    conf: dict[str, str] = field(default_factory=lambda: dict(CONF))
    """Settings of Spark; a submitter may add to them."""
    drain_id: str = ""
    """Under which the report is found in the store."""


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
    """Describe a drain on Spark: one submission, whose tasks share out what waits in all units.

    :param queue_id: the queue.
    :param sink: description of the sink, with references in the place of secrets.
    :param store: description of the store, with a reference in the place of its password.
    :param max_parallel: the most tasks that drain at once; by default Spark's cores decide.
    :param master: Spark's master, where it is known, to refuse what cannot work.
    :param start_timeout: seconds that Spark may take to start, and to find an executor.
    :param submitter: ``Submitter.here()`` where the driver runs beside this process (client modes) and shall end with
        it, even if ``spark-submit`` survives.
    :param follow: go on, and bring entries soon after their commit, until SIGTERM reaches the driver, its parent has
        gone, or ``time_limit`` is over: then the program ends with 0. Its reports have ``drain_id`` with ``-1``,
        ``-2``, … behind it, and at least one a minute while entries come.
    :param options: as :func:`~export_queue.core.drain.drain` takes them. The exporter is an import path, which driver
        and executors must be able to follow. A new submission of the same owner's task takes over from an older one.
    :returns: what to submit. The program ends with 0; with 75 where trying again may help; else with 1.
    :raises ConfigurationError: the job could not work, or an option is unknown.
    """
    request = DrainRequest.of(queue_id, sink.name, follower_options(options) if follow else options)
    arguments = DrainArguments(
        store=store,
        sink=sink,
        request=request,
        max_parallel=max_parallel,
        start_timeout=start_timeout,
        submitter=submitter,
        follow=follow,
    )
    return describe_job(arguments, master)


def describe_job(arguments: DrainArguments, master: str | None = None) -> DrainJob:
    """Describe the job of some arguments; see :func:`drain_job`.

    :param arguments: arguments of the driver.
    :param master: Spark's master, where it is known, to refuse what cannot work.
    :raises ConfigurationError: the job could not work.
    """
    if master is not None:
        check_master(master)
        refuse_remote_sqlite(master, arguments.store, arguments.sink)
    return DrainJob(
        application=str(APPLICATION),
        py_files=str(package_archive()),
        arguments=[arguments.to_json()],
        drain_id=arguments.request.drain_id,
    )
