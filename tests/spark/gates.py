"""Points in a load at which tests stop it, break it or kill it; imported wherever a part of the load runs.

The folder of the environment variable ``GATES`` says by its file ``plan`` what happens at which point. Each attempt
that comes to a planned point leaves a file there, named after its id, with its process and its number. A plan is JSON:
``case``, the name of a folder for these files, and ``at``, which by point has ``act`` (``wait`` for the file ``go``,
``raise`` or ``die``), the ``partition`` that it is for, and how many ``times``.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import types as t

from export_queue.core.spark import data_source, load
from export_queue.core.spark.data_source import ExportQueueDataSource, ExportQueueWriter, Message
from export_queue.core.transactions import OpenTransaction

_SECONDS = 120


def gate(point: str) -> None:
    """Do what the plan says about a point."""
    root = Path(os.environ["GATES"])
    plan = json.loads((root / "plan").read_text())
    wanted = plan["at"].get(point)
    task: Any = TaskContext.get()
    partition = None if task is None else task.partitionId()
    if wanted is None or wanted.get("partition") != partition:
        return
    folder = root / plan["case"]
    earlier = [mark for mark in folder.glob(f"{point}-*") if not mark.suffix]
    number = 0 if task is None else task.taskAttemptId()
    told = {"pid": os.getpid(), "attempt": None if task is None else task.attemptNumber()}
    mark = folder / f"{point}-{number}"
    mark.with_suffix(".new").write_text(json.dumps(told))
    mark.with_suffix(".new").rename(mark)
    if len(earlier) >= wanted.get("times", 1):
        return
    if wanted["act"] == "raise":
        raise OSError("planted")
    if wanted["act"] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    end = time.monotonic() + _SECONDS
    while not (folder / "go").exists() and time.monotonic() < end:
        time.sleep(0.02)


def _halves(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        half = batch.num_rows // 2
        yield batch.slice(0, half)
        gate("within")
        yield batch.slice(half)


def _gated_task(made: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def make(setup: Any) -> Any:
        task = made(setup)

        def run(batches: Any) -> Any:
            gate("before")
            outcomes = list(task(_halves(batches)))
            gate("written")
            yield from outcomes

        return run

    return make


def _between(point: str, function: Callable[..., Any], after: str) -> Callable[..., Any]:
    def gated(*arguments: Any, **options: Any) -> Any:
        if point:
            gate(point)
        found = function(*arguments, **options)
        gate(after)
        return found

    return gated


def install() -> None:
    """Put the points of a driver into this process, which is a test's alone."""
    load.load_task = _gated_task(load.load_task)  # type: ignore[assignment]
    for module in (load, data_source):
        module.stage_files = _between("told", module.stage_files, "staged")  # type: ignore[attr-defined]
    OpenTransaction.commit = _between("", OpenTransaction.commit, "committed")  # type: ignore[method-assign]


class GatedSource(ExportQueueDataSource):
    """The data source with these points."""

    @classmethod
    def name(cls) -> str:
        return "gated"

    def writer(self, schema: t.StructType, overwrite: bool) -> ExportQueueWriter:
        made = super().writer(schema, overwrite)
        made.__class__ = GatedWriter
        return made


class GatedWriter(ExportQueueWriter):
    def write(self, iterator: Iterator[Any]) -> Message:
        gate("before")
        message = super().write(_halves(iterator))
        gate("written")
        return message

    def commit(self, messages: Any) -> None:
        install()  # Spark gives each commit a process
        super().commit(messages)
