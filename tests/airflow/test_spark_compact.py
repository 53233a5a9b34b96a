"""The operator that merges on Spark: what it submits, and what it returns; a program stands for Spark."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from tests.support import bulk
from tests.support.bulk import many
from tests.support.fake_spark import FakeSpark

from export_queue.core.client import Store
from export_queue.core.errors import ConfigurationError, SparkJobFailed
from export_queue.core.spark import CompactArguments, compact_job
from export_queue.operators import ExportQueueSparkCompactOperator

SUBMIT = """#!{python}
import json, sys
from pathlib import Path
here = Path({folder!r})
with (here / "calls").open("a") as calls:
    calls.write(json.dumps({{"arguments": sys.argv[1:]}}) + "\\n")
mode = (here / "mode").read_text()
if mode == "broken":
    print("the cluster is on fire"); sys.exit(3)
if mode == "compact":
    from contextlib import closing
    from export_queue.core.client import Store
    from export_queue.core.segments import compact
    from export_queue.core.spark import CompactArguments
    job = CompactArguments.from_json(sys.argv[-1])
    with closing(Store(job.store.open())) as store:
        report = compact(store.database, job.queue_id, wanted=job.wanted, owner=job.owner.submitted())
        store.run(lambda tx: report.summary(), idempotency_key=job.report_key)
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


def test_arguments_are_templated_and_the_report_is_returned(orders: Store, run_dag: Any, spark: FakeSpark) -> None:
    with DAG("spark_compact", schedule=None) as dag:
        an_operator(queue_id="{{ 'orders' }}", least="{{ 2 }}", age_seconds="{{ 0 }}", py_files="/mine.zip")
    run = run_dag(dag)
    assert run.state == "success", run.errors
    report = run.result("it")
    assert (report["inputs"], report["outputs"], report["units"], report["read"], report["lost"]) == (10, 2, 2, 100, 0)
    (call,) = spark.calls()
    assert call["arguments"][-2].endswith("compact_main.py")
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


def test_what_cannot_work_is_refused_before_the_submission(orders: Store, spark: FakeSpark, connect: Any) -> None:
    connect("spark_default", conn_type="spark", host="spark://elsewhere", port=7077)
    with pytest.raises(ConfigurationError, match="the store is a SQLite file") as raised:
        execute(an_operator())
    assert isinstance(raised.value, AirflowFailException)
    assert spark.calls() == []


def test_arguments_of_the_driver_survive_their_text_and_others_are_refused() -> None:
    from export_queue.core.errors import InvalidArgument
    from export_queue.core.store import StoreSpec

    job = compact_job(store=StoreSpec(url="sqlite:////store.db"), queue_id="orders")
    given = CompactArguments.from_json(job.arguments[0])
    assert (given.queue_id, given.report_key) == ("orders", job.report_key)
    assert CompactArguments.from_json(given.to_json()) == given
    for text in ("{}", "[]", json.dumps({**json.loads(given.to_json()), "start_timeout": 0})):
        with pytest.raises(InvalidArgument):
            CompactArguments.from_json(text)
