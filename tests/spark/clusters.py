"""A standalone cluster of Spark on loopback, as its own programs make it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import free_port
from tests.support.waiting import wait_until

HOSTS = ("127.0.0.1", "127.0.0.2")
"""Of one worker each: Spark starts no speculative copy of a task on a host that runs the task."""


@dataclass(frozen=True)
class Cluster:
    """A standalone cluster: its master's URL, the settings that its jobs need, and the folder of all its files."""

    master: str
    conf: dict[str, str]
    folder: Path


@contextlib.contextmanager
def standalone(
    spark_home: Path, spark_environment: Mapping[str, str], folder: Path, conf: dict[str, str]
) -> Iterator[Cluster]:
    """Run a master, and two workers with a core each."""
    (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in conf.items()))
    (folder / "local").mkdir()
    home = next((spark_home / "lib").glob("python*/site-packages/pyspark"))
    # Executors get nothing of the driver's environment: no modules of the tests, and no passwords.
    environment = {
        **spark_environment,
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(folder),
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_LOG_DIR": str(folder),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, *words: str, host: str) -> Path:
        log = folder / f"{name}-{host}.log"
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", host]
        command += ["--webui-port", str(free_port()), *words]
        with log.open("wb") as output:
            processes.append(
                subprocess.Popen(
                    command,
                    env={**environment, "SPARK_LOCAL_IP": host},
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )
        return log

    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    try:
        log = start("master.Master", "--port", str(port), host="127.0.0.1")
        wait_until(lambda: "I have been elected leader" in log.read_text(errors="replace"), "no master")
        for host in HOSTS:
            start("worker.Worker", "--cores", "1", "--memory", "1g", master, host=host)
        wait_until(lambda: log.read_text(errors="replace").count("Registering worker") == len(HOSTS), "no workers")
        yield Cluster(master, conf, folder)
    finally:
        for process in reversed(processes):
            try:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(20)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                process.kill()
                process.wait(20)
