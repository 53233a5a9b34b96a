"""What a drain promises: to deliver the entries of the requested units that were committed before it began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from export_queue.core.drain.admission import warn_of_closed
from export_queue.core.drain.fenced import in_progress, not_settled_error
from export_queue.core.drain.request import DrainRequest
from export_queue.core.errors import ExportQueueError
from export_queue.core.locks import holders_named, not_available
from export_queue.core.queue import Queue, Range, find_reader, read_again, units_asked_for, waiting_ranges
from export_queue.core.store import Database, removed_subscription
from export_queue.core.transactions import Snapshot, take_snapshot


@dataclass(slots=True)
class Promise:
    """The promise of one drain, and what is left of it.

    :param snapshot: decides which entries must be delivered.
    :param queue: the queue, with the layouts that are known so far.
    :param closed: requested units of closed layouts, which have no entries.
    :param wanted: the other requested units.
    :param left: those of the wanted units that may still have entries of the promise.
    """

    database: Database
    request: DrainRequest
    snapshot: Snapshot
    queue: Queue
    closed: list[Range]
    wanted: list[Range]
    left: list[Range]

    @classmethod
    def begin(cls, database: Database, request: DrainRequest, *, number: int | None = None) -> Self:
        """Promise what is committed now.

        :param number: the queue's number, if an earlier drain of the same attempt found it.
        :raises UnknownQueue: the store has no such queue, or it was removed and created again.
        :raises HasSubscriptions: its entries are in its subscriptions; the error names them.
        :raises InvalidArgument: the requested ranges are not units.
        """
        snapshot = take_snapshot(database)  # before the queue is read, so that all its entries are in known layouts
        with database.read() as work:
            queue = find_reader(work, request.queue_id)
            require_same(queue, number)
            wanted, closed = units_asked_for(work, queue, request.ranges)
        warn_of_closed(queue, closed)
        return cls(database, request, snapshot, queue, closed, wanted, wanted)

    @property
    def done(self) -> list[Range]:
        """The requested units for which the promise is kept."""
        left = set(self.left)
        return [*self.closed, *(unit for unit in self.wanted if unit not in left)]

    def find_left(self) -> None:
        """Find out which of the units that were left still are: others may have delivered their entries."""
        with self.database.read() as work:
            self.left = waiting_ranges(work, self.queue, self.snapshot, self.left)

    def find_moved(self) -> None:
        """Find all units that are left, also those into which entries were moved meanwhile.

        If all units were requested, this includes units of layouts that were opened since.

        :raises UnknownQueue: the queue was removed, even if one of the same name was created.
        """
        units = self.wanted
        with self.database.read() as work:
            if self.request.ranges is None:
                found = read_again(work, self.queue)
                require_same(found, self.queue.number)
                self.queue, units = found, found.open_units()
            self.left = waiting_ranges(work, self.queue, self.snapshot, units)
        self.wanted = [*self.wanted, *(unit for unit in self.left if unit not in self.wanted)]

    def renew(self) -> None:
        """Promise what is committed now, instead of what was committed at the beginning."""
        self.snapshot, self.left = take_snapshot(self.database), self.wanted
        self.find_left()

    def refusal(self, held: Sequence[Range], left: Sequence[Range]) -> ExportQueueError:
        """Return the error that names the holders of units; if others hold none, the older transactions.

        :param left: all units that were waited for.
        """
        if not held:
            return not_settled_error(self.database, self.queue, self.snapshot, left)
        with self.database.read() as work:
            error = not_available(work, self.queue, held)
        if self.request.if_locked == "wait":
            error.hint = (
                f"the drain waited for {self.request.lock_timeout:g} s: wait longer (lock_timeout), "
                "or see who holds it: export-queue locks"
            )
        return error

    def awaited(self, units: Sequence[Range]) -> str:
        """Name the holders of units; if there are none, the transactions that hold entries back."""
        if not units:
            return f"older transactions: {in_progress(self.database, self.snapshot)}"
        with self.database.read() as work:
            return holders_named(work, self.queue, units)


def require_same(queue: Queue, number: int | None) -> None:
    """Refuse a subscription that was removed and created again under the same name.

    :param number: the number of the queue that is drained; None if it is not known yet.
    :raises UnknownQueue: the numbers differ.
    """
    if number not in (None, queue.number):
        raise removed_subscription(f"subscription {queue.id!r}")
