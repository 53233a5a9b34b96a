"""Processor time of servers, as the kernel counts it: steadier than any clock on a machine that others use, too."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

ProcessorClock = Callable[[], float]
"""Processor seconds so far; only differences count."""


def no_server() -> float:
    """Tell the processor time of a database that runs in its clients."""
    return 0.0


def of_server(pid: int) -> ProcessorClock:
    """Give the clock of a server: of all its threads and child processes that live when it is read."""
    return lambda: sum(_nanoseconds(thread) for thread in _threads(pid)) / 1e9


def of_descendants() -> float:
    """Tell the processor seconds of all processes below this one that live, whoever started them."""
    return sum(map(_with_ended_children, _descendants(os.getpid())))


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


class SessionWatch:
    """Measures all processes of a session until they have ended, by looking at them; a context.

    Spark's Python daemon does not wait for its workers, so that the kernel adds their time to nobody's.

    :param session: the number of its first process.
    """

    def __init__(self, session: int) -> None:
        self._session = session
        self._used: dict[int, int] = {}
        self._peaks: dict[int, tuple[str, int]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_until_stopped, daemon=True)

    @property
    def seconds(self) -> float:
        """Processor seconds so far; what a process uses behind the last look at it is missing."""
        return sum(self._used.values()) / os.sysconf("SC_CLK_TCK")

    def peak_of(self, word: str) -> int:
        """Tell the most bytes of memory that a process had which has a word on its command line; 0 without any."""
        return max((peak for command, peak in self._peaks.values() if word in command), default=0)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _look_until_stopped(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            for folder in Path("/proc").glob("[0-9]*"):
                session, ticks = _session_and_ticks(folder)
                if session == self._session:
                    self._used[int(folder.name)] = ticks
                    with contextlib.suppress(OSError, IndexError):  # it has ended meanwhile
                        peak = (folder / "status").read_text().partition("VmHWM:")[2].split()[0]
                        self._peaks[int(folder.name)] = (folder / "cmdline").read_text(), int(peak) << 10


_LOOK_SECONDS = 0.1


def _session_and_ticks(process: Path) -> tuple[int, int]:
    """Read the session of a process, and what all of its threads have used."""
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended meanwhile
        return 0, 0
    return int(fields[3]), int(fields[11]) + int(fields[12])


def of_tree(pid: int) -> ProcessorClock:
    """Give the clock of a process and all that it has started, those that have ended and were waited for included.

    It is coarser than :func:`of_server`, by the kernel's ticks, and does not lose sessions that end in between.
    """
    return lambda: sum(_with_ended_children(process) for process in (pid, *_descendants(pid)))


def of_programs_below(pid: int, *, apart: str) -> tuple[float, float]:
    """Tell the processor seconds so far of all that a process has started.

    :param apart: the name of a program that is counted apart.
    :returns: the time of these programs, and that of all others.
    """
    named, others = 0.0, 0.0
    for process in _descendants(pid):
        seconds = _with_ended_children(process)
        if _name(process) == apart:
            named += seconds
        else:
            others += seconds
    return named, others


def _descendants(pid: int) -> Iterator[int]:
    for child in _children(pid):
        yield child
        yield from _descendants(child)


def _with_ended_children(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended meanwhile
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
