"""The explorer of schedules: it finds a window by itself, and a printed plan repeats it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial

import pytest
from tests.support import schedules
from tests.support.schedules import Explorer, Hung, Plan, Run, Stretch, parsed, point, printed, touch, wait_for_others

Operations = Mapping[str, Callable[[], None]]


def increment(shared: dict[str, int], *, point_between: bool = True) -> Callable[[], None]:
    """Add one, in two steps."""

    def work() -> None:
        point("read")
        touch(reads={"number"})
        found = shared["number"]
        if point_between:
            point("write")
        touch(writes={"number"})
        shared["number"] = found + 1

    return work


def look_around(times: int) -> Callable[[], None]:
    """Do what concerns nobody."""

    def work() -> None:
        for _ in range(times):
            point("look")
            touch(reads={"weather"})

    return work


def explorer(names: str, make: Callable[[dict[str, int]], Operations], expected: int, **options: bool) -> Explorer:
    """Return an explorer of operations that leave a number."""

    def run(plan: Plan) -> Run:
        shared = {"number": 0}
        done = Run(make(shared), plan).go()
        done.outcome = str(shared["number"])
        if shared["number"] != expected:
            done.failure = printed(done.plan)
        return done

    return Explorer(names.split(), run, **options)


def two_increments(shared: dict[str, int]) -> Operations:
    return {"one": increment(shared), "two": increment(shared)}


def test_a_lost_update_is_found_and_its_plan_repeats_it() -> None:
    explored = explorer("one two", two_increments, 2).all()
    assert "one:1 two one" in explored.failures
    shared = {"number": 0}
    Run(two_increments(shared), parsed("one:1 two one")).go()
    assert shared == {"number": 1}


def test_no_failure_is_found_where_steps_are_whole() -> None:
    explored = explorer(
        "one two", lambda shared: {name: increment(shared, point_between=False) for name in ("one", "two")}, 2
    ).all()
    assert (explored.failures, explored.outcomes) == ([], {"2"})


@pytest.mark.parametrize("seed", range(30))
def test_leaving_out_equal_plans_loses_no_outcome(seed: int) -> None:
    """Operations that read and write by chance, in three variables."""
    chance = random.Random(seed)
    programs = {
        name: [(chance.choice("rw"), chance.choice("xyz")) for _ in range(chance.randint(2, 5))]
        for name in ("one", "two")
    }

    def perform(name: str, shared: dict[str, str]) -> None:
        for does, variable in programs[name]:
            point(does + variable)
            if does == "r":
                touch(reads={variable, name}, writes={name})
                shared[name] += shared[variable] + ","
            else:
                touch(reads={name}, writes={variable})
                shared[variable] = f"{name} after {shared[name]}"

    def run(plan: Plan) -> Run:
        shared = dict.fromkeys((*programs, *"xyz"), "")
        done = Run({name: partial(perform, name, shared) for name in programs}, plan).go()
        done.outcome = str(shared)
        return done

    reduced, every = (Explorer(list(programs), run, reduces=reduces).all() for reduces in (True, False))
    assert reduced.outcomes == every.outcomes
    assert reduced.runs < every.runs


def test_a_window_that_needs_two_preemptions_is_found() -> None:
    def make(shared: dict[str, int]) -> Operations:
        def check() -> None:  # whether it has changed and changed back
            point("first")
            touch(reads={"number"})
            first = shared["number"]
            point("second")
            touch(reads={"number"}, writes={"result"})
            shared["result"] = first < shared["number"]

        def change() -> None:
            for number in (1, 0):
                point("set")
                touch(writes={"number"})
                shared["number"] = number

        return {"check": check, "change": change}

    def run(plan: Plan) -> Run:
        shared = {"number": 0}
        done = Run(make(shared), plan).go()
        done.failure = printed(done.plan) if shared["result"] else None
        return done

    assert Explorer(["check", "change"], run).all().failures == ["check:1 change:1 check change"]


def test_a_sample_is_drawn_by_its_seed() -> None:
    def drawn(seed: int) -> list[str]:
        plans: list[str] = []

        def run(plan: Plan) -> Run:
            plans.append(printed(plan))
            return Run({"one": look_around(9), "two": look_around(9)}, plan).go()

        Explorer(["one", "two"], run).sample(seed, 5)
        return plans

    assert drawn(1) == drawn(1) != drawn(2)


def test_operations_that_wait_for_each_other_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "PATIENCE", 0.1)

    def wait() -> None:
        point("wait")
        while True:
            wait_for_others()

    run = Run({"one": wait, "two": wait}, parsed("one two")).go()
    assert any(isinstance(error, Hung) for error in run.errors.values())


@pytest.mark.parametrize("plan", ["one two", "two one"])
def test_a_lock_that_a_server_frees_a_moment_later_is_waited_for(plan: str) -> None:
    looks = iter(range(5))

    def wait() -> None:
        point("wait")
        while next(looks, None) is not None:
            wait_for_others()

    run = Run({"one": wait, "two": lambda: point("work")}, parsed(plan)).go()
    assert not run.errors


@pytest.mark.parametrize("text", ["one", "one:3 two:1 one two", "two:0 one two"])
def test_a_plan_is_read_as_it_was_printed(text: str) -> None:
    assert printed(parsed(text)) == text
    assert parsed("one:3 two") == (Stretch("one", 3), Stretch("two"))
