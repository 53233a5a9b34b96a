"""A page of the documentation as a reader follows it: its blocks in order, and a shell that runs them."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.environments import Environment

DOCS = Path(__file__).parents[2] / "docs"
SECONDS = 240
"""Longest time of one block, while the machine is busy."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code, with the heading above it."""

    heading: str
    language: str
    text: str


def blocks_of(page: str, *languages: str) -> list[Block]:
    """List the blocks of a page, in order; of some languages, or of all."""
    found, heading = [], ""
    pattern = r"^#+ (?P<heading>[^\n]*)$|^```(?P<language>\w*)\n(?P<text>.*?)^```$"
    for part in re.finditer(pattern, (DOCS / page).read_text("utf-8"), re.DOTALL | re.MULTILINE):
        if part["heading"] is not None:
            heading = part["heading"]
        elif not languages or part["language"] in languages:
            found.append(Block(heading, part["language"], part["text"]))
    return found


def rows_of(page: str, heading: str) -> list[list[str]]:
    """List the rows of the table below a heading, each as its cells."""
    _, _, below = (DOCS / page).read_text("utf-8").partition(f"# {heading}\n")
    assert below, f"{page} has no heading {heading}"
    lines = [line for line in re.split(r"^#", below, maxsplit=1, flags=re.MULTILINE)[0].splitlines() if line[:1] == "|"]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def names_of_tests(file: str) -> set[str]:
    """List the tests of a file below ``tests``, without running it."""
    tree = ast.parse((DOCS.parent / "tests" / file).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def assert_tested(tests: Iterable[tuple[str, str]]) -> None:
    """Check that tests exist: the file of each, below ``tests``, and its name without ``test_``."""
    missing = [f"{file}::test_{name}" for file, name in tests if f"test_{name}" not in names_of_tests(file)]
    assert not missing, missing


class Shell:
    """A shell of somebody who follows a page. Folder and exported variables stay from one block to the next.

    :param environment: its programs come first on ``PATH``.
    :param folder: where the blocks run.
    :param variables: of the environment, besides those of a login.
    """

    def __init__(self, environment: Environment, folder: Path, variables: Mapping[str, str]) -> None:
        self.folder = folder
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
        path = f"{environment.python.parent}{os.pathsep}{os.environ['PATH']}"
        self.variables = {**kept, "PATH": path, "COLUMNS": "200", **variables}

    def run(self, text: str, *, status: int = 0, instead: Mapping[str, str] | None = None) -> str:
        """Run a block of a page, and return what it prints.

        :param text: the block; lines that begin with ``#`` are comments.
        :param status: the exit status that is expected; with another one the test fails.
        :param instead: texts of the page, each with what stands for it here. Each must occur.
        """
        for old, new in (instead or {}).items():
            assert old in text, f"the page no longer says {old!r}: {text}"
            text = text.replace(old, new)
        exported = self.folder / ".exported"
        script = f"set -eu\n{text}\nenv -0 >{shlex.quote(str(exported))}\n"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == status, f"{text}\n{done.stdout}"
        if status == 0:
            pairs = (pair.partition("=") for pair in exported.read_text().split("\0") if pair)
            self.variables = {name: value for name, _, value in pairs}
        return done.stdout


def assert_shown(shown: str, printed: str) -> None:
    """Check that a program has printed the lines that a page shows, in this order; durations may differ."""
    at = 0
    for line in shown.strip().splitlines():
        pattern = re.sub(r"\d+\\\.\d+\\ s$", r"[\\d.]+ s", re.escape(line.strip()))
        found = re.compile(pattern).search(printed, at)
        assert found, f"the page shows {line!r}, which is not printed: {printed}"
        at = found.end()
