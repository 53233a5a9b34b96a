"""The operator that compares a sink with the content of its queue, and repairs it, in the Airflow worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from export_queue.hooks import ExportQueueHook, environment
from export_queue.operators.terminal import terminal_errors_fail_at_once
from export_queue.operators.verify_task import VerifyTask

if TYPE_CHECKING:
    from airflow.sdk import Context


class ExportQueueVerifyOperator(VerifyTask):
    """Compare the records of a sink with the content of a queue, in the Airflow worker.

    For the arguments, and for what success means, see :class:`~export_queue.operators.verify_task.VerifyTask`.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Compare, and repair if wanted.

        :returns: the report, as plain values.
        """
        from export_queue.core.verify import VerifyRequest, verify_as_requested

        with terminal_errors_fail_at_once():
            self.read_arguments()
            described = self.describe_sink()
            request = VerifyRequest.of(self.queue_id, described.spec.name, self.options())
            with (
                ExportQueueHook(self.export_queue_conn_id).get_store() as store,
                environment(described.variables),
                self.interruptible(),
            ):
                report = verify_as_requested(store, described.spec, request, on_progress=self.check_killed)
        return self.told(report.to_dict(), report.lines())
