"""The operator that compares on Spark: what it submits, and what it returns; a program stands for Spark."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from tests.support.fake_spark import FakeSpark

from export_queue import (
    ConfigurationError,
    InvalidArgument,
    SinkBindingError,
    SinkSpec,
    SparkJobFailed,
    Store,
    StoreSpec,
    UnknownQueue,
    drain,
    verify_job,
)
from export_queue.core.spark import VerifyArguments
from export_queue.operators import ExportQueueSparkVerifyOperator

PRICES = "export_queue.dags_examples.nightly_verify:prices"
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
from export_queue.core.spark import VerifyArguments
from export_queue.core.spark.problems import problem_kept
from export_queue.core.verify import verify_as_requested
job = VerifyArguments.from_json(sys.argv[-1])
with problem_kept(job.store, job.problem_key), closing(Store(job.store.open())) as store:
    report = verify_as_requested(store, job.sink, job.request())
    result = {{"report": report.to_dict(), "lines": report.lines()}}
    store.run(lambda tx: result, idempotency_key=job.report_key)
sys.exit(1 if mode == "late" else 0)
"""


@pytest.fixture
def spark(tmp_path: Path, connect: Any, monkeypatch: pytest.MonkeyPatch) -> FakeSpark:
    """The Spark that ``spark_default`` and the configuration lead to."""
    fake = FakeSpark(tmp_path / "fake-spark", SUBMIT, "verify")
    monkeypatch.setenv("AIRFLOW__EXPORT_QUEUE__SPARK_HOME", str(fake.folder))
    connect("spark_default", conn_type="spark", host="local[2]")
    return fake


@pytest.fixture
def table(tmp_path: Path, connect: Any) -> sqlite3.Connection:
    """The database of the sink ``copies``."""
    connect("copies", conn_type="sqlite", host=str(tmp_path / "copies.db"))
    return sqlite3.connect(tmp_path / "copies.db", isolation_level=None)


@pytest.fixture
def orders(store_path: Path, tmp_path: Path) -> Any:
    with Store.open(f"sqlite:///{store_path}") as store:
        store.create()
        fill(store, SinkSpec("sql", {"url": f"sqlite:///{tmp_path}/copies.db"}, name="copies"))
        yield store


def fill(store: Store, sink: SinkSpec) -> None:
    store.configure_queue("orders", buckets=10, buckets_per_range=5, state=True)
    with store.transaction() as tx:
        tx.queue("orders").add_many((f"o{n}", {"total": n}) for n in range(20))
    drain(store, "orders", sink)


def an_operator(**arguments: Any) -> ExportQueueSparkVerifyOperator:
    given = {"task_id": "it", "queue_id": "orders", "sink_conn_id": "copies", **arguments}
    return ExportQueueSparkVerifyOperator(**given)


def execute(operator: ExportQueueSparkVerifyOperator) -> Any:
    return operator.execute({"ti": SimpleNamespace(dag_id="d", run_id="r", task_id="it", map_index=-1)})


def test_arguments_are_templated_and_the_report_is_returned(
    orders: Store, table: sqlite3.Connection, run_dag: Any, spark: FakeSpark
) -> None:
    with DAG("spark_verify", schedule=None) as dag:
        an_operator(queue_id="{{ 'orders' }}", max_deletes="{{ 3 }}", collections='{{ ["more"] }}')
    run = run_dag(dag)
    assert run.state == "success", run.errors
    report = run.result("it")
    assert (report["compared"], report["scanned"], report["differences"]) == (20, 20, 0)
    (call,) = spark.calls()
    assert call["arguments"][-2].endswith("job_main.py")
    job = VerifyArguments.from_json(call["arguments"][-1])
    assert (job.queue_id, job.sink.name) == ("orders", "copies")
    assert (job.options["max_deletes"], job.options["collections"]) == (3, ["more"])
    assert not orders.idempotency(job.report_key).committed, "nobody asks for the report again"


def test_differences_fail_at_once_and_a_repair_mends_them(
    orders: Store, table: sqlite3.Connection, spark: FakeSpark
) -> None:
    table.execute("UPDATE orders SET document = '{}' WHERE id = 'o7'")
    with pytest.raises(AirflowFailException, match="1 difference") as raised:
        execute(an_operator())
    assert "different: orders o7" in str(raised.value)
    spark.mode("late")  # the report says more than the exit status
    report = execute(an_operator(repair=True))
    assert (report["differences"], report["repaired"]) == (0, 1)


def test_a_submission_that_fails_is_tried_again(orders: Store, table: sqlite3.Connection, spark: FakeSpark) -> None:
    spark.mode("broken")
    with pytest.raises(AirflowException, match="Error code is: 3"):
        execute(an_operator())
    spark.mode("silent")
    with pytest.raises(SparkJobFailed, match="without a report"):
        execute(an_operator())
    spark.mode("verify")
    assert execute(an_operator())["differences"] == 0


def test_what_cannot_work_is_refused_before_the_submission(
    orders: Store, table: sqlite3.Connection, spark: FakeSpark, connect: Any
) -> None:
    connect("others", conn_type="sqlite", host="/tmp/others.db")
    with pytest.raises(SinkBindingError, match="copies"):
        execute(an_operator(sink_conn_id="others"))
    with pytest.raises(UnknownQueue):
        execute(an_operator(queue_id="elsewhere"))
    with pytest.raises(InvalidArgument, match="lock_timeout"):
        execute(an_operator(lock_timeout=-1))
    with pytest.raises(InvalidArgument, match="module"):
        execute(an_operator(source="no path"))
    connect("spark_default", conn_type="spark", host="spark://elsewhere", port=7077)
    with pytest.raises(ConfigurationError, match="the store is a SQLite file") as raised:
        execute(an_operator())
    assert isinstance(raised.value, AirflowFailException)
    assert spark.calls() == []


def test_the_error_of_the_driver_is_that_of_the_task(
    orders: Store, table: sqlite3.Connection, spark: FakeSpark
) -> None:
    with pytest.raises(InvalidArgument, match="found both") as raised:
        execute(an_operator(source=PRICES, records=PRICES))
    assert isinstance(raised.value, AirflowFailException)


@pytest.mark.postgres
def test_passwords_travel_in_the_environment_alone(
    spark: FakeSpark,
    connect: Any,
    postgres_server: Any,
    postgres_url: str,
    redis_server: Any,
    redis_client: Any,
    run_dag: Any,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passwords = (postgres_server.password, redis_server.password)
    options = {"host": redis_server.host, "port": redis_server.port}
    with Store.open(postgres_url) as store, monkeypatch.context() as patch:
        patch.setenv("XQ_TEST_SINK", redis_server.password)
        store.create()
        fill(store, SinkSpec("redis", options, secrets={"password": "env:XQ_TEST_SINK"}, name="cache"))
    connect("export_queue_default", conn_type="export_queue", host=postgres_url)
    connect("cache", conn_type="redis", password=redis_server.password, **options)
    redis_client.delete("orders:o7")
    operator = an_operator(sink_conn_id="cache", repair=True)
    with caplog.at_level("DEBUG"):
        report = execute(operator)
    assert (report["differences"], report["repaired"]) == (0, 1)
    (call,) = spark.calls()
    assert call["environment"]["XQ_STORE_PASSWORD"] == postgres_server.password
    assert json.loads(call["arguments"][-1])["store"]["secret"] == "env:XQ_STORE_PASSWORD"
    told = capfd.readouterr()
    fields = [str(getattr(operator, name, "")) for name in operator.template_fields]
    for text in (" ".join(call["arguments"]), caplog.text, told.out, told.err, *fields, json.dumps(report)):
        assert not any(password in text for password in passwords)
    assert "XQ_STORE_PASSWORD" not in os.environ


def test_arguments_of_the_driver_survive_their_text_and_others_are_refused() -> None:
    sink = SinkSpec("sql", {"url": "sqlite:////copies.db"}, name="copies")
    job = verify_job(store=StoreSpec(url="sqlite:////store.db"), queue_id="orders", sink=sink, repair=True, rounds=2)
    given = VerifyArguments.from_json(job.arguments[0])
    assert (given.queue_id, given.report_key, given.problem_key) == ("orders", job.report_key, job.problem_key)
    assert (given.request().repair, given.request().rounds) == (True, 2)
    assert VerifyArguments.from_json(given.to_json()) == given
    for wrong in ({"start_timeout": 0}, {"options": {"rounds": 0}}, {"options": {"sauce": 1}}):
        with pytest.raises(InvalidArgument):
            VerifyArguments.from_json(json.dumps({**json.loads(given.to_json()), **wrong}))
