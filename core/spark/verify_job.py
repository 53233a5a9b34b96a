"""A verify as a job; importing this needs no PySpark."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from export_queue.core.errors import InvalidArgument
from export_queue.core.references import check_import_path
from export_queue.core.sinks import SinkSpec
from export_queue.core.spark.carried_secrets import CarriedSecrets
from export_queue.core.spark.job import START_SECONDS, Job, JobArguments, describe
from export_queue.core.spark.submitter import Submitter
from export_queue.core.store import StoreSpec
from export_queue.core.verify import VerifyOptions, VerifyRequest

if TYPE_CHECKING:
    from pyspark import SparkContext

    from export_queue.core.spark.verify_sides import SparkSides

_IMPORTED = ("source", "records", "exporter")
"""Options that Spark's Python imports, not the submitter's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyArguments(JobArguments):
    """The arguments of a verify's driver.

    :param queue_id: the queue, or the subscription that drains into the sink.
    :param sink: the sink, with references in place of secrets.
    :param report_key: the idempotency key whose result is the report.
    :param options: options of :class:`~export_queue.core.verify.VerifyRequest`, by name; sources and functions are
        import paths.
    """

    kind: ClassVar[str] = "verify"
    driver: ClassVar[str] = "export_queue.core.spark.verify_driver"
    logger: ClassVar[str] = "export_queue.verify"

    queue_id: str
    sink: SinkSpec
    report_key: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        JobArguments.__post_init__(self)
        here = {name: value for name, value in self.options.items() if name not in _IMPORTED}
        VerifyRequest.of(self.queue_id, self.sink.name, here)
        for name in _IMPORTED:
            value = self.options.get(name)
            if isinstance(value, str) and value != "state" and not value.startswith("table:"):
                check_import_path(value, error=InvalidArgument)

    def request(self) -> VerifyRequest:
        """Return the request; in Spark's Python, which imports what the options name.

        :raises InvalidArgument: a value is not allowed, or names nothing.
        """
        return VerifyRequest.of(self.queue_id, self.sink.name, self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyJob(Job):
    """A verify as any submitter needs it. The program exits with 0 also if there are differences."""

    report_key: str
    """The idempotency key whose result has ``report``, as ``to_dict()`` returns it, and ``lines``, the same as text."""
    problem_key: str
    """The idempotency key whose result is the error that the driver ended with."""


def verify_job(
    *,
    queue_id: str,
    sink: SinkSpec,
    store: StoreSpec,
    master: str | None = None,
    start_timeout: float = START_SECONDS,
    submitter: Submitter | None = None,
    **options: Unpack[VerifyOptions],
) -> VerifyJob:
    """Describe a verify on Spark: its tasks read and compare both sides, its driver judges what differs, and repairs.

    :param queue_id: the queue, or the subscription that drains into the sink.
    :param sink: description of the sink, with references in place of secrets.
    :param store: description of the store, with a reference in place of its password.
    :param master: Spark's master, if it is known, to refuse what cannot work.
    :param start_timeout: seconds that Spark may take to start and to find an executor.
    :param submitter: ``Submitter.here()`` if the driver runs on this machine and is to end with this process.
    :param options: as for :func:`~export_queue.core.verify.verify`; ``source``, ``records`` and ``exporter`` are import
        paths, which Spark's Python must be able to import.
    :returns: what to submit.
    :raises ConfigurationError: the job could not work, or an option is unknown.
    """
    name = f"verify/{uuid.uuid4().hex}"
    arguments = VerifyArguments(
        store=store,
        queue_id=queue_id,
        sink=sink,
        options=options,
        start_timeout=start_timeout,
        submitter=submitter,
        report_key=name,
        problem_key=f"{name}/problem",
    )
    return describe_verify(arguments, master)


def describe_verify(arguments: VerifyArguments, master: str | None = None) -> VerifyJob:
    """Describe the job of a verify's arguments; see :func:`verify_job`."""
    problem_key = arguments.problem_key or ""
    return describe(VerifyJob, arguments, master=master, report_key=arguments.report_key, problem_key=problem_key)


def compare_by_tasks(context: SparkContext, store: StoreSpec, sink: SinkSpec) -> SparkSides:
    """Return what reads both sides for a verify that the caller's own Spark program runs.

    :param context: its connection to Spark. The executors must have this library.
    :param store: the store. Each task opens it and looks up its secrets.
    :param sink: the sink; likewise.
    """
    from export_queue.core.spark.verify_sides import SparkSides

    return SparkSides(context, store, sink, CarriedSecrets())
