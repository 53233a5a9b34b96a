"""A notifier: a DAG's success or failure as an entry of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier

from export_queue.core.arguments import required_text
from export_queue.hooks import Described, ExportQueueHook, open_store

if TYPE_CHECKING:
    from airflow.sdk import Context

    from export_queue.core.store import StoreSpec


class ExportQueueNotifier(BaseNotifier):
    """Add an entry to a queue when a DAG or a task succeeds or fails, for example for a page of incidents.

    The entry is committed at once, in a transaction of its own; a drain brings it to the sinks as any other. If a
    notification is sent twice, the record is written twice, the second time with the same value.

    :param queue_id: the queue. (templated)
    :param key: the record's key, as a template. (templated)
    :param value: the record's value: text, a number, or lists and mappings with templates in them. None deletes the
        record, such as an incident that is over. (templated)
    :param export_queue_conn_id: connection of the store. (templated)
    """

    template_fields: Sequence[str] = ("queue_id", "key", "value", "export_queue_conn_id")

    def __init__(
        self,
        *,
        queue_id: str,
        value: Any,
        key: str = "{{ dag.dag_id }}",
        export_queue_conn_id: str = ExportQueueHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_id = queue_id
        self.key = key
        self.value = value
        self.export_queue_conn_id = export_queue_conn_id

    def notify(self, context: Context) -> None:
        """Add the entry.

        :raises ExportQueueError: it was not added.
        """
        self._add(ExportQueueHook(self.export_queue_conn_id).describe())

    async def async_notify(self, context: Context) -> None:
        """Add the entry from the triggerer, for example when a deadline is missed."""
        described = await ExportQueueHook(self.export_queue_conn_id).adescribe()
        await asyncio.to_thread(self._add, described)

    def _add(self, described: Described[StoreSpec]) -> None:
        queue_id = required_text(self.queue_id, what="queue_id")
        with open_store(described) as store:
            store.run(lambda tx: tx.queue(queue_id).add(self.key, self.value))
        self.log.info("%s: the notification with the key %r is added", queue_id, self.key)
