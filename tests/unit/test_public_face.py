"""The names that users import from ``export_queue``, and what the import costs."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import export_queue
from export_queue.core import errors
from export_queue.core.spark.archive import package_archive

NAMES = """
    ApplyResult Capabilities ControlRecord DeadLetter DeadLetterFilter Delete DrainJob DrainReport ElasticsearchSink
    Entry FirstLoad KeyStory Level Limits MemorySink Operations Outcome Owner Participant Put QueuedEntry Range
    RedisSink Rejection Retry Sink SinkSpec SqlSink Store StoreSpec Submitter Transaction TransactionContext __version__
    apply_batch bucket bucket_column check_owner drain drain_job readmit refuse_seqs

    ExportQueueError
    ConfigurationError EntriesWait HasSubscriptions InvalidArgument OptionsDiffer SecretNotFound SinkBindingError
    SinkConfigurationError UnknownQueue
    EntryError
    StoreError OtherCluster SchemaVersionError StoreNotCreated StoreReplaced StoreUnavailable
    TransactionError AfterCommitFailed AlreadyCommitted ChangeSetTooLarge CommitOutcomeUnknown CommitRefused
    ConflictError RegistrationLost SnapshotTooOld TransactionEnded TransactionTimeout TransactionsInProgress
    LockError LeaseLost LockNotAvailable QueueBusy
    SinkError SinkBelongsToAnother SinkLostData SinkRefused SinkUnavailable
    DrainError AmbiguousRecord EntriesNotSettled EntryRejected ExporterError SparkJobFailed TooManyDeadLetters
""".split()

OPTIONAL = {"airflow", "elasticsearch", "psycopg", "pyarrow", "pymysql", "pyspark", "redis", "sqlalchemy", "typer"}


def run(program: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_face_has_exactly_these_names() -> None:
    assert sorted(export_queue.__all__) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_leads_to_something(name: str) -> None:
    assert getattr(export_queue, name) is not None


def test_every_error_of_the_tree_is_on_the_face() -> None:
    classes = {name for name, found in vars(errors).items() if inspect.isclass(found) and issubclass(found, Exception)}
    assert classes <= set(NAMES)


def test_checkers_and_readers_of_dir_see_the_same_names() -> None:
    (block,) = [node for node in ast.parse(inspect.getsource(export_queue)).body if is_for_checkers(node)]
    imported = {alias.name for node in ast.walk(block) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported | {"__version__"} == set(NAMES)
    assert set(dir(export_queue)) >= set(NAMES)


def is_for_checkers(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Stor'"):
        _ = export_queue.Stor  # type: ignore[attr-defined]


def test_the_import_loads_nothing_but_the_standard_library() -> None:
    program = "import sys, export_queue; print(sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = set(ast.literal_eval(run(program)))
    assert loaded & OPTIONAL == set()
    shown = run("import sys, export_queue; print([n for n in sys.modules if n.startswith('export_queue')])")
    assert shown == "['export_queue']"


def test_a_store_loads_no_client_of_a_sink_and_no_spark() -> None:
    program = "import sys; from export_queue import Store, SinkSpec, drain, drain_job; print(sorted(sys.modules))"
    assert set(ast.literal_eval(run(program))) & (OPTIONAL - {"sqlalchemy"}) == set()


def test_the_face_works_in_the_archive_that_spark_gets() -> None:
    archive = package_archive()
    assert "export_queue/__init__.py" in zipfile.ZipFile(archive).namelist()
    program = "import sys; sys.path.insert(0, sys.argv[1]); import export_queue; print(export_queue.__file__)"
    program += "; from export_queue import Put, Delete, Entry, ExportQueueError; print(Put.__module__)"
    file, module = run(program, archive).splitlines()
    assert Path(file).parent.parent == archive
    assert module.startswith("export_queue.core.")
