"""Queues for Airflow's common trigger of message queues: ``MessageQueueTrigger(scheme="export-queue", …)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider

from export_queue.triggers import ExportQueueTrigger

if TYPE_CHECKING:
    from airflow.triggers.base import BaseEventTrigger


class ExportQueueMessageQueueProvider(BaseMessageQueueProvider):
    """Stands for ``scheme="export-queue"``.

    The trigger takes the arguments of :class:`~export_queue.triggers.ExportQueueTrigger`.
    """

    scheme = "export-queue"

    def trigger_class(self) -> type[BaseEventTrigger]:
        """Return the trigger that waits for entries of a queue."""
        return ExportQueueTrigger
