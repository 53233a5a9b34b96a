"""Who holds locks and who waits for them, for messages and for people."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from export_queue.core.errors import LockNotAvailable
from export_queue.core.locks.attempts import Owner
from export_queue.core.locks.lockbox import lock_of, request_of
from export_queue.core.locks.rules import Area, Board, Intervals, Lock, Mode, Request, Waits
from export_queue.core.queue import Queue, Range, join_ranges
from export_queue.core.store import Reading, queries

_NAMED = 5


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a lock on a unit or a part of it."""

    owner: Owner
    range: Range
    """The unit."""
    fence: int
    lease_ms: int
    priority: int


def holders(work: Reading, queue: Queue, ranges: Iterable[Range]) -> list[Holder]:
    """Read the holders of units."""
    units = {
        of.layout: Intervals((unit.first, unit.end, unit) for unit in in_layout)
        for of, in_layout in queue.by_layout(ranges)
    }
    return [
        Holder(Owner(lock.task, lock.attempt), unit, lock.id[0], lock.lease_ms, lock.priority)
        for row in queries.locks.of_queue(work, queue.number, now=work.now())
        if (in_layout := units.get(row["layout"])) is not None
        for lock in [lock_of(row)]
        for unit in in_layout.overlapping(lock.area.first, lock.area.end)
    ]


def holders_named(work: Reading, queue: Queue, units: Iterable[Range]) -> str:
    """Name some holders of units, for a message."""
    return _some_of([f"{holder.range} by {holder.owner.task}" for holder in holders(work, queue, units)])


def not_available(work: Reading, queue: Queue, units: Iterable[Range]) -> LockNotAvailable:
    """Make the error that names the holders of units."""
    units = list(units)
    shown = " ".join(str(part) for part in join_ranges(units))
    return LockNotAvailable(f"others work on {queue.id} {shown}; held: {holders_named(work, queue, units)}")


def in_the_way(waits: Waits) -> str:
    """Describe what a request waits for."""
    held = [f"{_range(lock.area)} is held by {lock.task}" for lock in waits.locks]
    return _some_of([*held, *(f"{request.task} comes first" for request in waits.requests)])


def _some_of(named: Sequence[str]) -> str:
    more = f", and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return (", ".join(named[:_NAMED]) or "free by now") + more


@dataclass(frozen=True, slots=True)
class Held:
    """How many locks of a queue are held, and by whom."""

    locks: int
    tasks: int
    named: tuple[str, ...]
    """Some of the tasks, those with most locks first."""


def held(work: Reading, queue: Queue, *, named: int = _NAMED) -> Held:
    """Count the locks of a queue that are held. Unlike :func:`explained`, it reads none of thousands of them.

    :param named: maximum number of tasks that are named.
    """
    found = queries.locks.holding_tasks(work, queue.number, now=work.now(), limit=named)
    _, tasks, locks = found[0] if found else ("", 0, 0)
    return Held(locks, tasks, tuple(task for task, _, _ in found))


@dataclass(frozen=True, slots=True, kw_only=True)
class LockView:
    """A lock or a request for one on record, for people."""

    area: Area
    layout: int
    state: Literal["held", "revoked", "expired", "waits", "gone"]
    mode: Mode
    priority: int
    task: str
    attempt: str
    fence: int | None
    """None for a request."""
    since_ms: int
    """When the lock was granted, or the request was made."""
    until_ms: int
    """When it stops counting, unless its holder or waiter extends it."""
    waits_for: tuple[str, ...] = ()
    """The tasks for which a request waits."""
    explanation: str


def explained(work: Reading, queue: Queue) -> list[LockView]:
    """Explain all locks on record for a queue, then all areas of all requests, oldest first."""
    now = work.now()
    locks = [(row["layout"], lock_of(row)) for row in queries.locks.of_queue(work, queue.number)]
    requests = [(row["layout"], row, request_of(row)) for row in queries.locks.requests(work, queue.number)]
    views = [_explained_lock(lock, layout, now) for layout, lock in locks]
    boards = {
        layout: Board(
            [lock for at, lock in locks if at == layout],
            [request for at, _, request in requests if at == layout],
            now=now,
        )
        for layout in {layout for layout, _, _ in requests}
    }
    for layout, row, request in sorted(requests, key=lambda one: one[1]["number"]):
        views += _explained_request(request, layout, row["asked_ms"], boards[layout])
    return views


def _explained_lock(lock: Lock, layout: int, now: int) -> LockView:
    state: Literal["held", "revoked", "expired"]
    if lock.revoked:
        state = "revoked"
        explanation = (
            "it was revoked, or a newer attempt has taken over; its holder can change nothing any more and ends at its "
            "next step; nothing needs to be done"
        )
    elif lock.lease_ms <= now:
        state = "expired"
        explanation = (
            f"its holder has not renewed it, and its lease ended {_duration(now - lock.lease_ms)} ago: the holder died "
            "or cannot reach the store; the lock blocks nobody, and the next lock replaces it; start the task again if "
            "nothing else does"
        )
    else:
        state = "held"
        explanation = (
            f"its lease ends in {_duration(lock.lease_ms - now)} unless its holder renews it; if the holder has died, "
            "others can get the lock then, and a new attempt of the same task at once"
        )
    fence = lock.id[0]
    return LockView(
        area=lock.area,
        layout=layout,
        state=state,
        mode=lock.mode,
        priority=lock.priority,
        task=lock.task,
        attempt=lock.attempt,
        fence=fence,
        since_ms=fence // 1_000_000,
        until_ms=lock.lease_ms,
        explanation=explanation,
    )


def _explained_request(request: Request, layout: int, asked_ms: int, board: Board) -> list[LockView]:
    waits = Waits()
    is_gone = not request.waits(board.now)
    if is_gone:
        explanation = (
            f"its waiter has not asked again, and it counts no more since {_duration(board.now - request.until_ms)}: "
            "the waiter died or cannot reach the store; the request blocks nobody, and the next decision removes it; "
            "start the task again if nothing else does"
        )
    else:
        decided = board.decide(request, revokes=False)
        waits = decided if isinstance(decided, Waits) else waits
        explanation = f"it has waited for {_duration(board.now - asked_ms)}: {in_the_way(waits)}"
    tasks = dict.fromkeys([*(lock.task for lock in waits.locks), *(other.task for other in waits.requests)])
    return [
        LockView(
            area=area,
            layout=layout,
            state="gone" if is_gone else "waits",
            mode=request.mode,
            priority=request.priority,
            task=request.task,
            attempt=request.attempt,
            fence=None,
            since_ms=asked_ms,
            until_ms=request.until_ms,
            waits_for=tuple(tasks),
            explanation=explanation,
        )
        for area in request.areas
    ]


def _range(area: Area) -> str:
    shown = str(Range(area.first, area.end))
    return shown if area.members is None else f"{members_text(area.members)} of {shown}"


def members_text(members: Collection[str] | None, most: int = 3) -> str:
    """Describe what a lock covers in its interval."""
    if members is None:
        return "all"
    names = sorted(members, key=lambda name: (name.count("."), name))
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return " ".join(names[:most]) + more


def _duration(milliseconds: int) -> str:
    seconds = max(milliseconds, 0) / 1000
    for limit, size, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds / 86_400:.0f} days"
