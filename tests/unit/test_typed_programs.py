"""mypy and pyright check programs of users against the installed package, whose annotations belong to its interface."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.support.pages import blocks_of

PROGRAM = """
from collections.abc import Iterator

from export_queue import Delete, DrainReport, Entry, Put, SinkSpec, Store, TransactionContext, drain

store = Store.open("sqlite:///shop.db", client="shop")


def add(tx: TransactionContext) -> int:
    tx.queue("orders").add("anna", {"total": 1})
    return 3


def export(entry: Entry) -> Iterator[Put | Delete]:
    yield Put("orders", str(entry.key), entry.value)


total: int = store.run(add)
report: DrainReport = drain(store, "orders", SinkSpec("sql", {"url": "sqlite:///copy.db"}), exporter=export)
reveal_type(report.acknowledged)
store.run("not a function")  # error
drain(store, "orders", SinkSpec("sql", {}), if_locked="never")  # error
"""


EXPECTED = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# error")}


@pytest.fixture(scope="module")
def folder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder, with an environment that has the wheel; mypy keeps there what it has read."""
    folder = tmp_path_factory.mktemp("user")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True, timeout=60)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder


def check(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--python-executable", "venv/bin/python", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    return done.stdout + done.stderr


def check_with_pyright(folder: Path, files: list[str], **settings: str) -> list[dict[str, Any]]:
    """Return what pyright tells about files, as one dictionary for each error, warning and revealed type."""
    (folder / "pyrightconfig.json").write_text(json.dumps({"include": files, **settings}))
    words = ["pyright", "--outputjson", "--pythonpath", "venv/bin/python", "--project", "pyrightconfig.json"]
    done = subprocess.run([sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True, timeout=280)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["summary"]["filesAnalyzed"] == len(files), done.stdout
    found: list[dict[str, Any]] = told["generalDiagnostics"]
    return found


def programs_of_pages(folder: Path) -> list[str]:
    """Write the DAGs of two pages into the folder, and return the names of their files."""
    names = []
    for page in ("first-dag", "waiting"):
        for number, block in enumerate(blocks_of(f"{page}.md", "python")):
            names.append(f"{page.replace('-', '_')}_{number}.py")
            (folder / names[-1]).write_text(block.text)
    return names


@pytest.mark.full("mypy reads the whole package")
def test_a_typed_program_of_a_user_is_checked_against_the_package(folder: Path) -> None:
    (folder / "program.py").write_text(PROGRAM)
    told = check(folder, "--strict", "program.py")
    errors = {int(line.split(":")[1]) for line in told.splitlines() if ": error: " in line}
    assert errors == EXPECTED, told
    assert 'Revealed type is "int"' in told


@pytest.mark.full("pyright reads the package")
def test_pyright_checks_a_typed_program_of_a_user_against_the_package(folder: Path) -> None:
    (folder / "program.py").write_text(PROGRAM)
    told = check_with_pyright(folder, ["program.py"], typeCheckingMode="strict")
    errors = {one["range"]["start"]["line"] + 1 for one in told if one["severity"] == "error"}
    assert errors == EXPECTED, told
    assert [one["message"] for one in told if one["severity"] == "information"] == [
        'Type of "report.acknowledged" is "int"'
    ]


@pytest.mark.full("mypy reads Airflow")
def test_dags_of_users_have_no_errors_of_types(folder: Path) -> None:
    """A task's function takes what Airflow or our decorator brings; a checker misses that in its call."""
    pytest.importorskip("airflow", reason="Airflow is missing: ./run setup installs it")
    names = programs_of_pages(folder)
    (folder / names[0]).write_text((folder / names[0]).read_text() + 'ExportQueueDrainOperator(task_id="t")\n')
    told = check(folder, "--check-untyped-defs", "--disable-error-code", "call-arg", *names)
    assert "Success: no issues found in 4 source files" in told, told
    told = check(folder, "--check-untyped-defs", names[0])
    assert 'Missing named argument "queue_id" for "ExportQueueDrainOperator"' in told
    assert told.count(": error: ") == 1, told


@pytest.mark.full("pyright reads Airflow")
def test_pyright_finds_no_errors_in_dags_of_users(folder: Path) -> None:
    """As for mypy, the arguments that Airflow or our decorator brings are missing in the call of a task."""
    pytest.importorskip("airflow", reason="Airflow is missing: ./run setup installs it")
    names = programs_of_pages(folder)
    told = check_with_pyright(folder, names, reportCallIssue="none", reportUnusedExpression="none")
    assert told == []
    (folder / names[0]).write_text((folder / names[0]).read_text() + 'ExportQueueDrainOperator(task_id="t")\n')
    (found,) = check_with_pyright(folder, names[:1], reportUnusedExpression="none")
    assert 'Argument missing for parameter "queue_id"' in found["message"]
