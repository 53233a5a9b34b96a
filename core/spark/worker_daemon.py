"""Spark's Python daemon with the library loaded, so that the workers that it forks need not load it one by one.

Spark starts it as a program, in the place of ``pyspark.daemon``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys

from export_queue.core.spark.pyspark_path import prefer_installed_pyspark

MODULE = "export_queue.core.spark.worker_daemon"
PRELOADED = "EXPORT_QUEUE_PRELOADED"
"""The variable that names modules, with commas between them. They start no thread: a fork would lose it."""

_COLLECTIONS = 50_000, 20, 20
"""A chunk is ten thousand entries and more: by Python's own thresholds each would be looked through many times."""


def main() -> None:
    """Load modules, then be Spark's daemon."""
    prefer_installed_pyspark()
    # The daemon tells Spark its port on the standard output.
    with contextlib.redirect_stdout(sys.stderr):
        for name in filter(None, os.environ.get(PRELOADED, "").split(",")):
            with contextlib.suppress(Exception):  # the task that needs the module says what is wrong with it
                importlib.import_module(name)
    gc.freeze()  # else a worker's collection would touch, and so copy, all memory that it shares with the daemon
    gc.set_threshold(*_COLLECTIONS)

    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
