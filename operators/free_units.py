"""The units of a queue that a drain still has to bring, and waiting for those that others hold."""

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
"""Between two looks at units that others hold."""
TELL_SECONDS = 30.0
"""Between two lines of the log about them."""
sleep = time.sleep


@dataclass(slots=True)
class OpenUnits:
    """What is left of a drain's promise: units with entries that were committed before it began.

    :param store: an open store.
    :param queue: the queue.
    :param request: parameters of the drain.
    :param deadline: when the drain ends at the latest, over all its submissions.
    :param promised: decides which entries must be brought.
    :param asked: units that were asked for.
    """

    store: Store
    queue: Queue
    request: DrainRequest
    deadline: Deadline
    promised: Snapshot
    asked: Sequence[Range]
    left: list[Range] = field(default_factory=list)
    """Units for which the promise is not kept yet."""
    submissions: int = 0
    """How many this drain has made."""
    to_revoke: list[Range] = field(default_factory=list)
    """Units that holders of lower priority have kept for too long: the next submission revokes their locks."""

    @classmethod
    def of(cls, store: Store, request: DrainRequest) -> Self:
        """Begin a drain.

        :raises UnknownQueue: the store has no such queue.
        :raises HasSubscriptions: they have its entries; the error names them.
        :raises SinkBindingError: the queue drains into another sink.
        :raises InvalidArgument: the ranges are no units.
        """
        from export_queue.core.drain import Deadline, warn_of_closed
        from export_queue.core.queue import bind_sink, find_reader, units_asked_for
        from export_queue.core.transactions import take_snapshot

        deadline = Deadline.after(request.time_limit)
        promised = take_snapshot(store.database)  # before the queue: what it sees lies in layouts that are known then
        with store.database.read() as work:
            queue = find_reader(work, request.queue_id)
            left, closed = units_asked_for(work, queue, request.ranges)
        warn_of_closed(queue, closed)
        if queue.sink is not None:
            # Another sink than the bound one is refused here, in a second, and not by the driver after many.
            with store.database.begin() as work:
                bind_sink(work, queue, request.sink_name)
        return cls(store, queue, request, deadline, promised, [*closed, *left], left)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the store forget this attempt, if it has ended in order; a revoked one stays known."""
        from export_queue.core.locks import end_attempt

        with contextlib.suppress(Exception), self.store.database.begin() as work:
            end_attempt(work, self.request.owner)

    def wait(self, go_on: Callable[[], None]) -> bool:
        """Wait until some of what is left is free, and take over from older tries of this task.

        :param go_on: called between two looks; may raise to stop.
        :returns: False if nothing is left to do: all is drained, by others too, or is to be skipped.
        :raises LockNotAvailable: others hold units, and the request does not let the drain wait, or not for so long.
        :raises DrainTimedOut: the time limit of the drain has passed.
        :raises LeaseLost: this attempt was revoked, or a newer one has begun.
        """
        from export_queue.core.locks import begin_attempt, check_attempt, not_available

        request, begun, told = self.request, time.monotonic(), float("-inf")
        held = self._look()
        if not self.left:
            return False
        # Before the driver begins: so that it takes over from older ones, and can be stopped from the start.
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
            go_on()
            sleep(min(LOOK_SECONDS, self.deadline.left()))
            check_attempt(self.store.database, request.owner)
            held = self._look()

    def next_request(self) -> DrainRequest:
        """Make the request of the next submission, which leaves alone what others hold.

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

    def _look(self) -> dict[Range, str]:
        """Find what is left, and which of it others hold; an older try of this task does not stand against it.

        A unit of which a compaction holds some is submitted once, for the rest of it; then it is held like others.
        """
        from export_queue.core.locks import claimable
        from export_queue.core.queue import waiting_ranges

        if not self.left:
            return {}
        with self.store.database.read() as work:
            if self.request.ranges is None:
                self._look_again(work)
            else:
                self.left = waiting_ranges(work, self.queue, self.promised, self.left)
        held = {unit: task for unit, task, _ in self._holders()}
        if self.submissions or self.request.if_locked == "fail":
            return held
        with self.store.database.read() as work:
            free = claimable(work, self.queue, sorted(held), self.promised, owner=self.request.owner)
        return {unit: task for unit, task in held.items() if unit not in free}

    def _look_again(self, work: Reading) -> None:
        """Find what is left where all was asked for: it may have been rewritten into units of a later layout."""
        from export_queue.core.queue import read_again, waiting_ranges

        queue = read_again(work, self.queue)
        units = queue.open_units() if queue.older else self.left
        self.queue, self.left = queue, waiting_ranges(work, queue, self.promised, units)
        self.asked = [*self.asked, *(unit for unit in self.left if unit not in self.asked)]

    def _held_by_lower_ones(self) -> list[Range]:
        """Find the units all of whose holders have a lower priority than drains."""
        from export_queue.core.locks import DRAIN_PRIORITY

        found = self._holders()
        kept = {unit for unit, _, priority in found if priority >= DRAIN_PRIORITY}
        return sorted({unit for unit, _, _ in found} - kept)

    def _holders(self) -> list[tuple[Range, str, int]]:
        """Read which of the units that are left others hold, with task and priority."""
        from export_queue.core.locks import holders

        with self.store.database.read() as work:
            found = holders(work, self.queue, self.left)
        return [(one.range, one.owner.task, one.priority) for one in found if one.owner.task != self.request.owner.task]

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
