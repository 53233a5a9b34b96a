"""What spark-submit is given for each kind of cluster: arguments, settings, variables, and no secret in any of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from airflow.sdk.exceptions import AirflowFailException
from tests.airflow.test_spark_drain import fake_context
from tests.support.fake_spark import FakeSpark
from tests.support.servers import free_port

from export_queue import SparkJobFailed, Store
from export_queue.core.spark import DrainArguments, LoadArguments, check_answers
from export_queue.core.spark.job import APPLICATION, CONF, QUICK_CONF
from export_queue.operators import ExportQueueSparkDrainOperator, ExportQueueSparkLoadOperator

PASSWORD = "kept-secret-4712"
REFERENCES = {
    "store_secret": "file:/etc/export-queue/store",
    "sink_secrets": {"password": "file:/etc/export-queue/redis"},
}
YARN = {"host": "yarn"}
YARN_CLUSTER = {"host": "yarn", "extra": {"deploy-mode": "cluster"}}
STANDALONE = {"host": "spark://master.example", "port": 7077}
THERE = "./environment/bin/python"

SUBMIT = """#!{python}
import json, os, sys
from pathlib import Path
with (Path({folder!r}) / "calls").open("a") as calls:
    calls.write(json.dumps({{"arguments": sys.argv[1:], "environment": dict(os.environ)}}) + "\\n")
"""


@pytest.fixture
def spark(tmp_path: Path, connect: Any, monkeypatch: pytest.MonkeyPatch, postgres_url: str) -> FakeSpark:
    """A Spark that runs nothing; a store on a server with a password, in which an entry waits; and a sink."""
    fake = FakeSpark(tmp_path / "fake-spark", SUBMIT, "silent")
    (fake.folder / "bin" / "python").symlink_to("/bin/true")
    monkeypatch.setenv("AIRFLOW__EXPORT_QUEUE__SPARK_HOME", str(fake.folder))
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr("export_queue.core.spark.check_answers", lambda master: None)
    connect("export_queue_default", conn_type="export_queue", host=postgres_url, extra={"segments": "s3://bucket/it"})
    connect("cache", conn_type="redis", host="redis.example", password=PASSWORD)
    with Store.open(postgres_url) as store:
        store.create()
        store.configure_queue("orders")
        with store.transaction() as tx:
            tx.queue("orders").add("anna", {"total": 1})
    return fake


def submitted(spark: FakeSpark, operator: Any) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Run an operator; returns the words before the settings and behind them, the settings, and the variables."""
    with pytest.raises(SparkJobFailed, match="the Spark driver ended"):
        operator.execute(fake_context())
    (call,) = spark.calls()
    words = call["arguments"]
    settings = dict(words[i + 1].split("=", 1) for i, word in enumerate(words) if word == "--conf")
    others = [word for i, word in enumerate(words) if word != "--conf" and (not i or words[i - 1] != "--conf")]
    return others, settings, call["environment"]


def drain(**arguments: Any) -> ExportQueueSparkDrainOperator:
    return ExportQueueSparkDrainOperator(
        **{
            "task_id": "it",
            "queue_id": "orders",
            "sink_conn_id": "cache",
            "py_files": "/mine/my_exports.py",
            **arguments,
        }
    )


def test_a_master_that_is_down_is_named_before_anything_is_submitted(
    spark: FakeSpark, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export_queue.core.spark.check_answers", check_answers)
    port = free_port()
    connect("spark_default", conn_type="spark", host="spark://127.0.0.1", port=port)
    for operator in (drain(), load()):
        with pytest.raises(
            SparkJobFailed, match=rf"master spark://127.0.0.1:{port} does not answer .*refused"
        ) as raised:
            operator.execute(fake_context())
        assert not isinstance(raised.value, AirflowFailException), "it may be up again for the next try"
    assert spark.calls() == []


def load(**arguments: Any) -> ExportQueueSparkLoadOperator:
    return ExportQueueSparkLoadOperator(
        **{"task_id": "it", "queue_id": "orders", "frame": "frames:orders", "py_files": "/mine/frames.py", **arguments}
    )


def test_a_standalone_cluster_runs_the_python_that_is_named_and_gets_no_password(
    spark: FakeSpark, connect: Any, postgres_url: str
) -> None:
    connect("spark_default", conn_type="spark", **STANDALONE)
    words, settings, variables = submitted(spark, drain(spark_python="/opt/spark-environment/bin/python"))
    py_files = words[words.index("--py-files") + 1]
    assert words[:2] == ["--master", "spark://master.example:7077"]
    assert py_files.startswith("/")
    assert py_files.endswith(",/mine/my_exports.py")
    assert words[-2] == str(APPLICATION)
    assert "--deploy-mode" not in words
    assert settings == QUICK_CONF
    assert variables["PYSPARK_PYTHON"] == variables["PYSPARK_DRIVER_PYTHON"] == "/opt/spark-environment/bin/python"
    job = DrainArguments.from_json(words[-1])
    assert (job.store.secret, job.sink.secrets) == ("env:XQ_STORE_PASSWORD", {"password": job.sink.secrets["password"]})
    assert job.submitter is not None
    secret = sa.make_url(postgres_url).password or ""
    assert variables["XQ_STORE_PASSWORD"] == secret
    for text in (json.dumps(words), json.dumps(settings)):
        assert PASSWORD not in text
        assert secret not in text


@pytest.mark.parametrize("kind", ["drain", "load"])
def test_yarns_client_mode_leaves_the_python_of_executors_to_sparks_settings(
    spark: FakeSpark, connect: Any, kind: str
) -> None:
    connect("spark_default", conn_type="spark", **YARN)
    own = {"spark.pyspark.python": THERE, "spark.pyspark.driver.python": "/opt/spark-environment/bin/python"}
    operator = (drain if kind == "drain" else load)(archives="/mine/environment.tar.gz#environment", conf=own)
    words, settings, variables = submitted(spark, operator)
    assert words[:2] == ["--master", "yarn"]
    assert words[words.index("--archives") + 1] == "/mine/environment.tar.gz#environment"
    assert settings == {**(QUICK_CONF if kind == "drain" else CONF), **own}
    assert "PYSPARK_PYTHON" not in variables
    assert words[-2] == str(APPLICATION)


@pytest.mark.parametrize(
    ("arguments", "python"),
    [
        ({}, "python3"),
        ({"spark_python": THERE}, THERE),
        ({"conf": {"spark.yarn.appMasterEnv.PYSPARK_PYTHON": THERE}}, THERE),
        ({"conf": {"spark.pyspark.python": THERE}}, THERE),
        ({"env_vars": {"PYSPARK_PYTHON": THERE}}, THERE),
    ],
)
@pytest.mark.parametrize("kind", ["drain", "load"])
def test_a_cluster_mode_gets_no_path_of_this_machine_and_no_password(
    spark: FakeSpark, connect: Any, postgres_url: str, kind: str, arguments: dict[str, Any], python: str
) -> None:
    connect("spark_default", conn_type="spark", **YARN_CLUSTER)
    secrets = REFERENCES if kind == "drain" else {"store_secret": REFERENCES["store_secret"]}
    words, settings, variables = submitted(spark, (drain if kind == "drain" else load)(**secrets, **arguments))
    assert words[words.index("--deploy-mode") + 1] == "cluster"
    assert (settings["spark.pyspark.python"], settings["spark.pyspark.driver.python"]) == (python, python)
    job: Any = (DrainArguments if kind == "drain" else LoadArguments).from_json(words[-1])
    assert job.store.secret == "file:/etc/export-queue/store"
    assert job.submitter is None
    if kind == "drain":
        assert job.sink.secrets == REFERENCES["sink_secrets"]
    # spark-submit itself is found by this machine's Python
    assert variables["PYSPARK_DRIVER_PYTHON"] == str(spark.folder / "bin" / "python")
    everything = json.dumps(
        [words, settings, {k: v for k, v in variables.items() if not k.startswith("AIRFLOW_CONN_")}]
    )
    assert PASSWORD not in everything
    assert (sa.make_url(postgres_url).password or "") not in everything
