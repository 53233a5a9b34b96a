"""A sink for tests, which Spark's workers import: after each batch that is applied it waits to be told to go on."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from export_queue import ApplyResult, Claim, Operations, SqlSink
from export_queue.core.sinks import ClaimedSink
from export_queue.core.spark import tasks


class GatedSink:
    """Copies into SQLite, says so in a file named after its process, and waits for the file ``go``."""

    def __init__(self, folder: str, url: str) -> None:
        self._folder = Path(folder)
        self._inner = SqlSink(url)
        self.capabilities = self._inner.capabilities

    def admit(self, *, queue_id: str, store_id: str, fence: int, shown: int = 0, readmit: bool = False) -> None:
        self._inner.admit(queue_id=queue_id, store_id=store_id, fence=fence, shown=shown, readmit=readmit)

    def apply(self, operations: Operations) -> ApplyResult:
        result = self._inner.apply(operations)
        self.wait()
        return result

    def wait(self) -> None:
        (self._folder / f"reached-{os.getpid()}").touch()
        end = time.monotonic() + 120
        while not (self._folder / "go").exists() and time.monotonic() < end:
            time.sleep(0.02)

    def close(self) -> None:
        self._inner.close()


class LateGatedSink(GatedSink):
    """The same, but the first batch of each process goes through."""

    _passed = False

    def wait(self) -> None:
        if self._passed:
            super().wait()
        self._passed = True


class OverdueSink(LateGatedSink):
    """The same; for the tasks of a process that has waited, the store's clock is minutes later."""

    def wait(self) -> None:
        waits = self._passed
        super().wait()
        if waits:
            look = tasks.check_leases
            tasks.check_leases = lambda *arguments: look(*arguments) + 600_000


class GatedFencedSink:
    """The same with the guard ``fence``; it waits in front of each batch."""

    def __init__(self, folder: str, url: str) -> None:
        self._gate = GatedSink(folder, url)
        self._inner = SqlSink(url, guard="fence")
        self.capabilities = self._inner.capabilities
        self.admit, self.claim, self.close = self._inner.admit, self._inner.claim, self._inner.close

    def under(self, claim: Claim) -> ClaimedSink:
        inner = self._inner.under(claim)

        def write(operations: Operations) -> ApplyResult:
            self._gate.wait()
            return inner.apply(operations)

        return ClaimedSink(self._inner, write)


class LateSink(GatedSink):
    """Copies into SQLite; the first process that comes waits in front of its batch, or each one if ``everybody`` waits.

    The file is called ``target``, since a cluster's drains refuse sinks in files.
    """

    def __init__(self, folder: str, target: str, everybody: bool = True) -> None:
        super().__init__(folder, target)
        self._everybody = everybody

    def apply(self, operations: Operations) -> ApplyResult:
        if self._everybody or self._is_first():
            self.wait()
        return self._inner.apply(operations)

    def _is_first(self) -> bool:
        first = self._folder / "first"
        with contextlib.suppress(FileExistsError), first.open("x") as file:
            file.write(str(os.getpid()))
        return first.read_text() == str(os.getpid())


class TargetSink(GatedSink):
    """The same, which waits behind each batch."""

    def __init__(self, folder: str, target: str) -> None:
        super().__init__(folder, target)


class LateFencedSink(GatedFencedSink):
    """The same with the guard ``fence``."""

    def __init__(self, folder: str, target: str) -> None:
        super().__init__(folder, target)
