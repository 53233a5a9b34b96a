"""The operator that drains a queue on Spark."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Collection, Mapping
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.sdk import conf
from airflow.sdk.exceptions import TaskDeferralError, TaskDeferralTimeout

from export_queue.core.arguments import whole_number
from export_queue.core.errors import ConfigurationError, ExportQueueError, InvalidArgument, SparkJobFailed
from export_queue.core.retry import Retry
from export_queue.hooks import ExportQueueHook, open_store
from export_queue.hooks.rendered import Reader, optional
from export_queue.hooks.tasks import task_name
from export_queue.links import DeadLettersLink, QueuePageLink, SparkUiLink
from export_queue.operators.detached_driver import DriverOutput
from export_queue.operators.drain_task import DrainTask
from export_queue.operators.spark_submission import SparkSubmission, check_references
from export_queue.operators.submissions import Submissions
from export_queue.operators.terminal import terminal_errors_fail_at_once
from export_queue.triggers import ExportQueueDriverTrigger

if TYPE_CHECKING:
    from subprocess import Popen

    from airflow.sdk import BaseOperatorLink, Context

    from export_queue.core.client import Store
    from export_queue.core.drain import DrainReport, DriverState, SubmittedDrain
    from export_queue.core.spark import DrainArguments

_LOOK_SECONDS = 0.2
_OUTAGE = Retry(attempts=None, seconds=120.0, first_pause=1.0, longest_pause=5.0)
"""How long a task waits for the store that has the report of its drain."""
_OF_WAITING_TASKS = ("durable", "post_submit_commands", "track_driver_via_k8s_api", "yarn_track_via_rm_api")
"""Arguments of ``SparkSubmitOperator`` that need a task which waits for ``spark-submit``."""


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
    :param deferrable: once the driver has begun, wait on the triggerer for its report, without occupying a worker. The
        driver outlives the task: in client mode on the worker's machine, in cluster modes in the cluster. It waits
        itself for what others hold. By default the option ``default_deferrable`` of the section ``operators``.
    :param kwargs: arguments of :class:`~export_queue.operators.spark_submission.SparkSubmission`, for where and how
        Spark starts, and of ``SparkSubmitOperator``.
    """

    readers: ClassVar[Mapping[str, Reader]] = {
        **SparkSubmission.readers,
        **DrainTask.readers,
        "max_parallel": optional(whole_number, least=1),
    }
    template_fields: Collection[str] = tuple(readers)
    operator_extra_links: Collection[BaseOperatorLink] = (QueuePageLink(), DeadLettersLink(), SparkUiLink())
    ui_color = "#fdebd0"

    def __init__(
        self,
        *,
        max_parallel: int | str | None = None,
        sink_secrets: Mapping[str, str] | None = None,
        name: str = "export-queue-drain",
        durable: bool = False,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        if deferrable and (found := [one for one in _OF_WAITING_TASKS if {**kwargs, "durable": durable}.get(one)]):
            raise InvalidArgument(
                f"{', '.join(found)}: a deferred drain does not wait for spark-submit", hint="pass deferrable=False"
            )
        # durable=True would resume an earlier submission, whose entries have left the queue
        super().__init__(name=name, durable=durable, **kwargs)
        self.max_parallel: Any = max_parallel
        self.sink_secrets = dict(sink_secrets or {})
        self.deferrable = deferrable
        check_references(self.sink_secrets)

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Submit the drain and wait for its report; or defer until it is stored.

        :returns: the report, as plain values.
        """
        with terminal_errors_fail_at_once():
            report = self._drain_deferred(context) if self.deferrable else self._drain(context)
        return self._returned(report)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Continue after the event of an :class:`~export_queue.triggers.ExportQueueDriverTrigger`.

        :returns: the report, as plain values.
        """
        from export_queue.core.drain import SubmittedDrain

        self._instance, self.spark_ui = context["ti"], event.get("spark_ui")
        with terminal_errors_fail_at_once():
            self.read_arguments()
            output = DriverOutput(**event["output"]) if event["output"] else None
            report = self._collect(SubmittedDrain.from_dict(event["drain"]), output)
        return self._returned(report)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Continue after the deferral; if the deferral failed or took too long, stop the driver."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (TaskDeferralError, TaskDeferralTimeout):
            self._stop_drivers(context)
            raise

    def _returned(self, report: DrainReport) -> dict[str, Any]:
        self.log.info("%s", report.line())
        return self.report

    def _prepare(self, context: Context) -> tuple[DrainArguments, dict[str, str | None]]:
        """Describe the drain.

        :returns: its arguments, and the environment of ``spark-submit``.
        """
        from export_queue.core.spark import DrainArguments

        self.read_arguments()
        sink = self.describe_sink()
        spec = dataclasses.replace(sink.spec, secrets={**sink.spec.secrets, **self.sink_secrets})
        self._store = ExportQueueHook(self.export_queue_conn_id).describe()
        request = self.request(task_name(context), sink_name=spec.name)
        store, variables, submitter = self._prepare_spark(self._store, dataclasses.replace(sink, spec=spec))
        self._owner = request.owner
        arguments = DrainArguments(
            store=store,
            sink=spec,
            request=request,
            max_parallel=self.max_parallel,
            start_timeout=self.start_timeout,
            submitter=submitter,
        )
        return arguments, variables

    def _drain(self, context: Context) -> DrainReport:
        from export_queue.core.spark import describe_drain

        arguments, variables = self._prepare(context)
        assert self._store is not None
        reports: list[DrainReport] = []
        with open_store(self._store) as store:
            submissions = Submissions.begin(store, arguments.request)
            with contextlib.closing(submissions.requests(self.check_killed)) as requests:
                # one submission drains what is free; this task waits for the rest without holding an executor
                for submitted in requests:
                    job = describe_drain(dataclasses.replace(arguments, request=submitted))
                    find = partial(store.reports, drain_id=submitted.drain_id)
                    self._submit(context, store, job, variables, result=find)
                    if (report := self._stored(store, submitted.drain_id)) is None:
                        raise SparkJobFailed(f"the Spark driver ended without a report; its id is {submitted.drain_id}")
                    reports.append(report)
            report = submissions.report(reports)
            self.conclude(store, report)
        return report

    def _stored(self, store: Store, drain_id: str) -> DrainReport | None:
        """Return the stored report of a drain; None if there is none.

        :raises ExportQueueError: what stopped the drain.
        """
        from export_queue.core.drain import DrainReport

        find = partial(store.reports, drain_id=drain_id)
        if not (found := _OUTAGE.call(find, check=self.check_killed, on_pause=self._tell_outage)):
            return None
        report = DrainReport.from_dict(found[0])
        for warning in report.warnings():
            self.log.warning("%s", warning)
        if report.problem is not None:
            raise report.problem.to_error()
        return report

    def _drain_deferred(self, context: Context) -> DrainReport:
        """Submit one drain, and defer once its driver has begun. The driver itself waits for what others hold.

        :returns: the report, if there is nothing to wait for.
        """
        from export_queue.core.drain import SubmittedDrain
        from export_queue.core.spark import describe_drain

        arguments, variables = self._prepare(context)
        self._instance = context["ti"]
        self._refuse_mortal_host()
        assert self._store is not None
        request = arguments.request
        with open_store(self._store) as store:
            submissions = Submissions.begin(store, request)
            submissions.find_left()
            if not submissions.promise.left:
                report = submissions.report([])
                self.conclude(store, report)
                return report
            drain = SubmittedDrain.of(store.database, request, start_timeout=self.start_timeout)
            job = describe_drain(dataclasses.replace(arguments, submitter=None, detached=True))
            output = DriverOutput.here(drain.attempt)
            try:
                program = self._submit_detached(context, job, variables, output)
                state = self._await_begin(store, drain, program)
            except BaseException:
                self._abandon(output)
                raise
        return self._collect(drain, output) if state == "reported" else self._defer(drain, output)

    def _refuse_mortal_host(self) -> None:
        if os.environ.get("AIRFLOW_IS_K8S_EXECUTOR_POD") and not self._deploys_to_cluster:
            raise ConfigurationError(
                "the pod of this task ends when the task is deferred, and a driver in client mode would end with it",
                hint="use Spark's deploy mode cluster, or deferrable=False",
            )

    def _await_begin(self, store: Store, drain: SubmittedDrain, program: Popen[Any]) -> DriverState:
        """Wait until the driver has begun or the cluster has accepted it: what fails before has no other witness.

        An outage of the store does not stop the driver, which waits for the store too.

        :raises SparkJobFailed: it did not begin.
        :raises ExportQueueError: the store did not answer in time.
        """
        end = monotonic() + self.start_timeout  # the store's clock, by which a state is silent, may be set back
        while True:
            self.check_killed()
            status = program.poll()  # before the state: a driver that has ended has stored its report
            try:
                with store.database.read() as work:
                    state = drain.state(work)
            except ExportQueueError as error:
                if not error.transient or monotonic() > end:
                    raise
                if status is None or not self._deploys_to_cluster:  # an ended driver may have stored its report
                    sleep(_LOOK_SECONDS)
                    continue
                state = "starting"
            if state == "reported" or (status == 0 if self._deploys_to_cluster else state == "running"):
                return state
            if status is not None:
                raise SparkJobFailed(f"spark-submit ended with status {status} before the driver began")
            if state == "silent" or monotonic() > end:
                raise SparkJobFailed(f"the Spark driver has not begun within {self.start_timeout:g} seconds")
            sleep(_LOOK_SECONDS)

    def _abandon(self, output: DriverOutput) -> None:
        """Stop a submission that did not begin; a driver that begins later ends at once."""
        if self._detached is not None:
            self._detached.kill()
        self.take_locks_away()
        self._show(output)

    def _defer(self, drain: SubmittedDrain, output: DriverOutput) -> NoReturn:
        if self._deploys_to_cluster:
            self._show(output)
            kept = None  # the output of the driver is in the cluster
        else:
            self.log.info("The driver runs on %s; its output: %s", output.host, output.path)
            kept = dataclasses.asdict(output)
            for _ in self._watched(output.lines()):
                pass
        trigger = ExportQueueDriverTrigger(
            drain=dataclasses.asdict(drain),
            output=kept,
            spark_ui=self.spark_ui,
            export_queue_conn_id=self.export_queue_conn_id,
        )
        self.defer(trigger=trigger, method_name="execute_complete", timeout=self.execution_timeout)

    def _collect(self, drain: SubmittedDrain, output: DriverOutput | None) -> DrainReport:
        """Return the report of a drain that has ended.

        :param output: the output of the driver, if it is not in a cluster.
        :raises SparkJobFailed: there is none.
        """
        from export_queue.core.locks import revoke

        if output is not None:
            self._show(output)
        with ExportQueueHook(self.export_queue_conn_id).get_store() as store:
            report = self._stored(store, drain.drain_id)
            if report is None:
                revoke(store.database, drain.task, attempt=drain.attempt)  # it may be alive, without the store
                report = self._stored(store, drain.drain_id)
            if report is None:
                raise SparkJobFailed(
                    f"the Spark driver shows no life and has stored no report; its id is {drain.drain_id}"
                )
            self.conclude(store, report)
        return report

    def _tell_outage(self, error: Exception) -> None:
        self.log.warning("The report of the drain is read once the store answers: %s", error)

    def _show(self, output: DriverOutput) -> None:
        """Log the output of ``spark-submit`` if this machine has it, and remove it; otherwise log where it is."""
        if output.is_here:
            for line in self._watched(output.lines()):
                self.log.info("%s", line)
            output.remove()
        else:
            self.log.info("The output of the driver is on %s: %s", output.host, output.path)

    def _stop_drivers(self, context: Context) -> None:
        from export_queue.core.locks import revoke

        task = task_name(context)
        try:
            self.read_arguments()
            with ExportQueueHook(self.export_queue_conn_id).get_store() as store:
                revoke(store.database, task)
        except Exception:
            self.log.exception("The driver of task %s could not be told to stop", task)
