"""Processor time of servers, as the kernel counts it: steadier than any clock on a machine that others use, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

ProcessorClock = Callable[[], float]
"""Processor seconds so far; only differences count."""


def no_server() -> float:
    """Tell the processor time of a database that runs in its clients."""
    return 0.0


def of_server(pid: int) -> ProcessorClock:
    """Give the clock of a server: of all its threads and child processes that live when it is read."""
    return lambda: sum(_nanoseconds(thread) for thread in _threads(pid)) / 1e9


def _threads(pid: int) -> Iterator[Path]:
    for process in (pid, *_children(pid)):
        yield from Path(f"/proc/{process}/task").glob("*")


def _children(pid: int) -> list[int]:
    return [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]


def _nanoseconds(thread: Path) -> int:
    try:
        return int((thread / "schedstat").read_text().split()[0])
    except OSError:  # it has ended meanwhile
        return 0
