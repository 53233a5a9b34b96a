"""The operator that drains a queue on Spark."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from export_queue.core.arguments import whole_number
from export_queue.core.errors import SparkJobFailed
from export_queue.hooks import ExportQueueHook, open_store
from export_queue.hooks.rendered import Reader, optional
from export_queue.hooks.tasks import task_name
from export_queue.operators.drain_task import DrainTask
from export_queue.operators.spark_submission import SparkSubmission, check_references
from export_queue.operators.submissions import Submissions
from export_queue.operators.terminal import terminal_errors_fail_at_once

if TYPE_CHECKING:
    from airflow.sdk import Context

    from export_queue.core.drain import DrainReport


class ExportQueueSparkDrainOperator(DrainTask, SparkSubmission):
    """Drain a queue into a sink on Spark: one submission, whose tasks share the pending entries of all ranges.

    If nothing is pending, nothing is submitted. If others hold everything that is pending, the task waits for them
    before it submits. To distribute a drain over several submissions, map the operator over groups of ranges:
    ``ExportQueueSparkDrainOperator.partial(…).expand(ranges=sensor.output)`` with an
    :class:`~export_queue.sensors.ExportQueueSensor` that has ``groups=N``.

    The driver receives passwords through the environment of ``spark-submit``. They are in no argument, configuration,
    rendered field or log. Cluster modes do not pass the environment on: give references to what the cluster mounts,
    ``store_secret`` and ``sink_secrets``.

    For the arguments of every drain, and for what success means, see
    :class:`~export_queue.operators.drain_task.DrainTask`. Spark's Python must be able to import the exporter.

    :param max_parallel: maximum number of tasks that drain at once; by default Spark's cores decide. (templated)
    :param sink_secrets: references to the sink's secrets where Spark runs, by option:
        ``{"password": "file:/run/secrets/redis"}``.
    :param kwargs: arguments of :class:`~export_queue.operators.spark_submission.SparkSubmission`, for where and how
        Spark starts, and of ``SparkSubmitOperator``.
    """

    readers: ClassVar[Mapping[str, Reader]] = {
        **SparkSubmission.readers,
        **DrainTask.readers,
        "max_parallel": optional(whole_number, least=1),
    }
    template_fields: Collection[str] = tuple(readers)
    ui_color = "#fdebd0"

    def __init__(
        self,
        *,
        max_parallel: int | str | None = None,
        sink_secrets: Mapping[str, str] | None = None,
        name: str = "export-queue-drain",
        durable: bool = False,
        **kwargs: Any,
    ) -> None:
        # durable=True would resume an earlier submission, whose entries have left the queue
        super().__init__(name=name, durable=durable, **kwargs)
        self.max_parallel: Any = max_parallel
        self.sink_secrets = dict(sink_secrets or {})
        check_references(self.sink_secrets)

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Submit the drain and wait for its report.

        :returns: the report, as plain values.
        """
        with terminal_errors_fail_at_once():
            report = self._drain(context)
        self.log.info("%s", report.line())
        return report.to_dict()

    def _drain(self, context: Context) -> DrainReport:
        from export_queue.core.drain import DrainReport
        from export_queue.core.spark import DrainArguments, describe_drain

        self.read_arguments()
        sink = self.describe_sink()
        spec = dataclasses.replace(sink.spec, secrets={**sink.spec.secrets, **self.sink_secrets})
        self._store = ExportQueueHook(self.export_queue_conn_id).describe()
        request = self.request(task_name(context), sink_name=spec.name)
        store_spec, variables, submitter = self._prepare_spark(self._store, dataclasses.replace(sink, spec=spec))
        reports: list[DrainReport] = []
        self._owner = request.owner
        with open_store(self._store) as store:
            submissions = Submissions.begin(store, request)
            with contextlib.closing(submissions.requests(self.check_killed)) as requests:
                # one submission drains what is free; this task waits for the rest without holding an executor
                for submitted in requests:
                    arguments = DrainArguments(
                        store=store_spec,
                        sink=spec,
                        request=submitted,
                        max_parallel=self.max_parallel,
                        start_timeout=self.start_timeout,
                        submitter=submitter,
                    )
                    find = partial(store.reports, drain_id=submitted.drain_id)
                    self._submit(context, store, describe_drain(arguments), variables, result=find)
                    if not (found := find()):
                        raise SparkJobFailed(f"the Spark driver ended without a report; its id is {submitted.drain_id}")
                    report = DrainReport.from_dict(found[0])
                    for warning in report.warnings():
                        self.log.warning("%s", warning)
                    if report.problem is not None:
                        raise report.problem.to_error()
                    reports.append(report)
            report = submissions.report(reports)
            self.refuse_dead_letters(store, report)
        return report
