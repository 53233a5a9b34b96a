"""The lines that a drain writes into the log while it runs: one every 10 seconds, and one when it starts to wait.

A line says what the drain does, and what it waits for: a store or sink that does not answer, or another holder.

What is left is counted in the store, so that the same lines come from every engine. A count reads all that waits: it is
made so seldom that it costs a small part of the drain's time at most, and lines come as seldom then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from export_queue.core.drain.report import grouped
from export_queue.core.drain.transient import Calls

log = logging.getLogger("export_queue.drain")

Phase = Literal["starting", "waiting", "draining"]

EVERY_SECONDS = 10.0
_TICKS = 3
"""Looks of the thread for one line; the first look only counts, so that the first line has a rate."""
_SHARE = 20
"""A count that has taken a second is followed by none for so many."""


@dataclass(frozen=True, slots=True)
class Left:
    """What a drain has yet to bring."""

    entries: int
    oldest_seconds: float
    """Age of the oldest of them; 0 where there is none."""


OnLeft = Callable[[Left], None]


class ProgressLog:
    """Tells how far a drain has come; a context whose thread ends with it.

    :param title: what the lines begin with.
    :param count_left: counts the entries that the drain has yet to bring; None where that is not known.
    :param calls: the calls that the drain waits for, where it knows them.
    :param on_left: called with each count.
    :param clock: tells seconds.
    :param wait: waits for an event, for a number of seconds at most; tells whether the event has come.
    """

    def __init__(
        self,
        title: str,
        count_left: Callable[[], Left | None],
        *,
        calls: Calls | None = None,
        on_left: OnLeft | None = None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._title = title
        self._count_left = count_left
        self._calls = calls or Calls()
        self._on_left = on_left
        self._clock = clock
        self._wait = wait
        self._phase: Phase = "starting"
        self._describe: Callable[[], str] | None = None
        self._last: tuple[float, int] | None = None
        """When entries were last counted, and how many were left."""
        self._count_at = float("-inf")
        """When they are counted again at the earliest."""
        self._mutex = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._tell_until_stopped, name="export-queue-progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def draining(self) -> None:
        """Note that the drain brings entries."""
        self._phase, self._describe = "draining", None

    def waiting(self, describe: Callable[[], str]) -> None:
        """Note that the drain waits; the first time it is told at once.

        :param describe: says for whom.
        """
        begins = self._phase != "waiting"
        self._phase, self._describe = "waiting", describe
        if begins:
            self._tell()

    def _tell_until_stopped(self) -> None:
        tick = 0
        while not self._wait(self._stop, EVERY_SECONDS / _TICKS):
            if self._clock() < self._count_at:
                continue
            tick += 1
            if tick % _TICKS == 0:
                self._tell()
            elif tick == 1 or self._on_left is not None:
                with self._mutex:
                    self._count()

    def _tell(self) -> None:
        with self._mutex:
            phase, describe = self._phase, self._describe
            parts = [phase if describe is None else f"{phase} for {_said(describe)}"]
            if (awaited := self._calls.line()) is not None:
                parts.append(awaited)
            before = self._last
            left = self._count()
            if left is not None:
                parts.append(f"entries left: {grouped(left.entries)}")
            if before is not None and self._last is not None and phase == "draining":
                seconds, gone = self._last[0] - before[0], before[1] - self._last[1]
                if seconds > 0:
                    parts.append(f"{grouped(max(0, round(gone / seconds)))} a second")
            if left is not None and left.entries:
                parts.append(f"the oldest {left.oldest_seconds:.0f} s old")
            log.info("%s: %s", self._title, "; ".join(parts))

    def _count(self) -> Left | None:
        begun = self._clock()
        try:
            left = self._count_left()
        except Exception:  # a line of the log is worth no error: the drain itself meets what is wrong
            left = None
        now = self._clock()
        self._count_at = now + _SHARE * (now - begun)
        self._last = None if left is None else (now, left.entries)
        if left is not None and self._on_left is not None:
            self._on_left(left)
        return left


def _said(describe: Callable[[], str]) -> str:
    try:
        return describe()
    except Exception:
        return "others"
