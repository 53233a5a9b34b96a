"""SIGTERM and SIGINT as a question that is asked between two pieces of work."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any


class StopSignals:
    """Notes the signals of a polite stop for the length of a block; a second SIGINT ends the process at once.

    A pipe carries the news, not an event: the handler of an event may wait for a lock of the code that it interrupts.
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
        with contextlib.suppress(BlockingIOError):  # enough is written already
            os.write(self._writer, b"x")

    def requested(self) -> bool:
        """Tell whether a signal has come."""
        return self._requested

    def wait(self, seconds: float) -> None:
        """Wait, until a signal comes or the time is over."""
        select.select([self._reader], [], [], seconds)


class Terminated(KeyboardInterrupt):
    """SIGTERM has come."""


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM interrupt a block as Ctrl-C does, for work that ends cleanly when it is interrupted."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Terminated

    old = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


def status_of(interruption: KeyboardInterrupt) -> int:
    """Return the exit status that shells know a signal by."""
    return 128 + (signal.SIGTERM if isinstance(interruption, Terminated) else signal.SIGINT)
