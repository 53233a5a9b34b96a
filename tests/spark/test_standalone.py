"""A drain on a real standalone cluster: master, worker, executors and driver are processes of their own."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import sqlalchemy as sa
from tests.spark.conftest import Submit
from tests.spark.test_drain_job import add, job_for, report_of, waiting
from tests.support.servers import free_port
from tests.support.waiting import wait_until

from export_queue.core.client import Store
from export_queue.core.sinks import SinkSpec

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def cluster(
    spark_home: Path, spark_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A master and one worker with two cores on loopback; the master's URL."""
    folder = tmp_path_factory.mktemp("cluster")
    home = next((spark_home / "lib").glob("python*/site-packages/pyspark"))
    # Executors get nothing of the driver's environment: no modules of the tests, and no passwords.
    environment = spark_environment | {
        "SPARK_HOME": str(home),
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOG_DIR": str(folder),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, *words: str) -> Path:
        log = folder / f"{name}.log"
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *words]
        with log.open("wb") as output:
            processes.append(
                subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
            )
        return log

    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    try:
        log = start("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(free_port()))
        wait_until(lambda: "I have been elected leader" in log.read_text(errors="replace"), "no master")
        start(
            *("worker.Worker", "--host", "127.0.0.1", "--webui-port", str(free_port())),
            *("--cores", "2", "--memory", "1g", master),
        )
        wait_until(lambda: "Registering worker" in log.read_text(errors="replace"), "no worker")
        yield master
    finally:
        for process in reversed(processes):
            try:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(20)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                process.kill()
                process.wait(20)


@pytest.fixture
def store_url(postgres_url: str) -> str:
    """Executors on other machines could not reach a file."""
    return postgres_url


@pytest.fixture
def passwords(store_url: str, redis_server: Any) -> dict[str, str]:
    return {"XQ_STORE": sa.make_url(store_url).password or "", "XQ_REDIS": redis_server.password}


@pytest.mark.full("a cluster of Spark; local processes run anyway")
@pytest.mark.timeout(300)
def test_a_cluster_drains_with_the_shipped_library_and_secrets_of_the_driver_and_names_what_executors_lack(
    cluster: str,
    orders: Store,
    store_url: str,
    passwords: dict[str, str],
    redis_server: Any,
    redis_client: Any,
    submit: Submit,
) -> None:
    options = {"host": redis_server.host, "port": redis_server.port}
    sink = SinkSpec("redis", options, {"password": "env:XQ_REDIS"}, name="redis")
    add(orders, {f"k{i}": i for i in range(300)})

    # the driver has the exporter's module, executors do not
    job = job_for(store_url, sink, exporter="exports:with_origin")
    submission = submit(job, master=cluster, variables={"PYTHONPATH": str(HERE), **passwords})
    assert submission.wait() == 1, submission.output()
    assert "executors cannot import exports" in submission.output()
    assert waiting(orders) == 300

    job = job_for(store_url, sink, exporter="exports:with_origin")
    job = dataclasses.replace(job, py_files=f"{job.py_files},{HERE / 'exports.py'}")
    submission = submit(job, master=cluster, variables=passwords)
    assert submission.wait() == 0, submission.output()
    report = report_of(orders, job.drain_id)
    assert (report.acknowledged, report.dead, waiting(orders)) == (300, 0, 0)
    documents = {key: orjson.loads(redis_client.get(key)) for key in redis_client.scan_iter("orders:*")}
    assert {key.decode(): document["value"] for key, document in documents.items()} == {
        f"orders:k{i}": i for i in range(300)
    }
    assert all(".zip/export_queue/core" in document["library"] for document in documents.values())
