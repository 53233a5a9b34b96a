"""The operator that loads a DataFrame: what it submits, and that its effect comes once; a program stands for Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from tests.support.fake_spark import FakeSpark

from export_queue import ConfigurationError, EntryError, InvalidArgument, SparkJobFailed, Store, UnknownQueue
from export_queue.operators import ExportQueueSparkLoadOperator

SUBMIT = """#!{python}
import json, os, sys
from pathlib import Path
here = Path({folder!r})
with (here / "calls").open("a") as calls:
    calls.write(json.dumps({{"arguments": sys.argv[1:], "password": os.environ.get("XQ_STORE_PASSWORD")}}) + "\\n")
mode = (here / "mode").read_text()
if mode not in ("silent", "broken"):
    from contextlib import closing
    from export_queue.core.client import Store
    from export_queue.core.spark import LoadArguments, LoadReport
    from export_queue.core.transactions import OpenTransaction
    job = LoadArguments.from_json(sys.argv[-1])
if mode in ("load", "dies late"):
    with closing(Store(job.store.open())) as store:
        report = LoadReport(transaction=7, entries=3, bytes=9, files=1, queues={{"orders": 3}})
        store.run(lambda tx: report.to_dict(), idempotency_key=job.options["idempotency_key"])
if mode in ("refused", "foreign"):
    from export_queue.core.errors import EntryError
    from export_queue.core.spark.problems import problem_kept
    with problem_kept(job.store, job.problem_key):
        raise EntryError("key 'a': NaN is not JSON", hint="mend it") if mode == "refused" else OSError("no such day")
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
        "mode": "append",
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


def test_an_error_of_the_driver_fails_the_task_at_once_with_its_cause(airflow_store: Any, spark: FakeSpark) -> None:
    spark.mode("refused")
    with pytest.raises(EntryError, match="NaN is not JSON") as raised:
        execute(an_operator())
    assert isinstance(raised.value, AirflowFailException)
    assert raised.value.hint == "mend it"
    spark.mode("broken")
    with pytest.raises(AirflowException, match="Error code is: 3"):  # the error of that attempt alone
        execute(an_operator())


def test_a_foreign_error_of_the_driver_is_named_and_tried_again(airflow_store: Any, spark: FakeSpark) -> None:
    spark.mode("foreign")
    with pytest.raises(SparkJobFailed, match="OSError: no such day") as raised:
        execute(an_operator())
    assert not isinstance(raised.value, AirflowFailException)
    spark.mode("load")
    assert execute(an_operator())["entries"] == 3


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"queue_id": "order"}, UnknownQueue, "has no queue 'order'"),
        ({"queue_id": "orders/search"}, ConfigurationError, "search"),
        ({"queue_id": None}, InvalidArgument, "either queue or queue_column, found none"),
        ({"queue_column": "queue"}, InvalidArgument, "either queue or queue_column, found both"),
        ({"frame": "frames"}, ConfigurationError, "expected an import path"),
        ({"frame": "/no/such/script.py:orders"}, ConfigurationError, "there is no file /no/such/script.py"),
        ({"frame": "/no/such/script.py:"}, ConfigurationError, "expected /path/script.py:function"),
        ({"queue_id": "locked"}, InvalidArgument, "queue 'locked' is exclusive"),
    ],
)
def test_a_wrong_set_up_fails_at_once_before_the_submission(
    airflow_store: Any, spark: FakeSpark, arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    airflow_store.configure_queue("locked", exclusive=True)
    with pytest.raises(error, match=match) as raised:
        execute(an_operator(**arguments))
    assert isinstance(raised.value, AirflowFailException)
    assert spark.calls() == []


def test_a_store_without_a_place_for_files_is_refused_before_the_submission(
    spark: FakeSpark, postgres_url: str, connect: Any
) -> None:
    connect("export_queue_default", conn_type="export_queue", host=postgres_url)
    with Store.open(postgres_url) as store:
        store.create()
        store.configure_queue("orders")
    with pytest.raises(InvalidArgument, match="the store has no place for segments") as raised:
        execute(an_operator())
    assert isinstance(raised.value, AirflowFailException)
    assert spark.calls() == []


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


FRAMES = """
def one(spark, value="1"):
    return spark.sql(f"select 'anna' as key, {value} as value")

def absent(spark):
    import no_such_module

def broken(spark):
    raise OSError("no such day")
"""


@pytest.mark.full("submissions of Spark")
def test_the_cause_that_the_driver_finds_ends_the_task(
    airflow_store: Any, spark_connection: None, tmp_path: Path
) -> None:
    script = tmp_path / "frames.py"
    script.write_text(FRAMES)
    broken = tmp_path / "broken.py"
    broken.write_text("import no_such_module\n")
    nan = {"frame_arguments": {"value": "double('NaN')"}}
    for arguments, error, match in (
        ({"frame": f"{script}:one", **nan}, EntryError, "the value is nan"),
        ({"frame": f"{script}:absent"}, ConfigurationError, "No module named 'no_such_module'"),
        ({"frame": f"{broken}:one"}, ConfigurationError, "No module named 'no_such_module'"),
    ):
        with pytest.raises(error, match=match) as raised:
            execute(an_operator(**arguments))
        assert isinstance(raised.value, AirflowFailException), arguments
    with pytest.raises(SparkJobFailed, match="OSError: no such day") as other:
        execute(an_operator(frame=f"{script}:broken"))
    assert not isinstance(other.value, AirflowFailException), "a foreign error may pass"
    assert execute(an_operator(frame=f"{script}:one"))["entries"] == 1
