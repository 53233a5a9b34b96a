"""The driver of a load: it calls the user's function and adds the DataFrame that the function returns."""

from __future__ import annotations

import contextlib
import inspect
import runpy
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from export_queue.core.callables import check_runs, returned
from export_queue.core.client import Store
from export_queue.core.errors import AlreadyCommitted, ConfigurationError, InvalidArgument
from export_queue.core.references import import_object
from export_queue.core.spark.load_job import LoadArguments
from export_queue.core.spark.start import start_deadline, start_spark
from export_queue.core.spark.write import write_transactional

_IMPORT_HINT = "install the module for Spark's Python, or give its file as py_files"


def run(arguments: LoadArguments) -> list[str]:
    """Add the DataFrame that the user's function returns; see :attr:`JobArguments.driver`."""
    function = find_frame(arguments.frame)
    try:
        inspect.signature(function).bind(None, **arguments.frame_arguments)
    except TypeError as error:
        raise InvalidArgument(
            f"frame_arguments: {arguments.frame} is called with the session and these: {error}"
        ) from None
    with start_deadline(arguments.start_timeout):
        start_spark(f"export queue: load of {arguments.options.get('queue') or 'several queues'}")
        spark = SparkSession.builder.getOrCreate()

    def frame() -> DataFrame:
        try:
            found = returned(function(spark, **arguments.frame_arguments), arguments.frame)
        except ImportError as error:
            raise ConfigurationError(f"{arguments.frame}: {error}", hint=_IMPORT_HINT) from error
        if not isinstance(found, DataFrame):
            raise InvalidArgument(f"{arguments.frame}: expected a DataFrame, found {type(found).__name__}")
        return found

    if arguments.report_key is None:
        write_transactional(frame(), arguments.store, **arguments.options)
    else:
        report = write_transactional(frame, arguments.store, **arguments.options)
        with contextlib.closing(Store(arguments.store.open())) as store, contextlib.suppress(AlreadyCommitted):
            store.run(lambda tx: report.to_json(), idempotency_key=arguments.report_key)
    spark.stop()  # after an error, the end of the process stops it
    return []  # write_transactional has logged the report


def find_frame(path: str) -> Callable[..., Any]:
    """Find the function that returns the DataFrame.

    :param path: ``module:function`` or ``/path/script.py:function``.
    :raises ConfigurationError: it names no function.
    """
    script, _, name = path.rpartition(":")
    if script.endswith(".py"):
        try:
            found: object = runpy.run_path(script).get(name)
        except OSError as error:
            raise ConfigurationError(f"{path}: the script cannot be read: {error.strerror}") from error
        except (ImportError, SyntaxError) as error:
            raise ConfigurationError(f"{path}: {error}", hint=_IMPORT_HINT) from error
    else:
        found = import_object(path, error=ConfigurationError)
    return check_runs(found, path, error=ConfigurationError)
