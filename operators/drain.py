"""The operator that drains a queue in the Airflow worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from export_queue.hooks import ExportQueueHook, environment, open_store
from export_queue.hooks.tasks import task_name
from export_queue.operators.drain_task import DrainTask
from export_queue.operators.terminal import terminal_errors_fail_at_once

if TYPE_CHECKING:
    from airflow.sdk import Context


class ExportQueueDrainOperator(DrainTask):
    """Drain a queue into a sink, in the Airflow worker.

    Use it for up to some hundred thousand entries. For more, use
    :class:`~export_queue.operators.spark_drain.ExportQueueSparkDrainOperator`. For the arguments, and for what success
    means, see :class:`~export_queue.operators.drain_task.DrainTask`.
    """

    ui_color = "#d9edf7"

    def execute(self, context: Context) -> dict[str, Any]:
        """Drain.

        :returns: the report, as plain values.
        """
        from export_queue.core.drain import drain_as_requested

        with terminal_errors_fail_at_once():
            self.read_arguments()
            sink = self.describe_sink()
            request = self.request(task_name(context), sink_name=sink.spec.name)
            self._owner = request.owner
            self._store = ExportQueueHook(self.export_queue_conn_id).describe()
            with open_store(self._store) as store, environment(sink.variables), self.interruptible():
                report = drain_as_requested(store, sink.spec, request, on_progress=self.check_killed)
                self.conclude(store, report)
        self.log.info("%s", report.line())
        return self.report
