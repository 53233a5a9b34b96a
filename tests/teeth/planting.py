"""Plants one bug after the other into a copy of the tree, and sees whether the tests that are named for it fail.

``bugs.toml`` is the table. ``./run teeth`` goes through all of it, ``./run teeth NAME …`` through a part.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("bugs.toml")
FOLDERS = ("provider", "core", "hooks", "operators", "sensors", "dags_examples", "tests", "benchmarks")
AT_ONCE = 2
PLUGINS = ("-p", "no:cacheprovider", "-p", "_hypothesis_pytestplugin", "-p", "pytest_timeout", "-p", "teeth_recorder")
SECONDS = 600.0
"""Longest time that one run of tests may take."""

ANSWERS = ("builtins.AssertionError", "builtins.Failed", "export_queue.core.errors.ExportQueueError")
"""What a test ends with that has seen a bug (``Failed`` is pytest's own); any other error may be the plant's, which
does not even run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One row of the table."""

    name: str
    breaks: tuple[str, ...]
    """The invariants that no longer hold."""
    file: str
    old: str
    """Occurs exactly once in the file."""
    new: str
    tests: tuple[str, ...]
    """Ids of pytest: at least one of them fails."""
    environment: Literal[".venv", ".venv-spark"] = ".venv"

    def applies(self, tree: Path) -> bool:
        """Tell whether there is exactly one place for it."""
        path = tree / self.file
        return path.is_file() and path.read_text("utf-8").count(self.old) == 1

    def plant(self, tree: Path) -> None:
        """Put it into a copy of the tree."""
        path = tree / self.file
        text = path.read_text("utf-8").replace(self.old, self.new)
        if path.suffix == ".py":
            compile(text, self.file, "exec")
            for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
                stale.unlink()  # of the same size and second it would count as right
        path.write_text(text, "utf-8")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a bug."""

    outcome: Literal["caught", "missed", "skipped", "broken"]
    test: str
    """The first test that failed."""
    seconds: float
    output: str = ""
    """The end of what pytest said."""


def load(path: Path = TABLE) -> list[Bug]:
    """Read the table."""
    rows: dict[str, dict[str, Any]] = tomllib.loads(path.read_text("utf-8"))
    for row in rows.values():
        row |= {"breaks": tuple(row["breaks"]), "tests": tuple(row["tests"])}
    return [Bug(name=name, **row) for name, row in rows.items()]


@contextlib.contextmanager
def copied() -> Iterator[Path]:
    """Copy the tree into a temporary folder, with a package of links that leads to the copy."""
    with tempfile.TemporaryDirectory(
        prefix="export-queue-teeth-", dir=os.environ.get("EXPORT_QUEUE_TEST_MEMORY")
    ) as name:
        tree = Path(name)
        tree.chmod(0o755)  # servers run as users of their own
        # With what is compiled, and so with times. Python's own copying of a thousand files takes a second.
        subprocess.run(["cp", "-R", "-p", *FOLDERS, "pyproject.toml", name], cwd=ROOT, check=True)
        package = tree / ".links" / "export_queue"
        package.mkdir(parents=True)
        for path in [*(tree / "provider").iterdir(), *(tree / folder for folder in FOLDERS[1:6])]:
            (package / path.name).symlink_to(path)
        (package.parent / "teeth_recorder.py").symlink_to(tree / "tests" / "teeth" / "recorder.py")
        yield tree


def run(tree: Path, tests: Iterable[str], environment: str, *options: str) -> tuple[int, list[dict[str, Any]], str]:
    """Run tests of a copy; returns pytest's exit code, what the recorder wrote, and the output."""
    record, output = tree / "record", tree / "output"
    record.touch()
    own = ("PYTEST_", "EXPORT_QUEUE_DURATIONS")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    variables["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    code = Warm.of(environment).run(
        folder=str(tree),
        variables={**variables, "PYTHONPATH": str(tree / ".links"), "TEETH_RECORD": str(record)},
        paths=[str(tree / ".links")],
        output=str(output),
        words=["-q", *PLUGINS, f"--basetemp={tree / 'temporary'}", *options, *tests],
    )
    events = [json.loads(line) for line in record.read_text().splitlines()]
    said = output.read_text(errors="replace") if code is not None else f"the tests did not end in {SECONDS:.0f} s"
    return -1 if code is None else code, events, said


class Warm:
    """A process of ``warm.py``. Each thread has one for each environment; it ends when nobody can ask it any more."""

    _of_thread = threading.local()

    def __init__(self, environment: str) -> None:
        self._process = subprocess.Popen(
            [python_of(environment), "-P", str(Path(__file__).with_name("warm.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @classmethod
    def of(cls, environment: str) -> Warm:
        """Return this thread's process of an environment."""
        kept: dict[str, Warm] = cls._of_thread.__dict__
        if environment not in kept or kept[environment]._process.poll() is not None:
            kept[environment] = cls(environment)
        return kept[environment]

    def run(self, **request: Any) -> int | None:
        """Run pytest in a fork; returns its exit code, or None if it took too long, or if all of it was killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        if select.select([self._process.stdout], [], [], SECONDS)[0] and (code := self._process.stdout.readline()):
            return int(code)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return None


def python_of(environment: str) -> str:
    """Return the Python of an environment."""
    if environment == ".venv":
        return sys.executable
    return str(Path(os.environ.get("EXPORT_QUEUE_SPARK_HOME", ROOT / ".venv-spark")) / "bin" / "python")


def check_unplanted(bugs: Sequence[Bug]) -> str | None:
    """Run the tests of all bugs without any: a test that fails anyway catches nothing. Returns what is wrong."""
    for environment in dict.fromkeys(bug.environment for bug in bugs):
        tests = dict.fromkeys(test for bug in bugs if bug.environment == environment for test in bug.tests)
        with copied() as tree:
            code, _, output = run(tree, tests, environment)
        if code:
            return f"without any bug these tests must pass, in {environment}:\n{output}"
    return None


def judge(bug: Bug) -> Verdict:
    """Plant one bug and run its tests."""
    begun = time.monotonic()
    if not bug.applies(ROOT):
        return Verdict("broken", "", 0.0, f"{bug.file} must hold this text exactly once:\n{bug.old}")
    with copied() as tree:
        bug.plant(tree)
        code, events, output = run(tree, bug.tests, bug.environment, "-x")
    seconds = time.monotonic() - begun
    failed = [event for event in events if event["outcome"] == "failed"]
    if failed:
        first = failed[0]
        saw = first["when"] == "call" and any(answer in names for names in first["errors"] for answer in ANSWERS)
        return Verdict("caught" if saw else "broken", first["test"], seconds, output)
    if code:
        return Verdict("broken", "", seconds, output)
    skipped = [event["test"] for event in events]
    return Verdict("skipped" if skipped else "missed", " ".join(skipped), seconds, output)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run teeth", description="Plant bugs; each must be caught by its tests.")
    parser.add_argument("name", nargs="*", help="only these")
    parser.add_argument("--list", action="store_true", help="print the table and run nothing")
    arguments = parser.parse_args()
    bugs = load()
    unknown = set(arguments.name) - {bug.name for bug in bugs}
    if unknown:
        parser.error(f"no such bug: {', '.join(sorted(unknown))}; --list shows all")
    chosen = [bug for bug in bugs if not arguments.name or bug.name in arguments.name]
    if arguments.list:
        for bug in chosen:
            print(line(bug, f"{bug.file}  {' '.join(bug.tests)}"))
        return 0
    print(f"running the tests of {len(chosen)} bugs without any bug")
    problem = check_unplanted(chosen)
    if problem:
        print(problem)
        return 1
    verdicts = []
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for bug, verdict in zip(chosen, threads.map(judge, chosen), strict=True):
            verdicts.append(verdict)
            shown = verdict.test if verdict.outcome == "caught" else f"{verdict.outcome.upper()} {verdict.test}"
            print(line(bug, f"{verdict.seconds:5.1f} s  {shown}"), flush=True)
            if verdict.outcome != "caught":
                print("    " + "\n    ".join(verdict.output.splitlines()[-30:]))
    caught = sum(verdict.outcome == "caught" for verdict in verdicts)
    print(f"{caught} of {len(chosen)} bugs were caught")
    return 0 if caught == len(chosen) else 1


def line(bug: Bug, rest: str) -> str:
    return f"{bug.name:<50} {' '.join(bug.breaks):<8} {rest}"


if __name__ == "__main__":
    sys.exit(main())
