"""The operator that submits a drain to Spark; a program in the place of spark-submit shows what it is given."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from tests.support import bulk
from tests.support.fake_spark import FakeSpark
from tests.support.waiting import wait_until

from export_queue import (
    ConfigurationError,
    DeadLettersLeft,
    DrainError,
    InvalidArgument,
    LeaseLost,
    LockNotAvailable,
    MemorySink,
    Owner,
    Range,
    SinkBindingError,
    Submitter,
    UnknownQueue,
    bucket,
    drain,
)
from export_queue.core.drain import DrainRequest, drain_as_requested, promise
from export_queue.core.locks import (
    COMPACTION_PRIORITY,
    ROWS,
    Area,
    Lease,
    acquire,
    claim,
    holders,
    member,
    release,
    renew,
)
from export_queue.core.segments import waiting_segments
from export_queue.core.spark import DrainArguments
from export_queue.core.transactions import take_snapshot
from export_queue.hooks import ExportQueueHook
from export_queue.hooks.connections import MissingConnection
from export_queue.operators import (
    ExportQueueSparkCompactOperator,
    ExportQueueSparkDrainOperator,
    ExportQueueSparkLoadOperator,
    ExportQueueSparkVerifyOperator,
    submissions,
)
from export_queue.operators.spark_home import SparkNotFound, find_java, find_spark

PASSWORD = "kept-secret-4711"

SUBMIT = """#!{python}
import json, os, sys
from contextlib import closing
from pathlib import Path
here = Path({folder!r})
with (here / "calls").open("a") as calls:
    calls.write(json.dumps({{"arguments": sys.argv[1:], "environment": dict(os.environ)}}) + "\\n")
mode = (here / "mode").read_text()
if mode == "silent":
    sys.exit(0)
if mode == "broken":
    print("the cluster is on fire"); sys.exit(3)
from export_queue.core.client import Store
from export_queue.core.drain import DrainRequest, drain_as_requested
from export_queue.core.locks import begin_attempt, claim
from export_queue.core.spark import DrainArguments
job = DrainArguments.from_json(sys.argv[-1])
with closing(Store(job.store.open())) as store:
    if mode == "hang":
        queue = store.queue(job.request.queue_id)
        owner = job.request.another_attempt().owner
        begin_attempt(store.database, queue, owner)
        claim(store.database, queue, queue.units(), owner=owner, lease_seconds=600)
        (here / "hangs").touch()
        import time; time.sleep(100)
    drain_as_requested(store, job.sink, job.request.another_attempt())
"""


@pytest.fixture
def spark(tmp_path: Path, connect: Any, monkeypatch: pytest.MonkeyPatch) -> FakeSpark:
    """The Spark that ``spark_default`` and the configuration lead to."""
    fake = FakeSpark(tmp_path / "fake-spark", SUBMIT, "drain")
    monkeypatch.setenv("AIRFLOW__EXPORT_QUEUE__SPARK_HOME", str(fake.folder))
    connect("spark_default", conn_type="spark", host="local[2]")
    return fake


@pytest.fixture
def copies(connect: Any, tmp_path: Path) -> None:
    """The connection ``copies`` to an SQLite file."""
    connect("copies", conn_type="sqlite", host=str(tmp_path / "copies.db"))


@pytest.fixture
def run_drain(run_dag: Any) -> Callable[..., Any]:
    """Run the operator in a DAG of its own; returns its report, or raises its error."""

    def run(**arguments: Any) -> Any:
        with DAG("spark_drain", schedule=None) as dag:
            ExportQueueSparkDrainOperator(
                **{"task_id": "it", "queue_id": "orders", "sink_conn_id": "copies", **arguments}
            )
        finished = run_dag(dag)
        if finished.errors:
            raise finished.errors["it"]
        return finished.result("it")

    return run


def add(store: Any, count: int) -> None:
    with store.transaction() as tx:
        for i in range(count):
            tx.queue("orders").add(f"customer {i}", {"total": i}, replace=True)


def waiting(store: Any) -> int:
    return sum(unit.entries for unit in store.backlog("orders"))


def fake_context(task_id: str = "it") -> dict[str, Any]:
    return {"ti": SimpleNamespace(dag_id="d", run_id="r", task_id=task_id, map_index=-1)}


# -- what is submitted -------------------------------------------------------------------------------------------------


def test_one_submission_drains_all_ranges_and_returns_the_report(
    airflow_store: Any, run_drain: Any, spark: FakeSpark, copies: None
) -> None:
    add(airflow_store, 20)
    report = run_drain()
    assert report["read"] == report["acknowledged"] == 20
    assert report["drain_id"].startswith("spark_drain/manual__")
    assert json.loads(json.dumps(report)) == report
    assert waiting(airflow_store) == 0
    (call,) = spark.calls()
    given = call["arguments"]
    assert given[given.index("--master") + 1] == "local[2]"
    assert call["environment"]["SPARK_LOCAL_IP"] == "127.0.0.1"
    job = json.loads(given[-1])
    assert (job["request"]["queue_id"], job["request"]["ranges"]) == ("orders", None)
    assert report["drain_id"].startswith(job["request"]["owner"]["task"] + "#")


def test_arguments_are_templated_and_reach_the_job(
    airflow_store: Any, run_drain: Any, spark: FakeSpark, copies: None
) -> None:
    add(airflow_store, 20)
    run_drain(
        queue_id="{{ 'orders' }}",
        sink_conn_id="{{ 'copies' }}",
        sink_options={"table": "{{ 'mine_$collection' }}"},
        ranges="{{ [[0, 101]] }}",
        if_locked="{{ 'skip' }}",
        max_dead="{{ 7 }}",
        max_parallel="{{ 3 }}",
        lock_timeout=5,
        time_limit="{{ 60 }}",
        conf={"spark.executor.memory": "{{ '2g' }}", "spark.log.level": "ERROR"},
        py_files="/mine.zip",
    )
    (call,) = spark.calls()
    job = json.loads(call["arguments"][-1])
    wanted = {"ranges": [[0, 101]], "if_locked": "skip", "max_dead": 7, "lock_timeout": 5}
    assert {name: job["request"][name] for name in wanted} == wanted
    assert 0 < job["request"]["time_limit"] < 60, "what is left of it when the job is submitted"
    assert job["max_parallel"] == 3
    assert job["sink"]["options"]["table"] == "mine_$collection"
    assert "spark.executor.memory=2g" in call["arguments"]
    assert "spark.log.level=ERROR" in call["arguments"]  # the user's word counts more than ours
    assert call["arguments"][call["arguments"].index("--py-files") + 1].endswith(",/mine.zip")


def test_nothing_is_submitted_where_nothing_waits(
    airflow_store: Any, run_drain: Any, spark: FakeSpark, copies: None
) -> None:
    report = run_drain()
    assert (report["read"], report["left"], report["ranges"]) == (0, 0, [[0, 1009]])
    add(airflow_store, 1)
    assert run_drain(ranges=[])["ranges"] == []
    assert spark.calls() == []


def test_dead_letters_of_earlier_drains_fail_the_task_also_if_nothing_is_submitted(
    airflow_store: Any, run_drain: Any, spark: FakeSpark, copies: None
) -> None:
    def refuse(entry: Any) -> Any:
        raise ValueError("no entries today")

    add(airflow_store, 2)
    drain(airflow_store, "orders", MemorySink(), sink_name="copies", exporter=refuse)
    with pytest.raises(DeadLettersLeft, match="2 dead letters; allowed: 1") as caught:
        run_drain(dead_letters=1)
    assert isinstance(caught.value, AirflowFailException)
    assert spark.calls() == []
    assert run_drain(dead_letters="allow")["read"] == 0


def test_nothing_is_submitted_for_ranges_of_a_layout_that_is_closed(
    airflow_store: Any, run_drain: Any, spark: FakeSpark, copies: None
) -> None:
    """As a mapped task has them that is retried after the queue was altered."""
    airflow_store.alter_queue("orders", buckets=7, buckets_per_range=7, guard="seq")
    add(airflow_store, 1)
    report = run_drain(ranges=[[0, 101]])
    assert (report["read"], report["ranges"], report["skipped"]) == (0, [[0, 101]], [])
    assert spark.calls() == []
    report = run_drain(ranges=[[0, 101], [0, 7, 2]])
    assert (report["read"], report["ranges"]) == (1, [[0, 101], [0, 7, 2]])


def test_a_layout_that_comes_between_the_reads_of_a_drain_is_drained(
    airflow_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*arguments: Any) -> Any:
        airflow_store.alter_queue("orders", buckets=7, buckets_per_range=7, guard="seq")
        add(airflow_store, 1)
        return take_snapshot(*arguments)

    monkeypatch.setattr(promise, "take_snapshot", late)
    request = DrainRequest(queue_id="orders", sink_name="copies")
    assert Range(0, 7, 2) in submissions.Submissions.begin(airflow_store, request).promise.left


def test_it_is_mapped_over_groups_of_ranges(airflow_store: Any, run_dag: Any, spark: FakeSpark, copies: None) -> None:
    add(airflow_store, 50)
    with DAG("spark_mapped", schedule=None) as dag:

        @task
        def groups() -> list[list[list[int]]]:
            return [[[0, 101], [101, 202]], [[202, 1009]]]

        ExportQueueSparkDrainOperator.partial(
            task_id="drain", queue_id="orders", sink_conn_id="copies", map_index_template="{{ task.ranges }}"
        ).expand(ranges=groups())

    run = run_dag(dag)
    assert run.state == "success"
    reports = [run.result("drain", index) for index in range(2)]
    assert sum(report["acknowledged"] for report in reports) == 50
    assert [report["ranges"] for report in reports] == [[[0, 202]], [[202, 1009]]]
    owners = {json.loads(call["arguments"][-1])["request"]["owner"]["task"] for call in spark.calls()}
    assert {owner.rsplit("/", 1)[1] for owner in owners} == {"0", "1"}


def test_two_attempts_of_a_task_share_the_owner_but_not_the_token(
    airflow_store: Any, spark: FakeSpark, copies: None
) -> None:
    drain_ids = set()
    for _ in range(2):
        add(airflow_store, 1)
        operator = ExportQueueSparkDrainOperator(task_id="it", queue_id="orders", sink_conn_id="copies")
        drain_ids.add(operator.execute(fake_context())["drain_id"])
    jobs = [json.loads(call["arguments"][-1]) for call in spark.calls()]
    assert {job["request"]["owner"]["task"] for job in jobs} == {"d/r/it"}
    assert {job["request"]["drain_id"] for job in jobs} == drain_ids
    assert len(drain_ids) == 2


def test_the_driver_gets_the_python_beside_spark_submit(
    airflow_store: Any, run_drain: Any, spark: FakeSpark, copies: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = spark.folder / "bin" / "python"
    python.symlink_to(sys.executable)
    monkeypatch.setenv("SPARK_HOME", "/another/spark")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.2")
    add(airflow_store, 1)
    run_drain()
    environment = spark.calls()[0]["environment"]
    assert environment["PYSPARK_PYTHON"] == environment["PYSPARK_DRIVER_PYTHON"] == str(python)
    assert "SPARK_HOME" not in environment
    assert environment["SPARK_LOCAL_IP"] == "127.0.0.2"
    assert os.environ["SPARK_HOME"] == "/another/spark"


# -- secrets -----------------------------------------------------------------------------------------------------------


@pytest.mark.postgres
def test_passwords_travel_in_the_environment_of_the_submission_alone(
    run_drain: Any,
    spark: FakeSpark,
    connect: Any,
    postgres_server: Any,
    postgres_url: str,
    redis_server: Any,
    redis_connection: Any,
) -> None:
    from export_queue.core.client import Store

    connect("export_queue_default", conn_type="export_queue", host=postgres_url)
    with Store.open(postgres_url) as store:
        store.create()
        store.configure_queue("orders")
        add(store, 3)
    assert run_drain(sink_conn_id="redis_default")["acknowledged"] == 3
    (call,) = spark.calls()
    environment = call["environment"]
    assert environment["XQ_STORE_PASSWORD"] == postgres_server.password
    assert environment["XQ_SINK_REDIS_DEFAULT_PASSWORD"] == redis_server.password
    for password in (postgres_server.password, redis_server.password):
        assert password not in " ".join(call["arguments"])
    assert json.loads(call["arguments"][-1])["store"]["secret"] == "env:XQ_STORE_PASSWORD"
    assert "XQ_STORE_PASSWORD" not in os.environ


@pytest.mark.parametrize("argument", ["store_secret", "sink_secrets"])
def test_a_password_in_the_place_of_a_reference_is_refused_and_not_shown(argument: str) -> None:
    value: Any = {"password": PASSWORD} if argument == "sink_secrets" else PASSWORD
    with pytest.raises(InvalidArgument, match="env:NAME") as caught:
        ExportQueueSparkDrainOperator(task_id="it", queue_id="orders", sink_conn_id="copies", **{argument: value})
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        (ExportQueueSparkDrainOperator, {"sink_conn_id": "copies"}),
        (ExportQueueSparkLoadOperator, {"frame": "m:f"}),
        (ExportQueueSparkCompactOperator, {}),
        (ExportQueueSparkVerifyOperator, {"sink_conn_id": "copies"}),
    ],
)
def test_the_argument_of_airflows_own_spark_operator_is_refused_with_the_name_of_ours(
    operator: Any, arguments: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgument, match="spark_conn_id"):
        operator(task_id="it", queue_id="orders", conn_id="spark_default", **arguments)


def test_cluster_modes_refuse_passwords_and_take_references(
    spark: FakeSpark, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    connect("spark_default", conn_type="spark", host="yarn", extra={"deploy-mode": "cluster"})
    connect("export_queue_default", conn_type="export_queue", host=f"postgresql://u:{PASSWORD}@127.0.0.1:1/d")
    connect("cache", conn_type="redis", host="h", password=PASSWORD)
    arguments: dict[str, Any] = {"task_id": "it", "queue_id": "orders", "sink_conn_id": "cache"}
    for partly in ({}, {"store_secret": "file:/run/store"}, {"sink_secrets": {"password": "file:/run/sink"}}):
        with pytest.raises(ConfigurationError, match="in cluster mode"):
            ExportQueueSparkDrainOperator(**arguments, **partly).execute(fake_context())
    both = {"store_secret": "file:/run/store", "sink_secrets": {"password": "file:/run/sink"}}
    with pytest.raises(Exception, match="127.0.0.1") as caught:  # refused no more; this store does not answer
        ExportQueueSparkDrainOperator(**arguments, **both).execute(fake_context())
    assert PASSWORD not in str(caught.value)


# -- bad input ---------------------------------------------------------------------------------------------------------


def refuse(run_drain: Any, store: Any, error: type[Exception], match: str, **arguments: Any) -> None:
    """A drain fails with a clear error, nothing is submitted, and no entry is lost."""
    add(store, 3)
    before = waiting(store)
    with pytest.raises(error, match=match):
        run_drain(**arguments)
    assert waiting(store) == before >= 3


def test_a_missing_spark_connection_does_not_become_yarn(
    airflow_store: Any, run_drain: Any, spark: FakeSpark, copies: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    refuse(run_drain, airflow_store, MissingConnection, "AIRFLOW_CONN_SPARK_DEFAULT=.*local")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", "spark://local[2]")
    refuse(run_drain, airflow_store, MissingConnection, "cannot be read")
    assert spark.calls() == []


def test_a_spark_connection_without_a_master_is_refused(
    airflow_store: Any, run_drain: Any, spark: FakeSpark, copies: None, connect: Any
) -> None:
    connect("spark_default", conn_type="spark")
    refuse(run_drain, airflow_store, ConfigurationError, "names no Spark master")
    assert spark.calls() == []


@pytest.mark.parametrize(
    ("host", "extra", "match"),
    [
        ("sc://host:15002", {}, "Spark Connect"),
        ("spark://h:7077", {"deploy-mode": "cluster"}, "no Python driver in cluster mode"),
        ("local[2]", {"deploy-mode": "cluster"}, "no Python driver in cluster mode"),
        ("yarn", {}, "HADOOP_CONF_DIR"),
        ("k8s://https://h:6443", {"deploy-mode": "cluster", "namespace": "x"}, "Kubernetes"),
    ],
)
def test_a_master_that_cannot_run_a_drain_is_refused_in_one_line(
    spark: FakeSpark, connect: Any, monkeypatch: pytest.MonkeyPatch, host: str, extra: dict[str, str], match: str
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    connect("spark_default", conn_type="spark", host=host, extra=extra)
    connect("export_queue_default", conn_type="export_queue", host="postgresql://u@127.0.0.1:1/d")
    connect("cache", conn_type="redis", host="h")
    operator = ExportQueueSparkDrainOperator(task_id="it", queue_id="orders", sink_conn_id="cache")
    with pytest.raises(ConfigurationError, match=match) as caught:
        operator.execute(fake_context())
    assert isinstance(caught.value, AirflowFailException)
    assert "\n" not in caught.value.message  # type: ignore[attr-defined]
    assert spark.calls() == []


def test_executors_of_a_standalone_cluster_run_the_python_that_was_asked_for(
    spark: FakeSpark, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr("export_queue.core.spark.check_answers", lambda master: None)
    connect("spark_default", conn_type="spark", host="spark://h:7077")
    connect("export_queue_default", conn_type="export_queue", host="postgresql://u@h/d")
    connect("cache", conn_type="redis", host="h")

    def variables(**arguments: Any) -> dict[str, str | None]:
        operator = ExportQueueSparkDrainOperator(task_id="it", queue_id="orders", sink_conn_id="cache", **arguments)
        return operator._prepare_spark(ExportQueueHook().describe(), operator.describe_sink())[1]

    assert variables(spark_python="/opt/python3")["PYSPARK_PYTHON"] == "/opt/python3"
    assert "PYSPARK_PYTHON" not in variables()


def test_no_java_is_said_before_anything_is_submitted(
    airflow_store: Any, run_drain: Any, spark: FakeSpark, copies: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    refuse(run_drain, airflow_store, SparkNotFound, "no Java: JAVA_HOME is")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    refuse(run_drain, airflow_store, SparkNotFound, "no Java: JAVA_HOME is not set")
    assert spark.calls() == []


def test_no_spark_says_how_to_configure_it(
    airflow_store: Any, run_drain: Any, spark: FakeSpark, copies: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refuse(run_drain, airflow_store, SparkNotFound, "is not a program", spark_home=str(tmp_path / "nowhere"))
    monkeypatch.setenv("AIRFLOW__EXPORT_QUEUE__SPARK_HOME", "")
    monkeypatch.setenv("PATH", "/usr/bin")
    refuse(run_drain, airflow_store, SparkNotFound, "AIRFLOW__EXPORT_QUEUE__SPARK_HOME")


@pytest.mark.parametrize("master", ["spark://h:7077", "yarn"])
def test_a_sqlite_store_with_a_remote_master_is_refused(
    airflow_store: Any, run_drain: Any, spark: FakeSpark, copies: None, connect: Any, master: str
) -> None:
    connect("spark_default", conn_type="spark", host=master)
    refuse(run_drain, airflow_store, ConfigurationError, "is a SQLite file")
    assert spark.calls() == []


def test_an_unknown_queue_is_refused_before_anything_is_submitted(
    airflow_store: Any, run_drain: Any, spark: FakeSpark, copies: None
) -> None:
    refuse(run_drain, airflow_store, UnknownQueue, "it has: orders", queue_id="order")
    assert spark.calls() == []


def test_another_sink_than_before_is_refused_before_anything_is_submitted(
    airflow_store: Any, run_drain: Any, spark: FakeSpark, copies: None, connect: Any, tmp_path: Path
) -> None:
    airflow_store.rebind("orders", "copies")
    connect("others", conn_type="sqlite", host=str(tmp_path / "others.db"))
    refuse(run_drain, airflow_store, SinkBindingError, "'copies'", sink_conn_id="others")
    assert spark.calls() == []


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"ranges": [[0, 100]]}, "unit"),
        ({"ranges": "all"}, "pairs"),
        ({"if_locked": "maybe"}, "if_locked"),
        ({"on_error": "ignore"}, "on_error"),
        ({"max_dead": "many"}, "max_dead"),
    ],
)
def test_arguments_are_checked_before_anything_is_submitted(
    airflow_store: Any, run_drain: Any, spark: FakeSpark, copies: None, arguments: dict[str, Any], match: str
) -> None:
    refuse(run_drain, airflow_store, InvalidArgument, match, **arguments)
    assert spark.calls() == []


# -- when a submission fails -------------------------------------------------------------------------------------------


def test_a_drain_that_fails_raises_what_stopped_it(
    airflow_store: Any, run_drain: Any, spark: FakeSpark, copies: None
) -> None:
    queue = airflow_store.queue("orders")
    claim(airflow_store.database, queue, queue.units(), owner=Owner("somebody", "1"), lease_seconds=600)
    refuse(run_drain, airflow_store, LockNotAvailable, "held: .*somebody", if_locked="fail")
    assert spark.calls() == []


def test_a_drain_that_waits_for_others_submits_nothing_before(
    airflow_store: Any, run_drain: Any, spark: FakeSpark, copies: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes what is free first, and submits the rest once its holder has let it go."""
    looks: list[int] = []

    def look(seconds: float) -> None:
        looks.append(len(spark.calls()))
        release(airflow_store.database, leases[:5] if len(looks) == 2 else leases[5:] if len(looks) == 4 else [])

    monkeypatch.setattr(submissions, "sleep", look)
    add(airflow_store, 100)
    queue = airflow_store.queue("orders")
    leases = claim(airflow_store.database, queue, queue.units(), owner=Owner("somebody", "1"), lease_seconds=600)
    report = run_drain()
    assert looks == [0, 0, 1, 1]
    assert (report["read"], report["acknowledged"], report["ranges"], report["skipped"]) == (100, 100, [[0, 1009]], [])
    given = [json.loads(call["arguments"][-1])["request"] for call in spark.calls()]
    assert [request["ranges"] for request in given] == [None, [unit.range.to_json() for unit in leases[5:]]]
    assert {request["if_locked"] for request in given} == {"skip"}
    assert given[0]["drain_id"] != given[1]["drain_id"]


def compaction(store: Any, *members: str) -> list[Lease]:
    """Hold some of the first unit, as a compaction does."""
    queue = store.queue("orders")
    unit = queue.units()[0]
    areas = [Area(unit.first, unit.end, frozenset(members))]
    owner = Owner("compaction", "1")
    return acquire(store.database, queue, areas, owner=owner, priority=COMPACTION_PRIORITY, lease_seconds=600)


@pytest.mark.full("two submissions, whose programs read files; what is revoked is submitted twice in a cheaper test")
def test_what_a_compaction_does_not_hold_is_submitted_at_once_and_the_rest_behind_it(
    airflow_store: Any, run_drain: Any, spark: FakeSpark, copies: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One submission for each: while the compaction goes on there is nothing to submit."""
    looks: list[int] = []

    def look(seconds: float) -> None:
        looks.append(len(spark.calls()))
        if len(looks) == 3:
            release(airflow_store.database, leases)

    monkeypatch.setattr(submissions, "sleep", look)
    add(airflow_store, 1000)
    airflow_store.database.segments = str(spark.folder / "segments")
    unit = airflow_store.queue("orders").units()[0]
    (name,) = loaded(airflow_store, unit)
    leases = compaction(airflow_store, name)
    report = run_drain()
    assert looks == [1, 1, 1]
    assert (report["acknowledged"], report["skipped"]) == (1010, [])
    given = [json.loads(call["arguments"][-1])["request"] for call in spark.calls()]
    assert [(request["if_locked"], request["ranges"]) for request in given] == [
        ("skip", None),
        ("skip", [unit.to_json()]),
    ]


def test_a_compaction_is_revoked_by_a_submission_behind_the_lock_timeout(
    airflow_store: Any, run_drain: Any, spark: FakeSpark, copies: None
) -> None:
    add(airflow_store, 1000)
    unit = airflow_store.queue("orders").units()[0]
    leases = compaction(airflow_store, ROWS)
    report = run_drain(lock_timeout=0)
    assert (report["acknowledged"], report["skipped"]) == (1000, [])
    given = [json.loads(call["arguments"][-1])["request"] for call in spark.calls()]
    assert [(request["if_locked"], request["ranges"]) for request in given] == [
        ("skip", None),
        ("wait", [unit.to_json()]),
    ]
    with pytest.raises(LeaseLost):
        renew(airflow_store.database, leases, lease_seconds=600)


def loaded(store: Any, unit: Range) -> list[str]:
    """Load ten entries of a unit as a file; returns the names of its segments."""
    queue = store.queue("orders")
    keys = (f"bulk-{i}" for i in itertools.count())
    chosen = itertools.islice((key for key in keys if bucket(key.encode(), queue.buckets) < unit.end), 10)
    with store.transaction(long=True) as tx:
        bulk.add(tx, store, dict.fromkeys(chosen, b"1"))
    with store.database.read() as work:
        found = waiting_segments(work, queue, take_snapshot(store.database), unit)
    return [member(one.transaction, one.number) for one in found]


def test_a_drain_does_not_wait_longer_than_it_may(
    airflow_store: Any, run_drain: Any, spark: FakeSpark, copies: None
) -> None:
    queue = airflow_store.queue("orders")
    claim(airflow_store.database, queue, queue.units(), owner=Owner("somebody", "1"), lease_seconds=600)
    refuse(run_drain, airflow_store, LockNotAvailable, "held: .*somebody", lock_timeout=0)
    report = run_drain(if_locked="skip")
    assert (report["read"], report["skipped"]) == (0, report["skipped"])
    assert report["skipped"]
    assert spark.calls() == []


def test_an_older_try_of_the_same_task_is_not_waited_for(airflow_store: Any, spark: FakeSpark, copies: None) -> None:
    add(airflow_store, 3)
    queue = airflow_store.queue("orders")
    claim(airflow_store.database, queue, queue.units(), owner=Owner("d/r/it", "older"), lease_seconds=600)
    operator = ExportQueueSparkDrainOperator(task_id="it", queue_id="orders", sink_conn_id="copies", lock_timeout=0)
    assert operator.execute(fake_context())["acknowledged"] == 3


def test_the_driver_knows_the_process_whose_end_is_its_own(
    airflow_store: Any, run_drain: Any, spark: FakeSpark, copies: None
) -> None:
    add(airflow_store, 1)
    run_drain()
    (call,) = spark.calls()
    assert DrainArguments.from_json(call["arguments"][-1]).submitter == Submitter.here()


def test_a_submission_that_fails_shows_the_end_of_its_log(
    airflow_store: Any, run_drain: Any, spark: FakeSpark, copies: None
) -> None:
    spark.mode("broken")
    refuse(run_drain, airflow_store, AirflowException, "the cluster is on fire")


def test_a_driver_that_leaves_no_report_is_an_error(
    airflow_store: Any, run_drain: Any, spark: FakeSpark, copies: None
) -> None:
    spark.mode("silent")
    refuse(run_drain, airflow_store, DrainError, "without a report")


def test_a_killed_task_ends_the_submission_and_takes_its_leases_away(
    airflow_store: Any, spark: FakeSpark, copies: None
) -> None:
    spark.mode("hang")
    add(airflow_store, 3)
    operator = ExportQueueSparkDrainOperator(task_id="it", queue_id="orders", sink_conn_id="copies")
    outcome: list[BaseException] = []

    def execute() -> None:
        try:
            operator.execute(fake_context())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=execute)
    thread.start()
    wait_until((spark.folder / "hangs").exists, "the submission does not begin")
    assert held(airflow_store)
    operator.on_kill()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert isinstance(outcome[0], AirflowException | LeaseLost)
    assert not held(airflow_store)
    assert waiting(airflow_store) == 3
    late = DrainArguments.from_json(spark.calls()[-1]["arguments"][-1]).request
    with pytest.raises(LeaseLost):  # a driver that begins only now
        drain_as_requested(airflow_store, MemorySink(), late.another_attempt())


def held(store: Any) -> bool:
    queue = store.queue("orders")
    with store.database.read() as work:
        return bool(holders(work, queue, queue.units()))


def test_a_kill_before_the_submission_is_harmless() -> None:
    ExportQueueSparkDrainOperator(task_id="it", queue_id="orders", sink_conn_id="copies").on_kill()


# -- finding programs --------------------------------------------------------------------------------------------------


def test_spark_is_looked_for_where_one_says(tmp_path: Path) -> None:
    fake = FakeSpark(tmp_path / "spark", SUBMIT, "drain")
    program = str(fake.folder / "bin" / "spark-submit")
    assert find_spark(str(fake.folder), binary=None).submit == program
    assert find_spark(None, binary=program).submit == program
    assert find_spark("", binary=None, path=str(fake.folder / "bin")).submit == program
    with pytest.raises(SparkNotFound, match="spark3-submit"):
        find_spark(str(fake.folder), binary="spark3-submit")


def test_java_is_looked_for_where_spark_submit_will(tmp_path: Path) -> None:
    java = tmp_path / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch(mode=0o755)
    assert find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": ""}) == str(java)
    assert find_java({"PATH": str(java.parent)}) == str(java)


def test_the_parts_of_airflows_operator_that_this_one_relies_on_exist(connect: Any) -> None:
    connect("spark_default", conn_type="spark", host="local[2]")
    operator = ExportQueueSparkDrainOperator(task_id="it", queue_id="orders", sink_conn_id="copies")
    assert operator._hook is None
    assert operator._spark_binary is None
    assert operator._conn_id == "spark_default"
    assert {"master", "deploy_mode", "spark_binary"} <= operator._get_hook()._connection.keys()
