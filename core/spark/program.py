"""The frame of every program that is submitted: its log, its orderly ends, and its exit status."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence

from export_queue.core.errors import ExportQueueError
from export_queue.core.retry import is_transient
from export_queue.core.spark.watchdog import STOPPED, DriverStopped

FAILED = 1
TRY_AGAIN = 75
"""Exit status where trying again may help; sysexits.h calls it a temporary failure."""


def run_program(title: str, arguments: Sequence[str], run: Callable[[str], None], *, log: logging.Logger) -> None:
    """Run a driver, and end the process if it fails or is stopped.

    :param title: what the driver does, for its log.
    :param arguments: those of the command line; one text is expected.
    :param run: does the work that the text describes.
    :param log: what is told of the work; other logs tell warnings alone.
    """
    logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format="%(message)s")
    log.setLevel(logging.INFO)
    try:
        if len(arguments) != 1:
            sys.exit(f"expected one argument, found {len(arguments)}")
        run(arguments[0])
    except DriverStopped as stopped:
        log.error("%s stopped: %s", title, stopped)
        # At once: the ordinary end of Python waits for Java, which may be gone.
        os._exit(STOPPED)
    except ExportQueueError as error:
        log.error("%s failed: %s: %s", title, type(error).__name__, error)
        for note in getattr(error, "__notes__", ()):
            log.error("%s", note)
        sys.exit(TRY_AGAIN if is_transient(error) else FAILED)
