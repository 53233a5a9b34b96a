"""The operator that loads a DataFrame: what it submits, and that its effect comes once; a program stands for Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException
from tests.support.fake_spark import FakeSpark

from export_queue.core.errors import ConfigurationError, InvalidArgument
from export_queue.operators import ExportQueueSparkLoadOperator

SUBMIT = """#!{python}
import json, os, sys
from pathlib import Path
here = Path({folder!r})
with (here / "calls").open("a") as calls:
    calls.write(json.dumps({{"arguments": sys.argv[1:], "password": os.environ.get("XQ_STORE_PASSWORD")}}) + "\\n")
mode = (here / "mode").read_text()
if mode != "silent" and mode != "broken":
    from contextlib import closing
    from export_queue.core.client import Store
    from export_queue.core.spark import LoadArguments, LoadReport
    from export_queue.core.transactions import OpenTransaction
    job = LoadArguments.from_json(sys.argv[-1])
    with closing(Store(job.store.open())) as store:
        report = LoadReport(transaction=7, entries=3, bytes=9, files=1, queues={{"orders": 3}})
        store.run(lambda tx: report.to_dict(), idempotency_key=job.options["idempotency_key"])
if mode in ("broken", "dies late"):
    print("the cluster is on fire"); sys.exit(3)
"""


@pytest.fixture
def spark(tmp_path: Path, connect: Any, monkeypatch: pytest.MonkeyPatch) -> FakeSpark:
    """The Spark that ``spark_default`` and the configuration lead to."""
    fake = FakeSpark(tmp_path / "fake-spark", SUBMIT, "load")
    monkeypatch.setenv("AIRFLOW__EXPORT_QUEUE__SPARK_HOME", str(fake.folder))
    connect("spark_default", conn_type="spark", host="local[2]")
    return fake


Load = Callable[..., Any]


def an_operator(**arguments: Any) -> ExportQueueSparkLoadOperator:
    return ExportQueueSparkLoadOperator(
        **{"task_id": "it", "queue_id": "orders", "frame": "frames:orders", **arguments}
    )


def execute(operator: ExportQueueSparkLoadOperator) -> Any:
    return operator.execute({"ti": SimpleNamespace(dag_id="d", run_id="r", task_id="it", map_index=-1)})


def test_arguments_are_templated_and_the_report_is_returned(airflow_store: Any, run_dag: Any, spark: FakeSpark) -> None:
    with DAG("spark_load", schedule=None) as dag:
        an_operator(
            queue_id="{{ 'orders' }}",
            frame="{{ 'frames' }}:orders",
            frame_arguments={"day": "{{ 'today' }}"},
            latest_by="{{ 'at' }}",
            transaction_timeout=60.0,
            py_files="/mine.zip",
        )
    run = run_dag(dag)
    assert run.state == "success", run.errors
    assert run.result("it")["entries"] == 3
    (call,) = spark.calls()
    job = json.loads(call["arguments"][-1])
    assert (job["frame"], job["frame_arguments"]) == ("frames:orders", {"day": "today"})
    key = job["options"].pop("idempotency_key")
    assert key == f"spark_load/{run.run_id}/it"
    assert job["options"] == {
        "queue": "orders",
        "queue_column": None,
        "key": "key",
        "value": "value",
        "latest_by": "at",
        "timeout": 60.0,
    }
    assert call["arguments"][call["arguments"].index("--py-files") + 1].endswith(",/mine.zip")
    state = airflow_store.idempotency(key)
    assert (state.committed, state.generation) == (False, 2), "the accepted success has closed the generation"


def test_a_retry_behind_a_commit_submits_nothing(airflow_store: Any, spark: FakeSpark) -> None:
    first = execute(an_operator())
    assert execute(an_operator()) == first
    assert len(spark.calls()) == 1


def test_a_submission_that_fails_behind_its_commit_has_succeeded(airflow_store: Any, spark: FakeSpark) -> None:
    spark.mode("dies late")
    assert execute(an_operator())["entries"] == 3


def test_a_submission_that_fails_before_its_commit_is_tried_again(airflow_store: Any, spark: FakeSpark) -> None:
    spark.mode("broken")
    with pytest.raises(AirflowException, match="Error code is: 3"):
        execute(an_operator())
    spark.mode("silent")
    with pytest.raises(Exception, match="its transaction has not committed"):
        execute(an_operator())
    spark.mode("load")
    assert execute(an_operator())["entries"] == 3


def test_what_cannot_work_is_refused_before_the_submission(airflow_store: Any, spark: FakeSpark, connect: Any) -> None:
    connect("spark_default", conn_type="spark", host="spark://elsewhere", port=7077)
    with pytest.raises(ConfigurationError, match="the store is a SQLite file"):
        execute(an_operator())
    with pytest.raises(InvalidArgument, match="store_secret: expected env:NAME"):
        an_operator(store_secret="hidden")
    connect("spark_default", conn_type="spark", host="local[2]")
    with pytest.raises(InvalidArgument, match="frame_arguments: expected values of JSON"):
        execute(an_operator(frame_arguments={"day": object()}))
    assert spark.calls() == []
