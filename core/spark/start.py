"""Starting Spark within a time limit, with the cause in one line if it fails."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from zipimport import zipimporter

from pyspark import SparkConf, SparkContext

from export_queue.core.errors import SparkJobFailed
from export_queue.core.spark.masters import check_answers, shares_process
from export_queue.core.spark.worker_daemon import MODULE, PRELOADED

log = logging.getLogger("export_queue.spark")

_LEAST_SECONDS = 1e-3
"""A timer of 0 seconds would never expire."""


class _TooLate(BaseException):
    """The deadline has passed. Not an error that code in between should handle."""


@contextlib.contextmanager
def start_deadline(seconds: float) -> Iterator[None]:
    """Limit the time of a block that starts Spark, even while it waits for Java.

    :param seconds: how long the block may take.
    :raises SparkJobFailed: its time is over.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can be interrupted
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise _TooLate

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(seconds, _LEAST_SECONDS))
        yield
    except _TooLate:
        raise SparkJobFailed(
            f"Spark has not started within {seconds:g} seconds: no executor came",
            hint="check whether the cluster has free cores and memory for this job; start_timeout= allows more time",
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def submitted_settings() -> dict[str, str]:
    """Return the settings of the submission, without starting an executor.

    :raises SparkJobFailed: Java did not start; the log above has the details.
    """
    try:
        with _pandas_unseen():
            SparkContext._ensure_initialized()
            return dict(SparkConf().getAll())
    except Exception as error:
        raise SparkJobFailed(f"Spark did not start: {cause_of(error)}") from error


def start_spark(name: str, *, preloaded: Sequence[str] = ()) -> SparkContext:
    """Connect to the Spark that this program was submitted to.

    :param name: name of the application.
    :param preloaded: modules that every task imports and that start no threads. If workers run on this machine, one
        process imports the modules and is forked.
    :raises SparkJobFailed: Spark did not start; the log above has the details.
    """
    try:
        with _pandas_unseen():
            SparkContext._ensure_initialized()  # otherwise the settings are not those of the submission
            conf = SparkConf().setAppName(name)
            for setting, value in _daemon_settings(conf, preloaded).items():
                conf.set(setting, value)
            check_answers(conf.get("spark.master", "") or "")
            context = SparkContext.getOrCreate(conf)
    except SparkJobFailed:
        raise
    except Exception as error:
        raise SparkJobFailed(f"Spark did not start: {cause_of(error)}") from error
    if context.uiWebUrl:
        log.info("Spark UI: %s", context.uiWebUrl)  # who submits the job reads this line
    return context


@contextlib.contextmanager
def _pandas_unseen() -> Iterator[None]:
    """Hide pandas from PySpark, whose first call of Java would import it only to check that it is installed."""
    if "pandas" in sys.modules:
        yield
        return
    sys.modules["pandas"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["pandas"]


def _daemon_settings(conf: SparkConf, preloaded: Sequence[str]) -> dict[str, str]:
    """Return settings by which workers are forked from a process with the library, if that is possible."""
    loader = None if __spec__ is None else __spec__.loader
    workers = shutil.which(os.environ.get("PYSPARK_PYTHON", "python3"))
    if not preloaded or not shares_process(conf.get("spark.master", "") or "") or workers != sys.executable:
        return {}
    if not isinstance(loader, zipimporter):  # Spark was not told where the library is
        return {}
    if any(conf.contains(setting) for setting in ("spark.python.daemon.module", "spark.executorEnv.PYTHONPATH")):
        return {}  # the user has set them
    return {
        "spark.python.daemon.module": MODULE,
        "spark.executorEnv.PYTHONPATH": loader.archive,
        f"spark.executorEnv.{PRELOADED}": ",".join(preloaded),
    }


def cause_of(error: BaseException) -> str:
    """Return the line of a Java or Python error that names the cause."""
    lines = [line.strip() for line in str(error).splitlines()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    raised = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
    told = [line for line in lines if line and not line.startswith("at ")]
    # Below the traceback of a Python worker stands its error.
    _, traced, below = str(error).partition("Traceback (most recent call last):")
    python = [line for line in below.splitlines() if traced and line.strip() and not line.startswith(" ")]
    for found in (causes[-1:], raised[:1], python[:1], told[:1]):
        if found:
            return found[0]
    return repr(error)
