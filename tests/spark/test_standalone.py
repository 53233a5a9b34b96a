"""A drain on a real standalone cluster: master, workers, executors and driver are processes of their own."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
import sqlalchemy as sa
from tests.spark.clusters import Cluster, standalone
from tests.spark.conftest import Submit
from tests.spark.test_drain_job import add, job_for, report_of, waiting
from tests.support.drawn import drawn
from tests.support.servers import free_port

from export_queue import SinkSpec, Store, StoreSpec

HERE = Path(__file__).parent


PROTECTION = {
    "spark.authenticate": "true",
    "spark.authenticate.secret": "only-for-tests",
    "spark.network.crypto.enabled": "true",
}


@pytest.fixture(scope="module", params=["plain", "protected"])
def cluster(
    request: pytest.FixtureRequest,
    spark_home: Path,
    spark_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    """A master and two workers on loopback."""
    conf = PROTECTION if request.param == "protected" else {}
    with standalone(spark_home, spark_environment, tmp_path_factory.mktemp("cluster"), conf) as started:
        yield started


@pytest.fixture
def store_url(postgres_url: str) -> str:
    """Executors on other machines could not reach a file."""
    return postgres_url


@pytest.fixture
def passwords(store_url: str, redis_server: Any) -> dict[str, str]:
    return {"XQ_STORE": sa.make_url(store_url).password or "", "XQ_REDIS": redis_server.password}


@pytest.fixture
def sink(redis_server: Any) -> SinkSpec:
    options = {"host": redis_server.host, "port": redis_server.port}
    return SinkSpec("redis", options, {"password": "env:XQ_REDIS"}, name="redis")


class Files:
    """Reads all files below some folders again and again while a block runs, and looks for texts."""

    def __init__(self, texts: Iterable[str], *folders: Path) -> None:
        self.found: set[str] = set()
        self.seen = 0
        self._texts = [text.encode() for text in texts]
        self._folders = folders
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Files:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            # folders vanish while they are walked: os.walk leaves them out, where rglob would fail
            for place, _, names in itertools.chain.from_iterable(map(os.walk, self._folders)):
                for path in (Path(place, name) for name in names):
                    with contextlib.suppress(OSError):
                        content = path.read_bytes()
                        self.seen += 1
                        self.found |= {str(path) for text in self._texts if text in content}


@pytest.mark.full("a cluster of Spark; local processes run anyway")
@pytest.mark.timeout(300)
def test_a_cluster_drains_with_the_shipped_library_and_sends_secrets_only_where_connections_are_protected(
    cluster: Cluster,
    orders: Store,
    store_url: str,
    passwords: dict[str, str],
    sink: SinkSpec,
    redis_client: Any,
    submit: Submit,
    tmp_path: Path,
) -> None:
    add(orders, {f"k{i}": i for i in range(300)})
    (tmp_path / "local").mkdir()
    conf = {**cluster.conf, "spark.local.dir": str(tmp_path / "local")}

    def run(**options: Any) -> tuple[int, str, str]:
        job = job_for(store_url, sink, exporter="exports:with_origin", **options)
        job = dataclasses.replace(job, py_files=f"{job.py_files},{HERE / 'exports.py'}")
        submission = submit(job, master=cluster.master, variables=passwords, conf=conf)
        return submission.wait(), submission.output(), job.drain_id

    with Files(passwords.values(), cluster.folder, tmp_path / "local") as files:
        status, output, drain_id = run()
    assert files.seen
    assert files.found == set()
    if not cluster.conf:
        assert status == 1, output
        assert "spark.network.crypto.enabled=true" in output
        assert "env:XQ_REDIS, env:XQ_STORE" in output
        assert waiting(orders) == 300
        # references that executors follow by themselves are no secrets
        folder = tmp_path / "secrets"
        folder.mkdir()
        for name, value in passwords.items():
            (folder / name).touch(mode=0o600)
            (folder / name).write_text(value)
        store = StoreSpec(url=without_password(store_url), secret=f"file:{folder / 'XQ_STORE'}")
        sink = dataclasses.replace(sink, secrets={"password": f"file:{folder / 'XQ_REDIS'}"})
        status, output, drain_id = run(store=store)
    assert status == 0, output
    report = report_of(orders, drain_id)
    assert (report.acknowledged, report.dead, waiting(orders)) == (300, 0, 0)
    documents = {key: orjson.loads(redis_client.get(key)) for key in redis_client.scan_iter("orders:*")}
    assert {key.decode(): document["value"] for key, document in documents.items()} == {
        f"orders:k{i}": i for i in range(300)
    }
    assert all(".zip/export_queue/core" in document["library"] for document in documents.values())


def without_password(url: str) -> str:
    return sa.make_url(url)._replace(password=None).render_as_string()


@pytest.mark.full("a start of Spark")
def test_passwords_of_connections_that_a_cluster_would_send_in_clear_are_refused_before_it_is_spoken_to(
    orders: Store, store_url: str, sink: SinkSpec, submit: Submit
) -> None:
    sink = dataclasses.replace(sink, secrets={"password": "env:XQ_SINK_REDIS_PASSWORD"})
    job = job_for(store_url, sink, start_timeout=60)
    variables = {"XQ_STORE": sa.make_url(store_url).password or "", "XQ_SINK_REDIS_PASSWORD": "s3cr3t-4711"}
    submission = submit(job, master=f"spark://127.0.0.1:{free_port()}", variables=variables)  # nobody listens there
    assert submission.wait() == 1
    output = submission.output()
    assert "env:XQ_SINK_REDIS_PASSWORD can be looked up only on the driver's machine" in output
    assert "spark.authenticate=true" in output
    assert "s3cr3t-4711" not in output


@pytest.mark.full("a cluster of Spark; local processes run anyway")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("cluster", ["plain"], indirect=True)
@pytest.mark.parametrize(
    ("variables", "conf", "status", "message"),
    drawn(
        [
            # the driver has the exporter's module, executors do not
            ({"PYTHONPATH": str(HERE)}, {}, 1, "executors' Python, .*cannot import exports \\(ModuleNotFoundError"),
            ({"PYSPARK_PYTHON": "/nowhere/python3"}, {}, 1, "no program /nowhere/python3, their Python"),
            ({}, {"spark.executor.memory": "900g"}, 75, "not started within 15 seconds: no executor came"),
        ],
        2,
        about="refusals",
    ),
)
def test_a_cluster_that_cannot_run_a_drain_is_told_apart_in_one_line(
    cluster: Cluster,
    orders: Store,
    store_url: str,
    passwords: dict[str, str],
    sink: SinkSpec,
    submit: Submit,
    variables: dict[str, str],
    conf: dict[str, str],
    status: int,
    message: str,
) -> None:
    add(orders, {"a": 1})
    exporter = "exports:with_origin" if "PYTHONPATH" in variables else None
    job = job_for(store_url, sink, exporter=exporter, start_timeout=15 if conf else 300)
    submission = submit(job, master=cluster.master, variables={**passwords, **variables}, conf={**cluster.conf, **conf})
    assert submission.wait() == status, submission.output()
    assert re.search(message, submission.output())
    assert "Traceback" not in submission.output()
    report = report_of(orders, job.drain_id)
    assert report.problem is not None
    assert report.problem.transient is (status == 75)
    assert waiting(orders) == 1


@pytest.mark.full("a submission of Spark; the job of a drain runs anyway")
def test_a_master_that_is_down_is_named_at_once(
    orders: Store, store_url: str, passwords: dict[str, str], sink: SinkSpec, submit: Submit
) -> None:
    master = f"spark://127.0.0.1:{free_port()}"
    submission = submit(job_for(store_url, sink), master=master, variables=passwords)
    assert submission.wait() == 75, submission.output()
    assert f"Spark's master {master} does not answer" in submission.output()
    assert "SparkEnv" not in submission.output()


@pytest.mark.full("a submission of Spark; the job of a drain runs anyway")
def test_a_master_that_does_not_answer_is_waited_for_no_longer_than_allowed(
    orders: Store, store_url: str, passwords: dict[str, str], sink: SinkSpec, submit: Submit
) -> None:
    job = job_for(store_url, sink, start_timeout=8)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        submission = submit(job, master=f"spark://127.0.0.1:{silent.getsockname()[1]}", variables=passwords)
        assert submission.wait() == 75, submission.output()
    assert "not started within 8 seconds" in submission.output()
    assert "Traceback" not in submission.output()
