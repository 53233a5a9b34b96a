"""Spark as users start it: ``spark-submit`` as a program, in an environment of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import wait_until

from export_queue import DrainJob, Store
from export_queue.core.spark.job import QUICK_CONF as CONF

ROOT = Path(__file__).parents[2]


def children(pid: int) -> dict[int, str]:
    """Processes whose parent is this one, with their command lines."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == pid:
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def is_running(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_driver(command: str) -> bool:
    """Tell by its command line whether a process is the driver's Python."""
    program, _, arguments = command.partition(" ")
    return "python" in program and "_main.py" in arguments


class Submission:
    """One ``spark-submit``; its own pid is that of Java, whose child is the driver's Python."""

    def __init__(
        self, command: list[str], environment: Mapping[str, str], log: Path, terminal: int | None = None
    ) -> None:
        self.command = command
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT if terminal is None else terminal,
                start_new_session=True,
            )

    def driver(self) -> int:
        """The pid of the driver's Python, once it runs."""
        found: list[int] = []

        def look() -> bool:
            # spark-submit's launcher, a Java program, has the same words on its command line for a moment
            commands = children(self.process.pid)
            found[:] = [pid for pid, command in commands.items() if is_driver(command)]
            return bool(found)

        wait_until(look, f"no driver came: {self.output()}")
        return found[0]

    def wait(self, seconds: float = 90) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"spark-submit hangs: {self.output()}") from None

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def discard(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # the session is its own: Java, driver and workers
        self.process.wait(30)


@pytest.fixture(scope="session")
def spark_home() -> Path:
    """The environment that has Spark."""
    home = Path(os.environ.get("EXPORT_QUEUE_SPARK_HOME", ROOT / ".venv-spark"))
    if not (home / "bin" / "spark-submit").exists():
        pytest.skip(f"no Spark in {home}: ./run setup makes it")
    if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        pytest.skip("Spark needs Java, and there is none on PATH")
    return home


@pytest.fixture(scope="session")
def spark_environment(spark_home: Path) -> dict[str, str]:
    """Variables of every Spark process."""
    python = str(spark_home / "bin" / "python")
    kept = {name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "PYTHONPATH")}
    return kept | {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}


Submit = Callable[..., Submission]


@pytest.fixture
def submit(spark_home: Path, spark_environment: dict[str, str], tmp_path: Path) -> Iterator[Submit]:
    """Start drain jobs; whatever is left of them is killed at the end."""
    started: list[Submission] = []

    def start(
        job: DrainJob,
        *,
        master: str = "local[2]",
        variables: Mapping[str, str] | None = None,
        conf: Mapping[str, str] | None = None,
        parent: Sequence[str] = (),
        parent_variables: Mapping[str, str] | None = None,
        terminal: int | None = None,
    ) -> Submission:
        settings = [word for item in {**job.conf, **(conf or {})}.items() for word in ("--conf", "=".join(item))]
        assert job.py_files is not None
        command = [str(spark_home / "bin" / "spark-submit"), "--master", master, "--py-files", job.py_files]
        command += [*settings, job.application, *job.arguments]
        log = tmp_path / f"submission-{len(started)}.log"
        environment = {**spark_environment, **(variables or {})}
        if parent:
            # what is for the parent alone is taken off again in front of spark-submit
            restored = [f"{name}={environment.get(name, '')}" for name in parent_variables or {}]
            command = [*parent, "env", *restored, *command]
        started.append(Submission(command, {**environment, **(parent_variables or {})}, log, terminal))
        return started[-1]

    yield start
    for one in started:
        one.discard()


@pytest.fixture(scope="session")
def spark(spark_home: Path) -> Iterator[Any]:
    """A session of Spark in this process, whose tasks are tried four times."""
    if importlib.util.find_spec("pyspark.daemon") is None or importlib.util.find_spec("pandas") is None:
        pytest.skip("this Python has no classic PySpark with pandas: ./run test takes .venv-spark")
    from pyspark.sql import SparkSession

    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    settings = {**CONF, "spark.log.level": "ERROR", "spark.sql.shuffle.partitions": "2"}
    builder = SparkSession.builder.master("local[2,4]").config(map=settings)
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def orders(store: Store) -> Store:
    """A store with a small queue ``orders`` of four units."""
    store.configure_queue("orders", buckets=20, buckets_per_range=5)
    return store
