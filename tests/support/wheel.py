"""The fixtures of the project's wheel, built once, and of an environment that has it installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.environments import Environment

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the tree: what an earlier build left behind must not get into it."""
    source = tmp_path_factory.mktemp("source") / "project"
    unwanted = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "tests", "docs", "benchmarks")
    shutil.copytree(ROOT, source, ignore=unwanted)
    target = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "build", "--wheel", "--no-isolation", "--outdir", target, source],
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def wheel_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """A new environment in which the wheel is installed with extras, next to Airflow, and without this checkout."""
    folder = tmp_path_factory.mktemp("from-the-wheel") / "venv"
    installed = Environment(folder, ["airflow", "openlineage", "postgres", "redis", "elasticsearch"], wheel)
    installed.add_programs("airflow", "export-queue")
    yield installed
    shutil.rmtree(folder)
