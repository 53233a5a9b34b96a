"""The operator that puts dead letters back into their queue."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from export_queue.core.arguments import required_text, text, whole_number
from export_queue.hooks import ExportQueueHook
from export_queue.hooks.rendered import Reader, name_or, optional
from export_queue.hooks.tasks import task_name
from export_queue.lineage import Lineage, LineageTask, queue_data
from export_queue.links import DeadLettersLink, QueuePageLink
from export_queue.operators.terminal import terminal_errors_fail_at_once

if TYPE_CHECKING:
    from airflow.sdk import Context

_PAGE = 1000
"""Maximum number of letters that are moved in one call, which holds the locks of their units."""


class ExportQueueRetryDeadLettersOperator(LineageTask):
    """Put dead letters back into the queue, after their cause was mended; the next drain sends them again.

    Each letter keeps its sequence, so that it replaces no newer value in the sink. Without a selection, all letters of
    the queue are retried. A repetition finds nothing more to do.

    :param queue_id: the queue or subscription whose drains set the letters aside. (templated)
    :param key: only entries with this key, for queues whose keys are text. (templated)
    :param error_class: only letters with this class of error, as ``export-queue dead list`` shows it. (templated)
    :param drain_id: only letters of this drain. (templated)
    :param limit: maximum number of letters, oldest first; by default all. (templated)
    :param lock_timeout: seconds to wait for drains that work on the same part of the queue.
    :param export_queue_conn_id: connection of the store. (templated)
    """

    readers: ClassVar[Mapping[str, Reader]] = {
        "queue_id": required_text,
        "key": text,
        "error_class": text,
        "drain_id": text,
        "limit": optional(whole_number, least=1),
        "export_queue_conn_id": name_or(ExportQueueHook.default_conn_name),
    }
    template_fields: Collection[str] = tuple(readers)
    operator_extra_links = (QueuePageLink(), DeadLettersLink())
    ui_color = "#fde2e2"

    def __init__(
        self,
        *,
        queue_id: str,
        key: str | None = None,
        error_class: str | None = None,
        drain_id: str | None = None,
        limit: int | str | None = None,
        lock_timeout: float = 600.0,
        export_queue_conn_id: str = ExportQueueHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_id = queue_id
        self.key = key
        self.error_class = error_class
        self.drain_id = drain_id
        self.limit: Any = limit
        self.lock_timeout = lock_timeout
        self.export_queue_conn_id = export_queue_conn_id

    def execute(self, context: Context) -> dict[str, int]:
        """Put the letters back.

        :returns: ``requeued``, the number of letters that were put back, and ``left``, how many the queue still has.
        """
        from export_queue.core.queue import DeadLetterFilter

        requeued = 0
        with terminal_errors_fail_at_once():
            self.read_arguments()
            which = DeadLetterFilter(key=self.key, error_class=self.error_class, drain_id=self.drain_id)
            with ExportQueueHook(self.export_queue_conn_id).get_store() as store:
                letters, who = store.dead_letters, task_name(context)
                while self.limit is None or requeued < self.limit:
                    page = _PAGE if self.limit is None else min(_PAGE, self.limit - requeued)
                    moved = letters.retry(self.queue_id, which, limit=page, lock_timeout=self.lock_timeout, who=who)
                    requeued += moved
                    if moved < page:
                        break
                left = letters.count(self.queue_id)
        self.log.info("%s: %d dead letters were put back into the queue, %d are left", self.queue_id, requeued, left)
        self.report = {"requeued": requeued, "left": left}
        return self.report

    def lineage(self) -> Lineage:
        """Back into the queue."""
        return Lineage(outputs=[queue_data(self.export_queue_conn_id, self.queue_id, self.report.get("requeued"))])
