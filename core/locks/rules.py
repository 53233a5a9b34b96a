"""The rules of locks: who may hold what at the same time; pure.

A lock covers a bucket interval: all of it, or some of its members. A member is the row entries, or one segment by its
name. Two locks *meet* if their intervals overlap and either of them covers all of its interval, or both cover the same
member.

Source: the collision rules of Druid's proposal of segment locks, and its grant algorithm.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Generic, Literal, TypeVar

Item = TypeVar("Item")
Mode = Literal["exclusive", "shared"]
LockId = tuple[int, int]
"""Fence and first bucket: the key of a lock. All locks of one claim have one fence."""

ROWS = "rows"
"""The member that stands for the row entries."""
FURTHEST_MS = 4 * 3_600_000
"""A request valid for longer than this was recorded while the clock was ahead, and does not count."""
KEPT_MS = 86_400_000
"""How long a lock stays on record after its lease, unless another one replaces it, so that people can see it."""


def member(transaction: int, number: int) -> str:
    """Name a segment, by its transaction and its number in it, as a member of locks."""
    return f"{transaction}.{number}"


@dataclass(frozen=True, slots=True)
class Area:
    """What one lock covers: a half-open interval of buckets, or some members of it."""

    first: int
    end: int
    members: frozenset[str] | None = None
    """Names of what a *segment lock* covers; None for an *interval lock*, which covers everything."""

    def meets(self, other: Area) -> bool:
        """Return whether both areas have something in common."""
        if self.end <= other.first or other.end <= self.first:
            return False
        return self.members is None or other.members is None or not self.members.isdisjoint(other.members)

    def covers(self, other: Area) -> bool:
        """Return whether this area contains another one."""
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
    id: LockId
    lease_ms: int
    """When its lease ends, by the store's clock."""
    revoked: bool = False

    def stands(self, now: int) -> bool:
        """Return whether its holder may work."""
        return not self.revoked and self.lease_ms > now


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for locks: all of them or none."""

    areas: tuple[Area, ...]
    """They do not overlap one another."""
    mode: Mode = "exclusive"
    priority: int
    task: str
    attempt: str
    spared: frozenset[str] = frozenset()
    """Other attempts of the task that it does not take over, such as the one that submitted this one."""
    number: int | None = None
    """Its position among waiting requests; None before it waits."""
    until_ms: int = 0
    """When it stops counting, by the store's clock; its waiter extends this."""

    def waits(self, now: int) -> bool:
        """Return whether somebody still waits for it; a live waiter refreshes it every few seconds."""
        return now < self.until_ms <= now + FURTHEST_MS

    def is_ahead_of(self, other: Request) -> bool:
        """Return whether it comes first: by priority, then by age."""
        if self.priority != other.priority:
            return self.priority > other.priority
        return self.number is not None and (other.number is None or self.number < other.number)

    def takes_over(self, task: str, attempt: str) -> bool:
        """Return whether an attempt is an older one of the same task. The store refuses requests of older ones."""
        return task == self.task and attempt != self.attempt and attempt not in self.spared


def collide(one: Area, mode: Mode, other: Area, other_mode: Mode) -> bool:
    """Return whether two locks of different attempts exclude each other.

    An interval lock and a segment lock that meet always do, even if both are shared.
    """
    if not one.meets(other):
        return False
    is_mixed = (one.members is None) != (other.members is None)
    return is_mixed or mode == "exclusive" or other_mode == "exclusive"


@dataclass(frozen=True, slots=True)
class Granted:
    """A granted request, and the locks that it ends."""

    worthless: tuple[Lock, ...] = ()
    """Locks in its way that no longer count: expired, revoked, or of an older attempt."""
    revoked: tuple[Lock, ...] = ()
    """Locks of lower priority that give way; they stay on record so that their holders notice."""


@dataclass(frozen=True, slots=True)
class Waits:
    """A request that is not granted, and what it waits for."""

    locks: tuple[Lock, ...] = ()
    requests: tuple[Request, ...] = ()


class Board:
    """All locks and waiting requests near a request, indexed.

    :param locks: all on record, also those that no longer count.
    :param now: the store's clock, in milliseconds.
    """

    def __init__(self, locks: Iterable[Lock], waiting: Iterable[Request] = (), *, now: int) -> None:
        self.now = now
        found = list(locks)
        self._locks = _Index((lock.area, lock) for lock in found)
        self.gone = [lock for lock in found if not lock.stands(now) and lock.lease_ms < now - KEPT_MS]
        """Locks that no longer count and have been on record long enough."""
        asked = list(waiting)
        alive = [request for request in asked if request.waits(now)]
        self.gone_requests = [one.number for one in asked if not one.waits(now) and one.number is not None]
        """Numbers of requests whose waiters have not refreshed them."""
        self._waiting = _Index((area, request) for request in alive for area in request.areas)

    def decide(self, request: Request, *, revokes: bool = True, shares: bool = True) -> Granted | Waits:
        """Decide a request.

        :param revokes: whether it revokes the locks in its way, if all of them have lower priority.
        :param shares: whether a lock of its own attempt that covers the request does not exclude it.
        """
        behind: dict[LockId, Lock] = {}
        worthless: dict[LockId, Lock] = {}
        ahead: dict[int | None, Request] = {}
        for area in request.areas:
            near = self._locks.near(area)
            is_own = shares and any(self._stands(lock, request) and _covers_own(lock, area, request) for lock in near)
            for lock in near:
                if not self._stands(lock, request):
                    worthless[lock.id] = lock
                elif is_own and _is_sibling(lock, request):
                    continue  # a narrower lock, taken under the one that covers the request
                elif collide(area, request.mode, lock.area, lock.mode):
                    behind[lock.id] = lock
            if is_own:  # its attempt works there already, and those that wait for it wait for this lock too
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


class Intervals(Generic[Item]):
    """Half-open intervals, each with an item, in a tree of their highest ends.

    A search visits few intervals besides those that it finds, however long the others are.

    :param entries: first, end and item of each.
    """

    def __init__(self, entries: Iterable[tuple[int, int, Item]]) -> None:
        ordered = sorted(entries, key=itemgetter(0))
        self._firsts = [first for first, _, _ in ordered]
        self._items = [item for _, _, item in ordered]
        self._size = 1 << max(len(ordered) - 1, 0).bit_length()
        # A heap: the highest end below node n is the greater of those below 2 n and 2 n + 1.
        self._highest = [0] * self._size + [end for _, end, _ in ordered]
        self._highest += [0] * (2 * self._size - len(self._highest))
        for node in range(self._size - 1, 0, -1):
            self._highest[node] = max(self._highest[2 * node], self._highest[2 * node + 1])

    def overlapping(self, first: int, end: int) -> list[Item]:
        """Find the items whose intervals overlap [first, end), in the order of the intervals."""
        before_end = bisect_left(self._firsts, end)
        found: list[Item] = []
        nodes = [(1, 0, self._size)]
        while nodes:
            node, at, width = nodes.pop()
            if at >= before_end or self._highest[node] <= first:
                continue
            if width == 1:
                found.append(self._items[at])
            else:
                half = width // 2
                nodes += [(2 * node + 1, at + half, half), (2 * node, at, half)]
        return found


class _Index(Generic[Item]):
    """Items by the areas that they cover. Segment locks are found by their members."""

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
        """Find the items whose areas meet an area; an item may come twice."""
        if area.members is None:
            if self._any is None:
                self._any = Intervals(self._all)
            return self._any.overlapping(area.first, area.end)
        found = self._whole.overlapping(area.first, area.end)
        for name in area.members & self._by_member.keys():
            found += self._by_member[name].overlapping(area.first, area.end)
        return found


@dataclass(frozen=True, slots=True)
class Choice:
    """What a drain gets of a unit: all that it asked for, or all but what locks of lower priority hold."""

    area: Area
    is_whole: bool
    ends: Granted


def choose(board: Board, request: Request, *, revokes: bool, leaves_out: bool) -> Choice | None:
    """Decide a drain's request for one unit.

    :param request: for one area. Locks of its own attempt exclude it too, because each entry is delivered once.
    :param revokes: whether it revokes locks of lower priority that are in its way.
    :param leaves_out: whether it accepts the unit without the members that segment locks of lower priority hold.
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
