"""How far a drain has come: a bar on a terminal, and plain lines everywhere."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

from rich.console import Console

from export_queue.core.cli.console import LOG_FORMAT
from export_queue.core.client import Store
from export_queue.core.drain import DrainRequest, Progress
from export_queue.core.printable import PrintableLines
from export_queue.core.progress_bar import ProgressBar

_log = logging.getLogger("export_queue")


def shown_lines() -> contextlib.AbstractContextManager[None]:
    """Show the lines of a drain on the standard error, for a block."""
    return _lines(logging.StreamHandler(sys.stderr))


@contextlib.contextmanager
def shown_progress(store: Store, request: DrainRequest) -> Iterator[_Shown]:
    """Show a drain's progress on the standard error, for a block.

    Lines are those of the drain itself: one every 10 seconds, and one when it starts to wait. On a terminal they stand
    above a bar.

    :returns: what the drain calls after each chunk.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        with shown_lines():
            yield _Shown(None)
        return
    waiting = sum(unit.entries for unit in store.backlog(request.queue_id, request.ranges))
    with (
        ProgressBar(console, f"{request.queue_id} → {request.sink_name}", total=waiting) as bar,
        _lines(bar.lines()),
    ):
        yield _Shown(bar)


class _Shown:
    """Moves the bar, if there is one."""

    def __init__(self, bar: ProgressBar | None) -> None:
        self._bar = bar

    def __call__(self, progress: Progress) -> None:
        if self._bar is not None:
            # more than were counted may come: entries that were committed meanwhile
            remark = f"{progress.dead} dead" if progress.dead else ""
            self._bar.show(done=progress.acknowledged + progress.dead, remark=remark)


@contextlib.contextmanager
def _lines(handler: logging.Handler) -> Iterator[None]:
    """Let this library's lines, and nobody else's, go to a handler."""
    handler.setFormatter(PrintableLines(LOG_FORMAT))
    level, propagate = _log.level, _log.propagate
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    _log.propagate = False
    try:
        yield
    finally:
        _log.removeHandler(handler)
        _log.setLevel(level)
        _log.propagate = propagate
