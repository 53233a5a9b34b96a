"""A sink that kills its drain at the worst moment, once, as the loss of a machine would."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from export_queue import ApplyResult, Operations, RedisSink


class DyingRedisSink(RedisSink):
    """Kills the whole drain after the server has acknowledged a batch and before the entries are removed.

    :param marker: a file; the sink dies only where it is missing, and leaves it.
    :param port: the server's port; text, where a template gave it.
    """

    def __init__(self, marker: str, port: int | str, **options: Any) -> None:
        super().__init__(port=int(port), **options)
        self._marker = Path(marker)

    def apply(self, operations: Operations) -> ApplyResult:
        """Apply a batch, and die."""
        result = super().apply(operations)
        if not self._marker.exists():
            self._marker.write_text("died here\n")
            for pid in (*_drivers(os.getpid()), os.getpid()):
                os.kill(pid, signal.SIGKILL)
        return result


def _drivers(pid: int) -> list[int]:
    """Return the process ids of the Spark driver above a process."""
    found = []
    while pid > 1:
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        pid = next(int(line.split()[1]) for line in status if line.startswith("PPid:"))
        if pid > 1 and b"SparkSubmit" in Path(f"/proc/{pid}/cmdline").read_bytes():
            found.append(pid)
    return found
