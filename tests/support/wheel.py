"""The fixture of the project's wheel, built once."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
