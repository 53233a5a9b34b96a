"""An end for drivers whose submitter is gone.

``spark-submit`` is a Java process, the driver's Python is its child. A submitter that kills
``spark-submit`` sends nothing to the child, which would go on as an orphan. So the driver asks the
kernel for a signal at its parent's death; where the kernel has none, the driver looks itself.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1
_LOOK_SECONDS = 0.3
_GRACE_SECONDS = 30.0
STOPPED = 143
"""Exit status of a process that SIGTERM ended."""


class DriverStopped(BaseException):
    """The driver was told to stop, or its parent has gone; not an error that anything should handle."""


def stop_with_parent() -> None:
    """Raise :class:`DriverStopped` in the main thread at SIGTERM, and send that when the parent dies.

    Call it in the main thread, at the start.
    """
    signal.signal(signal.SIGTERM, _stop)
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if parent == 1 and not _is_java(parent):
        raise DriverStopped("spark-submit was gone before its driver began")
    threading.Thread(target=_watch, args=(parent,), name="export-queue-parent", daemon=True).start()


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not cut the end short
    threading.Thread(target=_leave_late, name="export-queue-stop", daemon=True).start()
    raise DriverStopped("told to stop")


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def _leave_late() -> None:
    # A dead Java process, or a store that does not answer, may hang the driver; leases end by themselves.
    time.sleep(_GRACE_SECONDS)
    os._exit(STOPPED)


def _is_java(pid: int) -> bool:
    """Tell whether a process is Java: in a container spark-submit itself may be the first process."""
    try:
        return Path(f"/proc/{pid}/exe").resolve().name == "java"
    except OSError:
        return False
