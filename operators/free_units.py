"""The units that a drain on Spark still has to deliver, and waiting for those that others hold."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from export_queue.core.client import Store
    from export_queue.core.drain import Deadline, DrainReport, DrainRequest
    from export_queue.core.queue import Queue, Range
    from export_queue.core.store import Reading
    from export_queue.core.transactions import Snapshot

log = logging.getLogger("export_queue.drain")

LOOK_SECONDS = 0.5
"""Time between two checks of the units that others hold."""
TELL_SECONDS = 30.0
"""Time between two log lines about them."""
sleep = time.sleep


@dataclass(slots=True)
class OpenUnits:
    """The units that are left of a drain's promise: those with entries that were committed before it began.

    :param store: an open store.
    :param queue: the queue.
    :param request: parameters of the drain.
    :param deadline: when the drain must end, including all its submissions.
    :param promised: decides which entries must be delivered.
    :param asked: the requested units.
    """

    store: Store
    queue: Queue
    request: DrainRequest
    deadline: Deadline
    promised: Snapshot
    asked: Sequence[Range]
    left: list[Range] = field(default_factory=list)
    """Units that are not yet drained."""
    submissions: int = 0
    """Number of submissions so far."""
    to_revoke: list[Range] = field(default_factory=list)
    """Units that holders of lower priority held too long: the next submission revokes their locks."""

    @classmethod
    def of(cls, store: Store, request: DrainRequest) -> Self:
        """Begin a drain.

        :raises UnknownQueue: the store has no such queue.
        :raises HasSubscriptions: its entries are in its subscriptions; the error names them.
        :raises SinkBindingError: the queue drains into another sink.
        :raises InvalidArgument: the ranges are not units.
        """
        from export_queue.core.drain import Deadline, warn_of_closed
        from export_queue.core.queue import bind_sink, find_reader, units_asked_for
        from export_queue.core.transactions import take_snapshot

        deadline = Deadline.after(request.time_limit)
        promised = take_snapshot(
            store.database
        )  # before the queue is read, so that all its entries are in known layouts
        with store.database.read() as work:
            queue = find_reader(work, request.queue_id)
            left, closed = units_asked_for(work, queue, request.ranges)
        warn_of_closed(queue, closed)
        if queue.sink is not None:
            # a wrong sink is refused here within a second, instead of by the driver after many
            with store.database.begin() as work:
                bind_sink(work, queue, request.sink_name)
        return cls(store, queue, request, deadline, promised, [*closed, *left], left)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the store forget this attempt if it ended in order; a revoked attempt stays known."""
        from export_queue.core.locks import end_attempt

        with contextlib.suppress(Exception), self.store.database.begin() as work:
            end_attempt(work, self.request.owner)

    def wait(self, check: Callable[[], None]) -> bool:
        """Wait until some of the units are free, and take over from older attempts of this task.

        :param check: called between two checks; may raise to stop.
        :returns: False if nothing is left to do: everything is drained, also by others, or is to be skipped.
        :raises LockNotAvailable: others hold units, and the request does not allow to wait, or not this long.
        :raises DrainTimedOut: the time limit of the drain has passed.
        :raises LeaseLost: this attempt was revoked, or a newer attempt has begun.
        """
        from export_queue.core.locks import begin_attempt, check_attempt, not_available

        request, begun, told = self.request, time.monotonic(), float("-inf")
        held = self._check_units()
        if not self.left:
            return False
        # before the driver begins, so that it takes over from older attempts and can be revoked from the start
        begin_attempt(self.store.database, self.queue, request.owner)
        while True:
            self.deadline.check()
            if len(held) < len(self.left) and not (held and request.if_locked == "fail"):
                return True
            if not self.left or request.if_locked == "skip":
                return False
            if request.if_locked == "fail" or time.monotonic() - begun >= request.lock_timeout:
                if request.if_locked == "wait" and (lower := self._held_by_lower_ones()):
                    self.to_revoke = lower
                    return True
                with self.store.database.read() as work:
                    raise not_available(work, self.queue, sorted(held))
            if time.monotonic() - told >= TELL_SECONDS:
                told = time.monotonic()
                shown = ", ".join(f"{unit} by {task}" for unit, task in sorted(held.items())[:3])
                log.info("%s → %s: waiting for %s; nothing is submitted", self.queue.id, request.sink_name, shown)
            check()
            sleep(min(LOOK_SECONDS, self.deadline.left()))
            check_attempt(self.store.database, request.owner)
            held = self._check_units()

    def next_request(self) -> DrainRequest:
        """Return the request of the next submission, which skips what others hold.

        :raises DrainTimedOut: the time limit of the drain has passed.
        """
        request = self.request
        if request.time_limit is not None:
            self.deadline.check()
            request = replace(request, time_limit=self.deadline.left())
        if self.submissions:
            request = replace(request, drain_id=f"{request.drain_id}.{self.submissions}", ranges=self.left)
        if self.to_revoke:
            request = replace(request, lock_timeout=0.0, ranges=self.to_revoke)
        elif request.if_locked == "wait":
            request = replace(request, if_locked="skip")
        self.submissions, self.to_revoke = self.submissions + 1, []
        return request

    def _check_units(self) -> dict[Range, str]:
        """Find what is left, and return which of it other tasks hold.

        A unit that a compaction holds partly is submitted once, for its free part; after that it counts as held.
        """
        from export_queue.core.locks import claimable
        from export_queue.core.queue import waiting_ranges

        if not self.left:
            return {}
        with self.store.database.read() as work:
            if self.request.ranges is None:
                self._find_units_again(work)
            else:
                self.left = waiting_ranges(work, self.queue, self.promised, self.left)
        held = {unit: task for unit, task, _ in self._holders()}
        if self.submissions or self.request.if_locked == "fail":
            return held
        with self.store.database.read() as work:
            free = claimable(work, self.queue, sorted(held), self.promised, owner=self.request.owner)
        return {unit: task for unit, task in held.items() if unit not in free}

    def _find_units_again(self, work: Reading) -> None:
        """Find what is left if all units were requested: entries may have moved to units of a newer layout."""
        from export_queue.core.queue import read_again, waiting_ranges

        queue = read_again(work, self.queue)
        units = queue.open_units() if queue.older else self.left
        self.queue, self.left = queue, waiting_ranges(work, queue, self.promised, units)
        self.asked = [*self.asked, *(unit for unit in self.left if unit not in self.asked)]

    def _held_by_lower_ones(self) -> list[Range]:
        """Return the units whose holders all have a lower priority than drains."""
        from export_queue.core.locks import DRAIN_PRIORITY

        found = self._holders()
        kept = {unit for unit, _, priority in found if priority >= DRAIN_PRIORITY}
        return sorted({unit for unit, _, _ in found} - kept)

    def _holders(self) -> list[tuple[Range, str, int]]:
        """Return the remaining units that other tasks hold, with task and priority."""
        from export_queue.core.locks import holders

        with self.store.database.read() as work:
            found = holders(work, self.queue, self.left)
        return [(one.range, one.owner.task, one.priority) for one in found if one.owner.task != self.request.owner.task]

    def report(self, parts: Sequence[DrainReport]) -> DrainReport:
        """Return the report of the whole drain.

        :param parts: reports of its submissions.
        """
        from export_queue.core.drain import DrainReport, total
        from export_queue.core.queue import join_ranges

        done = join_ranges(unit for unit in self.asked if unit not in self.left)
        whole = DrainReport(queue=self.queue.id, sink=self.request.sink_name, drain_id="")
        if parts:
            whole = replace(parts[-1], seconds=sum(part.seconds for part in parts), **total(parts))
        return replace(whole, ranges=done, skipped=join_ranges(self.left))
