"""Applications of Spark with executors of their own, whose parts can be killed: driver, executors, workers, or all."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.spark.conftest import is_running
from tests.support.waiting import wait_until

from export_queue.core.spark.archive import package_archive
from export_queue.core.spark.job import CONF

HERE = Path(__file__).parent
EXECUTORS = 2
ROWS = 400
TASKS = 4
"""Of each load."""


def shadow_home(home: Path, folder: Path) -> Path:
    """Make a home of Spark whose executors work in a test's folder, not beside Spark's own files."""
    folder.mkdir()
    for entry in home.iterdir():
        (folder / entry.name).symlink_to(entry)
    return folder


def kill(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def executors(application: str) -> list[int]:
    """The Java processes of an application's executors."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_text().split("\0") if folder.name.isdigit() else []
            if any("ExecutorBackend" in word for word in words) and application in words:
                found.append(int(folder.name))
    return found


def executor_of(worker: int) -> int:
    """The Java process of the executor that a Python worker belongs to: its daemon's parent."""
    return parent_of(parent_of(worker))


class Application:
    """A driver, which does the loads it is told, and its executors.

    :param master: Spark's master with two executors.
    :param environment: variables of every process of Spark.
    :param folder: a folder of its own.
    """

    def __init__(self, master: str, environment: Mapping[str, str], folder: Path, **settings: str) -> None:
        self.gates = folder / "gates"
        self.gates.mkdir(parents=True)
        self._cases = 0
        self._lines: queue.Queue[str] = queue.Queue()
        conf = {
            **CONF,
            "spark.master": master,
            "spark.ui.enabled": "false",
            "spark.log.level": "ERROR",
            "spark.submit.pyFiles": f"{package_archive()},{HERE / 'gates.py'}",
            "spark.executorEnv.GATES": str(self.gates),
            "spark.default.parallelism": str(TASKS),
            "spark.sql.shuffle.partitions": str(TASKS),
            "spark.executor.cores": "1",
            "spark.executor.heartbeatInterval": "2s",
            "spark.local.dir": str(folder / "local"),
            **settings,
        }
        paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
        variables = {"GATES": str(self.gates), "PYTHONPATH": os.pathsep.join(paths), "PYSPARK_PYTHON": sys.executable}
        self._log = folder / "driver.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "application.py"), json.dumps(conf)],
                env={**environment, **variables, "PYSPARK_DRIVER_PYTHON": sys.executable},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        begun = self.answer()
        self.id: str = begun["application"]
        self.java: int = begun["java"]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def answer(self, seconds: float = 120) -> dict[str, Any]:
        """What the driver says next."""
        try:
            found: dict[str, Any] = json.loads(self._lines.get(timeout=seconds))
        except queue.Empty:
            raise AssertionError(f"the driver says nothing: {self._log.read_text(errors='replace')[-3000:]}") from None
        return found

    def ask(self, what: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def wait_for_executors(self) -> None:
        def there() -> bool:
            self.ask("executors")
            return bool(self.answer()["executors"] == EXECUTORS)

        wait_until(there, "executors do not come", pause=0.2)

    def plan(self, **at: Mapping[str, Any]) -> Path:
        """Say what happens at which points from now on; returns the folder of this case."""
        self._cases += 1
        case = f"case-{self._cases}"
        (self.gates / case).mkdir()
        (self.gates / "plan.new").write_text(json.dumps({"case": case, "at": at}))
        (self.gates / "plan.new").rename(self.gates / "plan")
        return self.gates / case

    def wait_for_others(self, ended: int) -> None:
        """Wait until so many tasks of the running stage have ended."""

        def look() -> bool:
            self.ask("tasks")
            return [ended, ended + 1] in self.answer()["tasks"]

        wait_until(look, f"not {ended} tasks ended", pause=0.1)

    def kill_driver(self) -> None:
        """Kill the driver's Python; its Java ends by itself."""
        kill([self.process.pid])
        self._wait_for_the_end()

    def kill_all(self) -> None:
        """Kill every process of the application at once."""
        kill([self.process.pid, self.java, *executors(self.id)])
        self._wait_for_the_end()

    def _wait_for_the_end(self) -> None:
        self.process.wait(60)
        wait_until(lambda: not is_running(self.java), "Java outlives its driver")
        wait_until(lambda: not executors(self.id), "executors outlive their driver")
        self._reader.join(60)

    def close(self) -> None:
        if self.is_alive:
            self.kill_all()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def marks(case: Path, point: str) -> dict[int, dict[str, Any]]:
    """The attempts that came to a point, by their number."""
    found = [path for path in case.glob(f"{point}-*") if not path.suffix]
    return {int(path.name.rpartition("-")[2]): json.loads(path.read_text()) for path in found}
