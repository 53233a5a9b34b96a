"""Processes that are killed at a step of an operation, whichever it is, not only at those that somebody thought of."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable

from tests.support.schedules import Run
from tests.support.switch_points import Footprints, Points

_fork = multiprocessing.get_context("fork")


class _Dying(Run):
    """A run of one operation, whose process is killed in front of one of its points."""

    def __init__(self, work: Callable[[], None], at: int | None) -> None:
        super().__init__({"operation": work}, ())
        self._at = at

    def pass_point(self, one, label: str) -> None:  # type: ignore[no-untyped-def]
        if one.passed == self._at:
            os.kill(os.getpid(), signal.SIGKILL)
        super().pass_point(one, label)


def count_points(work: Callable[[], None]) -> int:
    """Run an operation in a process of its own, and count the points of :mod:`tests.support.switch_points`."""
    ours, theirs = _fork.Pipe(duplex=False)
    _in_a_child(lambda: theirs.send(len(_run(work, None).trace)), expected=0)
    return int(ours.recv())


def kill_at(point: int, work: Callable[[], None]) -> None:
    """Run an operation in a process that is killed in front of a point."""
    _in_a_child(lambda: _run(work, point), expected=-signal.SIGKILL)


def _run(work: Callable[[], None], at: int | None) -> Run:
    run = _Dying(work, at)
    with Points(Footprints({}, {}), every_statement=True).placed():
        run.go()
    for error in run.errors.values():
        raise error
    return run


def _in_a_child(work: Callable[[], object], *, expected: int) -> None:
    child = _fork.Process(target=work, daemon=True)
    child.start()
    child.join(120)
    assert child.exitcode == expected, f"the child ended with {child.exitcode}, expected {expected}"
