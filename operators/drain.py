"""The operator that drains a queue in the Airflow worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException

from export_queue.hooks import ExportQueueHook, environment
from export_queue.hooks.tasks import task_name
from export_queue.operators.drain_task import DrainTask

if TYPE_CHECKING:
    from airflow.sdk import Context


class ExportQueueDrainOperator(DrainTask):
    """Drain a queue into a sink, in the worker itself.

    It suits queues of up to some hundred thousand entries; above that,
    :class:`~export_queue.operators.spark_drain.ExportQueueSparkDrainOperator` does the same on Spark.
    :class:`~export_queue.operators.drain_task.DrainTask` has its arguments, and the meaning of success.
    """

    ui_color = "#d9edf7"
    _is_killed = False

    def execute(self, context: Context) -> dict[str, Any]:
        """Drain.

        :returns: the report, as plain values.
        """
        from export_queue.core.drain import drain_as_requested

        sink = self.describe_sink()
        request = self.request(task_name(context), sink_name=sink.spec.name)
        with ExportQueueHook(self.export_queue_conn_id).get_store() as store, environment(sink.variables):
            report = drain_as_requested(store, sink.spec, request, on_progress=self._go_on)
        self.log.info("%s", report.line())
        return report.to_dict()

    def on_kill(self) -> None:
        """Stop before the next batch; what was acknowledged stays removed."""
        self._is_killed = True

    def _go_on(self, *_: Any) -> None:
        if self._is_killed:
            raise AirflowException(f"task {self.task_id} was told to stop")
