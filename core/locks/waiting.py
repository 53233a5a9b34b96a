"""Requesting locks, all or none of them, and waiting for them.

A request that has to wait is stored with its position in the order. Its waiter refreshes it; otherwise it stops
counting. A waiter polls at short intervals, which notices a release, a revocation and the end of a lease alike. If the
store has hints, a release ends the pause at once. Nobody holds locks while waiting.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from export_queue.core.errors import ExportQueueError, InvalidArgument, LockNotAvailable
from export_queue.core.locks.attempts import Owner
from export_queue.core.locks.lease import Lease
from export_queue.core.locks.lockbox import (
    areas_text,
    grant,
    grant_at_once,
    open_board,
    owner_request,
    read_board,
    waiters_of,
)
from export_queue.core.locks.rules import Area, Granted, Mode, Request, Waits
from export_queue.core.locks.showing import in_the_way
from export_queue.core.queue import Queue, Range
from export_queue.core.retry import Retry
from export_queue.core.store import Database, Listener, Work, identity_of, queries

REQUEST_MS = 15_000
"""How long a request counts without a refresh."""
REFRESH_SECONDS = 4.0
"""Interval of refreshes, each of which also checks that the attempt may still work."""
_LOOKS = Retry(first_pause=0.01, longest_pause=0.25)


def acquire(
    database: Database,
    queue: Queue,
    wanted: Iterable[Area],
    *,
    owner: Owner,
    mode: Mode = "exclusive",
    priority: int = 0,
    lease_seconds: float,
    wait_seconds: float = 0.0,
    revoke_after: float | None = 0.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Lease]:
    """Take several locks, all or none: at once if nothing is in the way, else after waiting.

    If requests meet, the one with the higher priority is served first; with equal priorities, the older one.

    :param wanted: what the locks cover; the intervals must not overlap.
    :param owner: the task that asks. A lock of its own attempt that covers the request does not exclude it.
    :param mode: ``exclusive``, or ``shared`` with other shared locks.
    :param priority: drains have 75, loads 50, compactions 25.
    :param lease_seconds: how long the locks last unless they are renewed.
    :param revoke_after: seconds of waiting after which the locks in the way are revoked if all of them have lower
        priority; None for never.
    :param clock: returns seconds; only differences count.
    :returns: a lease for each area, in their order.
    :raises LockNotAvailable: others hold a part, or come first.
    :raises LeaseLost: the attempt was revoked, a newer one has taken over, or the queue's units were altered.
    """
    with Asking(
        database, queue, wanted, owner=owner, mode=mode, priority=priority, lease_seconds=lease_seconds
    ) as asking:
        if found := asking.at_once():
            return found
        return _awaited(asking, wait_seconds, revoke_after, clock, sleep)


def _awaited(
    asking: Asking,
    wait_seconds: float,
    revoke_after: float | None,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> list[Lease]:
    begun = asked_at = clock()
    revokes_at = math.inf if revoke_after is None else begun + revoke_after
    end = begun + wait_seconds
    with _Alarm(asking, sleep) as alarm:
        while True:
            now = clock()
            found = asking.ask(revokes=now >= revokes_at, stays=now < end)
            if found is not None:
                return found
            if now >= end:
                raise asking.refusal()
            asked_at, looks = now, 0
            while (now := clock()) < min(end, asked_at + REFRESH_SECONDS):
                looks += 1
                turns_at = revokes_at if now < revokes_at else math.inf
                alarm.wait(max(0.0, min(_LOOKS.pause(looks), end - now, turns_at - now)))
                if asking.is_due(revokes=clock() >= revokes_at):
                    break


class Asking:
    """One request for locks; a context that withdraws it at the end if it is not granted.

    :param wanted: what the locks cover.
    :param lease_seconds: how long the locks last unless they are renewed.
    """

    def __init__(
        self,
        database: Database,
        queue: Queue,
        wanted: Iterable[Area],
        *,
        owner: Owner,
        mode: Mode = "exclusive",
        priority: int = 0,
        lease_seconds: float,
    ) -> None:
        self.database, self.queue = database, queue
        self._owner, self._lease_seconds = owner, lease_seconds
        self._areas = _checked(queue, wanted)
        if mode not in ("exclusive", "shared"):
            raise InvalidArgument(f"mode: expected exclusive or shared, found {mode!r}")
        self._mode, self._priority = mode, priority
        self._within = Range(self._areas[0].first, max(area.end for area in self._areas))
        self._number: int | None = None
        """Number of the stored request, while it waits."""
        self._waits = Waits()
        """What was in the way when last asked."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A request that cannot be withdrawn stops counting after a while.
        with contextlib.suppress(ExportQueueError):
            self.withdraw()

    def at_once(self) -> list[Lease] | None:
        """Take the locks in one round trip if the database can and nothing is in the way; else return None."""
        return grant_at_once(self.database, self.queue, self._request(), lease_seconds=self._lease_seconds)

    def ask(self, *, revokes: bool, stays: bool) -> list[Lease] | None:
        """Ask once, in one SQL transaction.

        :param revokes: whether to revoke the locks in the way if all of them have lower priority.
        :param stays: whether a request that is not granted is stored to wait.
        :returns: the locks; None if they are not granted.
        :raises LeaseLost: the attempt was revoked, a newer one has taken over, or the queue's units were altered.
        :raises LockNotAvailable: the attempt would wait while it holds locks.
        """
        with self.database.begin() as work:
            board = open_board(work, self.queue, self._owner, self._within)
            request = self._request()
            decided = board.decide(request, revokes=revokes)
            queries.locks.delete_requests(work, board.gone_requests)
            if isinstance(decided, Granted):
                if self._number is not None:
                    queries.locks.delete_requests(work, [self._number])
                leases = grant(work, self.queue, request, board, decided, lease_seconds=self._lease_seconds)
                number = None
            else:
                leases, number = None, self._number
                if stays:
                    self._refuse_holding(work, decided, board.now)
                    number = self._stay(work, board.now)
        # After the commit: if it fails, the request is unchanged.
        self._number = number
        self._waits = decided if isinstance(decided, Waits) else Waits()
        return leases

    def is_due(self, *, revokes: bool) -> bool:
        """Return whether the request would be granted now, without blocking anybody."""
        with self.database.read() as work:
            board = read_board(work, self.queue, self._within, some_wait=True, lock=False)
            return isinstance(board.decide(self._request(), revokes=revokes), Granted)

    def withdraw(self) -> None:
        """Remove the stored request."""
        if self._number is not None:
            with self.database.begin() as work:
                queries.locks.delete_requests(work, [self._number])
            self._number = None

    def refusal(self) -> LockNotAvailable:
        """Make the error that says what was in the way when last asked."""
        asked = ", ".join(str(Range(area.first, area.end)) for area in self._areas[:_SHOWN])
        more = f" and {len(self._areas) - _SHOWN} more" if len(self._areas) > _SHOWN else ""
        return LockNotAvailable(f"locks on {self.queue.id} {asked}{more}: {in_the_way(self._waits)}")

    def _request(self) -> Request:
        return owner_request(self._owner, self._areas, mode=self._mode, priority=self._priority, number=self._number)

    def _refuse_holding(self, work: Work, decided: Waits, now: int) -> None:
        if self._number is None and queries.locks.holds_any(work, self._owner.task, self._owner.attempt, now=now):
            raise LockNotAvailable(
                f"{self._owner.task} holds locks and would wait for others: {in_the_way(decided)}",
                hint="request all locks at once, or release those first: holders that wait may wait for each other",
            )

    def _stay(self, work: Work, now: int) -> int:
        until_ms = now + REQUEST_MS
        if self._number is not None and queries.locks.refresh_request(work, self._number, until_ms=until_ms):
            return self._number
        number = self.database.dialect.steps.draw(work.connection)
        row = {
            "number": number,
            "queue_number": self.queue.number,
            "layout": self.queue.layout,
            "areas": areas_text(self._areas),
            "mode": self._mode,
            "priority": self._priority,
            "task": self._owner.task,
            "attempt": self._owner.attempt,
            "asked_ms": now,
            "until_ms": until_ms,
        }
        queries.locks.insert_request(work, row)
        return number


_SHOWN = 3


def _checked(queue: Queue, wanted: Iterable[Area]) -> tuple[Area, ...]:
    areas = tuple(sorted(wanted, key=lambda area: area.first))
    if not areas:
        raise InvalidArgument("locks: expected at least one interval, found none")
    for area in areas:
        if not 0 <= area.first < area.end <= queue.buckets:
            raise InvalidArgument(
                f"locks on queue {queue.id!r}: expected intervals of its {queue.buckets} buckets, "
                f"found [{area.first}, {area.end})"
            )
        if area.members is not None and not area.members:
            raise InvalidArgument(f"locks on queue {queue.id!r}: expected members, found none in {area}")
    for one, other in zip(areas, areas[1:], strict=False):
        if one.end > other.first:
            raise InvalidArgument(
                f"locks on queue {queue.id!r}: expected intervals that do not overlap, found [{one.first}, {one.end}) "
                f"and [{other.first}, {other.end})"
            )
    return areas


class _Alarm:
    """Ends the pauses of a waiter: by time, or by a hint that locks were released.

    :param sleep: waits for a number of seconds if there are no hints.
    """

    def __init__(self, asking: Asking, sleep: Callable[[float], None]) -> None:
        self._asking, self._sleep = asking, sleep
        self._listener: Listener | None = None
        self._has_tried = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listener is not None:
            self._listener.close()

    def wait(self, seconds: float) -> None:
        """Wait for a hint, at most a number of seconds."""
        if not self._has_tried:
            self._has_tried = True
            with contextlib.suppress(ExportQueueError):  # polling works without hints
                database, queue = self._asking.database, self._asking.queue
                self._listener = database.hints.listen(identity_of(database).store_id, waiters_of(queue.number))
        if self._listener is None:
            self._sleep(seconds)
        elif not self._listener.wait(seconds):
            self._listener.close()
            self._listener = None
