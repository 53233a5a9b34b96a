"""Followers on Spark: one application, whose driver goes on, and a job each time that something has come."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import sqlalchemy as sa
from tests.spark.conftest import Submission, Submit, children, is_running
from tests.spark.test_drain_job import add, job_for, waiting
from tests.support.servers import PostgresServer, RedisServer
from tests.support.waiting import PATIENCE, wait_until

from export_queue import (
    DrainReport,
    LeaseLost,
    Owner,
    SinkSpec,
    SparkJobFailed,
    Store,
    StoreSpec,
    StoreUnavailable,
    drain,
)
from export_queue.core.drain import DrainRequest, follower_options
from export_queue.core.locks import holders
from export_queue.core.spark import follow as following
from export_queue.core.spark.carried_secrets import CarriedSecrets
from export_queue.core.spark.engine import JOB_GROUP, SparkEngine

HERE = Path(__file__).parent


def held(store: Store) -> int:
    queue = store.queue("orders")
    with store.database.read() as work:
        return len(holders(work, queue, queue.units()))


# -- in Spark's session of the tests ---------------------------------------------------------------------------------


def engine_of(context: Any, orders: Store, url: str, sink: SinkSpec, request: DrainRequest) -> SparkEngine:
    return SparkEngine(context, orders.database, StoreSpec(url=url), sink, request, None, CarriedSecrets())


class Following:
    """A follower in a thread of this process."""

    def __init__(self, store: Store, engine: SparkEngine) -> None:
        self.report: DrainReport | None = None
        self.error: BaseException | None = None
        self.stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(store, engine), daemon=True)
        self._thread.start()

    def _run(self, store: Store, engine: SparkEngine) -> None:
        try:
            self.report = following.follow_with(store, engine, engine.request, stop=self.stop.is_set)
        except BaseException as error:
            self.error = error

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def ended(self) -> DrainReport:
        self._thread.join(PATIENCE)
        assert self.has_ended, "the follower did not end"
        if self.error is not None:
            raise self.error
        assert self.report is not None
        self.report.check()
        return self.report

    def stopped(self) -> DrainReport:
        self.stop.set()
        return self.ended()


@pytest.fixture
def store_url(sqlite_url: str) -> str:
    """What differs between the kinds of stores is below the room of drains."""
    return sqlite_url


Follow = Callable[..., Following]


@pytest.fixture
def follow(orders: Store, store_url: str, tmp_path: Path, spark: Any) -> Iterator[Follow]:
    """Start followers, whose tasks stop behind each batch until there is a file ``go``."""
    spark.sparkContext.addPyFile(str(HERE / "gated_sink.py"))
    started = []

    def start(**options: Any) -> Following:
        sink = SinkSpec(
            "gated_sink:GatedSink", {"folder": str(tmp_path), "url": f"sqlite:///{tmp_path / 'copies.db'}"}, name="s"
        )
        request = DrainRequest.of("orders", "s", follower_options(options))  # type: ignore[arg-type]
        started.append(Following(orders, engine_of(spark.sparkContext, orders, store_url, sink, request)))
        return started[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        yield start
    open_gate(tmp_path)
    for one in started:
        one.stop.set()
        with contextlib.suppress(Exception):
            one.ended()


def open_gate(folder: Path) -> None:
    (folder / "go").touch()


def workers(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("reached-")) for path in folder.glob("reached-*")]


def copies(folder: Path) -> dict[str, str]:
    engine = sa.create_engine(f"sqlite:///{folder / 'copies.db'}", poolclass=sa.NullPool)
    with engine.connect() as connection:
        return {row[0]: row[1] for row in connection.execute(sa.text("select * from orders_live"))}


def await_empty(store: Store, follower: Following) -> None:
    wait_until(lambda: not waiting(store) or follower.has_ended, "entries wait")
    if follower.error is not None:
        raise follower.error


class Jobs:
    """The jobs since this was made."""

    def __init__(self, spark: Any) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._old = self._ids()

    def _ids(self) -> set[int]:
        return set(self._tracker.getJobIdsForGroup(JOB_GROUP))

    def tasks(self) -> list[int]:
        """The number of tasks of each."""
        found = [self._tracker.getJobInfo(number) for number in self._ids() - self._old]
        stages = [self._tracker.getStageInfo(number) for job in found if job for number in job.stageIds]
        return [stage.numTasks for stage in stages if stage]


@pytest.mark.full("some jobs of Spark; the job of a drain runs anyway")
def test_few_entries_are_the_work_of_one_task_and_many_are_shared_out(
    orders: Store, follow: Follow, tmp_path: Path, spark: Any
) -> None:
    """The ranges are no neighbours, so that they are claimed apart."""
    open_gate(tmp_path)
    add(orders, {f"k{i}": i for i in range(200)})
    jobs = Jobs(spark)
    follower = follow(ranges=[[0, 5], [10, 15]], drain_id="f")
    elsewhere = sum(unit.entries for unit in orders.backlog("orders") if unit.range.first in (5, 15))
    wait_until(lambda: waiting(orders) == elsewhere or follower.has_ended, "entries wait")
    assert set(jobs.tasks()) == {1}
    more = Jobs(spark)
    add(orders, {f"m{i}": i for i in range(90_000)})
    wait_until(
        lambda: (
            not any(unit.entries for unit in orders.backlog("orders") if unit.range.first in (0, 10))
            or follower.has_ended
        ),
        "entries wait",
    )
    report = follower.stopped()
    assert max(more.tasks()) == 2
    assert (report.left, report.dead) == (0, 0)
    (stored,) = map(DrainReport.from_dict, orders.reports(queue_id="orders"))
    assert (stored.drain_id, stored.acknowledged) == ("f-1", report.acknowledged)
    assert held(orders) == 0


@pytest.mark.full("some jobs of Spark; the job of a drain runs anyway")
def test_the_tasks_of_a_follower_end_between_two_chunks_when_their_round_is_over(
    orders: Store, follow: Follow, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "ROUND_SECONDS", 1e-6)
    open_gate(tmp_path)
    add(orders, {f"k{i}": i for i in range(100)})
    jobs = Jobs(spark)
    follower = follow(chunk_rows=10)
    await_empty(orders, follower)
    report = follower.stopped()
    assert report.acknowledged == 100
    assert len(jobs.tasks()) >= 3, "one job has brought everything"
    assert copies(tmp_path) == {f"k{i}": str(i) for i in range(100)}


@pytest.mark.full("some jobs of Spark; the job of a drain runs anyway")
def test_a_follower_on_spark_survives_its_workers(orders: Store, follow: Follow, tmp_path: Path) -> None:
    add(orders, {f"k{i}": i for i in range(50)})
    follower = follow()
    wait_until(lambda: workers(tmp_path) or follower.has_ended, "no worker came")
    os.kill(workers(tmp_path)[0], signal.SIGKILL)
    open_gate(tmp_path)
    await_empty(orders, follower)
    report = follower.stopped()
    assert (report.acknowledged, report.stale > 0) == (50, True), "the killed worker had applied its batch"
    assert held(orders) == 0


@pytest.mark.full("a session of Spark; a time limit ends a follower without Spark, too")
def test_a_time_limit_ends_a_follower_on_spark(orders: Store, follow: Follow, tmp_path: Path) -> None:
    open_gate(tmp_path)
    add(orders, {f"k{i}": i for i in range(50)})
    report = follow(time_limit=1.0).ended()
    assert 1.0 <= report.seconds < PATIENCE
    assert report.acknowledged + waiting(orders) == 50
    assert held(orders) == 0


@pytest.mark.full("some jobs of Spark; the job of a drain runs anyway")
def test_a_newer_attempt_ends_a_follower_on_spark_whose_tasks_remove_nothing_more(
    orders: Store, follow: Follow, tmp_path: Path
) -> None:
    add(orders, {f"k{i}": i for i in range(50)})
    follower = follow(owner=Owner("task", "old"))
    wait_until(lambda: workers(tmp_path) or follower.has_ended, "no worker came")
    sink = SinkSpec("sql", {"url": f"sqlite:///{tmp_path / 'copies.db'}"}, name="s")
    assert drain(orders, "orders", sink, owner=Owner("task", "new")).acknowledged == 50
    open_gate(tmp_path)
    with pytest.raises(LeaseLost, match="revoked, or taken over"):
        follower.ended()


@pytest.mark.full("some jobs of Spark; the job of a drain runs anyway")
def test_a_job_that_hangs_does_not_keep_a_follower_from_its_end(
    orders: Store, follow: Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that waits for executors."""
    for name in ("ROUND_SECONDS", "LATE_SECONDS"):
        monkeypatch.setattr(following, name, 0.1)
    add(orders, {f"k{i}": i for i in range(50)})
    follower = follow()
    wait_until(lambda: workers(tmp_path) or follower.has_ended, "no worker came")
    report = follower.stopped()
    assert (report.acknowledged, waiting(orders), held(orders)) == (0, 50, 0)


class NoSpark:
    """A connection to Spark whose Java has gone."""

    defaultParallelism = 2

    def broadcast(self, value: object) -> object:
        raise ConnectionRefusedError("Connection refused")


def test_a_follower_whose_application_spark_has_ended_says_so_and_that_trying_again_may_help(
    orders: Store, store_url: str, tmp_path: Path
) -> None:
    add(orders, {"k": 1})
    sink = SinkSpec("sql", {"url": f"sqlite:///{tmp_path / 'copies.db'}"}, name="s")
    request = DrainRequest.of("orders", "s", follower_options({"time_limit": PATIENCE}))
    context: Any = NoSpark()
    engine = engine_of(context, orders, store_url, sink, request)
    with pytest.raises(SparkJobFailed, match="Spark has ended the application of the follower: Connection refused"):
        following.follow_with(orders, engine, request, stop=lambda: False)
    assert SparkJobFailed.transient
    assert (waiting(orders), held(orders)) == (1, 0)


# -- one application, through spark-submit ---------------------------------------------------------------------------


@pytest.fixture
def servers() -> Iterator[tuple[PostgresServer, RedisServer]]:
    """Servers of one test alone, which forget nothing that they acknowledged."""
    with contextlib.ExitStack() as stack:
        try:
            own = PostgresServer(), RedisServer({"appendonly": "yes", "appendfsync": "always"})
        except FileNotFoundError as missing:
            pytest.skip(str(missing))
        yield stack.enter_context(own[0]), stack.enter_context(own[1])


@pytest.fixture
def far(servers: tuple[PostgresServer, RedisServer]) -> Iterator[Store]:
    with Store.open(servers[0].url(servers[0].create_database())) as store:
        store.create()
        store.configure_queue("orders", buckets=20, buckets_per_range=5)
        yield store


Start = Callable[..., Submission]


@pytest.fixture
def start(
    far: Store, servers: tuple[PostgresServer, RedisServer], submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> Start:
    """Submit a follower of the queue."""
    for name, one in zip(("XQ_STORE", "XQ_REDIS"), servers, strict=True):
        monkeypatch.setenv(name, one.password)

    def started(master: str, **options: Any) -> Submission:
        url = servers[0].url(far.database.engine.url.database or "")
        job = job_for(url, redis_of(servers[1]), follow=True, **options)
        variables = {name: os.environ[name] for name in ("XQ_STORE", "XQ_REDIS")}
        return submit(job, master=master, variables=variables, conf={"spark.executor.memory": "512m"})

    return started


def redis_of(server: RedisServer) -> SinkSpec:
    options = {"host": server.host, "port": server.port, "socket_timeout": 2, "socket_connect_timeout": 2}
    return SinkSpec("redis", options, {"password": "env:XQ_REDIS"}, name="redis")


def executors(java: int) -> list[int]:
    return [pid for pid, command in children(java).items() if "CoarseGrainedExecutorBackend" in command]


def records(server: RedisServer) -> int:
    with redis.Redis(host=server.host, port=server.port, password=server.password) as client:
        return sum(1 for _ in client.scan_iter("orders:*", count=1000))


@pytest.mark.full("an application of Spark that outlives its servers")
def test_a_follower_on_spark_survives_servers_and_executors_shares_its_queue_and_ends_by_sigterm(
    far: Store, servers: tuple[PostgresServer, RedisServer], start: Start
) -> None:
    postgres, server = servers
    submission = start("local-cluster[1,2,512]", drain_id="f")
    brought = 0

    def added() -> bool:
        nonlocal brought
        try:
            add(far, {f"k{i}": i for i in range(brought, brought + 50)})
        except StoreUnavailable:
            return False
        brought += 50
        return True

    def bring(when: str) -> None:
        wait_until(added, "the store does not come back")
        wait_until(
            lambda: records(server) == brought or submission.process.poll() is not None,
            f"{when}: entries wait",
            seconds=2 * PATIENCE,  # an executor has to start
        )
        assert submission.process.poll() is None, submission.output()

    try:
        bring("at first")
        server.stop()
        server.start()
        bring("after a restart of the sink")
        postgres.stop()
        postgres.start()
        bring("after a restart of the store")
        os.kill(executors(submission.process.pid)[0], signal.SIGKILL)
        bring("after the loss of an executor")
    except AssertionError as error:
        raise AssertionError(submission.output()) from error
    assert added()
    beside = drain(far, "orders", redis_of(server), lock_timeout=PATIENCE)
    assert records(server) == brought
    driver = submission.driver()
    os.kill(driver, signal.SIGTERM)
    assert submission.wait() == 0, submission.output()
    assert not is_running(driver)
    assert re.search(r"^orders \[0, 20\) → redis: \d+ read = ", submission.output(), re.MULTILINE)
    reports = {one["drain_id"].partition("-")[0] for one in far.reports(queue_id="orders")}
    assert reports - {beside.drain_id} == {"f"}
    assert waiting(far) == held(far) == 0


@pytest.mark.full("a submission of Spark; the job of a drain runs anyway")
def test_a_follower_whose_spark_submit_is_killed_gives_its_leases_back_and_ends_itself(
    far: Store, servers: tuple[PostgresServer, RedisServer], start: Start
) -> None:
    submission = start("local[2]", lease_seconds=600)
    add(far, {"k": 1})
    wait_until(lambda: records(servers[1]) == 1 or submission.process.poll() is not None, "the entry waits")
    driver = submission.driver()
    add(far, {f"m{i}": i for i in range(20_000)})
    wait_until(lambda: held(far), "nothing is claimed")
    os.kill(submission.process.pid, signal.SIGKILL)
    submission.wait()
    wait_until(lambda: not is_running(driver), "the orphaned driver goes on")
    assert held(far) == 0
    drain(far, "orders", redis_of(servers[1]), if_locked="fail")
    assert (waiting(far), records(servers[1])) == (0, 20_001)
