"""Spark's Python daemon with the library loaded, so that the workers that it forks need not load it.

Spark starts it as a program, in place of ``pyspark.daemon``.
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
"""Variable with the modules to load, separated by commas. They must not start threads, which a fork would lose."""

_COLLECTIONS = 50_000, 20, 20
"""Thresholds of garbage collection. With Python's own, a chunk of 10,000 entries is traversed many times."""


def main() -> None:
    """Load modules, then be Spark's daemon."""
    prefer_installed_pyspark()
    # The daemon writes its port to the standard output, for Spark.
    with contextlib.redirect_stdout(sys.stderr):
        for name in filter(None, os.environ.get(PRELOADED, "").split(",")):
            with contextlib.suppress(Exception):  # the task that needs the module reports the error
                importlib.import_module(name)
    gc.freeze()  # otherwise a collection in a worker would touch, and so copy, all memory shared with the daemon
    gc.set_threshold(*_COLLECTIONS)

    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
