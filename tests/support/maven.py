"""Files of Maven Central, in a cache: by the Ivy that lies among PySpark's jars, or by Maven; Java must be there."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_IVY = """<ivy-module version="2.0"><info organisation="local" module="cache"/><dependencies>
<dependency org="{of.group}" name="{of.name}" rev="{of.version}" transitive="false">
<artifact name="{of.name}" type="{of.extension}" ext="{of.extension}"/></dependency></dependencies></ivy-module>
"""


_TREE = """<ivy-module version="2.0"><info organisation="local" module="cache"/><dependencies>
{dependencies}
</dependencies></ivy-module>
"""
_DEPENDENCY = '<dependency org="{group}" name="{name}" rev="{version}" conf="default"/>'


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file, without the files that it needs beside it."""

    group: str
    name: str
    version: str
    sha256: str
    extension: str = "jar"

    @property
    def file(self) -> str:
        """Its name in the cache."""
        return f"{self.name}-{self.version}.{self.extension}"


@dataclass(frozen=True, slots=True)
class Tree:
    """Libraries with all that they need, in a folder."""

    name: str
    """Of the folder in the cache."""
    roots: tuple[str, ...]
    """Each as ``group:name:version``."""
    sha256: str
    """Of the names and digests of all files."""


def cache() -> Path:
    """Return the folder of what is downloaded once."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "export-queue"


def fetch(of: Artifact) -> Path:
    """Return a file, from the cache or, the first time, from Maven Central.

    :raises FileNotFoundError: when it cannot be had.
    """
    found = cache() / of.file
    if not found.exists():
        found.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=found.parent) as folder:
            _download(of, Path(folder)).replace(found)
    if hashlib.sha256(found.read_bytes()).hexdigest() != of.sha256:
        found.unlink()
        raise FileNotFoundError(f"{of.name} {of.version} is missing: what was downloaded is not what was expected")
    return found


def fetch_tree(of: Tree) -> Path:
    """Return the folder of some libraries, from the cache or, the first time, from Maven Central.

    :raises FileNotFoundError: when they cannot be had.
    """
    found = cache() / of.name
    if not found.exists():
        found.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=found.parent) as folder:
            _download_tree(of, Path(folder)).replace(found)
    digest = hashlib.sha256()
    for jar in sorted(found.glob("*.jar")):
        digest.update(f"{jar.name} {hashlib.sha256(jar.read_bytes()).hexdigest()}\n".encode())
    if digest.hexdigest() != of.sha256:
        shutil.rmtree(found)
        raise FileNotFoundError(
            f"{of.name} is missing: what was downloaded is not what was expected ({digest.hexdigest()})"
        )
    return found


def _download_tree(of: Tree, folder: Path) -> Path:
    ivy = next(_ivy_jars(), None)
    if ivy is None:
        raise FileNotFoundError(f"{of.name} is missing: there is no PySpark to download it")
    roots = (dict(zip(("group", "name", "version"), root.split(":"), strict=True)) for root in of.roots)
    dependencies = "\n".join(_DEPENDENCY.format(**root) for root in roots)
    (folder / "ivy.xml").write_text(_TREE.format(dependencies=dependencies))
    (folder / "jars").mkdir()
    pattern = f"{folder}/jars/[artifact]-[revision].[ext]"
    said = _run(
        ["java", "-jar", str(ivy), "-cache", f"{folder}/cache", "-ivy", "ivy.xml", "-retrieve", pattern], folder
    )
    if not any((folder / "jars").iterdir()):
        raise FileNotFoundError(f"{of.name} is missing and could not be downloaded: {said[-500:].strip()}")
    return folder / "jars"


def _run(command: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, text=True, timeout=300, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return f"{done.stdout}{done.stderr}"


def _download(of: Artifact, folder: Path) -> Path:
    maven = shutil.which("mvn")
    ivy = next(_ivy_jars(), None)
    if ivy is not None:
        (folder / "ivy.xml").write_text(_IVY.format(of=of))
        pattern = f"{folder}/[artifact]-[revision].[ext]"
        command = ["java", "-jar", str(ivy), "-cache", f"{folder}/cache", "-ivy", "ivy.xml", "-retrieve", pattern]
    elif maven is not None:
        artifact = f"-Dartifact={of.group}:{of.name}:{of.version}:{of.extension}"
        command = [maven, "-q", "-B", "dependency:copy", artifact, f"-DoutputDirectory={folder}"]
    else:
        raise FileNotFoundError(f"{of.name} {of.version} is missing: there is no PySpark and no Maven to download it")
    said = _run(command, folder)
    if not (folder / of.file).exists():
        raise FileNotFoundError(f"{of.name} {of.version} is missing and could not be downloaded: {said[-500:].strip()}")
    return folder / of.file


def _ivy_jars() -> Iterator[Path]:
    homes = (os.environ.get("EXPORT_QUEUE_SPARK_HOME"), ".venv-spark", sys.prefix)
    for home in filter(None, homes):
        yield from Path(home).resolve().glob("lib/python*/site-packages/pyspark/jars/ivy-2.*.jar")
