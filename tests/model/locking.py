"""A lock box and its model: holders and waiters that stop, die and come back, while time passes in leaps.

The model knows what a lock covers as a plain set of cells. After each step the holders of all leases that
stand, and of some that are lost, try to act: those that can are those of the model, and no two of them may meet.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from export_queue import LeaseLost, LockNotAvailable, Owner, Store
from export_queue.core.locks import ROWS, Area, Lease, begin_attempt, claim, give_back, hold, release, renew, revoke
from export_queue.core.locks.waiting import Asking
from export_queue.core.store import schema

BUCKETS, UNIT = 4, 2
NAMES = (ROWS, "1.1", "2.1")
WHOLE = "*"
"""What an interval lock covers beside all names."""
LOOKED_AT = 3
"""How many claims that are lost, the newest ones, are looked at behind each step."""
HOUR = 3_600
REQUEST_SECONDS = 2 * HOUR
"""How long a request counts that is not refreshed: so long that the seconds that a test takes are nothing."""

Cells = frozenset[tuple[int, str]]


def cells(area: Area) -> Cells:
    names = (*NAMES, WHOLE) if area.members is None else area.members
    return frozenset(itertools.product(range(area.first, area.end), names))


def hurts(one: Area, mode: str, other: Area, other_mode: str) -> bool:
    """Tell by the words of the table whether two locks of different attempts cannot stand side by side."""
    is_mixed = (one.members is None) != (other.members is None)
    return bool(cells(one) & cells(other)) and (is_mixed or "exclusive" in (mode, other_mode))


@dataclass(eq=False)
class Held:
    """A lock in the model."""

    area: Area
    mode: str
    priority: int
    owner: Owner
    until: int
    """Seconds of the model's clock."""
    is_lost: bool = False
    """Whether it was revoked or given back."""


@dataclass(eq=False)
class Claim:
    """Leases that were granted together, and their locks."""

    leases: list[Lease]
    locks: list[Held]
    owner: Owner


@dataclass(eq=False)
class Wish:
    """A request in the model."""

    areas: list[Area]
    mode: str
    priority: int
    owner: Owner
    order: float = float("inf")
    """Its place among those that wait; the end for one that has not waited."""
    until: int = 0
    is_stored: bool = False


@dataclass
class Task:
    """A task, its newest attempt, and what that one waits for."""

    name: str
    number: int = 0
    owner: Owner = field(default_factory=Owner.unique)
    asking: Asking | None = None
    wish: Wish | None = None


def apart(wanted: list[Area]) -> list[Area]:
    """Leave out what overlaps the first one."""
    return [one for one in wanted if one is wanted[0] or one.end <= wanted[0].first or wanted[0].end <= one.first]


areas = st.lists(
    st.tuples(
        st.sampled_from([(0, 2), (0, 2), (1, 3), (2, 4), (0, 4)]),
        st.sampled_from([None, *(frozenset({name}) for name in NAMES), frozenset(NAMES[1:])]),
    ),
    min_size=1,
    max_size=2,
).map(lambda found: apart([Area(*span, members) for span, members in found]))
arguments = st.fixed_dictionaries(
    {
        "number": st.integers(0, 14),
        "wanted": areas,
        "mode": st.sampled_from(["exclusive", "exclusive", "shared"]),
        "priority": st.sampled_from([25, 50, 75]),
        "seconds": st.sampled_from([HOUR, 3 * HOUR]),
        "revokes": st.booleans(),
        "yes": st.booleans(),
    }
)
steps = st.sampled_from(
    ["asks"] * 7
    + ["asks_again"] * 3
    + ["gives_back"] * 4
    + ["claims_units", "time_passes", "comes_again"] * 2
    + ["renews", "waits_no_more", "one_asks_that_has_ended", "everybody_gets_a_turn"]
)


class LockMachine(RuleBasedStateMachine):
    """Five tasks and one queue; each step is one of them's."""

    store: ClassVar[Store]

    def __init__(self) -> None:
        super().__init__()
        self.database, self.queue = self.store.database, self.store.queue("q")
        with self.database.begin() as work:
            for table in (schema.lock, schema.lock_request, schema.attempt):
                work.connection.execute(table.delete())
        self.now = 0
        self.orders = itertools.count()
        self.claims: list[Claim] = []
        self.wishes: list[Wish] = []
        self.ended: list[Owner] = []
        self.tasks = [Task(name) for name in "abcde"]
        for task in self.tasks:
            self._begin(task)

    # -- what the model says -----------------------------------------------------------------------------------------

    def live(self) -> list[Held]:
        return [lock for one in self.claims for lock in one.locks if self.stands(lock)]

    def stands(self, lock: Held) -> bool:
        return not lock.is_lost and lock.until > self.now

    def ahead(self, wish: Wish, area: Area) -> list[Wish]:
        """Those that come first: of higher priority, or older with the same one."""
        return [
            other
            for other in self.wishes
            if other is not wish and other.until > self.now
            if (other.priority, -other.order) > (wish.priority, -wish.order)
            if any(hurts(area, wish.mode, asked, other.mode) for asked in other.areas)
        ]

    def behind(self, wish: Wish, area: Area, *, shares: bool = True) -> list[Held]:
        """The locks that are in the way."""
        return [
            lock
            for lock in self.live()
            if hurts(area, wish.mode, lock.area, lock.mode) and not (shares and self.is_shared(wish, area, lock))
        ]

    def is_shared(self, wish: Wish, area: Area, lock: Held) -> bool:
        is_covered = cells(lock.area) >= cells(area) and (lock.mode == "exclusive" or wish.mode == "shared")
        return lock.owner == wish.owner and is_covered

    def granted(self, wish: Wish, *, revokes: bool) -> list[Held] | None:
        """Decide a request; returns the locks that give way."""
        locks: list[Held] = []
        for area in wish.areas:
            locks += self.behind(wish, area)
            if any(self.is_shared(wish, area, lock) for lock in self.live()):
                continue
            if self.ahead(wish, area):
                return None
        is_lower = revokes and all(lock.priority < wish.priority for lock in locks)
        return locks if is_lower or not locks else None

    def grant(self, wish: Wish, found: list[Lease], lease_seconds: int, gives_way: list[Held]) -> None:
        for lock in gives_way:
            lock.is_lost = True
        assert [(lease.range.first, lease.range.end, lease.members) for lease in found] == [
            (area.first, area.end, area.members) for area in wish.areas
        ]
        until = self.now + lease_seconds
        locks = [Held(area, wish.mode, wish.priority, wish.owner, until) for area in wish.areas]
        self.claims.append(Claim(found, locks, wish.owner))

    def forget(self, wish: Wish) -> None:
        wish.is_stored = False
        self.wishes = [one for one in self.wishes if one is not wish]

    def forget_gone(self) -> None:
        for one in [one for one in self.wishes if one.until <= self.now]:
            self.forget(one)

    def stay(self, wish: Wish) -> None:
        if not wish.is_stored:
            wish.order, wish.is_stored = next(self.orders), True
            self.wishes.append(wish)
        wish.until = self.now + REQUEST_SECONDS

    # -- steps -------------------------------------------------------------------------------------------------------

    @rule(name=steps, arguments=arguments)
    def step(self, name: str, arguments: dict[str, Any]) -> None:
        getattr(self, name)(**arguments)

    def asks(
        self, number: int, wanted: list[Area], mode: Any, priority: int, seconds: int, revokes: bool, yes: bool
    ) -> None:
        task = self.tasks[number % len(self.tasks)]
        if task.asking is not None:
            self._ask(task, revokes=revokes, stays=True, seconds=seconds)
            return
        if number > 4:  # else it asks for more than it has
            self._give_back([one for one in self.claims if one.owner == task.owner])
        wish = Wish(sorted(wanted, key=lambda area: area.first), mode, priority, task.owner)
        options: dict[str, Any] = {"owner": task.owner, "mode": mode, "priority": priority, "lease_seconds": seconds}
        asking = Asking(self.database, self.queue, wanted, **options)
        found = asking.at_once()
        if found is not None:
            assert self.granted(wish, revokes=False) == []
            self.grant(wish, found, seconds, [])
            return
        task.asking, task.wish = asking, wish
        self._ask(task, revokes=revokes, stays=yes or number > 4, seconds=seconds)

    def asks_again(self, number: int, revokes: bool, **_: object) -> None:
        if (task := self._waiter(number)) is not None:
            self._ask(task, revokes=revokes, stays=True, seconds=HOUR)

    def _waiter(self, number: int) -> Task | None:
        waiting = [task for task in self.tasks if task.asking is not None]
        return waiting[number % len(waiting)] if waiting else None

    def one_asks_that_has_ended(self, number: int, wanted: list[Area], **_: object) -> None:
        if not self.ended:
            return
        owner = self.ended[number % len(self.ended)]
        asking = Asking(self.database, self.queue, wanted, owner=owner, priority=75, lease_seconds=HOUR)
        assert asking.at_once() is None
        try:
            asking.ask(revokes=True, stays=True)
        except LeaseLost:
            return
        raise AssertionError("an attempt that was revoked or taken over from has asked for locks")

    def _ask(self, task: Task, *, revokes: bool, stays: bool, seconds: int) -> None:
        asking, wish = task.asking, task.wish
        assert asking is not None
        assert wish is not None
        asking._lease_seconds = seconds
        gives_way = self.granted(wish, revokes=revokes)
        assert asking.is_due(revokes=revokes) is (gives_way is not None), "a waiter looks, and sees something else"
        has_waited, holds = wish.order < float("inf"), any(lock.owner == task.owner for lock in self.live())
        try:
            found = asking.ask(revokes=revokes, stays=stays)
        except LockNotAvailable:
            assert stays
            assert holds, "it holds nothing, and may wait"
            assert not has_waited
            assert gives_way is None
            task.asking = task.wish = None
            return
        assert (found is not None) is (gives_way is not None), f"expected {gives_way}, found {found}"
        self.forget_gone()
        if found is not None:
            assert gives_way is not None
            self.grant(wish, found, seconds, gives_way)
        elif stays:
            assert not holds or has_waited, "nobody waits while it holds"
            self.stay(wish)
            return
        else:
            assert str(asking.refusal())
            asking.withdraw()
        self.forget(wish)
        task.asking = task.wish = None

    def claims_units(
        self, number: int, wanted: list[Area], priority: int, revokes: bool, yes: bool, **_: object
    ) -> None:
        """Do as drains do, which take of each unit what they get."""
        task, names = self.tasks[number % len(self.tasks)], wanted[0].members
        if number % 2:
            names, priority = frozenset(NAMES), 75
        if task.asking is not None:
            return
        leaves_out = yes and names is not None
        expected: list[tuple[Area, bool, list[Held]]] = []
        for unit in self.queue.units():
            wish = Wish([Area(unit.first, unit.end, names)], "exclusive", priority, task.owner)
            if (found := self._chosen(wish, revokes=revokes, leaves_out=leaves_out)) is not None:
                expected.append(found)
        got = claim(
            self.database,
            self.queue,
            self.queue.units(),
            owner=task.owner,
            lease_seconds=HOUR,
            priority=priority,
            leaves_out=leaves_out,
            revokes=revokes,
            members=names,
        )
        assert [(lease.members, lease.is_whole) for lease in got] == [(area.members, w) for area, w, _ in expected]
        if got:
            wish = Wish([area for area, _, _ in expected], "exclusive", priority, task.owner)
            self.grant(wish, got, HOUR, [lock for _, _, locks in expected for lock in locks])

    def _chosen(self, wish: Wish, *, revokes: bool, leaves_out: bool) -> tuple[Area, bool, list[Held]] | None:
        (area,) = wish.areas
        locks, ahead = self.behind(wish, area, shares=False), self.ahead(wish, area)
        if not ahead and (not locks or (revokes and all(lock.priority < wish.priority for lock in locks))):
            return area, True, locks
        if ahead or not leaves_out or area.members is None:
            return None
        if any(lock.area.members is None or lock.priority >= wish.priority for lock in locks):
            return None
        left = area.members - frozenset(name for lock in locks for name in lock.area.members or ())
        smaller = replace(area, members=left)
        return (smaller, False, []) if left and not self.ahead(wish, smaller) else None

    def renews(self, number: int, seconds: int, **_: object) -> None:
        if not self.claims:
            return
        one = self.claims[-1 - number % len(self.claims)]
        try:
            renew(self.database, one.leases, lease_seconds=seconds)
        except LeaseLost:
            assert not all(map(self.stands, one.locks)), "a lease that stands was not renewed"
            return
        assert all(map(self.stands, one.locks)), "a lease that was lost has been renewed"
        for lock in one.locks:
            lock.until = self.now + seconds

    def gives_back(self, number: int, yes: bool, **_: object) -> None:
        if not self.claims:
            return
        one = self.claims[-1 - number % len(self.claims)]
        if yes:
            with self.database.begin() as work:
                give_back(work, one.leases)
        self._give_back([one])

    def _give_back(self, claims: list[Claim]) -> None:
        release(self.database, [lease for one in claims for lease in one.leases])
        for lock in [lock for one in claims for lock in one.locks]:
            lock.is_lost = True

    def waits_no_more(self, number: int, yes: bool, **_: object) -> None:
        """Give up; the request of a waiter that dies stays, until it counts no more."""
        if (task := self._waiter(number)) is None:
            return
        assert task.asking is not None
        assert task.wish is not None
        if yes:
            task.asking.withdraw()
            self.forget(task.wish)
        task.asking = task.wish = None

    def comes_again(self, number: int, yes: bool, **_: object) -> None:
        """Begin a new attempt; the older one may still be at work, and learns of it."""
        task = self.tasks[number % len(self.tasks)]
        if yes:
            revoke(self.database, task.name, attempt=task.owner.attempt)
        self._end(task)
        self._begin(task)

    def _begin(self, task: Task) -> None:
        task.number += 1
        task.owner = Owner(task.name, str(task.number))
        begin_attempt(self.database, self.queue, task.owner)

    def _end(self, task: Task) -> None:
        """Let an attempt end in the model, with all that it holds and waits for."""
        self.ended.append(task.owner)
        for one in self.claims:
            if one.owner == task.owner:
                for lock in one.locks:
                    lock.is_lost = True
        for wish in [wish for wish in self.wishes if wish.owner == task.owner]:
            self.forget(wish)
        task.asking = task.wish = None

    def time_passes(self, number: int, **_: object) -> None:
        hours = 40 if number == 14 else 1 + number % 2
        self.now += hours * HOUR
        earlier = hours * HOUR * 1000
        with self.database.begin() as work:
            lock, request = schema.lock, schema.lock_request
            work.connection.execute(lock.update().values(lease_ms=lock.c.lease_ms - earlier))
            work.connection.execute(request.update().values(until_ms=request.c.until_ms - earlier))

    def everybody_gets_a_turn(self, **_: object) -> None:
        """Nobody takes anything any more, and all holders give back or die: each waiter gets its turn, in order."""
        self._give_back([one for one in self.claims if any(map(self.stands, one.locks))])
        self._end_requests_of_the_dead()
        waiting = [task for task in self.tasks if task.asking is not None]
        while waiting:
            due = [task for task in waiting if task.asking is not None and task.asking.is_due(revokes=False)]
            assert due, f"{[task.name for task in waiting]} wait, and nobody holds anything"
            for task in due:
                self._ask(task, revokes=False, stays=True, seconds=HOUR)
                if task.asking is None:
                    self._give_back(self.claims[-1:])
            waiting = [task for task in waiting if task.asking is not None]

    def _end_requests_of_the_dead(self) -> None:
        alive = [task.asking._number for task in self.tasks if task.asking is not None]
        with self.database.begin() as work:
            request = schema.lock_request
            dead = request.c.number.not_in([number for number in alive if number is not None])
            work.connection.execute(request.update().where(dead).values(until_ms=work.now() - 1))
        for wish in self.wishes:
            if all(task.wish is not wish for task in self.tasks):
                wish.until = min(wish.until, self.now)

    # -- what holds after each step ----------------------------------------------------------------------------------

    @invariant()
    def only_those_act_that_may(self) -> None:
        acting: list[Claim] = []
        lost = [one for one in self.claims if not any(map(self.stands, one.locks))]
        looked_at = [one for one in self.claims if one not in lost[:-LOOKED_AT]]
        with self.database.begin() as work:
            for one in looked_at:
                try:
                    hold(work, *one.leases)
                except LeaseLost:
                    assert not all(map(self.stands, one.locks)), "a holder was kept from acting"
                else:
                    acting.append(one)
        for one, other in itertools.combinations(acting, 2):
            if one.owner != other.owner:
                pairs = itertools.product(one.locks, other.locks)
                assert not any(hurts(a.area, a.mode, b.area, b.mode) for a, b in pairs), "two act that must not"
        for one in acting:
            assert all(map(self.stands, one.locks)), "one acts whose lease is lost"
