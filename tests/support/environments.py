"""Python environments as a page has them installed, made of what is installed here already."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

PROJECT = "airflow-provider-export-queue"


class Environment:
    """A virtual environment that has a project's extras and what they stand on, and nothing else.

    :param folder: is made.
    :param extras: as in ``pip install 'airflow-provider-export-queue[spark,redis]'``.
    :param library: the library itself, as a zip; or its wheel.
    """

    def __init__(self, folder: Path, extras: Sequence[str], library: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
        (self._packages,) = folder.glob("lib/python*/site-packages")
        for found in set(_needed(PROJECT, extras)) - {PROJECT}:
            self.install(found)
        with zipfile.ZipFile(library) as archive:
            archive.extractall(self._packages)

    def install_with_needs(self, name: str) -> None:
        """Add a distribution and what it stands on."""
        for found in _needed(name, ()):
            self.install(found)

    def install(self, name: str) -> None:
        """Add one distribution."""
        for top, source in _tops(name):
            target = self._packages / top
            if not target.exists():
                target.symlink_to(source)

    def uninstall(self, name: str) -> None:
        """Take one distribution away."""
        for top, _ in _tops(name):
            (self._packages / top).unlink(missing_ok=True)

    def add_programs(self, *names: str) -> None:
        """Write programs to ``bin``, as pip does for a distribution's entry points."""
        for found in distributions(path=[str(self._packages)]):
            for entry in found.entry_points.select(group="console_scripts"):
                if entry.name in names:
                    program = self.python.with_name(entry.name)
                    call = f"import sys\nfrom {entry.module} import {entry.attr}\nsys.exit({entry.attr}())\n"
                    program.write_text(f"#!{self.python}\n{call}")
                    program.chmod(0o755)


def _tops(name: str) -> Iterator[tuple[str, Path]]:
    """List the files and folders of a distribution that lie in ``site-packages`` itself."""
    found = distribution(name)
    tops = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
    return ((top, Path(str(found.locate_file(top)))) for top in sorted(tops))


def _needed(name: str, extras: Sequence[str], seen: set[str] | None = None) -> set[str]:
    from packaging.requirements import Requirement

    seen = set() if seen is None else seen
    seen.add(name)
    found: Distribution = distribution(name)
    for text in found.requires or ():
        wanted = Requirement(text)
        environments = [{"extra": extra} for extra in ("", *extras)]
        if wanted.marker is None or any(wanted.marker.evaluate(one) for one in environments):
            key = wanted.name.lower().replace("_", "-")
            if key not in seen or wanted.extras:
                _needed(key, sorted(wanted.extras), seen)
    return seen
