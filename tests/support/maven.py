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
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, text=True, timeout=300, check=False
        )
        said = f"{done.stdout}{done.stderr}"
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    if not (folder / of.file).exists():
        raise FileNotFoundError(f"{of.name} {of.version} is missing and could not be downloaded: {said[-500:].strip()}")
    return folder / of.file


def _ivy_jars() -> Iterator[Path]:
    homes = (os.environ.get("EXPORT_QUEUE_SPARK_HOME"), ".venv-spark", sys.prefix)
    for home in filter(None, homes):
        yield from Path(home).resolve().glob("lib/python*/site-packages/pyspark/jars/ivy-2.*.jar")
