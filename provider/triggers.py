"""Triggers: waiting for a queue on the triggerer's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from export_queue.hooks import ExportQueueHook, open_store

if TYPE_CHECKING:
    from export_queue.core.client import Store


class ExportQueueTrigger(BaseEventTrigger):
    """Fires when entries wait in a queue: at once if some do, then each time the queue ceases to be empty.

    The event's payload is ``{"queue": …, "waiting": [[first, end, entries], …]}``, one item a unit with entries.

    :param queue_id: the queue.
    :param ranges: ranges of buckets that are watched; None for all.
    :param poll_interval: seconds between two looks.
    :param export_queue_conn_id: connection of the store.
    """

    def __init__(
        self,
        *,
        queue_id: str,
        ranges: list[list[int]] | None = None,
        poll_interval: float = 60.0,
        export_queue_conn_id: str = ExportQueueHook.default_conn_name,
    ) -> None:
        super().__init__()
        self.queue_id = queue_id
        self.ranges = ranges
        self.poll_interval = poll_interval
        self.export_queue_conn_id = export_queue_conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the import path and the arguments."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "queue_id": self.queue_id,
                "ranges": self.ranges,
                "poll_interval": self.poll_interval,
                "export_queue_conn_id": self.export_queue_conn_id,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look again and again; the store is asked in a thread, since its drivers block."""
        described = await ExportQueueHook(self.export_queue_conn_id).adescribe()
        store = await asyncio.to_thread(open_store, described)
        try:
            was_empty = True
            while True:
                waiting = await asyncio.to_thread(find_waiting, store, self.queue_id, self.ranges)
                if waiting and was_empty:
                    yield TriggerEvent({"queue": self.queue_id, "waiting": waiting})
                was_empty = not waiting
                await asyncio.sleep(self.poll_interval)
        finally:
            # In this thread: a cancelled task must not wait for another one.
            store.close()


def find_waiting(store: Store, queue_id: str, ranges: list[list[int]] | None) -> list[list[int]]:
    """Return ``[first, end, entries]`` of each unit of a queue that has entries."""
    found = store.backlog(queue_id, ranges)
    return [[unit.range.first, unit.range.end, unit.entries] for unit in found]
