"""The driver of a load that was submitted: it asks the user's function for a DataFrame, and adds that."""

from __future__ import annotations

import logging
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from export_queue.core.errors import ConfigurationError, ExportQueueError, InvalidArgument
from export_queue.core.references import import_object
from export_queue.core.retry import is_transient
from export_queue.core.spark.load_job import LoadArguments
from export_queue.core.spark.load_report import LoadReport
from export_queue.core.spark.start import start_deadline, start_spark
from export_queue.core.spark.watchdog import STOPPED, DriverStopped, stop_when_orphaned
from export_queue.core.spark.write import write_transactional

FAILED = 1
TRY_AGAIN = 75
"""Exit status where trying again may help; sysexits.h calls it a temporary failure."""

log = logging.getLogger("export_queue.load")


def main(arguments: Sequence[str]) -> None:
    """Run the load and end the process.

    :param arguments: one text, of :meth:`LoadArguments.to_json`.
    """
    logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format="%(message)s")
    logging.getLogger("export_queue").setLevel(logging.INFO)
    try:
        if len(arguments) != 1:
            sys.exit(f"expected one argument, found {len(arguments)}")
        parsed = LoadArguments.from_json(arguments[0])
        stop_when_orphaned(parsed.submitter)
        load(parsed)
    except DriverStopped as stopped:
        log.error("load stopped: %s", stopped)
        # At once: the ordinary end of Python waits for Java, which may be gone.
        os._exit(STOPPED)
    except ExportQueueError as error:
        log.error("load failed: %s: %s", type(error).__name__, error)
        for note in getattr(error, "__notes__", ()):
            log.error("%s", note)
        sys.exit(TRY_AGAIN if is_transient(error) else FAILED)


def load(arguments: LoadArguments) -> LoadReport:
    """Add the DataFrame that the user's function makes."""
    function = find_frame(arguments.frame)
    with start_deadline(arguments.start_timeout):
        start_spark(f"export queue: load of {arguments.options.get('queue') or 'several queues'}")
        spark = SparkSession.builder.getOrCreate()
    frame = function(spark, **arguments.frame_arguments)
    if not isinstance(frame, DataFrame):
        raise InvalidArgument(f"{arguments.frame}: expected a DataFrame, found {type(frame).__name__}")
    report = write_transactional(frame, arguments.store, **arguments.options)
    spark.stop()  # after an error the end of the process does it
    return report


def find_frame(path: str) -> Callable[..., Any]:
    """Find the function that makes the DataFrame.

    :param path: ``module:function`` or ``/path/script.py:function``.
    :raises ConfigurationError: it leads to no function.
    """
    script, _, name = path.rpartition(":")
    if script.endswith(".py"):
        try:
            found: object = runpy.run_path(script).get(name)
        except OSError as error:
            raise ConfigurationError(f"{path}: the script cannot be read: {error.strerror}") from error
    else:
        found = import_object(path, error=ConfigurationError)
    if not callable(found):
        raise ConfigurationError(f"{path}: expected a function of the Spark session, found {type(found).__name__}")
    return found
