"""The progress of a drain in the log: one line every 10 seconds, and one when it starts to wait.

A line says what the drain does and what it waits for: a store or sink that does not answer, or another holder.

The remaining entries are counted in the store, so that all engines write the same lines. A count reads all pending
entries. After a slow count the next one waits, so that counting takes a small part of the drain's time.
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
"""Counts per line. The first count writes no line, so that the first line has a rate."""
_SHARE = 20
"""Pause after a count, as a multiple of the count's duration."""


@dataclass(frozen=True, slots=True)
class Left:
    """The entries that a drain has yet to deliver."""

    entries: int
    oldest_seconds: float
    """Age of the oldest of them; 0 if there are none."""


OnLeft = Callable[[Left], None]


class ProgressLog:
    """Logs the progress of a drain; a context manager whose thread ends with it.

    :param title: start of the lines.
    :param count_left: counts the entries that the drain has yet to deliver; returns None if they are not known.
    :param calls: the calls that the drain waits for, if it knows them.
    :param on_left: called with each count.
    :param clock: returns seconds.
    :param wait: waits for an event for at most a number of seconds; returns whether the event is set.
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
        """Time of the last count, and its result."""
        self._count_at = float("-inf")
        """Time before which nothing is counted."""
        self._mutex = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._log_until_stopped, name="export-queue-progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def draining(self) -> None:
        """Note that the drain delivers entries."""
        self._phase, self._describe = "draining", None

    def waiting(self, describe: Callable[[], str]) -> None:
        """Note that the drain waits; log it at once if it has just begun to wait.

        :param describe: returns for whom.
        """
        begins = self._phase != "waiting"
        self._phase, self._describe = "waiting", describe
        if begins:
            self._log()

    def _log_until_stopped(self) -> None:
        tick = 0
        while not self._wait(self._stop, EVERY_SECONDS / _TICKS):
            if self._clock() < self._count_at:
                continue
            tick += 1
            if tick % _TICKS == 0:
                self._log()
            elif tick == 1 or self._on_left is not None:
                with self._mutex:
                    self._count()

    def _log(self) -> None:
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
        except Exception:  # a log line is not worth an error: the drain will meet the same one
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
