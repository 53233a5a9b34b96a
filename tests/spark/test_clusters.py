"""The page about clusters, followed from a worker on which nothing is installed; executors that come and go."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.spark.conftest import is_running
from tests.spark.test_cluster_submissions import blocks
from tests.support.environments import Environment
from tests.support.s3 import S3Server
from tests.support.servers import free_port
from tests.support.waiting import wait_until

from export_queue import DrainReport, Store
from export_queue.core.spark.archive import package_archive

SETTINGS = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.initialExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "5s",
    "spark.decommission.enabled": "true",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.minTaskRuntime": "1ms",
    "spark.log.level": "WARN",
}
SPECULATION = '"--conf=spark.speculation=true"'
HELD = """import os
from export_queue import Put

def held(entry):
    if entry.key == "order-500":
        try:
            open({marker!r}, "x").close()
        except FileExistsError:
            pass  # a later attempt
        else:
            with open({marker!r} + ".part", "w") as file:
                file.write(str(os.getpid()))
            os.rename({marker!r} + ".part", {marker!r} + ".whole")
            open({fifo!r}).read()
    yield Put("held", entry.key, {{"total": entry.value["total"]}})
"""


@pytest.fixture(scope="module")
def environment(spark_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What the page's ``pip install`` gives, on each machine."""
    python = spark_home / "bin" / "python"
    if python.resolve() != Path(sys.executable).resolve():
        pytest.skip("Spark's environment has another Python than the tests")
    line = "pip install 'airflow-provider-export-queue[spark,postgres,redis]'"
    page = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text("utf-8")
    assert line in page
    return Environment(tmp_path_factory.mktemp("machine") / "env", ["spark", "postgres", "redis"], package_archive())


class Machine:
    """Where jobs are submitted and workers run; the shells of both have nothing of this process."""

    def __init__(self, folder: Path, environment: Environment, spark_home: Path) -> None:
        self.folder, self.environment = folder, environment
        self.master = f"spark://127.0.0.1:{free_port()}"
        self.submit = spark_home / "bin" / "spark-submit"
        self.home = next((spark_home / "lib").glob("python*/site-packages/pyspark"))
        kept = {
            name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME", "JAVA_TOOL_OPTIONS") if name in os.environ
        }
        python = str(environment.python)
        self.variables = kept | {
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONF_DIR": str(folder),
            "SPARK_WORKER_DIR": str(folder / "work"),
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
        }
        (folder / "local").mkdir()
        (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in SETTINGS.items()))
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, ready: str, *words: str, **variables: str) -> None:
        log = self.folder / f"{name}.log"
        command = [str(self.home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *words]
        environment = {**self.variables, "SPARK_HOME": str(self.home), **variables}
        with log.open("wb") as output:
            self.processes.append(
                subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
            )
        wait_until(lambda: ready in log.read_text(errors="replace"), f"no {name}")

    def stop(self) -> None:
        for process in reversed(self.processes):
            try:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(20)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                process.kill()
                process.wait(20)


@pytest.fixture(scope="module")
def machine(
    environment: Environment, spark_home: Path, tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server
) -> Iterator[Machine]:
    """A master and a worker with two cores, whose environment has the keys of the object store."""
    found = Machine(tmp_path_factory.mktemp("cluster"), environment, spark_home)
    port = found.master.rpartition(":")[2]
    try:
        where = ("--host", "127.0.0.1", "--webui-port", str(free_port()))
        found.start("master.Master", "I have been elected leader", *where, "--port", port)
        keys = {**s3_server.owner.variables, "AWS_EC2_METADATA_DISABLED": "true"}
        found.variables |= keys
        where = ("--host", "127.0.0.1", "--webui-port", str(free_port()), "--cores", "2", "--memory", "1100m")
        found.start("worker.Worker", "Successfully registered with master", *where, found.master)
        yield found
    finally:
        found.stop()


class Page:
    """The page's programs, with this machine's names in the place of the page's."""

    def __init__(self, machine: Machine, folder: Path, replaced: dict[str, str]) -> None:
        self.machine, self.folder, self.replaced = machine, folder, replaced
        self.log = folder / "submission.log"
        (self.load,) = map(self._here, blocks("The first load"))
        exporter, self.drain = map(self._here, blocks("The first drain"))
        (folder / "my_exports.py").write_text(exporter)
        (folder / "bin").mkdir()
        program = folder / "bin" / "spark-submit"
        program.write_text(f'#!/bin/sh\nexec {machine.submit} "$@"\n')
        program.chmod(0o755)

    def _here(self, block: str) -> str:
        for page, here in self.replaced.items():
            block = block.replace(page, here)
        return block

    def first_load(self) -> str:
        program = self.folder / "first_load.py"
        program.write_text(self.load)
        return self._run([str(self.machine.submit), "--master", self.machine.master, str(program)])

    def first_drain(self, *options: str) -> str:
        program = self.folder / "first_drain.py"
        added = ", ".join(("", SPECULATION, *map(repr, options)))
        code, count = re.subn(r"(my_exports\.py\")\)$", rf"\1{added})", self.drain, flags=re.MULTILINE)
        assert count == 1
        program.write_text(code)
        return self._run([str(self.machine.environment.python), str(program)])

    def started(self, code: str) -> subprocess.Popen[bytes]:
        program = self.folder / "drain.py"
        program.write_text(code)
        return self._start([str(self.machine.environment.python), str(program)])

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        variables = self.machine.variables | {"PATH": f"{self.folder / 'bin'}:{self.machine.variables['PATH']}"}
        with self.log.open("wb") as output:
            return subprocess.Popen(
                command, env=variables, stdout=output, stderr=output, cwd=self.folder, start_new_session=True
            )

    def _run(self, command: list[str]) -> str:
        process = self._start(command)
        try:
            status = process.wait(150)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        output = self.log.read_text(errors="replace")
        return output if status == 0 else f"FAILED {output}"


@pytest.fixture
def page(
    machine: Machine,
    tmp_path: Path,
    postgres_url: str,
    redis_server: Any,
    redis_client: Any,
    s3_server: S3Server,
    s3_bucket: str,
) -> Page:
    """The page, whose secrets lie in files."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    url = sa.make_url(postgres_url)._replace(password=None)
    for name, value in (("store", sa.make_url(postgres_url).password or ""), ("redis", redis_server.password)):
        (secrets / name).touch(mode=0o600)
        (secrets / name).write_text(value)
    return Page(
        machine,
        tmp_path,
        {
            "spark://master.example:7077": machine.master,
            "postgresql+psycopg://exports@db.example/exports": url.render_as_string(),
            "file:/etc/export-queue/": f"file:{secrets}/",
            "s3://exports/queue?region=eu-west-1": s3_server.place(s3_bucket),
            '{"host": "redis.example"}': repr({"host": redis_server.host, "port": redis_server.port}),
        },
    )


def report_of(store: Store) -> DrainReport:
    (found,) = store.reports(limit=1)
    report = DrainReport.from_dict(found)
    report.check()
    return report


@pytest.mark.full("a cluster of Spark and several submissions; local processes run anyway")
@pytest.mark.timeout(400)
def test_the_page_leads_from_an_empty_worker_to_the_first_drain(
    page: Page, machine: Machine, postgres_url: str, redis_client: Any, s3_server: S3Server, s3_bucket: str
) -> None:
    output = page.first_load()
    assert not output.startswith("FAILED"), output
    with Store.open(postgres_url) as store:
        assert sum(unit.entries for unit in store.backlog("orders")) == 1000
        assert s3_server.objects(s3_bucket).keys() == {
            one.partition("?")[0].removeprefix(f"s3://{s3_bucket}/") for one in store.bulk_files()
        }
        machine.environment.uninstall("redis")
        output = page.first_drain()
        machine.environment.install("redis")
        assert output.startswith("FAILED")
        assert f"Python, {machine.environment.python} " in output
        assert "cannot import redis (ModuleNotFoundError: No module named 'redis')" in output
        assert not list(redis_client.scan_iter("*"))
        output = page.first_drain()
        assert not output.startswith("FAILED"), output
        report = report_of(store)
        assert (report.acknowledged, report.dead, report.left) == (1000, 0, 0)
        assert store.backlog("orders") == []
    found = {key.decode(): redis_client.get(key) for key in redis_client.scan_iter("by_total:*")}
    expected = {f"by_total:{n:04}/order-{n}": b'{"order":"order-%d"}' % n for n in range(1000)}
    assert found == expected


@pytest.mark.full("a cluster of Spark and several submissions; local processes run anyway")
@pytest.mark.timeout(400)
def test_an_executor_that_is_killed_in_a_drain_costs_nothing_but_time(
    page: Page, tmp_path: Path, postgres_url: str, redis_client: Any
) -> None:
    with Store.open(postgres_url) as store:
        store.create()
        store.configure_queue("orders")
        with store.transaction() as tx:
            for n in range(1000):
                tx.queue("orders").add(f"order-{n}", {"total": n})
    marker, fifo = tmp_path / "marker", tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "my_exports.py").write_text(HELD.format(marker=str(marker), fifo=str(fifo)))
    process = page.started(page.drain.replace("my_exports:by_total", "my_exports:held"))
    try:
        whole = Path(f"{marker}.whole")
        wait_until(lambda: whole.exists() or process.poll() is not None, "no task came to the entry")
        assert whole.exists(), page.log.read_text(errors="replace")
        worker = int(whole.read_text())
        executor = _java_above(worker)
        os.kill(executor, signal.SIGKILL)
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: not is_running(executor), "the executor lives")
        assert process.wait(150) == 0, page.log.read_text(errors="replace")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    with Store.open(postgres_url) as store:
        report = report_of(store)
        assert (report.acknowledged, report.dead, report.left) == (1000, 0, 0)
        assert store.backlog("orders") == []
    assert len(list(redis_client.scan_iter("held:*"))) == 1000


def _java_above(pid: int) -> int:
    while Path(f"/proc/{pid}/exe").resolve().name != "java":
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid
