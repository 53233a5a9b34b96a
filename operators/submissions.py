"""A drain on Spark as several submissions: each drains what is free, and the next one what others held meanwhile."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from export_queue.core.client import Store
    from export_queue.core.drain import DrainReport, DrainRequest, Promise
    from export_queue.core.queue import Range

log = logging.getLogger("export_queue.drain")

LINE_SECONDS = 30.0
"""Least time between two log lines about the holders of units."""
sleep = time.sleep


@dataclass(slots=True)
class Submissions:
    """The submissions of one drain. While others hold everything that is left, nothing is submitted.

    :param promise: what all submissions together must deliver.
    """

    promise: Promise
    count: int = 0
    """Number of submissions so far."""

    @classmethod
    def begin(cls, store: Store, request: DrainRequest) -> Self:
        """Begin a drain.

        :raises SinkBindingError: the queue drains into another sink.
        :raises ConfigurationError: see :meth:`Promise.begin`.
        """
        from export_queue.core.drain import Promise
        from export_queue.core.queue import bind_sink

        promise = Promise.begin(store.database, request)
        if promise.queue.sink is not None:
            # a wrong sink is refused here within a second, instead of by the driver after many
            with store.database.begin() as work:
                bind_sink(work, promise.queue, request.sink_name)
        return cls(promise)

    def requests(self, check: Callable[[], None]) -> Generator[DrainRequest, None, None]:
        """Yield the request of each submission. Its driver must have ended before the next one is asked for.

        :param check: called while others hold everything; may raise to stop.
        :raises ExportQueueError: see :func:`~export_queue.core.drain.rounds`.
        """
        from export_queue.core.drain import Deadline, Terms, rounds
        from export_queue.core.locks import end_attempt

        promise, request, line_at = self.promise, self.promise.request, float("-inf")
        deadline = Deadline.after(request.time_limit)

        def on_wait(units: Sequence[Range]) -> None:
            nonlocal line_at
            if time.monotonic() - line_at >= LINE_SECONDS:
                line_at = time.monotonic()
                who = promise.awaited(units)
                log.info("%s → %s: waiting for %s; nothing is submitted", request.queue_id, request.sink_name, who)
            check()

        terms: Terms[DrainRequest] = Terms(
            database=promise.database,
            owner=request.owner,
            left=lambda: promise.left,
            claim=self._request_for_free,
            refusal=promise.refusal,
            on_wait=on_wait,
            after_wait=promise.find_moved,
            if_locked=request.if_locked,
            lock_timeout=request.lock_timeout,
            deadline=deadline,
            sleep=sleep,
        )
        try:
            self.find_left()
            for submitted in rounds(terms):
                limit = None if request.time_limit is None else deadline.left()
                drain_id = f"{request.drain_id}.{self.count}" if self.count else request.drain_id
                self.count += 1
                yield replace(submitted, time_limit=limit, drain_id=drain_id)
                self.find_left()
        finally:  # the store forgets an attempt that ended in order; a revoked one stays known
            with contextlib.suppress(Exception), promise.database.begin() as work:
                end_attempt(work, request.owner)

    def find_left(self) -> None:
        """Find what is left, and take over from older attempts before the driver begins, so that it can be revoked."""
        from export_queue.core.locks import begin_attempt

        self.promise.find_moved()
        if self.promise.left:
            begin_attempt(self.promise.database, self.promise.queue, self.promise.request.owner)

    def _request_for_free(self, units: Sequence[Range], revokes: bool) -> DrainRequest | None:
        """Return the request of a submission that drains what is free; None if others hold everything.

        A unit that a compaction holds partly is submitted once, for its free part; after that it counts as held.
        """
        from export_queue.core.locks import DRAIN_PRIORITY, claimable, holders

        promise, request = self.promise, self.promise.request
        held: dict[Range, int] = {}
        with promise.database.read() as work:
            for one in holders(work, promise.queue, units):
                if one.owner.task != request.owner.task:
                    held[one.range] = max(one.priority, held.get(one.range, one.priority))
            if not self.count and request.if_locked != "fail":
                for unit in claimable(work, promise.queue, sorted(held), promise.snapshot, owner=request.owner):
                    del held[unit]
        if held and request.if_locked == "fail":
            raise promise.refusal(sorted(held), units)
        if len(held) < len(units):
            if_locked = "skip" if request.if_locked == "wait" else request.if_locked
            return replace(request, if_locked=if_locked, ranges=units if self.count else request.ranges)
        lower = sorted(unit for unit, priority in held.items() if priority < DRAIN_PRIORITY)
        return replace(request, lock_timeout=0.0, ranges=lower) if revokes and lower else None

    def report(self, parts: Sequence[DrainReport]) -> DrainReport:
        """Return the report of the whole drain.

        :param parts: reports of its submissions.
        """
        from export_queue.core.drain import DrainReport, total
        from export_queue.core.queue import join_ranges

        promise = self.promise
        whole = DrainReport(queue=promise.queue.id, sink=promise.request.sink_name, drain_id="")
        if parts:
            whole = replace(parts[-1], seconds=sum(part.seconds for part in parts), **total(parts))
        return replace(whole, ranges=join_ranges(promise.done), skipped=join_ranges(promise.left))
