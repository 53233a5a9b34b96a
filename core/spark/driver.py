"""The program that every driver runs: it logs, ends with its submitter, stores its error, and exits with a status."""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from collections.abc import Sequence

from export_queue.core.errors import ExportQueueError
from export_queue.core.retry import is_transient
from export_queue.core.spark.compact_job import CompactArguments
from export_queue.core.spark.drain_job import DrainArguments
from export_queue.core.spark.job import JobArguments
from export_queue.core.spark.load_job import LoadArguments
from export_queue.core.spark.problems import problem_kept
from export_queue.core.spark.verify_job import VerifyArguments
from export_queue.core.spark.watchdog import STOPPED, DriverStopped, stop_when_orphaned

FAILED = 1
TRY_AGAIN = 75
"""Exit status if trying again may help; ``EX_TEMPFAIL`` of sysexits.h."""
_KINDS: Sequence[type[JobArguments]] = (DrainArguments, LoadArguments, CompactArguments, VerifyArguments)


def main(arguments: Sequence[str]) -> None:
    """Run the job, and end the process if it fails or is stopped.

    :param arguments: one text, of :meth:`JobArguments.to_json`.
    """
    logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format="%(message)s")
    if len(arguments) != 1:
        sys.exit(f"expected one argument, found {len(arguments)}")
    kind = _kind_of(arguments[0])
    log = logging.getLogger(kind.logger)
    for name in (kind.logger, "export_queue.spark"):
        logging.getLogger(name).setLevel(logging.INFO)
    try:
        _run(kind.from_json(arguments[0]), log)
    except DriverStopped as stopped:
        log.error("%s stopped: %s", kind.kind, stopped)
        # at once: Python's ordinary exit waits for Java, which may be gone
        os._exit(STOPPED)
    except ExportQueueError as error:
        log.error("%s failed: %s: %s", kind.kind, type(error).__name__, error)
        for note in getattr(error, "__notes__", ()):
            log.error("%s", note)
        sys.exit(TRY_AGAIN if is_transient(error) else FAILED)


def _kind_of(text: str) -> type[JobArguments]:
    try:
        name = json.loads(text)["kind"]
        return next(kind for kind in _KINDS if kind.kind == name)
    except (ValueError, KeyError, TypeError, StopIteration):
        sys.exit("expected the arguments of a job as one JSON object")


def _run(arguments: JobArguments, log: logging.Logger) -> None:
    stop_when_orphaned(arguments.submitter)
    with problem_kept(arguments.store, arguments.problem_key):
        for line in importlib.import_module(arguments.driver).run(arguments):
            log.info("%s", line)
