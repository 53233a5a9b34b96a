"""A progress bar on a terminal, with the lines of the log above it."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from export_queue.core.printable import printable


class ProgressBar:
    """A progress bar that is shown during a block.

    :param title: text before the bar.
    :param total: value at the end of the bar.
    """

    def __init__(self, console: Console, title: str, *, total: int = 0) -> None:
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[remark]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._bars.add_task(printable(title), total=total, remark="")
        self._total = total

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bars.stop()

    def show(self, *, done: int, left: int = 0, remark: str = "") -> None:
        """Update the bar.

        :param left: the work that is left; the total grows if there is more work than expected.
        :param remark: text after the bar.
        """
        self._total = max(self._total, done + left)
        self._bars.update(self._task, completed=done, total=self._total, remark=remark)

    def lines(self) -> logging.Handler:
        """Return a log handler that writes lines above the bar."""
        return _Above(self._bars.console)


class _Above(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.print(self.format(record), markup=False, highlight=False, soft_wrap=True)
