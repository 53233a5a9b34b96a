"""Tasks that die midway: the process of a Python worker is killed in the first attempt of its task."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column

    from export_queue import Entry, Put

FOLDER, AFTER = "PEERS_DEATHS", 800
"""The variable that names the folder where tasks note their deaths, and the entries after which a drain's task dies."""


def dying_midway(after: int) -> Callable[[str], Column]:
    """Make a column of values that is what it was, but for the death of its worker.

    :param after: rows of a task that come through before.
    """
    from pyspark.sql.functions import udf

    seen: dict[int, int] = {}

    def value(found: str) -> str:
        task = _task()
        seen[task] = seen.get(task, 0) + 1
        if seen[task] > after:
            die_once(task)
        return found

    return udf(value, "string").asNondeterministic()  # type: ignore[return-value]


_seen: dict[int, int] = {}


def dying_exporter(entry: Entry) -> list[Put]:
    """Copy an entry, as a drain does by itself, but for the death of its worker."""
    from export_queue import Put

    task = _task()
    _seen[task] = _seen.get(task, 0) + 1
    if _seen[task] > AFTER:
        die_once(task)
    return [Put(entry.queue, entry.key, entry.value)]


def die_once(task: int) -> None:
    """Kill this process, unless a process has died for this task before."""
    try:
        (Path(os.environ[FOLDER]) / f"task-{task}").touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def _task() -> int:
    """Name the partition that this process works on."""
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    return int(context.partitionId())
