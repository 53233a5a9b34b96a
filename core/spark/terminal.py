"""The bar of a drain on the terminal from which its job was submitted."""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Iterator
from typing import Any, TextIO

from export_queue.core.drain import Left, OnLeft


@contextlib.contextmanager
def shown_bar(title: str) -> Iterator[OnLeft | None]:
    """Draw a progress bar during a block if the job was submitted from a terminal.

    :param title: the text before the bar.
    :returns: a function that takes each count of remaining entries; None without a terminal.
    """
    with contextlib.ExitStack() as open_files:
        terminal = _terminal(2)
        if terminal is None:
            yield None
            return
        from rich.console import Console

        from export_queue.core.progress_bar import ProgressBar

        open_files.enter_context(terminal)
        width = os.get_terminal_size(terminal.fileno()).columns or None
        with ProgressBar(Console(file=terminal, force_terminal=True, width=width), title) as bar:
            total = 0

            def show(left: Left) -> None:
                nonlocal total
                total = max(total, left.entries)
                bar.show(done=total - left.entries, left=left.entries)

            with _lines_above(bar.lines()):
                yield show


@contextlib.contextmanager
def _lines_above(handler: logging.Handler) -> Iterator[None]:
    """If the standard output is the terminal as well, write log lines above the bar."""
    output = _terminal(1)
    if output is None:
        yield
        return
    output.close()
    root = logging.getLogger()
    before = root.handlers[:]
    for one in before[:1]:
        handler.setFormatter(one.formatter)
    root.handlers[:] = [handler]
    try:
        yield
    finally:
        root.handlers[:] = before


def _terminal(number: int) -> TextIO | None:
    """Open a standard stream of the submission, if it is a terminal: ``spark-submit`` gives the driver a pipe."""
    for pid in (os.getpid(), os.getppid()):
        try:
            found = os.open(f"/proc/{pid}/fd/{number}", os.O_WRONLY | os.O_NOCTTY)
        except OSError:
            continue
        if os.isatty(found):
            return io.TextIOWrapper(io.BufferedWriter(_Leaving(found, "w")), errors="replace")
        os.close(found)
    return None


class _Leaving(io.FileIO):
    """A terminal that may be closed during the drain: output that it does not accept is discarded."""

    def write(self, content: Any) -> int:
        try:
            return super().write(content)
        except OSError:
            return memoryview(content).nbytes
