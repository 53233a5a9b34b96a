"""Ending a driver whose submitter has ended.

``spark-submit`` is a Java process, and the driver's Python is its child. Killing ``spark-submit`` sends no signal to
the child, which would continue as an orphan. Therefore the driver asks the kernel for a signal at its parent's death,
or polls if the kernel offers none.

The submitter may also die alone, for example when Airflow's task is killed for lack of memory; ``spark-submit``
survives that. Therefore the driver also polls the submitter, which its arguments identify.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from export_queue.core.spark.submitter import Submitter

_PR_SET_PDEATHSIG = 1
_LOOK_SECONDS = 0.3
_GRACE_SECONDS = 5.0
STOPPED = 143
"""Exit status of a process that SIGTERM ended."""


class DriverStopped(BaseException):
    """The driver was told to stop, or its parent has ended. Not an error that code should handle."""


def stop_when_orphaned(submitter: Submitter | None = None) -> None:
    """Raise :class:`DriverStopped` in the main thread at SIGTERM, and when the parent or the submitter ends.

    Call it in the main thread, at the start.

    :param submitter: the process that started the parent; None if no process waits for the job.
    """
    signal.signal(signal.SIGTERM, _stop)
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if parent == 1 and not _is_java(parent):
        raise DriverStopped("spark-submit was gone before its driver began")
    if submitter is not None and not submitter.is_in_sight:
        submitter = None
    if submitter is not None and not submitter.is_alive:
        raise DriverStopped(f"the submitting process {submitter.pid} was gone before its driver began")
    threading.Thread(target=_watch, args=(parent, submitter), name="export-queue-parent", daemon=True).start()


def stop_driver(reason: str) -> None:
    """Stop this driver as SIGTERM does, from any thread; call it after :func:`stop_when_orphaned`.

    :param reason: the message of :class:`DriverStopped`.
    """
    _why.append(reason)
    os.kill(os.getpid(), signal.SIGTERM)


def note_stops(*, late_seconds: float) -> Callable[[], bool]:
    """Record the signals of :func:`stop_when_orphaned` from now on instead of raising an error.

    :param late_seconds: how long this process may continue after the end of its parent or submitter.
    :returns: a function that returns whether such a signal has come.
    """
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        # nothing else: a second signal may interrupt this function
        noted.append(number)

    threading.Thread(target=_leave_behind, args=(late_seconds,), name="export-queue-stop", daemon=True).start()
    signal.signal(signal.SIGTERM, note)
    return lambda: bool(noted)


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not interrupt the end
    threading.Thread(target=_leave_late, args=(_GRACE_SECONDS,), name="export-queue-stop", daemon=True).start()
    raise DriverStopped(_why[0] if _why else "told to stop")


_why: list[str] = []
"""Why the watching thread told the main thread to stop."""


def _watch(parent: int, submitter: Submitter | None) -> None:
    while os.getppid() == parent and (submitter is None or submitter.is_alive):
        time.sleep(_LOOK_SECONDS)
    stop_driver(
        "spark-submit has gone"
        if submitter is None or submitter.is_alive
        else f"the submitting process {submitter.pid} has gone"
    )


def _leave_behind(seconds: float) -> None:
    while not _why:
        time.sleep(_LOOK_SECONDS)
    _leave_late(seconds)


def _leave_late(seconds: float) -> None:
    # A dead Java process or a store that does not answer may block the driver; its leases expire.
    time.sleep(seconds)
    os._exit(STOPPED)


def _is_java(pid: int) -> bool:
    """Return whether a process is Java: in a container spark-submit itself may be process 1."""
    try:
        return Path(f"/proc/{pid}/exe").resolve().name == "java"
    except OSError:
        return False
