"""Every schedule of a few operations, not the lucky one.

Some operations of the library run in threads, and exactly one of them continues at any time. A thread may be switched
only at a *point*: where the store begins a SQL transaction or executes a statement that stands alone, where a file is
read, written or deleted, and where a sink is called. :mod:`tests.support.switch_points` places these points.

A *plan* says which operation runs up to which of its points::

    drain:4 load:11 drain load

``drain`` runs up to its fourth point and stops in front of it, ``load`` runs up to its eleventh, then ``drain`` runs to
its end, then ``load``. The same plan always gives the same run, so a failure is repeated from the printed plan.

:class:`Explorer` runs all plans with at most two *preemptions*: switches away from an operation that could continue.
Most errors of concurrency need no more (Musuvathi and Qadeer, Iterative Context Bounding, PLDI 2007). A switch at the
end of an operation is free.

Two kinds of plans are left out. A plan in which an operation has to wait for a lock is run, but not extended behind
that wait: switching before or after the lock gives the same result. And of plans that differ only in the order of steps
that do not concern each other one is run: a step's *footprint* is what it reads and writes (names of tables, the files,
the sink), and steps of which neither writes what the other uses can be exchanged (Flanagan and Godefroid, POPL 2005).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

PREEMPTIONS = 2
HANGS = 120.0
"""Seconds after which a run counts as hung; a run takes milliseconds."""
PATIENCE = 20.0
"""Seconds for which all operations may wait: a server frees the locks of a closed connection a moment later."""
_here = threading.local()


class Hung(AssertionError):
    """The operations wait for each other, or for something that nobody controls."""


class Stretch(NamedTuple):
    """A part of a plan."""

    name: str
    """The operation that runs."""
    until: int | None = None
    """Its point in front of which it stops, counted from 0; None for its end."""


Plan = tuple[Stretch, ...]


def printed(plan: Plan) -> str:
    """Write a plan as text."""
    return " ".join(name if until is None else f"{name}:{until}" for name, until in plan)


def parsed(text: str) -> Plan:
    """Read a plan that :func:`printed` wrote."""
    parts = (word.partition(":") for word in text.split())
    return tuple(Stretch(name, int(until) if until else None) for name, _, until in parts)


@dataclass(slots=True)
class Step:
    """What an operation did from one point to the next."""

    name: str
    label: str
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)

    def concerns(self, other: Step) -> bool:
        """Tell whether the order of two steps may matter."""
        return bool(self.writes & (other.reads | other.writes) or other.writes & self.reads)


@dataclass(slots=True)
class _Operation:
    name: str
    work: Callable[[], None]
    baton: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    passed: int = 0
    """Points that it has passed."""
    is_over: bool = False
    error: BaseException | None = None


class Run:
    """One run of some operations by a plan.

    :param operations: what runs, by name.
    :param plan: the order; what it does not mention runs at the end.
    """

    def __init__(self, operations: Mapping[str, Callable[[], None]], plan: Plan) -> None:
        self._operations = {name: _Operation(name, work) for name, work in operations.items()}
        self._plan = list(plan)
        self._over = threading.Event()
        self._steps_at_wait: int | None = None
        self._waits_since = 0.0
        self.trace: list[Step] = []
        """The steps, in their order."""
        self.failure: str | None = None
        """What is wrong with the result, once that has been checked."""
        self.outcome = ""
        """What distinguishes the result from others."""
        self.waits_at: int | None = None
        """How many steps were done when an operation first waited for a lock; None where none did."""

    def go(self) -> Run:
        """Run the operations to their ends.

        :raises Hung: they wait for each other.
        """
        threads = [
            threading.Thread(target=self._body, args=(one,), name=f"operation {one.name}", daemon=True)
            for one in self._operations.values()
        ]
        for thread in threads:
            thread.start()
        self._hand_over()
        if not self._over.wait(HANGS):
            raise Hung(f"the operations did not end within {HANGS:g} s; the last steps were:\n{self.told(last=10)}")
        for thread in threads:
            thread.join(HANGS)
        return self

    @property
    def names(self) -> list[str]:
        """The names of the operations."""
        return list(self._operations)

    @property
    def errors(self) -> dict[str, BaseException]:
        """What operations have raised, by their names."""
        return {name: one.error for name, one in self._operations.items() if one.error is not None}

    @property
    def plan(self) -> Plan:
        """The plan of this run, complete."""
        return self.plan_up_to(len(self.trace))

    def plan_up_to(self, end: int) -> Plan:
        """Return the plan of the first steps of this run."""
        passed = dict.fromkeys(self._operations, 0)
        total = {name: sum(step.name == name for step in self.trace) for name in self._operations}
        plan = []
        for name, steps in groupby(self.trace[:end], key=lambda step: step.name):
            passed[name] += len(list(steps))
            plan.append(Stretch(name, passed[name] if passed[name] < total[name] else None))
        return tuple(plan)

    def told(self, *, last: int | None = None) -> str:
        """Describe the steps for people, a line each."""
        numbers = dict.fromkeys(self._operations, 0)
        lines = []
        for step in self.trace:
            lines.append(f"  {step.name}:{numbers[step.name]:<4} {step.label}")
            numbers[step.name] += 1
        return "\n".join(lines if last is None else lines[-last:])

    def _body(self, one: _Operation) -> None:
        one.baton.acquire()
        _here.run, _here.operation = self, one
        try:
            one.work()
        except BaseException as error:
            one.error = error
        one.is_over = True
        self._steps_at_wait = None
        self._hand_over()

    def _hand_over(self, *, but: str | None = None) -> None:
        """Let the next operation of the plan continue; behind the plan the first one that has not ended.

        :param but: the operation that cannot continue now.
        """
        while self._plan:
            if not self._operations[self._plan[0].name].is_over and self._plan[0].name != but:
                self._operations[self._plan[0].name].baton.release()
                return
            self._plan.pop(0)
        for one in self._operations.values():
            if not one.is_over and one.name != but:
                one.baton.release()
                return
        self._over.set()

    def pass_point(self, one: _Operation, label: str) -> None:
        """Stop in front of a point where the plan says so; then pass it, which begins a step."""
        while self._plan and self._plan[0] == (one.name, one.passed):
            self._plan.pop(0)
            if not self._plan or self._plan[0].name != one.name:
                self._hand_over()
                one.baton.acquire()
        one.passed += 1
        self.trace.append(Step(one.name, label))

    def await_others(self, one: _Operation) -> None:
        """Let another operation continue, since this one waits for a lock that it holds.

        :raises Hung: all wait, and nothing changes for :data:`PATIENCE` seconds.
        """
        if self.waits_at is None:
            self.waits_at = len(self.trace)
        if self._steps_at_wait != len(self.trace):
            self._steps_at_wait, self._waits_since = len(self.trace), time.monotonic()
        elif time.monotonic() - self._waits_since > PATIENCE:
            raise Hung(f"{one.name} waits for a lock that nobody frees; the last steps were:\n{self.told(last=10)}")
        else:
            time.sleep(0.01)
        if any(other is not one and not other.is_over for other in self._operations.values()):
            self._hand_over(but=one.name)
            one.baton.acquire()


def is_scheduled() -> bool:
    """Tell whether this thread runs an operation of a run."""
    return getattr(_here, "run", None) is not None


def point(label: str) -> None:
    """Pass a point, if this thread runs an operation."""
    if is_scheduled():
        _here.run.pass_point(_here.operation, label)


def touch(*, reads: set[str] | frozenset[str] = frozenset(), writes: set[str] | frozenset[str] = frozenset()) -> None:
    """Add to the footprint of the step that this thread's operation takes."""
    if is_scheduled() and _here.run.trace:
        step = _here.run.trace[-1]
        step.reads |= reads
        step.writes |= writes


def wait_for_others() -> None:
    """Let another operation continue, since this thread's operation waits for a lock."""
    _here.run.await_others(_here.operation)


@dataclass
class Explored:
    """What came of an exploration."""

    runs: int = 0
    waited: int = 0
    """Runs in which an operation waited for a lock, of ``runs``."""
    left_out: int = 0
    """Plans that were not run, since an equal one was; those that would extend them are not counted."""
    failures: list[str] = field(default_factory=list)
    outcomes: set[str] = field(default_factory=set)
    """All different results."""

    def line(self) -> str:
        """Say it in one line."""
        return f"{self.runs} schedules run ({self.waited} with a wait), {self.left_out} left out as equal"


class Enough(Exception):
    """As many failures were found as are of use."""


class Explorer:
    """Runs the plans of some operations with at most two preemptions.

    :param names: the operations.
    :param run: puts the world back, runs the operations by a plan, and checks the result.
    :param preemptions: the most switches away from an operation that could continue.
    :param most_failures: after so many nothing more is run.
    :param reduces: whether plans that are equal to others are left out; of three operations all are run, since the
        equal plan may need a preemption more.
    """

    def __init__(
        self,
        names: Sequence[str],
        run: Callable[[Plan], Run],
        *,
        preemptions: int = PREEMPTIONS,
        most_failures: int = 3,
        reduces: bool = True,
    ) -> None:
        self._names = list(names)
        self._run = run
        self._preemptions = preemptions
        self._most_failures = most_failures
        self._reduces = reduces and len(self._names) == 2
        self.explored = Explored()

    def all(self) -> Explored:
        """Run all plans; the order is always the same."""
        with suppress(Enough):
            for first in self._names:
                run = self._ran((Stretch(first),))
                self._extend(run, begun=0, left=self._preemptions, postponed=None, parent=run)
        return self.explored

    def sample(self, seed: int, number: int) -> Explored:
        """Run some plans with two preemptions, drawn by a seed.

        :param number: how many.
        """
        chance = random.Random(seed)
        with suppress(Enough):
            alone = self._ran((Stretch(self._names[0]),))
            lengths = {name: sum(step.name == name for step in alone.trace) for name in self._names}
            for _ in range(number):
                one, other = chance.sample(self._names, 2)
                stops = [Stretch(name, chance.randrange(1, max(lengths[name], 2))) for name in (one, other)]
                self._ran((*stops, Stretch(one), Stretch(other)))
        return self.explored

    def _ran(self, plan: Plan) -> Run:
        run = self._run(plan)
        self.explored.runs += 1
        self.explored.waited += run.waits_at is not None
        self.explored.outcomes.add(run.outcome)
        if run.failure is not None:
            self.explored.failures.append(run.failure)
            if len(self.explored.failures) >= self._most_failures:
                raise Enough
        return run

    def _extend(self, run: Run, *, begun: int, left: int, postponed: Step | None, parent: Run) -> None:
        """Run the plans that are a run's up to one of its steps, and switch there.

        :param begun: the step behind the run's last switch.
        :param left: preemptions that are left.
        :param postponed: the step in front of which the last preemption was; None where there was none.
        :param parent: the run without that preemption.
        """
        trace, end = run.trace, len(run.trace) if run.waits_at is None else run.waits_at
        # The plan that switches behind the postponed step is run, unless it was left out as equal to this one.
        is_met = postponed is None or not self._reduces or _commutes(postponed, run, begun)
        earlier: dict[str, tuple[Run, int]] = {} if postponed is None else {postponed.name: (parent, begun)}
        for at in range(begun + 1, end):
            last, step = trace[at - 1], trace[at]
            is_met = is_met or (postponed is not None and last.concerns(postponed))
            others = self._others(trace, at, {last.name, step.name})
            if last.name != step.name:  # it has ended: another one may follow just as well
                for name in others:
                    other = self._ran((*run.plan_up_to(at), Stretch(name)))
                    self._extend(other, begun=at, left=left, postponed=None, parent=other)
                if postponed is not None and step.name == postponed.name and not is_met:
                    return
                continue
            for name in others if left else ():
                # Nothing since the last switch concerns the step before which it was: it may be made behind that step.
                # Or nothing behind this switch concerns the step before it: it may be made before that one.
                if not is_met or (self._reduces and name in earlier and _commutes(last, *earlier[name])):
                    self.explored.left_out += 1
                    continue
                child = self._ran((*run.plan_up_to(at), Stretch(name)))
                earlier[name] = (child, at)
                self._extend(child, begun=at, left=left - 1, postponed=step, parent=run)

    def _others(self, trace: Sequence[Step], at: int, but: set[str]) -> list[str]:
        """Name the operations that have not ended at a step."""
        ahead = {step.name for step in trace[at:]} - but
        return [name for name in self._names if name in ahead]


def _commutes(step: Step, run: Run, begun: int) -> bool:
    """Tell whether a step concerns none that other operations take in a run from one of its steps on."""
    if run.waits_at is not None:
        return False
    return not any(step.concerns(other) for other in run.trace[begun:] if other.name != step.name)
