"""The program of a compaction whose parts die, or whose driver stands still, where the environment says."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from export_queue.core.segments import watched_steps
from export_queue.core.spark import compact_merger, driver
from export_queue.core.spark.compact_tasks import merge_task


def reach(step: str) -> None:
    """Die, or stand still until a signal comes."""
    if step == os.environ.get("DRIVER_DIES"):
        os.kill(os.getpid(), signal.SIGKILL)
    if step == os.environ.get("DRIVER_STANDS"):
        Path(os.environ["STANDS_THERE"]).touch()
        threading.Event().wait(300)


def dying_task(*arguments: Any) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Make the tasks of the job, of which the first one takes its executor along behind its file, once."""
    task = merge_task(*arguments)

    def run(shares: Iterable[Any]) -> Iterator[Any]:
        import os
        import signal
        from pathlib import Path

        from pyspark import TaskContext

        found = list(task(shares))
        context = TaskContext.get()
        if context is not None and context.partitionId() == context.attemptNumber() == 0:
            daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
            os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)
        yield from found

    return run


if __name__ == "__main__":
    watched_steps.WATCHERS[:] = [reach]
    if "EXECUTOR_DIES" in os.environ:
        compact_merger.merge_task = dying_task
    driver.main(sys.argv[1:])
