"""Drain jobs through spark-submit: what they bring, how they fail, and what their death leaves (I6, I7, I10, I13)."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import sqlalchemy as sa
from tests.spark.conftest import Submission, Submit, children, is_driver, is_running
from tests.spark.exports import connections_to
from tests.support import bulk
from tests.support.drawn import drawn
from tests.support.pages import rows_of
from tests.support.waiting import wait_until

from export_queue import DrainReport, Owner, Range, SinkSpec, Store, StoreSpec, drain, drain_job
from export_queue.core.locks import COMPACTION_PRIORITY, Area, acquire, claim, holders, member, release, revoke
from export_queue.core.segments import waiting_segments
from export_queue.core.transactions import take_snapshot

HERE = Path(__file__).parent
MODULES = {"PYTHONPATH": str(HERE)}


def add(store: Store, values: dict[str, Any]) -> None:
    with store.transaction() as tx:
        for key, value in values.items():
            tx.queue("orders").add(key, value)


def waiting(store: Store) -> int:
    return sum(unit.entries for unit in store.backlog("orders"))


def report_of(store: Store, drain_id: str) -> DrainReport:
    (found,) = store.reports(drain_id=drain_id)
    report = DrainReport.from_dict(found)
    report.check()
    return report


# -- with PostgreSQL and Redis, both with passwords ------------------------------------------------------------------


@pytest.fixture
def store_url(postgres_url: str) -> str:
    """The tests of this module need no SQLite: the demo drains it."""
    return postgres_url


@pytest.fixture
def passwords(store_url: str, redis_server: Any) -> dict[str, str]:
    return {"XQ_STORE": sa.make_url(store_url).password or "", "XQ_REDIS": redis_server.password}


@pytest.fixture
def redis_spec(redis_server: Any, redis_client: Any) -> SinkSpec:
    options = {"host": redis_server.host, "port": redis_server.port}
    return SinkSpec("redis", options, {"password": "env:XQ_REDIS"}, name="redis")


def job_for(store_url: str, sink: SinkSpec, **options: Any) -> Any:
    url = sa.make_url(store_url)._replace(password=None).render_as_string()
    store = StoreSpec(url=url, secret="env:XQ_STORE")
    return drain_job(**{"queue_id": "orders", "sink": sink, "store": store, "owner": Owner("dag/run/task"), **options})


@pytest.mark.full("a start of Spark for a number of a page")
def test_driver_and_tasks_keep_a_few_connections_to_the_store(
    orders: Store,
    store_url: str,
    redis_spec: SinkSpec,
    redis_client: Any,
    passwords: dict[str, str],
    submit: Submit,
) -> None:
    (row,) = [row for row in rows_of("production.md", "Connections of the database") if row[0].startswith("Spark")]
    (keeps,) = map(int, re.findall(r"\d+", row[1]))
    port = sa.make_url(store_url).port
    assert port
    add(orders, {f"k{i}": port for i in range(2000)})
    job = job_for(store_url, redis_spec, exporter="exports:with_connections", max_parallel=2)
    submission = submit(job, variables={**MODULES, **passwords})
    driver, of_driver = submission.driver(), set()

    def has_ended() -> bool:
        of_driver.add(connections_to(driver, port))
        return submission.process.poll() is not None

    wait_until(has_ended, "the job does not end", pause=0.1)
    assert submission.wait() == 0, submission.output()
    of_tasks = {orjson.loads(redis_client.get(key))["connections"] for key in redis_client.scan_iter("orders:*")}
    assert 1 <= max(of_driver) <= keeps
    assert 1 <= max(of_tasks) <= keeps


def test_a_job_brings_what_is_committed_sets_refused_entries_aside_and_shows_no_password(
    orders: Store,
    store_url: str,
    redis_spec: SinkSpec,
    redis_client: Any,
    passwords: dict[str, str],
    submit: Submit,
    tmp_path: Path,
) -> None:
    add(orders, {f"k{i}": i for i in range(500)})
    add(orders, {"k3": 33, "bad": "poison"})
    events = tmp_path / "events"
    events.mkdir()
    job = job_for(store_url, redis_spec, exporter="exports:with_origin", max_parallel=3)
    conf = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri(), "spark.eventLog.compress": "false"}
    conf["spark.ui.enabled"] = "true"
    submission = submit(job, variables={**MODULES, **passwords}, conf=conf)
    assert submission.wait() == 0, submission.output()

    report = report_of(orders, job.drain_id)
    assert (report.read, report.acknowledged, report.dead, report.left) == (502, 501, 1, 0)
    assert waiting(orders) == 0
    assert f"{report.line()}\n" in submission.output()
    assert re.search(r"^Spark UI: http://\S+$", submission.output(), re.MULTILINE)
    assert "orders: dead letters: 1, the first: " in submission.output()
    documents = {key: orjson.loads(redis_client.get(key)) for key in redis_client.scan_iter("orders:*")}
    assert {key.decode(): document["value"] for key, document in documents.items()} == {
        f"orders:k{i}": 33 if i == 3 else i for i in range(500)
    }
    assert {document["library"].partition(".zip")[1] for document in documents.values()} == {".zip"}
    (letter,) = orders.dead_letters.list("orders")
    assert (letter.position.key, letter.reason, letter.drain_id) == (b"bad", "refused by the exporter", job.drain_id)

    shown = "\n".join(
        [submission.output(), *submission.command, *(path.read_text() for path in events.rglob("*") if path.is_file())]
    )
    assert "drain" in shown
    for password in passwords.values():
        assert password not in shown


@pytest.mark.full("two submissions of Spark; drains in one process are tested with every kind of holder")
@pytest.mark.full("two jobs; the local drain takes the same way")
def test_a_job_without_options_takes_those_that_are_stored_and_is_refused_with_others(
    orders: Store,
    store_url: str,
    redis_spec: SinkSpec,
    redis_client: Any,
    passwords: dict[str, str],
    submit: Submit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XQ_REDIS", passwords["XQ_REDIS"])
    keyed = replace(redis_spec, options={**redis_spec.options, "key": "order:$id", "target": "hash"})
    add(orders, {"a": {"n": 1}})
    assert drain(orders, "orders", keyed).acknowledged == 1
    add(orders, {"b": {"n": 2}})
    job = job_for(store_url, redis_spec)
    submission = submit(job, variables={**MODULES, **passwords})
    assert submission.wait() == 0, submission.output()
    assert redis_client.hgetall("order:b") == {b"n": b"2"}
    job = job_for(store_url, replace(redis_spec, options={**redis_spec.options, "key": "$id"}))
    submission = submit(job, variables={**MODULES, **passwords})
    assert submission.wait() != 0
    assert "SinkBindingError" in submission.output()
    assert "key='order:$id', found a drain with key='$id'" in submission.output()


def test_a_job_leaves_what_a_compaction_holds_to_the_next_one(
    store: Store,
    store_url: str,
    redis_spec: SinkSpec,
    redis_client: Any,
    passwords: dict[str, str],
    submit: Submit,
    tmp_path: Path,
) -> None:
    store.database.segments = str(tmp_path / "segments")
    queue = store.configure_queue("orders", buckets=10, buckets_per_range=10)
    for start in (0, 10, 20):
        with store.transaction(long=True) as tx:
            bulk.add(tx, store, bulk.many(10, b"1", start=start))
    add(store, {"row": 1})
    with store.database.read() as work:
        found = waiting_segments(work, queue, take_snapshot(store.database), Range(0, 10))
    held = frozenset(member(one.transaction, one.number) for one in found[:2])
    leases = acquire(
        store.database,
        queue,
        [Area(0, 10, held)],
        owner=Owner("compaction", "1"),
        priority=COMPACTION_PRIORITY,
        lease_seconds=600,
    )
    for read, left in ((11, 20), (20, 0)):
        job = job_for(store_url, redis_spec, if_locked="skip", max_parallel=2)
        submission = submit(job, variables={**MODULES, **passwords})
        assert submission.wait() == 0, submission.output()
        report = report_of(store, job.drain_id)
        assert (report.read, report.acknowledged, bool(report.skipped)) == (read, read, bool(left))
        assert waiting(store) == left
        release(store.database, leases)
    assert len(list(redis_client.scan_iter("orders:*"))) == 31


@pytest.mark.full("a submission of Spark; tasks find codecs without Spark, too")
def test_a_job_finds_codecs_where_it_finds_exporters(
    store: Store,
    store_url: str,
    redis_spec: SinkSpec,
    redis_client: Any,
    passwords: dict[str, str],
    submit: Submit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(MODULES["PYTHONPATH"])
    store.configure_queue("pairs", key="exports:pairs", value="int", buckets=4)
    with store.transaction() as tx:
        tx.queue("pairs").add_many([(("a", "b"), 1), (("c", "d"), 2)])
    job = job_for(store_url, redis_spec, queue_id="pairs", exporter="exports:reversed_pair")
    submission = submit(job, variables={**MODULES, **passwords})
    assert submission.wait() == 0, submission.output()
    assert report_of(store, job.drain_id).acknowledged == 2
    found = {key: orjson.loads(redis_client.get(key)) for key in redis_client.scan_iter("pairs:*")}
    assert found == {b"pairs:b/a": {"value": 2}, b"pairs:d/c": {"value": 3}}


@pytest.mark.full("a submission of Spark; the job of a drain runs anyway")
def test_a_job_drains_a_subscription_in_each_of_its_layouts(
    orders: Store, store_url: str, redis_spec: SinkSpec, redis_client: Any, passwords: dict[str, str], submit: Submit
) -> None:
    orders.configure_queue("airports", buckets=8, buckets_per_range=4, subscriptions=["search", "cache"])
    with orders.transaction() as tx:
        tx.queue("airports").add_many((f"k{i}", i) for i in range(40))
    orders.alter_queue("airports", buckets=5, buckets_per_range=2, guard="seq")
    with orders.transaction() as tx:
        tx.queue("airports").add_many((f"k{i}", i) for i in range(40, 50))
    job = job_for(store_url, redis_spec, queue_id="airports/search")
    submission = submit(job, variables={**MODULES, **passwords})
    assert submission.wait() == 0, submission.output()
    report = report_of(orders, job.drain_id)
    assert (report.acknowledged, report.ranges) == (50, (Range(0, 8), Range(0, 5, 2)))
    assert len(list(redis_client.scan_iter("airports:*"))) == 50
    assert orders.backlog("airports/search") == []
    assert sum(unit.entries for unit in orders.backlog("airports/cache")) == 50


@pytest.mark.full("a submission of Spark; the job of a drain runs anyway")
@pytest.mark.parametrize(
    ("options", "status", "error", "message"),
    [
        ({"exporter": "no_such_module:export"}, 1, "ConfigurationError", "no_such_module"),
        ({"queue_id": "order"}, 1, "UnknownQueue", "it has: orders"),
        ({"if_locked": "fail"}, 75, "LockNotAvailable", "by somebody"),
    ],
)
def test_a_job_that_fails_says_why_and_whether_trying_again_may_help(
    orders: Store,
    store_url: str,
    redis_spec: SinkSpec,
    passwords: dict[str, str],
    submit: Submit,
    options: dict[str, str],
    status: int,
    error: str,
    message: str,
) -> None:
    add(orders, {"a": 1})
    queue = orders.queue("orders")
    claim(orders.database, queue, queue.units(), owner=Owner("somebody", "1"), lease_seconds=60)
    job = job_for(store_url, redis_spec, **options)
    submission = submit(job, variables=passwords)
    assert submission.wait() == status, submission.output()
    report = report_of(orders, job.drain_id)
    assert report.problem is not None
    assert (report.problem.error_class, report.problem.transient) == (error, status == 75)
    assert message in report.problem.message
    assert message in submission.output()
    assert "Traceback" not in submission.output()
    assert waiting(orders) == 1


# -- deaths ----------------------------------------------------------------------------------------------------------


class Stopped:
    """A job whose workers have applied their first batches and wait before they remove anything."""

    def __init__(self, submission: Submission, folder: Path, drain_id: str) -> None:
        self.submission, self.folder, self.drain_id = submission, folder, drain_id
        try:
            wait_until(lambda: len(self.workers()) >= 2 or self.submission.process.poll() is not None, "no worker came")
        except AssertionError as error:
            raise AssertionError(self.submission.output()) from error
        assert self.submission.process.poll() is None, self.submission.output()

    def workers(self) -> list[int]:
        return [int(path.name.removeprefix("reached-")) for path in self.folder.glob("reached-*")]

    def let_go(self) -> None:
        (self.folder / "go").touch()


@pytest.fixture
def copies(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'copies.db'}"


@pytest.fixture
def stopped_job(
    store_url: str, passwords: dict[str, str], submit: Submit, tmp_path: Path, copies: str
) -> Callable[..., Stopped]:
    def start(
        *,
        master: str,
        gate: str = "GatedSink",
        terminal: int | None = None,
        program: Path | None = None,
        variables: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Stopped:
        sink = SinkSpec(f"gated_sink:{gate}", {"folder": str(tmp_path), "url": copies}, name="copies")
        job = job_for(store_url, sink, **options)
        job = replace(job, application=str(program or job.application))
        variables = {**MODULES, **passwords, **(variables or {})}
        submission = submit(job, master=master, variables=variables, terminal=terminal)
        return Stopped(submission, tmp_path, job.drain_id)

    return start


def read(copies: str) -> dict[str, str]:
    engine = sa.create_engine(copies, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return {row[0]: row[1] for row in connection.execute(sa.text("select * from orders_live"))}


VALUES = {f"k{i}": i for i in range(200)}
EXPECTED = {key: str(value) for key, value in VALUES.items()}


@pytest.mark.full("a submission of Spark; the job of a drain runs anyway")
def test_a_python_worker_killed_between_sink_and_removal_is_repeated(
    orders: Store, stopped_job: Callable[..., Stopped], copies: str
) -> None:
    add(orders, VALUES)
    job = stopped_job(master="local[2,4]", lease_seconds=30)
    os.kill(job.workers()[0], signal.SIGKILL)
    job.let_go()
    assert job.submission.wait() == 0, job.submission.output()
    report = report_of(orders, job.drain_id)
    assert (report.acknowledged, report.left) == (200, 0), "nothing had been removed before the kill"
    assert report.stale > 0, "the killed worker had applied its batch"
    assert waiting(orders) == 0
    assert read(copies) == EXPECTED


@pytest.mark.full("a submission of Spark; the job of a drain runs anyway")
def test_a_killed_driver_removes_nothing_more_and_the_next_drain_ends_its_work(
    orders: Store, stopped_job: Callable[..., Stopped], copies: str
) -> None:
    add(orders, VALUES)
    job = stopped_job(master="local[2]", lease_seconds=3)
    os.kill(job.submission.driver(), signal.SIGKILL)
    assert job.submission.wait() != 0
    wait_until(lambda: not any(map(is_running, job.workers())), "workers outlive their driver")
    job.let_go()
    assert waiting(orders) == 200
    report = drain(orders, "orders", SinkSpec("sql", {"url": copies}, name="copies"), lock_timeout=60)
    assert (report.acknowledged, waiting(orders)) == (200, 0)
    assert report.stale > 0
    assert read(copies) == EXPECTED


@pytest.mark.full("a submission of Spark; the job of a drain runs anyway")
def test_an_orphaned_driver_gives_its_leases_back_and_ends_itself(
    orders: Store, stopped_job: Callable[..., Stopped], copies: str
) -> None:
    """SIGKILL is what Airflow's hook sends to spark-submit; it reaches no Python process."""
    add(orders, VALUES)
    job = stopped_job(master="local[2]", lease_seconds=600)
    driver = job.submission.driver()
    os.kill(job.submission.process.pid, signal.SIGKILL)
    job.submission.wait()
    wait_until(lambda: not is_running(driver), "the orphaned driver goes on", seconds=60)
    queue = orders.queue("orders")
    with orders.database.read() as work:
        assert holders(work, queue, queue.units()) == []
    job.let_go()
    wait_until(lambda: not any(map(is_running, job.workers())), "workers outlive their driver")
    assert waiting(orders) == 200, "something was removed without a lease"
    report = report_of(orders, job.drain_id)
    assert report.problem is not None
    report = drain(orders, "orders", SinkSpec("sql", {"url": copies}, name="copies"), if_locked="fail")
    assert (report.acknowledged, waiting(orders)) == (200, 0)
    assert read(copies) == EXPECTED


TASK = """
import json, subprocess, sys
from dataclasses import replace
from export_queue.core.spark import DrainArguments, Submitter
arguments = replace(DrainArguments.from_json(sys.argv[-1]), submitter=Submitter.here())
subprocess.run([*sys.argv[1:-1], arguments.to_json()])
"""


@pytest.mark.full("a submission of Spark; the job of a drain runs anyway")
def test_a_driver_whose_submitter_alone_was_killed_gives_its_leases_back_and_ends_itself(
    orders: Store, store_url: str, passwords: dict[str, str], submit: Submit, tmp_path: Path, copies: str
) -> None:
    """As Airflow's task dies when its memory is taken: ``spark-submit`` survives, and so would its driver."""
    add(orders, VALUES)
    sink = SinkSpec("gated_sink:GatedSink", {"folder": str(tmp_path), "url": copies}, name="copies")
    job = job_for(store_url, sink, lease_seconds=600)
    submission = submit(
        job,
        variables={**MODULES, **passwords},
        parent=[sys.executable, "-P", "-c", TASK],
        parent_variables={name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},
    )
    stopped = Stopped(submission, tmp_path, job.drain_id)
    (java,) = children(submission.process.pid)
    (driver,) = [pid for pid, command in children(java).items() if is_driver(command)]
    os.kill(submission.process.pid, signal.SIGKILL)
    submission.process.wait()
    assert is_running(java), "spark-submit survives"
    queue = orders.queue("orders")

    def held() -> bool:
        with orders.database.read() as work:
            return bool(holders(work, queue, queue.units()))

    wait_until(lambda: not held(), "the leases are kept")
    wait_until(lambda: not is_running(driver), "the orphaned driver goes on")
    wait_until(lambda: not is_running(java), "spark-submit goes on")
    stopped.let_go()
    wait_until(lambda: not any(map(is_running, stopped.workers())), "workers outlive their driver")
    assert waiting(orders) == 200, "something was removed without a lease"
    assert f"the submitting process {submission.process.pid} has gone" in submission.output()
    report = drain(orders, "orders", SinkSpec("sql", {"url": copies}, name="copies"), if_locked="fail")
    assert (report.acknowledged, waiting(orders)) == (200, 0)


@pytest.mark.full("a submission of Spark; the job of a drain runs anyway")
@pytest.mark.parametrize("number", drawn([signal.SIGKILL, signal.SIGTERM], about="orphans"))
def test_an_orphaned_driver_that_waits_for_others_does_not_wait_on(
    orders: Store,
    store_url: str,
    redis_spec: SinkSpec,
    passwords: dict[str, str],
    submit: Submit,
    number: signal.Signals,
) -> None:
    """No call into Java fails here: only the look at the parent ends it."""
    add(orders, VALUES)
    queue = orders.queue("orders")
    claim(orders.database, queue, queue.units(), owner=Owner("somebody", "1"), lease_seconds=600)
    job = job_for(store_url, redis_spec, lock_timeout=600)
    submission = submit(job, variables=passwords)
    driver = submission.driver()
    line = "orders → redis: waiting for ["
    wait_until(lambda: line in submission.output(), f"the driver does not wait: {submission.output()}")
    os.kill(submission.process.pid, number)
    submission.wait()
    wait_until(lambda: not is_running(driver), "the orphaned driver goes on", seconds=60)
    assert report_of(orders, job.drain_id).problem is not None
    assert waiting(orders) == 200


@pytest.mark.full("a submission of Spark; the job of a drain runs anyway")
def test_a_job_whose_leases_were_revoked_removes_nothing_more_and_ends(
    orders: Store, stopped_job: Callable[..., Stopped], copies: str
) -> None:
    """What `on_kill` of the operator does where it cannot reach the driver."""
    add(orders, VALUES)
    job = stopped_job(master="local[2]", lease_seconds=3)
    assert revoke(orders.database, "dag/run/task") == 4
    job.let_go()
    assert job.submission.wait() == 75, job.submission.output()
    report = report_of(orders, job.drain_id)
    assert (report.acknowledged, waiting(orders)) == (0, 200)
    assert report.problem is not None
    assert report.problem.error_class == "LeaseLost"


def stop(job: Stopped, orders: Store, what: str) -> int:
    if what == "revoked leases":
        revoke(orders.database, "dag/run/task")
        return 75
    pid = job.submission.driver() if what == "SIGTERM to the driver" else job.submission.process.pid
    os.kill(pid, signal.SIGTERM)
    return 143


def check_true_report(orders: Store, drain_id: str, copies: str, *, acknowledged: int, problems: set[str]) -> None:
    """The report says what has left the queue, nothing is held, and another drain brings the rest."""
    report = report_of(orders, drain_id)
    assert (report.acknowledged, waiting(orders)) == (acknowledged, 200 - acknowledged)
    assert report.problem is not None
    assert report.problem.error_class in problems
    rest = drain(orders, "orders", SinkSpec("sql", {"url": copies}, name="copies"), if_locked="fail")
    assert (rest.acknowledged, waiting(orders)) == (200 - acknowledged, 0)
    assert read(copies) == EXPECTED


@pytest.mark.full("a submission of Spark for each way of stopping a job")
@pytest.mark.parametrize(
    "what", drawn(["SIGTERM to the driver", "SIGTERM to spark-submit", "revoked leases"], about="stops")
)
def test_the_report_of_a_job_that_is_stopped_says_what_has_left_the_queue(
    orders: Store, stopped_job: Callable[..., Stopped], copies: str, what: str
) -> None:
    """The reports of its tasks are lost: they have removed a chunk each, and are in the middle of the next one."""
    add(orders, VALUES)
    job = stopped_job(master="local[2]", lease_seconds=3, gate="LateGatedSink", chunk_rows=10)
    driver = job.submission.driver()
    wait_until(lambda: waiting(orders) == 180, "two chunks are not removed")
    status = stop(job, orders, what)
    assert job.submission.wait() == status, job.submission.output()
    wait_until(lambda: not is_running(driver), "the driver goes on")
    job.let_go()
    wait_until(lambda: not any(map(is_running, job.workers())), "workers outlive their driver")
    # The end of Java, which follows that of spark-submit, may come before the signal that tells of it.
    problems = {"LeaseLost"} if status == 75 else {"DriverStopped", "SparkJobFailed"}
    check_true_report(orders, job.drain_id, copies, acknowledged=20, problems=problems)


@pytest.mark.full("a submission of Spark, of which a count of what is left is awaited")
def test_a_job_that_is_submitted_from_a_terminal_draws_a_bar_there(
    orders: Store, stopped_job: Callable[..., Stopped]
) -> None:
    """The driver has a pipe for its output; the terminal is that of its parent."""
    add(orders, VALUES)
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    shown = bytearray()

    def read() -> str:
        with contextlib.suppress(OSError):  # nothing has come, or the submission has ended
            shown.extend(os.read(ours, 100_000))
        return shown.decode(errors="replace")

    def is_left(count: int) -> bool:
        """Tell whether the bar was drawn with so many left: how many waited when it first counted is not known."""
        return any(int(total) - int(done) == count for done, total in re.findall(r"(\d+)/(\d+)", read()))

    job = stopped_job(master="local[2]", lease_seconds=30, gate="LateGatedSink", chunk_rows=10, terminal=theirs)
    os.close(theirs)
    wait_until(lambda: is_left(180), "no bar is drawn")
    job.let_go()
    assert job.submission.wait() == 0, job.submission.output()
    assert "orders → copies" in read()
    assert "━" in read()
    assert "200 read = 200 acknowledged" in job.submission.output(), "lines go to the output"
    os.close(ours)


@pytest.mark.full("a submission of Spark; the deadline of a drain is tested without Spark, too")
@pytest.mark.parametrize(("ends", "seconds"), [("by itself", 201), ("cancelled", 260)])
def test_a_job_whose_time_is_over_ends_in_order(
    orders: Store, stopped_job: Callable[..., Stopped], copies: str, tmp_path: Path, ends: str, seconds: int
) -> None:
    """Each task ends after its current batch; if a sink does not let it, the driver cancels it soon."""
    add(orders, VALUES)
    clock = tmp_path / "clock"
    job = stopped_job(
        program=HERE / "late_main.py",
        variables={"CLOCK": str(clock)},
        master="local[2]",
        lease_seconds=30,
        gate="OverdueSink",
        chunk_rows=10,
        time_limit=200,
    )
    acknowledged = 20
    (tmp_path / "clock.new").write_text(str(seconds))
    (tmp_path / "clock.new").rename(clock)
    wait_until(lambda: "the time is over" in job.submission.output(), "the driver does not look at the clock")
    if ends == "by itself":
        job.let_go()
        acknowledged = 40
    assert job.submission.wait() == 75, job.submission.output()
    job.let_go()
    wait_until(lambda: not any(map(is_running, job.workers())), "workers outlive their driver")
    assert f"delivered {acknowledged} entries in its 200 seconds; about {200 - acknowledged} left" in (
        job.submission.output()
    )
    check_true_report(orders, job.drain_id, copies, acknowledged=acknowledged, problems={"DrainTimedOut"})


# -- the guard fence -------------------------------------------------------------------------------------------------


def fenced(copies: str) -> SinkSpec:
    return SinkSpec("sql", {"url": copies, "guard": "fence"}, name="copies")


def read_plain(copies: str) -> dict[str, str]:
    engine = sa.create_engine(copies, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return {row[0]: row[1] for row in connection.execute(sa.text("select * from orders"))}


@pytest.mark.full("a submission of Spark; the job of a drain runs anyway")
def test_a_worker_of_a_fenced_drain_that_is_killed_is_repeated_under_its_claim(
    orders: Store, stopped_job: Callable[..., Stopped], copies: str
) -> None:
    add(orders, VALUES)
    job = stopped_job(master="local[2,4]", lease_seconds=30, gate="GatedFencedSink", on_error="fail")
    os.kill(job.workers()[0], signal.SIGKILL)
    job.let_go()
    assert job.submission.wait() == 0, job.submission.output()
    report = report_of(orders, job.drain_id)
    assert (report.acknowledged, report.left, waiting(orders)) == (200, 0, 0)
    assert read_plain(copies) == EXPECTED


@pytest.mark.full("a submission of Spark; the job of a drain runs anyway")
def test_tasks_of_a_fenced_drain_that_was_taken_over_are_shut_out_by_the_sink(
    orders: Store, stopped_job: Callable[..., Stopped], copies: str
) -> None:
    """They have looked at their leases, and have their batches ready, when a younger attempt drains newer entries."""
    add(orders, VALUES)
    job = stopped_job(master="local[2]", lease_seconds=30, gate="GatedFencedSink", on_error="fail")
    add(orders, {key: None if value % 2 else "new" for key, value in VALUES.items()})
    report = drain(orders, "orders", fenced(copies), owner=Owner("dag/run/task", "2"), on_error="fail")
    assert report.acknowledged == 400
    job.let_go()
    assert job.submission.wait() == 75, job.submission.output()
    assert "taken over" in job.submission.output()
    assert report_of(orders, job.drain_id).acknowledged == 0
    assert read_plain(copies) == {key: '"new"' for key, value in VALUES.items() if value % 2 == 0}
