"""Who may hold what beside whom: the rules of locks; pure.

A lock covers a bucket interval, whole or some members of it: the row entries, and segments by their names. Two locks
*meet* where they have buckets in common and either of them covers its interval whole, or both cover the same member.
Overlap decides, never equality.

Source: the collision rules of Druid's proposal of segment locks, and its grant algorithm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

from export_queue.core.locks.intervals import Intervals

Item = TypeVar("Item")
Mode = Literal["exclusive", "shared"]
Place = tuple[int, int]
"""Fence and first bucket: the key of a lock. All locks of one claim have one fence."""

ROWS = "rows"
"""The member that stands for the row entries."""
FURTHEST_MS = 4 * 3_600_000
"""A request that claims to count for longer was noted while the clock was ahead, and does not count."""
KEPT_MS = 86_400_000
"""How long a lock stays on record behind the end of its lease, if nobody needs its place: until then it explains."""


def member(transaction: int, number: int) -> str:
    """Name a segment as a member of locks.

    :param transaction: the transaction that wrote it.
    :param number: its number among those of the transaction.
    """
    return f"{transaction}.{number}"


@dataclass(frozen=True, slots=True)
class Area:
    """What one lock covers: a half-open interval of buckets, whole or some members of it."""

    first: int
    end: int
    members: frozenset[str] | None = None
    """None for all there is, of an *interval lock*; else the names of what a *segment lock* covers."""

    def meets(self, other: Area) -> bool:
        """Tell whether both cover something."""
        if self.end <= other.first or other.end <= self.first:
            return False
        return self.members is None or other.members is None or not self.members.isdisjoint(other.members)

    def covers(self, other: Area) -> bool:
        """Tell whether it covers all that another one does."""
        if not self.first <= other.first < other.end <= self.end:
            return False
        return self.members is None or (other.members is not None and self.members >= other.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """A lock on record."""

    area: Area
    mode: Mode
    priority: int
    task: str
    attempt: str
    place: Place
    lease_ms: int
    """When its lease ends, by the store's clock."""
    revoked: bool = False

    def stands(self, now: int) -> bool:
        """Tell whether its holder may work."""
        return not self.revoked and self.lease_ms > now


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A wish for locks: all of them or none."""

    areas: tuple[Area, ...]
    """They do not overlap one another."""
    mode: Mode = "exclusive"
    priority: int
    task: str
    attempt: str
    spared: frozenset[str] = frozenset()
    """Other attempts of the task that it does not take over, as that which has submitted this one."""
    number: int | None = None
    """Its place among those that wait; None for one that has not waited yet."""
    until_ms: int = 0
    """Until when it counts as waiting, by the store's clock: its waiter moves that on."""

    def waits(self, now: int) -> bool:
        """Tell whether somebody waits for it; a waiter that is alive notes it anew every few seconds."""
        return now < self.until_ms <= now + FURTHEST_MS

    def is_ahead_of(self, other: Request) -> bool:
        """Tell whether it comes first: by priority, then by age."""
        if self.priority != other.priority:
            return self.priority > other.priority
        return self.number is not None and (other.number is None or self.number < other.number)

    def takes_over(self, task: str, attempt: str) -> bool:
        """Tell whether an attempt is an older one of the same task; the store refuses an older one that asks."""
        return task == self.task and attempt != self.attempt and attempt not in self.spared


def collide(one: Area, mode: Mode, other: Area, other_mode: Mode) -> bool:
    """Tell whether two locks of different attempts cannot stand side by side.

    An interval lock and a segment lock never do where they meet, though both be shared.
    """
    if not one.meets(other):
        return False
    is_mixed = (one.members is None) != (other.members is None)
    return is_mixed or mode == "exclusive" or other_mode == "exclusive"


@dataclass(frozen=True, slots=True)
class Granted:
    """A request that is granted, and the locks that end by it."""

    worthless: tuple[Lock, ...] = ()
    """Those that it meets and that count no more: expired, revoked, or of an older attempt."""
    revoked: tuple[Lock, ...] = ()
    """Those of lower priority that give way; they stay on record, so that their holders learn of it."""


@dataclass(frozen=True, slots=True)
class Waits:
    """A request that is not granted, and whom it waits for."""

    locks: tuple[Lock, ...] = ()
    requests: tuple[Request, ...] = ()


class Board:
    """All locks and waiting requests near a request, arranged so that few are looked at.

    :param locks: those on record, worthless ones too.
    :param waiting: requests that wait.
    :param now: the store's clock, in milliseconds.
    """

    def __init__(self, locks: Iterable[Lock], waiting: Iterable[Request] = (), *, now: int) -> None:
        self.now = now
        """The store's clock when it was read."""
        found = list(locks)
        self._locks = _Index((lock.area, lock) for lock in found)
        self.gone = [lock for lock in found if not lock.stands(now) and lock.lease_ms < now - KEPT_MS]
        """Worthless locks that have been on record long enough."""
        asked = list(waiting)
        alive = [request for request in asked if request.waits(now)]
        self.gone_requests = [one.number for one in asked if not one.waits(now) and one.number is not None]
        """Numbers of requests whose waiters have not refreshed them."""
        self._waiting = _Index((area, request) for request in alive for area in request.areas)

    def decide(self, request: Request, *, revokes: bool = True, shares: bool = True) -> Granted | Waits:
        """Decide a request.

        :param request: what is asked for.
        :param revokes: whether it revokes what is in its way, if all of that has lower priority.
        :param shares: whether it may stand beside a lock of its own attempt that covers it.
        """
        behind: dict[Place, Lock] = {}
        worthless: dict[Place, Lock] = {}
        ahead: dict[int | None, Request] = {}
        for area in request.areas:
            near = self._locks.near(area)
            is_own = shares and any(self._stands(lock, request) and _covers_own(lock, area, request) for lock in near)
            for lock in near:
                if not self._stands(lock, request):
                    worthless[lock.place] = lock
                elif is_own and _is_sibling(lock, request):
                    continue  # a narrower one that was taken under the lock that covers the request
                elif collide(area, request.mode, lock.area, lock.mode):
                    behind[lock.place] = lock
            if is_own:  # its siblings work there already: whoever waits for them waits for it too
                continue
            ahead |= {other.number: other for other in self._waiting.near(area) if _yields(request, area, other)}
        locks, requests = tuple(behind.values()), tuple(ahead.values())
        gives_way = revokes and all(lock.priority < request.priority for lock in locks)
        if requests or (locks and not gives_way):
            return Waits(locks, requests)
        return Granted(tuple(worthless.values()), locks)

    def _stands(self, lock: Lock, request: Request) -> bool:
        return lock.stands(self.now) and not request.takes_over(lock.task, lock.attempt)


def _is_sibling(lock: Lock, request: Request) -> bool:
    return lock.task == request.task and lock.attempt == request.attempt


def _covers_own(lock: Lock, area: Area, request: Request) -> bool:
    is_enough = lock.mode == "exclusive" or request.mode == "shared"
    return is_enough and _is_sibling(lock, request) and lock.area.covers(area)


def _yields(request: Request, area: Area, other: Request) -> bool:
    if other.number == request.number or request.takes_over(other.task, other.attempt):
        return False
    return other.is_ahead_of(request) and any(
        collide(area, request.mode, asked, other.mode) for asked in other.areas if asked.meets(area)
    )


class _Index(Generic[Item]):
    """Things by what they cover; segment locks are found by their members, of which each has few."""

    def __init__(self, covered: Iterable[tuple[Area, Item]]) -> None:
        self._all: list[tuple[int, int, Item]] = []
        whole: list[tuple[int, int, Item]] = []
        by_member: dict[str, list[tuple[int, int, Item]]] = {}
        for area, item in covered:
            entry = (area.first, area.end, item)
            self._all.append(entry)
            if area.members is None:
                whole.append(entry)
            for name in area.members or ():
                by_member.setdefault(name, []).append(entry)
        self._whole = Intervals(whole)
        self._by_member = {name: Intervals(entries) for name, entries in by_member.items()}
        self._any: Intervals[Item] | None = None

    def near(self, area: Area) -> list[Item]:
        """Find what has buckets and members in common with an area; a thing may come twice."""
        if area.members is None:
            if self._any is None:
                self._any = Intervals(self._all)
            return self._any.overlapping(area.first, area.end)
        found = self._whole.overlapping(area.first, area.end)
        for name in area.members & self._by_member.keys():
            found += self._by_member[name].overlapping(area.first, area.end)
        return found


def decide(
    request: Request, locks: Sequence[Lock], waiting: Sequence[Request], *, now: int, revokes: bool = True
) -> Granted | Waits:
    """Decide one request; see :class:`Board`."""
    return Board(locks, waiting, now=now).decide(request, revokes=revokes)


@dataclass(frozen=True, slots=True)
class Choice:
    """A unit that a drain gets: all that it wants of it, or what nobody of lower priority holds."""

    area: Area
    is_whole: bool
    ends: Granted


def choose(board: Board, request: Request, *, revokes: bool, leaves_out: bool) -> Choice | None:
    """Decide a drain's request for one unit.

    :param board: the locks and the waiting requests.
    :param request: for one area; its own attempt stands in its way too, for each entry is brought once.
    :param revokes: whether it revokes locks of lower priority that are in its way.
    :param leaves_out: whether it does without the members that segment locks of lower priority hold.
    """
    (area,) = request.areas
    decided = board.decide(request, revokes=revokes, shares=False)
    if isinstance(decided, Granted):
        return Choice(area, is_whole=True, ends=decided)
    if not leaves_out or decided.requests or area.members is None:
        return None
    held: frozenset[str] = frozenset()
    for lock in decided.locks:
        if lock.priority >= request.priority or lock.area.members is None:
            return None
        held |= lock.area.members
    if not (left := area.members - held):
        return None
    smaller = replace(area, members=left)
    decided = board.decide(replace(request, areas=(smaller,)), revokes=False, shares=False)
    return Choice(smaller, is_whole=False, ends=decided) if isinstance(decided, Granted) else None
