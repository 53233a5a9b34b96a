"""Triggers: waiting for a queue on the triggerer's event loop."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from export_queue.hooks import ExportQueueHook
from export_queue.polling import Question, polled_store

if TYPE_CHECKING:
    from export_queue.core.queue import Sighting


class ExportQueueTrigger(BaseEventTrigger):
    """Fires when entries wait in a queue: when the queue ceases to be empty, and again for newer commits.

    No commit is missed: entries that were committed after the last event, also between a drain and the next look, make
    another event, at the earliest ``min_interval`` after the last one. All triggers of a triggerer that watch one
    store share its looks and one connection. A store that does not answer is asked again until it does.

    The event's payload is ``{"queue": …, "waiting": [[first, end], …]}``, one item a unit with entries.

    :param queue_id: the queue.
    :param ranges: ranges of buckets that are watched; None for all.
    :param poll_interval: seconds between two looks.
    :param min_interval: least seconds between two events while entries keep waiting; by default ``poll_interval``.
    :param export_queue_conn_id: connection of the store.
    """

    def __init__(
        self,
        *,
        queue_id: str,
        ranges: list[list[int]] | None = None,
        poll_interval: float = 60.0,
        min_interval: float | None = None,
        export_queue_conn_id: str = ExportQueueHook.default_conn_name,
    ) -> None:
        super().__init__()
        self.queue_id = queue_id
        self.ranges = ranges
        self.poll_interval = poll_interval
        self.min_interval = min_interval
        self.export_queue_conn_id = export_queue_conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the import path and the arguments."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "queue_id": self.queue_id,
                "ranges": self.ranges,
                "poll_interval": self.poll_interval,
                "min_interval": self.min_interval,
                "export_queue_conn_id": self.export_queue_conn_id,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look again and again, together with the other triggers that watch the store."""
        ranges = None if self.ranges is None else tuple((first, end) for first, end in self.ranges)
        min_interval = self.poll_interval if self.min_interval is None else self.min_interval
        announced: Sighting | None = None
        announced_at = 0.0
        async with polled_store(self.export_queue_conn_id) as poller:
            while True:
                seen = await poller.look(Question(self.queue_id, ranges, announced), self.poll_interval)
                if not seen.waiting:
                    announced = None
                elif announced is None or (seen.has_news and time.monotonic() - announced_at >= min_interval):
                    announced, announced_at = seen, time.monotonic()
                    yield TriggerEvent({"queue": self.queue_id, "waiting": [unit.to_json() for unit in seen.waiting]})
