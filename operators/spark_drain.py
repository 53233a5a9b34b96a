"""The operator that drains a queue on Spark."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowTaskTerminated

from export_queue.core.arguments import whole_number
from export_queue.core.errors import SparkJobFailed
from export_queue.hooks import ExportQueueHook, environment, open_store
from export_queue.hooks.rendered import Reader, optional
from export_queue.hooks.tasks import task_name
from export_queue.operators.drain_task import DrainTask
from export_queue.operators.free_units import OpenUnits
from export_queue.operators.spark_submission import SparkSubmission, check_references
from export_queue.operators.terminal import terminal_errors_fail_at_once

if TYPE_CHECKING:
    from airflow.sdk import Context

    from export_queue.core.client import Store
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
        self._is_killed = False

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Submit the drain and wait for its report.

        :returns: the report, as plain values.
        """
        with terminal_errors_fail_at_once():
            report = self._drain(context)
        self.log.info("%s", report.line())
        return report.to_dict()

    def on_kill(self) -> None:
        """Kill the submission and revoke its leases, so that a surviving driver cannot change anything."""
        self._is_killed = True
        self.take_leases_away()  # at once: killing a job on a cluster may take longer than Airflow allows
        if self._hook is not None:
            try:
                super().on_kill()
            finally:
                self.take_leases_away()  # those that the driver claimed meanwhile

    def _drain(self, context: Context) -> DrainReport:
        from export_queue.core.spark import DrainArguments, describe_drain

        self.read_arguments()
        sink = self.describe_sink()
        spec = dataclasses.replace(sink.spec, secrets={**sink.spec.secrets, **self.sink_secrets})
        self._store = ExportQueueHook(self.export_queue_conn_id).describe()
        passwords = {name: value for name, value in sink.variables.items() if f"env:{name}" in spec.secrets.values()}
        if self.store_secret is None:
            passwords |= self._store.variables
        store_spec = dataclasses.replace(self._store.spec, secret=self.store_secret or self._store.spec.secret)
        request = self.request(task_name(context), sink_name=spec.name)
        variables, submitter = self._prepare_spark(store_spec, spec, has_passwords=bool(passwords))
        reports: list[DrainReport] = []
        self._owner = request.owner
        with open_store(self._store) as store, OpenUnits.of(store, request) as units:
            while units.wait(self._check_killed):
                # one submission drains what is free; this task waits for the rest without holding an executor
                arguments = DrainArguments(
                    store=store_spec,
                    sink=spec,
                    request=units.next_request(),
                    max_parallel=self.max_parallel,
                    start_timeout=self.start_timeout,
                    submitter=submitter,
                )
                self._take_job(describe_drain(arguments))
                with environment({**variables, **passwords}):
                    self._submit(store, context, arguments.request.drain_id)
                report = self._report(store, arguments.request.drain_id)
                for warning in report.warnings():
                    self.log.warning("%s", warning)
                if report.problem is not None:
                    raise report.problem.to_error()
                reports.append(report)
        return units.report(reports)

    def _check_killed(self) -> None:
        if self._is_killed:
            raise AirflowTaskTerminated(f"task {self.task_id} was told to stop")

    # -- after ---------------------------------------------------------------------------------------------------

    def _submit(self, store: Store, context: Context, drain_id: str) -> None:
        self._hook = None
        try:
            super().execute(context)
        except Exception:
            # the driver's report says more than its exit status, if there is one
            if not store.reports(drain_id=drain_id):
                raise

    def _report(self, store: Store, drain_id: str) -> DrainReport:
        from export_queue.core.drain import DrainReport

        found = store.reports(drain_id=drain_id)
        if not found:
            raise SparkJobFailed(f"the Spark driver ended without a report; its id is {drain_id}")
        return DrainReport.from_dict(found[0])
