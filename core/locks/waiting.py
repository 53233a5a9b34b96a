"""Asking for locks, all or none of them, and waiting for a turn.

A request that has to wait stands in the store, with its place in the order, and its waiter refreshes it; one that is
not refreshed counts as gone. Whoever waits looks again in short pauses, which notices a release, a revocation and the
end of a lease alike. Where the store has hints, a release ends a pause at once. Nobody holds locks while it waits.
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
    grant,
    grant_at_once,
    open_board,
    owner_request,
    read_board,
    waiters_of,
)
from export_queue.core.locks.records import areas_text
from export_queue.core.locks.rules import Area, Granted, Mode, Request, Waits
from export_queue.core.locks.showing import in_the_way
from export_queue.core.queue import Queue, Range
from export_queue.core.retry import Retry
from export_queue.core.store import Database, Listener, Work, identity_of, queries

REQUEST_MS = 15_000
"""How long a request counts that its waiter does not refresh."""
REFRESH_SECONDS = 4.0
"""How often it is refreshed; with it the store is asked whether the attempt may still work."""
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
    """Take all of some locks, or none: at once where nothing is in the way, else by waiting for a turn.

    Of requests that meet, the one of higher priority is served first, and of equal ones the older.

    :param wanted: what the locks cover; the intervals do not overlap one another.
    :param owner: the task that asks; a request that is covered by a lock of its own attempt shares that one's place.
    :param mode: ``exclusive``, or ``shared`` with others that are.
    :param priority: drains have 75, loads 50, compactions 25.
    :param lease_seconds: how long the locks last unless they are renewed.
    :param wait_seconds: how long to wait.
    :param revoke_after: seconds of waiting after which locks are revoked if all that are in the way have lower
        priority; None for never.
    :param clock: tells seconds; only differences count.
    :param sleep: waits for a number of seconds.
    :returns: a lease for each area, in their order.
    :raises LockNotAvailable: others hold some of it, or come first.
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
    """One request for locks, from the first question to its end; a context that withdraws what is not granted.

    :param database: the store.
    :param queue: the queue.
    :param wanted: what the locks cover.
    :param owner: the task that asks.
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
        """Of the request that waits in the store."""
        self._waits = Waits()
        """What was in the way at the last question."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A request that cannot be withdrawn counts no more after a while.
        with contextlib.suppress(ExportQueueError):
            self.withdraw()

    def at_once(self) -> list[Lease] | None:
        """Take the locks in one round trip, where the database can and nothing is in the way; else None."""
        return grant_at_once(self.database, self.queue, self._request(), lease_seconds=self._lease_seconds)

    def ask(self, *, revokes: bool, stays: bool) -> list[Lease] | None:
        """Ask once, in one SQL transaction.

        :param revokes: whether locks of lower priority are revoked where all that is in the way has one.
        :param stays: whether a request that is not granted waits in the store; else it is withdrawn.
        :returns: the locks; None where they are not granted.
        :raises LeaseLost: the attempt was revoked, a newer one has taken over, or the queue's units were altered.
        :raises LockNotAvailable: it would wait while its attempt holds locks.
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
        # Behind the commit: one that fails leaves the request as it was.
        self._number = number
        self._waits = decided if isinstance(decided, Waits) else Waits()
        return leases

    def is_due(self, *, revokes: bool) -> bool:
        """Look, without holding up anybody, whether the request would be granted now."""
        with self.database.read() as work:
            board = read_board(work, self.queue, self._within, some_wait=True, lock=False)
            return isinstance(board.decide(self._request(), revokes=revokes), Granted)

    def withdraw(self) -> None:
        """Wait no more."""
        if self._number is not None:
            with self.database.begin() as work:
                queries.locks.delete_requests(work, [self._number])
            self._number = None

    def refusal(self) -> LockNotAvailable:
        """Say what was in the way at the last question."""
        asked = ", ".join(str(Range(area.first, area.end)) for area in self._areas[:_SHOWN])
        more = f" and {len(self._areas) - _SHOWN} more" if len(self._areas) > _SHOWN else ""
        return LockNotAvailable(f"locks on {self.queue.id} {asked}{more}: {in_the_way(self._waits)}")

    def _request(self) -> Request:
        return owner_request(self._owner, self._areas, mode=self._mode, priority=self._priority, number=self._number)

    def _refuse_holding(self, work: Work, decided: Waits, now: int) -> None:
        if self._number is None and queries.locks.holds_any(work, self._owner.task, self._owner.attempt, now=now):
            raise LockNotAvailable(
                f"{self._owner.task} holds locks and would wait for others: {in_the_way(decided)}",
                hint="ask for all locks at once, or give those back first: holders that wait may wait for each other",
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
    """Ends the pauses of one that waits: by time, or by a hint that locks were given back.

    :param asking: the request.
    :param sleep: waits for a number of seconds, where there are no hints.
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
        """Wait for a hint, or until the time is over."""
        if not self._has_tried:
            self._has_tried = True
            with contextlib.suppress(ExportQueueError):  # it looks now and then all the same
                database, queue = self._asking.database, self._asking.queue
                self._listener = database.hints.listen(identity_of(database).store_id, waiters_of(queue.number))
        if self._listener is None:
            self._sleep(seconds)
        elif not self._listener.wait(seconds):
            self._listener.close()
            self._listener = None
