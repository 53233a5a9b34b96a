"""What a submitter gets: program, archive, arguments, settings; all without PySpark."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from export_queue import (
    ConfigurationError,
    InvalidArgument,
    Owner,
    Range,
    Retry,
    SinkConfigurationError,
    SinkSpec,
    StoreSpec,
    Submitter,
    drain_job,
)
from export_queue.core.drain import DRAIN_RETRY, DrainRequest
from export_queue.core.drain.follow import FOLLOW_RETRY
from export_queue.core.spark import DrainArguments, check_master
from export_queue.core.spark.archive import package_archive
from export_queue.core.spark.carried_secrets import CarriedSecrets, carried_secrets, references, refuse_unsendable
from export_queue.core.spark.pyspark_path import without_archives

SINK = SinkSpec("redis", {"host": "r", "key": "o:$id"}, {"password": "env:XQ_SINK_R"}, name="r")
STORE = StoreSpec(url="postgresql+psycopg://user@host/db", secret="env:XQ_STORE")
MINIMUM = {"queue_id": "orders", "sink": SINK, "store": STORE, "drain_id": "t", "owner": Owner("dag/run/task")}


def arguments(**options):
    request = DrainRequest(queue_id="orders", sink_name="r", **options)
    return DrainArguments(store=STORE, sink=SINK, request=request, max_parallel=3)


def test_a_job_is_a_program_an_archive_and_one_text_of_arguments():
    job = drain_job(**MINIMUM, ranges=[Range(0, 101), [202, 303]])
    assert Path(job.application).name == "job_main.py"
    assert Path(job.application).exists()
    assert job.drain_id == "t"
    (text,) = job.arguments
    found = DrainArguments.from_json(text)
    assert (found.sink, found.store) == (SINK, STORE)
    assert found.request.ranges == (Range(0, 101), Range(202, 303))
    assert (found.request.sink_name, found.request.owner.task) == ("r", "dag/run/task")


def test_arguments_survive_json():
    given = arguments(exporter="m:f", if_locked="skip", ranges=[[0, 5]], retry=Retry(attempts=2, seconds=9))
    given = dataclasses.replace(given, submitter=Submitter.here())
    assert DrainArguments.from_json(given.to_json()) == given


def test_a_job_that_follows_says_so_and_repeats_steps_for_a_second_only():
    found = DrainArguments.from_json(drain_job(**MINIMUM, follow=True, time_limit=3600).arguments[0])
    assert (found.follow, found.request.time_limit, found.request.retry) == (True, 3600, FOLLOW_RETRY)
    found = DrainArguments.from_json(drain_job(**MINIMUM).arguments[0])
    assert (found.follow, found.request.time_limit, found.request.retry) == (False, None, DRAIN_RETRY)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"follow": True, "time_limit": 0}, "time_limit: expected seconds above 0"),
        ({"follow": True, "time_limit": "soon"}, "time_limit: expected seconds above 0"),
        ({"follow": True, "if_locked": "fail"}, "if_locked: a follower never waits for other holders"),
    ],
)
def test_options_that_do_not_suit_a_job_that_follows_are_refused(options, message):
    with pytest.raises(InvalidArgument, match=message):
        drain_job(**MINIMUM, **options)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"sink": 1}', json.dumps({"unknown": 1})])
def test_other_text_is_refused(text):
    with pytest.raises(InvalidArgument):
        DrainArguments.from_json(text)


def test_an_unknown_option_is_refused_with_those_that_there_are():
    with pytest.raises(InvalidArgument, match=r"no option max_deaed; it has: exporter, .*max_dead"):
        drain_job(**MINIMUM, max_deaed=3)


def test_a_password_among_the_sinks_options_is_refused():
    with pytest.raises(SinkConfigurationError):
        SinkSpec("sql", {"url": "postgresql+psycopg://user:s3cr3t@host/db"})


def test_a_function_is_no_exporter_for_executors():
    with pytest.raises(InvalidArgument, match="import path"):
        drain_job(**MINIMUM, exporter=print)


def test_a_sqlite_store_with_executors_on_other_machines_is_refused():
    local = MINIMUM | {"store": StoreSpec(url="sqlite:///store.db")}
    with pytest.raises(ConfigurationError, match="SQLite"):
        drain_job(**local, master="spark://host:7077")
    drain_job(**local, master="local[2]")
    drain_job(**local)


def test_a_sqlite_sink_with_executors_on_other_machines_is_refused():
    files = MINIMUM | {"sink": SinkSpec("sql", {"url": "sqlite:///copies.db"}, name="copies")}
    with pytest.raises(ConfigurationError, match="the sink 'copies' is a SQLite file"):
        drain_job(**files, master="yarn")
    drain_job(**files, master="local[2]")


PROTECTED = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
FILE = SinkSpec("redis", {"host": "s"}, {"password": "file:/run/s"})
WANTED = ["env:XQ_SINK_R", "env:XQ_STORE", "file:/run/s"]


def test_the_references_of_a_task_are_those_of_its_store_and_of_all_parts_of_its_sink():
    both = SinkSpec("composite", {"parts": [json.loads(SINK.to_json()), json.loads(FILE.to_json())]})
    assert references(STORE, both) == WANTED
    assert references(StoreSpec(url="sqlite:///x.db"), SinkSpec("memory", {})) == []


def test_variables_that_the_driver_has_are_carried_over_protected_connections(monkeypatch):
    monkeypatch.setenv("XQ_STORE", "s3cr3t")
    monkeypatch.delenv("XQ_SINK_R", raising=False)
    monkeypatch.setenv("XQ_UNRELATED", "other")
    carried = carried_secrets(PROTECTED, WANTED, ["env:XQ_STORE"])
    assert carried.variables == {"XQ_STORE": "s3cr3t"}
    assert "s3cr3t" not in repr(carried)
    tls = {"spark.authenticate": "true", "spark.ssl.rpc.enabled": "true"}
    assert carried_secrets(tls, WANTED, []).variables == {"XQ_STORE": "s3cr3t"}, (
        "executors may come that were not asked"
    )


@pytest.mark.parametrize("missing", list(PROTECTED))
def test_without_protected_connections_no_secret_is_sent(monkeypatch, missing):
    monkeypatch.setenv("XQ_STORE", "s3cr3t")
    conf = {name: value for name, value in PROTECTED.items() if name != missing}
    assert carried_secrets(conf, WANTED, []).variables == {}, "executors look the references up themselves"
    with pytest.raises(ConfigurationError, match="in clear") as caught:
        carried_secrets(conf, WANTED, ["env:XQ_STORE"])
    assert set(PROTECTED) <= set(re.findall(r"spark[.a-z]+[a-z]", caught.value.hint))
    assert "s3cr3t" not in str(caught.value)


def test_a_reference_that_leads_nowhere_on_executors_is_named(monkeypatch):
    monkeypatch.setenv("XQ_STORE", "s3cr3t")
    monkeypatch.delenv("XQ_SINK_R", raising=False)
    with pytest.raises(ConfigurationError, match="cannot look up env:XQ_SINK_R, file:/run/s"):
        carried_secrets(PROTECTED, WANTED, WANTED)


def test_passwords_of_connections_are_refused_before_an_executor_starts(monkeypatch):
    monkeypatch.setenv("XQ_STORE", "s3cr3t")
    monkeypatch.setenv("XQ_SINK_R", "s3cr3t")
    remote = {"spark.master": "spark://h:7077"}
    with pytest.raises(ConfigurationError, match="^env:XQ_SINK_R can be looked up only on the driver's machine"):
        refuse_unsendable(remote, WANTED)
    for conf in (remote | PROTECTED, remote | {"spark.executorEnv.XQ_SINK_R": "x"}, {"spark.master": "local[2]"}):
        refuse_unsendable(conf, WANTED)


def test_secrets_that_would_make_spark_write_a_file_are_refused(monkeypatch):
    monkeypatch.setenv("XQ_STORE", "x" * (1 << 18))
    with pytest.raises(ConfigurationError, match="too large"):
        carried_secrets(PROTECTED, WANTED, [])


@pytest.mark.parametrize(
    ("master", "mode", "message"),
    [
        ("sc://host:15002", None, "Spark Connect"),
        ("spark://host:7077", "cluster", "no Python driver in cluster mode"),
        ("local[2]", "cluster", "no Python driver in cluster mode"),
        ("yarn", "client", "HADOOP_CONF_DIR"),
        ("mesos://host:5050", None, "knows no master"),
        ("host:7077", None, "knows no master"),
    ],
)
def test_a_master_that_cannot_run_a_drain_is_refused_before_anything_starts(master, mode, message):
    with pytest.raises(ConfigurationError, match=message):
        check_master(master, deploy_mode=mode, environment={})


def test_masters_that_can_run_a_drain_are_let_through():
    for master in ("local", "local[*]", "local-cluster[2,1,1024]", "spark://h:7077", "k8s://https://h:6443", "yarn"):
        check_master(master, deploy_mode="client", environment={"YARN_CONF_DIR": "/etc/hadoop"})
    check_master("yarn")  # a submitter elsewhere may have the variables
    check_master("yarn", environment={}, has_spark_env=True)


def test_the_submitter_is_known_beyond_the_reuse_of_its_number():
    here = Submitter.here()
    assert here is not None
    assert here.is_alive
    assert here.is_in_sight
    assert not dataclasses.replace(here, started=here.started - 1).is_alive
    assert not dataclasses.replace(here, namespace="another container").is_in_sight
    with subprocess.Popen(["sleep", "1000"]) as child:
        stat = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        other = dataclasses.replace(here, pid=child.pid, started=int(stat[19]))
        assert other.is_alive
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not other.is_alive, "it has ended, though its parent has not looked"
    assert not other.is_alive


def test_an_executors_own_variable_counts_more_than_one_that_was_carried(monkeypatch):
    monkeypatch.setenv("XQ_STORE", "own")
    monkeypatch.setenv("XQ_SINK_R", "removed at the end")
    monkeypatch.delenv("XQ_SINK_R")
    CarriedSecrets({"XQ_STORE": "carried", "XQ_SINK_R": "carried"}).unpack()
    assert (os.environ["XQ_STORE"], os.environ["XQ_SINK_R"]) == ("own", "carried")


def test_the_archive_is_the_library_without_the_parts_that_need_airflow():
    names = zipfile.ZipFile(package_archive()).namelist()
    assert "export_queue/__init__.py" in names
    assert "export_queue/core/spark/driver.py" in names
    assert "export_queue/core/store/postgresql/sql/transactions.sql" in names
    assert not [name for name in names if not name.startswith(("export_queue/core/", "export_queue/__init__"))]
    assert package_archive() == package_archive()


@pytest.mark.parametrize(("magic", "loaded_from"), [(importlib.util.MAGIC_NUMBER, "tasks.pyc"), (b"????", "tasks.py")])
def test_the_archive_works_where_nothing_else_of_the_library_is(tmp_path, monkeypatch, magic, loaded_from):
    """With byte code of this Python, and by its sources where the byte code is another Python's."""
    monkeypatch.setattr(importlib.util, "MAGIC_NUMBER", magic)
    program = (
        "import sys; sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f)]\n"
        "sys.path[:] = [sys.argv[1]] + [p for p in sys.path if p]\n"
        "import export_queue.core.client, export_queue.core.spark.tasks as tasks\n"
        "from importlib.resources import files\n"
        "assert (files('export_queue.core.store.postgresql') / 'sql' / 'transactions.sql').read_text()\n"
        "print(tasks.__file__)"
    )
    archive = package_archive()
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, str(archive)],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{archive}/export_queue/core/spark/{loaded_from}"


@pytest.mark.parametrize(
    ("path", "left"),
    [
        (["LIB/pyspark.zip", "LIB/py4j-0.10-src.zip", "SITE"], ["SITE"]),
        (["LIB/other.zip", "/elsewhere/pyspark.zip", "SITE"], ["LIB/other.zip", "/elsewhere/pyspark.zip", "SITE"]),
        # of another Python, whose packages are other ones
        (["LIB/pyspark.zip", "/other/site-packages"], ["LIB/pyspark.zip", "/other/site-packages"]),
    ],
)
def test_pyspark_is_imported_from_its_package_where_that_is_on_the_path(tmp_path, path, left):
    for package in ("pyspark", "py4j"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    home = tmp_path / "pyspark"

    def placed(entries):
        return [entry.replace("LIB", f"{home}/python/lib").replace("SITE", str(tmp_path)) for entry in entries]

    assert without_archives(placed(path), home) == placed(left)


def test_the_archive_of_a_spark_that_is_no_package_stays(tmp_path):
    home = tmp_path / "spark-4.3.0"
    path = [f"{home}/python/lib/pyspark.zip", str(tmp_path)]
    assert without_archives(path, home) == path


def test_an_archive_folder_that_belongs_to_somebody_else_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    open_to_all = tmp_path / f"export-queue-{os.getuid()}"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    assert package_archive().parent != open_to_all


def test_describing_a_job_imports_no_pyspark():
    program = (
        "import sys; from export_queue.core.spark import drain_job, bucket_column; "
        "sys.exit('pyspark' in sys.modules or 'redis' in sys.modules or 'pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-P", "-c", program], timeout=60, check=False).returncode == 0
