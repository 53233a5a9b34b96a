"""Who holds locks and who waits for some, for messages and for people."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from export_queue.core.errors import LockNotAvailable
from export_queue.core.locks.attempts import Owner
from export_queue.core.locks.intervals import Intervals
from export_queue.core.locks.records import lock_of, request_of
from export_queue.core.locks.rules import Area, Board, Lock, Mode, Request, Waits
from export_queue.core.queue import Queue, Range, join_ranges
from export_queue.core.store import Reading, queries

_NAMED = 5


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a lock on a unit or on some of it, for messages."""

    owner: Owner
    range: Range
    """The unit."""
    fence: int
    lease_ms: int
    priority: int


def holders(work: Reading, queue: Queue, ranges: Iterable[Range]) -> list[Holder]:
    """Read the holders of units, for messages."""
    units = {
        of.layout: Intervals((unit.first, unit.end, unit) for unit in in_layout)
        for of, in_layout in queue.by_layout(ranges)
    }
    return [
        Holder(Owner(lock.task, lock.attempt), unit, lock.place[0], lock.lease_ms, lock.priority)
        for row in queries.locks.of_queue(work, queue.number, now=work.now())
        if (in_layout := units.get(row["layout"])) is not None
        for lock in [lock_of(row)]
        for unit in in_layout.overlapping(lock.area.first, lock.area.end)
    ]


def not_available(work: Reading, queue: Queue, units: Iterable[Range]) -> LockNotAvailable:
    """Say who holds units."""
    units = list(units)
    held = [f"{holder.range} by {holder.owner.task}" for holder in holders(work, queue, units)]
    shown = " ".join(str(part) for part in join_ranges(units))
    return LockNotAvailable(f"others work on {queue.id} {shown}; held: {', '.join(held) or 'free by now'}")


def in_the_way(waits: Waits) -> str:
    """Say what a request waits for, in words."""
    held = [f"{_range(lock.area)} is held by {lock.task}" for lock in waits.locks]
    first = [f"{request.task} comes first" for request in waits.requests]
    named = [*held, *first]
    more = f", and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return (", ".join(named[:_NAMED]) or "free by now") + more


@dataclass(frozen=True, slots=True, kw_only=True)
class LockView:
    """A lock on record, as people are shown it."""

    area: Area
    layout: int
    mode: Mode
    priority: int
    task: str
    attempt: str
    fence: int
    """It was drawn when the lock was granted, and tells that time as every id does."""
    until_ms: int
    """When the lease ends, by the store's clock."""
    state: Literal["held", "revoked", "expired"]
    explanation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """A request on record, as people are shown it."""

    areas: tuple[Area, ...]
    layout: int
    mode: Mode
    priority: int
    task: str
    attempt: str
    number: int
    asked_ms: int
    until_ms: int
    """When it counts no more, unless its waiter moves that on."""
    state: Literal["waits", "gone"]
    waits_for: tuple[str, ...]
    """The tasks that it waits for."""
    explanation: str


def explained_locks(work: Reading, queue: Queue) -> list[LockView]:
    """Read the locks of a queue that are on record, worthless ones too, with what becomes of each."""
    now = work.now()
    return [_view(lock_of(row), row["layout"], now) for row in queries.locks.of_queue(work, queue.number)]


def _view(lock: Lock, layout: int, now: int) -> LockView:
    state: Literal["held", "revoked", "expired"]
    if lock.revoked:
        state = "revoked"
        explanation = (
            "it was revoked, or a newer attempt has taken over: its holder changes nothing any more, and ends at its "
            "next step; nothing is to be done"
        )
    elif lock.lease_ms <= now:
        state = "expired"
        explanation = (
            f"its holder has not renewed it, and its lease ended {_duration(now - lock.lease_ms)} ago: it died, or "
            "cannot reach the store; the lock keeps nobody out and goes with the next one in its place; start the task "
            "again if nothing else does"
        )
    else:
        state = "held"
        explanation = (
            f"its lease ends in {_duration(lock.lease_ms - now)} unless its holder renews it; if that has died, others "
            "get it then, and a new attempt of the same task at once"
        )
    return LockView(
        area=lock.area,
        layout=layout,
        mode=lock.mode,
        priority=lock.priority,
        task=lock.task,
        attempt=lock.attempt,
        fence=lock.place[0],
        until_ms=lock.lease_ms,
        state=state,
        explanation=explanation,
    )


def explained_requests(work: Reading, queue: Queue) -> list[RequestView]:
    """Read the requests for locks of a queue that are on record, the oldest first, with whom each of them waits for."""
    rows = queries.locks.requests(work, queue.number)
    if not rows:
        return []
    locks = [(row["layout"], lock_of(row)) for row in queries.locks.of_queue(work, queue.number)]
    now = work.now()
    found = []
    for layout in {row["layout"] for row in rows}:
        of_layout = [row for row in rows if row["layout"] == layout]
        requests = [request_of(row) for row in of_layout]
        board = Board([lock for at, lock in locks if at == layout], requests, now=now)
        found += [_view_of_request(request, row, board) for request, row in zip(requests, of_layout, strict=True)]
    return sorted(found, key=lambda view: view.number)


def _view_of_request(request: Request, row: Mapping[str, Any], board: Board) -> RequestView:
    assert request.number is not None
    state: Literal["waits", "gone"]
    waits = Waits()
    if not request.waits(board.now):
        state = "gone"
        explanation = (
            f"its waiter has not asked again, and it counts no more since {_duration(board.now - request.until_ms)}: "
            "it died, or cannot reach the store; the request keeps nobody out and goes with the next one that is "
            "decided; start the task again if nothing else does"
        )
    else:
        state = "waits"
        decided = board.decide(request, revokes=False)
        waits = decided if isinstance(decided, Waits) else waits
        explanation = f"it has waited for {_duration(board.now - row['asked_ms'])}: {in_the_way(waits)}"
    tasks = dict.fromkeys([*(lock.task for lock in waits.locks), *(other.task for other in waits.requests)])
    return RequestView(
        areas=request.areas,
        layout=row["layout"],
        mode=request.mode,
        priority=request.priority,
        task=request.task,
        attempt=request.attempt,
        number=request.number,
        asked_ms=row["asked_ms"],
        until_ms=request.until_ms,
        state=state,
        waits_for=tuple(tasks),
        explanation=explanation,
    )


def _range(area: Area) -> str:
    shown = str(Range(area.first, area.end))
    return shown if area.members is None else f"{members_text(area.members)} of {shown}"


def members_text(members: Collection[str] | None, most: int = 3) -> str:
    """Write what a lock covers in its interval, for people."""
    if members is None:
        return "all"
    return _listed(sorted(members, key=lambda name: (name.count("."), name)), most)


def _listed(names: Sequence[str], most: int) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return " ".join(names[:most]) + more


def _duration(milliseconds: int) -> str:
    seconds = max(milliseconds, 0) / 1000
    for limit, size, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds / 86_400:.0f} days"
