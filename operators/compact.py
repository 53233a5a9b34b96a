"""The operator that merges small segments of a queue in the Airflow worker."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

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
            with ExportQueueHook(self.export_queue_conn_id).get_store() as store, self.interruptible():
                report = compact(
                    store.database,
                    self.queue_id,
                    older_layouts=self.older_layouts,
                    wanted=wanted,
                    owner=Owner(task_name(context), uuid.uuid4().hex),
                    dry_run=self.only_say,
                    stops=lambda: self._is_killed,
                )
        return self.told(report)
