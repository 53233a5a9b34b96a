"""Loads, and drains of rows and files, on a cluster whose parts die, stand still or run twice (I3, I7, I10)."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.spark.applications import ROWS, TASKS, Application, executor_of, kill, marks, parent_of
from tests.spark.clusters import Cluster, standalone
from tests.spark.conftest import Submission, Submit, is_running
from tests.spark.loading import files, values
from tests.spark.test_drain_job import job_for, read, read_plain, report_of, waiting
from tests.support import bulk
from tests.support.drawn import drawn
from tests.support.waiting import wait_until

from export_queue import MemorySink, SinkSpec, Store, drain

HERE = Path(__file__).parent
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.efficiency.enabled": "false",
}
TWINS = [
    (face, step) for face in ("call", "data source") for step in drawn(("before", "written"), about=f"twins {face}")
]
LOADED = {b"k%d" % n: b"%d" % n for n in range(ROWS)}

pytestmark = [
    pytest.mark.full("a cluster of Spark; local processes run anyway"),
    pytest.mark.timeout(400),
]


@pytest.fixture(scope="module")
def cluster(
    spark_home: Path, spark_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A master and two workers on loopback."""
    with standalone(spark_home, spark_environment, tmp_path_factory.mktemp("cluster"), {}) as started:
        yield started


@pytest.fixture
def store_url(postgres_url: str) -> str:
    """Executors on other machines could not reach a file."""
    return postgres_url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "segments"


@pytest.fixture
def open_store(store_url: str, folder: Path) -> Callable[[], Store]:
    return lambda: Store.open(store_url, segments=str(folder))


@pytest.fixture
def secret(store_url: str, tmp_path: Path) -> str:
    """The store's password, which every machine has."""
    password = tmp_path / "password"
    password.touch(mode=0o600)
    password.write_text(sa.make_url(store_url).password or "")
    return f"file:{password}"


@pytest.fixture
def copies(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'copies.db'}"


@pytest.fixture
def filled(orders: Store) -> Store:
    """The queue ``orders`` with 300 entries in files and 100 rows, some of the same keys."""
    bulk.load(orders, {f"k{n}": b'"file"' for n in range(300)}, tasks=2)
    with orders.transaction() as tx:
        tx.queue("orders").add_many((f"k{n}", "row") for n in range(250, 350))
    return orders


FILLED = {f"k{n}": '"row"' if n >= 250 else '"file"' for n in range(350)}


# -- drains ----------------------------------------------------------------------------------------------------------


class Waiting:
    """A drain on the cluster whose workers wait at their sink."""

    def __init__(self, submission: Submission, folder: Path, drain_id: str, workers: int) -> None:
        self.submission, self.folder, self.drain_id = submission, folder, drain_id
        wait_until(lambda: len(self.workers()) >= workers or submission.process.poll() is not None, "no worker came")
        assert submission.process.poll() is None, submission.output()

    def workers(self) -> list[int]:
        return [int(path.name.removeprefix("reached-")) for path in self.folder.glob("reached-*")]

    def processes(self) -> list[int]:
        """Driver, executors and workers."""
        workers = [pid for pid in self.workers() if is_running(pid)]
        found = {self.submission.driver(), self.submission.process.pid, *workers}
        return sorted(found | {parent_of(pid) for pid in workers} | {executor_of(pid) for pid in workers})

    def let_go(self) -> None:
        (self.folder / "go").touch()


@pytest.fixture
def waiting_drain(
    cluster: Cluster, store_url: str, secret: str, submit: Submit, tmp_path: Path, copies: str
) -> Callable[..., Waiting]:
    def start(sink: str, *, workers: int = 2, conf: dict[str, str] | None = None, **options: Any) -> Waiting:
        more = {"everybody": False} if workers == 1 else {}
        spec = SinkSpec(f"gated_sink:{sink}", {"folder": str(tmp_path), "target": copies, **more}, name="copies")
        job = job_for(store_url, spec, **options)
        arguments = job.arguments[0].replace("env:XQ_STORE", secret)
        job = dataclasses.replace(
            job, py_files=f"{job.py_files},{HERE / 'gated_sink.py'}", arguments=[arguments, *job.arguments[1:]]
        )
        variables = {"PYTHONPATH": str(HERE)}
        return Waiting(
            submit(job, master=cluster.master, variables=variables, conf=conf), tmp_path, job.drain_id, workers
        )

    return start


def test_an_executor_killed_between_sink_and_removal_is_repeated(
    filled: Store, waiting_drain: Callable[..., Waiting], copies: str
) -> None:
    job = waiting_drain("TargetSink", lease_seconds=60)
    worker = job.workers()[0]
    kill([executor_of(worker)])
    wait_until(lambda: not is_running(worker), "a worker outlives its executor")
    job.let_go()
    assert job.submission.wait(180) == 0, job.submission.output()
    report = report_of(filled, job.drain_id)
    assert (report.left, waiting(filled)) == (0, 0)
    assert report.stale > 0, "the killed executor had applied its batch"
    assert read(copies) == FILLED


def test_a_killed_driver_is_followed_by_a_drain_without_loss(
    filled: Store, waiting_drain: Callable[..., Waiting], copies: str
) -> None:
    job = waiting_drain("TargetSink", lease_seconds=3)
    kill([job.submission.driver()])
    assert job.submission.wait() != 0
    wait_until(lambda: not any(map(is_running, job.workers())), "workers outlive their driver")
    assert waiting(filled) == 400
    report = drain(filled, "orders", SinkSpec("sql", {"url": copies}, name="copies"), lock_timeout=60)
    assert (report.acknowledged, waiting(filled)) == (400, 0)
    assert report.stale > 0
    assert read(copies) == FILLED


def test_a_task_of_a_drain_and_its_speculative_twin_bring_each_entry_once(
    filled: Store, waiting_drain: Callable[..., Waiting], copies: str
) -> None:
    job = waiting_drain("LateSink", workers=1, conf=SPECULATION, lease_seconds=60)
    wait_until(lambda: waiting(filled) == 0, f"no twin: {job.submission.output()}", seconds=120, pause=0.2)
    job.let_go()
    assert job.submission.wait(180) == 0, job.submission.output()
    report = report_of(filled, job.drain_id)
    assert (report.left, report.dead) == (0, 0)
    assert read(copies) == FILLED


@pytest.mark.parametrize("sink", drawn(["LateSink", "LateFencedSink"], about="sinks"))
def test_executors_that_stood_still_past_their_lease_change_nothing(
    filled: Store, waiting_drain: Callable[..., Waiting], copies: str, sink: str
) -> None:
    """They have their batches ready when another drain brings newer entries."""
    is_fenced = sink == "LateFencedSink"
    options: dict[str, Any] = {"on_error": "fail"} if is_fenced else {}
    job = waiting_drain(sink, lease_seconds=3, **options)
    with stopped(job.processes()):
        with filled.transaction() as tx:
            tx.queue("orders").add_many((f"k{n}", None if n % 2 else "new") for n in range(350))
        guard = {"guard": "fence"} if is_fenced else {}
        copy = SinkSpec("sql", {"url": copies, **guard}, name="copies")
        report = drain(filled, "orders", copy, lock_timeout=60, **options)
        assert (report.acknowledged, waiting(filled)) == (750, 0)
    job.let_go()
    assert job.submission.wait(180) == 75, job.submission.output()
    assert report_of(filled, job.drain_id).acknowledged == 0
    found = read_plain(copies) if is_fenced else read(copies)
    assert found == {f"k{n}": '"new"' for n in range(0, 350, 2)}


@contextlib.contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    kill(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        kill(pids, signal.SIGCONT)


# -- loads, behind the drains, since their application keeps all cores of the cluster -------------------------------


@pytest.fixture(scope="module")
def application(
    cluster: Cluster, spark_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Application]:
    """An application on the cluster, whose slow tasks get twins."""
    started = Application(cluster.master, spark_environment, tmp_path_factory.mktemp("application"), **SPECULATION)
    yield started
    started.close()


@pytest.mark.parametrize(("face", "step"), TWINS)
def test_of_a_task_and_its_speculative_twin_one_counts(
    orders: Store, application: Application, store_url: str, secret: str, folder: Path, face: str, step: str
) -> None:
    """The first one stands still at a step, and goes on when the load has committed."""
    application.wait_for_executors()
    case = application.plan(**{step: {"act": "wait", "partition": 0}})
    url = sa.make_url(store_url)._replace(password=None).render_as_string()
    store = {"url": url, "secret": secret, "segments": str(folder)}
    application.ask({"face": face, "rows": ROWS, "tasks": TASKS, "key": "night", **store})
    assert application.answer()["error"] is None
    assert len(marks(case, step)) == 2, "no twin"
    (case / "go").touch()
    assert values(orders) == LOADED
    assert set(orders.bulk_files()) <= files(folder)
    sink = MemorySink()
    assert drain(orders, "orders", sink, sink_name="memory").acknowledged == ROWS
    assert {key: document for (_, key), document in sink.records().items()} == LOADED


@pytest.mark.parametrize("face", drawn(["call", "data source"], about="refusals"))
def test_a_row_that_is_refused_on_a_cluster_is_named_and_leaves_nothing(
    orders: Store, application: Application, store_url: str, secret: str, folder: Path, face: str
) -> None:
    application.wait_for_executors()
    application.plan()
    url = sa.make_url(store_url)._replace(password=None).render_as_string()
    store = {"url": url, "secret": secret, "segments": str(folder)}
    for bad, message in ((None, ": expected a key, found null"), ("k" * 1025, "expected 1 to 1024 bytes, found 1025")):
        application.ask({"face": face, "rows": ROWS, "tasks": TASKS, "key": "night", "bad": [bad], **store})
        error = application.answer()["error"]
        assert error is not None
        assert message in error
        assert "of partition " in error
        assert values(orders) == {}
