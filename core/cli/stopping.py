"""SIGTERM and SIGINT: a flag that a command checks between two steps, or an interruption."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any


class StopSignals:
    """Records SIGTERM and SIGINT during a block. A second SIGINT interrupts the process immediately.

    The handler writes to a pipe instead of setting an event: setting an event may wait for a lock that the interrupted
    code holds.
    """

    def __init__(self) -> None:
        self._requested = False
        self._old: dict[int, Any] = {}
        self._reader = self._writer = -1

    def __enter__(self) -> StopSignals:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._old[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        os.close(self._reader)
        os.close(self._writer)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._requested = True
        if number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
        with contextlib.suppress(BlockingIOError):  # the pipe is full, which is enough
            os.write(self._writer, b"x")

    def requested(self) -> bool:
        """Return whether a signal was received."""
        return self._requested

    def wait(self, seconds: float) -> None:
        """Wait for a signal, at most a number of seconds."""
        select.select([self._reader], [], [], seconds)


class Terminated(KeyboardInterrupt):
    """SIGTERM was received."""


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Make SIGTERM interrupt a block as Ctrl-C does, for work that ends cleanly when it is interrupted."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Terminated

    old = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


def status_of(interruption: KeyboardInterrupt) -> int:
    """Return the exit status that shells use for the signal."""
    return 128 + (signal.SIGTERM if isinstance(interruption, Terminated) else signal.SIGINT)
