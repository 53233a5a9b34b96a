"""How far a drain has come: a bar on a terminal, and plain lines everywhere."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from export_queue.core.cli.console import LOG_FORMAT
from export_queue.core.client import Store
from export_queue.core.drain import DrainRequest, Progress
from export_queue.core.printable import PrintableLines, printable

_log = logging.getLogger("export_queue")


def shown_lines() -> contextlib.AbstractContextManager[None]:
    """Show the lines of a drain on the standard error, for a block."""
    return _lines(logging.StreamHandler(sys.stderr))


@contextlib.contextmanager
def shown_progress(store: Store, request: DrainRequest) -> Iterator[_Shown]:
    """Show a drain's progress on the standard error, for a block.

    Lines are those of the drain itself: one every 30 seconds, and one when it starts to wait. On a terminal they stand
    above a bar.

    :returns: what the drain calls after each chunk.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        with shown_lines():
            yield _Shown(None)
        return
    waiting = sum(unit.entries for unit in store.backlog(request.queue_id, request.ranges))
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[dead]}"),
        TimeElapsedColumn(),
    )
    title = printable(f"{request.queue_id} → {request.sink_name}")
    with Bars(*columns, console=console) as bars, _lines(_Above(bars.console)):
        bars.add_task(title, total=waiting, dead="")
        yield _Shown(bars)


class _Shown:
    """Moves the bar, if there is one."""

    def __init__(self, bars: Bars | None) -> None:
        self._bars = bars

    def __call__(self, progress: Progress) -> None:
        if self._bars is None:
            return
        done = progress.acknowledged + progress.dead
        (task,) = self._bars.task_ids
        # more than were counted: entries that were committed meanwhile
        total = max(done, int(self._bars.tasks[0].total or 0))
        self._bars.update(task, completed=done, total=total, dead=f"{progress.dead} dead" if progress.dead else "")


class _Above(logging.Handler):
    """Writes lines above the bar."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.print(self.format(record), markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def _lines(handler: logging.Handler) -> Iterator[None]:
    """Let this library's lines, and nobody else's, go to a handler."""
    handler.setFormatter(PrintableLines(LOG_FORMAT))
    level = _log.level
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    try:
        yield
    finally:
        _log.removeHandler(handler)
        _log.setLevel(level)
