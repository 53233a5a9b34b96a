"""The names that users import from ``export_queue``, and what the import costs."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import export_queue
from export_queue.core import errors
from export_queue.core.sinks import ContinuingSink, PreparableSink, ProbedSink
from export_queue.core.spark.archive import package_archive

NAMES = """
    ApplyResult BoundSink Candidates Capabilities Claim CompactJob CompactionReport ControlRecord
    DeadLetter DeadLetterFilter Delete DrainJob DrainReport
    ElasticsearchSink Entry ErrorRow ErrorTable Fate FencedSink FirstLoad FloorRecord KeyStory Level Limits LoadReport
    Mark MemorySink MirrorReport OpenSearchSink Operations Outcome Owner Participant PointingSink Put QueuedEntry Range
    RedisSink Rejection RepairableSink ReplayReport Retry
    ScannableSink SearchableSink Sink SinkSpec SqlSink State StateStatus Store StoredRecords StoreSpec Submitter
    SweepableSink
    Transaction
    TransactionContext WaitingRows __version__ apply_batch
    Content FirstLoadReport FunctionSource Rebuild Source SqlSource TableSource VerifyJob VerifyReport verify
    verify_job
    bucket bucket_column check_owner compact_job drain drain_job follow raise_floor readmit refuse_seqs
    register_data_source register_store stale_rank write_transactional

    ExportQueueError ExportTimedOut NotExported
    ConfigurationError CodecError ColumnNotObserved EntriesWait HasSubscriptions InvalidArgument
    OptionsDiffer
    SecretNotFound SinkBindingError SinkConfigurationError StateIncomplete UnknownQueue
    EntryError MirrorRefused RebuildRefused
    SegmentLost SegmentRefused SegmentUnavailable
    StoreError OtherCluster SchemaVersionError StoreNotCreated StoreReplaced StoreUnavailable
    TransactionError AfterCommitFailed AlreadyCommitted ChangeSetTooLarge CommitOutcomeUnknown CommitRefused
    ConflictError LayoutClosed RegistrationLost SnapshotTooOld TransactionEnded TransactionTimeout
    TransactionsInProgress
    LockError LeaseLost LockNotAvailable QueueBusy
    SinkError SinkBelongsToAnother SinkLostData SinkRefused SinkUnavailable
    DrainError AmbiguousRecord DrainTimedOut EntriesNotSettled EntryRejected ExporterError SparkJobFailed
    TooManyDeadLetters DeadLettersLeft
""".split()

NEED_AIRFLOW = {
    "ExportQueueNotificationTrigger",
    "ExportQueueNotifier",
    "ExportQueueRetryPolicy",
    "ExportQueueTrigger",
    "export_transaction",
    "queue_asset",
}
"""Loaded by tests/airflow/test_public_face.py, since the import of Airflow sets it up."""

PROTOCOLS = (
    export_queue.Sink,
    export_queue.FencedSink,
    export_queue.SweepableSink,
    export_queue.ScannableSink,
    export_queue.PointingSink,
    export_queue.Source,
    export_queue.SearchableSink,
    export_queue.RepairableSink,
    export_queue.BoundSink,
    export_queue.Participant,
    ContinuingSink,
    PreparableSink,
    ProbedSink,
)

OPTIONAL = {
    "airflow",
    "elastic_transport",
    "elasticsearch",
    "psycopg",
    "pyarrow",
    "pymysql",
    "pyspark",
    "redis",
    "sqlalchemy",
    "typer",
}


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
    assert imported | {"__version__"} == set(NAMES) | NEED_AIRFLOW
    assert set(export_queue._NEED_AIRFLOW) == NEED_AIRFLOW
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


WITHOUT_AIRFLOW = """
import sys
sys.modules["airflow"] = None
"""


@pytest.mark.parametrize("name", sorted(NEED_AIRFLOW))
def test_a_name_that_needs_airflow_says_so_where_airflow_is_missing(name: str) -> None:
    program = f"""{WITHOUT_AIRFLOW}
try:
    from export_queue import {name}
except ImportError as error:
    print(error)
"""
    assert run(program) == (
        f"export_queue.{name} needs Apache Airflow, which is not installed here\n"
        "  hint: pip install 'airflow-provider-export-queue[airflow]'"
    )


def test_a_star_import_works_where_airflow_is_missing() -> None:
    program = f"{WITHOUT_AIRFLOW}from export_queue import *; print(Store.__name__)"
    assert run(program) == "Store"


# -- pages, examples and the demo use nothing else ---------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
ROOMS = ("hooks", "operators", "sensors", "testing")
LOGGERS = {"export_queue.observers"}
READ_BY_USERS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in sorted(ROOT.glob("docs/**/*.md")) if page.parent.name != "decisions"),
    *sorted(ROOT.glob("dags_examples/*.py")),
    *sorted(ROOT.glob("demo/*.py")),
]


def names_of(room: str) -> set[str]:
    """The names of ``__all__``; not imported, since that would set Airflow up."""
    file = ROOT / "provider" / "testing.py" if room == "testing" else ROOT / room / "__init__.py"
    (found,) = [
        node.value
        for node in ast.parse(file.read_text("utf-8")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    return set(ast.literal_eval(found))


def is_public(path: str) -> bool:
    """Tell whether a dotted path leads to a name of the face, or of one of the rooms beside it."""
    _, first, *rest = path.split(".")
    if first in ROOMS:
        return not rest or rest[0] in names_of(first)
    return first == "dags_examples" or first in {*NAMES, *NEED_AIRFLOW} or path in LOGGERS


def paths_in(text: str) -> set[str]:
    """Find dotted paths, and what is imported from them."""
    found = set(re.findall(r"\bexport_queue(?:\.\w+)+", text))
    for module, names in re.findall(r"\bfrom (export_queue[\w.]*) import (\([^)]*\)|[^\n]*)", text):
        found |= {f"{module}.{name}" for name in re.findall(r"(\w+)(?: as \w+)?", names.partition("#")[0])}
    return found


@pytest.mark.parametrize("file", READ_BY_USERS, ids=lambda file: str(file.relative_to(ROOT)))
def test_pages_examples_and_demo_import_from_the_face(file: Path) -> None:
    text = file.read_text("utf-8")
    if file.name == "CONTRIBUTING.md":  # its map names the folders
        text = text.replace("| `core/` | `export_queue.core` |", "")
    assert {path for path in paths_in(text) if not is_public(path)} == set()


@pytest.mark.parametrize(
    "path", ["core.client.Store", "core", "assets.queue_asset", "triggers.ExportQueueTrigger", "hooks.redis", "Stor"]
)
def test_an_inner_path_is_not_public(path: str) -> None:
    assert not is_public(f"export_queue.{path}")


def test_the_face_works_in_the_archive_that_spark_gets() -> None:
    archive = package_archive()
    assert "export_queue/__init__.py" in zipfile.ZipFile(archive).namelist()
    program = "import sys; sys.path.insert(0, sys.argv[1]); import export_queue; print(export_queue.__file__)"
    program += "; from export_queue import Put, Delete, Entry, ExportQueueError; print(Put.__module__)"
    file, module = run(program, archive).splitlines()
    assert Path(file).parent.parent == archive
    assert module.startswith("export_queue.core.")


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("__")])
def test_each_public_name_and_method_has_a_docstring(name: str) -> None:
    found = getattr(export_queue, name)
    assert inspect.getdoc(found), name
    if not inspect.isclass(found):
        return
    for method, function in inspect.getmembers(found, lambda member: inspect.isfunction(member) or is_property(member)):
        is_described_by_protocol = any(hasattr(protocol, method) for protocol in PROTOCOLS)
        if not method.startswith("_") and not is_described_by_protocol:
            assert inspect.getdoc(function), f"{name}.{method}"


def is_property(member: object) -> bool:
    return isinstance(member, property)


@pytest.mark.parametrize("kind", [found for _, found in inspect.getmembers(errors, inspect.isclass)])
def test_each_hint_of_an_error_is_shown(kind: type) -> None:
    """A class attribute ``hint`` is hidden by that of each error; a class names its own ``default_hint``."""
    assert "hint" not in vars(kind)
    if issubclass(kind, errors.ExportQueueError) and kind is not errors.AlreadyCommitted:
        assert kind("wrong").hint == kind.default_hint
