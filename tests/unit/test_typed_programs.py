"""A user's program is checked by mypy against the installed package, whose annotations are a part of its interface."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

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


@pytest.mark.full("mypy reads the whole package")
def test_a_typed_program_of_a_user_is_checked_against_the_package(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=60)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    (tmp_path / "program.py").write_text(PROGRAM)

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-executable", "venv/bin/python", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    errors = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error: " in line}
    expected = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# error")}
    assert errors == expected, done.stdout + done.stderr
    assert 'Revealed type is "int"' in done.stdout
