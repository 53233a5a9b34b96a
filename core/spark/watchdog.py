"""An end for drivers whose submitter is gone.

``spark-submit`` is a Java process, the driver's Python is its child. A submitter that kills
``spark-submit`` sends nothing to the child, which would go on as an orphan. So the driver asks the
kernel for a signal at its parent's death; where the kernel has none, the driver looks itself.

The submitter may die alone, as Airflow's task does when its memory is taken: ``spark-submit`` survives that. So the
driver looks at the submitter, too, whose number and start came with its arguments.
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
    """The driver was told to stop, or its parent has gone; not an error that anything should handle."""


def stop_when_orphaned(submitter: Submitter | None = None) -> None:
    """Raise :class:`DriverStopped` in the main thread at SIGTERM, and when the parent or the submitter has gone.

    Call it in the main thread, at the start.

    :param submitter: the process that started the parent; None where nobody waits for the job.
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


def note_stops(*, late_seconds: float) -> Callable[[], bool]:
    """Have the signals of :func:`stop_when_orphaned` raise nothing from now on.

    :param late_seconds: how long behind the end of the parent or of the submitter this process may go on.
    :returns: tells whether such a signal has come.
    """
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        # No more: a signal may come while this very function runs for another one.
        noted.append(number)

    threading.Thread(target=_leave_behind, args=(late_seconds,), name="export-queue-stop", daemon=True).start()
    signal.signal(signal.SIGTERM, note)
    return lambda: bool(noted)


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not cut the end short
    threading.Thread(target=_leave_late, args=(_GRACE_SECONDS,), name="export-queue-stop", daemon=True).start()
    raise DriverStopped(_why[0] if _why else "told to stop")


_why: list[str] = []
"""What the watching thread saw before it told the main thread to stop."""


def _watch(parent: int, submitter: Submitter | None) -> None:
    while os.getppid() == parent and (submitter is None or submitter.is_alive):
        time.sleep(_LOOK_SECONDS)
    _why.append(
        "spark-submit has gone"
        if submitter is None or submitter.is_alive
        else f"the submitting process {submitter.pid} has gone"
    )
    os.kill(os.getpid(), signal.SIGTERM)


def _leave_behind(seconds: float) -> None:
    while not _why:
        time.sleep(_LOOK_SECONDS)
    _leave_late(seconds)


def _leave_late(seconds: float) -> None:
    # A dead Java process, or a store that does not answer, may hang the driver; leases end by themselves.
    time.sleep(seconds)
    os._exit(STOPPED)


def _is_java(pid: int) -> bool:
    """Tell whether a process is Java: in a container spark-submit itself may be the first process."""
    try:
        return Path(f"/proc/{pid}/exe").resolve().name == "java"
    except OSError:
        return False
