"""The operator that merges on Spark: what it submits, and what it returns; a program stands for Spark."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTerminated
from tests.support import bulk
from tests.support.bulk import many
from tests.support.fake_spark import FakeSpark
from tests.support.waiting import wait_until

from export_queue import (
    ConfigurationError,
    HasSubscriptions,
    InvalidArgument,
    LeaseLost,
    SparkJobFailed,
    Store,
    compact_job,
)
from export_queue.core.locks import standing_locks
from export_queue.core.segments import compact
from export_queue.core.spark import CompactArguments
from export_queue.operators import ExportQueueSparkCompactOperator

KEY = "kept-secret-4711"

SUBMIT = """#!{python}
import json, os, sys
from pathlib import Path
here = Path({folder!r})
with (here / "calls").open("a") as calls:
    calls.write(json.dumps({{"arguments": sys.argv[1:], "environment": dict(os.environ)}}) + "\\n")
mode = (here / "mode").read_text()
if mode == "broken":
    print("the cluster is on fire"); sys.exit(3)
if mode == "silent":
    sys.exit(0)
from contextlib import closing
from export_queue.core.client import Store
from export_queue.core.segments import compact, watched_steps
from export_queue.core.spark import CompactArguments
def hang(step):
    if step == "written":
        (here / "hangs").touch()
        import time; time.sleep(100)
def die(step):
    if step == "written":
        os._exit(137)
if mode in ("hang", "die"):
    watched_steps.WATCHERS[:] = [hang if mode == "hang" else die]
job = CompactArguments.from_json(sys.argv[-1])
with closing(Store(job.store.open())) as store:
    report = compact(store.database, job.queue_id, wanted=job.wanted, owner=job.owner.submitted())
    store.run(lambda tx: report.summary(), idempotency_key=job.report_key)
sys.exit(1 if mode == "late" else 0)
"""


@pytest.fixture
def spark(tmp_path: Path, connect: Any, monkeypatch: pytest.MonkeyPatch) -> FakeSpark:
    """The Spark that ``spark_default`` and the configuration lead to."""
    fake = FakeSpark(tmp_path / "fake-spark", SUBMIT, "compact")
    monkeypatch.setenv("AIRFLOW__EXPORT_QUEUE__SPARK_HOME", str(fake.folder))
    connect("spark_default", conn_type="spark", host="local[2]")
    return fake


@pytest.fixture
def orders(store_path: Path) -> Any:
    with Store.open(f"sqlite:///{store_path}") as store:
        store.create()
        store.configure_queue("orders", buckets=10, buckets_per_range=5, value="bytes")
        for _ in range(5):
            bulk.load(store, many(20, b"load"))
        yield store


def an_operator(**arguments: Any) -> ExportQueueSparkCompactOperator:
    return ExportQueueSparkCompactOperator(**{"task_id": "it", "queue_id": "orders", "least": 2, **arguments})


def execute(operator: ExportQueueSparkCompactOperator) -> Any:
    return operator.execute({"ti": SimpleNamespace(dag_id="d", run_id="r", task_id="it", map_index=-1)})


def locks(store: Store) -> int:
    with store.database.read() as work:
        return len(standing_locks(work, store.queue("orders")))


def test_the_report_is_that_of_the_lineage_too(orders: Store, spark: FakeSpark) -> None:
    task = an_operator(least=2, age_seconds=0)
    report = task.execute({"ti": SimpleNamespace(dag_id="d", run_id="r", task_id="it", map_index=-1)})
    assert [one.rows for one in (*task.lineage().inputs, *task.lineage().outputs)] == [100, report["written"]]


def test_arguments_are_templated_and_the_report_is_returned(orders: Store, run_dag: Any, spark: FakeSpark) -> None:
    with DAG("spark_compact", schedule=None) as dag:
        an_operator(queue_id="{{ 'orders' }}", least="{{ 2 }}", age_seconds="{{ 0 }}", py_files="/mine.zip")
    run = run_dag(dag)
    assert run.state == "success", run.errors
    report = run.result("it")
    assert (report["inputs"], report["outputs"], report["units"], report["read"], report["lost"]) == (10, 2, 2, 100, 0)
    (call,) = spark.calls()
    assert call["arguments"][-2].endswith("job_main.py")
    assert call["arguments"][call["arguments"].index("--py-files") + 1].endswith(",/mine.zip")
    job = CompactArguments.from_json(call["arguments"][-1])
    assert (job.queue_id, job.wanted.least, job.owner.task) == ("orders", 2, f"spark_compact/{run.run_id}/it")
    assert not orders.idempotency(job.report_key).committed, "nobody asks for the report again"


def test_where_nothing_is_worth_it_nothing_is_submitted(orders: Store, spark: FakeSpark) -> None:
    report = execute(an_operator(least=8))
    assert (report["dry_run"], report["inputs"], report["units"]) == (False, 0, 0)
    assert spark.calls() == []


def test_a_dry_run_is_not_submitted(orders: Store, spark: FakeSpark) -> None:
    report = execute(an_operator(dry_run=True))
    assert (report["dry_run"], report["inputs"], report["units"]) == (True, 10, 2)
    assert spark.calls() == []


def test_a_submission_that_fails_is_tried_again(orders: Store, spark: FakeSpark) -> None:
    spark.mode("broken")
    with pytest.raises(AirflowException, match="Error code is: 3"):
        execute(an_operator())
    spark.mode("silent")
    with pytest.raises(SparkJobFailed, match="without a report"):
        execute(an_operator())
    spark.mode("compact")
    assert execute(an_operator())["inputs"] == 10


def test_a_retry_takes_over_what_an_attempt_that_died_has_locked(orders: Store, spark: FakeSpark) -> None:
    spark.mode("die")
    with pytest.raises(AirflowException, match="Error code is: 137"):
        execute(an_operator())
    assert locks(orders) == 2
    spark.mode("compact")
    report = execute(an_operator())
    assert (report["inputs"], report["passed_over"], report["lost"]) == (10, 0, 0)
    assert locks(orders) == 0


def test_a_submission_that_fails_behind_the_report_has_done_its_work(orders: Store, spark: FakeSpark) -> None:
    spark.mode("late")
    assert execute(an_operator())["inputs"] == 10


def test_a_killed_task_ends_the_submission_and_takes_its_locks_away(orders: Store, spark: FakeSpark) -> None:
    spark.mode("hang")
    operator = an_operator()
    outcome: list[BaseException] = []

    def run() -> None:
        try:
            execute(operator)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until((spark.folder / "hangs").exists, "the submission does not begin")
    assert locks(orders) == 2
    operator.on_kill()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert isinstance(outcome[0], AirflowException)
    assert locks(orders) == 0
    late = CompactArguments.from_json(spark.calls()[-1]["arguments"][-1])
    with pytest.raises(LeaseLost):  # a driver that begins only now
        compact(orders.database, "orders", wanted=late.wanted, owner=late.owner.submitted())
    spark.mode("compact")
    assert execute(an_operator())["inputs"] == 10


def test_a_task_that_is_killed_while_it_looks_submits_nothing(
    orders: Store, spark: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = an_operator()
    prepare = operator._prepare_spark

    def kill(*arguments: Any, **options: Any) -> Any:
        operator.on_kill()
        return prepare(*arguments, **options)

    monkeypatch.setattr(operator, "_prepare_spark", kill)
    with pytest.raises(AirflowTaskTerminated):
        execute(operator)
    assert spark.calls() == []


def test_a_queue_with_subscriptions_is_refused_and_one_of_them_is_merged(orders: Store, spark: FakeSpark) -> None:
    orders.configure_queue("fed", buckets=10, buckets_per_range=5, value="bytes")
    orders.subscribe("fed", "copies")
    for _ in range(5):
        bulk.load(orders, many(20, b"load"), queue_id="fed")
    with pytest.raises(HasSubscriptions) as raised:
        execute(an_operator(queue_id="fed"))
    assert isinstance(raised.value, AirflowFailException)
    assert spark.calls() == []
    assert execute(an_operator(queue_id="fed/copies"))["inputs"] == 10


@pytest.mark.postgres
def test_a_place_for_files_is_needed_and_a_password_travels_in_the_environment_alone(
    spark: FakeSpark,
    connect: Any,
    postgres_server: Any,
    postgres_url: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    folder = str(tmp_path / "segments")
    with Store.open(postgres_url, segments=folder) as store:
        store.create()
        store.configure_queue("orders", buckets=10, buckets_per_range=5, value="bytes")
        for _ in range(5):
            bulk.load(store, many(20, b"load"))
    connect("export_queue_default", conn_type="export_queue", host=postgres_url)
    with pytest.raises(InvalidArgument, match="no place for segments"):
        execute(an_operator())
    assert spark.calls() == []
    connect("export_queue_default", conn_type="export_queue", host=postgres_url, extra={"segments": folder})
    with caplog.at_level("DEBUG"):
        assert execute(an_operator())["inputs"] == 10
    (call,) = spark.calls()
    assert call["environment"]["XQ_STORE_PASSWORD"] == postgres_server.password
    assert json.loads(call["arguments"][-1])["store"]["secret"] == "env:XQ_STORE_PASSWORD"
    told = capfd.readouterr()
    for text in (" ".join(call["arguments"]), caplog.text, told.out, told.err):
        assert postgres_server.password not in text
        assert KEY not in text
    assert "XQ_STORE_PASSWORD" not in os.environ


def test_what_cannot_work_is_refused_before_the_submission(orders: Store, spark: FakeSpark, connect: Any) -> None:
    connect("spark_default", conn_type="spark", host="spark://elsewhere", port=7077)
    with pytest.raises(ConfigurationError, match="the store is a SQLite file") as raised:
        execute(an_operator())
    assert isinstance(raised.value, AirflowFailException)
    assert spark.calls() == []


def test_arguments_of_the_driver_survive_their_text_and_others_are_refused() -> None:
    from export_queue.core.store import StoreSpec

    job = compact_job(store=StoreSpec(url="sqlite:////store.db"), queue_id="orders")
    given = CompactArguments.from_json(job.arguments[0])
    assert (given.queue_id, given.report_key) == ("orders", job.report_key)
    assert CompactArguments.from_json(given.to_json()) == given
    for text in ("{}", "[]", json.dumps({**json.loads(given.to_json()), "start_timeout": 0})):
        with pytest.raises(InvalidArgument):
            CompactArguments.from_json(text)
