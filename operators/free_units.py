"""The units of a queue that a drain still has to bring, and waiting for those that others hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from export_queue.core.client import Store
    from export_queue.core.drain import DrainReport, DrainRequest
    from export_queue.core.queue import Queue, Range
    from export_queue.core.transactions import Snapshot

LOOK_SECONDS = 0.5
"""Between two looks at units that others hold."""
sleep = time.sleep


@dataclass(slots=True)
class OpenUnits:
    """What is left of a drain's promise: units with entries that were committed before it began.

    :param store: an open store.
    :param queue: the queue.
    :param request: parameters of the drain.
    :param promised: decides which entries must be brought.
    :param asked: units that were asked for.
    """

    store: Store
    queue: Queue
    request: DrainRequest
    promised: Snapshot
    asked: Sequence[Range]
    left: list[Range] = field(default_factory=list)
    """Units for which the promise is not kept yet."""

    @classmethod
    def of(cls, store: Store, request: DrainRequest) -> Self:
        """Begin a drain.

        :raises UnknownQueue: the store has no such queue.
        :raises SinkBindingError: the queue drains into another sink.
        :raises InvalidArgument: the ranges are no units.
        """
        from export_queue.core.queue import bind_sink
        from export_queue.core.transactions import take_snapshot

        queue = store.queue(request.queue_id)
        if queue.sink is not None:
            # Another sink than the bound one is refused here, in a second, and not by the driver after many.
            with store.database.begin() as work:
                bind_sink(work, queue, request.sink_name)
        asked = queue.split(request.ranges)
        return cls(store, queue, request, take_snapshot(store.database), asked, list(asked))

    def wait(self, go_on: Callable[[], None]) -> bool:
        """Wait until some of what is left is free.

        :param go_on: called between two looks; may raise to stop.
        :returns: False if nothing is left to do: all is drained, by others too, or is to be skipped.
        :raises LockNotAvailable: others hold units, and the request does not let the drain wait, or not for so long.
        """
        from export_queue.core.locks import holders, not_available
        from export_queue.core.queue import waiting_ranges

        request, begun = self.request, time.monotonic()
        while True:
            with self.store.database.read() as work:
                self.left = waiting_ranges(work, self.queue, self.promised, self.left) if self.left else []
                found = holders(work, self.queue, self.left)
                # An older try of this task does not stand against it.
                held = {holder.range for holder in found if holder.owner.task != request.owner.task}
                if len(held) < len(self.left) and not (held and request.if_locked == "fail"):
                    return True
                if not self.left or request.if_locked == "skip":
                    return False
                if request.if_locked == "fail" or time.monotonic() - begun >= request.lock_timeout:
                    raise not_available(work, self.queue, sorted(held))
            go_on()
            sleep(LOOK_SECONDS)

    def report(self, parts: Sequence[DrainReport]) -> DrainReport:
        """Put the report of the whole drain together.

        :param parts: reports of its submissions.
        """
        from export_queue.core.drain import DrainReport, total
        from export_queue.core.queue import join_ranges

        done = join_ranges(unit for unit in self.asked if unit not in self.left)
        whole = DrainReport(queue=self.queue.id, sink=self.request.sink_name, drain_id="")
        if parts:
            whole = replace(parts[-1], seconds=sum(part.seconds for part in parts), **total(parts))
        return replace(whole, ranges=done, skipped=join_ranges(self.left))
