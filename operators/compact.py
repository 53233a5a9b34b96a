"""The operator that merges small segments of a queue in the Airflow worker."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowTaskTerminated

from export_queue.hooks import ExportQueueHook
from export_queue.hooks.tasks import task_name
from export_queue.operators.compact_task import CompactTask
from export_queue.operators.terminal import terminal_errors_fail_at_once

if TYPE_CHECKING:
    from airflow.sdk import Context


class ExportQueueCompactOperator(CompactTask):
    """Merge small segments and settled rows of a queue, in the Airflow worker.

    For the other arguments, and for what success means, see
    :class:`~export_queue.operators.compact_task.CompactTask`. To merge on Spark, use
    :class:`~export_queue.operators.spark_compact.ExportQueueSparkCompactOperator`.

    :param older_layouts: instead, move all pending entries from the buckets that the queue had before to its current
        buckets; the arguments that select segments are ignored.
    """

    ui_color = "#efe8f7"
    _is_killed = False
    _works_in: int | None = None
    """The thread that merges."""

    def __init__(self, *, older_layouts: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.older_layouts = older_layouts

    def execute(self, context: Context) -> dict[str, Any]:
        """Merge, or move.

        :returns: the report without its units, as plain values.
        """
        from export_queue.core.locks import Owner
        from export_queue.core.segments import compact

        with terminal_errors_fail_at_once():
            wanted = self.wanted()
            with ExportQueueHook(self.export_queue_conn_id).get_store() as store:
                self._works_in = threading.get_ident()
                try:
                    report = compact(
                        store.database,
                        self.queue_id,
                        older_layouts=self.older_layouts,
                        wanted=wanted,
                        owner=Owner(task_name(context), uuid.uuid4().hex),
                        dry_run=self.only_say,
                        stops=lambda: self._is_killed,
                    )
                finally:
                    self._works_in = None
        return self.told(report)

    def on_kill(self) -> None:
        """Stop and release the locks. What was published stays published; nothing else has changed.

        Airflow calls this from a signal handler, in the thread that merges.
        """
        self._is_killed = True
        if self._works_in == threading.get_ident():
            raise AirflowTaskTerminated(f"task {self.task_id} was told to stop")
