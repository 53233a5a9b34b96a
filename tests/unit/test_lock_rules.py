"""Who may hold what beside whom: all pairs of the collision table, and a decision against a plain oracle."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from export_queue.core.locks.rules import (
    KEPT_MS,
    ROWS,
    Area,
    Board,
    Granted,
    Intervals,
    Lock,
    Request,
    Waits,
    choose,
    collide,
    member,
)

NOW = 1_000_000
KINDS = {
    "interval": None,
    "rows": frozenset({ROWS}),
    "segment": frozenset({"7.1"}),
    "both": frozenset({ROWS, "7.1"}),
    "other": frozenset({"8.1"}),
}
PLACES = {"same": (0, 10), "inside": (2, 5), "across": (5, 15), "beside": (10, 20), "apart": (30, 40)}
COMMON = {
    frozenset({"rows"}),
    frozenset({"segment"}),
    frozenset({"both"}),
    frozenset({"other"}),
    frozenset({"rows", "both"}),
    frozenset({"segment", "both"}),
}
"""Kinds of segment locks that have a member in common; one name alone stands for twice the same."""


def decide(
    request: Request, locks: list[Lock], waiting: list[Request], *, now: int, revokes: bool = True
) -> Granted | Waits:
    return Board(locks, waiting, now=now).decide(request, revokes=revokes)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("kind", "other"), list(itertools.product(KINDS, KINDS)))
@pytest.mark.parametrize(("mode", "other_mode"), list(itertools.product(["exclusive", "shared"], repeat=2)))
def test_every_pair_of_the_collision_table(mode: str, other_mode: str, kind: str, other: str, place: str) -> None:
    one, two = Area(0, 10, KINDS[kind]), Area(*PLACES[place], KINDS[other])
    kinds = {kind, other}
    if place in ("beside", "apart"):
        expected = False  # what has no buckets in common never meets; overlap counts, not equality
    elif kinds == {"interval"}:
        expected = (mode, other_mode) != ("shared", "shared")
    elif "interval" in kinds:
        expected = True  # an interval lock and a segment lock, both shared or not
    else:
        expected = frozenset(kinds) in COMMON and (mode, other_mode) != ("shared", "shared")
    assert collide(one, mode, two, other_mode) is expected  # type: ignore[arg-type]
    assert collide(two, other_mode, one, mode) is expected  # type: ignore[arg-type]
    lock = held(two, mode=other_mode)
    assert isinstance(decide(asked(one, mode=mode), [lock], [], now=NOW), Waits) is expected


def held(area: Area, **more: object) -> Lock:
    values = {
        "mode": "exclusive",
        "priority": 50,
        "task": "holder",
        "attempt": "1",
        "id": (1, area.first),
        "lease_ms": NOW + 1,
    }
    return Lock(area=area, **(values | more))  # type: ignore[arg-type]


def asked(*areas: Area, **more: object) -> Request:
    values = {"mode": "exclusive", "priority": 50, "task": "asker", "attempt": "1"}
    return Request(areas=areas, **(values | more))  # type: ignore[arg-type]


WHOLE = Area(0, 10)


@pytest.mark.parametrize(
    "worthless",
    [
        held(WHOLE, revoked=True),
        held(WHOLE, lease_ms=NOW),
        held(WHOLE, task="asker", attempt="0"),
    ],
    ids=["revoked", "expired", "of an older attempt"],
)
def test_a_worthless_lock_keeps_nobody_and_ends(worthless: Lock) -> None:
    assert decide(asked(WHOLE), [worthless], [], now=NOW) == Granted((worthless,), ())


def test_an_attempt_that_is_spared_is_not_taken_over() -> None:
    lock = held(WHOLE, task="asker", attempt="0")
    assert isinstance(decide(asked(WHOLE, spared=frozenset({"0"})), [lock], [], now=NOW), Waits)


@pytest.mark.parametrize(
    ("held_mode", "mode", "area", "is_shared"),
    [
        ("exclusive", "exclusive", Area(2, 5), True),
        ("exclusive", "shared", Area(2, 5, frozenset({ROWS})), True),
        ("shared", "shared", Area(2, 5, frozenset({ROWS})), True),
        ("shared", "exclusive", Area(2, 5), False),
        ("exclusive", "shared", Area(5, 15), False),
    ],
)
def test_siblings_share_the_lock_of_their_attempt_that_covers_them(
    held_mode: str, mode: str, area: Area, is_shared: bool
) -> None:
    lock = held(WHOLE, mode=held_mode, task="asker")
    assert isinstance(decide(asked(area, mode=mode), [lock], [], now=NOW), Granted) is is_shared


def test_a_request_revokes_all_that_is_in_its_way_or_nothing() -> None:
    low, lower = held(Area(0, 5), priority=25), held(Area(5, 10), priority=0, id=(2, 5))
    equal = held(Area(5, 10), priority=75, id=(3, 5))
    request = asked(WHOLE, priority=75)
    assert decide(request, [low, lower], [], now=NOW) == Granted((), (low, lower))
    assert decide(request, [low, lower], [], now=NOW, revokes=False) == Waits((low, lower))
    assert decide(request, [low, equal], [], now=NOW) == Waits((low, equal))


def waiting(number: int, area: Area = WHOLE, **more: object) -> Request:
    return asked(area, **({"task": f"waiter{number}", "number": number, "until_ms": NOW + 1} | more))


@pytest.mark.parametrize(
    ("request_", "other", "waits"),
    [
        (asked(WHOLE), waiting(1), True),
        (asked(WHOLE, number=2), waiting(1), True),
        (asked(WHOLE, number=1), waiting(2), False),
        (asked(WHOLE, number=1), waiting(2, priority=75), True),
        (asked(WHOLE, priority=75), waiting(1), False),
        (asked(WHOLE), waiting(1, until_ms=NOW), False),
        (asked(WHOLE), waiting(1, until_ms=NOW + 2 * 86_400_000), False),
        (asked(WHOLE), waiting(1, Area(10, 20)), False),
        (asked(WHOLE, mode="shared"), waiting(1, mode="shared"), False),
        (asked(WHOLE), waiting(1, task="asker", attempt="0"), False),
    ],
    ids=[
        "new",
        "younger",
        "older",
        "lower",
        "higher",
        "gone",
        "of a wrong clock",
        "elsewhere",
        "both shared",
        "own older attempt",
    ],
)
def test_requests_are_served_by_priority_and_age(request_: Request, other: Request, waits: bool) -> None:
    assert isinstance(decide(request_, [], [other], now=NOW), Waits) is waits


def test_a_lock_that_is_long_over_is_cleared_away_wherever_it_lies() -> None:
    old = held(Area(0, 10, frozenset({"7.1"})), lease_ms=NOW - KEPT_MS - 1)
    assert Board([old], now=NOW).gone == [old]
    assert Board([replace(old, lease_ms=NOW - 1)], now=NOW).gone == []


UNIT = Area(0, 10, frozenset({ROWS, member(7, 1), member(8, 1)}))


def chosen(*locks: Lock, revokes: bool = False, leaves_out: bool = True, area: Area = UNIT) -> object:
    found = choose(Board(locks, now=NOW), asked(area, priority=75), revokes=revokes, leaves_out=leaves_out)
    return found and (found.area.members, found.is_whole, found.ends.revoked)


def test_a_drain_leaves_out_what_a_compaction_holds_and_revokes_it_only_when_told() -> None:
    compaction = held(Area(0, 10, frozenset({"7.1", "9.1"})), priority=25)
    assert chosen() == (UNIT.members, True, ())
    assert chosen(compaction) == (frozenset({ROWS, "8.1"}), False, ())
    assert chosen(compaction, leaves_out=False) is None
    assert chosen(compaction, revokes=True) == (UNIT.members, True, (compaction,))
    assert chosen(compaction, area=Area(0, 10, frozenset({"7.1"}))) is None, "nothing would be left"


def test_a_drain_takes_nothing_of_a_unit_on_which_its_equal_works() -> None:
    other = held(Area(0, 10, frozenset({"8.1"})), priority=75)
    assert chosen(other) is None
    assert chosen(other, held(Area(0, 10, frozenset({"7.1"})), priority=25, id=(2, 0)), revokes=True) is None
    assert chosen(held(WHOLE, priority=25)) is None, "an interval lock is not left out"
    own = held(Area(0, 10, frozenset({ROWS})), priority=75, task="asker")
    assert chosen(own) is None, "each entry is brought once"


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30))), st.tuples(st.integers(0, 60), st.integers(1, 20)))
def test_a_search_finds_what_a_look_at_all_intervals_finds(
    spans: list[tuple[int, int]], asked: tuple[int, int]
) -> None:
    entries = [(first, first + length, at) for at, (first, length) in enumerate(spans)]
    first, end = asked[0], asked[0] + asked[1]
    expected = sorted(at for low, high, at in entries if low < end and high > first)
    assert sorted(Intervals(entries).overlapping(first, end)) == expected


# -- a decision against a plain oracle -------------------------------------------------------------------------------

_areas = st.builds(
    lambda first, length, members: Area(first, first + length, members),
    st.integers(0, 8),
    st.integers(1, 5),
    st.one_of(st.none(), st.frozensets(st.sampled_from([ROWS, "1.1", "2.1"]), min_size=1)),
)
_who = {
    "mode": st.sampled_from(["exclusive", "shared"]),
    "priority": st.sampled_from([25, 50, 75]),
    "task": st.sampled_from(["a", "b", "c"]),
    "attempt": st.sampled_from(["1", "2"]),
}
_locks = st.lists(
    st.builds(
        Lock, area=_areas, **_who, id=st.just((0, 0)), lease_ms=st.integers(NOW - 1, NOW + 1), revoked=st.booleans()
    ),
    max_size=6,
)
_requests = st.lists(
    st.builds(Request, areas=st.tuples(_areas), **_who, until_ms=st.integers(NOW - 1, NOW + 1)), max_size=4
)


@given(st.builds(Request, areas=st.tuples(_areas), **_who), _locks, _requests, st.booleans())
def test_a_decision_is_that_of_a_plain_oracle(
    request_: Request, locks: list[Lock], others: list[Request], revokes: bool
) -> None:
    locks = [replace(lock, id=(at, lock.area.first)) for at, lock in enumerate(locks)]
    others = [replace(other, number=at) for at, other in enumerate(others)]
    found = decide(request_, locks, others, now=NOW, revokes=revokes)
    standing, ahead, is_covered = oracle(request_, locks, others)
    if (ahead and not is_covered) or (
        standing and not (revokes and all(x.priority < request_.priority for x in standing))
    ):
        assert isinstance(found, Waits)
        assert set(found.locks) == set(standing)
    else:
        assert isinstance(found, Granted)
        assert set(found.revoked) == set(standing)
        assert not any(
            lock in found.worthless and lock.lease_ms > NOW and not lock.revoked and lock.task != request_.task
            for lock in locks
        )


def oracle(request: Request, locks: list[Lock], others: list[Request]) -> tuple[list[Lock], list[Request], bool]:
    """Look at each pair, by the words of the rules; the request has one area."""
    (area,) = request.areas

    def common(other: Area) -> bool:
        if not set(range(area.first, area.end)) & set(range(other.first, other.end)):
            return False
        return area.members is None or other.members is None or bool(area.members & other.members)

    def hurts(other: Area, mode: str) -> bool:
        is_mixed = (area.members is None) != (other.members is None)
        return common(other) and (is_mixed or "exclusive" in (mode, request.mode))

    def is_covering(lock: Lock) -> bool:
        is_within = lock.area.first <= area.first and area.end <= lock.area.end
        has_all = lock.area.members is None or (area.members is not None and area.members <= lock.area.members)
        return is_within and has_all and (lock.mode == "exclusive" or request.mode == "shared")

    live = [x for x in locks if x.lease_ms > NOW and not x.revoked]
    live = [x for x in live if x.task != request.task or x.attempt == request.attempt]
    own = [x for x in live if x.task == request.task and is_covering(x)]
    live = [x for x in live if not own or x.task != request.task]  # narrower ones of its own do not count either
    standing = [x for x in live if hurts(x.area, x.mode)]
    ahead = [
        x
        for x in others
        if x.until_ms > NOW
        and (x.task != request.task or x.attempt == request.attempt)
        and x.priority >= request.priority
        and hurts(x.areas[0], x.mode)
    ]
    return standing, ahead, bool(own)
