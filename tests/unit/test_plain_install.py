"""The plain wheel, in an environment with nothing but what it requires."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

DISTRIBUTION = "airflow-provider-export-queue"

PROGRAM = """
import sys

from export_queue import MemorySink, Store, drain
from export_queue.testing import assert_converges

sink = MemorySink()
with Store.open("sqlite:///" + sys.argv[1]) as store:
    store.create()
    store.configure_queue("orders")
    with store.transaction() as tx:
        tx.queue("orders").add("a", {"total": 3})
    report = drain(store, "orders", sink)
assert (report.read, report.acknowledged, report.left) == (1, 1, 0), report
loaded = {name.partition(".")[0] for name in sys.modules}
print(sorted(loaded & {"airflow", "pyspark", "pyarrow", "redis", "psycopg"}))
"""


def required(name: str, seen: dict[str, Distribution]) -> dict[str, Distribution]:
    """The distributions that a plain install of one brings along, extras left out."""
    for line in distribution(name).requires or []:
        requirement = Requirement(line)
        wanted = canonicalize_name(requirement.name)
        if wanted not in seen and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            seen[wanted] = distribution(wanted)
            required(wanted, seen)
    return seen


@pytest.fixture(scope="module")
def plain(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An environment with the wheel; what it requires is copied from ours, so that no network is needed."""
    home = tmp_path_factory.mktemp("plain") / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    paths = sysconfig.get_paths("venv", vars={"base": str(home), "platbase": str(home)})
    target = Path(paths["purelib"])
    for found in required(DISTRIBUTION, {}).values():
        for file in found.files or []:
            if ".." not in file.parts and "__pycache__" not in file.parts:
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(found.locate_file(file), target / file)
    python = home / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps", wheel],
        check=True,
        timeout=100,
    )
    yield home
    shutil.rmtree(home)


def run(*words: object, cwd: Path) -> str:
    done = subprocess.run(
        [str(word) for word in words], check=False, capture_output=True, text=True, timeout=60, cwd=cwd
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_plain_install_commits_and_drains_without_loading_an_optional_package(plain: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    assert run(plain / "bin" / "python", program, tmp_path / "store.db", cwd=tmp_path) == "[]\n"


def test_a_plain_install_has_the_command_line(plain: Path, tmp_path: Path) -> None:
    assert "export-queue" in run(plain / "bin" / "export-queue", "--help", cwd=tmp_path)


def test_a_plain_install_has_neither_airflow_nor_pyspark(plain: Path, tmp_path: Path) -> None:
    search = "import importlib.util as u; print([n for n in ('airflow', 'pyspark') if u.find_spec(n)])"
    assert run(plain / "bin" / "python", "-c", search, cwd=tmp_path) == "[]\n"
