"""What a submitter gets: program, archive, arguments, settings; all without PySpark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from export_queue.core.errors import ConfigurationError, InvalidArgument, SinkConfigurationError
from export_queue.core.queue import Range
from export_queue.core.sinks import SinkSpec
from export_queue.core.spark import DrainArguments, drain_job
from export_queue.core.spark.archive import package_archive

SINK = SinkSpec("redis", {"host": "r", "key": "o:{id}"}, {"password": "env:XQ_SINK_R"}, name="r")
MINIMUM = {
    "queue_id": "orders",
    "sink": SINK,
    "store_url": "postgresql+psycopg://user@host/db",
    "drain_id": "t",
    "owner_task": "dag/run/task",
}


def test_a_job_is_a_program_an_archive_and_one_text_of_arguments():
    job = drain_job(**MINIMUM, ranges=[Range(0, 101), [202, 303]], store_secret="env:XQ_STORE")
    assert Path(job.application).name == "drain_main.py"
    assert Path(job.application).exists()
    assert job.drain_id == "t"
    (text,) = job.arguments
    arguments = DrainArguments.from_json(text)
    assert arguments.sink == SINK
    assert arguments.ranges == [[0, 101], [202, 303]]
    assert arguments.store_secret == "env:XQ_STORE"


def test_arguments_survive_json():
    arguments = DrainArguments(**MINIMUM, exporter="m:f", if_locked="skip", max_parallel=3)
    assert DrainArguments.from_json(arguments.to_json()) == arguments


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"sink": 1}', json.dumps({"unknown": 1})])
def test_other_text_is_refused(text):
    with pytest.raises(InvalidArgument):
        DrainArguments.from_json(text)


def test_a_password_in_the_stores_url_is_refused_and_not_repeated():
    with pytest.raises(InvalidArgument) as caught:
        drain_job(**MINIMUM | {"store_url": "postgresql+psycopg://user:s3cr3t@host/db"})
    assert "s3cr3t" not in str(caught.value)


def test_a_password_in_the_place_of_a_reference_is_refused_and_not_repeated():
    with pytest.raises(InvalidArgument) as caught:
        drain_job(**MINIMUM, store_secret="s3cr3t")
    assert "s3cr3t" not in str(caught.value)


def test_a_password_among_the_sinks_options_is_refused():
    with pytest.raises(SinkConfigurationError):
        SinkSpec("sql", {"url": "postgresql+psycopg://user:s3cr3t@host/db"})


def test_a_function_is_no_exporter_for_executors():
    with pytest.raises(InvalidArgument, match="import path"):
        drain_job(**MINIMUM, exporter=print)


def test_a_sqlite_store_with_executors_on_other_machines_is_refused():
    local = MINIMUM | {"store_url": "sqlite:///store.db"}
    with pytest.raises(ConfigurationError, match="SQLite"):
        drain_job(**local, master="spark://host:7077")
    drain_job(**local, master="local[2]")
    drain_job(**local)


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
