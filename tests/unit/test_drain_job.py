"""What a submitter gets: program, archive, arguments, settings; all without PySpark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from export_queue.core.drain import DrainRequest
from export_queue.core.errors import ConfigurationError, InvalidArgument, SinkConfigurationError
from export_queue.core.locks import Owner
from export_queue.core.queue import Range
from export_queue.core.retry import Retry
from export_queue.core.sinks import SinkSpec
from export_queue.core.spark import DrainArguments, drain_job
from export_queue.core.spark.archive import package_archive
from export_queue.core.spark.carried_secrets import CarriedSecrets, carried_secrets
from export_queue.core.store import StoreSpec

SINK = SinkSpec("redis", {"host": "r", "key": "o:{id}"}, {"password": "env:XQ_SINK_R"}, name="r")
STORE = StoreSpec(url="postgresql+psycopg://user@host/db", secret="env:XQ_STORE")
MINIMUM = {"queue_id": "orders", "sink": SINK, "store": STORE, "drain_id": "t", "owner": Owner("dag/run/task")}


def arguments(**options):
    request = DrainRequest(queue_id="orders", sink_name="r", **options)
    return DrainArguments(store=STORE, sink=SINK, request=request, max_parallel=3)


def test_a_job_is_a_program_an_archive_and_one_text_of_arguments():
    job = drain_job(**MINIMUM, ranges=[Range(0, 101), [202, 303]])
    assert Path(job.application).name == "drain_main.py"
    assert Path(job.application).exists()
    assert job.drain_id == "t"
    (text,) = job.arguments
    found = DrainArguments.from_json(text)
    assert (found.sink, found.store) == (SINK, STORE)
    assert found.request.ranges == (Range(0, 101), Range(202, 303))
    assert (found.request.sink_name, found.request.owner.task) == ("r", "dag/run/task")


def test_arguments_survive_json():
    given = arguments(exporter="m:f", if_locked="skip", ranges=[[0, 5]], retry=Retry(attempts=2, seconds=9))
    assert DrainArguments.from_json(given.to_json()) == given


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


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]"])
def test_nothing_is_carried_to_executors_that_share_the_drivers_environment(monkeypatch, master):
    monkeypatch.setenv("XQ_STORE", "s3cr3t")
    assert carried_secrets(master, STORE, SINK).variables == {}


def test_only_variables_that_the_driver_has_are_carried_to_executors_elsewhere(monkeypatch):
    monkeypatch.setenv("XQ_STORE", "s3cr3t")
    monkeypatch.delenv("XQ_SINK_R", raising=False)
    monkeypatch.setenv("XQ_UNRELATED", "other")
    file = SinkSpec("redis", {"host": "s"}, {"password": "file:/run/s"})
    both = SinkSpec("composite", {"parts": [json.loads(SINK.to_json()), json.loads(file.to_json())]})
    carried = carried_secrets("spark://host:7077", STORE, both)
    assert carried.variables == {"XQ_STORE": "s3cr3t"}
    assert "s3cr3t" not in repr(carried)
    monkeypatch.setenv("XQ_SINK_R", "other")
    assert set(carried_secrets("yarn", STORE, both).variables) == {"XQ_STORE", "XQ_SINK_R"}


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


def test_the_archive_works_where_nothing_else_of_the_library_is(tmp_path):
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
    assert done.stdout.startswith(str(archive))


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
